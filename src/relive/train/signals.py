"""Takes Ctrl-C and SIGTERM as the wish to end a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Gives a function that tells whether SIGINT or SIGTERM came while the block runs.

    The first signal is only noted. The next one acts as it did before the block. Outside the main thread, where Python
    delivers no signals, the function always returns False.
    """
    # No Event: a handler may interrupt itself, and would take the lock of the event twice.
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
