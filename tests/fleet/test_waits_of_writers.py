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
from relive.fleet.writing import PacedWriterCore


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
