"""What agents share: what they ask of spaces and batches, and how their state is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relive.agents.agent import Exchange, Items, Spaces
from relive.errors import InvalidConfig

SMALLEST_PRIORITY = 1e-6


def require_box(spaces: Spaces, agent: str) -> tuple[int, ...]:
    """The shape of an observation; InvalidConfig where observations are no Box, or one of no numbers."""
    space = spaces.observation
    if not isinstance(space, gymnasium.spaces.Box) or spaces.observation_size == 0:
        raise InvalidConfig(f"observation space of {spaces.env_id}", f"a Box, for {agent}", str(space))
    return spaces.observation_shape


def require_discrete(spaces: Spaces, agent: str) -> int:
    """The number of actions, counted from 0; InvalidConfig for other action spaces."""
    space = spaces.action
    if not isinstance(space, gymnasium.spaces.Discrete) or int(space.start) != 0:
        raise InvalidConfig(f"action space of {spaces.env_id}", f"Discrete(n) counted from 0, for {agent}", str(space))
    return int(space.n)


def fill(batch: Items, buffers: Mapping[str, Tensor]) -> None:
    """Copies columns of a batch into an agent's memory, which is made for a fixed number of items of a fixed size.

    buffers: [B, ...] by column. Raises InvalidConfig, before anything is copied, for another B or another size.
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
    """New priorities float64 [B]: the mean of |error| over the networks, errors being [B, 1] each, and never 0."""
    mean = torch.stack([error.abs() for error in errors]).mean(dim=0)
    return mean.flatten().to("cpu", torch.float64).numpy() + SMALLEST_PRIORITY


def exchange_of(parts: Mapping[str, Any]) -> Exchange:
    """What updates change of an agent's parts: those with tensors, and generators."""
    generators = tuple(part for part in parts.values() if isinstance(part, torch.Generator))
    rest = (part for part in parts.values() if not isinstance(part, torch.Generator))
    return Exchange(tuple(tensor for part in rest for tensor in part.tensors()), generators)


def state_of(parts: Mapping[str, Any], num_updates: int) -> dict[str, Any]:
    """The state of an agent from its parts: those with a state_dict, and generators."""
    state: dict[str, Any] = {"num_updates": num_updates}
    for name, part in parts.items():
        state[name] = part.get_state() if isinstance(part, torch.Generator) else part.state_dict()
    return state


def load_state(parts: Mapping[str, Any], state: Mapping[str, Any]) -> int:
    """Takes over what `state_of` gave, and returns the number of updates.

    InvalidConfig where it is of other parts, names or shapes; nothing has changed then, nor after any other error.
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


def _take(parts: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    for name, part in parts.items():
        if isinstance(part, torch.Generator):
            part.set_state(state[name].cpu())
        else:
            part.load_state_dict(state[name])
