"""Records Gymnasium environments: every step of an environment, or of a vector of environments, goes into a table.

    envs = relive.adapters.gymnasium.record(gymnasium.make_vec("CartPole-v1", 8), table)
    observation, info = envs.reset(seed=0)
    observation, reward, terminated, truncated, info = envs.step(actions)      # stores one row for each lane that moved

Some steps are not stored, and raise: steps that the table refuses (a reward of another shape, an observation out of
range), and steps whose environment raises. After such a step:

- The stored episode is cut, as truncated, at the last observation before the step.
- The recorder goes on from the next observation. So no transition joins states that did not follow each other.
- The error's `lanes_not_stored` names the environments. `finish_step()` returns the values of the step.

The table has the columns `observation`, `action` and `reward` as `relive.StepSpec.from_spaces` declares them (each only
if the spec has it). Values of further step and start columns come from `step(actions, extras=...)` or `set_extras`.
The recorder returns observations, actions and rewards of the environment unchanged.

This module imports gymnasium. `import relive` alone does not import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from relive.adapters.errors import EnvironmentClosed, ResetNeeded, tell
from relive.adapters.lanes import LaneRecorder, Priority, WritableTable
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
    """Wraps an environment so that its steps are written into a table. Opens a writer with one lane per environment.

    Args:
        envs: a gymnasium.Env, a VectorEnv, or an object that steps like a VectorEnv (EnvPool).
        table: the table.
        autoreset_mode: for vectors without `metadata["autoreset_mode"]`. Default: the environment's.
        num_envs: for vectors without `num_envs`. Default: the environment's.
        priority: gives the first priorities of items (Ape-X: the actor's own errors). The function takes the columns
            of M steps that are about to be stored, {flat name: array [M, ...]} with next_<state>, terminated and
            truncated, and returns priorities [M]. A step is not stored if its priority is refused or the function
            raises. None: the index's own.
        timeout_s: deadline of each write in seconds. None: the table's default.

    Returns:
        The recorded environment, which is used like the environment.

    Raises:
        InvalidConfig: mode, number or columns do not fit. `table.writer` raises further errors.

    Blocks: a step blocks while the limiter lets no step in. A step that meets the deadline has been taken but is not
    stored yet: it raises DeadlineExceeded. Then `finish_step()` tries again and returns the values of the step.
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
    # The attribute comes first: ale-py writes its mode into a metadata dictionary that all vectors share.
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

    For one thread at a time. `close` ends the open episode as truncated, gives back the writer's lane, and closes the
    environment. After `close` every call raises EnvironmentClosed.
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
        """Resets the environment. An unfinished episode is stored as truncated at its last observation."""
        self._lanes.check_open()
        self._lanes.end_unfinished(_ONE_LANE)
        self._lanes.forget(_ONE_LANE)
        observation, info = self.env.reset(seed=seed, options=options)
        self._lanes.restart(_ONE_LANE, observation)
        return observation, info

    def step(self, action: Any, extras: Extras | None = None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Takes one step and stores it.

        Args:
            action: the action.
            extras: {column: value} of columns that the environment does not give. None: as set by `set_extras`.

        Returns:
            (observation, reward, terminated, truncated, info) of the environment.

        Raises:
            EnvironmentClosed: after `close`.
            ResetNeeded: before the first reset, or after an end.

        `writer.append` and the environment raise further errors. If an action or extra is refused, no step is taken.
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
        """Stores rows that wait, after a step that met its deadline or was refused. Returns that step's values.

        Args:
            timeout_s: deadline of each write in seconds. None: the recorder's.
        """
        self._lanes.write(timeout_s)
        if self._result is None:
            raise ResetNeeded(lane=0)
        observation, reward, terminated, truncated, info = self._result
        return observation, reward, terminated, truncated, info

    def set_extras(self, **columns: ArrayLike) -> None:
        """Sets values of further columns, which the next steps store until they are set again."""
        self._lanes.set_extras(_ONE_LANE, columns)

    @property
    def item_keys(self) -> NDArray[np.int64]:
        """The key [1] of the last step. -1: the step was not stored, or waits for `finish_step`."""
        return self._lanes.item_keys.copy()

    @property
    def writer(self) -> ReplayWriter:
        """The writer, which has one lane; for example for `set_policy_version`."""
        return self._lanes.writer

    def close(self) -> None:
        """Ends the open episode as truncated, and closes the writer and the environment. A second call does nothing.

        Rows that wait for the limiter are dropped. Both are closed even if a row is refused; then its error is raised.
        """
        was_open = not self._lanes.closed
        try:
            self._lanes.close()
        finally:
            if was_open:
                self.env.close()


@final
class RecordedVectorEnv(VectorEnv[Any, Any, Any]):
    """A vector of environments whose steps are stored. Lane i of the writer is environment i.

    The vector resets its environments in one of three modes:

    - NEXT_STEP: the row after an end is a reset, and is not stored.
    - SAME_STEP: the state after an end comes from info["final_obs"].
    - DISABLED: the caller resets with `reset(options={"reset_mask": mask})` before the next step.

    Some vectors step subsets (EnvPool, AtariVectorEnv). Their info["env_id"] names the environments of the rows, in
    order, and the next actions are for these environments. `send` and `recv` are the two halves of a step.

    For one thread at a time.

    Cost: a copy of observations and actions, and one append, in addition to the environment's own step.
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
        """Resets all environments, or those of options["reset_mask"]. Unfinished episodes end as truncated."""
        self._check_open()
        mask = None if options is None else options.get("reset_mask")  # some environments pop it
        chosen = self._all if mask is None else self._lanes.masked(mask)
        self._lanes.end_unfinished(chosen)
        self._lanes.forget(chosen)  # an asynchronous reset may answer for only a few of them
        observation, info = _reset(self.envs, seed, options)
        present = self._environments(info)
        self._lanes.restart(present, observation, np.flatnonzero(np.isin(present, chosen)))
        self._current = present
        return observation, info

    def async_reset(self) -> None:
        """Starts a reset of all environments of a pool; recv returns the first rows. Open episodes end as truncated."""
        self._check_open()
        self._lanes.end_unfinished(self._all)
        self._lanes.forget(self._all)
        self.envs.async_reset()

    def step(
        self, actions: Any, env_id: ArrayLike | None = None, extras: Extras | None = None
    ) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Takes one step of M environments and stores the rows that come back.

        Args:
            actions: [M, ...].
            env_id: the environments, int[M]. None: those of the last rows.
            extras: {column: array [M, ...]} of columns that the environments do not give. None: as set by `set_extras`.

        Returns:
            (observation, reward, terminated, truncated, info) of the environments.

        Raises:
            EnvironmentClosed: after `close`.
            ResetNeeded: an environment has no episode.
            MissingNext: SAME_STEP without "final_obs".
            LaneError: `env_id` is wrong.

        `writer.append` and the environments raise further errors. If an action or extra is refused, no step is taken.
        """
        self._take(actions, env_id, extras)
        return self._store(lambda: self.envs.step(actions) if env_id is None else self.envs.step(actions, env_id))

    def send(self, actions: Any, env_id: ArrayLike | None = None, extras: Extras | None = None) -> None:
        """Starts an asynchronous step. The arguments and errors are those of `step`."""
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
        """Ends an asynchronous step, and returns and stores the rows of the environments that are ready."""
        self._check_open()
        return self._store(self.envs.recv)

    def finish_step(self, timeout_s: float | None = None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Stores rows that wait, after a step that met its deadline or was refused. Returns that step's values.

        Args:
            timeout_s: deadline of each write in seconds. None: the recorder's.
        """
        self._lanes.write(timeout_s)
        if self._result is None:
            raise ResetNeeded(lane=0)
        observation, reward, terminated, truncated, info = self._result
        return observation, reward, terminated, truncated, info

    def set_extras(self, **columns: ArrayLike) -> None:
        """Sets arrays [M, ...] of further columns for the environments of `env_ids`, until they are set again."""
        self._lanes.set_extras(self._current, columns)

    @property
    def env_ids(self) -> NDArray[np.int64]:
        """The environments [M] that the next actions are for."""
        return self._current

    @property
    def item_keys(self) -> NDArray[np.int64]:
        """The key of each environment's last row [num_envs]. -1: a reset, or a row that is not stored (yet)."""
        return self._lanes.item_keys.copy()

    @property
    def writer(self) -> ReplayWriter:
        """The writer of all lanes; for example for `set_policy_version`."""
        return self._lanes.writer

    @property
    def unwrapped(self) -> Any:
        """The recorded environment without its wrappers."""
        return self.envs.unwrapped

    def render(self) -> Any:
        """Renders the recorded environment."""
        return self.envs.render()

    def close(self, **kwargs: Any) -> None:
        """Ends open episodes as truncated, and closes the writer and the environments. A second call does nothing.

        Rows that wait for the limiter are dropped. All are closed even if a row is refused; then its error is raised.
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

    def _environments(self, info: Any) -> NDArray[np.int64]:
        ids = _told(info).get("env_id")
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
        final = _told(info).get("final_obs") if same_step else None
        self._current = present
        self._lanes.receive(present, (observation, reward, terminated, truncated), final, same_step)
        return self.finish_step()


_ONE_LANE = np.zeros(1, np.int64)


def _told(info: Any) -> Mapping[str, Any]:
    """The infos as one mapping. Gymnasium's DictInfoToList gives a list, with one dict for each environment."""
    if not isinstance(info, list):
        mapping: Mapping[str, Any] = info
        return mapping
    finals = np.full(len(info), None, object)
    for lane, one in enumerate(info):
        finals[lane] = one.get("final_obs")
    return {"final_obs": finals} if any(one is not None for one in finals) else {}


def _contains_wrapper(env: Any, kind: type) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, kind):
            return True
        env = env.env
    return False


def _reset(envs: Any, seed: Any, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
    # EnvPool's reset takes neither argument.
    arguments = {name: value for name, value in (("seed", seed), ("options", options)) if value is not None}
    observation, info = envs.reset(**arguments)
    return observation, info
