"""The lanes of a recorder: each environment's last observation, its present action, and the rows to be written.

The module does not know Gymnasium. It turns actions and observations of environments into calls of `append` and
`end_episode`.

A stored transition always joins two states that followed each other, also after an error or a Ctrl-C:

- A row is checked whole before anything changes.
- A step that cannot be stored cuts its episode. The environment is then *lost*: it runs, but its present state is not
  known until its next row shows it.
- An environment is *moving* from its action until its row is planned. One that still moves at its next action is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import starmap
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relive.adapters.errors import EnvironmentClosed, ResetNeeded, tell
from relive.adapters.planned import Append, End
from relive.adapters.rows import Flat, Lanes, Rows
from relive.checks.values import integer, timeout
from relive.config.casting import unmasked
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
    stored_before,
)

Ends = tuple[NDArray[np.bool_], NDArray[np.bool_]]  # terminated, truncated
Priority = Callable[[dict[str, Any]], ArrayLike]  # {flat name: array [M, ...]} of M steps -> priorities [M]


class WritableTable(Protocol):
    """The part of a table that a recorder needs."""

    @property
    def spec(self) -> StepSpec:
        """The columns of a step."""
        ...

    def writer(self, num_lanes: int | None = None) -> ReplayWriter:
        """Opens a writer with num_lanes lanes."""
        ...


# After these errors, and after those of a signal handler, an end is written later. Its lane takes no row until then.
_TRANSIENT = (StorageFull, SystemFailure, ServiceUnavailable)


@final
class LaneRecorder:
    """A writer with one lane for each environment. For one thread at a time.

    While an episode goes on, its last step is stored without the next observation, which the following step brings. So
    a reset in mid-episode can still end the episode. Rows whose write met a deadline wait in `_pending`; none is lost.
    """

    def __init__(
        self,
        table: WritableTable,
        num_lanes: int,
        timeout_s: float | None,
        priority: Priority | None = None,
        single: bool = False,
    ) -> None:
        """Opens the writer.

        Args:
            table: the table.
            num_lanes: number of environments.
            timeout_s: deadline of each write in seconds. None: the table's default.
            priority: gives the first priorities of a step's items, before the step is stored. An error of the function
                refuses the step. None: the index's own.
            single: whether values come and go without an axis of environments. Default: False.
        """
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
        }  # the last observation, the present action, the extras
        self._extra_known = {name: np.zeros(num_lanes, np.bool_) for name in self.rows.extras}
        self._started = np.zeros(num_lanes, np.bool_)
        self._ended = np.zeros(num_lanes, np.bool_)
        self._lost = np.zeros(num_lanes, np.bool_)
        self._moving = np.zeros(num_lanes, np.bool_)
        self._unfinished = np.zeros(num_lanes, np.bool_)  # the writer has rows of an episode that has not ended
        self._pending: list[Append | End] = []
        self._priority = priority
        self.item_keys = np.full(num_lanes, -1, np.int64)  # of each lane's last step; -1: not stored

    # ---- checks before anything moves ------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises EnvironmentClosed after close."""
        if self.closed:
            raise EnvironmentClosed("the recorded environment")

    def check_started(self, lanes: Lanes) -> None:
        """Raises ResetNeeded unless all lanes have had an observation."""
        self._require(self._started, lanes)

    def check_running(self, lanes: Lanes) -> None:
        """Raises ResetNeeded unless all lanes are in an episode."""
        self._require(self._started & ~self._ended, lanes)

    def ids(self, given: ArrayLike) -> Lanes:
        """Returns numbers of environments as int64[M]. Raises LaneError if they are not such numbers."""
        array = unmasked("env_id", given)
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
        """Returns the environments of a mask. Raises LaneError if the mask is not bool[L]."""
        array = unmasked("reset_mask", mask)
        if array.shape != (self._num_lanes,) or array.dtype != np.bool_:
            raise LaneError("reset_mask", f"bool[{self._num_lanes}]", f"{array.dtype}{list(array.shape)}")
        return np.flatnonzero(array)

    @staticmethod
    def _require(fine: NDArray[np.bool_], lanes: Lanes) -> None:
        if not fine[lanes].all():
            raise ResetNeeded(int(lanes[np.flatnonzero(~fine[lanes])[0]]))

    # ---- actions and extras ----------------------------------------------------------------------------------------

    def prepare(self, lanes: Lanes, actions: Any, extras: Mapping[str, Any] | None) -> None:
        """Takes the actions of the next step, and extras. First writes rows that an earlier deadline left over.

        Raises, before any environment has moved, the error of an action, of an extra, or of an earlier row.
        """
        exact = self.rows.of("action", actions, len(lanes))
        if extras is not None:
            self.set_extras(lanes, extras)
        for name, known in self._extra_known.items():
            if not known[lanes].all():
                raise MissingColumn(name, [path for path, some in self._extra_known.items() if some[lanes].all()])
        if len(stopped := lanes[self._moving[lanes]]):  # a signal stopped the step of these lanes
            self.lose(stopped)
        self.write(None)
        self._put(lanes, exact)
        self._moving[lanes] = True

    def set_extras(self, lanes: Lanes, extras: Mapping[str, Any]) -> None:
        """Takes values [M, ...] of further columns: all of them or, after an error, none."""
        if not isinstance(extras, Mapping):
            raise InvalidConfig("extras", "a dict {column: values}", extras)
        exact: Flat = {}
        for name, value in extras.items():
            exact.update(self.rows.of_extra(name, value, len(lanes)))
        self._put(lanes, exact)
        for path in exact:
            self._extra_known[path][lanes] = True

    # ---- rows of the environments ----------------------------------------------------------------------------------

    def forget(self, lanes: Lanes) -> None:
        """Notes that the next row of these lanes is a reset."""
        self._started[lanes] = False

    def restart(self, present: Lanes, observation: Any, rows: NDArray[np.int64] | None = None) -> None:
        """Begins new episodes at an observation [M, ...] of the lanes present. After an error no episode has begun.

        rows: the rows whose lanes begin an episode. None: all rows.
        """
        lanes = present if rows is None else present[rows]
        for path, values in self.rows.of("observation", observation, len(present)).items():
            self._buffers[path][lanes] = values if rows is None else values[rows]
        self._started[lanes] = True
        self._ended[lanes] = self._lost[lanes] = self._moving[lanes] = False

    def end_unfinished(self, lanes: Lanes) -> None:
        """Ends the open episodes of these lanes as truncated, at their last observation. Blocks as a write does."""
        self.write(None)
        if self._unfinished[lanes].any():
            self._pending.append(End(lanes, self._states(lanes)))
            self.write(None)

    def receive(
        self, present: Lanes, step: tuple[Any, Any, Any, Any], final: Any = None, same_step: bool = False
    ) -> None:
        """Plans the rows of a step for `write`.

        The row of a lost lane is not stored. Nor is a reset: the row of a lane whose episode had ended or not begun.

        Args:
            present: the lanes of the rows.
            step: (observation, reward, terminated, truncated), each [M, ...].
            final: the last observations of the episodes that ended; for same_step only.
            same_step: whether `observation` contains the next episode's first observation if an episode ended.

        Raises:
            ReliveError: a value was refused. Nothing of the step is stored, and the episodes are cut. The error names
                the lanes: `lanes_not_stored`.
        """
        observation, reward, terminated, truncated = step
        over, first = None, len(self._pending)
        try:
            self.item_keys[present] = -1
            num = len(present)
            ends = self.rows.ends("terminated", terminated, num), self.rows.ends("truncated", truncated, num)
            over = ends[0] | ends[1]
            shown = self.rows.of("observation", observation, num)
            rewards = self.rows.of("reward", reward, num)
            last = self.rows.final(present, over, final) if same_step else None
            rewards.update(self._priorities(present, shown, rewards, ends, last))
            self._plan(present, shown, rewards, ends, last)
        except BaseException as error:
            self._pending[first:] = [self._undone(one) for one in self._pending[first:] if isinstance(one, Append)]
            self.lose(present, None if same_step else over)
            if not isinstance(error, ReliveError):
                raise
            raise tell(error, present) from None

    def lose(self, lanes: Lanes, over: NDArray[np.bool_] | None = None) -> None:
        """Ends the episodes of these lanes as truncated at their last observation, because a step is not known.

        over: whether the row of each lane shows an end, if known.
        """
        stored = lanes[self._is_stored(lanes)]
        if len(stored):
            self._pending.append(End(stored, self._states(stored)))
        if over is not None:
            self._ended[lanes] = over
        self._lost[lanes] = True

    def write(self, timeout_s: float | None) -> None:
        """Writes all planned rows. After DeadlineExceeded the rest stays planned. A refused step is dropped.

        The lanes of a step that were stored before an error are not written again.
        """
        deadline_s = self._timeout_s if timeout_s is None else timeout(timeout_s)
        while self._pending:
            planned = self._pending[0]
            answer: list[Any] = []
            try:
                self._apply(planned, deadline_s, answer)
                del self._pending[0]
            except BaseException as error:
                if not self._pending or self._pending[0] is not planned:
                    raise
                if isinstance(planned, Append):
                    keys = answer[0] if answer else stored_before(error)
                    self._note(planned, keys)
                    planned = self._pending[0] = planned.after(len(keys))
                may_be_stored = bool(getattr(error, "unanswered", 0))  # by a server whose answer was not waited for
                if may_be_stored or (isinstance(error, Exception) and not isinstance(error, DeadlineExceeded)):
                    self._give_up(planned, error)
                raise

    def close(self) -> None:
        """Closes the writer in any case, and before that ends open episodes as truncated if the limiter permits.

        Rows that still wait for the limiter are dropped. Raises the error of a row that is refused now.
        """
        first, self.closed = not self.closed, True
        try:
            if first:
                self.write(0.0)
                everyone = np.arange(self._num_lanes)
                self._pending.append(End(everyone, self._states(everyone)))
                self.write(0.0)
        except (DeadlineExceeded, TableClosed):
            pass  # the writer then cuts its lanes: their last rows become bootstrap states
        finally:
            self._pending.clear()
            self.writer.close()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _is_stored(self, lanes: Lanes) -> NDArray[np.bool_]:
        """Whether the next row of each lane is a step that can be stored."""
        stored: NDArray[np.bool_] = (self._started & ~self._ended & ~self._lost)[lanes]
        return stored

    def _priorities(self, present: Lanes, shown: Flat, rewards: Flat, ends: Ends, last: Flat | None) -> Flat:
        """Returns {"priority": [M]} of the user's function, for the rows that are steps. Empty without a function."""
        if self._priority is None:
            return {}
        found = np.zeros(len(present), np.float64)
        rows = np.flatnonzero(self._is_stored(present))
        if not len(rows):
            return {"priority": found}
        columns: dict[str, Any] = {path: buffer[present[rows]] for path, buffer in self._buffers.items()}
        columns.update({path: part[rows] for path, part in rewards.items()})
        for path, part in shown.items():
            following = part.copy()
            if last:  # empty if no episode ended
                following[ends[0] | ends[1]] = last[path]
            columns[f"next_{path}"] = following[rows]
        columns.update(terminated=ends[0][rows], truncated=ends[1][rows])
        given = unmasked("priority", self._priority(columns))
        if given.shape != rows.shape:
            raise ShapeMismatch("priority", rows.shape, given.shape)
        if given.dtype.kind not in "fiu":
            raise DtypeMismatch("priority", "float32", str(given.dtype))
        found[rows] = given
        return {"priority": found}

    def _plan(self, present: Lanes, shown: Flat, rewards: Flat, ends: Ends, last: Flat | None) -> None:
        stored = self._is_stored(present)
        over = ends[0] | ends[1]
        going, done = np.flatnonzero(stored & ~over), np.flatnonzero(stored & over)
        if len(going):
            self._plan_append(present, going, rewards, over, {})
        if len(done):
            which = done if last is None else stored[over]
            following = {f"next_{path}": part[which] for path, part in (shown if last is None else last).items()}
            following.update(terminated=ends[0][done], truncated=ends[1][done])
            self._plan_append(present, done, rewards, over, following)
        self._put(present, shown)
        self._ended[present] = (stored | self._lost[present]) & over if last is None else False
        self._started[present] = True
        self._lost[present] = self._moving[present] = False

    def _plan_append(
        self, present: Lanes, rows: NDArray[np.int64], rewards: Flat, over: NDArray[np.bool_], following: Flat
    ) -> None:
        lanes = present[rows]
        columns: dict[str, Any] = {path: buffer[lanes] for path, buffer in self._buffers.items()}
        columns.update({path: part[rows] for path, part in rewards.items()})
        columns.update(following)
        self._pending.append(Append(lanes, columns, over[rows]))

    def _apply(self, planned: Append | End, timeout_s: float | None, answer: list[Any]) -> None:
        """Makes a planned write. Puts the keys of an Append into `answer` as soon as its rows are stored."""
        lanes = planned.lanes
        if isinstance(planned, Append):
            if len(lanes):  # Ctrl-C may have stopped a write that had stored all of its rows
                write = partial(self.writer.append, lanes=self._named(lanes), timeout_s=timeout_s, **planned.columns)
                answer.extend(starmap(write, ((),)))  # no signal handler runs between the write and this list
                self._note(planned, answer[0])
            return
        is_open = self._unfinished[lanes]
        lanes = lanes[is_open]
        if len(lanes):
            states: dict[str, Any] = {name: part[is_open] for name, part in planned.states.items()}
            self.writer.end_episode(lanes=self._named(lanes), truncated=True, timeout_s=timeout_s, **states)
            self._unfinished[lanes] = False

    def _note(self, planned: Append, keys: NDArray[np.int64]) -> None:
        """Notes the first len(keys) lanes of a step as stored."""
        stored = planned.lanes[: len(keys)]
        self.item_keys[stored] = keys
        self._unfinished[stored] = ~planned.over[: len(keys)]

    def _give_up(self, planned: Append | End, error: BaseException) -> None:
        """Drops the first planned write. A later try would be refused, too, or it would be stored twice."""
        if isinstance(planned, Append):
            self._pending[0] = self._undone(planned)
            if isinstance(error, ReliveError):
                tell(error, planned.lanes)
        elif isinstance(error, ReliveError) and not isinstance(error, _TRANSIENT):
            self._unfinished[planned.lanes] = False
            del self._pending[0]

    def _undone(self, planned: Append) -> End:
        """Returns the End that takes the place of a planned step. Its states are those before the step."""
        return End(planned.lanes, {f"next_{path}": planned.columns[path] for path in self.rows.observation})

    def _states(self, lanes: Lanes) -> Flat:
        return {f"next_{path}": self._buffers[path][lanes] for path in self.rows.observation}

    def _put(self, lanes: Lanes, values: Flat) -> None:
        for path, part in values.items():
            self._buffers[path][lanes] = part

    def _named(self, lanes: Lanes) -> Lanes | None:
        everyone = len(lanes) == self._num_lanes and bool((lanes == np.arange(self._num_lanes)).all())
        return None if everyone else lanes
