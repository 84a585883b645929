"""What a handle asks of its core, wherever that core is: this machine's memory, or messages to another machine.

Three cores answer it: relive._core.CoreTable, the service's RemoteCore, and what a writer asks also its streamed one.

A verb that only takes numbers and arrays of items and gives back a plain value is a line of SimpleCalls: the client
makes its messages, and the server reads them, from that line. Such a verb touches five places: the core
(cpp/relive/table), its binding (cpp/bindings/table_binding.cpp), SimpleCalls here, the handle
(relive/table/handle.py) and the interface that every table has (relive/core/protocol.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar, final

import numpy as np
import numpy.typing as npt

from relive.core.request import DrawRequest

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


@final
@dataclass(frozen=True)
class Whole:
    """An integer of the header, from least to most."""

    least: int
    most: int


@final
@dataclass(frozen=True)
class Number:
    """A number of the header that is not NaN."""


@final
@dataclass(frozen=True)
class IndexOf:
    """The number of an index of the table, in the header."""


@final
@dataclass(frozen=True)
class InBody:
    """An array of one axis in the body, of one of these dtypes; any other comes as the last of them."""

    dtypes: tuple[str, ...]


IndexNumber = Annotated[int, IndexOf()]
ItemKeys = Annotated[Keys, InBody(("<i8",))]
Priorities = Annotated[npt.NDArray[Any], InBody(("<f4", "<f8"))]
LimiterNumbers = Annotated[npt.NDArray[np.float64], InBody(("<f8",))]
LateCells = Annotated[npt.NDArray[np.uint8], InBody(("|u1",))]
Exponent = Annotated[float, Number()]
PolicyVersion = Annotated[int, Whole(0, 2**32 - 1)]


def looks(function: Function) -> Function:
    """Marks a simple call that changes nothing: a client may send it again where the answer was lost."""
    function.__dict__["looks"] = True
    return function


# ---- the calls -----------------------------------------------------------------------------------------------------


class SimpleCalls(Protocol):
    """Calls of numbers and arrays of items that give back a plain value of JSON. Each of them raises TableClosed."""

    @looks
    def num_steps(self) -> int:
        """Live steps."""
        ...

    @looks
    def num_items(self, index: IndexNumber) -> int:
        """Live items of an index."""
        ...

    @property
    @looks
    def policy_version(self) -> int:
        """What set_policy_version set last."""
        ...

    @looks
    def limiter(self, index: IndexNumber) -> list[float]:
        """The present limiter of an index as numbers, its kind first."""
        ...

    @looks
    def priority_exponent(self, index: IndexNumber) -> float:
        """The present exponent of a prioritized index."""
        ...

    @looks
    def stats(self) -> dict[str, Any]:
        """Counters, in the core's own units."""
        ...

    @looks
    def check(self) -> None:
        """Raises CheckFailed where an invariant is broken."""
        ...

    def update_priorities(self, index: IndexNumber, keys: ItemKeys, priorities: Priorities) -> int:
        """Sets priorities; how many of the items were still there."""
        ...

    def complete(self, keys: ItemKeys, cells: LateCells) -> int:
        """Gives rows their late columns, packed one behind the other; how many of the rows were still there."""
        ...

    def delete(self, keys: ItemKeys) -> int:
        """Removes steps; how many of them were still there."""
        ...

    def clear(self) -> None:
        """Removes all steps."""
        ...

    def set_policy_version(self, version: PolicyVersion) -> None:
        """The version that rows are stamped with."""
        ...

    def set_limiter(self, index: IndexNumber, numbers: LimiterNumbers) -> None:
        """The limiter of an index from now on, as numbers, its kind first."""
        ...

    def set_priority_exponent(self, index: IndexNumber, exponent: Exponent) -> None:
        """The exponent of a prioritized index from now on."""
        ...


class SelectedColumns(Protocol):
    """Columns of an index, resolved once by the core; opaque but for what comes out."""

    @property
    def outputs(self) -> list[tuple[str, str, tuple[int, ...], int, str]]:
        """(name, numpy dtype, shape of one value, before which of its axes the axis of values stands, of what there is
        one value) of each array: of each 'item', of each 'row' of all items, 'offset': of each item and one more.
        """
        ...


