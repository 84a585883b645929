"""The beginning of a call that asks several questions: all of them have their time from it."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import final

__all__ = ["OneCall", "asked_at"]


@final
class OneCall:
    """Within it, each question of the calling thread has its time from the beginning, however long others took.

    Within another one, the beginning is that of the other. Keep no reference: `with OneCall():`. If a signal's handler
    raises just before the end, the end of the object is the end.
    """

    __slots__ = ("__weakref__", "_outer", "began")
    began: float

    def __init__(self) -> None:
        self._outer = _of_thread.call
        outer = self._outer()
        self.began = time.monotonic() if outer is None else outer.began

    def __enter__(self) -> None:
        _of_thread.call = weakref.ref(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _of_thread.call = self._outer


def asked_at(now: float) -> float:
    """Returns the time.monotonic() from which a question has its time: the beginning of OneCall, else `now`."""
    call = _of_thread.call()
    return now if call is None else call.began


def _none() -> OneCall | None:
    return None


class _OfThread(threading.local):
    """The call of each thread; a weak reference, so that a call that was left without its end is none."""

    call: Callable[[], OneCall | None] = staticmethod(_none)


_of_thread = _OfThread()
