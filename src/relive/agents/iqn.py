"""IQN (Dabney et al. 2018): a network that gives any quantile of the return, rather than its mean.

  network  Z_t(s, a) = q(psi(s) * phi(t))_a                the return of a in s at the fraction t of its distribution
           phi(t) = relu(W [cos(pi i t)] + b), i = 0 .. num_cosines - 1
  greedy   a*(s) = argmax_a mean_k Z_{t_k}(s, a),  t_k = cvar (k + 1/2) / K,  k = 0 .. K - 1
  target   y_j = R + D * Z'_{u_j}(s', a'),  u_j ~ U(0, 1)  a' = a*(s') of the learnt network (double), else of Z'
  errors   e_ij = y_j - Z_{t_i}(s, a),      t_i ~ U(0, 1)
  item     l = sum_i mean_j |t_i - [e_ij < 0]| * huber_kappa(e_ij) / kappa
  loss     = mean_b w_b * l_b                              Schaul et al. 2016: w_b = (N p_b)^-beta / max w
  priority l                                               rather than |error|, of which there is none

R, D: the n-step return and discount the table gives; D is 0 where the episode terminated, not where it was cut.
psi: the convolutions, or the first hidden layer for vectors; q: the layers after it. i counts num_quantiles, j
num_target_quantiles, k num_greedy_quantiles. cvar < 1: the mean of the worst outcomes alone (section 3.2 of the paper).

Deviations from the paper: the fractions that the greedy action averages over are spaced evenly, not drawn, so that
acting and targets choose alike; 8 fractions a side unless asked for more; double, n-step returns, priorities, and a
target network that is a moving average, as in `relive.agents.dqn`; Adam with a clip of the gradient's norm.

The time goes into matrix products of batch_size * num_quantiles rows, not into calls, so autograd writes the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from relive.agents.action_values import ActionValueAgent, ActionValueConfig, NetworkConfig
from relive.agents.agent import Replicas, Spaces
from relive.agents.config import Settings, require
from relive.agents.conv import NUM_FEATURES, convolution_shapes, convolutions, leaves_of, perceptron
from relive.agents.mlp import MLP, FlatParameters, Shapes
from relive.agents.policies import ActionValues, MeanOfQuantiles

_MOST_FRACTIONS = 1024


@final
@dataclass(frozen=True)
class QuantileNetworkConfig(NetworkConfig):
    """num_cosines: of a fraction's embedding. The others are NetworkConfig's."""

    num_cosines: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.num_cosines <= _MOST_FRACTIONS, "num_cosines", f"in [1, {_MOST_FRACTIONS}]", self.num_cosines)


@final
@dataclass(frozen=True)
class IQNConfig(ActionValueConfig):
    """Implicit quantile network.

    num_quantiles, num_target_quantiles: fractions drawn for each item, of the learnt and of the target network.
    num_greedy_quantiles: fractions that an action's value is the mean over, the lowest `cvar` of its distribution (1:
    all of it). kappa: errors up to it are squared. The others are ActionValueConfig's.
    """

    name: ClassVar[str] = "iqn"
    presets: ClassVar[Mapping[str, Settings]] = {
        **ActionValueConfig.presets,
        # An update takes four times as long as one of DQN.
        "CartPole-v1": {
            **ActionValueConfig.presets["CartPole-v1"],
            "agent.num_greedy_quantiles": 8,
            "limits.max_minutes": 10.0,
        },
    }

    network: QuantileNetworkConfig = field(default_factory=QuantileNetworkConfig)
    num_quantiles: int = 8
    num_target_quantiles: int = 8
    num_greedy_quantiles: int = 32
    kappa: float = 1.0
    cvar: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_quantiles", "num_target_quantiles", "num_greedy_quantiles"):
            number = getattr(self, name)
            require(1 <= number <= _MOST_FRACTIONS, name, f"in [1, {_MOST_FRACTIONS}]", number)
        require(0 < self.kappa < math.inf, "kappa", "> 0, finite", self.kappa)
        require(0 < self.cvar <= 1, "cvar", "in (0, 1]", self.cvar)

    @property
    def greedy_fractions(self) -> tuple[float, ...]:
        """The t_k that a greedy action's value is the mean over."""
        number = self.num_greedy_quantiles
        return tuple(self.cvar * (k + 0.5) / number for k in range(number))

    def make(self, spaces: Spaces, *, seed: int, device: str) -> IQN:
        """See AgentConfig. Actions are Discrete, observations a Box."""
        return IQN(self, spaces, seed=seed, device=device)


