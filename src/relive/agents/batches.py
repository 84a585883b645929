"""Functions that agents share: checks of spaces, batches into buffers, priorities, and the state of an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relive.agents.agent import Agent, Exchange, Items, Spaces
from relive.errors import InvalidConfig

SMALLEST_PRIORITY = 1e-6


def require_box(spaces: Spaces, agent: str) -> tuple[int, ...]:
    """Returns the shape of an observation.

    Args:
        spaces: the spaces.
        agent: name of the agent, for the error.

    Raises:
        InvalidConfig: observations are not a Box, or have no numbers.
    """
    space = spaces.observation
    if not isinstance(space, gymnasium.spaces.Box) or spaces.observation_size == 0:
        raise InvalidConfig(f"observation space of {spaces.env_id}", f"a Box, for {agent}", str(space))
    return spaces.observation_shape


def require_discrete(spaces: Spaces, agent: str) -> int:
    """Returns the number of actions.

    Args:
        spaces: the spaces.
        agent: name of the agent, for the error.

    Raises:
        InvalidConfig: the action space is not Discrete, or does not count from 0.
    """
    space = spaces.action
    if not isinstance(space, gymnasium.spaces.Discrete) or int(space.start) != 0:
        raise InvalidConfig(f"action space of {spaces.env_id}", f"Discrete(n) counted from 0, for {agent}", str(space))
    return int(space.n)


def fill(batch: Items, buffers: Mapping[str, Tensor]) -> None:
    """Copies columns of a batch into an agent's buffers, which have a fixed number of items of a fixed size.

    Args:
        batch: the batch.
        buffers: tensors [B, ...] by column.

    Raises:
        InvalidConfig: a column has another number of items or items of another size. Nothing has been copied.
    """
    arrays = {name: torch.from_numpy(np.ascontiguousarray(batch[name])) for name in buffers}
    for name, buffer in buffers.items():
        array = arrays[name]
        if len(array) != len(buffer) or array.numel() != buffer.numel():
            expected = f"shape ({len(buffer)}, ...), {buffer[0].numel()} numbers each; the first is batch_size"
            raise InvalidConfig(f"column {name!r} of a batch", expected, tuple(array.shape))
    for name, buffer in buffers.items():
        buffer.copy_(arrays[name].view(buffer.shape))


def priorities_of(errors: Sequence[Tensor]) -> NDArray[np.float64]:
    """Returns new priorities float64 [B], which are never 0.

    priority = mean over networks of |error| + 1e-6

    Args:
        errors: errors [B, 1] of each network.
    """
    mean = torch.stack([error.abs() for error in errors]).mean(dim=0)
    return mean.flatten().to("cpu", torch.float64).numpy() + SMALLEST_PRIORITY


def exchange_of(parts: Mapping[str, Any]) -> Exchange:
    """Returns the memory that updates change.

    Args:
        parts: parts of an agent by name: objects with `tensors()`, and generators.
    """
    generators = tuple(part for part in parts.values() if isinstance(part, torch.Generator))
    rest = (part for part in parts.values() if not isinstance(part, torch.Generator))
    return Exchange(tuple(tensor for part in rest for tensor in part.tensors()), generators)


def state_of(parts: Mapping[str, Any], num_updates: int) -> dict[str, Any]:
    """Returns the state of an agent.

    Args:
        parts: parts of the agent by name: objects with `state_dict()`, and generators.
        num_updates: updates so far.
    """
    state: dict[str, Any] = {"num_updates": num_updates}
    for name, part in parts.items():
        state[name] = part.get_state() if isinstance(part, torch.Generator) else part.state_dict()
    return state


def load_state(parts: Mapping[str, Any], state: Mapping[str, Any]) -> int:
    """Takes over a state that `state_of` returned.

    A generator keeps its own state if the state is one of another kind of device: see `has_other_generators`.

    Args:
        parts: parts of the agent by name.
        state: the state.

    Returns:
        The number of updates.

    Raises:
        InvalidConfig: the state has other parts, names or shapes. After this and any other error the parts are
            unchanged.
    """
    if not isinstance(state, Mapping) or set(state) != {"num_updates", *parts}:
        got = sorted(map(str, set(state) - {"num_updates"})) if isinstance(state, Mapping) else type(state).__name__
        raise InvalidConfig("parts of a checkpoint", f"{sorted(parts)}", str(got))
    num_updates = state["num_updates"]
    if not isinstance(num_updates, int) or isinstance(num_updates, bool) or num_updates < 0:
        raise InvalidConfig("num_updates of a checkpoint", "an integer >= 0", num_updates)
    before = state_of(parts, 0)
    try:
        _take(parts, state)
    except BaseException as problem:
        _take(parts, before)
        if isinstance(problem, (AttributeError, LookupError, RuntimeError, TypeError)):
            raise InvalidConfig("parts of a checkpoint", "those of this agent", repr(problem)) from problem
        raise
    return num_updates


def has_other_generators(agent: Agent, state: Mapping[str, Any]) -> bool:
    """Whether a state of an agent has generators of another kind of device, as a CPU's are to CUDA.

    No generator can take such a state over: it has another size.

    Args:
        agent: the agent.
        state: a state that the agent can load.
    """
    own = agent.state_dict()
    return any(_is_of_other_size(value, own.get(name)) for name, value in state.items())


def _is_of_other_size(state: Any, own: Any) -> bool:
    """Whether both are states of generators, of different sizes."""
    are_states = all(isinstance(one, Tensor) and one.dtype == torch.uint8 and one.dim() == 1 for one in (state, own))
    return are_states and len(state) != len(own)


def _take(parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    for name, part in parts.items():
        if isinstance(part, torch.Generator):
            if not _is_of_other_size(state[name], part.get_state()):
                part.set_state(state[name].cpu())
        else:
            part.load_state_dict(state[name])
