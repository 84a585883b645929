"""A watch that cuts a stream at the worst moment."""

from __future__ import annotations

import math
import threading

import pytest

from relive.service.client.exchange import Exchange

__all__ = ["cut_as_answered"]


def cut_as_answered(monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """The next stream that this thread has an answer on is cut between that and end(); [] until it was."""
    as_it_is, cut, own = Exchange.end, [], threading.current_thread()

    def late(stream: Exchange) -> None:
        if not cut and threading.current_thread() is own and stream.deadline != math.inf:
            cut.append(stream)
            stream.expire(stream.deadline)
        as_it_is(stream)

    monkeypatch.setattr(Exchange, "end", late)
    return cut
