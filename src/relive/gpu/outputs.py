"""Which kernel fills which output of a gather: the device's counterpart of the core's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from relive.errors import DtypeMismatch, InvalidConfig, ShapeMismatch, UnknownColumn
from relive.gpu.kernels.words import PRESENT, READY
from relive.gpu.layout_args import (
    OF_ROWS,
    OF_VERSIONS,
    VECTOR,
    ColumnCopy,
    StepItems,
    WindowNeeds,
    column_named,
    job_words,
)
from relive.reading.columns import Selection

__all__ = ["BatchRoom", "Job", "Output", "OutputPlan"]


@final
@dataclass(frozen=True)
class Output:
    """One output: of each item `shape` of dtype; copied row by row where `copy` says how, derived otherwise."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    item_axis: int  # where the axis of items stands, in front of or behind axes of shape
    per: str  # "item", "row" where rows of items lie end to end, "offset" between them
    copy: ColumnCopy | None

    def shape_of(self, num_items: int, num_rows: int = 0) -> tuple[int, ...]:
        """Of the array for so many items; num_rows: those of all of them, where they lie end to end."""
        if self.per == "offset":
            return (num_items + 1,)
        count = num_rows if self.per == "row" else num_items
        return (*self.shape[: self.item_axis], count, *self.shape[self.item_axis :])


@final
@dataclass(frozen=True)
class Job:
    """What one call asks of the kernels: words on the device, and the columns they are launched over."""

    words: tuple[int, ...]
    on_device: torch.Tensor  # int64, the same words
    packed: tuple[ColumnCopy, ...]  # the first columns of the job
    large: tuple[ColumnCopy, ...]  # the others
    num_places: int = 0  # rows of all items, padding included
    fills_rows: bool = False  # some derived column has one value a row
    fills_versions: bool = False

    @property
    def address(self) -> int:
        """Of the words, on the device."""
        return self.on_device.data_ptr()


@final
class LastJob:
    """The job of a plan's last call: outputs that come from a pool lie where they lay, and it is sent once."""

    def __init__(self) -> None:
        self.job: Job | None = None


@final
@dataclass(frozen=True)
class OutputPlan:
    """The outputs of one list of columns, in order, and what they ask of each window."""

    outputs: tuple[Output, ...]
    needs: WindowNeeds
    num_rows: int = 1  # of an item, padding included
    has_time: bool = False
    is_ragged: bool = False
    last: LastJob = field(default_factory=LastJob, compare=False, repr=False)

    @classmethod
    def make(
        cls,
        selection: Selection,
        columns: Sequence[Mapping[str, Any]],
        items: StepItems,
        stack: Mapping[str, int],
    ) -> OutputPlan:
        """selection: of these items. columns: the serialised layout. stack: {flat column: frames}.

        Raises DtypeMismatch where torch has no such dtype, InvalidConfig for columns that kernels cannot find.
        """
        outputs = []
        burn_in = items.shape.before
        needs: dict[str, Any] = {"before": burn_in, "needs_next": not items.has_time}
        for (name, dtype, shape, axis, per), timed in zip(selection.core.outputs, selection.columns.timed, strict=True):
            is_return = name == "reward" and items.sums_rewards
            column = None if is_return else column_named(columns, name)
            base = None
            if column is None and not is_return and name.startswith("next_"):
                base = column_named(columns, name.removeprefix("next_"))
            copy = None
            source = column or base
            if source is not None:
                frames = stack.get(source["name"], 1) if source["kind"] == "state" else 1
                pads_zeros = items.stack_pad == "zeros"
                copy = ColumnCopy.from_facts(source, frames, base is not None, pads_zeros, timed and items.has_time)
                needs["before"] = max(needs["before"], burn_in + frames - 1)
            elif is_return:
                reward = column_named(columns, name)
                assert reward is not None
                needs["reward_offset"], needs["reward_stride"] = int(reward["offset"]), int(reward["stride"])
                needs["reward_is_double"] = np.dtype(dtype).itemsize == 8
            needs["needs_next"] |= base is not None or (column is None and name == "truncated")
            outputs.append(Output(name, torch_dtype(name, dtype), tuple(shape), axis, per, copy))
        return cls(tuple(outputs), WindowNeeds(**needs), items.num_rows, items.has_time, selection.columns.is_ragged)

    def room(self, num_items: int, out: Mapping[str, torch.Tensor] | None, device: torch.device) -> BatchRoom:
        """Where the columns of a batch go: fresh tensors, or the caller's own, each exactly what is to be filled."""
        if out is None:
            arrays = [torch.empty(one.shape_of(num_items), dtype=one.dtype, device=device) for one in self.outputs]
        else:
            arrays = [_checked(one, num_items, out, device) for one in self.outputs]
        return BatchRoom(self, num_items, arrays, device)

    def job(
        self,
        arrays: Sequence[torch.Tensor],
        device: torch.device,
        num_places: int,
        offsets: torch.Tensor | None = None,
    ) -> Job:
        """What fills these arrays, one for each output. Costs a copy to the device, unless they are the last call's."""
        copies = [(one.copy, array.data_ptr()) for one, array in zip(self.outputs, arrays, strict=True) if one.copy]
        copies.sort(key=lambda copy: copy[0].is_large)
        derived = {one.name: a.data_ptr() for one, a in zip(self.outputs, arrays, strict=True) if one.copy is None}
        begins = 0 if offsets is None else offsets.data_ptr()
        words = tuple(job_words(derived, self.needs, copies, begins, num_places))
        made = self.last.job
        if made is None or made.words != words or made.on_device.device != device:
            packed = tuple(copy for copy, _ in copies if not copy.is_large)
            large = tuple(copy for copy, _ in copies if copy.is_large)
            on_device = torch.tensor(words, dtype=torch.int64, device=device)
            fills_rows = self.has_time and not derived.keys().isdisjoint(OF_ROWS)
            fills_versions = self.has_time and not derived.keys().isdisjoint(OF_VERSIONS)
            made = Job(words, on_device, packed, large, num_places, fills_rows, fills_versions)
            self.last.job = made
        return made


