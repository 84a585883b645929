"""Ctrl-C and SIGTERM, heard as a wish to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """A function that says whether SIGINT or SIGTERM came. The first is taken; the next one acts as it did before."""
    came = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield came.is_set
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def take(number: int, frame: object) -> None:
        came.set()
        for other, handler in before.items():
            signal.signal(other, handler)

    for number in before:
        signal.signal(number, take)
    try:
        yield came.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
