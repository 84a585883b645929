"""The parts of a one-sided reader: its transport, the memory that bytes come to, and the needs of a batch.

rows.py defines which bytes are read in which order.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

import numpy as np
import numpy.typing as npt

from relive.config.table_config import TableConfig
from relive.fleet.draws.mixing import Outputs
from relive.fleet.onesided.mirror import Mirror
from relive.fleet.onesided.peer_layout import Area, Indices, PeerLayout, columns_named

__all__ = ["Columns", "Direct", "Directory", "Lent", "Memory", "Move", "Place", "Plan", "Present", "zero"]

Present = npt.NDArray[np.bool_]

_WHOLE_BYTES = 8192  # one more cell costs as much as this many more bytes of cells in between
_OF_MARKS = frozenset(("policy_version", "staleness", "lane"))
_LARGE_ALIGNMENT = 64
_HUGE_PAGE = 2 << 20
_MOST_IDLE = 4  # idle arrays of a column that are kept for later use


# ---- the transport -------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Cells in this process that bytes come to: the cells of an area, counted from an address."""

    area: Area
    base: int


class Move(NamedTuple):
    """Cells of a peer's area, and the cells of a place here that they come to; both int64 [n]."""

    source: Any  # from Memory.source
    target: Any  # from Memory.target
    from_cells: Indices
    to_cells: Indices


class Memory(Protocol):
    """A peer's region, and the memory of this process that its bytes come to. One thread at a time."""

    @property
    def progress(self) -> str:
        """Which component moves the bytes, in words."""
        ...

    def source(self, area: Area) -> Any:
        """Prepares cells of the peer's region for Move."""
        ...

    def allow(self, address: int, num_bytes: int, keeper: object) -> Any:
        """Allows bytes to come to memory here; `keeper` keeps the memory for that time.

        Returns the argument of disallow().
        """
        ...

    def disallow(self, allowed: Any, target: Any) -> None:
        """Ends an allowance, with the cells that were made of it. No read may be under way."""
        ...

    def target(self, place: Place) -> Any:
        """Prepares cells of allowed memory for Move."""
        ...

    def read(self, moves: Sequence[Move], timeout_s: float) -> None:
        """Makes all moves, in any order. Returns when the last byte is here.

        Raises DeadlineExceeded. After it bytes may still come, and allowed memory belongs to the transport until they
        cannot.
        Raises ServiceUnavailable if the peer is gone.
        """
        ...


# ---- memory that bytes come to -------------------------------------------------------------------------------------


