"""Owners in processes of their own, and NIXL's calls played by a fake."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import relive
from fleet.tools import Owner, config_of, fill
from relive.fleet import ShardedTable, ShardOwner, attach
from relive.saving.folder import Segment


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """start(): one more process of owners, which is killed at the test's end."""
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    from fleet.owning import Owners
    from fleet.tools import TRANSPORTS

    made: list[Owners] = []

    def one() -> Owners:
        made.append(Owners(**TRANSPORTS))
        return made[-1]

    yield one
    for owners in made:
        if owners.process.is_alive():
            os.kill(owners.process.pid or 0, signal.SIGCONT)
        owners.kill()


@pytest.fixture
def pair(shm_name: Any) -> Iterator[Any]:
    """A peer and its reader, by the fake; nothing of it is left at the end."""
    from fleet.fake_nixl import Pair

    one = Pair(shm_name())
    yield one
    one.close()
    assert not one.fake.registered and not one.fake.lists and not one.fake.requests and not one.fake.peers


@pytest.fixture
def names(shm_name: Any) -> tuple[str, str]:
    return shm_name(), shm_name()


@pytest.fixture
def whole(names: tuple[str, str]) -> Iterator[ShardedTable]:
    """A table over two mapped shards of 60 and 40 steps."""
    with ExitStack() as stack:
        for number, name in enumerate(names):
            stack.enter_context(ShardOwner(number, config_of(name)))
        table = stack.enter_context(attach(names, timeout_s=30.0))
        fill(table, 0, 0, 60)
        fill(table, 1, 1_000, 40)
        yield table


@pytest.fixture
def over(shm_name: Any) -> Iterator[Callable[..., ShardedTable]]:
    """over(spec, index, paths, **attached): a table over one shard a path: "mapped", or "service" over loopback."""
    with ExitStack() as stack:

        def make(spec: Any, index: Any, paths: tuple[str, ...] = ("mapped", "mapped"), **attached: Any) -> ShardedTable:
            places = []
            for number, path in enumerate(paths):
                config = relive.TableConfig(spec, 4096, index, relive.SharedMemory(shm_name()))
                owner = stack.enter_context(ShardOwner(number, config))
                places.append(config.storage.name if path == "mapped" else owner.serve())
            ways = {"path": "service"} if "service" in paths else {}
            return stack.enter_context(attach(places, **{"timeout_s": 30.0, **ways, **attached}))

        yield make


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    made: list[Owner] = []
    yield made
    for owner in made:
        owner.kill()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writes of page images wait for this event."""
    goes_on, append = threading.Event(), Segment.append

    def slowly(self: Segment, block: memoryview) -> int:
        goes_on.wait(20.0)
        return append(self, block)

    monkeypatch.setattr(Segment, "append", slowly)
    yield goes_on
    goes_on.set()
