"""Gives a request the memory of its work while the core works, and that of its answer until the answer is sent."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias, final

from relive.core.ending import start_thread
from relive.service.server.budget import FREE_BYTES
from relive.service.server.hosting import Memory
from relive.service.server.pipe import Pipe

__all__ = ["Room", "Within", "on_own_thread"]

Within: TypeAlias = Callable[[Callable[[], Any]], Any]


@final
class Room:
    """A context for a request. Its value is a function that makes a call within the budgets.

    The bytes of the answer stay taken until the context ends. If the call raises, as it does when the limiter did not
    let it through within a slice, nothing stays taken. A request that waits for the limiter therefore delays other
    requests for one slice at most.

    One thread uses it. Cost: a request that needs fewer than FREE_BYTES takes no lock.
    """

    __slots__ = ("_client", "_ends", "_keeps_thread", "_memory", "_num_answers", "_pipe", "_reply_bytes", "_work_bytes")

    def __init__(
        self,
        memory: Memory,
        client: str,
        pipe: Pipe,
        sizes: tuple[int, int],
        seconds: float,
        *,
        keeps_thread: bool = False,
    ) -> None:
        """Begins the request.

        Args:
            memory: The budgets of the server.
            client: The client that the shares are counted for.
            pipe: The stream, which says whether the client is gone.
            sizes: Bytes of the answer, and bytes of the work besides it.
            seconds: Deadline of the call.
            keeps_thread: Whether large calls stay on the thread of the stream, as writes do.
        """
        self._memory, self._client, self._pipe = memory, client, pipe
        self._reply_bytes, self._work_bytes = sizes
        self._ends = pipe.gives_up = time.monotonic() + seconds
        self._keeps_thread = keeps_thread
        self._num_answers = 0  # whose bytes are taken

    def __enter__(self) -> Within:
        return self._make

    def __exit__(self, *_: object) -> None:
        while self._num_answers:
            self._num_answers -= 1
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
        inflight = self._memory.inflight
        inflight.take(self._client, self._reply_bytes, self._left_s(), self._pipe.gone)
        try:
            value = self._work(call)
        except BaseException:
            inflight.give(self._client, self._reply_bytes)
            raise
        self._num_answers += 1
        return value

    def _work(self, call: Callable[[], Any]) -> Any:
        work, num_bytes = self._memory.work, self._reply_bytes + self._work_bytes
        work.take(self._client, num_bytes, self._left_s(), self._pipe.gone)
        try:
            return call() if self._keeps_thread or self._work_bytes < FREE_BYTES else on_own_thread(call)
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
