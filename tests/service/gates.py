"""A served table that lets one step in at a time, and a wait for an event."""

from __future__ import annotations

import time
from collections.abc import Callable

from contract.tools import plain_spec

import relive
from relive.service import serve


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.005)


class Gate:
    """A table that lets one step in for each draw, at its server."""

    def __init__(self) -> None:
        index = relive.Index(limiter=relive.Queue(1), max_times_sampled=1)
        self.table = relive.Table(plain_spec(), 1000, index, max_lanes=4)
        self.server = serve({"t": self.table}, "grpc://127.0.0.1:0")
        self.address = self.server.address + "/t"

    def let_in(self) -> None:
        """Draws the step that is in the table, once the next step waits."""
        until(lambda: bool(self.table.stats().indexes["default"].waiting_writers))
        self.table.draw(1)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        self.table.close()
