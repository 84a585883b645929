"""attach(path="nixl") keeps the caller's deadline, whatever the owner or NIXL is slow at."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from fleet.tools import config_of
from relive.fleet import PeerUnreadable, ShardOwner
from relive.fleet.onesided.opening import opened_within
from relive.fleet.onesided.peer import PeerShard
from relive.service import Door

pytestmark = needs_shared_memory


class Memory:
    """Memory of a peer that notes its end."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def owner(shm_name: Any) -> Iterator[ShardOwner]:
    with ShardOwner(0, config_of(shm_name())) as one:
        yield one


def offering(owner: ShardOwner, waits: threading.Event | None = None) -> str:
    """The address of a shard that offers its memory, at once or when `waits` is set."""
    address = owner.serve(door=Door(offers=True))

    def give() -> Any:
        if waits is not None:
            waits.wait(20.0)
        return {"uuid": owner.table.core.geometry["uuid"].hex(), "base": 1, "num_bytes": 1, "agent": "a"}, b""

    owner._server.offer(address.rpartition("/")[2], "nixl", give)  # type: ignore[union-attr]
    return address


def test_nixl_that_is_slow_to_load_does_not_delay_the_caller(owner: ShardOwner) -> None:
    memory, goes_on = Memory(), threading.Event()

    def opens(offered: Any) -> Any:
        goes_on.wait(20.0)
        return memory

    began = time.monotonic()
    with pytest.raises(PeerUnreadable, match="within"):
        PeerShard(offering(owner), 0, 1.0, must=True, opens=opens)
    assert time.monotonic() - began < 4.0
    goes_on.set()
    assert memory.closed.wait(10.0), "memory that came too late"


def test_an_owner_that_is_slow_to_offer_does_not_delay_the_caller(owner: ShardOwner) -> None:
    goes_on = threading.Event()
    began = time.monotonic()
    try:
        with pytest.raises(PeerUnreadable):
            PeerShard(offering(owner, goes_on), 0, 1.0, must=True)
        assert time.monotonic() - began < 4.0
    finally:
        goes_on.set()


def test_in_time_it_returns_the_memory_or_raises_the_error() -> None:
    offered: Any = type("Offered", (), {"address": "grpc://x/y"})
    memory = Memory()
    assert opened_within(lambda _: memory, offered, 10.0) is memory and not memory.closed.is_set()
    with pytest.raises(ZeroDivisionError):
        opened_within(lambda _: 1 // 0, offered, 10.0)
