"""Until when a client waits for an answer, and how long its server may wait."""

from __future__ import annotations

import math
import time

__all__ = ["MIN_REPLY_S", "cutoff", "server_wait"]

MIN_REPLY_S = 1.0  # shortest wait for an answer, whatever the deadline: networks have short outages


def cutoff(timeout_s: float) -> float:
    """Returns the time.monotonic() at which the client gives up.

    The time lies a little before the deadline, so that the error comes in time.
    """
    return time.monotonic() + max(timeout_s - 0.1, MIN_REPLY_S)


def server_wait(timeout_s: float) -> float | None:
    """Returns the seconds that the server may wait for the limiter; None: no limit.

    The rest of the timeout is for the way back.
    """
    return None if math.isinf(timeout_s) else timeout_s - min(0.1 * timeout_s, 1.0)
