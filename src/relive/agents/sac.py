"""SAC (Haarnoja et al. 2018): a Gaussian actor squashed by tanh, two critics, and a learnt temperature.

  actor      u = mean(s) + std(s) * eps,  a = tanh(u),  eps ~ N(0, 1)
             log pi(a|s) = sum_j [-eps_j^2 / 2 - log std_j - log sqrt(2 pi) - log(1 - a_j^2)]
             loss = mean [alpha * log pi(a|s) - min_i Q_i(s, a)]
  critics    y = R + D * (min_i Q'_i(s', a') - alpha * log pi(a'|s')),  a' from the actor at s'
             loss = sum_i mean_b w_b * (Q_i(s_b, a_b) - y_b)^2 / 2
  temperature  loss = -log alpha * mean [log pi(a|s) + H],  H = target_entropy, -A unless given
  targets    Q'_i move by target_rate towards Q_i after every update

R, D: the n-step return and discount from the table. D is 0 if the episode terminated, and not if it was truncated.
gradients  with g = dL/da of the min term:  dL/du = 2 alpha a / B + g (1 - a^2),  dL/dmean = dL/du,
           dL/dlog std = dL/du * std * eps - alpha / B, or 0 if log std was clipped

Deviations from the paper: no value network (as in the authors' second version); an n-step return leaves out the
entropy of the steps between; log(1 - tanh(u)^2) is computed as 2 (log 2 - u - softplus(-2u)), which does not overflow.

The file contains the update twice: written by hand (`_learn`), and as a function of tensors for a compiler
(`functional`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad
from torch.nn.functional import softplus

from relive.agents.actor_critic import ActorCritic, ActorCriticConfig, FunctionalParts, RowNoise
from relive.agents.agent import Items, Policy, Replicas, Spaces
from relive.agents.boxes import LOG_STD_MAX, LOG_STD_MIN, SquashedGaussianPolicy
from relive.agents.config import Settings, require
from relive.agents.functional import Functional, Named, followed, stepped
from relive.agents.mlp import MLP, Adam, FlatParameters

_LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


@final
@dataclass(frozen=True)
class SACConfig(ActorCriticConfig):
    """The options of soft actor-critic.

    Args:
        alpha: the temperature. None: the temperature is learnt so that the policy's entropy approaches
            `target_entropy`. Default: None.
        initial_alpha: first value of a learnt temperature. Default: 1.
        alpha_learning_rate: learning rate of the temperature. Default: 3e-4.
        target_entropy: the entropy to approach. None: minus the size of an action. Default: None.

    The other options are those of ActorCriticConfig.

    Raises:
        InvalidConfig: an option is out of its range.
    """

    name: ClassVar[str] = "sac"
    presets: ClassVar[Mapping[str, Settings]] = {}

    alpha: float | None = None
    initial_alpha: float = 1.0
    alpha_learning_rate: float = 3e-4
    target_entropy: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha is None or self.alpha >= 0, "alpha", ">= 0, or none", self.alpha)
        require(self.initial_alpha > 0, "initial_alpha", "> 0", self.initial_alpha)
        require(self.alpha_learning_rate > 0, "alpha_learning_rate", "> 0", self.alpha_learning_rate)

    def make(self, spaces: Spaces, *, seed: int, device: str) -> SAC:
        """See AgentConfig. Actions are a bounded Box. Observations are a Box, which the agent flattens."""
        return SAC(self, spaces, seed=seed, device=device)


@final
class SAC(ActorCritic):
    """The state of a learner: actor, critics, target critics, temperature and optimizers. An `Agent`."""

    config: SACConfig

    def __init__(self, config: SACConfig, spaces: Spaces, *, seed: int, device: str) -> None:
        super().__init__(config, spaces, outputs_per_action=2, num_critics=2, seed=seed, device=device, spare=1)
        self._generator = torch.Generator(self.device).manual_seed(seed + 1)
        rows, actions = config.batch_size, self.box.size
        self._network = MLP(self.actor, "actor", rows, low=self.low)
        self.temperature = FlatParameters({"log_alpha": (1,)}, self.device)
        self.temperature.value["log_alpha"].fill_(math.log(config.initial_alpha))
        self.temperature_optimizer = Adam(self.temperature)
        self.target_entropy = -float(actions) if config.target_entropy is None else config.target_entropy
        self._row_noise = RowNoise(rows, actions, self._generator)
        self._noise, self._std = (torch.zeros(rows, actions, device=self.device) for _ in range(2))
        self._gradient = torch.zeros(rows, 2 * actions, device=self.device)
        self._to_action = torch.zeros(rows, actions, device=self.device)
        self._share = torch.full((rows, 1), -1.0 / rows, device=self.device)
        self.entropy = torch.zeros((), device=self.device)

    def policy(self) -> Policy:
        """See Agent."""
        return SquashedGaussianPolicy(self.box, self.config.random_steps)

    def draw_noise(self) -> Tensor:
        """Draws eps [B, A] for actions. The next call overwrites it."""
        return self._row_noise.draw()

    def join(self, replicas: Replicas) -> None:
        """See Agent."""
        super().join(replicas)
        self._row_noise.join(replicas)
        self.optimizer.combine_by(lambda gradients: replicas.combine(self.actor.with_spare))

    def _learn(self) -> None:
        """Makes the steps of critics, actor, temperature and targets. All use the temperature before the update."""
        alpha = self._alpha()
        self._learn_critics(alpha)
        self.entropy = -self._actor_gradient(alpha).mean()
        # The temperature's gradient is stored after the actor's. If several learners share a batch, one reduction
        # takes both.
        temperature = self.actor.with_spare[-1:]
        temperature.copy_(self.entropy - self.target_entropy)
        self._step_actor()
        if self.config.alpha is None:
            self.temperature.gradient["log_alpha"].copy_(temperature)
            self.temperature_optimizer.step(self.config.alpha_learning_rate)
        self.critics.follow()

    def _apply(self, gradients: Sequence[Any]) -> None:
        critics, actor = gradients
        self.critics.apply(critics, self.num_updates)
        self._apply_to_actor(actor[:-1])
        if self.config.alpha is None:
            self.temperature.gradient["log_alpha"].copy_(actor[-1:])  # the last number
            self.temperature_optimizer.step(self.config.alpha_learning_rate)
        self.critics.follow()

    def _alpha(self) -> float:
        if self.config.alpha is not None:
            return self.config.alpha
        return math.exp(float(self.temperature.value["log_alpha"]))

    def _sample(self, state: Tensor, action: Tensor) -> Tensor:
        """Writes actions [B, A] of the actor. Returns log pi [B, 1]. Noise and std stay for the gradient."""
        size = self.box.size
        outputs = self._network.forward(state)
        log_std = outputs[:, size:].clamp(LOG_STD_MIN, LOG_STD_MAX)
        torch.exp(log_std, out=self._std)
        noise = self._noise = self.draw_noise()
        before_tanh = torch.addcmul(outputs[:, :size], self._std, noise)
        torch.tanh(before_tanh, out=action)
        squashed = before_tanh.add_(softplus(before_tanh * -2.0)).mul_(2.0)  # -log(1 - tanh(u)^2) + 2 log 2
        terms = squashed.sub_(log_std).addcmul_(noise, noise, value=-0.5)
        return terms.sum(dim=1, keepdim=True).sub_(size * (_LOG_SQRT_2PI + 2.0 * math.log(2.0)))

    def _learn_critics(self, alpha: float) -> None:
        batch = self.batch
        log_probability = self._sample(batch.next_state, batch.next_action)
        following = torch.minimum(*self.critics.target_values(batch.next_pair)).sub_(log_probability, alpha=alpha)
        goal = torch.addcmul(batch.reward, batch.discount, following)
        self.critics.learn(batch, goal, self.num_updates)

    def _actor_gradient(self, alpha: float) -> Tensor:
        """Writes the actor's gradient. Returns log pi [B, 1] of its actions."""
        batch, size, rows = self.batch, self.box.size, self.config.batch_size
        log_probability = self._sample(batch.state, batch.action)
        to_action = self._lower_value_gradient()
        action, gradient = batch.action, self._gradient
        to_mean = torch.addcmul(to_action, to_action, action * action, value=-1.0)
        to_mean.add_(action, alpha=2.0 * alpha / rows)
        gradient[:, :size] = to_mean
        torch.mul(to_mean, self._std, out=gradient[:, size:]).mul_(self._noise).sub_(alpha / rows)
        # The network's last outputs are those of this state. A log std that was clipped has no gradient.
        raw = self._network.outputs[:, size:]
        gradient[:, size:].mul_((raw > LOG_STD_MIN) & (raw < LOG_STD_MAX))
        self._network.backward(gradient)
        return log_probability

    def _lower_value_gradient(self) -> Tensor:
        """Returns the gradient [B, A] of -mean min_i Q_i(s, a) with respect to the batch's actions.

        A row has a gradient only through the critic with the lower value. So each row passes backward once.
        """
        batch, to_action = self.batch, self._to_action
        first, second = self.critics.networks
        is_first = (first.forward(batch.pair) <= second.forward(batch.pair)).flatten()
        for network, chosen in ((first, is_first), (second, ~is_first)):
            rows = chosen.nonzero().flatten()
            found = network.input_gradient_of(rows, self._share[: len(rows)], batch.state.shape[1])
            to_action.index_copy_(0, rows, found)
        return to_action

    def metrics(self) -> dict[str, float]:
        """See Agent."""
        more = {"alpha": self._alpha(), "entropy": float(self.entropy)} if self.num_updates else {}
        return {**super().metrics(), **more}

    def _own_parts(self) -> Mapping[str, Any]:
        return {
            "temperature": self.temperature,
            "temperature_optimizer": self.temperature_optimizer,
            "generator": self._generator,
        }

    # ---- the same update, for a compiler ---------------------------------------------------------------------------

    def functional(self) -> Functional:
        """See Agent. A learnt temperature is part of the step."""
        config, parts, temperature = self.config, FunctionalParts(self), self.temperature_optimizer
        rate = torch.full((), config.alpha_learning_rate, device=self.device)
        first, second = (torch.zeros(config.batch_size, self.box.size, device=self.device) for _ in range(2))

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            return self._functional_step(parts, *tensors)

        def load(batch: Items) -> tuple[Tensor, ...]:
            inputs = parts.load(batch)
            first.copy_(self.draw_noise())
            second.copy_(self.draw_noise())
            return *inputs, rate, first, second

        def finish(outputs: tuple[Tensor, ...]) -> NDArray[np.float64] | None:
            *errors, self.entropy = outputs
            return parts.finish(tuple(errors))

        state = (*parts.state, *temperature.stepped_tensors, self.critics.target.values)
        return Functional({"all": step}, lambda: "all", state, load, finish)

    def _functional_step(self, parts: FunctionalParts, *tensors: Tensor) -> tuple[Tensor, ...]:
        """(*state, *inputs) -> (*new state, errors of both critics, entropy)."""
        critics, actor, heat, target = tensors[:4], tensors[4:8], tensors[8:12], tensors[12]
        rates, *columns = tensors[13:20]
        heat_rate, next_noise, noise = tensors[20:]
        state, _, reward, discount, following, _ = columns
        fixed = self.config.alpha
        alpha = (heat[0].exp() if fixed is None else torch.full_like(heat[0], fixed))[0]
        action, log_probability = self._functional_sample(parts, parts.actor.named(actor[0]), following, next_noise)
        lower = torch.minimum(*parts.values(parts.critics.named(target), following, action))
        goal = reward + discount * (lower - alpha * log_probability)
        critics, errors = parts.learnt(critics, goal, tuple(columns), rates)
        named = parts.critics.named(critics[0])

        def loss(mine: Named) -> tuple[Tensor, Tensor]:
            chosen, log_probability = self._functional_sample(parts, mine, state, noise)
            lower = torch.minimum(*parts.values(named, state, chosen))
            return (alpha * log_probability - lower).mean(), log_probability

        gradient, log_probability = grad(loss, has_aux=True)(parts.actor.named(actor[0]))
        actor = parts.stepped_actor(gradient, actor, rates)
        entropy = -log_probability.mean()
        if fixed is None:
            slope = torch.cat([(entropy - self.target_entropy).reshape(1), torch.zeros_like(heat[0])[1:]])
            heat = stepped(slope, heat, heat_rate, self.temperature_optimizer)
        return *critics, *actor, *heat, followed(target, critics[0], self.config.target_rate), *errors, entropy

    def _functional_sample(
        self, parts: FunctionalParts, actor: Named, state: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`_sample` as a function: (actions [B, A], log pi [B, 1])."""
        size, outputs = self.box.size, parts.outputs(actor, state)
        log_std = outputs[:, size:].clamp(LOG_STD_MIN, LOG_STD_MAX)
        before_tanh = outputs[:, :size] + log_std.exp() * noise
        terms = 2.0 * (before_tanh + softplus(before_tanh * -2.0)) - log_std - 0.5 * noise * noise
        constant = size * (_LOG_SQRT_2PI + 2.0 * math.log(2.0))
        return torch.tanh(before_tanh), terms.sum(dim=1, keepdim=True) - constant
