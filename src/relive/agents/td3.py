"""TD3 (Fujimoto et al. 2018): DDPG with two critics, a smoothed target, and an actor that learns less often.

  critics  y = R + D * min_i Q'_i(s', a'),  a' = clip(mu'(s') + clip(noise, -c, c), -1, 1)
           loss = sum_i mean_b w_b * (Q_i(s_b, a_b) - y_b)^2 / 2
  actor    loss = -mean Q_0(s, mu(s)),  mu(s) = tanh(network(s)), scaled to the Box; every policy_delay updates
  targets  Q'_i, mu' go target_rate towards Q_i, mu after each update of the actor
  acting   mu(s) + Gaussian noise, uniform actions at first

R, D: the n-step return and discount the table gives; D is 0 where the episode terminated, not where it was cut.
gradient   dL/dmu = -(1/B) dQ_0/da,  through tanh: * (1 - mu^2)

Deviations from the paper: none known beside the networks' sizes; n-step returns and priorities are options.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray

from relive import Index, MinSize, SamplesPerInsert, StepSpec
from relive.agents.agent import Items, Policy, Spaces
from relive.agents.batches import load_state, priorities_of, require_box, state_of
from relive.agents.boxes import ActionBox, NoisyPolicy
from relive.agents.config import OptimizerConfig, Settings, TransitionsConfig, check_hidden, require
from relive.agents.critics import ContinuousBatch, Critics
from relive.agents.mlp import MLP, Adam, FlatParameters, device_of


@final
@dataclass(frozen=True)
class TD3Config(TransitionsConfig):
    """Twin delayed deterministic policy gradient.

    noise: of exploring actions, as a share of half the Box. target_noise, target_noise_clip: of the targets' actions,
    in the same measure. policy_delay: updates of the critics for each of the actor. random_steps: environment steps of
    all actors that are uniform at first.
    """

    name: ClassVar[str] = "td3"
    presets: ClassVar[Mapping[str, Settings]] = {}

    hidden: tuple[int, ...] = (256, 256)
    actor: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(1e-3, 1e-3))
    critic: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(1e-3, 1e-3))
    noise: float = 0.1
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    policy_delay: int = 2
    random_steps: int = 1_000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_hidden(self.hidden)
        for name in ("noise", "target_noise", "target_noise_clip"):
            require(getattr(self, name) >= 0, name, ">= 0", getattr(self, name))
        require(self.policy_delay >= 1, "policy_delay", ">= 1", self.policy_delay)
        require(self.random_steps >= 0, "random_steps", ">= 0", self.random_steps)

    def make(self, spaces: Spaces, *, seed: int, device: str) -> TD3:
        """See AgentConfig. Actions are a bounded Box, observations a Box, flattened."""
        return TD3(self, spaces, seed=seed, device=device)


@final
class TD3:
    """The learner's state: actor, critic, their targets and optimizers. An `Agent`."""

    columns = ContinuousBatch.columns
    prefetch = 0

    def __init__(self, config: TD3Config, spaces: Spaces, *, seed: int, device: str) -> None:
        require_box(spaces, config.name)
        self.config, self.spaces = config, spaces
        self.box = ActionBox.of(spaces, config.name)
        self.device = device_of(device)
        self.num_updates = 0
        generator = torch.Generator().manual_seed(seed)
        self._generator = torch.Generator(self.device).manual_seed(seed + 1)
        states, actions = spaces.observation_size, self.box.size
        self.actor = FlatParameters(MLP.shapes("actor", (states, *config.hidden, actions)), self.device)
        self.actor.initialise(generator)
        self.target_actor = self.actor.copy()
        self._mu, self._target_mu = (
            MLP(parameters, "actor", config.batch_size) for parameters in (self.actor, self.target_actor)
        )
        options = config.actor
        self._optimizer = Adam(self.actor, epsilon=options.adam_epsilon, max_gradient_norm=options.max_gradient_norm)
        sizes = (states + actions, *config.hidden, 1)
        self.critics = Critics(config, config.critic, sizes, 2, generator, self.device)
        self._batch = ContinuousBatch(config, states, self.box, self.device)
        self._noise = torch.zeros(config.batch_size, actions, device=self.device)
        self._ascent = torch.full((config.batch_size, 1), -1.0 / config.batch_size, device=self.device)

    # ---- what it stores, draws and does ----------------------------------------------------------------------------

    def spec(self) -> StepSpec:
        """See Agent."""
        return self.spaces.spec()

    def index(self, limiter: MinSize | SamplesPerInsert) -> Index:
        """See Agent."""
        return self.config.index(self.spaces, limiter)

    def policy(self) -> Policy:
        """See Agent."""
        return NoisyPolicy(self.box, self.config.noise, self.config.random_steps)

    # ---- learning --------------------------------------------------------------------------------------------------

    def update(self, batch: Items) -> NDArray[np.float64] | None:
        """See Agent. The critics; and when its turn comes the actor, then the targets."""
        self._batch.load(batch)
        with torch.no_grad():
            self._learn_critics()
            self.num_updates += 1
            if self.num_updates % self.config.policy_delay == 0:
                self._learn_actor()
                self.critics.follow()
                self.target_actor.follow(self.actor, self.config.target_rate)
        return priorities_of(self.critics.errors) if self.config.prioritized else None

    def _learn_critics(self) -> None:
        batch, config = self._batch, self.config
        noise = self._noise.normal_(generator=self._generator).mul_(config.target_noise)
        noise.clamp_(-config.target_noise_clip, config.target_noise_clip)
        action = torch.tanh(self._target_mu.forward(batch.next_state))
        torch.clamp(action.add_(noise), -1.0, 1.0, out=batch.next_action)
        following = torch.minimum(*self.critics.target_values(batch.next_pair))
        goal = torch.addcmul(batch.reward, batch.discount, following)
        self.critics.learn(batch, goal, self.num_updates)

    def _learn_actor(self) -> None:
        batch = self._batch
        action = torch.tanh(self._mu.forward(batch.state))
        batch.action.copy_(action)
        critic = self.critics.networks[0]
        critic.forward(batch.pair)
        to_action = critic.input_gradient(self._ascent)[:, batch.state.shape[1] :]
        self._mu.backward(to_action * (1.0 - action * action))
        self._optimizer.step(self.config.actor.learning_rate_at(self.num_updates - 1))

    def metrics(self) -> dict[str, float]:
        """See Agent."""
        return {"loss": self.critics.loss(self._batch.weight)} if self.num_updates else {}

    # ---- what it hands out -----------------------------------------------------------------------------------------

    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """See Agent: the actor."""
        return self.actor.on_host()

    def evaluation_parameters(self) -> dict[str, NDArray[np.float32]]:
        """See Agent: the actor."""
        return self.actor.on_host()

    def _parts(self) -> dict[str, Any]:
        return {
            "actor": self.actor,
            "target_actor": self.target_actor,
            "actor_optimizer": self._optimizer,
            **self.critics.parts(),
            "generator": self._generator,
        }

    def state_dict(self) -> dict[str, Any]:
        """See Agent."""
        return state_of(self._parts(), self.num_updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Agent."""
        self.num_updates = load_state(self._parts(), state)
