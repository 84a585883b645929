"""The columns of a tensordict of rollouts as values of bytes, and back.

This module imports torch and tensordict.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorStack

from relive.adapters.rollouts.entries import Description

__all__ = ["column_of", "values_of"]

Bytes = NDArray[np.uint8]

_OBJECT = "pickle"


def values_of(column: Any) -> tuple[list[Bytes], list[Description]]:
    """The rows of a column of a tensordict: the bytes of each row, and its description.

    Args:
        column: a tensor [B, ...], a nested tensor of B tensors, or a stack of B objects.
    """
    if not isinstance(column, torch.Tensor):
        rows = [_value(one) for one in column]
    elif column.is_nested:
        flat = _jagged(column)
        if flat is not None:
            return flat
        rows = [_value(one) for one in column.unbind()]
    else:
        described = Description(_name(column.dtype), tuple(column.shape[1:]))
        data = _bytes(column).reshape(len(column), -1) if column.numel() else np.zeros((len(column), 0), np.uint8)
        return list(data), [described] * len(data)
    return [data for data, _ in rows], [description for _, description in rows]


def _jagged(column: torch.Tensor) -> tuple[list[Bytes], list[Description]] | None:
    """The rows of a nested tensor whose values lie end to end; None for another one."""
    if column.layout != torch.jagged or column._ragged_idx != 1 or column.lengths() is not None:  # type: ignore[attr-defined]
        return None
    values, ends = column.values(), column.offsets().tolist()  # type: ignore[attr-defined]
    name, inner = _name(values.dtype), list(values.shape[1:])
    flat = _bytes(values)
    size = values.element_size() * math.prod(inner)
    spans = list(zip(ends[:-1], ends[1:], strict=True))
    return [flat[a * size : b * size] for a, b in spans], [Description(name, (b - a, *inner)) for a, b in spans]


def _value(value: Any) -> tuple[Bytes, Description]:
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested:
        return _bytes(value), Description(_name(value.dtype), tuple(value.shape))
    return np.frombuffer(pickle.dumps(value, pickle.HIGHEST_PROTOCOL), np.uint8), Description(_OBJECT, ())


def _bytes(tensor: torch.Tensor) -> Bytes:
    data = tensor.detach().to("cpu").contiguous().reshape(-1)
    return np.asarray(data.view(torch.uint8).numpy())


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def column_of(flat: Bytes, begins: NDArray[np.int64], descriptions: Sequence[Description], dense: bool = False) -> Any:
    """The column of a tensordict from the bytes of its rows.

    Args:
        flat: memory with the bytes of all rows.
        begins: int64[B], the byte of `flat` at which each row begins.
        descriptions: of the rows.
        dense: stack tensors of one shape.

    Returns:
        Tensors without axes are stacked, [B]. Other tensors of one dtype become a nested tensor, jagged if their inner
        shapes are equal, as TransferQueue's own storage returns them. All other rows become a NonTensorStack.
    """
    names, shapes = {one.type for one in descriptions}, [one.shape for one in descriptions]
    of_one_shape = len(set(shapes)) == 1
    if _OBJECT in names or len(names) > 1:
        return NonTensorStack(*_tensors(flat, begins, descriptions))
    dtype: torch.dtype = getattr(torch, names.pop())
    if of_one_shape or (min(map(len, shapes)) > 0 and len({shape[1:] for shape in shapes}) == 1):
        sizes = [math.prod(shape) * dtype.itemsize for shape in shapes]
        values = torch.from_numpy(_end_to_end(flat, begins, sizes)).view(dtype)
        if not shapes[0] or (dense and of_one_shape):
            return values.reshape(len(shapes), *shapes[0])
        lengths = [shape[0] for shape in shapes]
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]))
        return torch.nested.nested_tensor_from_jagged(
            values.reshape(sum(lengths), *shapes[0][1:]), offsets, min_seqlen=min(lengths), max_seqlen=max(lengths)
        )
    rows = _tensors(flat, begins, descriptions)
    try:
        return torch.nested.as_nested_tensor(rows, layout=torch.strided)
    except RuntimeError:  # tensors of different numbers of axes
        return NonTensorStack(*rows)


def _end_to_end(flat: Bytes, begins: NDArray[np.int64], sizes: Sequence[int]) -> Bytes:
    """The bytes of rows without the gaps between them."""
    if len(sizes) > 1 and len(set(sizes)) == 1:
        strides = np.diff(begins)
        if (strides == strides[0]).all() and strides[0] >= sizes[0]:  # one copy for all rows
            last = int(begins[-1]) + sizes[0]
            view = np.lib.stride_tricks.as_strided(
                flat[int(begins[0]) : last], (len(sizes), sizes[0]), (int(strides[0]), 1), writeable=False
            )
            return np.array(view).reshape(-1)
    found = np.empty(sum(sizes), np.uint8)
    at = 0
    for begin, size in zip(begins.tolist(), sizes, strict=True):
        found[at : at + size] = flat[begin : begin + size]
        at += size
    return found


def _tensors(flat: Bytes, begins: NDArray[np.int64], descriptions: Sequence[Description]) -> list[Any]:
    found: list[Any] = []
    for begin, (name, shape) in zip(begins.tolist(), descriptions, strict=True):
        if name == _OBJECT:
            found.append(pickle.loads(flat[begin:].data))  # a pickle says where it ends
            continue
        dtype: torch.dtype = getattr(torch, name)
        size = math.prod(shape) * dtype.itemsize
        found.append(torch.from_numpy(flat[begin : begin + size].copy()).view(dtype).reshape(shape))
    return found