@final
class BatchRoom:
    """The tensors of one batch, and the job that fills them.

    arrays: one for each output. Where rows of items lie end to end, those of rows are made anew in every round, once it
    is known how many there are: `lay_out`.
    """

    def __init__(self, plan: OutputPlan, num_items: int, arrays: list[torch.Tensor], device: torch.device) -> None:
        self.plan = plan
        self.arrays = arrays
        self._num_items = num_items
        self._device = device
        self.job = plan.job(arrays, device, num_items * plan.num_rows)

    def lay_out(self, states: torch.Tensor, lengths: torch.Tensor) -> Job:
        """The job that copies the rows of resolved windows. states, lengths: int64[B], of the scratch.

        End to end it gives each item its place by the lengths that are known now, and waits for the device to know how
        many rows there are. What an earlier round read lies elsewhere now: such items are read again, and looked at
        again, with those of this round.
        """
        if not self.plan.is_ragged:
            return self.job
        states[states == int(PRESENT.value)] = int(READY.value)
        begins = torch.zeros(self._num_items + 1, dtype=torch.int64, device=self._device)
        torch.cumsum(torch.where(states == int(READY.value), lengths, 0), 0, out=begins[1:])
        num_rows = int(begins[-1])
        for position, one in enumerate(self.plan.outputs):
            if one.per == "row":
                shape = one.shape_of(self._num_items, num_rows)
                self.arrays[position] = torch.empty(shape, dtype=one.dtype, device=self._device)
            elif one.per == "offset":
                self.arrays[position] = begins
        return self.plan.job(self.arrays, self._device, num_rows, begins)

    def empty(self) -> None:
        """What a batch of no items has: no rows, and one offset."""
        for one, array in zip(self.plan.outputs, self.arrays, strict=True):
            if one.per == "offset":
                array.zero_()

    def zero_absent(self, present: torch.Tensor) -> None:
        """Zeros in all that items have that are not there; of rows that lie end to end they have none."""
        absent = ~present
        for one, array in zip(self.plan.outputs, self.arrays, strict=True):
            if one.per == "item":
                _rows_of(array, one.item_axis)[absent] = 0

    def take(self, values: Sequence[Any], rows: torch.Tensor) -> None:
        """Puts numpy arrays of some items, as the core gathers them, in their place; end to end of all of them."""
        for position, (one, value) in enumerate(zip(self.plan.outputs, values, strict=True)):
            given = torch.from_numpy(value).to(self._device)
            if self.plan.is_ragged:
                self.arrays[position] = given
            else:
                _rows_of(self.arrays[position], one.item_axis)[rows] = _rows_of(given, one.item_axis)


def _rows_of(array: torch.Tensor, item_axis: int) -> torch.Tensor:
    """A view of an array whose first axis is that of items."""
    return array.movedim(item_axis, 0)


def torch_dtype(name: str, dtype: str) -> torch.dtype:
    """The torch dtype of a numpy one, or DtypeMismatch."""
    try:
        return torch.from_numpy(np.empty(0, np.dtype(dtype))).dtype
    except TypeError:
        raise DtypeMismatch(name, "a dtype that torch has", dtype) from None


def _checked(one: Output, num_items: int, out: Mapping[str, torch.Tensor], device: torch.device) -> torch.Tensor:
    if one.name not in out:
        raise UnknownColumn(one.name, out)
    array = out[one.name]
    what = f"out[{one.name!r}]"
    if not isinstance(array, torch.Tensor) or array.dtype != one.dtype:
        raise DtypeMismatch(what, f"a tensor of {one.dtype}", getattr(array, "dtype", array))
    shape = one.shape_of(num_items)
    if array.shape != shape or not array.is_contiguous() or array.device != device:
        expected = f"{shape}, contiguous, on {device}"
        raise ShapeMismatch(what, expected, f"{tuple(array.shape)} on {array.device}")
    if array.data_ptr() % VECTOR:
        raise InvalidConfig(what, f"memory at a multiple of {VECTOR} bytes", array.data_ptr())
    return array
