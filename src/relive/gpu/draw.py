"""DeviceSampler: weighted draws over the tree of an index by kernels only, with or without the rows."""

from __future__ import annotations

import time
from typing import NamedTuple, final

import torch

from relive import _core
from relive.errors import DeadlineExceeded
from relive.gpu.launch import Drawing, Rounds
from relive.gpu.outputs import OutputPlan
from relive.gpu.region_view import RegionView

__all__ = ["DeviceSampler", "Wait"]

PATIENT_AFTER = 8  # rounds without a wait; later rounds wait: no item can be drawn yet, or writers are very busy
PAUSE_S = 0.002


class Wait(NamedTuple):
    """Since when a call waits (time.monotonic()), and how many seconds at most."""

    start_s: float
    seconds: float


@final
class DeviceSampler:
    """The draws of one reader from one index: stratified, in permuted rows, by the core's counter-based generator.

    A draw with stream s and call c is equal, bit for bit, to the core's draw with that stream and call from an equal
    table. A draw does not count, as with a read-only handle: limiter, min_size and use counts do not apply.
    """

    def __init__(self, core: _core.CoreTable, number: int, seed: int, view: RegionView) -> None:
        self._core = core
        self._number = number
        self._seed = seed
        self._view = view

    def draw(
        self,
        rounds: Rounds,
        num_items: int,
        stream_and_call: tuple[int, int],
        wait: Wait,
        device: torch.device,
        plan: OutputPlan | None = None,
    ) -> tuple[Drawing, list[torch.Tensor], int]:
        """Draws items and, with a plan, gathers them.

        Args:
            rounds: the launches of the index.
            num_items: B.
            stream_and_call: the random stream, and the number of the call in it.
            wait: since when the call waits, and how long at most.
            device: the device.
            plan: the columns to gather. None: no rows are read.

        Returns:
            (keys and probabilities, the columns of the plan, live items at the draw).

        Raises:
            DeadlineExceeded: not all items could be drawn and read by the deadline.

        Blocks: for the device, and while no item has a mass. The table's `close` can run between two rounds.
        """
        stream, call = stream_and_call
        drawing = self.drawing(num_items, stream, call, device)
        room = None if plan is None else plan.room(num_items, None, device)
        scratch = rounds.scratch(num_items)
        attempt = 0
        num_raised = self._core.num_raised
        while True:
            if attempt > 0:
                drawing = drawing._replace(random_base=_core.random_base(self._seed, stream, call, attempt))
            with self._view.held() as span:
                if attempt == 0:
                    num_live = max(1, self._core.num_items(self._number))
                if room is None:
                    rounds.draw(span, scratch, drawing)
                else:
                    rounds.sample(span, scratch, drawing, room)
                num_wanted = scratch.left().num_wanted
            if num_raised & 1 or self._core.num_raised != num_raised:  # old and new masses mixed (rule H3)
                num_raised, num_wanted = self._core.num_raised, num_items
                scratch.want_all()
            if num_wanted == 0:
                return drawing, [] if room is None else room.arrays, num_live
            attempt += 1
            waited_s = time.monotonic() - wait.start_s
            left_s = wait.seconds - waited_s
            if left_s <= 0.0 and attempt >= PATIENT_AFTER:
                needs = f"{num_items} items with a mass above 0 that do not change while they are read"
                raise DeadlineExceeded(needs, num_items - num_wanted, waited_s)
            if attempt >= PATIENT_AFTER:
                time.sleep(min(PAUSE_S, left_s))

    def slots_at(self, rounds: Rounds, points: torch.Tensor) -> torch.Tensor:
        """Returns the leaves int64[B] of points float64[B] in [0, total). -1: the point is past the last leaf."""
        scratch = rounds.scratch(len(points))
        drawing = self.drawing(len(points), 0, 0, points.device)._replace(points=points)
        with self._view.held() as span:
            rounds.draw(span, scratch, drawing)
            scratch.left()  # waits
        return scratch.slot

    def drawing(self, num_items: int, stream: int, call: int, device: torch.device) -> Drawing:
        """Returns the first attempt of a call, with memory for its results."""
        base = _core.random_base(self._seed, stream, call, 0)
        return Drawing(
            item_keys=torch.empty(num_items, dtype=torch.int64, device=device),
            probabilities=torch.empty(num_items, dtype=torch.float64, device=device),
            chains=torch.empty((2, num_items), dtype=torch.int32, device=device),
            shuffle_base=base,
            random_base=base,
        )
