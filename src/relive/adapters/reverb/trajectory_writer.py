"""TrajectoryWriter: keeps the last steps of a stream, and makes items of any columns of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from relive.adapters.reverb.errors import DeadlineExceededError, WrongData
from relive.adapters.reverb.table import Table, TableClosed
from relive.adapters.trees import leaves, mapped, paths
from relive.checks.values import integer
from relive.config.casting import refuse_hidden

__all__ = ["FindsTables", "TrajectoryColumn", "TrajectoryWriter", "Writer"]


@final
class Cell:
    """One value of a column; it is gone when the writer does not keep its step any more."""

    __slots__ = ("value",)

    def __init__(self, value: NDArray[Any]) -> None:
        self.value: NDArray[Any] | None = value


@final
class TrajectoryColumn:
    """Some steps of one column. A single step has no time axis."""

    def __init__(self, cells: list[Cell | None], is_single: bool = False, path: tuple[Any, ...] = ()) -> None:
        if not cells:
            raise WrongData(f"column {path}", "one step at least", "no step")
        if any(cell is None for cell in cells):
            raise WrongData(f"column {path}", "steps that have a value in this column", "a step without one")
        self._cells = [cell for cell in cells if cell is not None]
        self._is_single = is_single
        self._path = path

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[Cell]:
        return iter(self._cells)

    def __getitem__(self, which: int | slice) -> TrajectoryColumn:
        if self._is_single:
            raise WrongData(f"column {self._path}", "a column with a time axis to index", "a single step")
        if isinstance(which, slice):
            return TrajectoryColumn(list(self._cells[which]), path=self._path)
        return TrajectoryColumn([self._cells[which]], True, self._path)

    def numpy(self) -> NDArray[Any]:
        """The values, [T, ...]; [...] for a single step. Raises WrongData if the writer keeps a step no more."""
        values = [cell.value for cell in self._cells]
        if any(value is None for value in values):
            raise WrongData(f"column {self._path}", "steps that the writer keeps (num_keep_alive_refs)", "older steps")
        kept = [value for value in values if value is not None]
        return kept[0] if self._is_single else np.stack(kept)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of `numpy()`."""
        return self.numpy().shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of `numpy()`."""
        return self.numpy().dtype


@final
class History:
    """The steps of one column in the open episode: history[-3:], history[-1]."""

    def __init__(self, path: tuple[Any, ...], before: int) -> None:
        self.path = path
        self.cells: list[Cell | None] = [None] * before

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Iterator[Cell | None]:
        return iter(self.cells)

    def __getitem__(self, which: int | slice | list[int]) -> TrajectoryColumn:
        if isinstance(which, slice):
            if which.start is not None and which.start < -len(self.cells):
                raise IndexError(
                    f"column {self.path}: expected a start of at least {-len(self.cells)}, got {which.start}"
                )
            return TrajectoryColumn(self.cells[which], path=self.path)
        if isinstance(which, list):
            return TrajectoryColumn([self.cells[step] for step in which], path=self.path)
        if isinstance(which, int):
            return TrajectoryColumn([self.cells[which]], True, self.path)
        raise TypeError(f"column {self.path}: expected an int, a slice or a list, got {type(which).__name__}")


class FindsTables(Protocol):
    """A server."""

    def table(self, name: str) -> Table:
        """The table of this name."""
        ...


class _Item(NamedTuple):
    table: Table
    leaves: list[NDArray[Any]]
    priority: float


@final
class TrajectoryWriter:
    """Reverb's TrajectoryWriter.

    One thread at a time uses it. Items that the rate limiter does not allow yet wait in the writer, in order; a thread
    inserts them when it does. `flush`, `end_episode` and `close` wait for them.
    """

    def __init__(self, server: FindsTables, num_keep_alive_refs: int, validate_items: bool = True) -> None:
        if not isinstance(num_keep_alive_refs, int) or num_keep_alive_refs < 1:
            raise WrongData("num_keep_alive_refs", "an integer >= 1", num_keep_alive_refs)
        self._server = server
        self._keep = num_keep_alive_refs
        self._validate = validate_items
        self._columns: dict[tuple[Any, ...], History] = {}
        self._types: dict[tuple[Any, ...], tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self._structure: Any = None
        self._kept: list[list[Cell]] = []
        self._steps = 0  # of the open episode
        self._is_partial = False
        self._waiting: list[_Item] = []
        self._lock = threading.Condition()
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None
        self._closed = False

    # ---- steps -----------------------------------------------------------------------------------------------------

    @property
    def history(self) -> Any:
        """The nested columns of the open episode. Raises WrongData before the first append."""
        if self._structure is None:
            raise WrongData("history", "a first append()", "no step")
        return self._nested_history()

    def _nested_history(self) -> Any:
        at = dict(self._columns)

        def build(part: Any, above: tuple[Any, ...]) -> Any:
            if isinstance(part, Mapping):
                return {name: build(part[name], (*above, name)) for name in part}
            if isinstance(part, (list, tuple)):
                values = [build(one, (*above, position)) for position, one in enumerate(part)]
                return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
            return at[above]

        return build(self._structure, ())

    @property
    def episode_steps(self) -> int:
        """Steps of the open episode."""
        return self._steps

    @property
    def num_keep_alive_refs(self) -> int:
        """Steps that stay available for items."""
        return self._keep

    def configure(self, path: Any, *, num_keep_alive_refs: int, max_chunk_length: int) -> None:
        """Checks the arguments. Chunks are a part of Reverb's own storage and have no effect here."""
        for name, value in (("num_keep_alive_refs", num_keep_alive_refs), ("max_chunk_length", max_chunk_length)):
            integer(name, value, 1)

    def append(self, data: Any, *, partial_step: bool = False) -> Any:
        """Adds a step, or the rest of a partial step. Leaves that are None have no value in this step.

        Args:
            data: nested arrays, or numbers. Later steps may have further columns.
            partial_step: whether further columns of this step come with the next append.

        Raises:
            WrongData: a column has another shape or dtype than before, or a value for the second time in this step.
            DtypeMismatch: a masked array hides a value.
        """
        self._check_open()
        given = [(path, leaf) for path, leaf in paths(data) if leaf is not None]
        for path, leaf in given:
            refuse_hidden(f"column {path}", leaf)
        arrays = {path: np.array(leaf) for path, leaf in given}  # a copy: the caller may change its own
        for path, array in arrays.items():
            known = self._types.get(path)
            if known is not None and known != (array.shape, array.dtype):
                raise WrongData(
                    f"column {path}", f"{known[1]}{list(known[0])}, as before", f"{array.dtype}{list(array.shape)}"
                )
            if self._is_partial and path in self._columns and self._columns[path].cells[-1] is not None:
                raise WrongData(f"column {path} of a partial step", "one value in a step", "a second one")
        if not self._is_partial:
            self._begin_step()
        self._take_structure(data)
        for path, array in arrays.items():
            self._types[path] = array.shape, array.dtype
            cell = Cell(array)
            self._columns[path].cells[-1] = cell
            self._kept[-1].append(cell)
        self._is_partial = partial_step
        if not partial_step:
            self._steps += 1
        return mapped(lambda leaf: leaf, data)

    def _begin_step(self) -> None:
        for history in self._columns.values():
            history.cells.append(None)
        self._kept.append([])
        while len(self._kept) > self._keep:
            for cell in self._kept.pop(0):
                cell.value = None

    def _take_structure(self, data: Any) -> None:
        length = max((len(history) for history in self._columns.values()), default=1)
        for path, _ in paths(data):
            if path not in self._columns:
                self._columns[path] = History(path, length)
        self._structure = data if self._structure is None else _merged(self._structure, data)

    # ---- items -----------------------------------------------------------------------------------------------------

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:
        """Makes an item of nested TrajectoryColumns. It is inserted at once, or when the rate limiter allows it.

        Raises:
            TypeError: a leaf is no TrajectoryColumn.
            TableNotFound: the server has no such table.
            WrongData: a step is not kept any more, or the item does not fit the table's signature.
        """
        self._check_open()
        found = self._server.table(table)
        columns = leaves(trajectory)
        if not columns:
            raise WrongData("trajectory of an item", "one column at least", trajectory)
        for column in columns:
            if not isinstance(column, TrajectoryColumn):
                raise TypeError(f"trajectory of an item: expected TrajectoryColumns, got {type(column).__name__}")
        data = mapped(lambda column: column.numpy(), trajectory)
        if self._validate:
            found.check(data)
        with self._lock:
            self._waiting.append(_Item(found, leaves(data), priority))
            if self._thread is None:
                self._insert_all(0.0)

    def _insert_all(self, timeout_s: float | None) -> None:
        """Inserts the items that wait, in order, and stops at the first that is not allowed in time."""
        while self._waiting:
            item = self._waiting[0]
            try:
                item.table.insert(item.leaves, item.priority, timeout_s)
            except DeadlineExceededError:
                self._thread = threading.Thread(target=self._insert_later, daemon=True)
                self._thread.start()
                return
            except BaseException:
                self._waiting.pop(0)
                raise
            self._waiting.pop(0)

    def _insert_later(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    self._lock.notify_all()
                    return
                item = self._waiting[0]
            try:
                item.table.insert(item.leaves, item.priority, None)
            except Exception as problem:  # told by the next call
                self._problem = None if isinstance(problem, TableClosed) else problem
            with self._lock:
                self._waiting.pop(0)
                self._lock.notify_all()

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Waits until at most so many items wait for the rate limiter.

        Raises:
            DeadlineExceededError: they still wait at the end of the timeout.
        """
        if block_until_num_items < 0:
            raise WrongData("block_until_num_items", "an integer >= 0", block_until_num_items)
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        with self._lock:
            while len(self._waiting) > block_until_num_items:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise DeadlineExceededError("a flush", (timeout_ms or 0) / 1000)
                self._lock.wait(1.0 if left is None else min(left, 1.0))
            problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Waits for the items, and begins a new episode.

        Args:
            clear_buffers: whether the steps so far are gone for later items.
            timeout_ms: how long to wait for the items.
        """
        self._check_open()
        self.flush(timeout_ms=timeout_ms)
        self._is_partial = False
        if clear_buffers:
            for cells in self._kept:
                for cell in cells:
                    cell.value = None
            self._kept.clear()
            for history in self._columns.values():
                history.cells.clear()
        self._steps = 0

    def close(self) -> None:
        """Waits for the items. The writer takes no more steps."""
        if not self._closed:
            self.flush()
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise WrongData("writer", "an open one", "a closed one")

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()


@final
class Writer:
    """Reverb's older Writer: items of the last whole steps."""

    def __init__(self, server: FindsTables, max_sequence_length: int) -> None:
        self._most = integer("max_sequence_length", max_sequence_length, 1)
        self._writer = TrajectoryWriter(server, self._most)

    def append(self, data: Any) -> None:
        """Adds a step."""
        self._writer.append(data)

    def append_sequence(self, sequence: Any) -> None:
        """Adds the steps of nested arrays [T, ...]."""
        for step in range(len(leaves(sequence)[0])):
            self.append(_step_of(sequence, step))

    def create_item(self, table: str, num_timesteps: int, priority: float) -> None:
        """Makes an item of the last num_timesteps steps. Raises WrongData if there are fewer."""
        if not 1 <= num_timesteps <= min(self._most, self._writer.episode_steps):
            most = min(self._most, self._writer.episode_steps)
            raise WrongData("num_timesteps", f"an integer from 1 to {most}", num_timesteps)
        last = mapped(lambda history: history[-num_timesteps:], self._writer.history)
        self._writer.create_item(table, priority, last)

    def flush(self) -> None:
        """Waits for the items."""
        self._writer.flush()

    def close(self, retry_on_unavailable: bool = True) -> None:
        """Waits for the items. The writer takes no more steps."""
        self._writer.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()


def _step_of(sequence: Any, step: int) -> Any:
    return mapped(lambda leaf: leaf[step], sequence)


def _merged(old: Any, new: Any) -> Any:
    """The nesting of both: a later step may have further keys."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {name: _merged(old[name], new[name]) if name in old and name in new else old.get(name, new.get(name))
                for name in [*old, *(one for one in new if one not in old)]}  # fmt: skip
    return old if new is None else new
