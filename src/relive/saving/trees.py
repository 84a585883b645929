"""Trees of arrays and plain values as bytes, and back: the state of a learner, without pickle.

The bytes are: the length of a head (8 bytes), the head (JSON), then the arrays, each at a multiple of 64. A tree
consists of dicts, lists, tuples, numbers, text, bytes, None, numpy arrays and torch tensors.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relive.errors import DamagedSave, InvalidConfig

__all__ = ["copied_tree", "tree_from_bytes", "tree_to_bytes"]

_LENGTH_BYTES = 8
_ALIGN = 64
_MOST_DEPTH = 100
_KIND = "$"  # the key of a JSON object that stands for something JSON has not


def tree_to_bytes(tree: Any) -> bytes:
    """Returns a tree as bytes. Raises InvalidConfig for a value of another type, and names its place.

    A tensor of a GPU is copied to the host.
    """
    arrays: list[NDArray[np.uint8]] = []
    head = json.dumps(_written(tree, arrays, "", 0), allow_nan=False).encode()
    parts = [len(head).to_bytes(_LENGTH_BYTES, "little"), head]
    size = _LENGTH_BYTES + len(head)
    for array in arrays:
        parts += [b"\0" * (-size % _ALIGN), array.tobytes()]
        size += -size % _ALIGN + array.nbytes
    return b"".join(parts)


def copied_tree(tree: Any) -> Any:
    """Returns a tree with arrays and tensors of its own: later changes of the learner do not reach it."""
    if isinstance(tree, dict):
        return {key: copied_tree(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(copied_tree, tree)) if type(tree) in (list, tuple) else tree
    if isinstance(tree, np.ndarray):
        return tree.copy()
    return tree.detach().to("cpu", copy=True) if _is_tensor(tree) else tree


def tree_from_bytes(data: bytes, path: str = "") -> Any:
    """Returns the tree of `tree_to_bytes`. Raises DamagedSave. Tensors are on the CPU.

    Args:
        data: The bytes.
        path: The file that they are from, for the error.
    """
    try:
        size = int.from_bytes(data[:_LENGTH_BYTES], "little")
        if len(data) < _LENGTH_BYTES or size > len(data) - _LENGTH_BYTES:
            raise ValueError("its head is longer than the file")
        head = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + size])
        return _Reading(memoryview(data), _LENGTH_BYTES + size).tree(head, 0)
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError, ImportError, RecursionError) as problem:
        raise DamagedSave(path, f"the state of a learner: {problem}") from problem


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # a tensor exists only where torch is loaded
    return torch is not None and isinstance(value, torch.Tensor)


def _written(value: Any, arrays: list[NDArray[np.uint8]], place: str, depth: int) -> Any:
    """Returns a value for JSON; appends the bytes of its arrays."""
    if depth > _MOST_DEPTH:
        raise InvalidConfig(f"state of the learner at {place!r}", f"at most {_MOST_DEPTH} levels", "more")
    if isinstance(value, (np.ndarray, np.generic)) and _is_plain(value):  # before float: a float64 is one, too
        array = np.ascontiguousarray(value)
        arrays.append(array.reshape(-1).view(np.uint8))
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {_KIND: kind, "dtype": array.dtype.str, "shape": list(np.shape(value)), "num_bytes": array.nbytes}
    if value is None or isinstance(value, (bool, int, str)):
        return {_KIND: "int", "is": str(value)} if isinstance(value, int) and abs(value) >= 2**63 else value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_KIND: "float", "is": repr(value)}
    if isinstance(value, dict):
        pairs = [
            [_written(key, arrays, place, depth + 1), _written(one, arrays, f"{place}/{key}", depth + 1)]
            for key, one in value.items()
        ]
        return {_KIND: "dict", "is": pairs}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {
            _KIND: kind,
            "is": [_written(one, arrays, f"{place}/{k}", depth + 1) for k, one in enumerate(value)],
        }
    if isinstance(value, (bytes, bytearray)):
        arrays.append(np.frombuffer(bytes(value), np.uint8))
        return {_KIND: "bytes", "num_bytes": len(value)}
    if _is_tensor(value):
        return _written_tensor(value, arrays, place)
    expected = "dicts, lists, numbers, text, bytes, numpy arrays without fields and masks, or torch tensors"
    raise InvalidConfig(f"state of the learner at {place!r}", expected, type(value).__name__)


def _is_plain(array: NDArray[Any] | np.generic) -> bool:
    """Whether the bytes, the dtype's letter and the shape tell all of an array: no objects, no fields and no mask."""
    dtype = np.asarray(array).dtype
    return not dtype.hasobject and dtype.names is None and not isinstance(array, np.ma.MaskedArray)


def _written_tensor(tensor: Any, arrays: list[NDArray[np.uint8]], place: str) -> dict[str, Any]:
    import torch  # the tensor is there, so torch is loaded

    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        raise InvalidConfig(f"state of the learner at {place!r}", "dense tensors with values", str(tensor.layout))
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() == 1:  # contiguous at any stride, but a view of it as bytes needs stride 1
        flat = flat.clone(memory_format=torch.contiguous_format)
    raw = flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
    arrays.append(raw)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {_KIND: "tensor", "dtype": dtype, "shape": list(tensor.shape), "num_bytes": raw.nbytes}


class _Reading:
    """Reads the arrays of a tree in their order."""

    def __init__(self, data: memoryview, begin: int) -> None:
        self._data, self._at = data, begin

    def tree(self, value: Any, depth: int) -> Any:
        if depth > 2 * _MOST_DEPTH:
            raise ValueError("too many levels")
        if not isinstance(value, dict):
            if isinstance(value, list):
                raise ValueError("a list without its kind")
            return value
        kind = value[_KIND]
        if kind == "dict":
            pairs = [(self.tree(key, depth + 1), self.tree(one, depth + 1)) for key, one in value["is"]]
            return dict(pairs)
        if kind in ("list", "tuple"):
            made = [self.tree(one, depth + 1) for one in value["is"]]
            return tuple(made) if kind == "tuple" else made
        if kind in ("int", "float"):
            return int(value["is"]) if kind == "int" else float(value["is"])
        raw = self._take(value["num_bytes"])
        if kind == "bytes":
            return bytes(raw)
        shape = tuple(value["shape"])
        if kind in ("array", "scalar"):
            dtype = np.dtype(value["dtype"])
            if dtype.hasobject:
                raise ValueError("an array of objects")
            array = np.frombuffer(raw, dtype).reshape(shape).copy()
            return array if kind == "array" else array[()]
        if kind == "tensor":
            return self._tensor(raw, value["dtype"], shape)
        raise ValueError(f"a value of kind {kind!r}")

    def _take(self, num_bytes: int) -> memoryview:
        begin = self._at + -self._at % _ALIGN
        if not isinstance(num_bytes, int) or num_bytes < 0 or begin + num_bytes > len(self._data):
            raise ValueError("an array that ends after the file")
        self._at = begin + num_bytes
        return self._data[begin : begin + num_bytes]

    @staticmethod
    def _tensor(raw: memoryview, dtype: str, shape: tuple[int, ...]) -> Any:
        import torch

        kind = getattr(torch, dtype)
        if not isinstance(kind, torch.dtype):
            raise ValueError(f"a tensor of dtype {dtype!r}")
        flat = torch.from_numpy(np.frombuffer(raw, np.uint8).copy())
        return flat.view(kind).reshape(shape) if raw.nbytes else torch.zeros(shape, dtype=kind)
