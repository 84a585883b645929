"""What an agent is, as training sees it: three protocols, and the spaces that an agent is made for.

An agent is one file: its configuration (a frozen dataclass, `relive.agents.config`), and a class that learns. It says
what it stores and draws (`spec`, `index`), learns from a batch (`update`), and hands out a `Policy` with the parameters
that it acts with. `relive.agents.registry` has one line for each. No framework is imported here: actors read this too.
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
    """The spaces of one environment, Gymnasium's, as an agent sees it.

    observation: a Box. stack: {"observation": k} where its first axis is a stack of the k newest frames, which the
    table stores once each, padded with zeros.
    """

    env_id: str
    observation: Any
    action: Any
    stack: Mapping[str, int] = field(default_factory=dict)

    @property
    def observation_shape(self) -> tuple[int, ...]:
        """The shape of one observation, stack axis included."""
        return tuple(int(length) for length in self.observation.shape)

    @property
    def observation_size(self) -> int:
        """The numbers of one observation."""
        return math.prod(self.observation_shape)

    def spec(self) -> StepSpec:
        """The columns that a recorder fills: observation, action, reward and the ends; float64 is kept as float32."""
        return StepSpec.from_spaces(self.observation, self.action, unstack=self.stack, float64_as="float32")


class Items(Protocol):
    """What an update reads of a batch: columns [B, ...] by name, and importance weights float32 [B]."""

    @property
    def num_items(self) -> int: ...
    def __getitem__(self, name: str, /) -> Any: ...
    def weights(self, beta: float) -> Any: ...


class Noise(Protocol):
    """Random numbers for B observations, a row each. numpy.random.Generator is one, whose rows come in their order."""

    def random(self, size: tuple[int, int], /) -> NDArray[np.float64]:
        """[B, n], uniform in [0, 1)."""
        ...

    def standard_normal(self, size: tuple[int, int], dtype: type[np.float32], /) -> NDArray[np.float32]:
        """[B, n]."""
        ...


class Policy(Protocol):
    """Acts, on numpy alone, with parameters that come from `Agent.parameters`. It pickles and keeps no state."""

    def explore(self, parameters: Parameters, observations: NDArray[Any], num_steps: int, noise: Noise) -> NDArray[Any]:
        """Actions [B, ...] of observations [B, ...] after num_steps environment steps of all actors.

        noise: an action depends on its own row alone, and the shapes that are drawn on B and num_steps alone.
        """
        ...

    def best(self, parameters: Parameters, observations: NDArray[Any]) -> NDArray[Any]:
        """The actions [B, ...] it holds for best: what evaluations play."""
        ...

    def exploration(self, num_steps: int) -> dict[str, float]:
        """How it explores after num_steps steps, for people: {"epsilon": 0.3}."""
        ...


class Replicas(Protocol):
    """The learners of a run, each with an agent of the same state, seen from one of them: `number`, in [0, count)."""

    @property
    def number(self) -> int: ...
    @property
    def count(self) -> int: ...

    def combine(self, gradients: Any) -> None:
        """Puts the mean over all replicas in place of this one's gradient, a float32 tensor [n].

        Blocks until the others have theirs. Every replica calls it as often and with as many numbers as the others,
        and gets the same bits.
        """
        ...


@final
@dataclass(frozen=True)
class Exchange:
    """The parts of an agent's state that travel between learners; whoever writes into them changes the agent.

    tensors: float32, of any shapes: networks, targets, moments. generators: of the noise that updates draw.
    """

    tensors: tuple[Any, ...]
    generators: tuple[Any, ...]


class Agent(Protocol):
    """The learner's state. One thread at a time; everything random comes from the seed it was made with."""

    num_updates: int
    """Updates so far, those before a checkpoint included. Set by who writes the state of so many into `exchange`."""

    @property
    def columns(self) -> Sequence[str]:
        """The columns of a batch that `update` reads."""
        ...

    @property
    def prefetch(self) -> int:
        """Batches worth gathering in the background while one is learnt from; 0: they are drawn when asked for."""
        ...

    def spec(self) -> StepSpec:
        """What the table stores of each step."""
        ...

    def index(self, limiter: MinSize | SamplesPerInsert) -> Index:
        """Which items it learns from, and how they are drawn."""
        ...

    def policy(self) -> Policy:
        """How it acts."""
        ...

    def update(self, batch: Items) -> NDArray[np.float64] | None:
        """One gradient step on B items, B the batch size of its configuration.

        Returns new priorities float64 [B] of the items, None where they have none. InvalidConfig for another B.
        """
        ...

    def functional(self) -> Any:
        """The update as a function of tensors, a `relive.agents.functional.Functional`; None where there is none.

        It works on the agent's own memory: either way of updating may follow the other.
        """
        ...

    def join(self, replicas: Replicas) -> None:
        """From now on it is one of several, each of which learns from its slice of every batch.

        Its batch_size is that of a slice, number `replicas.number` of equal ones. Each gradient goes through
        `replicas.combine` before an optimizer sees it; noise of rows is drawn for all slices, and the own part taken,
        so that the state of its generators does not depend on how many learn. Before the first update, once.
        """
        ...

    def exchange(self) -> Exchange:
        """What updates change, as it lies in memory. Equal agents have it in the same order and sizes."""
        ...

    def apply(self, gradients: Sequence[Any]) -> None:
        """The update whose gradients these are: steps of optimizers and targets, and num_updates one more.

        gradients: all that another agent of the same configuration gave to `Replicas.combine` in one `update`, in their
        order, float32 tensors; from another state than this one's, if need be. Nothing is drawn at random.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers of the last update, "loss" first; empty before the first. Reading them waits for the device."""
        ...

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """What actors act with, copied to host memory. Names and shapes never change."""
        ...

    def evaluation_parameters(self) -> dict[str, NDArray[np.float32]]:
        """What evaluations play and a run keeps: the same names, a steadier choice where the agent has one."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything a checkpoint must hold for learning to go on as if never interrupted; torch.save writes it."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave. InvalidConfig, and nothing changed, where it does not fit this agent."""
        ...
