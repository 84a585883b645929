"""A draw over shards ends at its deadline, too, if its streams open behind another thread's upload over a slow link."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from service.gates import until
from service.proxy import Proxy
from service.test_slow_links import BIG, BUFFER, Doing, fill

import relive
from relive import errors
from relive.fleet import ShardOwner, attach
from relive.service.client import connection as connection_of
from relive.service.client.connection import Connection
from relive.service.client.exchange import _NoStream
from relive.service.wire.sockets import is_stuck, tcp_sockets

pytestmark = needs_shared_memory


@pytest.fixture
def uplinks(shm_name: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A table over two served shards with 10 steps each, and the links to them, which the system leaves alone."""
    marks = itertools.count(90_000)
    monkeypatch.setattr(connection_of, "new_mark", lambda taken: next(marks))
    spec = relive.StepSpec({"x": relive.ArraySpec((), "int64")})
    opened: list[Any] = []
    links, addresses = list[Proxy](), list[str]()
    for number in range(2):
        config = relive.TableConfig(spec, 6_000_000, storage=relive.SharedMemory(name := shm_name()))
        opened.append(owner := ShardOwner(number, config))
        with owner.table.writer() as writer:
            writer.extend(x=np.arange(10), truncated=True)
        opened.append(link := Proxy(int(owner.serve().rsplit(":", 1)[1].split("/")[0]), BUFFER))
        links.append(link)
        addresses.append(f"{link.address}/{name}")
    opened.append(table := attach(addresses, path="service", timeout_s=60.0))
    yield table, links
    for link in links:
        link.trickles = False
    for one in reversed(opened):
        one.close()


CALLS: dict[str, Any] = {
    "sample": lambda table: table.sample(4, timeout_s=1.5),
    "next": lambda table: next(table.batches(4, prefetch=2, timeout_s=1.5)),
    "update": lambda table: table.update_priorities(np.arange(4), np.ones(4)),
    "gather": lambda table: table.gather(np.arange(4)),
    "len": len,
}


@pytest.fixture
def uploading(uplinks: Any) -> Iterator[Any]:
    """The table, the connection to its first shard, and a call that sends to that shard for hours."""
    table, links = uplinks
    writer = table.writer(shard=0)
    writer.append(x=1)
    shard = table._fleet.shards[0]
    one = shard.core.connection
    waits = is_stuck(one.link.addresses(), one.link.mark)
    links[0].trickles = True  # the shard is not silent: its link takes a few bytes
    fill(links[0])
    links[0].stall(False)
    upload = Doing(lambda: writer.extend(x=BIG, timeout_s=3600.0))
    until(lambda: any(map(waits, tcp_sockets())))
    shard._lines._idle.clear()  # a call needs new streams
    for idle in one._idle.values():
        idle.clear()
    yield table, one, upload
    links[0].cut()
    until(lambda: upload.is_over)


@pytest.mark.parametrize("what", CALLS)
def test_a_call_ends_whose_streams_open_behind_an_upload(uploading: Any, what: str) -> None:
    table, one, _ = uploading
    for shard in table._fleet.shards:
        shard.core.timeout_s = 1.5

    def call() -> None:
        with contextlib.suppress(errors.ReliveError):
            CALLS[what](table)

    doing = Doing(call)
    until(lambda: doing.is_over)


def is_opening(one: Connection) -> bool:
    """Whether a stream is being opened."""
    return any(stream._reader is _NoStream for stream in tuple(one._watch._streams))


def test_ctrl_c_ends_such_a_call_and_leaves_no_stream(uploading: Any) -> None:
    table, one, upload = uploading
    before = set(one.streams())

    def interrupt() -> None:
        until(lambda: is_opening(one))
        signal.raise_signal(signal.SIGINT)

    doing = Doing(interrupt)
    with pytest.raises(KeyboardInterrupt):
        table.sample(4, timeout_s=3600.0)
    until(lambda: doing.is_over and upload.is_over)
    assert before.issuperset(one.streams()) and before.issuperset(one._watch._streams) and not one._opening


def test_close_ends_such_a_call(uploading: Any) -> None:
    table, one, upload = uploading
    doing = Doing(lambda: table.sample(4, timeout_s=3600.0))
    until(lambda: is_opening(one))
    table.close()
    until(lambda: doing.is_over and upload.is_over)
    assert isinstance(doing.error, errors.TableClosed)
    assert one.streams() == [] and not one._opening
