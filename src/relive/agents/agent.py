"""The interface between agents and training: protocols for agents, policies and batches, and an agent's spaces.

An agent is one file. The file contains a configuration (a frozen dataclass, see `relive.agents.config`) and a class
that learns. The class names the columns that the table stores (`spec`) and the items that it draws (`index`), learns
from a batch (`update`), and hands out a `Policy` and the parameters that the policy acts with.
`relive.agents.registry` has one line for each agent. This module imports no framework, because actors import it too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from relive import Index, MinSize, SamplesPerInsert, StepSpec

Parameters = Mapping[str, NDArray[np.float32]]


@final
@dataclass(frozen=True)
class Spaces:
    """The Gymnasium spaces of one environment, as an agent sees them.

    Args:
        env_id: id of the environment, for error sentences.
        observation: a Box.
        action: the space of actions.
        stack: `{"observation": k}` if the first axis of an observation is a stack of its k newest frames. The table
            stores each frame once, and pads a stack with zeros before the first frame. Default: no stack.
    """

    env_id: str
    observation: Any
    action: Any
    stack: Mapping[str, int] = field(default_factory=dict)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of one observation, with the axis of the stack."""
        return tuple(int(length) for length in self.observation.shape)

    @property
    def observation_size(self) -> int:
        """How many numbers one observation has."""
        return math.prod(self.observation_shape)

    def spec(self) -> StepSpec:
        """Returns the columns that a recorder fills: observation, action, reward and the ends of episodes.

        The table stores float64 as float32.
        """
        return StepSpec.from_spaces(self.observation, self.action, unstack=self.stack, float64_as="float32")


class Items(Protocol):
    """The part of a batch that an update reads: columns [B, ...] by name, and importance weights float32 [B]."""

    @property
    def num_items(self) -> int: ...
    def __getitem__(self, name: str, /) -> Any: ...
    def weights(self, beta: float) -> Any: ...


class Noise(Protocol):
    """Random numbers for B observations, one row for each.

    A numpy.random.Generator is such a source. It gives its numbers row after row.
    """

    def random(self, size: tuple[int, int], /) -> NDArray[np.float64]:
        """Returns numbers [B, n], uniform in [0, 1)."""
        ...

    def standard_normal(self, size: tuple[int, int], dtype: type[np.float32], /) -> NDArray[np.float32]:
        """Returns standard normal numbers [B, n]."""
        ...


class Policy(Protocol):
    """Chooses actions, with numpy only, by parameters that come from `Agent.parameters`.

    A policy can be pickled, and it keeps no state.
    """

    def explore(self, parameters: Parameters, observations: NDArray[Any], num_steps: int, noise: Noise) -> NDArray[Any]:
        """Chooses actions that explore.

        Args:
            parameters: arrays by name, from `Agent.parameters`.
            observations: [B, ...].
            num_steps: environment steps of all actors so far.
            noise: source of random numbers. An action depends on its own row of the noise only. The shapes that a
                policy draws depend on B and `num_steps` only.

        Returns:
            Actions [B, ...].
        """
        ...

    def best(self, parameters: Parameters, observations: NDArray[Any]) -> NDArray[Any]:
        """Chooses the best known actions, which evaluations play.

        Args:
            parameters: arrays by name, from `Agent.parameters`.
            observations: [B, ...].

        Returns:
            Actions [B, ...].
        """
        ...

    def exploration(self, num_steps: int) -> dict[str, float]:
        """Returns how the policy explores after `num_steps` steps, for people: `{"epsilon": 0.3}`."""
        ...


class Replicas(Protocol):
    """The learners of a run, as one of them sees the group. Each learner has an agent of the same state.

    `number` is the learner's own, in [0, count).
    """

    @property
    def number(self) -> int: ...
    @property
    def count(self) -> int: ...

    def combine(self, gradients: Any) -> None:
        """Replaces this learner's gradient by the mean over all learners. Every learner gets the same bits.

        Args:
            gradients: float32 tensor [n], changed in place. Every learner makes the same number of calls, with the
                same n.

        Blocks: until the other learners have called too.
        """
        ...


@final
@dataclass(frozen=True)
class Exchange:
    """The parts of an agent's state that travel between learners. A write into them changes the agent.

    Args:
        tensors: float32, of any shapes: networks, targets, moments of optimizers.
        generators: generators of the noise that updates draw.
    """

    tensors: tuple[Any, ...]
    generators: tuple[Any, ...]


class Agent(Protocol):
    """The state of a learner, and the update that changes it.

    An agent is for one thread at a time. All its random numbers come from the seed that it was made with.
    """

    num_updates: int
    """Updates so far, with those before a checkpoint. Code that writes into `exchange` also sets this number."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of a batch that `update` reads."""
        ...

    @property
    def prefetch(self) -> int:
        """How many batches to gather in the background during an update. 0: each batch is drawn when it is needed."""
        ...

    def spec(self) -> StepSpec:
        """Returns the columns that the table stores for each step."""
        ...

    def index(self, limiter: MinSize | SamplesPerInsert) -> Index:
        """Returns the index: the items that the agent learns from, and how they are drawn.

        Args:
            limiter: the limiter of the index.
        """
        ...

    def policy(self) -> Policy:
        """Returns the policy that actors and evaluations act with."""
        ...

    def update(self, batch: Items) -> NDArray[np.float64] | None:
        """Makes one gradient step on a batch.

        Args:
            batch: B items. B is `batch_size` of the configuration.

        Returns:
            New priorities float64 [B] of the items, or None if the items have no priorities.

        Raises:
            InvalidConfig: the batch has another number of items.
        """
        ...

    def functional(self) -> Any:
        """Returns the same update as a function of tensors, for a compiler.

        The function works on the agent's own memory, so a run may change between the two ways after any update.

        Returns:
            A `relive.agents.functional.Functional`, or None if the agent has no such function.
        """
        ...

    def join(self, replicas: Replicas) -> None:
        """Makes the agent one of several learners. Each of them learns from its own slice of every batch.

        Call `join` once, before the first update. From then on:

        - `batch_size` is the size of a slice. The slices are equal, and this agent's is number `replicas.number`.
        - Each gradient goes through `replicas.combine` before an optimizer uses it.
        - The agent draws noise for the rows of all slices and uses its own part. So the state of its generators does
          not depend on the number of learners.

        Args:
            replicas: the group, as this learner sees it.
        """
        ...

    def exchange(self) -> Exchange:
        """Returns the tensors and generators that updates change: the agent's own memory, not a copy.

        Agents of the same configuration return the same order and the same sizes.
        """
        ...

    def apply(self, gradients: Sequence[Any]) -> None:
        """Makes the update of another agent from its gradients: steps of optimizers and targets.

        `num_updates` grows by one. Nothing is drawn at random.

        Args:
            gradients: float32 tensors: all that another agent of the same configuration gave to `Replicas.combine` in
                one `update`, in their order. That agent may have had another state than this one.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Returns numbers of the last update by name, "loss" first. Empty before the first update.

        Blocks: until the device has finished the update.
        """
        ...

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """Returns the parameters that actors act with, copied to host memory. Names and shapes never change."""
        ...

    def evaluation_parameters(self) -> dict[str, NDArray[np.float32]]:
        """Returns the parameters that evaluations play and a run keeps, under the same names.

        They are the same as `parameters`, unless the agent has a copy that plays more steadily.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """Returns all that a checkpoint needs, so that learning goes on as if it had not been interrupted.

        torch.save can write the value.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over a state that `state_dict` returned.

        Raises:
            InvalidConfig: the state does not fit this agent. The agent has not changed.
        """
        ...
