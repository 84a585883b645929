"""A signal's handler that raises within a call over shards: nothing stays in flight, no lock stays taken, and rows that
are stored are told.
"""

from __future__ import annotations

import copy
import gc
import random
import signal
import threading
from itertools import count
from typing import Any, cast

import numpy as np
import pytest
from processes.interrupts import Interrupted, interrupted_at
from processes.tools import eventually

import relive
from fleet.tools import config_of, fill
from relive import errors
from relive.fleet import ShardOwner, attach
from relive.fleet.remote import streams
from relive.fleet.writing import PacedWriterCore

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer that sends signals")


@pytest.mark.parametrize("is_mixed", [False, True])
def test_draws_that_are_lost_go_back(shm_name: Any, is_mixed: bool) -> None:
    chance, is_within, num_raised = random.Random(3), False, 0

    def handler(number: int, frame: Any) -> None:
        if is_within:
            raise Interrupted

    with (
        ShardOwner(0, config_of(shm_name())) as owner,
        attach([owner.serve("grpc://127.0.0.1:0")], path="service") as table,
    ):
        fill(table, 0, 0, 100)
        reader: Any = relive.Mixture({"only": 1.0}, {"only": table}) if is_mixed else table
        before = signal.signal(signal.SIGALRM, handler)
        try:
            for _ in range(500):
                try:
                    is_within = True
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-3))
                    reader.sample(8, timeout_s=5.0)
                except Interrupted:
                    num_raised += 1
                finally:
                    is_within = False
                    signal.setitimer(signal.ITIMER_REAL, 0.0)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert num_raised > 0
        gc.collect()
        reader.sample(8)
        assert eventually(lambda: table.stats().indexes["default"].in_flight == 0)


@pytest.mark.parametrize("max_times", [None, 10_000])
def test_an_interrupt_at_any_step_of_a_stream_leaves_no_lock_taken(shm_name: Any, max_times: int | None) -> None:
    config = config_of(shm_name(), relive.Index(max_times_sampled=max_times))
    with ShardOwner(0, config) as owner, attach([owner.serve()], path="service") as table:
        fill(table, 0, 0, 100)

        def draw() -> None:
            table.sample(8, timeout_s=20.0)

        draw()
        for at in count():
            raised = interrupted_at(at, draw, streams.__file__)
            later = threading.Thread(target=draw, daemon=True)
            later.start()
            later.join(60.0)
            assert not later.is_alive(), f"the draw after an interrupt at step {at} goes on"
            if raised is None:
                break
        assert at > 10
        gc.collect()
        assert eventually(lambda: table.stats().indexes["default"].in_flight == 0)


class Storing:
    """Three lanes that store all rows, under the keys 0, 1, ..."""

    closed, num_lanes, num_stored = False, 3, 0
    append = abandon = set_policy_version = close = None

    def extend(self, columns: dict[str, Any], lanes: Any, priority: Any, timeout_s: float) -> Any:
        shape = np.shape(columns["a"])
        self.num_stored += np.prod(shape)
        return np.arange(self.num_stored - np.prod(shape), self.num_stored).reshape(shape)


@pytest.mark.parametrize("call, shape", [("append", (3,)), ("extend", (2, 3))])
@pytest.mark.parametrize(
    "lost", [KeyboardInterrupt(), MemoryError(), errors.TableClosed(), errors.ServiceUnavailable("there", 1.0)]
)
@pytest.mark.parametrize("num_before", [0, 2])
def test_an_exception_in_the_wait_for_room_tells_of_the_rows_before(
    call: str, shape: tuple[int, ...], lost: BaseException, num_before: int
) -> None:
    """The rows before are stored, and the others are not: no message was under way."""
    core, error = Storing(), copy.copy(lost)

    def has_room(rows: Any, left_s: float) -> bool:
        if core.num_stored >= num_before:
            raise error
        return bool(rows.num_steps <= 1)

    spec: Any = {"a": relive.ArraySpec((), "int64")}
    paced = PacedWriterCore(cast(Any, core), has_room, spec, is_single=False, has_own_limit=False)
    with pytest.raises(type(lost)) as caught:
        getattr(paced, call)({"a": np.zeros(shape, np.int64)}, None, None, 60.0)
    told: Any = caught.value
    assert getattr(told, "stored", 0) == num_before and not getattr(told, "unanswered", 0)
    assert errors.stored_before(told).tolist() == list(range(num_before))
    assert ("rows" in str(told)) == (num_before > 0 and isinstance(told, errors.ReliveError))
