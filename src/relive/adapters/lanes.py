"""The lanes of a recorder: what each environment showed last, what it does now, and what is still to be written.

Knows nothing of Gymnasium: it turns "these environments did this and showed that" into append and end_episode calls.

A stored transition joins two states that followed each other, whatever is refused: what came is checked whole before
anything changes, and a step that cannot be stored cuts its episode. Its environment is then *lost*: it runs, but what
it showed is not known, until its next row shows where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relive.adapters.rows import Flat, Lanes, Rows
from relive.checks.values import integer, timeout
from relive.config.spec import StepSpec
from relive.core.protocol import ReplayWriter
from relive.errors import (
    DeadlineExceeded,
    DtypeMismatch,
    InvalidConfig,
    LaneError,
    MissingColumn,
    ReliveError,
    ServiceUnavailable,
    ShapeMismatch,
    StorageFull,
    SystemFailure,
    TableClosed,
)

Ends = tuple[NDArray[np.bool_], NDArray[np.bool_]]  # terminated, truncated
Priority = Callable[[dict[str, Any]], ArrayLike]  # {flat name: array [M, ...]} of M steps -> their priorities [M]


@final
class EnvironmentClosed(ReliveError):
    """A recorded environment was used after it, or its recorder, was closed."""

    def __init__(self, environment: str) -> None:
        self.environment = environment
        super().__init__(f"{environment} is closed: make and record a new environment to go on")


@final
class ResetNeeded(ReliveError):
    """An environment was to be stepped before its first reset, or after an end without one."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        super().__init__(
            f"environment {lane} has no episode: call reset() first, and after an end too where the environment"
            " does not reset itself (of a vector: options={'reset_mask': mask})"
        )


class WritableTable(Protocol):
    """What the recorder needs of a table."""

    @property
    def spec(self) -> StepSpec:
        """What a step holds."""
        ...

    def writer(self, num_lanes: int | None = None) -> ReplayWriter:
        """A writer of num_lanes lanes."""
        ...


@dataclass(frozen=True)
class _Append:
    """One step of these lanes, still to be written; over: which of them it ends."""

    lanes: Lanes
    columns: dict[str, Any]
    over: NDArray[np.bool_]


@dataclass(frozen=True)
class _End:
    """The end, as truncated, of those episodes of these lanes that are open when it is written, at these states."""

    lanes: Lanes
    states: Flat


# After these an end may still be written later; until it is, nothing else goes into its lane.
_TRANSIENT = (StorageFull, SystemFailure, ServiceUnavailable)


