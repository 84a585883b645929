"""Draws of several sources in flight: they are counted together, or go back."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress

from relive.core.request import DrawRequest
from relive.errors import DeadlineExceeded, ReliveError
from relive.reading.holds import HeldDraw, HeldDraws, LentHold, TimedHold

__all__ = ["LEAVE_S", "count_all", "give_back", "lack_of"]

LEAVE_S = 1.0  # for each message about a draw, once a call has failed


def give_back(drawn: Mapping[int, HeldDraw], seconds: float = math.inf) -> None:
    """Gives back the parts that are still in flight. Waits for each server at most `seconds`, at least a second."""
    for one in reversed(list(drawn.values())):  # the newest first, so that each gives back its number
        with suppress(ReliveError):  # a source that is closed, or whose stream is over, gives back by itself
            if isinstance(one.hold, TimedHold):
                one.hold.give_back_within(seconds)
            else:
                one.hold.give_back()


def count_all(drawn: Mapping[int, HeldDraw], ends: float) -> None:
    """Counts all draws. After an error of one source the draws of the others are counted, or still in flight.

    The draws of servers are counted first: only their count may fail. A signal's handler that raises leaves no batch
    half counted: all draws are counted, and then the error goes on. A server that does not answer until `ends`, a
    time.monotonic(), takes its part back. It gets a second at least.
    """
    ordered = sorted(drawn.values(), key=_count_order)
    try:
        for one in ordered:
            _commit(one, ends - time.monotonic())
    except ReliveError:
        raise
    except BaseException:
        for one in ordered:  # those that were counted are not counted again
            with suppress(ReliveError):  # the interrupt goes on, whatever the servers answer
                _commit(one, LEAVE_S)
        raise


def lack_of(draws: HeldDraws, request: DrawRequest, num_items: int, timeout_s: float) -> DeadlineExceeded | None:
    """Waits until a source has its part. Returns None then, and the error if it has not until the deadline.

    The draw that finds out is given back.
    """
    try:
        drawn = draws.draw(request.keys_only._replace(num_items=num_items), timeout_s)
    except DeadlineExceeded as problem:
        return problem
    give_back({0: drawn}, LEAVE_S)
    return None


def _count_order(drawn: HeldDraw) -> int:
    """Draws in the order of their count: those on a server, those over shards, and those here, whose count succeeds."""
    return 0 if isinstance(drawn.hold, TimedHold) else 1 if isinstance(drawn.hold, LentHold) else 2


def _commit(drawn: HeldDraw, seconds: float) -> None:
    if isinstance(drawn.hold, TimedHold):
        drawn.hold.commit_within(max(seconds, 0.0))
    else:
        drawn.hold.commit()
