"""HerReplayBuffer: hindsight experience replay, with the goals replaced by the table."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her import GoalSelectionStrategy
from stable_baselines3.her import HerReplayBuffer as _HerReplayBuffer

from relive.adapters.errors import NoEpisodeYet
from relive.adapters.sb3.stored import STEPS, Keeping, Stored
from relive.checks.names import names_arguments
from relive.checks.values import integer
from relive.config.casting import unmasked
from relive.config.hindsight import Hindsight
from relive.config.samplers import Sampler, Uniform
from relive.config.storage import Storage
from relive.errors import InvalidConfig
from relive.reading.batch import Batch

__all__ = ["HerReplayBuffer"]

_MOST_STEPS = 4095  # of an episode, in Hindsight
_COLUMNS = ("observation", "next_observation", "action", "reward")
_TRUNCATES = (
    "The last trajectory in the replay buffer will be truncated. "
    "With truncate_last_traj=False the next steps continue it."
)


@names_arguments
@final
@dataclass(frozen=True)
class Goals:
    """The options of HerReplayBuffer after its environment and its device."""

    optimize_memory_usage: bool = False
    handle_timeout_termination: bool = True
    n_sampled_goal: int = 4
    goal_selection_strategy: GoalSelectionStrategy | str = "future"
    copy_info_dict: bool = False
    max_episode_length: int | None = None
    storage: Storage | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_sampled_goal", integer("n_sampled_goal", self.n_sampled_goal, 0))
        if self.max_episode_length is not None:
            length = integer("max_episode_length", self.max_episode_length, 1, _MOST_STEPS)
            object.__setattr__(self, "max_episode_length", length)


class HerReplayBuffer(Stored, _HerReplayBuffer):
    """Stable-Baselines3's HerReplayBuffer, with its steps in a table.

        SAC("MultiInputPolicy", env, replay_buffer_class=HerReplayBuffer)

    A step can be drawn when its episode has ended. The environment's `compute_reward` gives the rewards of new goals.

    Args:
        buffer_size: the most steps, over all environments.
        observation_space: a Dict space with 'achieved_goal' and 'desired_goal'.
        action_space: the space of actions.
        env: the environment; the algorithm gives it.
        device: device of the samples.
        n_envs: number of environments.
        **options: the options below.
        optimize_memory_usage: taken and without effect.
        handle_timeout_termination: as for ReplayBuffer.
        n_sampled_goal: k, where a transition has a new goal with probability k / (k + 1).
        goal_selection_strategy: 'future', 'final' or 'episode', or the GoalSelectionStrategy.
        copy_info_dict: whether `compute_reward` gets the infos of the steps. They are kept outside the table.
        max_episode_length: the most steps of an episode, at most 4,095. An episode that is longer is cut there. None:
            the environment's time limit, or else the steps of one environment that the buffer has room for.
        storage: as for ReplayBuffer.

    Raises:
        InvalidConfig: an argument has another type or value.
        CapacityTooSmall: the buffer has no room for an episode of each environment.
    """

    env: VecEnv | None

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: VecEnv,
        device: Any = "auto",
        n_envs: int = 1,
        **options: Any,
    ) -> None:
        chosen = Goals(**options)
        self._begin(buffer_size, observation_space, action_space, device, n_envs, chosen.handle_timeout_termination)
        self.env = env
        self.copy_info_dict = chosen.copy_info_dict
        self.n_sampled_goal = chosen.n_sampled_goal
        self.her_ratio = 1 - 1.0 / (self.n_sampled_goal + 1)
        self.goal_selection_strategy = _strategy(chosen.goal_selection_strategy)
        most = _time_limit(env) if chosen.max_episode_length is None else chosen.max_episode_length
        self._max_length = min(self.buffer_size, _MOST_STEPS, most or _MOST_STEPS)
        self._open_steps = np.zeros(n_envs, np.int64)  # steps of the open episode of each environment
        self._has_items = False
        self._infos: dict[int, dict[str, Any]] = {}  # of the steps that may be stored, by key
        self._store(Keeping(storage=chosen.storage))

    def _sampler(self) -> Hindsight:
        return Hindsight(
            "observation/desired_goal",
            "observation/achieved_goal",
            share=self.her_ratio,
            strategy=self.goal_selection_strategy.name.lower(),
            max_length=self._max_length,
            sampler=self._drawn_by(),
        )

    def _drawn_by(self) -> Sampler:
        return Uniform()

    # ---- writing ---------------------------------------------------------------------------------------------------

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Stores one step of each environment."""
        pos, cuts = self.pos, self._writer.num_cuts
        if self.copy_info_dict:
            for key in self._keys[pos]:
                self._infos.pop(int(key), None)
        super().add(obs, next_obs, action, reward, done, infos)
        if self.copy_info_dict:
            self._infos.update(zip(map(int, self._keys[pos]), infos, strict=True))
        self._open_steps = np.where(self._is_open, self._open_steps + 1, 0)
        if self._writer.num_cuts > cuts:  # by a seam: the new episode has one step
            steps = self.table.gather(self._keys[pos], ["episode_step"], index=STEPS)["episode_step"]
            self._open_steps = np.where(self._is_open, steps + 1, 0)
            self._has_items = True
        self._has_items = self._has_items or not self._is_open.all()

    def truncate_last_trajectory(self) -> None:
        """Ends the open episodes as truncated, with a warning. Their steps can be drawn then.

        Without an open episode: no effect.
        """
        lanes = np.flatnonzero(self._is_open)
        if len(lanes):
            warnings.warn(_TRUNCATES, UserWarning, stacklevel=2)
            self._writer.cut(lanes)
            self._is_open[lanes] = False
            self._open_steps[lanes] = 0
            self._done[0, self.pos - 1, lanes] = True
            self._done[1, self.pos - 1, lanes] = self.handle_timeout_termination
            self._has_items = True

    def reset(self) -> None:
        """Removes all steps."""
        super().reset()
        self._open_steps[:] = 0
        self._infos.clear()
        self._has_items = False

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _draw(self, batch_size: int) -> Batch:
        if not self._has_items:
            raise NoEpisodeYet()
        return self.table.sample(batch_size, reward=self._reward)

    def _reward(self, achieved: NDArray[Any], goal: NDArray[Any], batch: Batch) -> NDArray[np.float32]:
        """The environment's rewards of these transitions for their new goals."""
        if self.env is None:
            raise InvalidConfig("env of HerReplayBuffer", "a VecEnv, from set_env(env) after a load", None)
        infos = [self._infos.get(int(key), {}) for key in batch.item_keys]
        rewards = self.env.env_method("compute_reward", achieved, goal, infos, indices=[0])[0]
        return unmasked("what compute_reward returned", rewards).astype(np.float32)

    # ---- files -----------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The attributes without the environment, with the contents of the table and of the open episodes."""
        state = Stored.__getstate__(self)
        del state["env"]
        return {**state, "open": {int(lane): self._open_episode(int(lane)) for lane in np.flatnonzero(self._is_open)}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a table of its own, in which open episodes go on. Call set_env before sample."""
        state = dict(state)
        episodes = state.pop("open")
        Stored.__setstate__(self, state)
        self.env = None
        for lane, columns in episodes.items():
            self._continue(lane, columns)

    def _places(self, lane: int) -> NDArray[np.int64]:
        """The places in the ring of the steps of an open episode, oldest first."""
        places: NDArray[np.int64] = (self.pos - np.arange(self._open_steps[lane], 0, -1)) % self.buffer_size
        return places

    def _open_episode(self, lane: int) -> dict[str, Any]:
        batch = self.table.gather(self._keys[self._places(lane), lane], list(_COLUMNS), index=STEPS)
        return {name: batch[name] for name in _COLUMNS}

    def _continue(self, lane: int, columns: dict[str, Any]) -> None:
        """Writes the steps of an open episode again. A load has ended it, and they would never be items."""
        places = self._places(lane)
        old = self._keys[places, lane]
        self.table.delete(old)
        new = self._writer.extend(np.array([lane]), **{name: _with_lane(part) for name, part in columns.items()})
        self._keys[places, lane] = new[:, 0]
        for before, after in zip(old, new[:, 0], strict=True):
            if int(before) in self._infos:
                self._infos[int(after)] = self._infos.pop(int(before))
        self._is_open[lane] = True


def _with_lane(part: Any) -> Any:
    """The array [T, 1, ...] of an array [T, ...], in all arrays of a tree."""
    if isinstance(part, dict):
        return {name: _with_lane(one) for name, one in part.items()}
    return part[:, np.newaxis]


def _strategy(given: GoalSelectionStrategy | str) -> GoalSelectionStrategy:
    if isinstance(given, GoalSelectionStrategy):
        return given
    names = {one.name.lower(): one for one in GoalSelectionStrategy}
    if not isinstance(given, str) or given.lower() not in names:
        raise InvalidConfig("goal_selection_strategy", " or ".join(map(repr, names)), given)
    return names[given.lower()]


def _time_limit(env: VecEnv | None) -> int | None:
    """The most steps of an episode of the environment, if it has a limit."""
    try:
        specs = env.get_attr("spec") if env is not None else []
    except AttributeError:
        return None
    return getattr(specs[0], "max_episode_steps", None) if specs else None
