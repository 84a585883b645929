"""Ctrl-C at any moment of a remote writer's call: no lane stays taken, and the writer goes on as if it had not come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from processes.interrupts import AtOpcode

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import relive
from relive import errors
from relive.service import RemoteTable, Streaming, connect, serve

LOOPBACK = "grpc://127.0.0.1:0"
SPEC = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
FREE_S = 5.0  # in which a server cuts the lanes of a stream that has ended
KINDS = pytest.mark.parametrize("streaming", [None, Streaming(linger_s=0.0)], ids=["plain", "streaming"])


def moments(call: Callable[[AtOpcode], None], every: int) -> int:
    """Makes the call with Ctrl-C at each of these steps of it, until it comes no more. Returns their number."""
    number = 0
    while True:
        at = AtOpcode(number * every, lambda name: name.startswith("relive.service.client."), skips_locks=True)
        call(at)
        if not at.where:
            return number
        number += 1


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(SPEC, 100_000, max_lanes=1) as one:
        yield one


@pytest.fixture
def remote(table: relive.Table) -> Iterator[RemoteTable]:
    with serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t", timeout_s=20.0) as one:
        yield one


def is_free(table: relive.Table) -> bool:
    """Whether the only lane of the table becomes free."""
    ends = time.monotonic() + FREE_S
    while time.monotonic() < ends:
        try:
            table.writer().close()
        except errors.TooManyLanes:
            time.sleep(0.001)
        else:
            return True
    return False


@KINDS
def test_ctrl_c_while_a_writer_opens_takes_no_lane(table: relive.Table, remote: RemoteTable, streaming: Any) -> None:
    def opens(at: AtOpcode) -> None:
        writer: Any = None
        with at:
            writer = remote.writer(streaming=streaming)
        if writer is not None:
            writer.close()
        assert is_free(table), f"after Ctrl-C in {at.where}"

    assert moments(opens, every=1) > 50


@KINDS
def test_ctrl_c_while_a_writer_closes_takes_no_lane(table: relive.Table, remote: RemoteTable, streaming: Any) -> None:
    def closes(at: AtOpcode) -> None:
        writer = remote.writer(streaming=streaming)
        writer.append(a=1)
        with at:
            writer.close()
        writer.close()
        assert is_free(table), f"after Ctrl-C in {at.where}"

    assert moments(closes, every=1) > 20


def lose_stream(remote: RemoteTable, writer: Any) -> None:
    for stream in remote.core.connection.streams():
        stream.interrupt()
    with pytest.raises(errors.ServiceUnavailable):
        writer.append(a=-1)


def test_ctrl_c_in_a_call_that_opens_new_lanes_loses_no_policy_version(
    table: relive.Table, remote: RemoteTable
) -> None:
    writer = remote.writer()
    writer.set_policy_version(7)

    def appends(at: AtOpcode) -> None:
        lose_stream(remote, writer)
        assert is_free(table)
        with at:
            writer.append(a=0)
        keys = np.array([appended(table, writer, number) for number in (1, 2)])
        assert table.gather(keys, columns=["policy_version"])["policy_version"].tolist() == [7, 7], at.where

    assert moments(appends, every=2) > 50
    writer.close()


def appended(table: relive.Table, writer: Any, number: int, **options: Any) -> int:
    """Appends a step, once the server has cut the lanes of a stream that Ctrl-C ended, and the limiter has room."""
    ends = time.monotonic() + FREE_S
    while True:
        assert time.monotonic() < ends
        try:
            return int(writer.append(a=number, timeout_s=0.0, **options))
        except errors.TooManyLanes:
            time.sleep(0.001)
        except errors.DeadlineExceeded:
            table.draw(1, timeout_s=0.0)


def test_ctrl_c_while_the_policy_version_is_set_leaves_one_version(table: relive.Table, remote: RemoteTable) -> None:
    writer, versions = remote.writer(), iter(range(1, 100_000))
    version = -1

    def sets(at: AtOpcode) -> None:
        nonlocal version
        before, version = version, next(versions)
        with at:
            writer.set_policy_version(version)
        keys = [appended(table, writer, 1)]
        for stream in remote.core.connection.streams():
            stream.interrupt()
        with pytest.raises(errors.ServiceUnavailable):
            writer.append(a=-1)
        keys.append(appended(table, writer, 2))
        first, later = table.gather(np.array(keys), columns=["policy_version"])["policy_version"].tolist()
        assert first == later and first in (max(before, 0), version), at.where
        version = first

    assert moments(sets, every=1) > 50
    writer.close()


def test_ctrl_c_at_a_refusal_leaves_a_writer_whose_steps_are_stored() -> None:
    """The limiter refuses a step. The next step is stored once there is room, and so is the next end."""
    index = relive.Index(limiter=relive.Queue(1), max_times_sampled=1)
    with relive.Table(SPEC, 1000, index, max_lanes=1) as table, serve({"t": table}, LOOPBACK) as server:
        with connect(server.address + "/t", timeout_s=20.0) as remote:
            writer = remote.writer()
            appended(table, writer, 0)

            def is_refused(at: AtOpcode) -> None:
                with at, pytest.raises(errors.DeadlineExceeded):
                    writer.append(a=1, truncated=True, timeout_s=0.0)
                appended(table, writer, 2)
                writer.end_episode()
                key = appended(table, writer, 3)
                assert table.gather([key], columns=["episode_step"])["episode_step"].tolist() == [0], at.where

            assert moments(is_refused, every=1) > 50
            writer.close()
