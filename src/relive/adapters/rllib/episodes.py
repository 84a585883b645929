"""Episodes of one step, as RLlib's learner takes them."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

# The attributes that _like() and _filled() know. Episodes of another version of RLlib are made by the constructor.
_SLOTS = (
    *("id_", "agent_id", "module_id", "multi_agent_episode_id", "observations", "infos", "actions", "rewards"),
    *("extra_model_outputs", "is_terminated", "is_truncated", "t_started", "t", "_observation_space", "_action_space"),
    *("_custom_data", "_start_time", "_last_step_time", "_last_added_observation", "_last_added_infos"),
)
_OF_A_BUFFER = {"data", "lookback", "finalized", "_space", "_space_struct"}
_CAN_COPY = set(SingleAgentEpisode.__slots__) == set(_SLOTS) and set(vars(InfiniteLookbackBuffer())) == _OF_A_BUFFER


class Step(NamedTuple):
    """A drawn item: what an episode of one step has. States and the action are [*shape], or nested."""

    observation: Any
    following: Any
    action: Any
    reward: np.float32
    is_terminated: bool
    is_truncated: bool
    weight: np.float32
    num_steps: int
    start: int


def episodes_of(steps: list[Step], spaces: tuple[Any, Any]) -> list[Any]:
    """Each step as a SingleAgentEpisode of its own. spaces: of observations and of actions."""
    if not steps or not _CAN_COPY:
        return [_episode(step, spaces) for step in steps]
    first = _episode(steps[0], spaces)
    number = uuid.uuid4().int >> 32 << 32
    return [first, *(_like(first, step, f"{number + row:032x}") for row, step in enumerate(steps[1:]))]


def _episode(step: Step, spaces: tuple[Any, Any]) -> Any:
    """An episode of one step, by RLlib's constructor."""
    return SingleAgentEpisode(
        observations=[step.observation, step.following],
        observation_space=spaces[0],
        actions=[step.action],
        action_space=spaces[1],
        rewards=[step.reward],
        terminated=step.is_terminated,
        truncated=step.is_truncated,
        extra_model_outputs={"weights": [step.weight], "n_step": [step.num_steps]},
        len_lookback_buffer=0,
        t_started=step.start,
    )


def _like(episode: Any, step: Step, name: str) -> Any:
    """_episode(step) by copies of another episode's parts. The constructor takes three times as long."""
    made = SingleAgentEpisode.__new__(SingleAgentEpisode)
    for slot in _SLOTS:
        setattr(made, slot, getattr(episode, slot))
    made.id_ = name
    made.observations = _filled(episode.observations, [step.observation, step.following])
    made.infos = _filled(episode.infos, [{}, {}])
    made.actions = _filled(episode.actions, [step.action])
    made.rewards = _filled(episode.rewards, [step.reward])
    outputs = episode.extra_model_outputs
    made.extra_model_outputs = {
        "weights": _filled(outputs["weights"], [step.weight]),
        "n_step": _filled(outputs["n_step"], [step.num_steps]),
    }
    made.is_terminated, made.is_truncated = step.is_terminated, step.is_truncated
    made.t_started, made.t = step.start, step.start + 1
    made._custom_data = {}
    return made


def _filled(buffer: Any, data: list[Any]) -> Any:
    made = InfiniteLookbackBuffer.__new__(InfiniteLookbackBuffer)
    made.data, made.lookback, made.finalized = data, buffer.lookback, buffer.finalized
    made._space, made._space_struct = buffer._space, buffer._space_struct
    return made
