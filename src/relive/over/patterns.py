"""Explicit items that are made as steps are written, by patterns. Uses only a writer and create_items."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol, final

import numpy as np
import numpy.typing as npt

from relive.checks.names import names_arguments
from relive.checks.values import finite, flag, integer, timeout
from relive.config.casting import as_array
from relive.config.explicit import Explicit, Window
from relive.core.closing import Closing
from relive.core.protocol import ReplayWriter
from relive.errors import (
    BadMessage,
    DeadlineExceeded,
    InvalidConfig,
    MissingColumn,
    NoPriorities,
    ReliveError,
    RowGone,
    RowsApart,
    ServiceUnavailable,
    Unacknowledged,
    UnknownColumn,
    stored_before,
)
from relive.table.changing import explicit_index
from relive.table.handle import TableHandle

__all__ = ["Condition", "Pattern", "PatternWriter"]

Keys = npt.NDArray[np.int64]
Comparison = Literal["==", "!=", "<", "<=", ">", ">="]

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MAX_BACK = 4096
_ENDS = ("terminated", "truncated")
_CUTS = (ServiceUnavailable, Unacknowledged)


@names_arguments
@final
@dataclass(frozen=True)
class Condition:
    """A comparison of a scalar step column, as append gets it, with a number.

    Args:
        column: the name of the column.
        comparison: '==', '!=', '<', '<=', '>' or '>='.
        value: the number.

    Raises:
        InvalidConfig: an argument has another type or value.
    """

    column: str
    comparison: Comparison
    value: float

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise InvalidConfig("column of a Condition", "the name of a scalar column", self.column)
        if not isinstance(self.comparison, str) or self.comparison not in _COMPARE:
            raise InvalidConfig("comparison of a Condition", " or ".join(_COMPARE), self.comparison)
        if not isinstance(self.value, (bool, int, float, np.number, np.bool_)):
            raise InvalidConfig("value of a Condition", "a number", self.value)

    def holds(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """bool[M] for values [M]."""
        result: npt.NDArray[np.bool_] = np.asarray(_COMPARE[self.comparison](values, self.value), np.bool_)
        return result


@names_arguments
@final
@dataclass(frozen=True)
class Pattern:
    """An item of an index with Explicit items, made with every step for which all conditions hold.

    Items have whole windows: no item is made before the episode has as many steps.

    Args:
        windows: {name: slice} of the steps of the episode so far, as of a list whose last element is the new step:
            slice(-5, None) is the last five steps, slice(-3, -1) the two before the new one. A number n is slice(-n,
            None). A slice or number alone, if the index has one window without a name. The stride is that of the
            index's window.
        every: distance between the steps of an episode at which an item is made.
        first: the first of those steps; None: the earliest one at which all windows are whole.
        at_end: True: only at steps that end their episode; False: only at other steps; None: at both.
        where: Conditions that hold for the new step.
        columns: {own column of the item: step column}: the item has the value of the new step.
        priority: of the items; None: the index's initial priority.
        index: the name of the index; None: the only one with Explicit items.

    Raises:
        InvalidConfig: an argument has another type or value.
    """

    windows: Mapping[str, slice | int] | slice | int = field(hash=False)
    every: int = 1
    first: int | None = None
    at_end: bool | None = None
    where: tuple[Condition, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)
    priority: float | None = None
    index: str | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        given: Any = self.windows
        named = given if isinstance(given, Mapping) else {"": given}
        if not named:
            raise InvalidConfig("windows of a Pattern", "{name: slice or a number of steps}", given)
        put(self, "windows", MappingProxyType({name: _checked_slice(name, part) for name, part in named.items()}))
        put(self, "every", integer("every of a Pattern", self.every, 1))
        put(self, "first", None if self.first is None else integer("first of a Pattern", self.first, 0))
        put(self, "at_end", None if self.at_end is None else flag("at_end of a Pattern", self.at_end))
        asked: Any = self.where
        where = (asked,) if isinstance(asked, Condition) else asked
        if not isinstance(where, (list, tuple)) or not all(isinstance(one, Condition) for one in where):
            raise InvalidConfig("where of a Pattern", "Conditions", asked)
        put(self, "where", tuple(where))
        if not isinstance(self.columns, Mapping) or not all(isinstance(one, str) for one in self.columns.values()):
            raise InvalidConfig("columns of a Pattern", "{column of the items: step column}", self.columns)
        put(self, "columns", MappingProxyType(dict(self.columns)))
        if self.priority is not None:
            put(self, "priority", finite("priority of a Pattern", self.priority, 0.0, float(np.finfo(np.float32).max)))

    def __reduce__(self) -> tuple[Any, ...]:
        windows = {name: (part.start, part.stop) for name, part in self.slices.items()}
        fields = (self.every, self.first, self.at_end, self.where, dict(self.columns), self.priority, self.index)
        return _restore, (windows, fields)

    @property
    def slices(self) -> Mapping[str, slice]:
        """The windows, each as a slice."""
        return self.windows  # type: ignore[return-value]  # __post_init__ made them so

    @property
    def steps_back(self) -> int:
        """Steps of an episode that an item reaches over, including the new one."""
        return max(int(-part.start) for part in self.slices.values())


def _restore(windows: dict[str, tuple[int, int | None]], fields: tuple[Any, ...]) -> Pattern:
    return Pattern({name: slice(*ends) for name, ends in windows.items()}, *fields)


def _checked_slice(name: object, part: Any) -> slice:
    if not isinstance(part, slice):
        part = slice(-integer(f"window {name!r} of a Pattern", part, 1, _MAX_BACK), None)
    start, stop = part.start, part.stop
    is_whole = type(start) is int and (stop is None or type(stop) is int) and part.step is None
    if not is_whole or not -_MAX_BACK <= start < (0 if stop is None else stop) <= 0 or stop == 0:
        raise InvalidConfig(f"window {name!r} of a Pattern", "slice(-a, -b) or slice(-a, None), a > b > 0", str(part))
    return slice(start, stop)


def _part(columns: Mapping[str, Any], name: str) -> Any:
    """A column of a call by its flat name, also if the call has it in dicts and tuples."""
    if name in columns:
        return columns[name]
    part: Any = columns
    for key in name.split("/"):
        part = part[int(key) if isinstance(part, (tuple, list)) else key]
    return part


class WritesItems(Protocol):
    """The call that patterns need of a table."""

    def create_items(self, windows: Any, **options: Any) -> Keys: ...


@final
class _Bound:
    """A pattern on a table: the rows of the last steps that its windows have."""

    def __init__(self, pattern: Pattern, items: Explicit, index: str, step_columns: Mapping[str, Any]) -> None:
        self.pattern = pattern
        self.index = index
        self.rows: dict[str, tuple[int, int]] = {}  # for each window: steps back to its first row, number of rows
        for name, part in pattern.slices.items():
            window = items.windows.get(name)
            if window is None:
                raise InvalidConfig("window of a Pattern", " or ".join(map(repr, items.windows)), name)
            self.rows[name] = (-part.start, _num_rows(name, part, window))
        for name in items.columns:
            if name not in pattern.columns:
                raise MissingColumn(name, pattern.columns)
        for name, column in pattern.columns.items():
            if name not in items.columns:
                raise UnknownColumn(name, items.columns)
            _check_column(column, step_columns)
        for condition in pattern.where:
            _check_column(condition.column, step_columns)
            if condition.column in step_columns and step_columns[condition.column].shape != ():
                raise InvalidConfig("column of a Condition", "a scalar column", condition.column)
        self.first = pattern.steps_back - 1 if pattern.first is None else pattern.first

    def chosen(
        self, steps: npt.NDArray[np.int64], ends: npt.NDArray[np.bool_], columns: Mapping[str, npt.NDArray[Any]]
    ) -> npt.NDArray[np.intp]:
        """Positions among the lanes of a call at which an item is due.

        Args:
            steps: int64[M], the step of the episode.
            ends: bool[M], whether the episode ends here.
            columns: the columns that the conditions name, [M, ...].
        """
        pattern = self.pattern
        due = (steps >= max(self.first, pattern.steps_back - 1)) & ((steps - self.first) % pattern.every == 0)
        if pattern.at_end is not None:
            due &= ends == pattern.at_end
        for condition in pattern.where:
            due &= condition.holds(columns[condition.column])
        return np.flatnonzero(due)


def _num_rows(name: str, part: slice, window: Window) -> int:
    steps: int = (0 if part.stop is None else part.stop) - part.start
    num_rows = -(-steps // window.stride)
    if num_rows > window.length:
        raise InvalidConfig(f"window {name!r} of a Pattern", f"at most {window.length} rows", num_rows)
    return num_rows


def _check_column(column: str, step_columns: Mapping[str, Any]) -> None:
    if column not in step_columns and column not in _ENDS:
        raise UnknownColumn(column, step_columns)
    if column in step_columns and step_columns[column].late:
        raise InvalidConfig("step column of a Pattern", "one that append takes", f"{column!r}, which complete() fills")


@final
@dataclass(frozen=True)
class _Due:
    """Items that one call is to make."""

    bound: _Bound
    windows: dict[str, tuple[Keys, int]]
    columns: dict[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.windows.values()))[0])

    def after(self, count: int) -> _Due:
        """The items after the first `count`."""
        windows = {name: (keys[count:], num_rows) for name, (keys, num_rows) in self.windows.items()}
        return _Due(self.bound, windows, {name: values[count:] for name, values in self.columns.items()})


@names_arguments
@final
class PatternWriter(Closing):
    """A writer that also makes items by patterns. Use it in place of the writer that it wraps; it closes that writer.

    One thread at a time may use it. A step that end_episode() ends is an end, too: patterns with at_end=True wait for
    that call, others do not. If a limiter does not let items in before the deadline, DeadlineExceeded has `stored` rows
    and their keys: the steps are stored, and the next call or flush() makes their items. An item is dropped and counted
    in num_dropped if its rows are gone or of two episodes (the lane was cut).

    A call has one deadline for its step, for the keys of the step, and for all items that wait.

    Each item is made at most once. If the answer of a server is lost, or Ctrl-C ends the call, it may be unknown
    whether some items are made. These items are not made again, and num_unanswered counts them. If the keys of a writer
    that streams miss the deadline, the DeadlineExceeded has the steps as `unanswered`: they may be stored later.

    A lost server cuts all lanes of a remote writer: after ServiceUnavailable the next step of each lane begins an
    episode. The same holds after Unacknowledged of a writer that streams, and after Ctrl-C in a wait for an answer.
    Patterns make no items of steps whose keys did not come.

    Ctrl-C may end a call, and its exception may not tell which steps are stored. All windows then begin again with the
    next step of each lane, also if its episode goes on. num_dropped does not count the items that are not made.

    Args:
        table: the table of the items.
        writer: a Writer of the same table. If it streams, each append waits for its keys.
        patterns: any number, of one or several indexes.

    Raises:
        InvalidConfig, UnknownColumn, MissingColumn: a pattern does not fit the table.
        NoPriorities: a pattern has a priority, and its index has none.

    Cost: some 10 us a call and pattern, in addition to append and create_items.
    """

    def __init__(self, table: TableHandle, writer: ReplayWriter, patterns: Sequence[Pattern]) -> None:
        asked: Any = patterns
        some: Any = (asked,) if isinstance(asked, Pattern) else asked
        if not isinstance(some, (list, tuple)) or not some or not all(isinstance(one, Pattern) for one in some):
            raise InvalidConfig("patterns", "one Pattern or several", patterns)
        self._table: WritesItems = table
        self._timeout_s: float = table.timeout_s
        self._writer: Any = writer
        self._bound: list[_Bound] = []
        columns = {name: one for name, one in table.spec.columns.items() if one.kind != "state"}
        for pattern in some:
            number, items = explicit_index(table.config.index, pattern.index)
            name = list(table.config.index)[number]
            if pattern.priority is not None and not table.config.index[name].has_priorities:
                raise NoPriorities(name)
            self._bound.append(_Bound(pattern, items, name, columns))
        taken = {column for one in some for column in (*one.columns.values(), *(c.column for c in one.where))}
        self._taken = {name: columns[name].dtype for name in sorted(taken) if name in columns}
        self._single = self.num_lanes is None
        self._num_lanes = self.num_lanes or 1
        self._depth = max(one.steps_back for one in some)
        self._keys = np.zeros((self._num_lanes, self._depth), np.int64)  # of the last steps; step t is at t % depth
        self._steps = np.zeros(self._num_lanes, np.int64)  # of each lane's open episode
        self._last: dict[str, npt.NDArray[Any]] = {}  # columns of each lane's newest step that patterns use, [L, ...]
        self._queue: list[_Due] = []
        self._asked: _Due | None = None  # the newest items that the table was asked to make
        self._is_unsure = False  # whether a call of the writer goes on, or has not told which steps it stored
        self.num_dropped = 0
        self.num_unanswered = 0

    # ---- writing ---------------------------------------------------------------------------------------------------

    def append(self, *, lanes: Any = None, timeout_s: float | None = None, **columns: Any) -> Any:
        """Writer.append, then the items that are due. Returns the keys of the steps."""
        keys, ends = None, self._ends(timeout_s)
        self._begin()
        try:
            keys = self._writer.append(lanes=lanes, timeout_s=timeout_s, **columns)
            read = getattr(keys, "read", None)  # of a writer that streams: its keys are waited for
            came = np.atleast_1d(np.asarray(keys if read is None else read(_left_s(ends)), np.int64))
            self._came(lanes, came, columns)
            self._is_unsure = False
        except BaseException as problem:
            if keys is None:  # else the step may be stored, but its keys are not known
                if len(came := stored_before(problem)):  # the first lanes have stored their step
                    self._came(lanes, came, columns)
                self._is_unsure = not _tells(problem) or _has_cut(problem)
            if keys is not None and isinstance(problem, DeadlineExceeded):  # the writer still waits for the answer
                told: Any = problem
                told.stored, told.keys, told.unanswered = 0, np.empty(0, np.int64), len(self._ids(lanes))
            raise
        self._make(keys, ends)
        return keys

    def extend(self, *, lanes: Any = None, timeout_s: float | None = None, **columns: Any) -> Keys:
        """Always raises InvalidConfig: patterns look at every step, so append steps one by one."""
        raise InvalidConfig("extend of a PatternWriter", "append, step by step", "a block of steps")

    def end_episode(self, *, lanes: Any = None, timeout_s: float | None = None, **options: Any) -> None:
        """Writer.end_episode, then the items that wait for an end."""
        ends = self._ends(timeout_s)
        with self._noting_cuts():
            self._writer.end_episode(lanes=lanes, timeout_s=timeout_s, **options)
            ids = self._ids(lanes)
            ids = ids[self._steps[ids] > 0]
            self._steps[ids] -= 1  # the last step was counted when it came
            self._choose(ids, np.ones(len(ids), np.bool_), asks_ends=True)
            self._steps[ids] = 0
        self._make(None, ends)

    def abandon(self, lanes: Any = None, *, timeout_s: float | None = None) -> None:
        """Writer.abandon. The items that patterns made of the episodes end with them, and no more are made."""
        with self._noting_cuts():
            self._writer.abandon(lanes, timeout_s=timeout_s)
            self._steps[self._ids(lanes)] = 0

    def set_policy_version(self, version: int | None) -> None:
        """Writer.set_policy_version."""
        with self._noting_cuts():
            self._writer.set_policy_version(version)

    def flush(self, timeout_s: float | None = None) -> None:
        """Makes the items that a limiter did not let in before.

        Raises:
            DeadlineExceeded: a limiter did not let in all items. The others wait on; items that were made stay made.
            ServiceUnavailable: the answer did not come. num_unanswered counts the items that the server may have made.
        """
        self._flush(self._ends(timeout_s))

    def _flush(self, ends: float) -> None:
        """Makes the items that wait. All of them wait until `ends`, a time.monotonic()."""
        while self._queue:
            due = self._queue[0]
            if due is self._asked:  # Ctrl-C came before the end of the call that asked was noted
                self.num_unanswered += len(due)
                del self._queue[0]
                continue
            pattern = due.bound.pattern
            self._asked = due
            try:
                self._table.create_items(
                    due.windows,
                    index=due.bound.index,
                    priority=pattern.priority,
                    timeout_s=_left_s(ends),
                    **due.columns,
                )
            except (RowGone, RowsApart) as problem:  # apart, if the lane was cut between them
                self._drop(due, problem)
                continue
            except BaseException as problem:
                self._note_made(due, problem)
                raise
            del self._queue[0]

    # ---- the handle ------------------------------------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Items that are due and not made."""
        return sum(len(due) for due in self._queue)

    @property
    def num_lanes(self) -> int | None:
        """Lanes of the writer; None: one lane, whose arrays have no lane axis."""
        lanes: int | None = self._writer.num_lanes
        return lanes

    @property
    def closed(self) -> bool:
        """Whether the writer is closed."""
        return bool(self._writer.closed)

    def close(self) -> None:
        """Closes the writer. Items that wait are not made."""
        self._writer.close()

    def __repr__(self) -> str:
        lost = f", {self.num_unanswered} items unanswered" if self.num_unanswered else ""
        return f"PatternWriter({self._writer!r}, {len(self._bound)} patterns, {self.num_waiting} items wait{lost})"

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _ends(self, timeout_s: float | None) -> float:
        """The time.monotonic() until which a call waits."""
        return time.monotonic() + (self._timeout_s if timeout_s is None else timeout(timeout_s))

    def _ids(self, lanes: Any) -> npt.NDArray[np.intp]:
        if lanes is None:
            return np.arange(self._num_lanes)
        array = as_array("lanes", lanes)  # the writer has checked them
        return np.flatnonzero(array) if array.dtype == np.bool_ else array.astype(np.intp)

    def _came(self, lanes: Any, keys: Keys, columns: Mapping[str, Any]) -> None:
        """Notes a step of the first len(keys) lanes of a call, and queues the items that are due with it."""
        named = self._ids(lanes)
        ids = named[: len(keys)]
        if not len(ids):
            return
        self._keys[ids, self._steps[ids] % self._depth] = keys
        values = {name: self._of_lanes(name, _part(columns, name), named) for name in self._taken}
        values |= {name: self._of_lanes(name, columns.get(name, False), named) for name in _ENDS}
        for name, value in values.items():
            if name not in self._last:
                dtype = self._taken.get(name, np.dtype(np.bool_))
                self._last[name] = np.zeros((self._num_lanes, *value.shape[1:]), dtype)
            self._last[name][ids] = value[: len(ids)]
        ends = self._last["terminated"][ids] | self._last["truncated"][ids]
        self._choose(ids, ends, asks_ends=False)
        self._steps[ids] = np.where(ends, 0, self._steps[ids] + 1)

    def _of_lanes(self, name: str, value: Any, named: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
        """The values of a column of a call for these lanes, [M, ...]."""
        array = as_array(name, False if value is None else value)
        if name in _ENDS and array.ndim == 0:
            return np.full(len(named), array)
        if self._single:
            return array[np.newaxis]
        return array if len(array) == len(named) else array[named]

    def _choose(self, ids: npt.NDArray[np.intp], ends: npt.NDArray[np.bool_], asks_ends: bool) -> None:
        """Queues the items that are due with the newest steps of lanes. asks_ends: only those that wait for an end."""
        steps = self._steps[ids]
        values = {name: value[ids] for name, value in self._last.items()}
        for bound in self._bound:
            if asks_ends and bound.pattern.at_end is not True:
                continue
            chosen = bound.chosen(steps, ends, values)
            if not len(chosen):
                continue
            lanes, at = ids[chosen], steps[chosen]
            windows = {
                name: (self._keys[lanes, (at - back + 1) % self._depth], num_rows)
                for name, (back, num_rows) in bound.rows.items()
            }
            columns = {name: values[column][chosen] for name, column in bound.pattern.columns.items()}
            self._queue.append(_Due(bound, windows, columns))

    def _make(self, keys: Any, ends: float) -> None:
        if not self._queue:
            return
        try:
            self._flush(ends)
        except BaseException as problem:
            with suppress(AttributeError):  # an error of a signal handler may take no attributes
                told: Any = problem  # of the steps of the call, not of the items
                told.stored = 0 if keys is None else int(np.size(keys))
                told.keys = None if keys is None else np.atleast_1d(np.asarray(keys, np.int64))
                told.unanswered = 0
            raise

    def _begin(self) -> None:
        """Before a call of the writer. All windows begin again if the call before has not told which steps it stored.

        A signal's handler may raise at any moment of a call. Each call is therefore unsure until its end is noted.
        """
        if self._is_unsure:
            self._steps[:] = 0
        self._is_unsure = True

    @contextmanager
    def _noting_cuts(self) -> Iterator[None]:
        """Around a call of the writer and the note of its end; written out in append."""
        self._begin()
        try:
            yield
        except BaseException as problem:
            self._is_unsure = not _tells(problem) or _has_cut(problem)
            raise
        self._is_unsure = False

    def _note_made(self, due: _Due, problem: BaseException) -> None:
        """After an error of create_items: keeps the items that are certainly not made, and counts the unknown ones."""
        rest = due.after(len(stored_before(problem)))
        unanswered = len(rest)
        if _tells(problem):
            unanswered = min(unanswered, getattr(problem, "unanswered", 0))
        rest = rest.after(unanswered)
        self._queue[:1] = [rest] if len(rest) else []
        self.num_unanswered += unanswered

    def _drop(self, due: _Due, problem: RowGone | RowsApart) -> None:
        """Drops an item that cannot be had: a row is gone, or the rows are no window."""
        if problem.stored:
            self._queue[0] = due.after(problem.stored)
            return
        at = problem.item
        keep = {name: (np.delete(keys, at), num_rows) for name, (keys, num_rows) in due.windows.items()}
        rest = _Due(due.bound, keep, {name: np.delete(one, at, 0) for name, one in due.columns.items()})
        self.num_dropped += 1
        self._queue[:1] = [rest] if len(rest) else []


def _left_s(ends: float) -> float:
    """Seconds until `ends`, at least 0."""
    return max(ends - time.monotonic(), 0.0)


def _has_cut(problem: BaseException) -> bool:
    """Whether the lanes of a writer are new after this exception: its server or its answer was lost.

    The exception of a signal's handler has `unanswered` if the answer of a server was not waited for.
    """
    return isinstance(problem, _CUTS) or (not isinstance(problem, ReliveError) and hasattr(problem, "unanswered"))


def _tells(problem: BaseException) -> bool:
    """Whether an error of append tells which steps are stored, or one of create_items which items are or may be made.

    An answer that cannot be read tells nothing. The exception of a signal's handler tells by its `keys`. It has none if
    the signal came outside of the core, or while a server worked.
    """
    if isinstance(problem, ReliveError):
        return not isinstance(problem, BadMessage)
    return isinstance(getattr(problem, "keys", None), np.ndarray)