@final
class Directory:
    """Cells of one area by page, with the peer's layout: cell i of the peer comes to cell i here."""

    def __init__(self, memory: Memory, area: Area, dtype: npt.DTypeLike, source: Any = None) -> None:
        size = np.dtype(dtype).itemsize
        flat = np.zeros(area.num_cells * area.cell_bytes // size, dtype)
        self.flat = flat
        self.values = flat if area.cell_bytes == size else flat.reshape(area.num_cells, -1)
        address = flat.__array_interface__["data"][0]
        memory.allow(address, flat.nbytes, flat)
        here = Area(area.name, np.zeros(1, np.int64), area.num_cells, area.cell_bytes, area.cell_bytes)
        self._cell_bytes = area.cell_bytes
        self.source = memory.source(area) if source is None else source
        self._target = memory.target(Place(here, address))
        self._num_cells = area.num_cells
        self._all: Indices | None = None  # numbers of all cells, made when a batch first needs them all

    def move(self, cells: Indices) -> Move:
        """A move of these cells, at least one. The move includes the cells in between if that is cheaper."""
        if self._num_cells * self._cell_bytes <= len(cells) * _WHOLE_BYTES:
            self._all = np.arange(self._num_cells) if self._all is None else self._all
            return Move(self.source, self._target, self._all, self._all)
        first, last = int(cells.min()), int(cells.max())
        if (last + 1 - first) * self._cell_bytes <= len(cells) * _WHOLE_BYTES:
            cells = np.arange(first, last + 1)
        return Move(self.source, self._target, cells, cells)


class _Lease:
    """Memory that arrays are views of. When the last array is gone, the memory is used again."""

    def __init__(self, block: _Block, num_bytes: int, returned: deque[_Block]) -> None:
        weakref.finalize(self, returned.append, block)  # runs in the thread that releases the last array
        self.__array_interface__ = {
            "version": 3, "shape": (num_bytes,), "typestr": "|u1", "data": (block.address, False)
        }  # fmt: skip


class Lent(NamedTuple):
    """Cells for large rows, and their target for a move."""

    rows: npt.NDArray[np.uint8]
    target: Any


class _Block(NamedTuple):
    """Memory for large rows. The memory lives as long as its reader."""

    values: npt.NDArray[np.uint8]
    address: int
    target: Any
    allowed: Any


def _memory(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory for large rows, on huge pages if the memory is large.

    A copy into the memory looks up each page once, and there are 512 times as many small pages.
    """
    is_large = num_bytes >= _HUGE_PAGE // 2 and hasattr(mmap, "MADV_HUGEPAGE")
    alignment = _HUGE_PAGE if is_large else _LARGE_ALIGNMENT
    if is_large:
        mapped = mmap.mmap(-1, num_bytes + alignment)
        with contextlib.suppress(OSError):  # huge pages are optional
            mapped.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(mapped, np.uint8)
    else:
        whole = np.empty(num_bytes + alignment, np.uint8)
    skipped = -whole.__array_interface__["data"][0] % alignment
    return whole[skipped : skipped + num_bytes]


@final
class Columns:
    """Arrays for the large rows of one column.

    The arrays are handed out with a batch, and come back when the batch is gone.
    """

    def __init__(self, memory: Memory, name: str, num_bytes: int) -> None:
        self._memory = memory
        self._name = name
        self._num_bytes = num_bytes
        self._idle: list[_Block] = []
        self._returned: deque[_Block] = deque()  # filled by the threads that release arrays

    def lend(self, num_cells: int) -> Lent:
        """uint8 [num_cells * bytes of a row], uninitialised, and its target."""
        while self._returned:
            block = self._returned.popleft()
            if len(self._idle) < _MOST_IDLE:
                self._idle.append(block)
            else:
                self._memory.disallow(block.allowed, block.target)
        num_bytes = num_cells * self._num_bytes
        fits = next((at for at, one in enumerate(self._idle) if one.values.nbytes >= num_bytes), None)
        block = self._made(num_cells) if fits is None else self._idle.pop(fits)
        return Lent(np.asarray(_Lease(block, num_bytes, self._returned)), block.target)

    def _made(self, num_cells: int) -> _Block:
        if len(self._idle) == _MOST_IDLE:  # all of them too small
            smallest = self._idle.pop(0)
            self._memory.disallow(smallest.allowed, smallest.target)
        values = _memory(num_cells * self._num_bytes)
        address = values.__array_interface__["data"][0]
        allowed = self._memory.allow(address, values.nbytes, values)
        area = Area(self._name, np.zeros(1, np.int64), num_cells, self._num_bytes, self._num_bytes)
        return _Block(values, address, self._memory.target(Place(area, address)), allowed)


# ---- the plan of a batch -------------------------------------------------------------------------------------------


class Direct(NamedTuple):
    """A large column of transitions. Its rows come directly to their places in the batch."""

    output: int  # the column's number among the outputs
    column: Any
    is_next: bool
    stack: int
    pads_zeros: bool


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """The rows that columns of an index need, and whether the mirror's core or this process lays them out."""

    index: int
    outputs: Outputs
    selection: Any  # of the mirror's core, for by_core
    by_core: tuple[int, ...]  # numbers of the outputs that the mirror's core makes
    direct: tuple[Direct, ...]
    sizes: Any  # of the mirror's core: episode_step, num_steps. None: one step, no stack, no dependence on them
    mirrored: tuple[Any, ...]  # large columns that go through the mirror
    before: int  # rows before the item's own
    after: int  # rows after the item's own
    pages_before: int
    pages_after: int
    most_items: int  # items read at once, so that their pages fit in the mirror
    reads_next: bool  # whether there are large columns of next states
    is_plain: bool  # only large columns of single steps: the mirror is not needed
    needs_marks: bool
    needs_version: bool

    @classmethod
    def make(cls, config: TableConfig, layout: PeerLayout, mirror: Mirror, index: int, names: Sequence[str]) -> Plan:
        """Makes the plan. Raises UnknownColumn."""
        whole = mirror.select(index, names)
        outputs: Outputs = whole.outputs
        items = list(config.index.values())[index].items
        is_step = not items.has_time
        shown = columns_named(layout, [output[0] for output in outputs])
        direct = _direct(config, index, outputs, shown) if is_step else ()
        by_core = tuple(number for number in range(len(outputs)) if all(number != one.output for one in direct))
        mirrored = () if is_step else {str(one[0]["name"]): one[0] for one in shown.values()}
        shape, page_len = layout.shapes[index], layout.page_len
        # The shape bounds the rows that a window may read. A window with a time axis also reads the row after its last.
        after = shape.spanned - 1 + shape.bootstrap + (not is_step)
        pages_before, pages_after = -(-shape.before // page_len), (page_len - 1 + after) // page_len
        # The core needs at least one column, even if all columns asked for are large.
        core_names = [outputs[number][0] for number in by_core] or ["episode_step" if is_step else "num_steps"]
        return cls(
            index=index,
            outputs=outputs,
            selection=whole if not direct else mirror.select(index, core_names),
            by_core=by_core,
            direct=direct,
            sizes=mirror.select(index, ["episode_step", "num_steps"]) if _depends(items, direct) else None,
            mirrored=tuple(mirrored.values()) if mirrored else (),
            before=shape.before,
            after=after,
            pages_before=pages_before,
            pages_after=pages_after,
            most_items=max(1, mirror.num_pages // (pages_before + 1 + pages_after)),
            reads_next=any(one.is_next for one in direct),
            is_plain=bool(direct) and not by_core and not _depends(items, direct),
            needs_marks=items.crosses or any(output[0] in _OF_MARKS for output in outputs),
            needs_version=any(output[0] == "staleness" for output in outputs),
        )


def _depends(items: Any, direct: Sequence[Direct]) -> bool:
    """Whether a window's large rows depend on where its episode begins or ends."""
    return bool(direct) and (items.n_step > 1 or any(one.stack > 1 for one in direct))


def _direct(
    config: TableConfig, index: int, outputs: Outputs, shown: dict[str, tuple[Any, bool]]
) -> tuple[Direct, ...]:
    items: Any = list(config.index.values())[index].items
    stacks = config.spec.expand_stack(items.stack)
    found = []
    for number, (name, *_) in enumerate(outputs):
        if name in shown:
            column, is_next = shown[name]
            stack = stacks.get(str(column["name"]), 1) if column["kind"] == "state" else 1
            found.append(Direct(number, column, is_next, stack, items.stack_pad == "zeros"))
    return tuple(found)


def zero(outputs: Outputs, arrays: list[npt.NDArray[Any]], which: Present) -> None:
    """Sets items that are not present to 0."""
    if which.any():
        for (_, _, _, axis, _), array in zip(outputs, arrays, strict=True):
            if axis == 0:
                array[which] = 0
            else:
                array[:, which] = 0
