"""Signals in the calls of a streaming writer: no step that was appended is lost, and no handler waits for ever."""

from __future__ import annotations

import linecache
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, step

import relive
from relive import errors
from relive.service import RemoteTable, Streaming, connect, serve
from relive.service.client import blocks, streamed_core
from service.gates import Gate, until

LINES_OF = {blocks.__file__, streamed_core.__file__}


class Interrupted(Exception):
    """The error that a handler raises."""


class At:
    """Raises Interrupted before the line with this number, counted over the lines of a writer that are run.

    Not before the lines of `with` and `try`: Python releases locks there, and hears no signal.
    """

    def __init__(self, number: int) -> None:
        self.left = number
        self._before = sys.gettrace()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in LINES_OF:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith(("with ", "try:")):
            self.left -= 1
            if self.left == 0:
                raise Interrupted(f"{frame.f_code.co_name}:{frame.f_lineno} {line}")
        return self._trace

    def __enter__(self) -> At:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)


@pytest.fixture
def remote() -> Iterator[RemoteTable]:
    with (
        relive.Table(plain_spec(), 100_000, max_lanes=16) as table,
        serve({"t": table}, "grpc://127.0.0.1:0") as server,
    ):
        with connect(server.address + "/t", timeout_s=60.0) as one:
            yield one


def appended(writer: Any, numbers: range, kept: list[Any]) -> None:
    for number in numbers:
        kept.append(writer.append(**step(number, number + 1, terminated=True)))


def test_no_step_of_a_block_is_lost_wherever_a_signal_interrupts_an_append(remote: RemoteTable) -> None:
    """Every append that returned is stored once. The append that was interrupted is stored once or not at all."""
    streaming = Streaming(max_rows=3, max_in_flight=64, linger_s=30.0)
    writer = remote.writer(streaming=streaming)
    where, number = "none", 0
    while where:
        number, where, keys, before = number + 1, "", list[Any](), len(remote)
        with At(number):
            try:
                appended(writer, range(7), keys)
            except Interrupted as problem:
                where = str(problem)
        returned = len(keys)
        appended(writer, range(10, 15), keys)
        writer.flush()
        assert len({int(key) for key in keys}) == len(keys), where
        stored = remote.gather(np.array([int(key) for key in keys]), columns=["action"])["action"].tolist()
        assert stored == [*range(returned), *range(10, 15)], where
        assert len(remote) - before - len(keys) <= (1 if where else 0), where
    assert number > 100, "the lines of the writer were not found"
    writer.close()


@pytest.fixture
def signalled() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """signalled(call): an object for a column. While the writer reads it, a signal comes, and its handler calls."""
    calls: list[Callable[[], Any]] = []

    class Column:
        def __init__(self, call: Callable[[], Any]) -> None:
            calls.append(call)

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return np.zeros(2, np.float32)

    before = signal.signal(signal.SIGUSR1, lambda *_: calls.pop()() if calls else None)
    yield Column
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no signals of the user's own")
@pytest.mark.parametrize("call", ["append", "extend", "flush", "len", "close"])
def test_a_handler_within_an_append_is_told_that_it_would_wait_for_itself(
    remote: RemoteTable, call: str, signalled: Any
) -> None:
    writer = remote.writer(streaming=Streaming(linger_s=30.0))
    calls: dict[str, Callable[[], Any]] = {
        "append": lambda: writer.append(**step(9)),
        "extend": lambda: writer.extend(observation=np.zeros((2, 2)), action=[1], reward=[0.0]),
        "flush": lambda: writer.flush(),
        "len": lambda: len(remote),
        "close": lambda: writer.close(),
    }
    told: list[errors.WaitsForItself] = []

    def handler() -> None:
        with pytest.raises(errors.WaitsForItself) as caught:
            calls[call]()
        told.append(caught.value)

    writer.append(**step(0))
    writer.append(**(step(1) | {"observation": signalled(handler)}))
    assert len(told) == 1 and told[0].needs == "this writer"
    assert len(remote) == 2
    writer.close()


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no signals of the user's own")
def test_a_handler_within_an_append_may_close_the_table(remote: RemoteTable, signalled: Any) -> None:
    writer = remote.writer(streaming=Streaming(linger_s=30.0))

    def handler() -> None:
        with pytest.raises(errors.WaitsForItself):
            remote.close()

    writer.append(**step(0))
    writer.append(**(step(1) | {"observation": signalled(handler)}))
    assert remote.closed


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no signals of the user's own")
def test_a_step_that_a_handler_appends_during_a_wait_for_room_is_stored() -> None:
    with Gate() as gate, connect(gate.address, timeout_s=60.0) as remote:
        writer = remote.writer(streaming=Streaming(max_in_flight=1, linger_s=0.0))
        core: Any = writer._core
        before = signal.signal(signal.SIGUSR1, lambda *_: writer.append(**step(2, 3, terminated=True)))
        writer.append(**step(0, 1, terminated=True))
        writer.flush()
        writer.append(**step(1, 2, terminated=True))
        assert len(remote) == 1  # this call has the block sent, which then waits for the limiter

        def signal_and_let_steps_in() -> None:
            until(lambda: len(core._changed._waiters) == 2)  # the sender, and the append below
            with core._lock:  # the append has released it
                os.kill(os.getpid(), signal.SIGUSR1)
            until(lambda: len(core._changed._waiters) == 3)
            for _ in range(3):
                gate.let_in()

        other = threading.Thread(target=signal_and_let_steps_in)
        other.start()
        try:
            writer.append(**step(3, 4, terminated=True), priority=None, lanes=None, timeout_s=50.0)
            writer.flush()
        finally:
            other.join(100)
            signal.signal(signal.SIGUSR1, before)
        assert gate.table.stats().appended == 4
        writer.close()
