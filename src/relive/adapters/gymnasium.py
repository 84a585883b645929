"""Recording from Gymnasium: every step of an environment, or of a vector of them, goes into a table as it is taken.

    envs = relive.adapters.gymnasium.record(gymnasium.make_vec("CartPole-v1", 8), table)
    observation, info = envs.reset(seed=0)
    observation, reward, terminated, truncated, info = envs.step(actions)      # stored: one row a lane that moved

A step that the table refuses (a reward of another shape, an observation out of range) raises and is not stored; nor is
one whose environment raised. The stored episode is cut there, as truncated, at the last observation before it, and the
recorder goes on from what the environment shows after it: no transition joins states that did not follow each other.
The error's `lanes_not_stored` names the environments; `finish_step()` returns what they gave.

The table's columns are `observation`, `action` and `reward` as `relive.StepSpec.from_spaces` declares them (each only
if the spec has it), and any further step and start columns, given with `step(actions, extras=...)` or `set_extras`.
Observations, actions and rewards of the environment itself are handed on untouched.

Imports gymnasium: `import relive` alone does not import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relive.adapters.lanes import EnvironmentClosed, LaneRecorder, Priority, ResetNeeded, WritableTable, tell
from relive.checks.names import names_arguments
from relive.checks.values import integer
from relive.core.protocol import ReplayWriter
from relive.errors import InvalidConfig, MissingPackage, ReliveError
from relive.errors.extras import install_command

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
except ImportError as _problem:
    _package = _problem.name or "gymnasium"
    raise MissingPackage("relive.adapters.gymnasium", _package, install_command("gymnasium")) from _problem

__all__ = ["EnvironmentClosed", "RecordedEnv", "RecordedVectorEnv", "ResetNeeded", "record"]

Extras = Mapping[str, ArrayLike]


@overload
def record(
    envs: gymnasium.Env[Any, Any],
    table: WritableTable,
    *,
    priority: Priority | None = None,
    timeout_s: float | None = None,
) -> RecordedEnv: ...
@overload
def record(
    envs: VectorEnv[Any, Any, Any],
    table: WritableTable,
    *,
    autoreset_mode: AutoresetMode | str | None = None,
    num_envs: int | None = None,
    priority: Priority | None = None,
    timeout_s: float | None = None,
) -> RecordedVectorEnv: ...
@overload
def record(
    envs: object,
    table: WritableTable,
    *,
    autoreset_mode: AutoresetMode | str | None = None,
    num_envs: int,
    priority: Priority | None = None,
    timeout_s: float | None = None,
) -> RecordedVectorEnv: ...
@names_arguments
def record(
    envs: Any,
    table: WritableTable,
    *,
    autoreset_mode: AutoresetMode | str | None = None,
    num_envs: int | None = None,
    priority: Priority | None = None,
    timeout_s: float | None = None,
) -> RecordedEnv | RecordedVectorEnv:
    """Wraps an environment so that what it does is written into `table`; opens a writer with one lane an environment.

    envs: a gymnasium.Env, a VectorEnv, or anything that steps like one (EnvPool).
    autoreset_mode, num_envs: for vector environments that do not say them (`metadata["autoreset_mode"]`, `num_envs`).
    priority: a function from the columns of M steps that are about to be stored, {flat name: array [M, ...]} with
    next_<state>, terminated and truncated, to their items' first priorities [M] (Ape-X: what the actor thinks of them);
    None: the index's own. A step whose priority is refused, or whose function raises, is not stored.
    timeout_s: deadline of each write (None: the table's default). A step that meets it has been taken but not yet
    stored: DeadlineExceeded comes, and `finish_step()` tries again and returns what the step gave.
    Raises InvalidConfig where mode, number or columns do not fit, and what `table.writer` raises.
    """
    if isinstance(envs, VectorEnv) or num_envs is not None or hasattr(envs, "num_envs"):
        return RecordedVectorEnv(
            envs,
            table,
            autoreset_mode=_autoreset_mode(envs, autoreset_mode),
            num_envs=num_envs,
            priority=priority,
            timeout_s=timeout_s,
        )
    if isinstance(envs, gymnasium.Env):
        return RecordedEnv(envs, table, priority=priority, timeout_s=timeout_s)
    raise InvalidConfig(
        what="environment to record",
        expected="a gymnasium.Env, a VectorEnv, or num_envs= beside another vector",
        got=type(envs).__name__,
    )


def _autoreset_mode(envs: Any, given: AutoresetMode | str | None) -> AutoresetMode:
    # The attribute first: ale-py writes its mode into a metadata dictionary that all vector environments share.
    mode = given
    if mode is None:
        mode = getattr(envs, "autoreset_mode", None)
    if mode is None:
        mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise InvalidConfig(
            what="autoreset_mode",
            expected="metadata['autoreset_mode'] of the environment, or autoreset_mode="
            + " | ".join(repr(known.value) for known in AutoresetMode),
            got=repr(mode),
        ) from None


@final
class RecordedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment whose steps are stored. A reset in mid-episode ends the stored episode as truncated.

    One thread at a time. `close` ends the open episode as truncated, gives the writer's lane back and closes the
    environment; after it every call raises EnvironmentClosed.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        table: WritableTable,
        *,
        priority: Priority | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(env)
        self._lanes = LaneRecorder(table, 1, timeout_s, priority, single=True)
        # gymnasium.wrappers.Autoreset resets a single environment on the step after an end.
        self._resets_itself = _contains_wrapper(env, gymnasium.wrappers.Autoreset)
        self._result: tuple[Any, ...] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets the environment; an unfinished episode is stored as truncated at its last observation."""
        self._lanes.check_open()
        self._lanes.end_unfinished(_ONE_LANE)
        self._lanes.forget(_ONE_LANE)
        observation, info = self.env.reset(seed=seed, options=options)
        self._lanes.restart(_ONE_LANE, observation)
        return observation, info

    def step(self, action: Any, extras: Extras | None = None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes one step and stores it. extras: {column: value} of the columns that the environment does not give.

        Raises EnvironmentClosed, ResetNeeded before the first reset and after an end, what `writer.append` raises, and
        what the environment does. An action or extra that is refused moves nothing.
        """
        lanes = self._lanes
        lanes.check_open()
        if not self._resets_itself:
            lanes.check_running(_ONE_LANE)
        lanes.prepare(_ONE_LANE, action, extras)
        self._result = None
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except BaseException:
            lanes.lose(_ONE_LANE)
            raise
        self._result = observation, reward, terminated, truncated, info
        lanes.receive(_ONE_LANE, (observation, reward, terminated, truncated))
        return self.finish_step()

    def finish_step(self, timeout_s: float | None = None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """After a step that met its deadline or was refused: stores what waits and returns the step's result."""
        self._lanes.write(timeout_s)
        if self._result is None:
            raise ResetNeeded(lane=0)
        observation, reward, terminated, truncated, info = self._result
        return observation, reward, terminated, truncated, info

    def set_extras(self, **columns: ArrayLike) -> None:
        """Values that the next steps carry in the table's further columns, until set again."""
        self._lanes.set_extras(_ONE_LANE, columns)

    @property
    def item_keys(self) -> NDArray[np.int64]:
        """The key [1] of the last step, -1 where it was not stored or waits for `finish_step`."""
        return self._lanes.item_keys.copy()

    @property
    def writer(self) -> ReplayWriter:
        """The writer with its one lane, e.g. for `set_policy_version`."""
        return self._lanes.writer

    def close(self) -> None:
        """Ends the open episode as truncated, closes the writer and the environment. Closing twice is harmless.

        What waits for the limiter is dropped. Both are closed whatever is refused on the way; that is raised then.
        """
        was_open = not self._lanes.closed
        try:
            self._lanes.close()
        finally:
            if was_open:
                self.env.close()


@final
class RecordedVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector of environments whose steps are stored: lane i of the writer is environment i.

    Autoreset as the environment does it. NEXT_STEP: the row after an end is a reset and is not stored. SAME_STEP: the
    state after an end comes from info["final_obs"]. DISABLED: `reset(options={"reset_mask": mask})` before going on.
    Subsets: where info holds "env_id" (EnvPool, AtariVectorEnv) it names the environments of the rows, in their order,
    and the next actions are for these; `send` and `recv` work as `step` does.
    One thread at a time. Cost beside the environment's own: a copy of observations and actions, and one append.
    """

    def __init__(
        self,
        envs: Any,
        table: WritableTable,
        *,
        autoreset_mode: AutoresetMode,
        num_envs: int | None = None,
        priority: Priority | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self.envs = envs
        self.autoreset_mode = autoreset_mode
        self.num_envs = integer("num_envs", envs.num_envs if num_envs is None else num_envs, 1)
        self.metadata = {**(getattr(envs, "metadata", None) or {}), "autoreset_mode": autoreset_mode}
        self.spec = getattr(envs, "spec", None)
        self.render_mode = getattr(envs, "render_mode", None)
        self.observation_space = envs.observation_space
        self.action_space = envs.action_space
        self.single_observation_space = getattr(envs, "single_observation_space", envs.observation_space)
        self.single_action_space = getattr(envs, "single_action_space", envs.action_space)
        self._lanes = LaneRecorder(table, self.num_envs, timeout_s, priority)
        self._all = np.arange(self.num_envs)
        self._current = self._all  # the environments that the next actions are for
        self._result: tuple[Any, ...] | None = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Resets all environments, or those of options["reset_mask"]; their unfinished episodes end as truncated."""
        self._check_open()
        mask = None if options is None else options.get("reset_mask")  # some environments pop it
        chosen = self._all if mask is None else self._lanes.masked(mask)
        self._lanes.end_unfinished(chosen)
        self._lanes.forget(chosen)  # an asynchronous reset may answer for a few of them only
        observation, info = _reset(self.envs, seed, options)
        present = self._environments(info)
        self._lanes.restart(present, observation, np.flatnonzero(np.isin(present, chosen)))
        self._current = present
        return observation, info

    def step(
        self, actions: Any, env_id: ArrayLike | None = None, extras: Extras | None = None
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Steps the environments of the last rows (or env_id) and stores what came back.

        extras: {column: array [M, ...]}, a row for each action. Raises EnvironmentClosed, ResetNeeded, MissingNext
        (SAME_STEP without final_obs), LaneError, what `writer.append` raises, and what the environments do. Actions or
        extras that are refused move nothing.
        """
        self._take(actions, env_id, extras)
        return self._store(lambda: self.envs.step(actions) if env_id is None else self.envs.step(actions, env_id))

    def send(self, actions: Any, env_id: ArrayLike | None = None, extras: Extras | None = None) -> None:
        """The first half of an asynchronous step."""
        self._take(actions, env_id, extras)
        try:
            if env_id is None:
                self.envs.send(actions)
            else:
                self.envs.send(actions, env_id)
        except BaseException:
            self._lanes.lose(self._all)
            raise

    def recv(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The second half of an asynchronous step: rows of whichever environments are ready."""
        self._check_open()
        return self._store(self.envs.recv)

    def finish_step(self, timeout_s: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """After a step that met its deadline or was refused: stores what waits and returns the step's result."""
        self._lanes.write(timeout_s)
        if self._result is None:
            raise ResetNeeded(lane=0)
        observation, reward, terminated, truncated, info = self._result
        return observation, reward, terminated, truncated, info

    def set_extras(self, **columns: ArrayLike) -> None:
        """Arrays [M, ...] that the steps of the environments in turn carry from now on, until set again."""
        self._lanes.set_extras(self._current, columns)

    @property
    def env_ids(self) -> NDArray[np.int64]:
        """The environments [M] that the next actions are for."""
        return self._current

    @property
    def item_keys(self) -> NDArray[np.int64]:
        """The key of each environment's last row [num_envs], -1 where that was a reset, or is not stored (yet)."""
        return self._lanes.item_keys.copy()

    @property
    def writer(self) -> ReplayWriter:
        """The writer of all lanes, e.g. for `set_policy_version`."""
        return self._lanes.writer

    @property
    def unwrapped(self) -> Any:
        """The recorded environment without its wrappers."""
        return self.envs.unwrapped

    def render(self) -> Any:
        """What the recorded environment renders."""
        return self.envs.render()

    def close(self, **kwargs: Any) -> None:
        """Ends open episodes as truncated, closes the writer and the environments. Closing twice is harmless.

        What waits for the limiter is dropped. All are closed whatever is refused on the way; that is raised then.
        """
        was_open = not self._lanes.closed
        self.closed = True
        try:
            self._lanes.close()
        finally:
            if was_open:
                self.envs.close(**kwargs)

    def _check_open(self) -> None:
        self._lanes.check_open()
        if getattr(self.envs, "closed", False):
            raise EnvironmentClosed(type(self.envs).__name__)

    def _environments(self, info: Mapping[str, Any]) -> NDArray[np.int64]:
        ids = info.get("env_id")
        return self._all if ids is None else self._lanes.ids(ids)

    def _take(self, actions: Any, env_id: ArrayLike | None, extras: Extras | None) -> None:
        self._check_open()
        current = self._current if env_id is None else self._lanes.ids(env_id)
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self._lanes.check_started(current)
        else:
            self._lanes.check_running(current)
        self._lanes.prepare(current, actions, extras)
        self._current = current

    def _store(self, move: Callable[[], Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self._result = None
        try:
            observation, reward, terminated, truncated, info = move()
            self._result = observation, reward, terminated, truncated, info
            present = self._environments(info)
        except BaseException as error:
            self._lanes.lose(self._all)
            if isinstance(error, ReliveError):
                tell(error, self._all)
            raise
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        final = info.get("final_obs") if same_step else None
        self._current = present
        self._lanes.receive(present, (observation, reward, terminated, truncated), final, same_step)
        return self.finish_step()


_ONE_LANE = np.zeros(1, np.int64)


def _contains_wrapper(env: Any, kind: type) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, kind):
            return True
        env = env.env
    return False


def _reset(envs: Any, seed: Any, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    # EnvPool's reset takes neither.
    arguments = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
    observation, info = envs.reset(**arguments)
    return observation, info
