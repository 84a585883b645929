"""Gives a request the memory of its work while the core works, and that of its answer until the answer is sent.

Gives a draw in flight its memory until the draw is settled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, final

from relive.core.ending import start_thread
from relive.errors import ServiceUnavailable
from relive.service.server.budget import FREE_BYTES, Budget
from relive.service.server.hosting import SLICE_S, Memory
from relive.service.server.pipe import Pipe

__all__ = ["Kept", "Room", "Within", "kept_bytes", "on_own_thread"]

Within: TypeAlias = Callable[[Callable[[], Any]], Any]

_DRAW_BYTES = 1 << 10  # objects of a draw in flight: 430 to 500 bytes were measured
_USE_BYTES = 48  # of each use that a draw can give back: Claimed in cpp/relive/read/draw.hpp
# A client waits for its answer for up to a second longer than it lets the limiter wait, and its cancel is under way for
# a while. A client that is there then ends its own stream; the server would end all streams of the connection.
_GRACE_S = 2.0
_KEPT_S = 60.0  # a client without a deadline could wait for its own draws for ever


def kept_bytes(num_items: int, keeps_uses: bool) -> int:
    """Returns the bytes of a draw in flight. keeps_uses: the draw can give back the uses of its items."""
    return _DRAW_BYTES + num_items * _USE_BYTES * keeps_uses


@final
class Kept:
    """The memory of the draws in flight of one stream.

    The first FREE_BYTES of a stream are not counted. Further bytes are counted by FREE_BYTES, as draws may be small.

    The thread of the stream calls room() and close(). Any thread may call give(). `_changed` protects the counts. It is
    notified when bytes are given back.

    Args:
        budget: The budget of all draws in flight.
        client: The client that the share is counted for.
    """

    def __init__(self, budget: Budget, client: str) -> None:
        self._budget, self._client = budget, client
        self._changed = threading.Condition()
        self._num_bytes = 0  # of all draws in flight
        self._taken = 0  # of the budget

    @contextmanager
    def room(self, num_bytes: int, timeout_s: float, gone: Callable[[], bool]) -> Iterator[float]:
        """A context that makes a draw of num_bytes. Its value is the rest of timeout_s.

        The bytes stay taken until give(). If the context raises, they are given back.

        Raises:
            InvalidConfig: The draw alone needs more than the budget.
            DeadlineExceeded: The bytes were not free until the deadline.
            ServiceUnavailable: The client gave up.

        Blocks: until the bytes are free, for at most timeout_s and at most _KEPT_S.
        """
        began = time.monotonic()
        ends, taken = began + min(timeout_s, _KEPT_S), 0
        try:
            self._wait_for_own(num_bytes, ends, gone)
            while lacking := self._lack(num_bytes, taken):
                self._budget.take(self._client, lacking, max(ends - time.monotonic(), 0.0), gone)
                taken += lacking
        except BaseException:
            self._budget.give(self._client, taken)
            raise
        try:
            yield max(timeout_s - (time.monotonic() - began), 0.0)
        except BaseException:
            self.give(num_bytes)
            raise

    def _wait_for_own(self, num_bytes: int, ends: float, gone: Callable[[], bool]) -> None:
        """Waits while the draws of this stream leave no room for a draw that alone would fit, as the budget refuses it.

        Whole MiB count, so draws of less than a MiB may be in its way.
        """
        began, most = time.monotonic(), self._budget.largest
        with self._changed:
            while _counted(num_bytes) <= most < (needed := _counted(self._num_bytes + num_bytes)):
                now = time.monotonic()
                if now >= ends:
                    raise self._budget.late(self._client, needed, now - began)
                if gone():
                    raise ServiceUnavailable("this server", now - began, "the client is gone")
                self._changed.wait(min(ends - now, SLICE_S))

    def _lack(self, num_bytes: int, taken: int) -> int:
        """Returns the bytes that a draw of num_bytes lacks besides `taken`. If it lacks none, it is counted.

        Other threads may give bytes back during a wait for the budget. More may then be lacking: whole MiB count.
        """
        with self._changed:
            lacking = _counted(self._num_bytes + num_bytes) - self._taken - taken
            if lacking > 0:
                return lacking
            self._num_bytes += num_bytes
            self._taken += taken
            self._trim()
            return 0

    def give(self, num_bytes: int) -> None:
        """Returns the bytes of a draw that is settled. Does nothing after close()."""
        with self._changed:
            self._num_bytes = max(self._num_bytes - num_bytes, 0)
            self._trim()

    def close(self) -> None:
        """Returns the bytes of all draws: the stream has ended."""
        with self._changed:
            self._num_bytes = 0
            self._trim()

    def _trim(self) -> None:
        self._changed.notify_all()
        spare = self._taken - _counted(self._num_bytes)
        if spare:
            self._taken -= spare
            self._budget.give(self._client, spare)


def _counted(num_bytes: int) -> int:
    return num_bytes // FREE_BYTES * FREE_BYTES


@final
class Room:
    """A context for a request. Its value is a function that makes a call within the budgets.

    The bytes of the answer are taken once, and stay taken until the context ends. If the call raises, as it does when
    the limiter did not let it through within a slice, nothing stays taken. A request that waits for the limiter
    therefore delays other requests for one slice at most. A write is an exception once it has stored rows: these have
    keys, so its answer stays taken.

    One thread uses it. Cost: a request that needs fewer than FREE_BYTES takes no lock.
    """

    __slots__ = ("_client", "_ends", "_has_answer", "_has_stored", "_memory", "_pipe", "_reply_bytes", "_work_bytes")

    def __init__(
        self,
        memory: Memory,
        client: str,
        pipe: Pipe,
        sizes: tuple[int, int],
        seconds: float,
        *,
        has_stored: Callable[[], bool] | None = None,
    ) -> None:
        """Begins the request.

        Args:
            memory: The budgets of the server.
            client: The client that the shares are counted for.
            pipe: The stream, which says whether the client is gone.
            sizes: Bytes of the answer, and bytes of the work besides it.
            seconds: Deadline of the call.
            has_stored: Tells whether rows are stored. None: the request writes no rows. Writes make several calls, on
                the thread of the stream.
        """
        self._memory, self._client, self._pipe = memory, client, pipe
        self._reply_bytes, self._work_bytes = sizes
        self._ends = time.monotonic() + seconds
        pipe.gives_up = self._ends + _GRACE_S
        self._has_stored = has_stored
        self._has_answer = False  # whether the bytes of the answer are taken

    def __enter__(self) -> Within:
        return self._make

    def __exit__(self, *_: object) -> None:
        self._give_answer()

    def _give_answer(self) -> None:
        if self._has_answer:
            self._has_answer = False
            self._memory.inflight.give(self._client, self._reply_bytes)

    def _make(self, call: Callable[[], Any]) -> Any:
        """Makes the call.

        Raises:
            InvalidConfig: The request alone needs more than a budget.
            DeadlineExceeded: Other requests had the bytes until the deadline.
            ServiceUnavailable: The client gave up.
        """
        if self._reply_bytes + self._work_bytes < FREE_BYTES:
            return call()
        if not self._has_answer:
            self._memory.inflight.take(self._client, self._reply_bytes, self._left_s(), self._pipe.gone)
            self._has_answer = True
        try:
            return self._work(call)
        except BaseException:
            if self._has_stored is None or not self._has_stored():
                self._give_answer()
            raise

    def _work(self, call: Callable[[], Any]) -> Any:
        work, num_bytes = self._memory.work, self._reply_bytes + self._work_bytes
        work.take(self._client, num_bytes, self._left_s(), self._pipe.gone)
        try:
            return call() if self._has_stored is not None or self._work_bytes < FREE_BYTES else on_own_thread(call)
        finally:
            work.give(self._client, num_bytes)

    def _left_s(self) -> float:
        return max(self._ends - time.monotonic(), 0.0)


def on_own_thread(call: Callable[[], Any]) -> Any:
    """Makes a call on a new thread, and returns its result or raises its error.

    The core keeps the working memory of a thread for its next call, and the thread of a stream lives as long as the
    client chooses. This thread ends with the call, and its working memory with it.
    """
    done: list[tuple[Any, BaseException | None]] = []

    def run() -> None:
        try:
            done.append((call(), None))
        except BaseException as problem:
            done.append((None, problem))

    start_thread(run, "relive-server-large").join()
    value, problem = done.pop()
    if problem is not None:
        raise problem
    return value
