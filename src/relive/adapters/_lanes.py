"""The lanes of a recorder: what each environment showed last, what it does now, and what is still to be written.

Knows nothing of Gymnasium: it turns "these environments did this and showed that" into append and end_episode calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relive.errors import (
    DeadlineExceeded,
    InvalidConfig,
    MissingColumn,
    MissingNext,
    ReliveError,
    ShapeMismatch,
    TableClosed,
    UnknownColumn,
)
from relive.protocol import ReplayWriter
from relive.spec import StepSpec

Flat = dict[str, NDArray[Any]]
Lanes = NDArray[np.int64]
_FROM_ENVIRONMENT = ("observation", "action", "reward")


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


class _Write(Protocol):
    def __call__(self, *, timeout_s: float | None) -> object: ...


@final
class LaneRecorder:
    """One writer with a lane an environment. One thread at a time.

    A step is stored without its next observation while its episode goes on: the following step brings it. So a reset
    in mid-episode can still end the episode. Rows that met a deadline wait in `_pending`; nothing is lost.
    """

    def __init__(self, table: WritableTable, num_lanes: int, timeout_s: float | None) -> None:
        if num_lanes < 1:
            raise InvalidConfig(what="num_envs", expected=">= 1", got=num_lanes)
        self._spec = table.spec
        self._extra_names = _extra_columns(self._spec)
        self._has_action = _has(self._spec, "action")
        self._has_reward = _has(self._spec, "reward")
        self.writer = table.writer(num_lanes)
        self.closed = False
        self._num_lanes = num_lanes
        self._timeout_s = timeout_s
        self._buffers: Flat = {}  # [L, ...] the last observation, the action under way, the extras
        self._extra_known = {name: np.zeros(num_lanes, np.bool_) for name in self._extra_names}
        self._started = np.zeros(num_lanes, np.bool_)
        self._ended = np.zeros(num_lanes, np.bool_)
        self._unfinished = np.zeros(num_lanes, np.bool_)  # has stored rows of an episode that has not ended
        self._pending: list[_Write] = []

    # ---- what the caller gives -------------------------------------------------------------------------------------

    def flat(self, name: str, value: Any) -> Flat:
        """{flat column: array [M, ...]} of a batched, perhaps nested, value."""
        into: Flat = {}
        self._flatten(name, value, into)
        return into

    def expanded(self, name: str, value: Any) -> Flat:
        """The same of a single value: [1, ...]."""
        return {path: np.asarray(part)[np.newaxis] for path, part in self.flat(name, value).items()}

    def final_observations(self, present: Lanes, ended: NDArray[np.bool_], final: Any) -> Flat:
        """Final observations [E, ...] of the E rows that ended: from arrays [M, ...], or one object a row."""
        rows = np.flatnonzero(ended)
        if not len(rows):
            return {}
        if final is None:
            raise MissingNext(int(present[rows[0]]))
        if not (isinstance(final, np.ndarray) and final.dtype == object):
            return {path: part[rows] for path, part in self.flat("observation", final).items()}
        singles = [self.flat("observation", final[row]) for row in rows]
        return {path: np.stack([single[path] for single in singles]) for path in singles[0]}

    def set_actions(self, lanes: Lanes, actions: Flat) -> None:
        """The actions now under way. Tries first to write what an earlier deadline left over."""
        self.write(None)
        if self._has_action:
            for path, values in actions.items():
                self._put(path, lanes, values)

    def set_extra(self, lanes: Lanes, path: str, values: ArrayLike) -> None:
        """Values [M, ...] of one further column."""
        if path not in self._extra_known:
            raise UnknownColumn(path, self._extra_names)
        self._put(path, lanes, np.asarray(values))
        self._extra_known[path][lanes] = True

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

    def check_extras(self, lanes: Lanes) -> None:
        """Raises MissingColumn unless every further column has a value for these lanes."""
        for name, known in self._extra_known.items():
            if not known[lanes].all():
                raise MissingColumn(name, [path for path, some in self._extra_known.items() if some[lanes].all()])

    @staticmethod
    def _require(fine: NDArray[np.bool_], lanes: Lanes) -> None:
        if not fine[lanes].all():
            raise ResetNeeded(int(lanes[np.flatnonzero(~fine[lanes])[0]]))

    # ---- what the environments did ---------------------------------------------------------------------------------

    def forget(self, lanes: Lanes) -> None:
        """These lanes show nothing until their next row, which is a reset."""
        self._started[lanes] = False

    def restart(self, lanes: Lanes, observation: Flat, rows: NDArray[np.int64] | None = None) -> None:
        """New episodes begin in these lanes at (those rows of) the observation."""
        for path, values in observation.items():
            self._put(path, lanes, values if rows is None else np.asarray(values)[rows])
        self._started[lanes] = True
        self._ended[lanes] = False
        self._unfinished[lanes] = False

    def end_unfinished(self, lanes: Lanes) -> None:
        """Ends the open episodes of these lanes as truncated at their last observation. Blocks as a write does."""
        self.write(None)
        self._plan_end(lanes)
        self.write(None)

    def receive(
        self,
        present: Lanes,
        observation: Flat,
        reward: NDArray[Any],
        ends: tuple[NDArray[np.bool_], NDArray[np.bool_]],
        final: Flat | None = None,
    ) -> None:
        """Plans the rows of the lanes present, [M, ...] each, for `write`.

        Lanes that had ended, or not begun, show a reset: nothing of it is stored. final: observations [E, ...] of the
        E lanes that ended, where `observation` holds the next episode's already; None: `observation` holds them.
        """
        terminated, truncated = ends
        stored = self._started[present] & ~self._ended[present]
        over = terminated | truncated
        going, done = np.flatnonzero(stored & ~over), np.flatnonzero(stored & over)
        if len(going):
            self._plan_append(present[going], reward[going], {})
        if len(done):
            if final is None:
                bootstrap = {path: np.asarray(values)[done] for path, values in observation.items()}
            else:
                of_done = stored[over]
                bootstrap = {path: values[of_done] for path, values in final.items()}
            following: Flat = {f"next_{path}": self._newest(path, part) for path, part in bootstrap.items()}
            following["terminated"], following["truncated"] = terminated[done], truncated[done]
            self._plan_append(present[done], reward[done], following)
        for path, values in observation.items():
            self._put(path, present, values)
        self._started[present] = True
        self._ended[present] = stored & over if final is None else False
        self._unfinished[present] = stored & ~over

    def write(self, timeout_s: float | None) -> None:
        """Writes what is planned. On DeadlineExceeded the rest stays planned."""
        deadline_s = self._timeout_s if timeout_s is None else timeout_s
        while self._pending:
            self._pending[0](timeout_s=deadline_s)
            del self._pending[0]

    def close(self) -> None:
        """Ends open episodes as truncated as far as the limiter lets it at once, and closes the writer."""
        if self.closed:
            return
        self.closed = True
        try:
            self.write(0.0)
            self._plan_end(np.arange(self._num_lanes))
            self.write(0.0)
        except (DeadlineExceeded, TableClosed):
            self._pending.clear()  # the writer cuts its lanes instead: their last rows become bootstrap states
        self.writer.close()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _plan_append(self, lanes: Lanes, reward: NDArray[Any], following: Flat) -> None:
        columns: dict[str, Any] = {path: buffer[lanes] for path, buffer in self._buffers.items()}
        columns.update(following)
        if self._has_reward:
            columns["reward"] = reward
        self._pending.append(partial(self.writer.append, lanes=self._named(lanes), **columns))

    def _plan_end(self, lanes: Lanes) -> None:
        lanes = lanes[self._unfinished[lanes]]
        if len(lanes):
            last: dict[str, Any] = {
                f"next_{path}": self._buffers[path][lanes] for path in self._spec.expand("observation")
            }
            self._pending.append(partial(self.writer.end_episode, lanes=self._named(lanes), truncated=True, **last))
            self._unfinished[lanes] = False

    def _named(self, lanes: Lanes) -> Lanes | None:
        everyone = len(lanes) == self._num_lanes and bool((lanes == np.arange(self._num_lanes)).all())
        return None if everyone else lanes

    def _put(self, path: str, lanes: Lanes, values: ArrayLike) -> None:
        array = self._newest(path, np.asarray(values))
        shape = self._spec.columns[path].shape if path in self._spec.columns else array.shape[1:]
        if array.shape != (len(lanes), *shape):
            raise ShapeMismatch(path, (len(lanes), *shape), array.shape)
        buffer = self._buffers.get(path)
        if buffer is None or buffer.dtype != array.dtype:
            # The environment's own dtype: the writer casts, and refuses where that would lose something.
            fresh = np.zeros(
                (self._num_lanes, *shape),
                array.dtype if buffer is None else np.promote_types(buffer.dtype, array.dtype),
            )
            if buffer is not None:
                fresh[...] = buffer
            self._buffers[path] = buffer = fresh
        buffer[lanes] = array

    def _newest(self, path: str, values: NDArray[Any]) -> NDArray[Any]:
        column = self._spec.columns.get(path)
        if column is not None and path in self._spec.unstack and values.ndim == len(column.shape) + 2:
            return values[:, -1]
        return values

    def _flatten(self, name: str, value: Any, into: Flat) -> None:
        if isinstance(value, Mapping):
            for key, part in value.items():
                self._flatten(f"{name}/{key}", part, into)
        elif isinstance(value, (tuple, list)) and self._spec.is_tuple(name):
            for position, part in enumerate(value):
                self._flatten(f"{name}/{position}", part, into)
        else:
            into[name] = value if isinstance(value, np.ndarray) else np.asarray(value)


def _has(spec: StepSpec, top: str) -> bool:
    return any(path == top or path.startswith(top + "/") for path in spec.columns)


def _extra_columns(spec: StepSpec) -> list[str]:
    """The columns that an environment does not give; refuses states among them, whose last value nobody would give."""
    if not _has(spec, "observation"):
        raise InvalidConfig(
            what="table to record into",
            expected="a column 'observation', as StepSpec.from_spaces declares it",
            got=list(spec.columns),
        )
    extras = [path for path in spec.columns if path.partition("/")[0] not in _FROM_ENVIRONMENT]
    for path in extras:
        if spec.columns[path].kind == "state":
            raise InvalidConfig(
                what=f"column {path!r}",
                expected="kind 'step' or 'start': state columns come from the observation",
                got="state",
            )
    return extras
