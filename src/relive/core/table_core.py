"""The calls that a handle makes to its core: a region of this machine's memory, or messages to another machine.

Two cores answer them: relive._core.CoreTable and the service's RemoteCore. The service has one more core for writers,
which streams.

A verb that takes numbers and arrays of items and returns a plain value is one line of SimpleCalls. The client makes its
messages from that line, and the server reads them by it. Such a verb touches five places: the core (cpp/relive/table),
its binding (cpp/bindings/table_binding.cpp), SimpleCalls here, the handle (a file of relive/table: reading, changing or
looking) and the interface of all tables (relive/core/protocol.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, TypeVar, final

import numpy as np
import numpy.typing as npt

from relive.core.request import DrawRequest
from relive.core.roles import needs

__all__ = [
    "DrawnItems",
    "InBody",
    "IndexOf",
    "Normalise",
    "Number",
    "OpensWriters",
    "SelectedColumns",
    "SimpleCalls",
    "TableCore",
    "Whole",
    "WriterCore",
    "looks",
]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]
DrawnItems: TypeAlias = tuple[Arrays, Keys, Masses, int]  # arrays of a selection, keys, probabilities, live items
Normalise = Callable[[str, object, tuple[int, ...]], npt.NDArray[Any]]
Function = TypeVar("Function", bound=Callable[..., Any])

# ---- how an argument of a simple call travels ----------------------------------------------------------------------


class Whole(NamedTuple):
    """An integer field of the header, in [least, most]."""

    least: int
    most: int


@final
class Number:
    """A number field of the header that is not NaN."""


@final
class IndexOf:
    """The number of an index of the table, in the header."""


class InBody(NamedTuple):
    """An array of one axis in the body, of one of these dtypes. Any other dtype is converted to the last of them."""

    dtypes: tuple[str, ...]


IndexNumber = Annotated[int, IndexOf()]
ItemKeys = Annotated[Keys, InBody(("<i8",))]
Priorities = Annotated[npt.NDArray[Any], InBody(("<f4", "<f8"))]
LimiterNumbers = Annotated[npt.NDArray[np.float64], InBody(("<f8",))]
LateCells = Annotated[npt.NDArray[np.uint8], InBody(("|u1",))]
Exponent = Annotated[float, Number()]
PolicyVersion = Annotated[int, Whole(0, 2**32 - 1)]


def looks(function: Function) -> Function:
    """Marks a simple call that changes nothing: a client may send it again if the answer was lost."""
    function.__dict__["looks"] = True
    return function


# ---- the calls -----------------------------------------------------------------------------------------------------


class SimpleCalls(Protocol):
    """Calls that take numbers and arrays of items and return a value that JSON can hold. Each raises TableClosed.

    A server asks for the role of `@needs` before it makes the call for a client.
    """

    @looks
    @needs("read")
    def num_steps(self) -> int:
        """Live steps."""
        ...

    @looks
    @needs("read")
    def num_items(self, index: IndexNumber) -> int:
        """Live items of an index."""
        ...

    @property
    @looks
    @needs("read")
    def policy_version(self) -> int:
        """The version that set_policy_version set last."""
        ...

    @looks
    @needs("read")
    def limiter(self, index: IndexNumber) -> list[float]:
        """The present limiter of an index as numbers, its kind first."""
        ...

    @looks
    @needs("read")
    def priority_exponent(self, index: IndexNumber) -> float:
        """The present exponent of a prioritized index."""
        ...

    @looks
    @needs("read")
    def stats(self) -> dict[str, Any]:
        """Counters, in the core's own units."""
        ...

    @looks
    @needs("admin")
    def check(self) -> None:
        """Raises CheckFailed if an invariant is broken."""
        ...

    @needs("update")
    def update_priorities(self, index: IndexNumber, keys: ItemKeys, priorities: Priorities) -> int:
        """Sets priorities; returns how many of the items were still there."""
        ...

    @needs("append")
    def complete(self, keys: ItemKeys, cells: LateCells) -> int:
        """Fills the late columns of rows; the cells lie row after row. Returns how many rows were still there."""
        ...

    @needs("admin")
    def delete(self, keys: ItemKeys) -> int:
        """Removes steps; returns how many were still there."""
        ...

    @needs("admin")
    def clear(self) -> None:
        """Removes all steps."""
        ...

    @needs("update")
    def set_policy_version(self, version: PolicyVersion) -> None:
        """Sets the version that rows are stamped with."""
        ...

    @needs("admin")
    def set_limiter(self, index: IndexNumber, numbers: LimiterNumbers) -> None:
        """Replaces the limiter of an index; the numbers are its kind, then its values."""
        ...

    @needs("admin")
    def set_priority_exponent(self, index: IndexNumber, exponent: Exponent) -> None:
        """Changes the exponent of a prioritized index."""
        ...


