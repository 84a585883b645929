"""Gives a request the memory of its work while the core works, and that of its answer until the answer is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

from relive.core.ending import start_thread
from relive.service.server.budget import FREE_BYTES
from relive.service.server.hosting import Memory
from relive.service.server.pipe import Pipe

__all__ = ["Within", "on_own_thread", "room"]

Within: TypeAlias = Callable[[Callable[[], Any]], Any]


@contextmanager
def room(
    memory: Memory, client: str, pipe: Pipe, sizes: tuple[int, int], seconds: float, *, keeps_thread: bool = False
) -> Iterator[Within]:
    """Yields a function that makes a call within the budgets. The bytes of the answer stay taken until the block ends.

    If the call raises, as it does when the limiter did not let it through within a slice, nothing stays taken. A
    request that waits for the limiter therefore delays other requests for one slice at most.

    Args:
        memory: The budgets of the server.
        client: The client that the shares are counted for.
        pipe: The stream, which says whether the client is gone.
        sizes: Bytes of the answer, and bytes of the work besides it.
        seconds: Deadline of the call.
        keeps_thread: Whether large calls stay on the thread of the stream, as writes do.

    Raises:
        InvalidConfig: The request alone needs more than a budget.
        DeadlineExceeded: Other requests had the bytes until the deadline.
        ServiceUnavailable: The client gave up.
    """
    reply_bytes, work_bytes = sizes
    ends = pipe.gives_up = time.monotonic() + seconds

    def left() -> float:
        return max(ends - time.monotonic(), 0.0)

    with ExitStack() as until_sent:

        def within(call: Callable[[], Any]) -> Any:
            with ExitStack() as answer:
                answer.enter_context(memory.inflight.taken(client, reply_bytes, left(), pipe.gone))
                with memory.work.taken(client, reply_bytes + work_bytes, left(), pipe.gone):
                    value = call() if keeps_thread or work_bytes < FREE_BYTES else on_own_thread(call)
                until_sent.push(answer.pop_all())
            return value

        yield within


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
