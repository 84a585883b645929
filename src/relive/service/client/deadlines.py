"""Until when a client waits for an answer, and how long its server may wait."""

from __future__ import annotations

import math
import time

from relive.core.one_call import asked_at

__all__ = ["LATE_S", "MIN_REPLY_S", "cutoff", "server_wait"]

LATE_S = 0.2  # for an answer that arrived during a wait for another server

MIN_REPLY_S = 1.0  # shortest wait for an answer, whatever the deadline: networks have short outages


def cutoff(timeout_s: float) -> float:
    """Returns the time.monotonic() at which the client gives up.

    The time lies a little before the deadline, so that the error comes in time. Questions of one call to several
    servers (OneCall) have one deadline. After it a question has LATE_S.
    """
    now = time.monotonic()
    return max(asked_at(now) + max(timeout_s - 0.1, MIN_REPLY_S), now + LATE_S)


def server_wait(timeout_s: float) -> float | None:
    """Returns the seconds that the server may wait for the limiter; None: no limit.

    The rest of the timeout is for the way back.
    """
    return None if math.isinf(timeout_s) else timeout_s - min(0.1 * timeout_s, 1.0)
