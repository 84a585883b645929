"""The outputs of a gather and the kernels that fill them: the counterpart of the core's plan on the device."""

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
    """One output of a gather: copied row by row, or derived if `copy` is None."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]  # of one item
    item_axis: int  # position of the axis of items among the axes of the array
    per: str  # the array has one value for each "item" or, if items are ragged, for each "row" or each "offset"
    copy: ColumnCopy | None

    def shape_of(self, num_items: int, num_rows: int = 0) -> tuple[int, ...]:
        """Returns the shape of the array for a number of items. num_rows: rows of all items, if these are ragged."""
        if self.per == "offset":
            return (num_items + 1,)
        count = num_rows if self.per == "row" else num_items
        return (*self.shape[: self.item_axis], count, *self.shape[self.item_axis :])


@final
@dataclass(frozen=True)
class Job:
    """The job of one call: its words on the device, and the columns that kernels are launched over."""

    on_device: torch.Tensor  # its words, int64
    packed: tuple[ColumnCopy, ...]  # the first columns of the job
    large: tuple[ColumnCopy, ...]  # the other columns
    num_places: int = 0  # rows of all items, with padding
    fills_rows: bool = False  # whether a derived column has one value for each row
    fills_versions: bool = False  # whether policy versions of items with a time axis are needed

    @property
    def address(self) -> int:
        """The address of the words on the device."""
        return self.on_device.data_ptr()


@final
class SentJobs:
    """The last jobs of a plan, by the addresses of their outputs.

    A caller that keeps one batch while the next is read has outputs at two places in turn. Each job is then sent once.
    """

    MOST = 8

    def __init__(self) -> None:
        self.jobs: dict[tuple[Any, ...], Job] = {}

    def keep(self, where: tuple[Any, ...], job: Job) -> None:
        """Keeps a job. If there are MOST already, the oldest is dropped."""
        if len(self.jobs) >= self.MOST:
            del self.jobs[next(iter(self.jobs))]
        self.jobs[where] = job


@final
@dataclass(frozen=True)
class OutputPlan:
    """The outputs of one list of columns, in order, and their needs of each window."""

    outputs: tuple[Output, ...]
    needs: WindowNeeds
    num_rows: int = 1  # of an item, with padding
    has_time: bool = False
    is_ragged: bool = False
    shares_rows: bool = False  # whether a state column and its next_ column show rows of one episode
    sent: SentJobs = field(default_factory=SentJobs, compare=False, repr=False)

    @classmethod
    def make(
        cls,
        selection: Selection,
        columns: Sequence[Mapping[str, Any]],
        items: StepItems,
        stack: Mapping[str, int],
    ) -> OutputPlan:
        """Makes the plan of a selection.

        Args:
            selection: the columns, of these items.
            columns: the serialised layout.
            items: the items of the index.
            stack: frames of a stack by flat column.

        Raises:
            DtypeMismatch: torch has no such dtype.
            InvalidConfig: kernels cannot find a column.
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
            if (base is not None and base["kind"] != "state") or (column is None and name in ("has_next", "priority")):
                raise InvalidConfig(
                    "columns of a DeviceReader", "columns without priority, has_next and next_<step>", name
                )
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
        return cls(
            tuple(outputs),
            WindowNeeds(**needs),
            items.num_rows,
            items.has_time,
            selection.columns.is_ragged,
            shares_rows=not items.crosses,
        )

    def room(self, num_items: int, out: Mapping[str, torch.Tensor] | None, device: torch.device) -> BatchRoom:
        """Returns memory for the columns of a batch: new tensors, or those of the caller.

        Args:
            num_items: B.
            out: tensors to fill, by flat name. None: new tensors.
            device: the device.

        Raises:
            UnknownColumn: `out` lacks a column.
            DtypeMismatch, ShapeMismatch, InvalidConfig: a tensor of `out` does not fit.
        """
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
        """Returns the job that fills these arrays, one for each output.

        Cost: a copy to the device, unless the arrays are those of one of the last calls.
        """
        begins = 0 if offsets is None else offsets.data_ptr()
        where = (device, num_places, begins, *(array.data_ptr() for array in arrays))
        made = self.sent.jobs.get(where)
        if made is None:
            made = self._new_job(arrays, device, num_places, begins)
            self.sent.keep(where, made)
        return made

    def _new_job(self, arrays: Sequence[torch.Tensor], device: torch.device, num_places: int, begins: int) -> Job:
        copies = [(one.copy, array.data_ptr()) for one, array in zip(self.outputs, arrays, strict=True) if one.copy]
        copies.sort(key=lambda copy: copy[0].is_large)
        derived = {one.name: a.data_ptr() for one, a in zip(self.outputs, arrays, strict=True) if one.copy is None}
        words = job_words(derived, self.needs, copies, begins, num_places, self.shares_rows)
        return Job(
            on_device=torch.tensor(words, dtype=torch.int64, device=device),
            packed=tuple(copy for copy, _ in copies if not copy.is_large),
            large=tuple(copy for copy, _ in copies if copy.is_large),
            num_places=num_places,
            fills_rows=self.has_time and not derived.keys().isdisjoint(OF_ROWS),
            fills_versions=self.has_time and not derived.keys().isdisjoint(OF_VERSIONS),
        )


