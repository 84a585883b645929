"""Which kernel fills which output of a gather: the device's counterpart of the core's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch

from relive.errors import DtypeMismatch, InvalidConfig, ShapeMismatch, UnknownColumn
from relive.gpu.layout_args import VECTOR, ColumnCopy, WindowNeeds, column_named, job_words
from relive.items import Transitions

__all__ = ["Job", "Output", "OutputPlan"]


@final
@dataclass(frozen=True)
class Output:
    """One output: [B, *shape] of dtype; copied row by row where `copy` says how, derived otherwise."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    copy: ColumnCopy | None


@final
@dataclass(frozen=True)
class Job:
    """What one call asks of the kernels: words on the device, and the columns they are launched over."""

    words: tuple[int, ...]
    on_device: torch.Tensor  # int64, the same words
    packed: tuple[ColumnCopy, ...]  # the first columns of the job
    large: tuple[ColumnCopy, ...]  # the others

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
    last: LastJob = field(default_factory=LastJob, compare=False, repr=False)

    @classmethod
    def make(
        cls,
        described: Sequence[tuple[str, str, tuple[int, ...], int, str]],
        columns: Sequence[Mapping[str, Any]],
        items: Transitions,
        stack: Mapping[str, int],
    ) -> OutputPlan:
        """described: (name, numpy dtype, shape of an item) as the core's plan has them. columns: the serialised layout.

        stack: {flat column: frames}. Raises DtypeMismatch where torch has no such dtype.
        """
        outputs = []
        needs: dict[str, Any] = {}
        for name, dtype, shape, *_ in described:
            is_return = name == "reward" and items.n_step > 1
            column = None if is_return else column_named(columns, name)
            base = None
            if column is None and not is_return and name.startswith("next_"):
                base = column_named(columns, name.removeprefix("next_"))
            copy = None
            source = column or base
            if source is not None:
                frames = stack.get(source["name"], 1) if source["kind"] == "state" else 1
                copy = ColumnCopy.from_facts(source, frames, base is not None, items.stack_pad == "zeros")
                needs["before"] = max(needs.get("before", 0), frames - 1)
            elif is_return:
                reward = column_named(columns, name)
                assert reward is not None
                needs["reward_offset"], needs["reward_stride"] = int(reward["offset"]), int(reward["stride"])
                needs["reward_is_double"] = np.dtype(dtype).itemsize == 8
            outputs.append(Output(name, torch_dtype(name, dtype), tuple(shape), copy))
        return cls(tuple(outputs), WindowNeeds(**needs))

    def buffers(
        self, num_items: int, out: Mapping[str, torch.Tensor] | None, device: torch.device
    ) -> list[torch.Tensor]:
        """A tensor for each output: the caller's own, each exactly what is to be filled, or fresh ones."""
        if out is None:
            return [torch.empty((num_items, *one.shape), dtype=one.dtype, device=device) for one in self.outputs]
        return [_checked(one, num_items, out, device) for one in self.outputs]

    def job(self, arrays: Sequence[torch.Tensor], device: torch.device) -> Job:
        """What fills these arrays, one for each output. Costs a copy to the device, unless they are the last call's."""
        copies = [(one.copy, array.data_ptr()) for one, array in zip(self.outputs, arrays, strict=True) if one.copy]
        copies.sort(key=lambda copy: copy[0].is_large)
        derived = {one.name: a.data_ptr() for one, a in zip(self.outputs, arrays, strict=True) if one.copy is None}
        words = tuple(job_words(derived, self.needs, copies))
        made = self.last.job
        if made is None or made.words != words or made.on_device.device != device:
            packed = tuple(copy for copy, _ in copies if not copy.is_large)
            large = tuple(copy for copy, _ in copies if copy.is_large)
            made = Job(words, torch.tensor(words, dtype=torch.int64, device=device), packed, large)
            self.last.job = made
        return made


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
    if array.shape != (num_items, *one.shape) or not array.is_contiguous() or array.device != device:
        expected = f"{(num_items, *one.shape)}, contiguous, on {device}"
        raise ShapeMismatch(what, expected, f"{tuple(array.shape)} on {array.device}")
    if array.data_ptr() % VECTOR:
        raise InvalidConfig(what, f"memory at a multiple of {VECTOR} bytes", array.data_ptr())
    return array
