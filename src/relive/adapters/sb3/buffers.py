"""ReplayBuffer and DictReplayBuffer: the buffers of the off-policy algorithms."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from stable_baselines3.common import buffers

from relive.adapters.sb3.stored import Keeping, Stored
from relive.errors import InvalidConfig

__all__ = ["DictReplayBuffer", "ReplayBuffer"]


class ReplayBuffer(Stored, buffers.ReplayBuffer):
    """Stable-Baselines3's ReplayBuffer, with its steps in a table.

        DQN("MlpPolicy", env, replay_buffer_class=ReplayBuffer, replay_buffer_kwargs=dict(n_steps=3, gamma=0.99))

    Args:
        buffer_size: the most steps, over all environments.
        observation_space: any space except Dict and Tuple.
        action_space: the space of actions.
        device: device of the samples.
        n_envs: number of environments.
        optimize_memory_usage: taken and without effect: each observation is stored once in any case, also with
            handle_timeout_termination.
        handle_timeout_termination: whether a time limit truncates an episode. If False, it terminates the episode.
        **options: the options below.
        n_steps: steps of a return, 1 to 1,024. A return ends early at the end of its episode.
        gamma: discount factor of the returns of several steps: give the same as to the algorithm.
        frame_stack: number of frames that the environment stacks (VecFrameStack), along the first axis and the newest
            last. The table then stores each frame once.
        storage: where the table lives: LocalMemory() (default), SharedMemory(name), File(path) or Tiered(...).

    Raises:
        InvalidConfig, UnknownArgument: an argument has another name, type or value.
        CapacityTooSmall: the buffer has no room for n_steps steps of each environment.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **options: Any,
    ) -> None:
        if isinstance(observation_space, spaces.Dict):
            raise InvalidConfig("observation_space of ReplayBuffer", "no Dict space: use DictReplayBuffer", "Dict")
        self._begin(buffer_size, observation_space, action_space, device, n_envs, handle_timeout_termination)
        self._store(Keeping(**options))


class DictReplayBuffer(Stored, buffers.DictReplayBuffer):
    """Stable-Baselines3's DictReplayBuffer, with its steps in a table.

    Args:
        observation_space: a Dict space.

    The other arguments are those of ReplayBuffer. n_steps is allowed, which the class that is replaced does not have.

    Raises:
        InvalidConfig, CapacityTooSmall: as for ReplayBuffer.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        **options: Any,
    ) -> None:
        if not isinstance(observation_space, spaces.Dict):
            raise InvalidConfig(
                "observation_space of DictReplayBuffer", "a Dict space: use ReplayBuffer for others", observation_space
            )
        self._begin(buffer_size, observation_space, action_space, device, n_envs, handle_timeout_termination)
        self._store(Keeping(**options))
