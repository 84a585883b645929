"""PrioritizedEpisodeReplayBuffer."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
from ray.rllib.utils.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer
from ray.rllib.utils.replay_buffers.prioritized_episode_buffer import (
    PrioritizedEpisodeReplayBuffer as _PrioritizedEpisodeReplayBuffer,
)
from ray.rllib.utils.spaces.space_utils import batch as _batched

from relive.adapters.errors import NotOffered
from relive.adapters.packing import pack, unpack
from relive.adapters.rllib.episodes import Step, episodes_of
from relive.adapters.seams import CuttingWriter
from relive.checks.values import finite, integer
from relive.config.casting import refuse_hidden, unmasked
from relive.config.index import Index
from relive.config.items import Transitions
from relive.config.samplers import Prioritized
from relive.config.spec import ArraySpec, StepSpec
from relive.errors import InvalidConfig
from relive.reading.batch import Batch
from relive.table.table import Table

__all__ = ["PrioritizedEpisodeReplayBuffer"]

_LEAST_PRIORITY = 1e-12
_COLUMNS = ("observation", "next_observation", "action", "reward", "discount", "truncated", "num_steps", "episode_step")


class PrioritizedEpisodeReplayBuffer(_PrioritizedEpisodeReplayBuffer):
    """RLlib's PrioritizedEpisodeReplayBuffer, with its steps in a table, which is `table`.

    A return near the end of an episode has fewer steps; the class that is replaced never samples such a step. Infos and
    extra model outputs are not stored.

    Args:
        capacity: the most steps.
        batch_size_B: items of a sample that names no number.
        batch_length_T: 1: sequences are not offered.
        alpha: exponent of the priorities.
        **options: n_step (1) and gamma (0.99), those of the algorithm; max_open_episodes (64), episodes that come in
            parts at the same time; metrics_num_episodes_for_smoothing. RLlib passes beta with each sample.

    Raises:
        InvalidConfig: an argument has another type or value.
        NotOffered: batch_length_T is not 1.
    """

    _num_timesteps: int  # of EpisodeReplayBuffer
    _num_timesteps_added: int

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 1,
        alpha: float = 1.0,
        **options: Any,
    ) -> None:
        if batch_length_T not in (0, 1):
            raise NotOffered("PrioritizedEpisodeReplayBuffer", "sequences (batch_length_T)", "use relive.Sequences")
        smoothing = options.get("metrics_num_episodes_for_smoothing", 100)
        EpisodeReplayBuffer.__init__(
            self,
            integer("capacity", capacity, 1),
            batch_size_B=batch_size_B,
            batch_length_T=batch_length_T,
            metrics_num_episodes_for_smoothing=smoothing,
        )
        self._alpha = finite("alpha", alpha, 0.0)
        self._n_step = integer("n_step", options.get("n_step", 1), 1, 1024)
        self._gamma = finite("gamma", options.get("gamma", 0.99), 0.0, 1.0)
        self._num_lanes = integer("max_open_episodes", options.get("max_open_episodes", 64), 1)
        self.table: Table | None = None
        self._writer: CuttingWriter | None = None
        self._lanes: OrderedDict[str, int] = OrderedDict()  # of the open episodes, the one that waited longest first
        self._lengths: OrderedDict[str, int] = OrderedDict()  # steps of the stored episodes, oldest first
        self._spaces: tuple[Any, Any] = (None, None)
        self._last_keys: NDArray[np.int64] = np.zeros(0, np.int64)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def add(self, episodes: Any, weight: float | None = None) -> None:
        """Stores episodes, or parts of them. A part continues the episode of the same id.

        Args:
            episodes: a SingleAgentEpisode, or a list of them.
            weight: the first priority of the steps; None: the largest so far.
        """
        steps = new = 0
        for episode in episodes if isinstance(episodes, (list, tuple)) else [episodes]:
            if len(episode):
                new += episode.id_ not in self._lengths
                self._add(episode, weight)
                steps += len(episode)
        self._num_timesteps_added += steps
        before = self._num_timesteps
        self._num_timesteps = 0 if self.table is None else len(self.table)
        gone, evicted = max(before + steps - self._num_timesteps, 0), self._forget()
        self._update_add_metrics(
            num_episodes_added=new,
            num_env_steps_added=steps,
            num_episodes_evicted=evicted,
            num_env_steps_evicted=gone,
            **_each("agent", DEFAULT_AGENT_ID, new, steps, evicted, gone),
            **_each("module", DEFAULT_MODULE_ID, new, steps, evicted, gone),
        )

    def _add(self, episode: Any, weight: float | None) -> None:
        states = _arrays("observation", episode.get_observations())
        columns = {
            "action": _arrays("action", episode.get_actions()),
            "reward": unmasked("reward", episode.get_rewards(), np.float32),
        }
        if self._writer is None:
            self._spaces = episode.observation_space, episode.action_space
            self._make(states, columns["action"])
        assert self._writer is not None
        number = len(episode)
        ends = np.zeros((number, 1), np.bool_)
        ends[-1] = True
        self._writer.extend(
            lanes=np.array([self._lane_of(episode.id_)]),
            observation=_part(states, slice(0, number)),
            next_observation=_part(states, slice(1, number + 1)),
            **{name: _part(values, slice(None)) for name, values in columns.items()},
            terminated=ends & bool(episode.is_terminated),
            truncated=ends & bool(episode.is_truncated and not episode.is_terminated),
            priority=weight,
        )
        if episode.is_done:
            self._lanes.pop(episode.id_, None)
        self._lengths[episode.id_] = self._lengths.get(episode.id_, 0) + number

    def _make(self, states: Any, actions: Any) -> None:
        spec = {"observation": _specs(states, "state"), "action": _specs(actions, "step")}
        gamma = self._gamma if self._n_step > 1 else 1.0
        self.table = Table(
            StepSpec({**spec, "reward": ArraySpec((), np.float32)}),
            self.capacity,
            Index(Transitions(self._n_step, gamma), Prioritized(self._alpha)),
            max_lanes=self._num_lanes,
            seed=int(self.rng.integers(2**31)),
        )
        self._writer = CuttingWriter(self.table, self._num_lanes)

    def _lane_of(self, episode: str) -> int:
        """The lane of an episode. If all lanes have one, the episode that waited longest loses its lane."""
        if episode not in self._lanes:
            free = set(range(self._num_lanes)) - set(self._lanes.values())
            lane = min(free) if free else self._lanes.popitem(last=False)[1]
            self._lanes[episode] = lane
        self._lanes.move_to_end(episode)
        return self._lanes[episode]

    def _forget(self) -> int:
        """Forgets episodes whose steps have left the table; returns their number."""
        total, number = sum(self._lengths.values()), 0
        while self._lengths and total - next(iter(self._lengths.values())) >= self._num_timesteps:
            total -= self._lengths.popitem(last=False)[1]
            number += 1
        self._num_episodes_evicted += number
        return number

    # ---- reading ---------------------------------------------------------------------------------------------------

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        n_step: Any = None,
        beta: float | None = 0.0,
        gamma: float | None = None,
        **options: Any,
    ) -> list[Any]:
        """Draws transitions, each as an episode of one step, as the class that is replaced.

        Args:
            num_items: the number of items; or batch_size_B.
            n_step: None, or the buffer's.
            beta: exponent of the importance weights.
            gamma: None, or the buffer's.
            **options: to_numpy; include_infos, include_extra_model_outputs and batch_length_T have to be false.

        Raises:
            InvalidConfig: n_step or gamma are not those of the buffer.
            NotOffered: the options ask for parts that the table does not have.
        """
        for name, given, own in (("n_step", n_step, self._n_step), ("gamma", gamma, self._gamma)):
            if given is not None and given != own and (name != "gamma" or self._n_step > 1):
                way = f'{own}, as the buffer was made; give "{name}": {given} in replay_buffer_config'
                raise InvalidConfig(f"{name} of a sample", way, given)
        for name in ("include_infos", "include_extra_model_outputs", "batch_length_T"):
            if options.get(name) and not (name == "batch_length_T" and options[name] == 1):
                raise NotOffered("PrioritizedEpisodeReplayBuffer", f"{name} of a sample", "leave it out")
        if self.table is None:
            raise NotOffered("PrioritizedEpisodeReplayBuffer", "a sample of an empty buffer", "add episodes first")
        number = num_items or batch_size_B or self.batch_size_B
        drawn = self.table.sample(number, list(_COLUMNS))
        self._last_keys = drawn.item_keys
        made = self._episodes(drawn, drawn.weights(float(beta or 0.0)))
        if options.get("to_numpy"):
            for episode in made:
                episode.to_numpy()
        self._note_sample(number, drawn)
        return made

    def _episodes(self, drawn: Batch, weights: NDArray[np.float32]) -> list[Any]:
        states, following, actions = drawn["observation"], drawn["next_observation"], drawn["action"]
        terminated = drawn["discount"] == 0.0
        rows = range(len(weights))
        steps = [
            Step(*values)
            for values in zip(
                [_part(states, row) for row in rows],
                [_part(following, row) for row in rows],
                [_part(actions, row) for row in rows],
                drawn["reward"],
                terminated.tolist(),
                (drawn["truncated"].astype(bool) & ~terminated).tolist(),
                weights,
                drawn["num_steps"].tolist(),
                drawn["episode_step"].tolist(),
                strict=True,
            )
        ]
        return episodes_of(steps, self._spaces)

    def _note_sample(self, number: int, drawn: Batch) -> None:
        self.sampled_timesteps += number
        steps, mean = len(np.unique(drawn.item_keys)), float(drawn["num_steps"].mean())
        told: dict[str, Any] = {}
        for kind, name in (("agent", DEFAULT_AGENT_ID), ("module", DEFAULT_MODULE_ID)):
            told[f"{kind}_to_num_steps_sampled"] = {name: number}
            told[f"{kind}_to_num_episodes_per_sample"] = {name: steps}
            told[f"{kind}_to_num_steps_per_sample"] = {name: steps}
            told[f"{kind}_to_sampled_n_step"] = {name: mean}
            told[f"{kind}_to_num_resamples"] = {name: 0}
        self._update_sample_metrics(
            num_env_steps_sampled=number,
            num_episodes_per_sample=steps,
            num_env_steps_per_sample=steps,
            sampled_n_step=mean,
            num_resamples=0,
            **told,
        )

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Sets the priorities of the items of the last sample. Raises ShapeMismatch if there are more or fewer."""
        if self.table is not None:
            values = np.maximum(unmasked("priorities", priorities, np.float64).reshape(-1), _LEAST_PRIORITY)
            self.table.update_priorities(self._last_keys, values)

    def get_num_episodes(self, module_id: Any = None) -> int:
        """Episodes of which steps are stored."""
        return len(self._lengths)

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Stored steps."""
        return int(self._num_timesteps)

    def __len__(self) -> int:
        return len(self._lengths)

    # ---- state -----------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The state, with the contents of the table."""
        return {
            "files": {} if self.table is None else {name: np.array(data) for name, data in pack(self.table).items()},
            "lengths": list(self._lengths.items()),
            "spaces": self._spaces,
            "counts": (self._num_timesteps, self._num_timesteps_added, self.sampled_timesteps),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Reads what get_state returned. Open episodes are truncated."""
        if state["files"]:
            self.table = unpack(state["files"])
            self._writer = CuttingWriter(self.table, self._num_lanes)
        self._lengths, self._lanes = OrderedDict(state["lengths"]), OrderedDict()
        self._spaces = state["spaces"]
        self._num_timesteps, self._num_timesteps_added, self.sampled_timesteps = state["counts"]


def _each(kind: str, name: str, new: int, steps: int, evicted: int, gone: int) -> dict[str, dict[str, int]]:
    return {
        f"{kind}_to_num_episodes_added": {name: new},
        f"{kind}_to_num_steps_added": {name: steps},
        f"{kind}_to_num_episodes_evicted": {name: evicted},
        f"{kind}_to_num_steps_evicted": {name: gone},
    }


def _arrays(column: str, values: Any) -> Any:
    """A list of steps, or arrays over steps, as nested arrays [T, ...]. Raises DtypeMismatch."""
    refuse_hidden(column, values)
    return _batched(list(values)) if isinstance(values, list) else values


def _part(values: Any, rows: Any) -> Any:
    """Rows of nested arrays; a slice gets a lane axis."""
    if isinstance(values, Mapping):
        return {name: _part(part, rows) for name, part in values.items()}
    if isinstance(values, Sequence):
        return tuple(_part(part, rows) for part in values)
    return values[rows][:, np.newaxis] if isinstance(rows, slice) else values[rows]


def _specs(values: Any, kind: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _specs(part, kind) for name, part in values.items()}
    if isinstance(values, Sequence):
        return tuple(_specs(part, kind) for part in values)
    return ArraySpec(values.shape[1:], values.dtype, kind=kind)
