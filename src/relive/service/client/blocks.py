"""Gathers steps on the client until they are sent, and returns the keys that the server answers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol, final

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from relive._core import RowBlock
from relive.checks.values import timeout
from relive.errors import Unacknowledged
from relive.service.wire.encoding import Operation, RowEncoder, check_priorities

__all__ = ["Block", "Part", "StreamedKeys", "whole_part"]

Keys = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.int32]
Signature = tuple[Any, ...]


class Waits(Protocol):
    """The interface of an object that can wait for the keys of a part."""

    def wait_for_keys(self, part: Part, timeout_s: float | None) -> None:
        """Blocks until the part is answered. timeout_s: None is the deadline of the object."""
        ...


@final
class Part:
    """One operation on its way: first the operation to send, then the answer. `width`: keys for each row."""

    __slots__ = ("error", "keys", "num_calls", "num_steps", "operation", "owner", "width")

    def __init__(self, owner: Waits, operation: Operation | None, width: int) -> None:
        self.owner = owner
        self.operation = operation
        self.width = width
        self.num_calls = 0 if operation is None else 1
        self.num_steps = 0 if operation is None else operation.num_keys
        self.keys: Keys | None = None  # flat; if the server stored only the first rows, the keys of those rows
        self.error: Unacknowledged | None = None


def whole_part(owner: Waits, operation: Operation) -> Part:
    """Makes a part of an extend, an end of episodes or a version.

    The arrays are copied, because the caller may change them afterwards.
    """
    operation.arrays = [array.copy() for array in operation.arrays]
    return Part(owner, operation, 1)


@final
class Block:
    """A block of appends of one kind: the same columns, lanes and deadline.

    A row counts after all its cells are stored. A signal's handler may raise anywhere. Therefore the core counts the
    rows, and a block takes no further row after a call of seal().

    `plain_names`: the columns, if the rows have no lanes= and no priority and wait for the writer's default deadline;
    else None.

    `is_due`: whether the writer must look at the block after the next row: the block is new, or full.
    """

    __slots__ = ("_encoder", "_lanes", "_leading", "_names", "_put", "_rows", "capacity", "is_due", "part",
                 "plain_names", "signature", "timeout_s")  # fmt: skip

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
        leading = encoder.layout.leading(None, None if lanes is None else len(lanes))
        cells = [(name, encoder.layout.cells[name]) for name in names]
        self._encoder = encoder
        self._lanes = lanes
        self._names = names
        self._leading = leading
        self._rows = RowBlock(
            [(name, dtype.str, leading + shape) for name, (dtype, shape) in cells], capacity, encoder.exact, leading
        )
        self._put = self._rows.put
        self.capacity = capacity
        self.is_due = True
        self.part = Part(owner, None, math.prod(leading))
        self.plain_names: tuple[str, ...] | None = None
        self.signature = signature
        self.timeout_s = timeout_s

    @property
    def num_rows(self) -> int:
        """Number of rows so far."""
        return self._rows.num_rows

    def put(self, columns: dict[str, Any], priority: Any) -> StreamedKeys:
        """Adds one row. Raises the errors of append, and IndexError if it is full; the block is then unchanged."""
        if priority is not None:
            columns = {**columns, "priority": priority}
            check_priorities(self._encoder.exact("priority", priority, self._leading))
        row = self._put(columns)
        if row + 1 == self.capacity:
            self.is_due = True
        return StreamedKeys(self.part, row * self.part.width, self._leading)

    def seal(self) -> Part:
        """Returns the part with the operation that sends the gathered rows. Takes no further row."""
        self.plain_names, self.signature = None, ()
        lanes, count = self._lanes, self.num_rows
        header = {"op": "append", "rows": count, "names": list(self._names)}
        header["lanes"] = None if lanes is None else len(lanes)
        arrays = self._rows.arrays()
        part = self.part
        part.operation = Operation(header, arrays if lanes is None else [lanes, *arrays], (count, part.width))
        part.num_calls = count
        part.num_steps = count * part.width
        return part


@final
class StreamedKeys(NDArrayOperatorsMixin):
    """The keys of a streamed call, which are read when they are needed.

    For numpy the object is an int64 array. If the call appended a single step to a writer of one lane, the object is
    also an int: in format(), as a bool and as a key of a dict. A read waits for the acknowledgement: the server has
    then stored the steps. Each use of the value is a read, but repr() and str() are not. A pickled copy and a deep copy
    have the value: an int64 array, or a numpy int64.

    Args:
        part: The part of the steps.
        first: Position of the first key in the part.
        shape: Shape of the keys.

    Raises:
        DeadlineExceeded: A read waited longer than the writer's deadline.
        Unacknowledged: The steps were not stored.
    """

    __slots__ = ("_first", "_part", "shape")

    def __init__(self, part: Part, first: int, shape: tuple[int, ...]) -> None:
        self._part = part
        self._first = first
        self.shape = shape

    def read(self, timeout_s: float | None = None) -> Keys:
        """Returns the keys.

        Args:
            timeout_s: Seconds to wait for the acknowledgement, at least 1; None: the writer's deadline.

        Returns:
            The keys as int64 of shape `shape`.

        Raises:
            DeadlineExceeded: The server did not acknowledge the steps by the deadline.
            Unacknowledged: The steps were not stored.
            InvalidConfig: timeout_s is negative or NaN.

        Blocks: until the server has acknowledged the steps.
        """
        part, count = self._part, math.prod(self.shape)
        seconds = None if timeout_s is None else timeout(timeout_s)
        if part.keys is None and part.error is None:
            part.owner.wait_for_keys(part, seconds)
        keys = part.keys
        if keys is None or len(keys) < self._first + count:
            assert part.error is not None
            raise part.error
        return keys[self._first : self._first + count].reshape(self.shape)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        keys = self.read()
        return keys.copy() if dtype is None or np.dtype(dtype) == keys.dtype else keys.astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **more: Any) -> Any:
        read = [one.read() if isinstance(one, StreamedKeys) else one for one in inputs]
        return getattr(ufunc, method)(*read, **more)

    @property
    def dtype(self) -> np.dtype[np.int64]:
        """int64."""
        return np.dtype(np.int64)

    @property
    def ndim(self) -> int:
        """Number of axes of `shape`."""
        return len(self.shape)

    def ravel(self) -> Keys:
        """Returns the keys as an array of one axis; reads the keys."""
        return self.read().ravel()

    def __int__(self) -> int:
        return int(self.read())

    __index__ = __int__

    def __bool__(self) -> bool:
        return bool(int(self)) if not self.shape else len(self) > 0

    def __format__(self, spec: str) -> str:
        if self.shape:
            return super().__format__(spec)
        return format(int(self), spec)

    def __hash__(self) -> int:
        if self.shape:
            raise TypeError("several keys are no key of a dict: take .tolist()")
        return hash(int(self))

    def __reduce__(self) -> Any:
        value = self.read()[()]  # a number, if the shape is ()
        return value.__reduce__()

    def __copy__(self) -> StreamedKeys:
        return self

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("one key has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())

    def __getitem__(self, which: Any) -> Any:
        return self.read()[which]

    def tolist(self) -> Any:
        """Returns the keys as Python ints, in lists as nested as `shape`; reads the keys."""
        return self.read().tolist()

    def __repr__(self) -> str:
        known = self._part.keys is not None or self._part.error is not None
        return f"StreamedKeys(shape {self.shape}, {'known' if known else 'not confirmed yet'})"
