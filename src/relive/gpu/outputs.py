"""Which kernel fills which output of a gather: the device's counterpart of the core's plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from relive.errors import DtypeMismatch, InvalidConfig, ShapeMismatch, UnknownColumn
from relive.gpu.layout_args import VECTOR, ColumnCopy, WindowNeeds, column_named
from relive.items import Transitions

__all__ = ["Output", "OutputPlan"]

# In the order of fill_derived's arguments.
DERIVED = (
    "reward",
    "discount",
    "terminated",
    "truncated",
    "episode_step",
    "first",
    "lane",
    "policy_version",
    "staleness",
    "num_steps",
)


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
class OutputPlan:
    """The outputs of one list of columns, in order, and what they ask of each window."""

    outputs: tuple[Output, ...]
    needs: WindowNeeds

    @classmethod
    def make(
        cls,
        described: Sequence[tuple[str, str, tuple[int, ...]]],
        columns: Sequence[Mapping[str, Any]],
        items: Transitions,
        stack: Mapping[str, int],
    ) -> OutputPlan:
        """described: (name, numpy dtype, shape of an item) as the core's plan has them. columns: the serialised layout.

        stack: {flat column: frames}. Raises DtypeMismatch where torch has no such dtype.
        """
        outputs = []
        needs: dict[str, Any] = {}
        for name, dtype, shape in described:
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
                needs["history"] = needs.get("history", False) or frames > 1
            elif is_return:
                reward = column_named(columns, name)
                assert reward is not None
                needs["reward_offset"], needs["reward_stride"] = int(reward["offset"]), int(reward["stride"])
                needs["reward_is_double"] = np.dtype(dtype).itemsize == 8
            needs["end"] = needs.get("end", False) or (source is None and name == "truncated")
            outputs.append(Output(name, torch_dtype(name, dtype), tuple(shape), copy))
        return cls(tuple(outputs), WindowNeeds(**needs))

    def buffers(
        self, num_items: int, out: Mapping[str, torch.Tensor] | None, device: torch.device
    ) -> list[torch.Tensor]:
        """A tensor for each output: the caller's own, each exactly what is to be filled, or fresh ones."""
        if out is None:
            return [torch.empty((num_items, *one.shape), dtype=one.dtype, device=device) for one in self.outputs]
        return [_checked(one, num_items, out, device) for one in self.outputs]

    def derived_addresses(self, arrays: Sequence[torch.Tensor]) -> list[int | None] | None:
        """Addresses for fill_derived, None for what was not asked; None where nothing is derived."""
        asked = {one.name: array for one, array in zip(self.outputs, arrays, strict=True) if one.copy is None}
        if not asked:
            return None
        return [asked[name].data_ptr() if name in asked else None for name in DERIVED]


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
