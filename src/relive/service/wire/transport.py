"""What gRPC is told before its first connection of the process: fewer threads between a message and who waits for it.

With its event engine a message wakes a thread that polls, one that reads and one that waits; without, the thread that
waits polls and reads by itself. Round trips take about 15% less so, and large batches, which are then read on one core
into memory that its cache still holds.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

__all__ = ["with_few_wakeups"]

Made = TypeVar("Made")

_VARIABLE = "GRPC_EXPERIMENTS"
_FEW_WAKEUPS = "-event_engine_client,-event_engine_listener"
_making = threading.Lock()
_was_made = False


def with_few_wakeups(make: Callable[[], Made]) -> Made:
    """make(), the first client or server of this process, without gRPC's event engine; later ones are just made.

    gRPC reads its environment once, when it starts: the variable is set for that moment alone, so that neither children
    nor another gRPC in this process see it. Where the environment says GRPC_EXPERIMENTS already, that holds.
    As any change of os.environ it must not meet C code of another thread that reads the environment at that moment: a
    program with such threads sets GRPC_EXPERIMENTS itself (empty will do), before it starts them.
    """
    global _was_made
    if _was_made:
        return make()
    with _making:
        if _was_made or _VARIABLE in os.environ:
            made = make()
            _was_made = True
            return made
        os.environ[_VARIABLE] = _FEW_WAKEUPS
        try:
            made = make()
            _was_made = True
            return made
        finally:
            del os.environ[_VARIABLE]
