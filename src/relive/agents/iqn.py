"""IQN (Dabney et al. 2018): a network that gives any quantile of the return, instead of the return's mean.

  network  Z_t(s, a) = q(psi(s) * phi(t))_a                the return of action a in state s, at fraction t of its
                                                           distribution
           phi(t) = relu(W [cos(pi i t)] + b), i = 0 .. num_cosines - 1
  greedy   a*(s) = argmax_a mean_k Z_{t_k}(s, a),  t_k = cvar (k + 1/2) / K,  k = 0 .. K - 1
  target   y_j = R + D * Z'_{u_j}(s', a'),  u_j ~ U(0, 1)  a' = a*(s') of the learnt network if double, else of Z'
  errors   e_ij = y_j - Z_{t_i}(s, a),      t_i ~ U(0, 1)
  item     l = sum_i mean_j |t_i - [e_ij < 0]| * huber_kappa(e_ij) / kappa
  loss     = mean_b w_b * l_b                              Schaul et al. 2016: w_b = (N p_b)^-beta / max w
  priority l                                               in place of |error|, because an item has many errors

R, D: the n-step return and discount from the table. D is 0 if the episode terminated, and not if it was truncated.
psi: the convolutions, or for vectors the first hidden layer. q: the layers after psi. i counts num_quantiles, j counts
num_target_quantiles, k counts num_greedy_quantiles. With cvar < 1 an action's value is the mean of its worst outcomes
only (section 3.2 of the paper).

Deviations from the paper:
- The greedy action averages over evenly spaced fractions, not over drawn ones, so acting and targets choose alike.
- The default is 8 fractions on each side.
- Double, n-step returns, priorities, and a target network that is a moving average, as in `relive.agents.dqn`.
- Adam with a clip of the gradient's norm.

Matrix products of batch_size * num_quantiles rows take most of the time and calls take little, so autograd writes the
gradients.
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
    """The options of a quantile network.

    Args:
        num_cosines: cosines in the embedding of a fraction. Default: 64.

    The other options are those of NetworkConfig.

    Raises:
        InvalidConfig: an option is out of its range.
    """

    num_cosines: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.num_cosines <= _MOST_FRACTIONS, "num_cosines", f"in [1, {_MOST_FRACTIONS}]", self.num_cosines)


@final
@dataclass(frozen=True)
class IQNConfig(ActionValueConfig):
    """The options of an implicit quantile network.

    Args:
        network: see QuantileNetworkConfig.
        num_quantiles: fractions of the learnt network that are drawn for each item. Default: 8.
        num_target_quantiles: fractions of the target network that are drawn for each item. Default: 8.
        num_greedy_quantiles: fractions over which an action's value is the mean. Default: 32.
        kappa: errors up to kappa count as squares, larger errors linearly. Default: 1.
        cvar: share of the distribution, from the lowest returns on, over which an action's value is the mean, in
            (0, 1]. Default: 1, the whole distribution.

    The other options are those of ActionValueConfig.

    Raises:
        InvalidConfig: an option is out of its range.
    """

    name: ClassVar[str] = "iqn"
    presets: ClassVar[Mapping[str, Settings]] = {
        **ActionValueConfig.presets,
        # An update takes four times as long as an update of DQN.
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
        """The fractions t_k over which the value of an action is the mean."""
        number = self.num_greedy_quantiles
        return tuple(self.cvar * (k + 0.5) / number for k in range(number))

    def make(self, spaces: Spaces, *, seed: int, device: str) -> IQN:
        """See AgentConfig. Actions are Discrete. Observations are a Box."""
        return IQN(self, spaces, seed=seed, device=device)


@final
class QuantileNetwork:
    """Z over FlatParameters, with the layers `psi.0` or `conv.*`, then `phi.0`, and `q.*`."""

    def __init__(self, parameters: FlatParameters, *, learns: bool) -> None:
        self._leaves = leaves_of(parameters, learns=learns)
        num_cosines = parameters.shapes["phi.0.weight"][1]
        self._frequencies = math.pi * torch.arange(num_cosines, dtype=torch.float32, device=parameters.values.device)

    def __call__(self, observations: Tensor, fractions: Tensor) -> Tensor:
        """Computes returns of all actions at given fractions.

        Args:
            observations: [B, ...].
            fractions: [B, T], or [1, T] for all observations.

        Returns:
            Z [B, T, num_actions].
        """
        leaves = self._leaves
        if "conv.0.weight" in leaves:
            features = convolutions(leaves, observations)
        else:
            features = torch.relu(perceptron(leaves, "psi", observations))
        waves = torch.cos(fractions.unsqueeze(2) * self._frequencies)
        embedding = torch.relu(perceptron(leaves, "phi", waves))
        return perceptron(leaves, "q", features.unsqueeze(1) * embedding)


def item_losses(errors: Tensor, fractions: Tensor, kappa: float) -> Tensor:
    """Computes the quantile Huber loss of each item.

    l = sum_i mean_j |t_i - [e_ij < 0]| * huber_kappa(e_ij) / kappa

    Args:
        errors: e_ij [B, I, J].
        fractions: t_i [B, I].
        kappa: errors up to kappa count as squares.

    Returns:
        l [B].
    """
    huber = huber_loss(errors, torch.zeros_like(errors), reduction="none", delta=kappa)
    side = (fractions.unsqueeze(2) - (errors.detach() < 0).to(torch.float32)).abs()
    return (side * huber).mean(dim=2).sum(dim=1) / kappa


@final
class IQN(ActionValueAgent):
    """The state of a learner: the learnt network, the target network, Adam, the generator of fractions. An `Agent`."""

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
        self.online.gradients.zero_()  # autograd adds to the old gradients
        (losses * self._weight).mean().backward()  # type: ignore[no-untyped-call]
        return losses.detach()

    @torch.no_grad()
    def _goal(self) -> Tensor:
        """Returns y_j [B, num_target_quantiles]."""
        chooser = self._network if self.config.double else self._target_network
        best = chooser(self._next_observation, self._greedy_fractions).mean(dim=1).argmax(dim=1, keepdim=True)
        fractions = self._drawn(self.config.num_target_quantiles)
        following = self._of_action(self._target_network(self._next_observation, fractions), best)
        return torch.addcmul(self._reward, self._discount, following)

    def _drawn(self, number: int) -> Tensor:
        """Draws fractions [B, number] from U(0, 1). If several learners share a batch, each uses its own rows."""
        size = self.config.batch_size
        drawn = torch.rand(size * self._num_slices, number, generator=self._generator, device=self.device)
        return drawn[size * self._slice : size * (self._slice + 1)]

    def join(self, replicas: Replicas) -> None:
        """See Agent."""
        super().join(replicas)
        self._slice, self._num_slices = replicas.number, replicas.count

    @staticmethod
    def _of_action(returns: Tensor, actions: Tensor) -> Tensor:
        """Returns [B, T]: the values of actions [B, 1] among returns [B, T, num_actions]."""
        return returns.gather(2, actions.unsqueeze(1).expand(-1, returns.shape[1], -1)).squeeze(2)

    def metrics(self) -> dict[str, float]:
        """See Agent."""
        return {"loss": float((self._weight * self._error).mean())} if self.num_updates else {}

    def _own_parts(self) -> Mapping[str, Any]:
        return {"generator": self._generator}
