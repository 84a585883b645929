"""DQN: double, dueling, n-step, prioritized. Each of the four can be switched off.

  target  y  = R + D * Q'(s', argmax_a Q(s', a))           van Hasselt et al. 2016 (double), Sutton 1988 (n-step)
             R + D * max_a Q'(s', a)                       Mnih et al. 2015, with double = False
  error   e  = y - Q(s, a)                                 R, D: the n-step return and discount from the table. D is 0
                                                           if the episode terminated, and not if it was truncated
  loss       = mean_i w_i * huber(e_i)                     Schaul et al. 2016: w_i = (N p_i)^-beta / max_j w_j
  network    Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)     Wang et al. 2016 (dueling)

  gradient   dL/dQ(s_i, a_i) = -w_i * clip(e_i, -1, 1) / B, the input of the network's backward

Deviations from the papers: beta is constant; Adam in place of RMSprop; the gradient's norm is clipped; the target
network is a moving average (for the hard copies of Mnih et al. set `target_rate` to 1, and `target_period` to the
updates between two copies).

The file contains the update twice: written by hand (`_learn`), and as a function of tensors for a compiler
(`functional`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad

from relive.agents.action_values import ActionValueAgent, ActionValueConfig, NetworkConfig
from relive.agents.agent import Items, Spaces
from relive.agents.config import Precision, check_precision, require
from relive.agents.conv import ConvNetwork
from relive.agents.functional import Flat, Functional, Named, network, stepped
from relive.agents.mlp import MLP, FlatParameters, Network, Shapes
from relive.agents.policies import ActionValues, NetworkValues


@final
@dataclass(frozen=True)
class QNetworkConfig(NetworkConfig):
    """The options of a Q network.

    Args:
        dueling: whether the last layer gives a value and advantages. Default: True.

    The other options are those of NetworkConfig.
    """

    dueling: bool = True


@final
@dataclass(frozen=True)
class DQNConfig(ActionValueConfig):
    """The options of double, dueling, n-step, prioritized DQN.

    Args:
        network: see QNetworkConfig.
        precision: precision of the products of wide layers. "bfloat16" halves their time on processors that multiply
            bfloat16, and rounds factors and results to a mantissa of 8 bits. Networks of images need "float32".
            Default: "float32".

    The other options are those of ActionValueConfig.

    Raises:
        InvalidConfig: an option is out of its range.
    """

    name: ClassVar[str] = "dqn"

    network: QNetworkConfig = field(default_factory=QNetworkConfig)
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_precision(self.precision)
        fits = self.precision == "float32" or self.network.kind == "mlp"
        require(fits, "precision", "'float32' for network kind 'conv'", self.precision)

    def make(self, spaces: Spaces, *, seed: int, device: str) -> DQN:
        """See AgentConfig. Actions are Discrete. Observations are a Box."""
        return DQN(self, spaces, seed=seed, device=device)


def action_values(outputs: Tensor, *, dueling: bool) -> Tensor:
    """Returns the Q values [B, n] of a network's outputs.

    Q(s, a) = V(s) + A(s, a) - mean_a A(s, a)  if dueling

    Args:
        outputs: [B, n], or with dueling [B, 1 + n]: V in the first column, A in the others.
        dueling: whether the network is dueling.
    """
    if not dueling:
        return outputs
    advantage = outputs[:, 1:]
    return advantage - advantage.mean(dim=1, keepdim=True) + outputs[:, :1]


def outputs_gradient(chosen: Tensor, actions: Tensor, num_actions: int, *, dueling: bool, out: Tensor) -> None:
    """Writes the gradient of the network's outputs for a loss that depends on Q(s, a) of the chosen actions only.

    Args:
        chosen: dL/dQ(s, a) [B, 1].
        actions: int64 [B, 1].
        num_actions: n.
        dueling: whether the network is dueling.
        out: takes the gradient, of the shape of the outputs.
    """
    if dueling:
        out[:, :1] = chosen
        out[:, 1:] = chosen * (-1.0 / num_actions)
        out[:, 1:].scatter_add_(1, actions, chosen)
    else:
        out.zero_().scatter_(1, actions, chosen)


@final
class DQN(ActionValueAgent):
    """The state of a learner: the learnt network, the target network, Adam, the number of updates. An `Agent`."""

    config: DQNConfig

    def __init__(self, config: DQNConfig, spaces: Spaces, *, seed: int, device: str) -> None:
        super().__init__(config, spaces, seed=seed, device=device)
        self._network = self._network_over(self.online, learns=True)
        self._target_network = self._network_over(self.target, learns=False)
        self._gradient = torch.zeros(config.batch_size, self._sizes()[-1], device=self.device)

    def _sizes(self) -> tuple[int, ...]:
        network = self.config.network
        return (*network.hidden, self.num_actions + network.dueling)

    def _shapes(self) -> Shapes:
        if self.sees_images:
            return ConvNetwork.shapes("q", self.spaces.observation_shape[0], self._sizes())
        return MLP.shapes("q", (self.spaces.observation_size, *self._sizes()))

    def _network_over(self, parameters: FlatParameters, *, learns: bool) -> Network:
        if self.sees_images:
            return ConvNetwork(parameters, "q", learns=learns)
        return MLP(parameters, "q", self.config.batch_size, low=self.config.precision == "bfloat16")

    def _action_values(self) -> ActionValues:
        return NetworkValues(self.config.network.dueling)

    def _learn(self) -> Tensor:
        config = self.config
        with torch.no_grad():
            error = self._td_errors()
            chosen = error.clamp(-1.0, 1.0).mul_(self._weight).mul_(-1.0 / config.batch_size)
            dueling = config.network.dueling
            outputs_gradient(chosen, self._action, self.num_actions, dueling=dueling, out=self._gradient)
            self._network.backward(self._gradient)
        return error

    def _td_errors(self) -> Tensor:
        """Returns y - Q(s, a) [B, 1]. The network's last `forward` is that of Q(s, a), so `backward` applies to it."""
        dueling = self.config.network.dueling
        following = action_values(self._target_network.forward(self._next_observation), dueling=dueling)
        if self.config.double:
            mine = action_values(self._network.forward(self._next_observation), dueling=dueling)
            bootstrap = following.gather(1, mine.argmax(dim=1, keepdim=True))
        else:
            bootstrap = following.amax(dim=1, keepdim=True)
        goal = torch.addcmul(self._reward, self._discount, bootstrap)
        values = action_values(self._network.forward(self._observation), dueling=dueling)
        return goal - values.gather(1, self._action)

    # ---- the same update, for a compiler ---------------------------------------------------------------------------

    def functional(self) -> Functional | None:
        """See Agent. None if the network sees images. The target network follows in `finish`."""
        if self.sees_images:
            return None
        config, optimizer = self.config, self.optimizer
        rate = torch.zeros((), device=self.device)

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            return self._functional_step(tensors[:4], *tensors[4:])

        def load(batch: Items) -> tuple[Tensor, ...]:
            self.load(batch)
            rate.fill_(config.optimizer.learning_rate_at(self.num_updates))
            return self.target.values, rate, *self.batch_tensors()

        def finish(outputs: tuple[Tensor, ...]) -> NDArray[np.float64] | None:
            return self.finished(outputs[0])

        return Functional({"all": step}, lambda: "all", optimizer.stepped_tensors, load, finish)

    def _functional_step(
        self,
        state: tuple[Tensor, ...],
        target: Tensor,
        rate: Tensor,
        observation: Tensor,
        action: Tensor,
        reward: Tensor,
        discount: Tensor,
        following: Tensor,
        weight: Tensor,
    ) -> tuple[Tensor, ...]:
        """The new state of the optimizer, and the errors y - Q(s, a) [B, 1]."""
        flat, dueling, low = Flat(self.online), self.config.network.dueling, self.config.precision == "bfloat16"

        def values_of(named: Named, inputs: Tensor) -> Tensor:
            return action_values(network(named, "q", inputs, low), dueling=dueling)

        online = flat.named(state[0])
        theirs = values_of(flat.named(target), following)
        if self.config.double:
            bootstrap = theirs.gather(1, values_of(online, following).argmax(dim=1, keepdim=True))
        else:
            bootstrap = theirs.amax(dim=1, keepdim=True)
        goal = reward + discount * bootstrap

        def loss(named: Named) -> tuple[Tensor, Tensor]:
            error = goal - values_of(named, observation).gather(1, action)
            size = error.abs()
            huber = torch.where(size < 1.0, 0.5 * error * error, size - 0.5)
            return (weight * huber).mean(), error

        gradient, error = grad(loss, has_aux=True)(online)
        return *stepped(flat.vector(gradient), state, rate, self.optimizer), error

    def metrics(self) -> dict[str, float]:
        """See Agent."""
        if self.num_updates == 0:
            return {}
        huber = torch.nn.functional.huber_loss(self._error, torch.zeros_like(self._error), reduction="none")
        return {"loss": float((self._weight * huber).mean()), "error": float(self._error.abs().mean())}
