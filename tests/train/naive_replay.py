"""A replay buffer as one would write it without a thought for speed: lists of episodes, sums over them in loops.

`LoggedTable` writes the same steps into a table and into its own lists. Of what the table draws it looks at the keys
and the probabilities alone; n-step returns, discounts and importance weights it works out once more from the lists.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from relive import Batch, MinSize, Table
from train.batches import MadeBatch


class NaiveBatch(MadeBatch):
    """Weights (N p)^-beta over their maximum, of the probabilities that the items were drawn with."""

    def __init__(self, probabilities: np.ndarray, num_live: int, **columns: Any) -> None:
        super().__init__(**columns)
        self._probabilities, self._num_live = probabilities, num_live

    def weights(self, beta: float) -> np.ndarray:
        weights = [(self._num_live * probability) ** -beta for probability in self._probabilities]
        return (np.array(weights) / max(weights)).astype(np.float32)


class LoggedTable:
    """`num_episodes` episodes of random steps: every third is cut, the others terminate."""

    def __init__(self, agent: Any, num_episodes: int = 12) -> None:
        self.config, self.spaces = agent.config, agent.spaces
        self.table = Table(agent.spec(), 10_000, agent.index(MinSize(1)), seed=0)
        self.rng = np.random.default_rng(0)
        self.episodes: list[list[tuple[Any, Any, float, Any, bool]]] = []
        self.place: dict[int, tuple[int, int]] = {}
        with self.table.writer() as writer:
            for number in range(num_episodes):
                self._write(writer, int(self.rng.integers(1, 12)), terminates=number % 3 > 0)

    def _write(self, writer: Any, length: int, *, terminates: bool) -> None:
        self.spaces.action.seed(int(self.rng.integers(2**31)))
        states = self.rng.normal(size=(length + 1, *self.spaces.observation_shape)).astype(np.float32)
        steps = []
        for step in range(length):
            action, reward = self.spaces.action.sample(), np.float32(self.rng.normal())
            over = step == length - 1
            key = writer.append(
                observation=states[step], action=action, reward=reward, next_observation=states[step + 1],
                terminated=over and terminates, truncated=over and not terminates,
            )  # fmt: skip
            self.place[int(key)] = len(self.episodes), step
            steps.append((states[step], action, float(reward), states[step + 1], over and terminates))
        self.episodes.append(steps)

    def item(self, key: int) -> tuple[Any, Any, float, float, Any]:
        """state, action, n-step return, discount of what follows it, the state there."""
        number, at = self.place[key]
        steps = self.episodes[number][at : at + self.config.n_step]
        total, discount = 0.0, 1.0
        for _, _, reward, _, terminated in steps:
            total += discount * reward
            discount *= 0.0 if terminated else self.config.gamma
        return steps[0][0], steps[0][1], total, discount, steps[-1][3]

    def naive(self, batch: Batch) -> NaiveBatch:
        """The batch of the table, from the lists."""
        rows = [self.item(int(key)) for key in batch.item_keys]
        observation, action, reward, discount, following = (np.stack(column) for column in zip(*rows, strict=True))
        return NaiveBatch(
            batch.probabilities, len(self.place), observation=observation, action=action,
            reward=reward.astype(np.float32), discount=discount.astype(np.float32), next_observation=following,
        )  # fmt: skip
