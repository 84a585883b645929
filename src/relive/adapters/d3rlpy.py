"""d3rlpy: a replay buffer over a table, for training on recorded data and for training online.

    from relive.adapters.d3rlpy import ReplayBuffer
    algorithm.fit(ReplayBuffer(relive.from_minari("D4RL/door/human-v2")), n_steps=100_000)

Differences from d3rlpy's own buffer:

- Transitions are drawn by the index of the table: prioritized, n-step (`intervals` is the number of steps), by age.
- Batches are gathered in one call. `batch.transitions` is made only when an algorithm asks for it (returns to go).
- transition_count is the number of live items of the index.
- A truncated episode has a state after its last step, so that step is a transition, too. No action follows it:
  next_actions are zeros there. An algorithm that reads next_actions (ReBRAC) needs next_actions_only=True, which leaves
  these transitions out.
- An appended episode that was truncated has one step less: d3rlpy does not tell the state after its last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, final, overload

import numpy as np
import numpy.typing as npt

from relive.checks.names import names_arguments
from relive.checks.values import flag
from relive.config.casting import unmasked
from relive.core.protocol import ReplayBatch, ReplayTable
from relive.errors import InvalidConfig, MissingPackage
from relive.errors.extras import install_command
from relive.reading.episodes import Episode as TableEpisode

try:
    from d3rlpy.constants import ActionSpace
    from d3rlpy.dataset import (
        BasicTrajectorySlicer,
        BasicTransitionPicker,
        DatasetInfo,
        Episode,
        ReplayBufferBase,
        Signature,
        TrajectoryMiniBatch,
        Transition,
        TransitionMiniBatch,
    )
    from d3rlpy.dataset.io import dump, load
except ImportError as _problem:
    raise MissingPackage("d3rlpy's ReplayBuffer", str(_problem.name), install_command("d3rlpy")) from _problem

__all__ = ["ReplayBuffer"]

Array = npt.NDArray[Any]

_COLUMNS = ("observation", "action", "reward", "next_observation", "next_action", "terminated", "num_steps")
_WHERE = "terminated or not truncated"


@final
class ReplayBuffer(ReplayBufferBase):
    """d3rlpy's replay buffer over a table with the columns observation, action and reward.

    For one thread at a time. Close it, or use it in a `with` block, if it appends: then it has a writer.

    Args:
        table: the table. Its state columns are below `observation`; a nested observation is a list of arrays.
        index: the index of Transitions to draw from; None: the first.
        action_size: the number of discrete actions; None: one more than the largest action of the episodes.
        transition_picker: for algorithms that ask for single transitions; None: d3rlpy's usual one.
        trajectory_slicer: for decision transformers; None: d3rlpy's usual one.
        next_actions_only: True: draws terminal transitions, and those whose next action is known. A table over shards
            refuses it.
        seed: of the random parts of episodes; None: another one each time. The table has its own seed.

    Raises:
        InvalidConfig: a column is missing, or an action is of another kind.
    """

    @names_arguments
    def __init__(
        self,
        table: ReplayTable,
        *,
        index: str | None = None,
        action_size: int | None = None,
        transition_picker: Any = None,
        trajectory_slicer: Any = None,
        next_actions_only: bool = False,
        seed: int | None = None,
    ) -> None:
        columns = table.spec.columns
        self._observations = tuple(name for name in columns if name.partition("/")[0] == "observation")
        if not self._observations or "action" not in columns or "reward" not in columns:
            raise InvalidConfig("columns of a table for d3rlpy", "observation, action and reward", ", ".join(columns))
        self.table = table
        self._index = index
        self._is_discrete = columns["action"].dtype.kind in "iu"
        self._picker = transition_picker or BasicTransitionPicker()
        self._slicer = trajectory_slicer or BasicTrajectorySlicer()
        self._action_size = action_size
        self._random = np.random.default_rng(seed)
        self._where = _WHERE if flag("next_actions_only", next_actions_only) else None
        self._read: tuple[int, list[Any], dict[int, tuple[int, int]]] = (-1, [], {})
        self._writer: Any = None
        self._held: dict[str, Any] | None = None  # the newest step: the next one, or the end, says what follows it

    # ---- reading ---------------------------------------------------------------------------------------------------

    def sample_transition_batch(self, batch_size: int) -> Any:
        """Draws a mini-batch of transitions. Raises DeadlineExceeded and the other errors of table.sample."""
        batch = self.table.sample(batch_size, _COLUMNS, index=self._index, where=self._where)
        return TransitionMiniBatch(
            observations=self._shown(batch, ""),
            actions=self._actions(batch["action"]).astype(np.float32),
            rewards=_column(batch["reward"]),
            next_observations=self._shown(batch, "next_"),
            next_actions=self._actions(batch["next_action"]).astype(np.float32),
            terminals=_column(batch["terminated"]),
            intervals=_column(batch["num_steps"]),
            transitions=_Transitions(self, batch),
        )

    def sample_transition(self) -> Any:
        """Draws one transition."""
        return self.sample_transition_batch(1).transitions[0]

    def sample_trajectory(self, length: int) -> Any:
        """Draws a part of an episode that ends with a random step."""
        buffer = self.buffer
        episode, index = buffer[int(self._random.integers(buffer.transition_count))]
        return self._slicer(episode, index, length)

    def sample_trajectory_batch(self, batch_size: int, length: int) -> Any:
        """Draws a mini-batch of parts of episodes."""
        return TrajectoryMiniBatch.from_partial_trajectories(
            [self.sample_trajectory(length) for _ in range(batch_size)]
        )

    def transition_of(self, item_key: int) -> Any:
        """The transition that begins with the step of a key. Raises InvalidConfig if its episode is not whole."""
        _, episodes, places = self._all()
        if item_key not in places:
            raise InvalidConfig("transition", "a step of an episode that has ended and is whole", item_key)
        number, step = places[item_key]
        return self._picker(episodes[number], step)

    @property
    def episodes(self) -> Sequence[Any]:
        """The whole episodes of the table. They are read again after steps were appended."""
        return self._all()[1]

    def size(self) -> int:
        """The number of whole episodes."""
        return len(self.episodes)

    @property
    def transition_count(self) -> int:
        """The live items of the index."""
        handle: Any = self.table
        return int(handle.num_items(self._index))

    @property
    def buffer(self) -> Any:
        """The whole episodes, as one of d3rlpy's buffers: buffer[i] is (episode, step)."""
        return _Buffer(self.episodes)

    @property
    def transition_picker(self) -> Any:
        """The transition picker."""
        return self._picker

    @property
    def trajectory_slicer(self) -> Any:
        """The trajectory slicer."""
        return self._slicer

    @property
    def dataset_info(self) -> Any:
        """The signatures, and the kind and number of actions."""
        columns = [self.table.spec.columns[name] for name in self._observations]
        action, reward = self.table.spec.columns["action"], self.table.spec.columns["reward"]
        if self._action_size is None and self._is_discrete:
            self._action_size = 1 + max((int(one.actions.max()) for one in self.episodes), default=0)
        return DatasetInfo(
            observation_signature=Signature([one.dtype for one in columns], [one.shape for one in columns]),
            action_signature=Signature([action.dtype], [action.shape or (1,)]),
            reward_signature=Signature([reward.dtype], [(1,)]),
            action_space=ActionSpace.DISCRETE if self._is_discrete else ActionSpace.CONTINUOUS,
            action_size=self._action_size if self._is_discrete else int(np.prod(action.shape)),
        )

    # ---- writing ---------------------------------------------------------------------------------------------------

    def append(self, observation: Any, action: Any, reward: Any) -> None:
        """Appends a step. It is stored when the next step, or the end of the episode, says what follows it."""
        following = {**self._stored(observation), "action": self._one_action(action), "reward": _number(reward)}
        if self._held is not None:
            self._lanes().append(**self._held)
        self._held = following

    def clip_episode(self, terminated: bool) -> None:
        """Ends the episode. If it did not terminate, the last observation is its last state."""
        held, self._held = self._held, None
        if held is None:
            return
        if terminated:
            self._lanes().append(**held, terminated=True)
        elif self._is_open:
            states = {f"next_{name}": held[name] for name in self._observations}
            self._lanes().end_episode(truncated=True, **states)
        self._is_open = False

    def append_episode(self, episode: Any) -> None:
        """Appends a whole episode of d3rlpy."""
        count = episode.transition_count
        if count == 0:
            return
        rows = count if episode.terminated else count + 1
        seen = episode.observations if isinstance(episode.observations, (list, tuple)) else [episode.observations]
        states = {name: part[:rows] for name, part in zip(self._observations, seen, strict=True)}
        shape = self.table.spec.columns["action"].shape
        self._lanes().extend(
            **states,
            action=unmasked("action", episode.actions[:count]).reshape(count, *shape),
            reward=unmasked("reward", episode.rewards[:count]).reshape(count),
            **({"terminated": True} if episode.terminated else {"truncated": True}),
        )
        self._is_open = False

    _is_open = False  # whether the writer has steps of an episode that has not ended

    def _lanes(self) -> Any:
        if self._writer is None:
            self._writer = self.table.writer()
        self._is_open = True
        return self._writer

    def close(self) -> None:
        """Closes the writer; the table stays open. Closing twice is harmless."""
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> ReplayBuffer:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    # ---- files of d3rlpy -------------------------------------------------------------------------------------------

    def dump(self, f: BinaryIO) -> None:
        """Writes the episodes as d3rlpy does, to a binary file."""
        dump(self.episodes, f)

    @classmethod
    def load(cls, f: BinaryIO, buffer: Any, episode_cls: Any = Episode, **more: Any) -> ReplayBuffer:
        """Reads a file of d3rlpy into a table. buffer: the table. **more: arguments of ReplayBuffer."""
        return cls._of(buffer, load(episode_cls, f), more)

    @classmethod
    def from_episode_generator(cls, episode_generator: Any, buffer: Any, **more: Any) -> ReplayBuffer:
        """Appends the episodes of a generator of d3rlpy to a table. buffer: the table."""
        return cls._of(buffer, episode_generator(), more)

    @classmethod
    def _of(cls, table: ReplayTable, episodes: Sequence[Any], more: dict[str, Any]) -> ReplayBuffer:
        made = cls(table, **{name: value for name, value in more.items() if name != "writer_preprocessor"})
        for episode in episodes:
            made.append_episode(episode)
        return made

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _all(self) -> tuple[int, list[Any], dict[int, tuple[int, int]]]:
        appended = int(self.table.stats().appended)
        if self._read[0] != appended:
            names = (*self._observations, "action", "reward")
            episodes: list[Any] = []
            places: dict[int, tuple[int, int]] = {}
            for one in self.table.episodes(names):
                places |= {int(key): (len(episodes), step) for step, key in enumerate(one.item_keys)}
                episodes.append(self._episode(one))
            self._read = appended, episodes, places
        return self._read

    def _episode(self, one: TableEpisode) -> Any:
        count = len(one)
        end = count if one.terminated else count + 1  # the last state stands for a step that has no transition
        parts = [one.flat()[name][:end] for name in self._observations]
        actions, rewards = self._actions(one["action"]), one["reward"].reshape(count, 1)
        if not one.terminated:
            actions, rewards = (np.concatenate((array, np.zeros_like(array[:1]))) for array in (actions, rewards))
        return Episode(parts[0] if len(parts) == 1 else parts, actions, rewards, one.terminated)

    def _actions(self, actions: Array) -> Array:
        return actions[:, None] if actions.ndim == 1 else actions

    def _one_action(self, action: Any) -> Array:
        return unmasked("action", action).reshape(self.table.spec.columns["action"].shape)

    def _shown(self, batch: ReplayBatch, before: str) -> Any:
        parts = [np.asarray(batch[before + name], np.float32) for name in self._observations]
        return parts[0] if len(parts) == 1 else parts

    def _stored(self, observation: Any) -> dict[str, Any]:
        parts = observation if isinstance(observation, (list, tuple)) else [observation]
        return {name: unmasked(name, part) for name, part in zip(self._observations, parts, strict=True)}


