"""The thread that helps a save or a load: it reads or writes while the caller does its own part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent import futures
from types import TracebackType
from typing import ParamSpec, TypeVar, final

__all__ = ["HelpingThread"]

P = ParamSpec("P")
T = TypeVar("T")


@final
class HelpingThread:
    """Runs calls one after another on a thread of its own.

    Where no thread can start, such as at the end of the interpreter, `submit` makes the call itself, and so do all
    later ones. Python loads the pool of threads at the first use of its name, and refuses that at the end, too.

    Args:
        name: The name of the thread.
        begin: Called on the thread before the first call.
    """

    def __init__(self, name: str, begin: Callable[[], None] | None = None) -> None:
        self._pool: futures.ThreadPoolExecutor | None = None
        with contextlib.suppress(RuntimeError):  # the interpreter ends
            self._pool = futures.ThreadPoolExecutor(1, name, begin)

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
        """Has the thread make a call. Raises the error of the call if no thread can start."""
        if self._pool is not None:
            with contextlib.suppress(RuntimeError):  # the interpreter ends, or the system has no thread left
                return self._pool.submit(function, *args, **kwargs)
            self.close()  # after its earlier calls; the pool keeps the refused call, and a later thread would make it
            self._pool = None
        future: futures.Future[T] = futures.Future()
        future.set_result(function(*args, **kwargs))
        return future

    def close(self) -> None:
        """Ends the thread. Closing twice is harmless. Blocks: for its calls."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def __enter__(self) -> HelpingThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
