"""The writing side of a table: lanes to which steps are appended."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np
import numpy.typing as npt

from relive.checks.names import columns_by_name, refuses_attributes
from relive.checks.values import flag, integer, timeout
from relive.config.casting import Normaliser, as_array
from relive.config.spec import StepSpec, groups_of, spread
from relive.core.closing import Closing
from relive.core.table_core import OpensWriters
from relive.errors import (
    DtypeMismatch,
    InvalidConfig,
    LaneError,
    LateColumn,
    MissingColumn,
    NotShareable,
    RequestTooLarge,
    ShapeMismatch,
    SpecError,
    UnknownColumn,
    UnnamedColumns,
    WriterClosed,
)
from relive.writing.new_items import with_axis

__all__ = ["Writer"]

Keys = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.int32]

_ALWAYS_TAKEN = ("terminated", "truncated", "discount")
_MAX_REMEMBERED = 64
_MAX_LANES = 2**20  # of any table


@refuses_attributes("Writer")
@final
class Writer(Closing):
    """Lanes of a table, one for each environment; made by table.writer(num_lanes). One thread at a time uses it.

    L is the writer's number of lanes, and M the number of lanes that a call names; M = L without `lanes`. With
    num_lanes=None there is one lane, and arrays have no lane axis. Two arguments are the same in all calls:

    - lanes: a mask bool[L], or distinct ids int[M]. Lanes that are not named do not advance. An array may have M rows,
      in the order of `lanes`. Or it may have L rows, one for each lane: the call then reads only the rows of the named
      lanes.
    - timeout_s: how long to wait for the limiter and for the table's lock. None is the table's default, 0 tries once,
      inf waits for ever. When the time is up, the call raises DeadlineExceeded. If no other thread or process could end
      the wait, the call raises WaitsForItself.

    An error leaves the table as it was, except that a block of steps, or a step of several lanes, may stop half way.
    Then error.stored is above 0.

    Close the writer, for example with `with`. Closing truncates the episodes that are still open, so the last items of
    these episodes are shorter windows.
    """

    __slots__ = (
        "_append_alike",
        "_core",
        "_create_items",
        "_explain",
        "_groups",
        "_num_lanes",
        "_optional",
        "_remembered",
        "_required",
        "_single",
        "_spec",
        "_states",
        "_timeout_s",
    )

    def __init__(
        self,
        core: OpensWriters,
        spec: StepSpec,
        num_lanes: int | None,
        timeout_s: float,
        explain: Callable[[RequestTooLarge], RequestTooLarge],
        create_items: Callable[..., Keys],
        repeated: frozenset[str] = frozenset(),
    ) -> None:
        self._explain = explain
        self._create_items = create_items
        self._single = num_lanes is None
        self._num_lanes = 1 if num_lanes is None else integer("num_lanes", num_lanes, 1, _MAX_LANES)
        self._spec = spec
        self._core = core.open_writer(self._num_lanes, self._single, Normaliser(spec, self._single, repeated))
        self._append_alike = self._core.append_alike
        self._timeout_s = timeout_s
        self._required = frozenset(spec.columns) - set(spec.late_columns)
        self._states = tuple(f"next_{name}" for name in spec.state_columns)
        self._optional = frozenset((*self._states, *_ALWAYS_TAKEN))
        self._groups = groups_of((*spec.columns, *self._states))
        self._remembered: set[tuple[str, ...]] = set()  # lists of flat arguments that were checked

    # ---- writing ---------------------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        def append(
            self,
            *,
            lanes: npt.ArrayLike | None = None,
            priority: Any = None,
            timeout_s: float | None = None,
            **columns: Any,
        ) -> Any: ...

    else:
        # Python compares each keyword with each named argument: three names here would cost 0.2 us a call. Values
        # without a name cost nothing if there are none.
        def append(self, *values, **columns):
            """Appends one step to every lane, or to the named lanes.

            M is the number of lanes that the call names: all lanes of the writer if `lanes` is None. If the limiter
            has room for the steps of some lanes only, the call stores these steps first. Then it waits for room for the
            others (see extend). If the deadline passes during that wait, error.stored is the number of steps that were
            stored, in the order of the rows, and error.keys are their keys. Then repeat the call with `lanes=` for the
            other lanes. A call for all lanes would store the first steps twice.

            Args:
                **columns: every declared column that is not late, [M, *shape]; without a lane axis [*shape]. A nested
                    column is a dict or a tuple.
                terminated, truncated: bool[M], default False; a scalar stands for every lane.
                discount: float[M], default 1 - terminated.
                next_<state>: [M, *shape], all of them or none. A truncated step needs them. With them the step is
                    complete at once; without them, at the lane's next append. An item can be sampled when its whole
                    window is complete, its late columns are filled, and it has a priority (if initial='given').
                lanes: as described for Writer.
                priority: of the new items, finite, >= 0; one for all, or [M]. None: the index's initial priority.
                timeout_s: as described for Writer.

            Returns:
                Keys int64[M], in the order of the rows; an int for a writer without a lane axis.

            Raises:
                MissingColumn, UnknownColumn, LateColumn: a column is missing, unknown, or filled by table.complete.
                ShapeMismatch: an array has another shape than its column.
                DtypeMismatch: an array would lose values as the dtype of its column. float64 for float32 is allowed.
                LaneError, InvalidPriority: a lane or a priority is not allowed.
                SeamMismatch: a state differs from the next_<state> that was given before it.
                MissingNext: truncated without next_<state>.
                RequestTooLarge: the limiter could never let so many items in.
                DeadlineExceeded: the deadline passed.
                StorageFull: no memory or disk is left.
                WriterClosed: the writer is closed.

            Cost: one lock and one copy of the rows.
            """
            if values:
                raise UnnamedColumns("append", len(values), self._spec.columns)
            try:
                keys = self._append_alike(columns, self._timeout_s)
            except RequestTooLarge as error:
                raise self._explain(error) from None
            if keys is not None:
                return keys
            lanes, priority, timeout_s = (columns.pop(name, None) for name in ("lanes", "priority", "timeout_s"))
            return self._write(self._core.append, columns, lanes, priority, timeout_s, axis=0)

    @columns_by_name
    def extend(
        self, *, lanes: npt.ArrayLike | None = None, priority: Any = None, timeout_s: float | None = None,
        **columns: Any
    ) -> Keys:  # fmt: skip
        """Appends T steps to every lane, or to the named lanes.

        The T steps of a call are a block. A block is stored as a whole if possible: its memory is taken, and the
        limiter is asked, before its first row. Two kinds of blocks may fail half way:

        - A block that the limiter lets in by parts. This happens if the limiter's range is too small for the block and
          for a draw that waits, together. It also happens if a StalenessBudget has no room for the whole block.
        - A block that takes the table's lock several times. It has more than 256 rows, or its rows lie on two pages.

        After such an error, its attribute `stored` is the number of rows that were stored, and its attribute `keys` has
        their keys. These rows are the first ones: all lanes of the first step, then all lanes of the second step, and
        so on. Continue with the rows after them: the same block again would store the first ones twice. If Ctrl-C, or
        another exception of a signal handler, stops the block, that exception has the same two attributes. This holds
        on a table of this machine, and only if rows were stored.

        Args:
            **columns: as in append, with a time axis in front: [T, M, *shape], or [T, *shape] without a lane axis. A
                state column may have T + 1 rows; the last is the state after the last step. A scalar terminated or
                truncated stands for the last row.
            lanes: as described for Writer.
            priority: of the new items, finite, >= 0; one for all, or an array of the keys' shape. None: the index's
                initial priority.
            timeout_s: as described for Writer.

        Returns:
            Keys int64[T, M]; [T] for a writer without a lane axis.

        Raises:
            ReliveError: the errors of append.
        """
        keys: Keys = self._write(self._core.extend, columns, lanes, priority, timeout_s, axis=1)
        return keys

    if not TYPE_CHECKING:
        append.__signature__ = inspect.signature(extend)  # for help() and notebooks

    def end_episode(
        self,
        *,
        lanes: npt.ArrayLike | None = None,
        terminated: bool = False,
        truncated: bool | None = None,
        timeout_s: float | None = None,
        **next_columns: Any,
    ) -> None:
        """Ends the episode of every lane, or of the named lanes, after the step that was appended last.

        More than 64 lanes end in several critical sections. After a DeadlineExceeded some may have ended, and the same
        call continues with the others.

        Args:
            lanes: as described for Writer.
            terminated: whether the episode terminated.
            truncated: whether it was truncated; None: if it did not terminate.
            timeout_s: as described for Writer.
            **next_columns: next_<state>, [M, *shape]. Needed where truncated, unless the last append gave them.

        Raises:
            MissingNext: truncated without next_<state>.
            AlreadyPublished: the last step is published already.
            ReliveError: the errors of append.
        """
        ended = flag("terminated of end_episode, which speaks of all lanes named,", terminated)
        cut = not ended if truncated is None else flag("truncated of end_episode", truncated)
        if not ended and not cut:
            raise InvalidConfig("end_episode", "terminated=True or truncated=True", "neither")
        flat: dict[str, Any] = {}
        for name, value in next_columns.items():
            if name in self._groups:
                spread(name, value, self._groups[name], flat)
            else:
                flat[name] = value
        for name in flat:
            if name not in self._states:
                raise UnknownColumn(name, (*self._states, "terminated", "truncated"))
        self._check_next(flat)
        ids: Lanes | None = None
        if lanes is not None:
            ids, flat, _ = self._select(lanes, flat, None, axis=0)
            if ids is not None and not len(ids):
                return
        self._core.end_episode(flat, ended, ids, self._timeout_s if timeout_s is None else timeout(timeout_s))

    def __reduce__(self) -> NoReturn:
        raise NotShareable("writer")

    def abandon(self, lanes: npt.ArrayLike | None = None, *, timeout_s: float | None = None) -> None:
        """Drops the open episode of every lane, or of the named lanes: for an episode that was given up or went wrong.

        - The steps of the episode are gone: len(table) does not count them, and their keys name nothing. No item of any
          index has one of them. Published items end as deleted ones do; draws that were made before are not undone.
        - Each lane continues with a new episode, as a lane of its own: the derived column `lane` has a new number, and
          no window runs across. Lanes without an open episode stay as they are.
        - After a DeadlineExceeded an episode may be dropped in part. The next call for that lane, of any kind, first
          drops the rest. If the process dies before abandon returns, the rest of the episode is one that was cut off.

        Args:
            lanes: as described for Writer.
            timeout_s: as described for Writer. The call may also wait for readers that pin every page.

        Raises:
            LaneError, DeadlineExceeded, WriterClosed: a lane is not allowed, or the deadline or the writer ended.

        Cost: O(steps of the episode), 256 steps in a critical section.
        """
        ids: Lanes | None = None
        if lanes is not None:
            ids = self._select(lanes, {}, None, axis=0)[0]
            if ids is not None and not len(ids):
                return
        self._core.abandon(ids, self._timeout_s if timeout_s is None else timeout(timeout_s))

    def create_item(
        self,
        windows: Any,
        *,
        index: str | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **columns: Any,
    ) -> int:
        """Makes one item of an index with Explicit items, from rows of any lane; returns its key.

        The arguments are those of table.create_items without the axis of items: {name: key}; {name: (key, number of
        rows)}, with a negative number for the rows that end with the key; or {name: keys int64[R]}; columns [*shape].

        Raises WriterClosed, and the errors of table.create_items.
        """
        if self.closed:
            raise WriterClosed()
        windows, columns = with_axis(windows, columns)
        keys = self._create_items(windows, index=index, priority=priority, timeout_s=timeout_s, **columns)
        return int(keys[0])

    def set_policy_version(self, version: int | None) -> None:
        """Stamps the rows from now on with this version, 0 to 2**32 - 1; None: with the table's present version."""
        self._core.set_policy_version(None if version is None else integer("version", version, 0, 2**32 - 1))

    # ---- the handle ------------------------------------------------------------------------------------------------

    @property
    def num_lanes(self) -> int | None:
        """Lanes of this writer; None: one lane, whose arrays have no lane axis."""
        return None if self._single else self._num_lanes

    @property
    def closed(self) -> bool:
        """Whether the writer or its table is closed."""
        return self._core.closed

    def close(self) -> None:
        """Cuts the lanes and gives them back. Closing twice is harmless.

        If a writer is dropped without close(), its lanes go to the handle's next writer, or end with the handle. Large
        start values of sequences that the end of an open episode would have moved back may then be lost, and those
        sequences are no items.

        Blocks: for the table's lock, at most the table's timeout_s. Then DeadlineExceeded is raised, the writer stays
        open, and close() may be called again.
        """
        self._core.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"Writer(num_lanes={self.num_lanes}, {state})"

    # ---- arguments -------------------------------------------------------------------------------------------------

    def _write(
        self,
        write: Callable[[dict[str, Any], Lanes | None, Any, float], Any],
        columns: dict[str, Any],
        lanes: npt.ArrayLike | None,
        priority: Any,
        timeout_s: float | None,
        axis: int,
    ) -> Any:
        """append (axis 0 has the lanes) and extend (axis 1), with every argument."""
        columns = self._flattened(columns)
        if axis == 1:  # rows are counted on arrays, and the core takes no tensor for one
            columns = {name: _counted(name, value) for name, value in columns.items()}
        ids: Lanes | None = None
        if lanes is not None:
            ids, columns, priority = self._select(lanes, columns, priority, axis)
            if ids is not None and not len(ids):
                return np.empty((0,) * (axis + 1), np.int64)
        limit_s = self._timeout_s if timeout_s is None else timeout(timeout_s)
        answer: list[Any] = []
        try:
            # No handler of a signal runs between the write and this list.
            answer.extend(map(write, (columns,), (ids,), (priority,), (limit_s,)))
            return answer[0]
        except RequestTooLarge as error:
            raise self._explain(error) from None
        except BaseException as error:
            _tell_stored(error, answer)
            raise

    def _flattened(self, columns: dict[str, Any]) -> dict[str, Any]:
        """The columns by flat name, after a check that none is missing and none is unknown."""
        if self._groups:
            flat: dict[str, Any] = {}
            for name, value in columns.items():
                if name in self._groups:
                    spread(name, value, self._groups[name], flat)
                else:
                    flat[name] = value
            columns = flat
        signature = tuple(columns)
        if signature not in self._remembered:
            self._check_names(columns)
            if len(self._remembered) < _MAX_REMEMBERED:
                self._remembered.add(signature)
        return columns

    def _check_names(self, columns: Mapping[str, Any]) -> None:
        for name in columns:
            if name in self._required or name in self._optional:
                continue
            if name in self._spec.late_columns:
                raise LateColumn(name)
            if name in self._groups or any(known.startswith(name + "/") for known in self._required):
                raise SpecError(f"column {name!r}", "a dict or tuple, as it was declared", columns[name])
            raise UnknownColumn(name, (*self._spec.columns, *self._states, *_ALWAYS_TAKEN))
        for name in self._spec.columns:
            if name in self._required and name not in columns:
                raise MissingColumn(name, columns)
        self._check_next(columns)

    def _check_next(self, columns: Mapping[str, Any]) -> None:
        missing = [name for name in self._states if name not in columns]
        if missing and len(missing) < len(self._states):
            raise MissingColumn(missing[0], columns)

    def _select(
        self, lanes: npt.ArrayLike, columns: dict[str, Any], priority: Any, axis: int
    ) -> tuple[Lanes | None, dict[str, Any], Any]:
        """Lane ids (None: every lane in order); columns and priority with their lane axis cut to these lanes."""
        ids = self._lane_ids(lanes)
        if ids is None or len(ids) == self._num_lanes:
            return None if ids is None else ids.astype(np.int32), columns, priority
        cut = {name: self._rows_of(name, value, ids, axis) for name, value in columns.items()}
        chosen = None if priority is None else self._rows_of("priority", priority, ids, axis)
        return ids.astype(np.int32), cut, chosen

    def _rows_of(self, name: str, value: Any, ids: npt.NDArray[np.intp], axis: int) -> Any:
        if isinstance(value, (bool, int, float)):
            return value
        array = value if isinstance(value, np.ndarray) else as_array(name, value)
        if array.ndim <= axis or array.shape[axis] != self._num_lanes:
            return array
        return array.take(ids, axis)

    def _lane_ids(self, lanes: npt.ArrayLike) -> npt.NDArray[np.intp] | None:
        num_lanes = self._num_lanes
        if self._single:
            raise LaneError("lanes", "none: this writer has one lane without an axis (table.writer())", "lanes given")
        try:
            array = as_array("lanes", lanes)
        except (ShapeMismatch, DtypeMismatch):
            raise LaneError("lanes", "a mask bool[L] or ids int[M]", type(lanes).__name__) from None
        if array.dtype == np.bool_:
            if array.shape != (num_lanes,):
                raise LaneError("mask of lanes", f"bool[{num_lanes}]", f"bool{list(array.shape)}")
            ids = np.flatnonzero(array)
            return None if len(ids) == num_lanes else ids
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise LaneError("lanes", "a mask bool[L] or ids int[M]", f"{array.dtype}{list(array.shape)}")
        outside = array[(array < 0) | (array >= num_lanes)]
        if len(outside):
            raise LaneError("ids of lanes", f"0 to {num_lanes - 1}", int(outside[0]))
        ids = array.astype(np.intp)
        counts = np.bincount(ids, minlength=1)
        if counts.max() > 1:
            raise LaneError("ids of lanes", "each lane once", f"lane {counts.argmax()} {counts.max()} times")
        return ids


def _tell_stored(error: BaseException, answer: list[Any]) -> None:
    """Adds the keys to an error of a signal's handler that ran when the rows were stored, as the core does before."""
    if answer and isinstance(answer[0], int | np.ndarray):  # a writer that streams may still wait for its keys
        keys = np.atleast_1d(np.asarray(answer[0], np.int64)).reshape(-1)
        with suppress(AttributeError):  # the error may take no attributes
            error.stored, error.keys = len(keys), keys  # type: ignore[attr-defined]


def _counted(name: str, value: Any) -> Any:
    # None stands for an end that is not given. The core refuses a mapping, by the column's name.
    return value if value is None or isinstance(value, np.ndarray) else as_array(name, value)
