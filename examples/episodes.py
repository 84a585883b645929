"""Episodes of our own for offline learning: of linear controllers, or out of the saved table of a training run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gymnasium
import numpy as np

import relive


@dataclass(frozen=True)
class Episode:
    """One episode: T + 1 observations, T actions, T rewards, and whether it terminated (else: truncated)."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: bool

    @property
    def return_to_go(self) -> np.ndarray:
        """The sum of the rewards from each step on, float32 [T]."""
        return np.cumsum(self.reward[::-1], dtype=np.float64)[::-1].astype(np.float32)


def controlled(env_id: str, count: int, seed: int) -> Iterator[Episode]:
    """Plays CartPole with linear controllers, each with random weights: from useless to perfect."""
    env, rng = gymnasium.make(env_id), np.random.default_rng(seed)
    for number in range(count):
        weights = rng.normal([0.0, 0.3, 1.0, 1.0], 1.0)
        observations, actions, rewards = [env.reset(seed=seed * 100_003 + number)[0]], [], []
        ends = False
        while not ends:
            actions.append(int(observations[-1] @ weights > 0))
            observation, reward, terminated, truncated, _ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
            ends = terminated or truncated
        yield Episode(np.stack(observations), np.array(actions), np.array(rewards, np.float32), terminated)
    env.close()


def saved(folder: str) -> Iterator[Episode]:
    """The whole episodes of a saved table of transitions, such as the table of `relive train` (RUN/save)."""
    with relive.load(folder) as table:
        columns = ["observation", "next_observation", "action", "reward", "terminated", "truncated"]
        columns += ["lane", "episode_step"]
        pages = [table.gather(keys, columns=columns) for keys in table.keys(order="age")]
        rows = {name: np.concatenate([page[name][page.present] for page in pages]) for name in columns}
    order = np.argsort(rows["lane"], kind="stable")
    rows = {name: values[order] for name, values in rows.items()}
    ends = np.flatnonzero(rows["terminated"] | rows["truncated"]) + 1
    for begin, end in zip([0, *ends], ends, strict=False):
        if rows["episode_step"][begin] == 0:
            states = np.concatenate([rows["observation"][begin:end], rows["next_observation"][end - 1 : end]])
            terminated = bool(rows["terminated"][end - 1])
            yield Episode(states, rows["action"][begin:end], rows["reward"][begin:end], terminated)
