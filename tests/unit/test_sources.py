"""A source of batches that were planned ahead gives back what was not taken: the batches and the numbers of draws."""

from __future__ import annotations

from typing import Any, cast

from relive.core.request import DrawRequest
from relive.reading.sources import PlannedSource


class Planned:
    """A planned batch whose read from the disk was cancelled."""

    is_held = True

    def give_back(self) -> None:
        self.is_held = False

    def cancel(self) -> None:
        """Does nothing: the read is cancelled already."""


class Cancelled:
    """A table's core that plans batches, and in which close() cancels the read that take() waits for."""

    closed = False

    def __init__(self) -> None:
        self.next_call = 7
        self.planned: list[Planned] = []

    def plan_batch(self, request: DrawRequest, timeout_s: float) -> Planned:
        self.next_call += 1
        self.planned.append(Planned())
        return self.planned[-1]

    def gather_planned(self, planned: Planned, selection: object) -> None:
        """Returns None: the batch was cancelled."""

    def return_call(self, call: int) -> None:
        if self.next_call == call + 1:
            self.next_call = call


def test_a_batch_that_close_cancels_gives_back_its_number() -> None:
    core = Cancelled()
    source = PlannedSource(cast(Any, core), DrawRequest(0, 1, cast(Any, object())), cast(Any, None), 3)
    assert source.take() is None and core.next_call == 10
    source.close()
    assert core.next_call == 7 and not any(one.is_held for one in core.planned)
