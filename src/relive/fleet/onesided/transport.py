"""What a one-sided reader is made of: the transport it asks for bytes, memory they come to, and what a batch needs.

Which bytes are read in which order is said in one_sided.py.
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

_WHOLE_BYTES = 8192  # a cell more that is read costs as much as so many bytes more of cells between
_OF_MARKS = frozenset(("policy_version", "staleness", "lane"))
_LARGE_ALIGNMENT = 64
_HUGE_PAGE = 2 << 20
_MOST_IDLE = 4  # arrays of a column that are kept to be used again


# ---- the transport -------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Cells in this process that bytes come to: those of an area, counted from an address."""

    area: Area
    base: int


class Move(NamedTuple):
    """Cells of a peer's area, and the cells of a place here that they come to; both int64[n], as many."""

    source: Any  # what Memory.source made
    target: Any  # what Memory.target made
    from_cells: Indices
    to_cells: Indices


class Memory(Protocol):
    """A peer's region, and this process's memory that its bytes come to. Used by one thread at a time."""

    @property
    def progress(self) -> str:
        """Who moves the bytes, in words."""
        ...

    def source(self, area: Area) -> Any:
        """Cells of the peer's region, for Move."""
        ...

    def allow(self, address: int, num_bytes: int, keeper: object) -> Any:
        """Memory here that bytes may come to; keeper keeps it as long as they may. For disallow()."""
        ...

    def disallow(self, allowed: Any, target: Any) -> None:
        """No longer, with the cells that were made of it. No read is under way."""
        ...

    def target(self, place: Place) -> Any:
        """Cells of memory that was allowed, for Move."""
        ...

    def read(self, moves: Sequence[Move], timeout_s: float) -> None:
        """All of them, in no order; returns when the last byte is here.

        Raises DeadlineExceeded, after which bytes may still come: what was allowed is the transport's until they do
        not. Raises ServiceUnavailable where the peer is gone.
        """
        ...


# ---- memory that bytes come to -------------------------------------------------------------------------------------


@final
class Directory:
    """Cells of one area by page, as they lie there: cell i of the peer comes to cell i here."""

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
        self._all: Indices | None = None  # numbers of all cells, once a batch wanted so many that all come

    def move(self, cells: Indices) -> Move:
        """Brings these cells, at least one; with those between them where that is cheaper than apart."""
        if self._num_cells * self._cell_bytes <= len(cells) * _WHOLE_BYTES:
            self._all = np.arange(self._num_cells) if self._all is None else self._all
            return Move(self.source, self._target, self._all, self._all)
        first, last = int(cells.min()), int(cells.max())
        if (last + 1 - first) * self._cell_bytes <= len(cells) * _WHOLE_BYTES:
            cells = np.arange(first, last + 1)
        return Move(self.source, self._target, cells, cells)


class _Lease:
    """Memory that arrays are views of; when the last of them is gone it is used again."""

    def __init__(self, block: _Block, num_bytes: int, returned: deque[_Block]) -> None:
        weakref.finalize(self, returned.append, block)  # in whatever thread lets the last array go
        self.__array_interface__ = {
            "version": 3, "shape": (num_bytes,), "typestr": "|u1", "data": (block.address, False)
        }  # fmt: skip


class Lent(NamedTuple):
    """Cells for large rows, and where to."""

    rows: npt.NDArray[np.uint8]
    target: Any


class _Block(NamedTuple):
    """Memory for large rows, as long as its reader is."""

    values: npt.NDArray[np.uint8]
    address: int
    target: Any
    allowed: Any


def _memory(num_bytes: int) -> npt.NDArray[np.uint8]:
    """On huge pages where it is large: who copies into it finds each page once, and there are 512 times as many."""
    is_large = num_bytes >= _HUGE_PAGE // 2 and hasattr(mmap, "MADV_HUGEPAGE")
    alignment = _HUGE_PAGE if is_large else _LARGE_ALIGNMENT
    if is_large:
        mapped = mmap.mmap(-1, num_bytes + alignment)
        with contextlib.suppress(OSError):  # a wish
            mapped.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(mapped, np.uint8)
    else:
        whole = np.empty(num_bytes + alignment, np.uint8)
    skipped = -whole.__array_interface__["data"][0] % alignment
    return whole[skipped : skipped + num_bytes]


@final
class Columns:
    """Arrays that large rows of one column come to. They are handed out with a batch, and come back when it is gone."""

    def __init__(self, memory: Memory, name: str, num_bytes: int) -> None:
        self._memory = memory
        self._name = name
        self._num_bytes = num_bytes
        self._idle: list[_Block] = []
        self._returned: deque[_Block] = deque()  # by whatever thread let an array go

    def lend(self, num_cells: int) -> Lent:
        """uint8[num_cells x bytes of a row], uninitialised."""
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


# ---- what a batch needs --------------------------------------------------------------------------------------------


class Direct(NamedTuple):
    """A large column of transitions, whose rows come straight to where the batch has them."""

    output: int  # its number among the outputs
    column: Any
    is_next: bool
    stack: int
    pads_zeros: bool


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """Columns of an index: which rows they ask for, and who lays them out."""

    index: int
    outputs: Outputs
    selection: Any  # of the mirror's core: by_core
    by_core: tuple[int, ...]  # numbers of the outputs that the mirror's core makes
    direct: tuple[Direct, ...]
    sizes: Any  # of the mirror's core: episode_step, num_steps; None: of one step, no stack, nothing depends on them
    mirrored: tuple[Any, ...]  # large columns that go through the mirror
    before: int  # rows before the item's own
    after: int  # and behind it
    pages_before: int
    pages_after: int
    most_items: int  # at once: their pages fit in the mirror
    reads_next: bool  # large columns of next states
    is_plain: bool  # large columns of single steps alone: nothing asks the mirror
    needs_marks: bool
    needs_version: bool

    @classmethod
    def make(cls, config: TableConfig, layout: PeerLayout, mirror: Mirror, index: int, names: Sequence[str]) -> Plan:
        """Raises UnknownColumn."""
        whole = mirror.select(index, names)
        outputs: Outputs = whole.outputs
        items = list(config.index.values())[index].items
        is_step = not items.has_time
        shown = columns_named(layout, [output[0] for output in outputs])
        direct = _direct(config, index, outputs, shown) if is_step else ()
        by_core = tuple(number for number in range(len(outputs)) if all(number != one.output for one in direct))
        mirrored = () if is_step else {str(one[0]["name"]): one[0] for one in shown.values()}
        shape, page_len = layout.shapes[index], layout.page_len
        # The shape bounds what a window may look at; one of a time axis also looks at what stands behind its last row.
        after = shape.spanned - 1 + shape.bootstrap + (not is_step)
        pages_before, pages_after = -(-shape.before // page_len), (page_len - 1 + after) // page_len
        # The core makes an array of something, also where all that was asked for is large.
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
    """Whether which large rows a window has depends on where its episode begins or ends."""
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
    """What is not there reads as 0."""
    if which.any():
        for (_, _, _, axis, _), array in zip(outputs, arrays, strict=True):
            if axis == 0:
                array[which] = 0
            else:
                array[:, which] = 0
