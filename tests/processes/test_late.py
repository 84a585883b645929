"""Two processes complete the same steps at once, one of them may be killed: each step has its late columns once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from processes.shm import needs_shared_memory, shared_files
from processes.tools import children
from relive import errors

pytestmark = needs_shared_memory
NUM_STEPS, WIDTH = 3000, 31


def make_table(name: str) -> relive.Table:
    spec = relive.StepSpec(
        {"action": relive.ArraySpec((), "int64"), "mark": relive.ArraySpec((WIDTH,), "int64", late=True)}
    )
    index = relive.Index(relive.Transitions(n_step=3, gamma=1.0))
    return relive.Table(spec, 2 * NUM_STEPS, index, storage=relive.SharedMemory(name), max_lanes=4)


def complete_all(pipe: Any, name: str, who: int) -> None:
    """Completes every step in an order of its own, in calls of a few; says how many of them were its own."""
    with relive.attach(name) as table:
        keys = pipe.recv()
        random = np.random.default_rng(who)
        keys = keys[random.permutation(len(keys))]
        applied = first = 0
        pipe.send("ready")
        pipe.recv()
        while first < len(keys):
            chosen = keys[first : first + random.integers(1, 6)]
            try:
                applied += table.complete(chosen, mark=np.full((len(chosen), WIDTH), who))
                first += len(chosen)
            except errors.AlreadyCompleted as error:  # without the one that is refused, once more
                assert error.applied == 0 and error.key == chosen[error.position]
                keys = np.delete(keys, first + error.position)
        pipe.send(applied)


@pytest.mark.forms(1)
@pytest.mark.parametrize("kills", [False, True])
def test_two_processes_complete_at_once(kills: bool, shm_name: Any) -> None:
    name = shm_name()
    with make_table(name) as table, table.writer() as writer, children() as start:
        keys = writer.extend(action=np.arange(NUM_STEPS), truncated=True)
        both = [start("spawn", complete_all, name, who) for who in (1, 2)]
        for child in both:
            child.tell(keys)
        assert [child.answer() for child in both] == ["ready", "ready"]
        both[0].tell("go")
        while kills and table.stats().completed == 0:  # it dies amid its own, however late the other one starts
            pass
        both[1].tell("go")
        if kills:
            while table.stats().completed < NUM_STEPS // 10:
                pass
            both[0].kill()
            both[1].answer()
        else:
            assert sum(child.answer() for child in both) == NUM_STEPS
        table.check()
        assert table.num_items() == NUM_STEPS
        marks = table.gather(keys, columns=["mark"])["mark"]
        who = set(marks[:, 0].tolist())
        assert who <= {1, 2} and (1 in who or not kills)
        assert (marks == marks[:, :1]).all()
    assert not shared_files(name)
