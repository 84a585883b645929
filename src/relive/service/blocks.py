"""Steps gathered on the client until they are sent, and the keys that come back for them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt

from relive.errors import Unacknowledged
from relive.service.encoding import Operation, RowEncoder, check_priorities

__all__ = ["Block", "Part", "StreamedKeys", "whole_part"]

Keys = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.int32]
Signature = tuple[Any, ...]

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_SCALARS = {"f4": float, "f8": float, "i8": int, "b1": bool}  # Python scalars that such a cell takes as they are


class Waits(Protocol):
    """Who can be asked to bring the keys of a part."""

    def wait_for_keys(self, part: Part) -> None:
        """Blocks until the part is answered."""
        ...


@final
class Part:
    """One operation on its way: what it will send, then what came back. width: keys a row."""

    __slots__ = ("error", "keys", "num_calls", "num_steps", "operation", "owner", "width")

    def __init__(self, owner: Waits, operation: Operation | None, width: int) -> None:
        self.owner = owner
        self.operation = operation
        self.width = width
        self.num_calls = 1
        self.num_steps = 0 if operation is None else operation.num_keys
        self.keys: Keys | None = None  # flat; where the server stored only the first rows, of those
        self.error: Unacknowledged | None = None


def whole_part(owner: Waits, operation: Operation) -> Part:
    """An extend, an end of episodes or a version; its arrays are copied, as the caller may go on to change them."""
    operation.arrays = [array.copy() for array in operation.arrays]
    return Part(owner, operation, 1)


@final
class Block:
    """Appends of one kind: the same columns, lanes, and deadline. A row is counted once all its cells are in."""

    __slots__ = ("_arrays", "_cells", "_encoder", "_leading", "_names", "capacity", "num_rows", "part", "signature",
                 "_lanes", "timeout_s")  # fmt: skip

    def __init__(
        self,
        encoder: RowEncoder,
        owner: Waits,
        signature: Signature,
        lanes: Lanes | None,
        capacity: int,
        timeout_s: float,
    ) -> None:
        names: tuple[str, ...] = signature[0]
        self._encoder = encoder
        self._lanes = lanes
        self._names = names
        self._leading = encoder.layout.leading(None, None if lanes is None else len(lanes))
        cells = [encoder.layout.cells[name] for name in names]
        self._cells = [(dtype, self._leading + shape) for dtype, shape in cells]
        self._arrays = [np.empty((capacity, *shape), dtype) for dtype, shape in self._cells]
        self.capacity = capacity
        self.num_rows = 0
        self.part = Part(owner, None, math.prod(self._leading))
        self.signature = signature
        self.timeout_s = timeout_s

    def put(self, columns: dict[str, Any], priority: Any) -> StreamedKeys:
        """One row; raises as an append does, and then the block is as it was."""
        row = self.num_rows
        for name, array, (dtype, shape) in zip(self._names, self._arrays, self._cells, strict=True):
            value = priority if name == "priority" else columns[name]
            if type(value) is np.ndarray:
                if value.dtype == dtype and value.shape == shape:
                    array[row] = value
                else:
                    array[row] = self._encoder.exact(name, value, self._leading)
            elif shape == () and type(value) is _SCALARS.get(dtype.str[1:]) and _fits(value, dtype):
                array[row] = value
            else:
                array[row] = self._encoder.exact(name, value, self._leading)
            if name == "priority":
                check_priorities(array[row : row + 1])
        self.num_rows = row + 1
        return StreamedKeys(self.part, row * self.part.width, self._leading)

    def seal(self) -> Part:
        """The operation that sends what is there."""
        lanes = self._lanes
        header = {"op": "append", "rows": self.num_rows, "names": list(self._names)}
        header["lanes"] = None if lanes is None else len(lanes)
        arrays = [array[: self.num_rows] for array in self._arrays]
        part = self.part
        part.operation = Operation(header, arrays if lanes is None else [lanes, *arrays], (self.num_rows, part.width))
        part.num_calls = self.num_rows
        part.num_steps = self.num_rows * part.width
        self._arrays = []
        return part


def _fits(value: Any, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "i":
        return -(1 << 63) <= value < 1 << 63
    return dtype.str[1:] != "f4" or -_FLOAT32_MAX <= value <= _FLOAT32_MAX or not math.isfinite(value)


@final
class StreamedKeys:
    """Keys of a streamed call, which come when they are read: an array for numpy, an int where the call appended one.

    Reading waits until the server has confirmed the steps: their acknowledgement. Raises DeadlineExceeded after the
    writer's deadline, Unacknowledged where they were not stored.
    """

    __slots__ = ("_first", "_part", "shape")

    def __init__(self, part: Part, first: int, shape: tuple[int, ...]) -> None:
        self._part = part
        self._first = first
        self.shape = shape

    def read(self) -> Keys:
        """int64 of `shape`; waits for them."""
        part, count = self._part, math.prod(self.shape)
        if part.keys is None and part.error is None:
            part.owner.wait_for_keys(part)
        keys = part.keys
        if keys is None or len(keys) < self._first + count:
            assert part.error is not None
            raise part.error
        return keys[self._first : self._first + count].reshape(self.shape)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        keys = self.read()
        return keys.copy() if dtype is None or np.dtype(dtype) == keys.dtype else keys.astype(dtype)

    def __int__(self) -> int:
        return int(self.read())

    __index__ = __int__

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("one key has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())

    def __getitem__(self, which: Any) -> Any:
        return self.read()[which]

    def tolist(self) -> Any:
        """As an array's."""
        return self.read().tolist()

    def __repr__(self) -> str:
        known = self._part.keys is not None or self._part.error is not None
        return f"StreamedKeys(shape {self.shape}, {'known' if known else 'not confirmed yet'})"
