"""Critics of continuous actions, and the batch that they learn from, which has a fixed place in memory.

targets   Q'_i, moving averages of the learnt Q_i           Lillicrap et al. 2016
loss       = sum_i mean_b w_b * (Q_i(s_b, a_b) - y_b)^2 / 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from relive.agents.agent import Items, Replicas
from relive.agents.batches import fill
from relive.agents.boxes import ActionBox
from relive.agents.config import OptimizerConfig, TransitionsConfig
from relive.agents.mlp import MLP, Adam, FlatParameters


@final
class ContinuousBatch:
    """A batch at a fixed place in memory. A row has the state and then the action, as the critics read them.

    - pair, next_pair: [B, S + A].
    - state, next_state [B, S] and action, next_action [B, A]: views of the pairs. Actions are within [-1, 1].
    - reward, discount, weight: [B, 1].
    """

    columns = ("observation", "action", "reward", "discount", "next_observation")

    def __init__(self, config: TransitionsConfig, state_size: int, box: ActionBox, device: torch.device) -> None:
        rows = config.batch_size
        self._config = config
        self.pair, self.next_pair = (torch.zeros(rows, state_size + box.size, device=device) for _ in range(2))
        self.state, self.action = self.pair[:, :state_size], self.pair[:, state_size:]
        self.next_state, self.next_action = self.next_pair[:, :state_size], self.next_pair[:, state_size:]
        self.reward, self.discount, self.weight = (torch.ones(rows, 1, device=device) for _ in range(3))
        self._buffers = {
            "observation": self.state,
            "action": self.action,
            "reward": self.reward,
            "discount": self.discount,
            "next_observation": self.next_state,
        }
        self._middle = torch.from_numpy(box.middle).to(device)
        self._scale = 1.0 / torch.from_numpy(box.half).to(device)

    def load(self, batch: Items) -> None:
        """Copies a batch of the table, and scales its actions to [-1, 1].

        Raises:
            InvalidConfig: the batch has another number of items, or items of another size.
        """
        fill(batch, self._buffers)
        self.action.sub_(self._middle).mul_(self._scale)
        if self._config.prioritized:
            self.weight.copy_(torch.from_numpy(batch.weights(self._config.importance_beta)).view(self.weight.shape))


@final
class Critics:
    """Networks Q_i(s, a) over one vector of parameters, their targets over a second vector, and one Adam for all."""

    def __init__(
        self,
        config: TransitionsConfig,
        optimizer: OptimizerConfig,
        sizes: Sequence[int],
        number: int,
        generator: torch.Generator,
        device: torch.device,
        *,
        low: bool,
    ) -> None:
        """Makes `number` critics.

        Args:
            config: the agent's options.
            optimizer: the options of Adam.
            sizes: sizes of the layers, S + A first and 1 last.
            number: number of critics.
            generator: source of the initial parameters.
            device: the device.
            low: whether wide layers use bfloat16, see MLP.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for critic in range(number):
            shapes.update(MLP.shapes(f"q{critic}", sizes))
        self.online = FlatParameters(shapes, device)
        self.online.initialise(generator)
        self.target = self.online.copy()
        self.networks = [MLP(self.online, f"q{critic}", config.batch_size, low=low) for critic in range(number)]
        self._targets = [MLP(self.target, f"q{critic}", config.batch_size, low=low) for critic in range(number)]
        self.optimizer = Adam(
            self.online, epsilon=optimizer.adam_epsilon, max_gradient_norm=optimizer.max_gradient_norm
        )
        self._config, self._options = config, optimizer
        self.errors = [torch.zeros(config.batch_size, 1, device=device) for _ in range(number)]

    def target_values(self, pairs: Tensor) -> list[Tensor]:
        """Returns Q'_i [B, 1] of each target for pairs [B, S + A]. The next call overwrites them."""
        return [network.forward(pairs) for network in self._targets]

    def learn(self, batch: ContinuousBatch, goal: Tensor, num_updates: int) -> None:
        """Makes one step towards y = goal [B, 1]. Afterwards `errors` are Q_i - y before the step."""
        for network, error in zip(self.networks, self.errors, strict=True):
            torch.sub(network.forward(batch.pair), goal, out=error)
            gradient = error * batch.weight if self._config.prioritized else error
            network.backward(gradient * (1.0 / self._config.batch_size))
        self.optimizer.step(self._options.learning_rate_at(num_updates))

    def apply(self, gradient: Tensor, num_updates: int) -> None:
        """Makes one step along this gradient [n] of all networks together."""
        self.optimizer.step_along(gradient, self._options.learning_rate_at(num_updates))

    def join(self, replicas: Replicas) -> None:
        """See Agent."""
        self.optimizer.combine_by(replicas.combine)

    def follow(self) -> None:
        """Makes one step of the targets."""
        self.target.follow(self.online, self._config.target_rate)

    def loss(self, weight: Tensor) -> float:
        """Returns the loss before the last step."""
        return sum(float((weight * error.square()).mean()) / 2.0 for error in self.errors)

    def parts(self) -> Mapping[str, Any]:
        """Returns the parts that a checkpoint keeps, by name."""
        return {"critics": self.online, "target_critics": self.target, "critic_optimizer": self.optimizer}
