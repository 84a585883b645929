"""The wait that a deadline of a writer over shards tells: that of the whole call, not that of its last part."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.fleet import writing
from relive.fleet.draws.pace import Wait
from relive.fleet.writing import PacedWriterCore, made_as_let_in
from relive.writing.new_items import NewItems


@pytest.mark.parametrize("has_own_limit", [False, True])
@pytest.mark.parametrize(("call", "count"), [("append", 1), ("extend", 3)])
@pytest.mark.parametrize("kind", [errors.DeadlineExceeded, errors.WaitsForItself])
def test_a_deadline_of_a_part_tells_the_wait_of_the_call(
    monkeypatch: pytest.MonkeyPatch, kind: Any, call: str, count: int, has_own_limit: bool
) -> None:
    """The totals take a second each time, and then the shard itself refuses until the deadline."""
    now = [0.0]
    monkeypatch.setattr(writing, "Wait", partial(Wait, clock=lambda: now[0]))

    def has_room(rows: Any, left_s: float) -> bool:
        now[0] += 1.0
        return True

    def refuse(*given: Any) -> None:
        now[0] += given[-1]
        raise kind("items in the queue", 4, given[-1], 77)

    idle = dict.fromkeys(("end_episode", "abandon", "set_policy_version", "close"))
    core: Any = SimpleNamespace(closed=False, num_lanes=1, append=refuse, extend=refuse, **idle)
    columns = {"a": relive.ArraySpec((), "int64")}
    paced = PacedWriterCore(core, has_room, columns, is_single=True, has_own_limit=has_own_limit)
    with pytest.raises(kind) as late:
        getattr(paced, call)({"a": np.arange(count) if call == "extend" else 0}, None, None, 8.0)
    assert late.value.waited_s == pytest.approx(8.0)
    assert (late.value.needs, late.value.has, late.value.holder_pid) == ("items in the queue", 4, 77)
    assert kind is errors.WaitsForItself or "deadline exceeded after 8 s" in str(late.value)


@pytest.mark.parametrize("has_own_limit", [False, True])
@pytest.mark.parametrize("part", [1, 700])
def test_room_that_opens_part_by_part_does_not_outlast_the_deadline(
    monkeypatch: pytest.MonkeyPatch, part: int, has_own_limit: bool
) -> None:
    """Each look takes 0.3 s, as over a slow link, and finds room for a part of the rows. A part takes 0.3 s, too."""
    now, stored = [0.0], list[int]()
    monkeypatch.setattr(writing, "Wait", partial(Wait, clock=lambda: now[0]))

    def has_room(rows: Any, left_s: float) -> bool:
        now[0] += 0.3
        return bool(rows.num_steps <= part)

    def extend(columns: Any, *_: Any) -> Any:
        now[0] += 0.3
        stored.extend(columns["a"])
        return np.asarray(columns["a"]) + 1_000_000

    idle = dict.fromkeys(("append", "end_episode", "abandon", "set_policy_version", "close"))
    core: Any = SimpleNamespace(closed=False, num_lanes=1, extend=extend, **idle)
    columns = {"a": relive.ArraySpec((), "int64")}
    paced = PacedWriterCore(core, has_room, columns, is_single=True, has_own_limit=has_own_limit)
    with pytest.raises(errors.DeadlineExceeded) as late:
        paced.extend({"a": np.arange(20_000)}, None, None, 10.0)
    assert now[0] <= 10.0 + 2 * 0.3 + 1e-9
    assert 0 < late.value.stored == len(stored) == len(late.value.keys)
    assert stored == list(range(len(stored))) and (late.value.keys == np.array(stored) + 1_000_000).all()


def test_room_for_items_that_opens_one_by_one_does_not_outlast_the_deadline() -> None:
    now, made = [0.0], list[int]()

    def lets_in(count: int, left_s: float) -> bool:
        now[0] += 0.3
        return count <= 3

    def create(part: NewItems, left_s: float) -> Any:
        now[0] += 0.3
        made.extend(part.windows)
        return part.windows

    with pytest.raises(errors.DeadlineExceeded) as late:
        made_as_let_in(NewItems(np.arange(20_000), [], None, []), create, lets_in, Wait(10.0, lambda: now[0]))
    assert now[0] <= 10.0 + 1.0 + 3 * 0.3  # a second for the count
    assert 0 < late.value.stored == len(made) and late.value.keys.tolist() == made == list(range(len(made)))