def _column(values: Array) -> Array:
    return np.asarray(values, np.float32)[:, None]


def _number(value: Any) -> float:
    return float(unmasked("reward", value).reshape(()))


@final
class _Transitions(Sequence[Any]):
    """The transitions of a batch, each made when it is asked for."""

    def __init__(self, buffer: ReplayBuffer, batch: ReplayBatch) -> None:
        self._buffer = buffer
        self._batch = batch

    def __len__(self) -> int:
        return len(self._batch)

    @overload
    def __getitem__(self, number: int) -> Any: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[Any]: ...
    def __getitem__(self, number: int | slice) -> Any:
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self)))]
        key = int(self._batch.item_keys[number])
        try:
            return self._buffer.transition_of(key)
        except InvalidConfig:
            if not -len(self) <= number < len(self):
                raise IndexError(number) from None
            return self._alone(number)

    def _alone(self, number: int) -> Any:
        """The transition of an episode that has not ended: its rewards to go are those that are known."""
        buffer, batch = self._buffer, self._batch
        names = ("observation", "next_observation")
        shown = [
            [np.asarray(batch[one.replace("observation", name, 1)][number]) for one in buffer._observations]
            for name in names
        ]
        first, after = (parts[0] if len(parts) == 1 else parts for parts in shown)
        reward = np.asarray([batch["reward"][number]], np.float32)
        return Transition(
            observation=first,
            action=buffer._actions(batch["action"][number : number + 1])[0],
            reward=reward,
            next_observation=after,
            next_action=buffer._actions(batch["next_action"][number : number + 1])[0],
            terminal=float(batch["terminated"][number]),
            interval=int(batch["num_steps"][number]),
            rewards_to_go=reward[None],
        )


@final
class _Buffer:
    """The transitions of episodes by number, as d3rlpy's buffers have them."""

    def __init__(self, episodes: Sequence[Any]) -> None:
        self.episodes = episodes
        self._ends = np.cumsum([one.transition_count for one in episodes])

    @property
    def transition_count(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __len__(self) -> int:
        return self.transition_count

    def __getitem__(self, number: int) -> tuple[Any, int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        at = int(np.searchsorted(self._ends, number, "right"))
        return self.episodes[at], number - int(self._ends[at] - self.episodes[at].transition_count)

    def append(self, episode: Any, index: int) -> None:
        raise InvalidConfig("append of a buffer", "ReplayBuffer.append_episode", "a step of an episode")
