"""The part of a Stable-Baselines3 buffer that keeps its steps in a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import BaseBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from relive.adapters.errors import NotDrawable
from relive.adapters.packing import pack, unpack
from relive.adapters.seams import CuttingWriter
from relive.checks.names import names_arguments
from relive.checks.values import finite, flag, integer
from relive.config.casting import unmasked
from relive.config.hindsight import Hindsight
from relive.config.index import Index
from relive.config.items import Transitions
from relive.config.samplers import Sampler, Uniform
from relive.config.spec import ArraySpec, StepSpec
from relive.config.storage import Storage
from relive.errors import InvalidConfig
from relive.reading.batch import Batch
from relive.table.table import Table

__all__ = ["STEPS", "Keeping", "Stored"]

Observation = NDArray[Any] | dict[str, NDArray[Any]]

TRAINING = "training"  # the index that sample() draws from
_USUAL = ("observation", "action", "reward", "next_observation", "discount")
STEPS = "steps"  # the single steps, where the items of TRAINING are not single steps
_SLOT = "slot"  # a step's place in the ring of keys, where a return has to be computed from single rewards


@names_arguments
@final
@dataclass(frozen=True)
class Keeping:
    """How a buffer keeps its steps: the options that the class that is replaced does not have."""

    n_steps: int = 1
    gamma: float = 0.99
    frame_stack: int = 1
    storage: Storage | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_steps", integer("n_steps", self.n_steps, 1, 1024))
        object.__setattr__(self, "gamma", finite("gamma", self.gamma, 0.0, 1.0))
        object.__setattr__(self, "frame_stack", integer("frame_stack", self.frame_stack, 1, 256))


class Stored(BaseBuffer):
    """Keeps the steps of a Stable-Baselines3 buffer in a table, which is `table`.

    `add` and `sample` have the arguments, the shapes and the dtypes of the class that is replaced. `observations`,
    `next_observations`, `actions`, `rewards`, `dones` and `timeouts` are copies of the stored steps, [buffer_size,
    n_envs, ...], in the order of the class that is replaced; rows without a step are 0. Writing into a copy changes
    nothing.
    """

    table: Table
    pos: int

    def _begin(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: Any,
        n_envs: int,
        handle_timeout_termination: bool,
    ) -> None:
        """Sets the attributes of the class that is replaced, without its arrays."""
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = False  # every state is stored once in any case
        self.handle_timeout_termination = flag("handle_timeout_termination", handle_timeout_termination)

    def _store(self, options: Keeping) -> None:
        """Makes the table."""
        self.n_steps, self.gamma, self._frame_stack = options.n_steps, options.gamma, options.frame_stack
        seed = int(torch.randint(2**31, ()))  # the algorithm's seed is that of torch
        stacks = {"observation": self._frame_stack} if self._frame_stack > 1 else {}
        items = Transitions(self.n_steps, self.gamma if self.n_steps > 1 else 1.0, stack=stacks, stack_pad="zeros")
        chosen = self._sampler()
        indexes = {TRAINING: Index(items, chosen)}
        if self.n_steps > 1 or chosen.replaces_goals:
            indexes[STEPS] = Index(Transitions(stack=stacks, stack_pad="zeros"))
        self.table = Table(
            self._spec(),
            self.buffer_size * self.n_envs,
            indexes,
            storage=options.storage,
            max_lanes=self.n_envs,
            seed=seed,
        )
        self._storage = options.storage
        self._rng = np.random.default_rng(seed)
        self._writer = CuttingWriter(self.table, self.n_envs)
        self._keys = np.full((self.buffer_size, self.n_envs), -1, np.int64)
        self._done = np.zeros((2, self.buffer_size, self.n_envs), np.bool_)  # done and timeout of each step, as given
        self._is_open = np.zeros(self.n_envs, np.bool_)
        self._prepare()

    def _prepare(self) -> None:
        """Notes the shapes and dtypes that `add` compares at each step."""
        space: Any = self.observation_space
        self._is_nested = isinstance(space, spaces.Dict)
        shapes = self.obs_shape if self._is_nested else {"": self.obs_shape}
        parts = space.spaces if self._is_nested else {"": space}
        self._forms = {
            key: ((self.n_envs, *self._framed(shape)), np.dtype(parts[key].dtype)) for key, shape in shapes.items()
        }
        self._action_form = (self.n_envs, self.action_dim), np.dtype(_narrow(self.action_space.dtype))
        self._reward_form = (self.n_envs,), np.dtype(np.float32)

    def _framed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        frames = self._frame_stack
        return shape if frames == 1 else (frames, shape[0] // frames, *shape[1:])

    def _sampler(self) -> Sampler | Hindsight:
        """The sampler that chooses the items of sample()."""
        return Uniform()

    def _spec(self) -> StepSpec:
        actions: Any = self.action_space
        columns: dict[str, Any] = {
            "action": ArraySpec((self.action_dim,), _narrow(actions.dtype)),
            "reward": ArraySpec((), np.float32),
        }
        stacks = {"observation": self._frame_stack} if self._frame_stack > 1 else None
        space: Any = self.observation_space
        if isinstance(space, spaces.Dict):
            columns["observation"] = {
                key: ArraySpec(self._one_shape(key, shape), np.dtype(space[key].dtype), kind="state")
                for key, shape in self.obs_shape.items()
            }
        else:
            columns["observation"] = ArraySpec(self._one_shape("", self.obs_shape), space.dtype, kind="state")
        if self.n_steps > 1:
            columns[_SLOT] = ArraySpec((), np.int64)
        return StepSpec(columns, unstack=stacks)

    def _one_shape(self, key: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one frame of a stack, whose frames are joined along the first axis, the newest last."""
        frames = self._frame_stack
        if frames == 1:
            return shape
        if not shape or shape[0] % frames:
            raise InvalidConfig(
                f"frame_stack of observation {key!r}".replace(" ''", ""),
                f"a space whose first axis is a multiple of {frames}, of the newest frame last",
                shape,
            )
        return (shape[0] // frames, *shape[1:])

    # ---- writing ---------------------------------------------------------------------------------------------------

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: NDArray[Any],
        reward: NDArray[Any],
        done: NDArray[Any],
        infos: list[dict[str, Any]],
    ) -> None:
        """Stores one step of each environment. A step after a reset that no `done` announced begins a new episode."""
        done = unmasked("done", done, np.bool_).reshape(self.n_envs)
        truncated = np.zeros(self.n_envs, np.bool_)
        if self.handle_timeout_termination:
            truncated = np.array([info.get("TimeLimit.truncated", False) for info in infos], np.bool_)
            truncated = truncated.reshape(self.n_envs)
        terminated = done > truncated
        columns: dict[str, Any] = {
            "observation": self._states(obs),
            "next_observation": self._states(next_obs),
            "action": _exact("action", action, *self._action_form),
            "reward": _exact("reward", reward, *self._reward_form),
            "terminated": terminated,
            "truncated": truncated,
        }
        if self.n_steps > 1:
            columns[_SLOT] = np.arange(self.n_envs) + self.pos * self.n_envs
        self._keys[self.pos] = self._writer.append(**columns)
        self._done[0, self.pos] = done
        self._done[1, self.pos] = truncated
        self._is_open = ~(terminated | truncated)
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def _states(self, given: Any) -> Observation:
        if self._is_nested:
            return {key: _exact("observation", given[key], *form) for key, form in self._forms.items()}
        return _exact("observation", given, *self._forms[""])

    def reset(self) -> None:
        """Removes all steps."""
        super().reset()
        self._writer.cut(np.flatnonzero(self._is_open))
        self._is_open[:] = False
        self.table.clear()
        self._keys[:] = -1
        self._done[:] = False

    # ---- reading ---------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draws transitions.

        Args:
            batch_size: number of transitions B.
            env: normalises observations and rewards.

        Returns:
            The samples of the class that is replaced. `dones` is 1 where the return has no value to bootstrap from.
            `discounts` is the discount of the value of the next state if n_steps > 1, and else None.
        """
        return self._samples(self._draw(batch_size), env)

    def _draw(self, batch_size: int) -> Batch:
        return self.table.sample(batch_size, self._names())

    def _get_samples(self, batch_inds: NDArray[np.int64], env: VecNormalize | None = None) -> Any:
        """The transitions at these places of the ring, each of a random environment."""
        lanes = self._rng.integers(0, self.n_envs, len(batch_inds))
        keys = self._keys[batch_inds, lanes]
        batch = self.table.gather(np.where(keys < 0, self._keys[self.pos - 1, 0], keys), self._names())
        assert batch.present is not None
        present = batch.present & (keys >= 0)
        if not present.all():
            row = int(np.argmin(present))
            raise NotDrawable(int(batch_inds[row]), int(lanes[row]))
        return self._samples(batch, env)

    def _names(self) -> list[str] | None:
        return None if self.n_steps == 1 else [*_USUAL, _SLOT, "num_steps"]

    def _samples(self, batch: Batch, env: VecNormalize | None) -> Any:
        discount = batch["discount"]
        rewards = batch["reward"] if env is None else self._normal_rewards(batch, env)
        observation, following = (
            self._tensors(self._normalize_obs(self._joined(batch[name]), env))
            for name in ("observation", "next_observation")
        )
        dones = (discount == 0.0).astype(np.float32)
        kind = DictReplayBufferSamples if isinstance(self.observation_space, spaces.Dict) else ReplayBufferSamples
        return kind(
            observation,
            self._tensor(batch["action"]),
            following,
            self._tensor(dones.reshape(-1, 1)),
            self._tensor(rewards.reshape(-1, 1)),
            self._tensor(discount.reshape(-1, 1)) if self.n_steps > 1 else None,
        )

    def _normal_rewards(self, batch: Batch, env: VecNormalize) -> NDArray[np.float32]:
        """Normalised rewards. A return of several steps is the sum of rewards that were normalised one by one."""
        rewards: NDArray[np.float32] = batch["reward"]
        if self.n_steps == 1 or not getattr(env, "norm_reward", False):
            normal: NDArray[np.float32] = self._normalize_reward(rewards.copy(), env).astype(np.float32)
            return normal
        slots, counts = batch[_SLOT], batch["num_steps"]
        steps = np.arange(self.n_steps)
        places = (slots[:, None] + steps * self.n_envs) % self._keys.size
        within = steps < counts[:, None]
        keys = np.where(within, self._keys.reshape(-1)[places], self._keys.reshape(-1)[slots][:, None])
        single = self.table.gather(keys.reshape(-1), ["reward"], index=STEPS)["reward"].reshape(keys.shape)
        scaled = self._normalize_reward(single.astype(np.float64), env) * self.gamma**steps * within
        returns: NDArray[np.float32] = scaled.sum(axis=1).astype(np.float32)
        return returns

    def _joined(self, states: Any) -> Any:
        """Observations whose stacked frames are joined along the first axis, as the environment gives them."""
        if isinstance(states, Mapping):
            return {key: self._joined(part) for key, part in states.items()}
        if self._frame_stack == 1:
            return states
        return states.reshape(len(states), -1, *states.shape[3:])

    def _tensors(self, states: Any) -> Any:
        if isinstance(states, Mapping):
            return {key: self._tensor(part) for key, part in states.items()}
        return self._tensor(states)

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    # ---- the arrays of the class that is replaced ------------------------------------------------------------------

    @property
    def observations(self) -> Any:
        """The observations of all stored steps, [buffer_size, n_envs, ...]: a copy."""
        return self._ring("observation")

    @property
    def next_observations(self) -> Any:
        """The next observations of all stored steps: a copy."""
        return self._ring("next_observation")

    @property
    def actions(self) -> Any:
        """The actions of all stored steps: a copy."""
        return self._ring("action")

    @property
    def rewards(self) -> Any:
        """The rewards of all stored steps: a copy."""
        return self._ring("reward")

    @property
    def dones(self) -> Any:
        """1 for each step that ended its episode, as it was given, float32 [buffer_size, n_envs]: a copy."""
        return self._done[0].astype(np.float32)

    @property
    def timeouts(self) -> Any:
        """1 for each step after which its episode was truncated: a copy."""
        return self._done[1].astype(np.float32)

    def _ring(self, name: str) -> Any:
        index = STEPS if STEPS in self.table.config.index else TRAINING
        known = self._keys.reshape(-1) >= 0
        batch = self.table.gather(self._keys.reshape(-1)[known], [name], index=index)
        return self._spread(self._joined(batch[name]), known, batch.present)

    def _spread(self, part: Any, known: NDArray[np.bool_], present: Any) -> Any:
        if isinstance(part, Mapping):
            return {key: self._spread(one, known, present) for key, one in part.items()}
        whole = np.zeros((known.size, *part.shape[1:]), part.dtype)
        whole[np.flatnonzero(known)[present]] = part[present]
        return whole.reshape(self.buffer_size, self.n_envs, *part.shape[1:])

    # ---- files -----------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The attributes, with the contents of the table in the place of its handle."""
        state = self.__dict__.copy()
        del state["table"], state["_writer"], state["_storage"]
        return {**state, "packed": pack(self.table)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Makes a table of its own, in the memory of this process. Episodes that were open are truncated."""
        state = dict(state)
        self.table = unpack(state.pop("packed"))
        self.__dict__.update(state)
        self._storage = None
        self._writer = CuttingWriter(self.table, self.n_envs)
        self._prepare()
        self._is_open[:] = False


def _narrow(dtype: Any) -> Any:
    """The dtype in which Stable-Baselines3 stores actions: float32 for float64."""
    return np.float32 if dtype == np.float64 else dtype


def _exact(name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
        return value
    array = unmasked(name, value)
    if array.dtype != dtype:
        array = array.astype(dtype)
    return array.reshape(shape)
