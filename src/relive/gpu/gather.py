"""DeviceGather: the columns of keys, read from the region by kernels only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch

from relive import _core
from relive.gpu.batch import Gathered
from relive.gpu.kernels.words import WANTED
from relive.gpu.launch import Left, Rounds
from relive.gpu.outputs import BatchRoom, OutputPlan
from relive.gpu.region_view import RegionView
from relive.reading.columns import Selection

__all__ = ["DeviceGather"]

ROUNDS = 16  # as many as the core tries without the lock
WANTED_STATE = int(WANTED.value)


@final
class DeviceGather:
    """Gathers one plan of one index.

    If an item's pages change while kernels read them, the item is read again, up to ROUNDS times. After that the core,
    which can stop the writers, reads the item, and the result is copied to the device. So `present` is exact, as the
    core's is.
    """

    def __init__(self, core: _core.CoreTable, plan: Selection, outputs: OutputPlan, view: RegionView) -> None:
        self._core = core
        self._plan = plan
        self._outputs = outputs
        self._view = view

    def run(self, rounds: Rounds, keys: torch.Tensor, out: Mapping[str, torch.Tensor] | None) -> Gathered:
        """Gathers keys int64[B] on the device: their columns, and present bool[B]. Waits for the device.

        Args:
            rounds: the launches of the index.
            keys: int64[B], on the device.
            out: tensors to fill, by flat name. None: new tensors.
        """
        room = self._outputs.room(len(keys), out, keys.device)
        present = torch.empty(len(keys), dtype=torch.bool, device=keys.device)
        if len(keys) == 0:
            room.empty()
            return Gathered(room.arrays, keys, present)
        scratch = rounds.scratch(len(keys))
        left = Left(len(keys), 0)
        for _ in range(ROUNDS):
            with self._view.held() as span:
                rounds.gather(span, scratch, keys, room, present)
                left = scratch.left()
            if left.num_wanted == 0:
                break
        if left.num_wanted > 0:
            self._read_by_core(keys, scratch.state == WANTED_STATE, room, present)
        if left != (0, 0):
            room.zero_absent(present)
        return Gathered(room.arrays, keys, present)

    def _read_by_core(self, keys: torch.Tensor, which: torch.Tensor, room: BatchRoom, present: torch.Tensor) -> None:
        rows = (which | self._outputs.is_ragged).nonzero().flatten()  # ragged items have no fixed places: all
        values, found = self._core.gather(self._plan.core, keys[rows].cpu().numpy(), None)
        room.take(values, rows)
        present[rows] = torch.from_numpy(found).to(present.device)
