"""Ctrl-C and SIGTERM, heard as a wish to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """A function that says whether SIGINT or SIGTERM came. The first is taken; the next one acts as it did before.

    A handler may be called in the middle of itself, so it takes no lock: an Event's would be taken twice.
    """
    has_come = False
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def take(number: int, frame: object) -> None:
        nonlocal has_come
        has_come = True
        for other, handler in before.items():
            signal.signal(other, handler)

    for number in before:
        signal.signal(number, take)
    try:
        yield lambda: has_come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
