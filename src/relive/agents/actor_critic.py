"""The parts that agents for continuous actions share. The formulas are in the files of the agents.

An agent has an actor, critics with target critics (`relive.agents.critics`), and one update:

  load the batch  ->  _learn(): the algorithm's formulas  ->  num_updates + 1  ->  priorities, if items have priorities

The agent hands out the actor. `DeterministicActor` is mu with its target, for agents whose actor is not a distribution.
`FunctionalParts` are the shared parts of the update as a function of tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad

from relive import Index, MinSize, SamplesPerInsert, StepSpec
from relive.agents.agent import Exchange, Items, Policy, Replicas, Spaces
from relive.agents.batches import exchange_of, load_state, priorities_of, require_box, state_of
from relive.agents.boxes import ActionBox
from relive.agents.config import (
    OptimizerConfig,
    Precision,
    TransitionsConfig,
    check_hidden,
    check_precision,
    require,
)
from relive.agents.critics import ContinuousBatch, Critics
from relive.agents.functional import Flat, Functional, Named, network, stepped
from relive.agents.mlp import MLP, Adam, FlatParameters, device_of


@dataclass(frozen=True)
class ActorCriticConfig(TransitionsConfig):
    """The options of an agent with an actor and critics: networks, optimizers, exploration.

    Args:
        hidden: widths of the hidden layers of all networks. Default: (256, 256).
        actor: the actor's optimizer, see OptimizerConfig.
        critic: the critics' optimizer, see OptimizerConfig.
        random_steps: environment steps of all actors at the start whose actions are uniform. Default: 1,000.
        precision: precision of the products of wide layers. "bfloat16" halves their time on processors that multiply
            bfloat16, and rounds factors and results to a mantissa of 8 bits. Default: "float32".

    The other options are those of TransitionsConfig.

    Raises:
        InvalidConfig: an option is out of its range.
    """

    hidden: tuple[int, ...] = (256, 256)
    actor: OptimizerConfig = field(default_factory=OptimizerConfig)
    critic: OptimizerConfig = field(default_factory=OptimizerConfig)
    random_steps: int = 1_000
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hidden(self.hidden)
        check_precision(self.precision)
        require(self.random_steps >= 0, "random_steps", ">= 0", self.random_steps)


class ActorCritic(ABC):
    """The state of a learner: actor, critics, their targets and optimizers.

    The class is an `Agent` without two parts: its algorithm (`_learn`, `_apply`, `functional`) and its policy.
    """

    columns = ContinuousBatch.columns
    prefetch = 0
    config: ActorCriticConfig

    def __init__(
        self,
        config: ActorCriticConfig,
        spaces: Spaces,
        *,
        outputs_per_action: int,
        num_critics: int,
        seed: int,
        device: str,
        spare: int = 0,
    ) -> None:
        """Makes networks and optimizers from the seed.

        Args:
            config: the options.
            spaces: observations are a Box, actions a bounded Box.
            outputs_per_action: outputs of the actor for each number of an action.
            num_critics: number of critics.
            seed: seed of the initial parameters.
            device: name of the device, as torch has it.
            spare: number of float32 values after the actor's gradients, see FlatParameters. Default: 0.

        Raises:
            InvalidConfig: the spaces do not fit, or torch does not know the device.
        """
        require_box(spaces, config.name)
        self.config, self.spaces = config, spaces
        self.box = ActionBox.of(spaces, config.name)
        self.low = config.precision == "bfloat16"
        self.device = device_of(device)
        self.num_updates = 0
        generator = torch.Generator().manual_seed(seed)
        states, actions = spaces.observation_size, self.box.size
        sizes = (states, *config.hidden, outputs_per_action * actions)
        self.actor = FlatParameters(MLP.shapes("actor", sizes), self.device, spare)
        self.actor.initialise(generator)
        options = config.actor
        self.optimizer = Adam(self.actor, epsilon=options.adam_epsilon, max_gradient_norm=options.max_gradient_norm)
        sizes = (states + actions, *config.hidden, 1)
        self.critics = Critics(config, config.critic, sizes, num_critics, generator, self.device, low=self.low)
        self.batch = ContinuousBatch(config, states, self.box, self.device)

    # ---- the algorithm's part --------------------------------------------------------------------------------------

    @abstractmethod
    def _learn(self) -> None:
        """Makes one update from `batch`, without autograd. num_updates has not been counted up yet."""

    @abstractmethod
    def _apply(self, gradients: Sequence[Any]) -> None:
        """Makes the steps of `_learn` along another agent's gradients. num_updates has not been counted up yet."""

    @abstractmethod
    def policy(self) -> Policy:
        """See Agent."""

    @abstractmethod
    def functional(self) -> Functional:
        """See Agent."""

    def _own_parts(self) -> Mapping[str, Any]:
        """The parts that a checkpoint keeps in addition to the actor and the critics."""
        return {}

    # ---- steps and items -------------------------------------------------------------------------------------------

    def spec(self) -> StepSpec:
        """See Agent."""
        return self.spaces.spec()

    def index(self, limiter: MinSize | SamplesPerInsert) -> Index:
        """See Agent."""
        return self.config.index(self.spaces, limiter)

    # ---- learning --------------------------------------------------------------------------------------------------

    def update(self, batch: Items) -> NDArray[np.float64] | None:
        """See Agent."""
        self.batch.load(batch)
        with torch.no_grad():
            self._learn()
        self.num_updates += 1
        return priorities_of(self.critics.errors) if self.config.prioritized else None

    def _step_actor(self) -> None:
        """Makes one step of the actor along the gradients that its parameters contain."""
        self.optimizer.step(self.config.actor.learning_rate_at(self.num_updates))

    def apply(self, gradients: Sequence[Any]) -> None:
        """See Agent."""
        with torch.no_grad():
            self._apply(gradients)
        self.num_updates += 1

    def _apply_to_actor(self, gradient: Tensor) -> None:
        """Makes one step of the actor along this gradient [n]."""
        self.optimizer.step_along(gradient, self.config.actor.learning_rate_at(self.num_updates))

    def join(self, replicas: Replicas) -> None:
        """See Agent."""
        self.optimizer.combine_by(replicas.combine)
        self.critics.join(replicas)

    def metrics(self) -> dict[str, float]:
        """See Agent."""
        return {"loss": self.critics.loss(self.batch.weight)} if self.num_updates else {}

    # ---- parameters and state --------------------------------------------------------------------------------------

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """See Agent. The parameters are those of the actor."""
        return self.actor.on_host()

    def evaluation_parameters(self) -> dict[str, NDArray[np.float32]]:
        """See Agent. The parameters are those of the actor."""
        return self.actor.on_host()

    def _parts(self) -> dict[str, Any]:
        own = self._own_parts()
        return {"actor": self.actor, "actor_optimizer": self.optimizer, **self.critics.parts(), **own}

    def exchange(self) -> Exchange:
        """See Agent."""
        return exchange_of(self._parts())

    def state_dict(self) -> dict[str, Any]:
        """See Agent."""
        return state_of(self._parts(), self.num_updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Agent."""
        self.num_updates = load_state(self._parts(), state)


@final
class RowNoise:
    """Standard normal numbers for the rows of a batch.

    If several learners share a batch, each of them draws the numbers of the whole batch and uses those of its slice.
    """

    def __init__(self, num_rows: int, size: int, generator: torch.Generator) -> None:
        self._generator = generator
        self._mine = self._all = torch.zeros(num_rows, size, device=generator.device)

    def draw(self) -> Tensor:
        """Returns numbers [B, size]. The next call overwrites them."""
        self._all.normal_(generator=self._generator)
        return self._mine

    def join(self, replicas: Replicas) -> None:
        """See Agent."""
        rows, size = self._mine.shape
        self._all = torch.zeros(rows * replicas.count, size, device=self._mine.device)
        self._mine = self._all[rows * replicas.number : rows * (replicas.number + 1)]


@final
class DeterministicActor:
    """mu(s) = tanh(network(s)) with the parameters of an agent's actor, and mu', its moving average."""

    def __init__(self, online: FlatParameters, num_rows: int, *, low: bool) -> None:
        """Makes mu' as a copy of mu.

        Args:
            online: the actor's parameters.
            num_rows: B of every batch.
            low: whether wide layers use bfloat16, see MLP.
        """
        self._online = online
        self.target = online.copy()
        self.network, self._target_network = (
            MLP(parameters, "actor", num_rows, low=low) for parameters in (online, self.target)
        )
        self._ascent = torch.full((num_rows, 1), -1.0 / num_rows, device=online.values.device)

    def target_outputs(self, states: Tensor) -> Tensor:
        """Returns mu'(s) [B, A] before tanh. The next call overwrites it."""
        return self._target_network.forward(states)

    def climb(self, batch: ContinuousBatch, critic: MLP) -> None:
        """Writes the actor's gradient for the loss -mean Q(s, mu(s)).

        dL/dmu = -(1/B) dQ/da,  through tanh: * (1 - mu^2)
        """
        action = torch.tanh(self.network.forward(batch.state))
        batch.action.copy_(action)
        critic.forward(batch.pair)
        to_action = critic.input_gradient(self._ascent, batch.state.shape[1])
        self.network.backward(to_action * (1.0 - action * action))

    def follow(self, rate: float) -> None:
        """Makes one step of the target."""
        self.target.follow(self._online, rate)


@final
class FunctionalParts:
    """The parts of a functional update that all actor-critics share, see `relive.agents.functional`.

    state: the tensors that a step of the critics' Adam changes, then those of the actor's Adam; four each.
    """

    def __init__(self, agent: ActorCritic) -> None:
        self._agent, self._low = agent, agent.low
        self.critics, self.actor = Flat(agent.critics.online), Flat(agent.actor)
        self._rates = torch.zeros(2, device=agent.device)
        self.state = (*agent.critics.optimizer.stepped_tensors, *agent.optimizer.stepped_tensors)

    def load(self, batch: Items) -> tuple[Tensor, ...]:
        """Loads a batch; returns (rates, state, action, reward, discount, next state, weight).

        rates: [2], the learning rates of the critics and of the actor.
        """
        agent, mine = self._agent, self._agent.batch
        mine.load(batch)
        self._rates[0] = agent.config.critic.learning_rate_at(agent.num_updates)
        self._rates[1] = agent.config.actor.learning_rate_at(agent.num_updates)
        return self._rates, mine.state, mine.action, mine.reward, mine.discount, mine.next_state, mine.weight

    def finish(self, errors: tuple[Tensor, ...]) -> NDArray[np.float64] | None:
        """Ends an update whose critics had these errors [B, 1]. Returns new priorities, as Agent.update does."""
        agent = self._agent
        for mine, error in zip(agent.critics.errors, errors, strict=True):
            mine.copy_(error)
        agent.num_updates += 1
        return priorities_of(agent.critics.errors) if agent.config.prioritized else None

    def outputs(self, actor: Named, state: Tensor) -> Tensor:
        """The outputs of the network `actor`."""
        return network(actor, "actor", state, self._low)

    def values(self, critics: Named, state: Tensor, action: Tensor) -> list[Tensor]:
        """Returns Q_i(s, a) [B, 1] of each critic."""
        pair = torch.cat([state, action], dim=1)
        number = len(self._agent.critics.networks)
        return [network(critics, f"q{critic}", pair, self._low) for critic in range(number)]

    def learnt(
        self, critics: tuple[Tensor, ...], goal: Tensor, batch: tuple[Tensor, ...], rates: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Critics.learn as a function: (the critics' new state, the errors Q_i - y before the step)."""
        state, action, _, _, _, weight = batch

        def loss(named: Named) -> tuple[Tensor, tuple[Tensor, ...]]:
            errors = tuple(value - goal for value in self.values(named, state, action))
            return sum(((weight * error * error).mean() / 2.0 for error in errors), goal.new_zeros(())), errors

        gradient, errors = grad(loss, has_aux=True)(self.critics.named(critics[0]))
        return stepped(self.critics.vector(gradient), critics, rates[0], self._agent.critics.optimizer), errors

    def stepped_actor(self, gradient: Named, actor: tuple[Tensor, ...], rates: Tensor) -> tuple[Tensor, ...]:
        """The actor's new state after a step along this gradient."""
        return stepped(self.actor.vector(gradient), actor, rates[1], self._agent.optimizer)

    def climbed(self, actor: tuple[Tensor, ...], critics: Tensor, state: Tensor, rates: Tensor) -> tuple[Tensor, ...]:
        """DeterministicActor.climb and a step as a function: the actor's new state for the loss -mean Q_0(s, mu(s))."""
        named = self.critics.named(critics)

        def loss(mine: Named) -> Tensor:
            pair = torch.cat([state, torch.tanh(self.outputs(mine, state))], dim=1)
            return -network(named, "q0", pair, self._low).mean()

        return self.stepped_actor(grad(loss)(self.actor.named(actor[0])), actor, rates)