class WriterCore(Protocol):
    """Lanes of a table. Columns are flat names; lanes ids, or None for all in order. Used by one thread at a time."""

    def append(
        self, columns: dict[str, Any], lanes: npt.NDArray[np.int32] | None, priority: Any, timeout_s: float
    ) -> Any:
        """One step of each lane; keys."""
        ...

    def append_alike(self, columns: dict[str, Any], timeout_s: float) -> Any:
        """append for all lanes, where names and order are those of the last one, checked then; else None."""
        ...

    def extend(
        self, columns: dict[str, Any], lanes: npt.NDArray[np.int32] | None, priority: Any, timeout_s: float
    ) -> Any:
        """A block of steps; keys."""
        ...

    def end_episode(
        self,
        columns: dict[str, Any],
        terminated: bool,
        truncated: bool,
        lanes: npt.NDArray[np.int32] | None,
        timeout_s: float,
    ) -> None:
        """The end of an episode."""
        ...

    def abandon(self, lanes: npt.NDArray[np.int32] | None, timeout_s: float) -> None:
        """The episodes that the lanes have open are dropped."""
        ...

    def set_policy_version(self, version: int | None) -> None:
        """The version of the rows from now on; None: the table's."""
        ...

    def close(self) -> None:
        """Cuts the lanes."""
        ...

    @property
    def closed(self) -> bool:
        """Whether close() was called, of it or of the table."""
        ...

    @property
    def num_lanes(self) -> int:
        """Lanes, whether or not arrays have an axis for them."""
        ...


class OpensWriters(Protocol):
    """Who gives a Writer its core."""

    def open_writer(self, num_lanes: int, single: bool, normalise: Normalise) -> WriterCore:
        """Opens lanes. single: one lane, whose arrays have no axis for it. normalise: for what is not exact."""
        ...


class TableCore(SimpleCalls, OpensWriters, Protocol):
    """A table as its handle sees it. timeout_s is a number here: 0 tries once, inf waits. Any number of threads."""

    @property
    def metadata(self) -> bytes:
        """What TableConfig.to_metadata wrote."""
        ...

    @property
    def path(self) -> str | None:
        """Where others find the table: a file, an address; None where they cannot."""
        ...

    @property
    def stream(self) -> int:
        """Which random numbers it draws with."""
        ...

    @property
    def read_only(self) -> bool:
        """Whether it draws and gathers only, uncounted."""
        ...

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        ...

    def select(self, index: int, names: list[str]) -> SelectedColumns:
        """Resolves columns. Raises UnknownColumn."""
        ...

    def where(self, index: int, text: str, operations: list[Any]) -> Any:
        """A condition (relive.config.where) on the items of an index, as requests to this core have it."""
        ...

    def draw(self, request: DrawRequest, timeout_s: float) -> DrawnItems:
        """Draws items, gathers their columns where the request has a selection, and counts them as sampled."""
        ...

    def claim(self, index: int, keys: Keys, timeout_s: float) -> tuple[npt.NDArray[np.bool_], int]:
        """Counts these items as drawn: which of them were there and not used up, live items."""
        ...

    def list_items(
        self, index: int, first: int, count: int, where: Any = None
    ) -> tuple[Keys, npt.NDArray[np.uint64], Masses, int]:
        """Of so many leaves of an index: keys, ages, ranks (the smaller the better) and the next leaf, 0: no more."""
        ...

    def gather(
        self, selection: Any, keys: Keys, out: Sequence[npt.NDArray[Any]] | None
    ) -> tuple[Arrays, npt.NDArray[np.bool_]]:
        """Arrays of a selection of this core, into `out` where that is given, and which keys were there."""
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
        """Explicit items, as relive.writing.new_items has their parts; keys."""
        ...

    def close(self) -> None:
        """Ends its use. Closing twice is harmless."""
        ...
