"""Calls that change all shards, while a shard has no items: its lock is asked for, and its items are not."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory
from processes.test_locks import stopped_holder

import relive
from relive import errors
from relive.fleet import ShardOwner, attach, mapped

pytestmark = needs_shared_memory
SPEC = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
Made = tuple[Any, list[str]]


@pytest.fixture(params=["mapped", "service"])
def make(request: Any, shm_name: Any) -> Iterator[Callable[[], Made]]:
    """make(): a table over two shards without items, and the names of their memory."""
    if request.param == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    with contextlib.ExitStack() as stack:

        def one() -> Made:
            names, places = [shm_name(), shm_name()], []
            for number, name in enumerate(names):
                index = relive.Index(sampler=relive.Prioritized(0.6))
                config = relive.TableConfig(SPEC, 1000, index, relive.SharedMemory(name), timeout_s=60.0)
                owner = stack.enter_context(ShardOwner(number, config))
                places.append(owner.serve("grpc://127.0.0.1:0") if request.param == "service" else name)
            return stack.enter_context(attach(places, path=request.param, timeout_s=60.0)), names

        yield one


def test_a_change_of_all_shards_waits_for_no_items(make: Callable[[], Made], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "STALL_S", 30.0)
    with contextlib.suppress(ImportError):
        from relive.fleet.remote import shard

        monkeypatch.setattr(shard, "STALL_S", 30.0)
    table, _ = make()
    started = time.monotonic()
    table.clear()
    table.set_priority_exponent(0.5)
    with table.writer(shard=0) as writer:
        writer.extend(a=np.arange(5), truncated=True)
    table.clear()
    assert time.monotonic() - started < 20.0 and len(table) == 0 and table.priority_exponent() == 0.5


def test_a_stuck_lock_of_an_empty_shard_refuses_the_change_before_the_first_shard_changes(
    make: Callable[[], Made],
) -> None:
    table, names = make()
    with stopped_holder(names[1]) as holder:
        with pytest.raises((errors.DeadlineExceeded, errors.ServiceUnavailable)):
            table.set_priority_exponent(0.5)
        assert exponent_of(names[0]) == 0.6
        holder.kill()


def exponent_of(name: str) -> float:
    """The exponent in the memory of a shard."""
    with relive.attach(name, read_only=True) as shard:
        return shard.priority_exponent()
