"""Shards for tests: configurations, owners in this process and in children, ranks that are threads, listeners."""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, prioritized, write_steps

import relive
from relive.fleet import ShardOwner

__all__ = [
    "CONTEXT",
    "PATHS",
    "TRANSPORTS",
    "Owner",
    "Together",
    "config_of",
    "fails_once",
    "fill",
    "in_threads",
    "listener",
    "needs_nixl",
]

TRANSPORTS = {
    "UCX_TLS": "sm,tcp,self",
    "NIXL_LOG_LEVEL": "FATAL",
    "UCX_LOG_LEVEL": "error",
}  # of UCX: there is no network card here
os.environ.update({name: os.environ.get(name, value) for name, value in TRANSPORTS.items()})
CONTEXT = multiprocessing.get_context("spawn")
PATHS: list[Any] = [("mapped", "mapped")]  # of the shards of a table
if importlib.util.find_spec("pyarrow") is not None:
    PATHS += [("mapped", "service"), pytest.param(("service", "service"), marks=pytest.mark.thorough)]
needs_nixl = pytest.mark.skipif(
    importlib.util.find_spec("nixl_cu12") is None,
    reason="NIXL is not installed here (pip install --no-deps nixl-cu12==1.5.1)",
)


def config_of(name: str, index: Any = None, capacity: int = 4096, **more: Any) -> relive.TableConfig:
    """A prioritized table of plain steps in shared memory."""
    storage = relive.SharedMemory(name)
    return relive.TableConfig(plain_spec(), capacity, prioritized() if index is None else index, storage, **more)


def fill(table: Any, shard: int, first: int, count: int) -> np.ndarray:
    """Steps of one shard, each an item."""
    with table.writer(shard=shard) as writer:
        return write_steps(writer, first, count)


@contextlib.contextmanager
def fails_once(table: Any, problem: BaseException | None = None) -> Iterator[None]:
    """The next draw of a handle fails after its ranks have agreed on it. None: its items do not come in time."""
    drawing = table._fleet.drawing
    as_it_is, problems = drawing._drawn, [problem or relive.DeadlineExceeded("8 items", 4, 1.0)]

    def drawn(*arguments: Any, **more: Any) -> Any:
        if problems:
            raise problems.pop()
        return as_it_is(*arguments, **more)

    drawing._drawn = drawn
    yield
    assert not problems
    del drawing._drawn


def own_until_told(pipe: Any, number: int, config: relive.TableConfig) -> None:
    """Owns a shard, says whether it came back with what its memory held, and waits."""
    owner = ShardOwner(number, config)
    pipe.send(owner.is_restored)
    pipe.recv()
    owner.close()


class Owner:
    """A child that owns a shard."""

    def __init__(self, number: int, config: relive.TableConfig) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=own_until_told, args=(theirs, number, config), daemon=True)
        self.process.start()
        assert self.pipe.poll(60.0)
        self.is_restored = self.pipe.recv()

    def kill(self) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(60.0)


class Together:
    """Exchanges of ranks that are threads of this process."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world)
        self._told: list[bytes] = [b""] * world

    def ranks(self) -> Iterator[Any]:
        """One exchange a rank."""
        return (_Rank(self, rank, len(self._told)) for rank in range(len(self._told)))

    def abort(self) -> None:
        """Has all ranks that wait raise an error."""
        self._barrier.abort()

    def gather(self, rank: int, mine: bytes) -> list[bytes]:
        self._told[rank] = mine
        self._barrier.wait(60.0)
        told = list(self._told)
        self._barrier.wait(60.0)
        return told


class _Rank:
    def __init__(self, group: Together, rank: int, world: int) -> None:
        self.group, self.rank, self.world = group, rank, world

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        return self.group.gather(self.rank, mine)

    def broadcast(self, given: Any, num_bytes: int, source: int, timeout_s: float) -> np.ndarray:
        told = self.group.gather(self.rank, b"" if given is None else given.tobytes())[source]
        assert len(told) == num_bytes
        return np.frombuffer(bytearray(told), np.uint8)


def in_threads(work: Any, world: int) -> list[Any]:
    """work(rank, exchange) on as many ranks, each a thread: what each returned, or which error of relive it raised.

    Raises the first other error, such as a failed assertion. The other ranks then wait no more.
    """
    told: list[Any] = [None] * world
    group, failed = Together(world), list[BaseException]()

    def run(rank: int, exchange: Any) -> None:
        try:
            told[rank] = work(rank, exchange)
        except relive.ReliveError as error:
            told[rank] = error
        except BaseException as error:
            failed.append(error)
            group.abort()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(group.ranks())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    if failed:
        raise failed[0]
    return told


@contextlib.contextmanager
def listener(says: bytes) -> Iterator[int]:
    """A server that says this to each connection. Yields its port."""

    def answer() -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                heard.append(server.accept()[0])
                heard[-1].sendall(says)

    heard: list[socket.socket] = []
    with socket.create_server(("0.0.0.0", 0)) as server:  # Ray reads 127.0.0.1 as the address of this host
        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    for one in heard:
        one.close()