@final
class QuantileNetwork:
    """Z over FlatParameters: the layers `psi.0` or `conv.*`, `phi.0`, and `q.*`."""

    def __init__(self, parameters: FlatParameters, *, learns: bool) -> None:
        self._leaves = leaves_of(parameters, learns=learns)
        num_cosines = parameters.shapes["phi.0.weight"][1]
        self._frequencies = math.pi * torch.arange(num_cosines, dtype=torch.float32, device=parameters.values.device)

    def __call__(self, observations: Tensor, fractions: Tensor) -> Tensor:
        """Returns [B, T, num_actions] of observations [B, ...] at fractions [B, T], or [1, T] for all of them."""
        leaves = self._leaves
        if "conv.0.weight" in leaves:
            features = convolutions(leaves, observations)
        else:
            features = torch.relu(perceptron(leaves, "psi", observations))
        waves = torch.cos(fractions.unsqueeze(2) * self._frequencies)
        embedding = torch.relu(perceptron(leaves, "phi", waves))
        return perceptron(leaves, "q", features.unsqueeze(1) * embedding)


def item_losses(errors: Tensor, fractions: Tensor, kappa: float) -> Tensor:
    """l [B] of errors e_ij [B, I, J] at fractions t_i [B, I]: the quantile Huber loss."""
    huber = huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=kappa)
    side = (fractions.unsqueeze(2) - (errors.detach() < 0).to(torch.float32)).abs()
    return (side * huber).mean(dim=2).sum(dim=1) / kappa


@final
class IQN(ActionValueAgent):
    """The learner's state: the learnt and the target network, Adam, the fractions' generator. An `Agent`."""

    config: IQNConfig

    def __init__(self, config: IQNConfig, spaces: Spaces, *, seed: int, device: str) -> None:
        super().__init__(config, spaces, seed=seed, device=device)
        self._generator = torch.Generator(self.device).manual_seed(seed + 1)
        self._network = QuantileNetwork(self.online, learns=True)
        self._target_network = QuantileNetwork(self.target, learns=False)
        self._slice, self._num_slices = 0, 1
        self._greedy_fractions = torch.tensor([config.greedy_fractions], device=self.device)

    def _shapes(self) -> Shapes:
        network, spaces = self.config.network, self.spaces
        if self.sees_images:
            below, width, above = convolution_shapes(spaces.observation_shape[0]), NUM_FEATURES, network.hidden
        else:
            width, above = network.hidden[0], network.hidden[1:]
            below = MLP.shapes("psi", (spaces.observation_size, width))
        embedding = MLP.shapes("phi", (network.num_cosines, width))
        return {**below, **embedding, **MLP.shapes("q", (width, *above, self.num_actions))}

    def _action_values(self) -> ActionValues:
        return MeanOfQuantiles(self.config.greedy_fractions)

    # ---- learning --------------------------------------------------------------------------------------------------

    def _learn(self) -> Tensor:
        config = self.config
        fractions = self._drawn(config.num_quantiles)
        goal = self._goal()
        mine = self._of_action(self._network(self._observation, fractions), self._action)
        losses = item_losses(goal.unsqueeze(1) - mine.unsqueeze(2), fractions, config.kappa).unsqueeze(1)
        self.online.gradients.zero_()  # autograd adds to what lies there
        (losses * self._weight).mean().backward()  # type: ignore[no-untyped-call]
        return losses.detach()

    @torch.no_grad()
    def _goal(self) -> Tensor:
        """y_j [B, num_target_quantiles]."""
        chooser = self._network if self.config.double else self._target_network
        best = chooser(self._next_observation, self._greedy_fractions).mean(dim=1).argmax(dim=1, keepdim=True)
        fractions = self._drawn(self.config.num_target_quantiles)
        following = self._of_action(self._target_network(self._next_observation, fractions), best)
        return torch.addcmul(self._reward, self._discount, following)

    def _drawn(self, number: int) -> Tensor:
        """Fractions [B, number] from U(0, 1); where replicas learn, their rows of the same ones."""
        size = self.config.batch_size
        drawn = torch.rand(size * self._num_slices, number, generator=self._generator, device=self.device)
        return drawn[size * self._slice : size * (self._slice + 1)]

    def join(self, replicas: Replicas) -> None:
        """See Agent."""
        super().join(replicas)
        self._slice, self._num_slices = replicas.number, replicas.count

    @staticmethod
    def _of_action(returns: Tensor, actions: Tensor) -> Tensor:
        """[B, T] of returns [B, T, num_actions], those of actions [B, 1]."""
        return returns.gather(2, actions.unsqueeze(1).expand(-1, returns.shape[1], -1)).squeeze(2)

    def metrics(self) -> dict[str, float]:
        """See Agent."""
        return {"loss": float((self._weight * self._error).mean())} if self.num_updates else {}

    def _own_parts(self) -> Mapping[str, Any]:
        return {"generator": self._generator}