class SelectedColumns(Protocol):
    """Columns of an index, resolved once by the core. Other code reads nothing of it but its outputs."""

    @property
    def outputs(self) -> list[tuple[str, str, tuple[int, ...], int, str]]:
        """A tuple for each array: (name, numpy dtype, shape of one value, item_axis, per).

        item_axis is the position of the batch axis in the array. per says what has one value: each 'item'; each 'row'
        of all items; or 'offset', each item and one more.
        """
        ...


class WriterCore(Protocol):
    """The lanes of a table. Columns have flat names; lanes are ids, or None for all in order. One thread at a time."""

    def append(
        self, columns: dict[str, Any], lanes: npt.NDArray[np.int32] | None, priority: Any, timeout_s: float
    ) -> Any:
        """Writes one step of each lane; returns keys."""
        ...

    def append_alike(self, columns: dict[str, Any], timeout_s: float) -> Any:
        """append for all lanes, if names and order are those of the last checked append; else returns None."""
        ...

    def extend(
        self, columns: dict[str, Any], lanes: npt.NDArray[np.int32] | None, priority: Any, timeout_s: float
    ) -> Any:
        """Writes a block of steps; returns keys."""
        ...

    def end_episode(
        self,
        columns: dict[str, Any],
        terminated: bool,
        lanes: npt.NDArray[np.int32] | None,
        timeout_s: float,
    ) -> None:
        """Ends an episode. One that is not terminated is truncated."""
        ...

    def abandon(self, lanes: npt.NDArray[np.int32] | None, timeout_s: float) -> None:
        """Drops the open episodes of the lanes."""
        ...

    def set_policy_version(self, version: int | None) -> None:
        """Sets the version of the rows from now on; None: the table's version."""
        ...

    def close(self) -> None:
        """Cuts the lanes."""
        ...

    @property
    def closed(self) -> bool:
        """Whether the writer or its table was closed."""
        ...

    @property
    def num_lanes(self) -> int:
        """Lanes, whether or not arrays have an axis for them."""
        ...


class OpensWriters(Protocol):
    """Gives a Writer its core."""

    def open_writer(self, num_lanes: int, single: bool, normalise: Normalise) -> WriterCore:
        """Opens lanes.

        Args:
            num_lanes: how many.
            single: one lane, whose arrays have no lane axis.
            normalise: converts values that are not exactly of a column's dtype and shape.
        """
        ...


class TableCore(SimpleCalls, OpensWriters, Protocol):
    """A table as its handle sees it, used by any number of threads.

    timeout_s is a number here: 0 tries once, inf waits for ever.
    """

    @property
    def metadata(self) -> bytes:
        """The bytes that TableConfig.to_metadata wrote."""
        ...

    @property
    def path(self) -> str | None:
        """The file or the address by which others find the table; None: they cannot."""
        ...

    @property
    def stream(self) -> int:
        """The number of the random stream that it draws with."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether it only draws and gathers, uncounted."""
        ...

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        ...

    def select(self, index: int, names: list[str]) -> SelectedColumns:
        """Resolves columns. Raises UnknownColumn."""
        ...

    def where(self, index: int, text: str, operations: list[Any]) -> Any:
        """A condition (relive.config.where) on the items of an index, in the form that requests to this core have."""
        ...

    def draw(self, request: DrawRequest, timeout_s: float) -> DrawnItems:
        """Draws items and counts them as sampled; gathers their columns if the request has a selection."""
        ...

    def claim(self, index: int, keys: Keys, timeout_s: float) -> tuple[npt.NDArray[np.bool_], int]:
        """Counts these items as drawn.

        Returns:
            Whether each item was there and not used up, bool[B]; live items.
        """
        ...

    def list_items(
        self, index: int, first: int, count: int, where: Any = None
    ) -> tuple[Keys, npt.NDArray[np.uint64], Masses, int]:
        """Lists the items of `count` leaves of an index, from leaf `first` on.

        Returns:
            Keys; ages; ranks (the smaller the better); the next leaf, or 0 at the end.
        """
        ...

    def gather(
        self, selection: Any, keys: Keys, out: Sequence[npt.NDArray[Any]] | None
    ) -> tuple[Arrays, npt.NDArray[np.bool_]]:
        """Arrays of a selection of this core, written into `out` if given; and which keys were there."""
        ...

    def create_items(
        self,
        index: int,
        windows: Keys,
        rows: Sequence[Keys | None],
        priorities: npt.NDArray[np.float32] | None,
        columns: Sequence[npt.NDArray[Any]],
        timeout_s: float,
    ) -> Keys:
        """Makes explicit items from the parts that relive.writing.new_items made; returns keys."""
        ...

    def close(self) -> None:
        """Ends its use. Closing twice is harmless."""
        ...
