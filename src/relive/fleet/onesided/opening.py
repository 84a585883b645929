"""Opens the memory of a peer within the deadline of a caller: loading NIXL alone may take seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from relive.core.ending import start_thread
from relive.fleet.errors import PeerUnreadable
from relive.fleet.onesided.nixl import Offered

__all__ = ["opened_within"]


def opened_within(opens: Callable[[Offered], Any], offered: Offered, seconds: float) -> Any:
    """Returns opens(offered), or raises its error.

    If the call takes longer, its thread goes on, and closes the memory that it then opens.

    Raises:
        PeerUnreadable: The call took longer.
    """
    done: list[tuple[Any, BaseException | None]] = []
    changed = threading.Lock()
    is_late = False

    def run() -> None:
        memory, problem = None, None
        try:
            memory = opens(offered)
        except BaseException as error:
            problem = error
        with changed:
            if not is_late:
                done.append((memory, problem))
                return
        if memory is not None:
            memory.close()

    try:
        start_thread(run, "relive-nixl-opens", never_writes=True).join(max(seconds, 0.0))
    finally:
        with changed:
            is_late = not done
    if not done:
        raise PeerUnreadable(offered.address, f"NIXL did not reach it within {seconds:.1f} s")
    memory, problem = done.pop()
    if problem is not None:
        raise problem
    return memory