@final
class BatchRoom:
    """The tensors of one batch (`arrays`, one for each output), and the job that fills them.

    For ragged items, `lay_out` makes the arrays of rows again in every round, when the number of rows is known.
    """

    def __init__(self, plan: OutputPlan, num_items: int, arrays: list[torch.Tensor], device: torch.device) -> None:
        self.plan = plan
        self.arrays = arrays
        self._num_items = num_items
        self._device = device
        self.job = plan.job(arrays, device, num_items * plan.num_rows)
        self._begins: torch.Tensor | None = None  # int64[B + 1], of the last round's rows

    def lay_out(self, states: torch.Tensor, lengths: torch.Tensor) -> Job:
        """Returns the job that copies the rows of resolved windows.

        Ragged items get their places from the lengths of this round, and the call waits for the device to learn the
        number of rows. Rows of items that held still in an earlier round move to their new places on the device.

        Args:
            states: int64[B], of the scratch.
            lengths: int64[B], of the scratch.
        """
        if not self.plan.is_ragged:
            return self.job
        kept = states == int(PRESENT.value)
        begins = torch.zeros(self._num_items + 1, dtype=torch.int64, device=self._device)
        torch.cumsum(torch.where(kept | (states == int(READY.value)), lengths, 0), 0, out=begins[1:])
        num_rows = int(begins[-1])
        moves = None if self._begins is None else _moves(self._begins, begins, kept, lengths)
        for position, one in enumerate(self.plan.outputs):
            if one.per == "row":
                shape = one.shape_of(self._num_items, num_rows)
                before, array = self.arrays[position], torch.empty(shape, dtype=one.dtype, device=self._device)
                if moves is not None:
                    _rows_of(array, one.item_axis)[moves[1]] = _rows_of(before, one.item_axis)[moves[0]]
                self.arrays[position] = array
            elif one.per == "offset":
                self.arrays[position] = begins
        self._begins = begins
        return self.plan.job(self.arrays, self._device, num_rows, begins)

    def empty(self) -> None:
        """Fills a batch of no items: it has no rows, and one offset."""
        for one, array in zip(self.plan.outputs, self.arrays, strict=True):
            if one.per == "offset":
                array.zero_()

    def zero_absent(self, present: torch.Tensor) -> None:
        """Writes zeros to the rows of items that are not present. Ragged items that are not present have no rows."""
        absent = ~present
        for one, array in zip(self.plan.outputs, self.arrays, strict=True):
            if one.per == "item":
                _rows_of(array, one.item_axis)[absent] = 0

    def take(self, values: Sequence[Any], rows: torch.Tensor) -> None:
        """Copies arrays that the core gathered to the rows of these items. For ragged items: of all items."""
        for position, (one, value) in enumerate(zip(self.plan.outputs, values, strict=True)):
            given = torch.from_numpy(value).to(self._device)
            if self.plan.is_ragged:
                self.arrays[position] = given
            else:
                _rows_of(self.arrays[position], one.item_axis)[rows] = _rows_of(given, one.item_axis)


def _rows_of(array: torch.Tensor, item_axis: int) -> torch.Tensor:
    """A view of an array with the axis of items first."""
    return array.movedim(item_axis, 0)


def _moves(
    before: torch.Tensor, begins: torch.Tensor, kept: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows before, rows now) of the kept items, whose first rows were and are at these offsets, int64[B + 1]."""
    counts = torch.where(kept, lengths, 0)
    firsts = torch.cumsum(counts, 0) - counts
    within = torch.arange(int(counts.sum()), device=counts.device) - torch.repeat_interleave(firsts, counts)
    old, new = (torch.repeat_interleave(offsets[:-1], counts) + within for offsets in (before, begins))
    return old, new


def torch_dtype(name: str, dtype: str) -> torch.dtype:
    """Returns the torch dtype of a numpy dtype. Raises DtypeMismatch if there is none."""
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
