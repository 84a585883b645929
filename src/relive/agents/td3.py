"""TD3 (Fujimoto et al. 2018): DDPG with two critics, a smoothed target, and an actor that learns less often.

  critics  y = R + D * min_i Q'_i(s', a'),  a' = clip(mu'(s') + clip(noise, -c, c), -1, 1)
           loss = sum_i mean_b w_b * (Q_i(s_b, a_b) - y_b)^2 / 2
  actor    loss = -mean Q_0(s, mu(s)),  mu(s) = tanh(network(s)), scaled to the Box; every policy_delay updates
  targets  Q'_i, mu' move by target_rate towards Q_i, mu after each update of the actor
  acting   mu(s) + Gaussian noise, uniform actions at first

R, D: the n-step return and discount from the table. D is 0 if the episode terminated, and not if it was truncated.
gradient   dL/dmu = -(1/B) dQ_0/da,  through tanh: * (1 - mu^2)

Deviations from the paper: none known except the networks' sizes. N-step returns and priorities are options.

The file contains the update twice: written by hand (`_learn`), and as a function of tensors for a compiler
(`functional`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from relive.agents.actor_critic import ActorCritic, ActorCriticConfig, DeterministicActor, FunctionalParts, RowNoise
from relive.agents.agent import Exchange, Items, Policy, Replicas, Spaces
from relive.agents.boxes import NoisyPolicy
from relive.agents.config import OptimizerConfig, Settings, require
from relive.agents.functional import Functional, followed


@final
@dataclass(frozen=True)
class TD3Config(ActorCriticConfig):
    """The options of twin delayed deterministic policy gradient.

    Args:
        actor: Adam of the actor. Default: learning rate 1e-3.
        critic: Adam of the critics. Default: learning rate 1e-3.
        noise: standard deviation of the noise on exploring actions, as a share of half the Box. Default: 0.1.
        target_noise: standard deviation of the noise on the targets' actions, in the same unit. Default: 0.2.
        target_noise_clip: largest noise on the targets' actions, in the same unit. Default: 0.5.
        policy_delay: updates of the critics for each update of the actor. Default: 2.

    The other options are those of ActorCriticConfig.

    Raises:
        InvalidConfig: an option is out of its range.
    """

    name: ClassVar[str] = "td3"
    presets: ClassVar[Mapping[str, Settings]] = {}

    actor: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(1e-3, 1e-3))
    critic: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(1e-3, 1e-3))
    noise: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    policy_delay: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("noise", "target_noise", "target_noise_clip"):
            require(getattr(self, name) >= 0, name, ">= 0", getattr(self, name))
        require(self.policy_delay >= 1, "policy_delay", ">= 1", self.policy_delay)

    def make(self, spaces: Spaces, *, seed: int, device: str) -> TD3:
        """See AgentConfig. Actions are a bounded Box. Observations are a Box, which the agent flattens."""
        return TD3(self, spaces, seed=seed, device=device)


@final
class TD3(ActorCritic):
    """The state of a learner: actor, critics, their targets and optimizers. An `Agent`."""

    config: TD3Config

    def __init__(self, config: TD3Config, spaces: Spaces, *, seed: int, device: str) -> None:
        super().__init__(config, spaces, outputs_per_action=1, num_critics=2, seed=seed, device=device)
        self._generator = torch.Generator(self.device).manual_seed(seed + 1)
        self.mu = DeterministicActor(self.actor, config.batch_size, low=self.low)
        # Updates of the critics that no update of the actor answers yet. For a single learner it is
        # num_updates % policy_delay. Several learners cannot use that number: if each sees every second version, all
        # may leave out the actor.
        self._since_actor = torch.zeros(())
        self._noise = RowNoise(config.batch_size, self.box.size, self._generator)

    def policy(self) -> Policy:
        """See Agent."""
        return NoisyPolicy(self.box, self.config.noise, self.config.random_steps)

    def join(self, replicas: Replicas) -> None:
        """See Agent."""
        super().join(replicas)
        self._noise.join(replicas)

    def _learn(self) -> None:
        """Makes the step of the critics and, every `policy_delay` updates, those of the actor and the targets."""
        self._learn_critics()
        self._since_actor += 1.0
        if float(self._since_actor) >= self.config.policy_delay:
            self.mu.climb(self.batch, self.critics.networks[0])
            self._step_actor()
            self._actor_stepped()

    def _apply(self, gradients: Sequence[Any]) -> None:
        """See ActorCritic. Gradients contain one of the actor if the other agent's update included the actor.

        The actor steps along it if its step is due.
        """
        critics, *actor = gradients
        self.critics.apply(critics, self.num_updates)
        self._since_actor += 1.0
        for gradient in actor:
            # Learners that computed with one version each find that the actor is due: the first of them steps it. If
            # it is stepped late, it is due earlier the next time, so that policy_delay is the mean.
            if float(self._since_actor) >= self.config.policy_delay:
                self._apply_to_actor(gradient)
                self._actor_stepped()

    def _actor_stepped(self) -> None:
        self._since_actor -= self.config.policy_delay
        self.critics.follow()
        self.mu.follow(self.config.target_rate)

    def _learn_critics(self) -> None:
        batch, config = self.batch, self.config
        noise = self._noise.draw().mul_(config.target_noise)
        noise.clamp_(-config.target_noise_clip, config.target_noise_clip)
        action = torch.tanh(self.mu.target_outputs(batch.next_state))
        torch.clamp(action.add_(noise), -1.0, 1.0, out=batch.next_action)
        following = torch.minimum(*self.critics.target_values(batch.next_pair))
        goal = torch.addcmul(batch.reward, batch.discount, following)
        self.critics.learn(batch, goal, self.num_updates)

    def exchange(self) -> Exchange:
        """See Agent."""
        rest = super().exchange()
        return Exchange((*rest.tensors, self._since_actor), rest.generators)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Agent."""
        super().load_state_dict(state)
        self._count_since_actor()

    def _count_since_actor(self) -> None:
        """Sets the count as a single learner has it."""
        self._since_actor.fill_(float(self.num_updates % self.config.policy_delay))

    def _own_parts(self) -> Mapping[str, Any]:
        return {"target_actor": self.mu.target, "generator": self._generator}

    # ---- the same update, for a compiler ---------------------------------------------------------------------------

    def functional(self) -> Functional:
        """See Agent. The step "critics" leaves out the actor and the targets."""
        delay, parts = self.config.policy_delay, FunctionalParts(self)

        def load(batch: Items) -> tuple[Tensor, ...]:
            return *parts.load(batch), self._noise.draw()

        def finish(errors: tuple[Tensor, ...]) -> NDArray[np.float64] | None:
            priorities = parts.finish(errors)
            self._count_since_actor()
            return priorities

        steps = {"all": lambda *tensors: self._functional_step(parts, *tensors, climbs=True)}
        if delay > 1:
            steps["critics"] = lambda *tensors: self._functional_step(parts, *tensors, climbs=False)
        state = (*parts.state, self.critics.target.values, self.mu.target.values)
        return Functional(
            steps, lambda: "all" if (self.num_updates + 1) % delay == 0 else "critics", state, load, finish
        )

    def _functional_step(self, parts: FunctionalParts, *tensors: Tensor, climbs: bool) -> tuple[Tensor, ...]:
        """(*state, *inputs) -> (*new state, errors of both critics). climbs: whether actor and targets step too."""
        critics, actor, target, target_actor = tensors[:4], tensors[4:8], tensors[8], tensors[9]
        rates, *columns = tensors[10:17]
        state, _, reward, discount, following, _ = columns
        clip, rate = self.config.target_noise_clip, self.config.target_rate
        noise = (tensors[17] * self.config.target_noise).clamp(-clip, clip)
        action = torch.tanh(parts.outputs(parts.actor.named(target_actor), following))
        action = (action + noise).clamp(-1.0, 1.0)
        lower = torch.minimum(*parts.values(parts.critics.named(target), following, action))
        critics, errors = parts.learnt(critics, reward + discount * lower, tuple(columns), rates)
        if climbs:
            actor = parts.climbed(actor, critics[0], state, rates)
            target, target_actor = followed(target, critics[0], rate), followed(target_actor, actor[0], rate)
        return *critics, *actor, target, target_actor, *errors
