"""DDPG (Lillicrap et al. 2016): a deterministic actor climbs the critic.

  critic   y = R + D * Q'(s', mu'(s')),  loss = mean_i w_i * (Q(s, a) - y)^2 / 2
  actor    loss = -mean Q(s, mu(s)),  mu(s) = tanh(network(s)), scaled to the Box
  targets  Q', mu' move by target_rate towards Q, mu after every update
  acting   mu(s) + Gaussian noise, uniform actions at first

R, D: the n-step return and discount from the table. D is 0 if the episode terminated, and not if it was truncated.
gradient   dL/dmu = -(1/B) dQ/da,  through tanh: * (1 - mu^2)

Deviations from the paper: Gaussian noise in place of Ornstein-Uhlenbeck noise (Fujimoto et al. 2018 find no
difference); the action enters the critic at its first layer; no weight decay; no batch normalisation.

The file contains the update twice: written by hand (`_learn`), and as a function of tensors for a compiler
(`functional`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from relive.agents.actor_critic import ActorCritic, ActorCriticConfig, DeterministicActor, FunctionalParts
from relive.agents.agent import Policy, Spaces
from relive.agents.boxes import NoisyPolicy
from relive.agents.config import OptimizerConfig, Settings, require
from relive.agents.functional import Functional, followed


@final
@dataclass(frozen=True)
class DDPGConfig(ActorCriticConfig):
    """The options of deep deterministic policy gradient.

    Args:
        actor: Adam of the actor. Default: learning rate 1e-3.
        critic: Adam of the critic. Default: learning rate 1e-3.
        noise: standard deviation of the noise on exploring actions, as a share of half the Box. Default: 0.1.

    The other options are those of ActorCriticConfig.

    Raises:
        InvalidConfig: an option is out of its range.
    """

    name: ClassVar[str] = "ddpg"
    presets: ClassVar[Mapping[str, Settings]] = {}

    actor: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(1e-3, 1e-3))
    critic: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(1e-3, 1e-3))
    noise: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.noise >= 0, "noise", ">= 0", self.noise)

    def make(self, spaces: Spaces, *, seed: int, device: str) -> DDPG:
        """See AgentConfig. Actions are a bounded Box. Observations are a Box, which the agent flattens."""
        return DDPG(self, spaces, seed=seed, device=device)


@final
class DDPG(ActorCritic):
    """The state of a learner: actor, critic, their targets and optimizers. An `Agent`."""

    config: DDPGConfig

    def __init__(self, config: DDPGConfig, spaces: Spaces, *, seed: int, device: str) -> None:
        super().__init__(config, spaces, outputs_per_action=1, num_critics=1, seed=seed, device=device)
        self.mu = DeterministicActor(self.actor, config.batch_size, low=self.low)

    def policy(self) -> Policy:
        """See Agent."""
        return NoisyPolicy(self.box, self.config.noise, self.config.random_steps)

    def _learn(self) -> None:
        """Makes the steps of the critic, of the actor, and of the targets, in this order."""
        self._learn_critic()
        self.mu.climb(self.batch, self.critics.networks[0])
        self._step_actor()
        self.critics.follow()
        self.mu.follow(self.config.target_rate)

    def _apply(self, gradients: Sequence[Any]) -> None:
        critic, actor = gradients
        self.critics.apply(critic, self.num_updates)
        self._apply_to_actor(actor)
        self.critics.follow()
        self.mu.follow(self.config.target_rate)

    def _learn_critic(self) -> None:
        batch = self.batch
        torch.tanh(self.mu.target_outputs(batch.next_state), out=batch.next_action)
        (following,) = self.critics.target_values(batch.next_pair)
        goal = torch.addcmul(batch.reward, batch.discount, following)
        self.critics.learn(batch, goal, self.num_updates)

    def _own_parts(self) -> Mapping[str, Any]:
        return {"target_actor": self.mu.target}

    # ---- the same update, for a compiler ---------------------------------------------------------------------------

    def functional(self) -> Functional:
        """See Agent."""
        parts, rate = FunctionalParts(self), self.config.target_rate

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            critic, actor, target, target_actor = tensors[:4], tensors[4:8], tensors[8], tensors[9]
            rates, *columns = tensors[10:]
            state, _, reward, discount, following, _ = columns
            action = torch.tanh(parts.outputs(parts.actor.named(target_actor), following))
            (value,) = parts.values(parts.critics.named(target), following, action)
            critic, errors = parts.learnt(critic, reward + discount * value, tuple(columns), rates)
            actor = parts.climbed(actor, critic[0], state, rates)
            return *critic, *actor, followed(target, critic[0], rate), followed(target_actor, actor[0], rate), *errors

        state = (*parts.state, self.critics.target.values, self.mu.target.values)
        return Functional({"all": step}, lambda: "all", state, parts.load, parts.finish)
