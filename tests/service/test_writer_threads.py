"""Calls of several threads on one remote writer: gRPC aborts the process if two of them send on one stream."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, step

import relive
from relive import errors
from service.hosts import Host


@pytest.fixture
def full_queue(host: Host) -> Iterator[tuple[Any, Any]]:
    """A table whose next item waits for a draw, and a writer on it."""
    index = relive.Index(limiter=relive.Queue(1), max_times_sampled=1)
    address = host.serve(plain_spec(), 100, index)
    with relive.connect(address) as table:
        writer = table.writer()
        writer.append(**step(0, 1))
        yield table, writer
    host.stop(address)


class Waiting:
    """A thread in an append that waits for room. ended: the error that ended it, or the key."""

    def __init__(self, table: Any, writer: Any) -> None:
        self.ended: Any = None
        self._writer = writer
        self._thread = threading.Thread(target=self._append)
        self._thread.start()
        while not table.stats().indexes["default"].waiting_writers:
            time.sleep(0.001)

    def _append(self) -> None:
        try:
            self.ended = self._writer.append(**step(1, 2), timeout_s=60.0)
        except errors.ReliveError as error:
            self.ended = error

    def join(self) -> Any:
        self._thread.join(60)
        return self.ended


def test_a_second_thread_waits_for_the_first_until_its_deadline(full_queue: Any) -> None:
    """As on a table of this machine."""
    table, writer = full_queue
    waiting = Waiting(table, writer)
    calls = (
        lambda: writer.append(**step(5, 6), timeout_s=0.0),
        lambda: writer.extend(observation=np.zeros((2, 2)), action=[0], reward=[0.0], timeout_s=0.0),
        lambda: writer.end_episode(timeout_s=0.0),
        lambda: writer.abandon(timeout_s=0.0),
    )
    for call in calls:
        with pytest.raises(errors.DeadlineExceeded) as caught:
            call()
        assert caught.value.needs == "this writer" and caught.value.has == "another thread's call"
    table.draw(1)
    assert isinstance(waiting.join(), int)
    table.draw(1)
    writer.append(**step(2, 3))
    writer.close()


def test_the_end_of_a_table_ends_the_append_of_another_thread(full_queue: Any) -> None:
    table, writer = full_queue
    waiting = Waiting(table, writer)
    table.close()
    assert isinstance(waiting.join(), errors.WriterClosed)


def test_the_close_of_a_writer_waits_for_the_append_of_another_thread(full_queue: Any) -> None:
    table, writer = full_queue
    waiting = Waiting(table, writer)
    closing = threading.Thread(target=writer.close)
    closing.start()
    table.draw(1)
    assert isinstance(waiting.join(), int)
    closing.join(60)
    assert writer.closed and len(table) == 2


def test_rows_of_threads_that_share_a_writer_are_each_stored_once(host: Host) -> None:
    address = host.serve(plain_spec(), 1000)
    keys: list[int] = []

    def append() -> None:
        for _ in range(50):
            keys.append(writer.append(**step(7, 7)))

    with relive.connect(address) as table, table.writer() as writer:
        threads = [threading.Thread(target=append) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(set(keys)) == 200 == len(table)
    host.stop(address)