@final
class LaneRecorder:
    """One writer with a lane an environment. One thread at a time.

    A step is stored without its next observation while its episode goes on: the following step brings it. So a reset
    in mid-episode can still end the episode. Rows that met a deadline wait in `_pending`; nothing of them is lost.
    priority: what the items of a step begin with, asked before the step is stored; one that fails refuses the step.
    single: values come and go without an axis of environments.
    """

    def __init__(
        self,
        table: WritableTable,
        num_lanes: int,
        timeout_s: float | None,
        priority: Priority | None = None,
        single: bool = False,
    ) -> None:
        if priority is not None and not callable(priority):
            raise InvalidConfig("priority", "a function of a step's columns, or None", priority)
        self._num_lanes = integer("num_envs", num_lanes, 1)
        self._timeout_s = None if timeout_s is None else timeout(timeout_s)
        self.rows = Rows(table.spec, single)
        self.writer = table.writer(self._num_lanes)
        self.closed = False
        self._buffers: Flat = {
            path: np.zeros((self._num_lanes, *column.shape), column.dtype)
            for path, column in table.spec.columns.items()
            if path.partition("/")[0] != "reward"
        }  # the last observation, the action under way, the extras
        self._extra_known = {name: np.zeros(num_lanes, np.bool_) for name in self.rows.extras}
        self._started = np.zeros(num_lanes, np.bool_)
        self._ended = np.zeros(num_lanes, np.bool_)
        self._lost = np.zeros(num_lanes, np.bool_)
        self._unfinished = np.zeros(num_lanes, np.bool_)  # the writer has rows of an episode that has not ended
        self._pending: list[_Append | _End] = []
        self._priority = priority
        self.item_keys = np.full(num_lanes, -1, np.int64)  # of the last step of each lane, -1 where it is not stored

    # ---- checks before anything moves ------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises EnvironmentClosed after close."""
        if self.closed:
            raise EnvironmentClosed("the recorded environment")

    def check_started(self, lanes: Lanes) -> None:
        """Raises ResetNeeded unless all lanes have shown an observation."""
        self._require(self._started, lanes)

    def check_running(self, lanes: Lanes) -> None:
        """Raises ResetNeeded unless all lanes are in an episode."""
        self._require(self._started & ~self._ended, lanes)

    def ids(self, given: ArrayLike) -> Lanes:
        """Environments by number, int64[M], or LaneError."""
        array = np.asarray(given)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise LaneError("env_id", "int[M]", f"{array.dtype}{list(array.shape)}")
        outside = array[(array < 0) | (array >= self._num_lanes)]
        if len(outside):
            raise LaneError("env_id", f"0 to {self._num_lanes - 1}", int(outside[0]))
        lanes = array.astype(np.int64)
        if len(lanes) and np.bincount(lanes).max() > 1:
            raise LaneError("env_id", "each environment once", str(lanes.tolist()))
        return lanes

    def masked(self, mask: ArrayLike) -> Lanes:
        """The environments of a mask bool[L], or LaneError."""
        array = np.asarray(mask)
        if array.shape != (self._num_lanes,) or array.dtype != np.bool_:
            raise LaneError("reset_mask", f"bool[{self._num_lanes}]", f"{array.dtype}{list(array.shape)}")
        return np.flatnonzero(array)

    @staticmethod
    def _require(fine: NDArray[np.bool_], lanes: Lanes) -> None:
        if not fine[lanes].all():
            raise ResetNeeded(int(lanes[np.flatnonzero(~fine[lanes])[0]]))

    # ---- what the caller gives -------------------------------------------------------------------------------------

    def prepare(self, lanes: Lanes, actions: Any, extras: Mapping[str, Any] | None) -> None:
        """The actions now under way, and extras. Writes first what an earlier deadline left over.

        Raises before any environment has moved: what is wrong with an action, an extra, or an earlier row.
        """
        exact = self.rows.of("action", actions, len(lanes))
        if extras is not None:
            self.set_extras(lanes, extras)
        for name, known in self._extra_known.items():
            if not known[lanes].all():
                raise MissingColumn(name, [path for path, some in self._extra_known.items() if some[lanes].all()])
        self.write(None)
        self._put(lanes, exact)

    def set_extras(self, lanes: Lanes, extras: Mapping[str, Any]) -> None:
        """Values [M, ...] of further columns, all of them or none."""
        if not isinstance(extras, Mapping):
            raise InvalidConfig("extras", "a dict {column: values}", extras)
        exact: Flat = {}
        for name, value in extras.items():
            exact.update(self.rows.of_extra(name, value, len(lanes)))
        self._put(lanes, exact)
        for path in exact:
            self._extra_known[path][lanes] = True

    # ---- what the environments did ---------------------------------------------------------------------------------

    def forget(self, lanes: Lanes) -> None:
        """These lanes show nothing until their next row, which is a reset."""
        self._started[lanes] = False

    def restart(self, present: Lanes, observation: Any, rows: NDArray[np.int64] | None = None) -> None:
        """New episodes begin in the lanes present (in those of its rows) at the observation; refused, none does."""
        lanes = present if rows is None else present[rows]
        for path, values in self.rows.of("observation", observation, len(present)).items():
            self._buffers[path][lanes] = values if rows is None else values[rows]
        self._started[lanes] = True
        self._ended[lanes] = False
        self._lost[lanes] = False

    def end_unfinished(self, lanes: Lanes) -> None:
        """Ends the open episodes of these lanes as truncated at their last observation. Blocks as a write does."""
        self.write(None)
        if self._unfinished[lanes].any():
            self._pending.append(_End(lanes, self._states(lanes)))
            self.write(None)

    def receive(
        self, present: Lanes, step: tuple[Any, Any, Any, Any], final: Any = None, same_step: bool = False
    ) -> None:
        """Plans the rows of the lanes present for `write`: step = (observation, reward, terminated, truncated).

        Lanes that had ended, or not begun, show a reset: nothing of it is stored, nor of lanes that were lost.
        same_step: `observation` holds the next episode's where one ended, and `final` the last of the old one.
        Refused, nothing of it is stored and the episodes are cut; the error says so and names them: lanes_not_stored.
        """
        observation, reward, terminated, truncated = step
        self.item_keys[present] = -1
        over = None
        try:
            ends = tuple(
                self.rows.ends(name, value, len(present))
                for name, value in (("terminated", terminated), ("truncated", truncated))
            )
            over = ends[0] | ends[1]
            shown = self.rows.of("observation", observation, len(present))
            rewards = self.rows.of("reward", reward, len(present))
            last = self.rows.final(present, over, final) if same_step else None
            priorities = self._priorities(present, shown, rewards, (ends[0], ends[1]), last)
        except BaseException as error:
            self.lose(present, None if same_step else over)
            if not isinstance(error, ReliveError):
                raise
            raise tell(error, present) from None
        self._plan(present, shown, rewards, (ends[0], ends[1]), last, priorities)

    def lose(self, lanes: Lanes, over: NDArray[np.bool_] | None = None) -> None:
        """What these lanes did is not known: their episodes end, truncated, at what they showed before.

        over: which of them show an end, where that is known.
        """
        stored = lanes[self._is_stored(lanes)]
        if len(stored):
            self._pending.append(_End(stored, self._states(stored)))
        if over is not None:
            self._ended[lanes] = over
        self._lost[lanes] = True

    def write(self, timeout_s: float | None) -> None:
        """Writes what is planned. On DeadlineExceeded the rest stays planned; a step that is refused is dropped."""
        deadline_s = self._timeout_s if timeout_s is None else timeout(timeout_s)
        while self._pending:
            planned = self._pending[0]
            try:
                self._apply(planned, deadline_s)
            except DeadlineExceeded:
                raise
            except Exception as error:
                self._give_up(planned, error)
                raise
            del self._pending[0]

    def close(self) -> None:
        """Ends open episodes as truncated as far as the limiter lets it at once, and closes the writer, always.

        Raises what is refused now. Rows that still wait for the limiter are dropped.
        """
        first, self.closed = not self.closed, True
        try:
            if first:
                self.write(0.0)
                everyone = np.arange(self._num_lanes)
                self._pending.append(_End(everyone, self._states(everyone)))
                self.write(0.0)
        except (DeadlineExceeded, TableClosed):
            pass  # the writer cuts its lanes instead: their last rows become bootstrap states
        finally:
            self._pending.clear()
            self.writer.close()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _is_stored(self, lanes: Lanes) -> NDArray[np.bool_]:
        """Of which lanes the next row is a step that can be stored."""
        stored: NDArray[np.bool_] = (self._started & ~self._ended & ~self._lost)[lanes]
        return stored

    def _priorities(
        self, present: Lanes, shown: Flat, rewards: Flat, ends: Ends, last: Flat | None
    ) -> NDArray[np.float64] | None:
        """What the user's function makes of the steps among the rows, [M] for all rows; None without a function."""
        if self._priority is None:
            return None
        found = np.zeros(len(present), np.float64)
        rows = np.flatnonzero(self._is_stored(present))
        if not len(rows):
            return found
        columns: dict[str, Any] = {path: buffer[present[rows]] for path, buffer in self._buffers.items()}
        columns.update({path: part[rows] for path, part in rewards.items()})
        for path, part in shown.items():
            following = part.copy()
            if last:  # empty where none ended
                following[ends[0] | ends[1]] = last[path]
            columns[f"next_{path}"] = following[rows]
        columns.update(terminated=ends[0][rows], truncated=ends[1][rows])
        given = np.asarray(self._priority(columns))
        if given.shape != rows.shape:
            raise ShapeMismatch("priority", rows.shape, given.shape)
        if given.dtype.kind not in "fiu":
            raise DtypeMismatch("priority", "float32", str(given.dtype))
        found[rows] = given
        return found

    def _plan(
        self,
        present: Lanes,
        shown: Flat,
        rewards: Flat,
        ends: Ends,
        last: Flat | None,
        priorities: NDArray[np.float64] | None,
    ) -> None:
        stored = self._is_stored(present)
        over = ends[0] | ends[1]
        going, done = np.flatnonzero(stored & ~over), np.flatnonzero(stored & over)
        given = {} if priorities is None else {"priority": priorities}
        if len(going):
            self._plan_append(present, going, {**rewards, **given}, over, {})
        if len(done):
            which = done if last is None else stored[over]
            following = {f"next_{path}": part[which] for path, part in (shown if last is None else last).items()}
            following.update(terminated=ends[0][done], truncated=ends[1][done])
            self._plan_append(present, done, {**rewards, **given}, over, following)
        self._put(present, shown)
        self._ended[present] = (stored | self._lost[present]) & over if last is None else False
        self._started[present] = True
        self._lost[present] = False

    def _plan_append(
        self, present: Lanes, rows: NDArray[np.int64], rewards: Flat, over: NDArray[np.bool_], following: Flat
    ) -> None:
        lanes = present[rows]
        columns: dict[str, Any] = {path: buffer[lanes] for path, buffer in self._buffers.items()}
        columns.update({path: part[rows] for path, part in rewards.items()})
        columns.update(following)
        self._pending.append(_Append(lanes, columns, over[rows]))

    def _apply(self, planned: _Append | _End, timeout_s: float | None) -> None:
        lanes = planned.lanes
        if isinstance(planned, _Append):
            keys = self.writer.append(lanes=self._named(lanes), timeout_s=timeout_s, **planned.columns)
            self.item_keys[lanes] = keys
            self._unfinished[lanes] = ~planned.over
            return
        is_open = self._unfinished[lanes]
        lanes = lanes[is_open]
        if len(lanes):
            states: dict[str, Any] = {name: part[is_open] for name, part in planned.states.items()}
            self.writer.end_episode(lanes=self._named(lanes), truncated=True, timeout_s=timeout_s, **states)
            self._unfinished[lanes] = False

    def _give_up(self, planned: _Append | _End, error: Exception) -> None:
        """The first of what is planned was refused: no later try of the same would fare better."""
        if isinstance(planned, _Append):
            states = {f"next_{path}": planned.columns[path] for path in self.rows.observation}
            self._pending[0] = _End(planned.lanes, states)
            if isinstance(error, ReliveError):
                tell(error, planned.lanes)
        elif not isinstance(error, _TRANSIENT):
            self._unfinished[planned.lanes] = False
            del self._pending[0]

    def _states(self, lanes: Lanes) -> Flat:
        return {f"next_{path}": self._buffers[path][lanes] for path in self.rows.observation}

    def _put(self, lanes: Lanes, values: Flat) -> None:
        for path, part in values.items():
            self._buffers[path][lanes] = part

    def _named(self, lanes: Lanes) -> Lanes | None:
        everyone = len(lanes) == self._num_lanes and bool((lanes == np.arange(self._num_lanes)).all())
        return None if everyone else lanes


def tell(error: ReliveError, lanes: Lanes) -> ReliveError:
    """The error, saying what became of the step."""
    names = ", ".join(map(str, lanes[:8])) + (", ..." if len(lanes) > 8 else "")
    error.args = (
        f"{error}; environment {names} took this step and it is not stored: the stored episode is cut before it, and"
        " recording goes on from what the environment shows after it",
    )
    setattr(error, "lanes_not_stored", tuple(int(lane) for lane in lanes))  # noqa: B010
    return error
