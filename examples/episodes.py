"""Episodes of our own for offline learning: of linear controllers, or out of the saved table of a training run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
    if env.observation_space.shape != (4,) or env.action_space != gymnasium.spaces.Discrete(2):
        raise SystemExit(f"The linear controllers are for CartPole. Give the data of {env_id}: --data FOLDER.")
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


def make_env(name: str) -> gymnasium.Env[Any, Any]:
    """The environment. Actions of a bounded Box are in [-1, 1]."""
    env = gymnasium.make(name)
    is_box = isinstance(env.action_space, gymnasium.spaces.Box) and env.action_space.is_bounded()
    return gymnasium.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0)) if is_box else env


def units(actions: np.ndarray, space: gymnasium.spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """The box that contains stored actions [N, ...]: [-1, 1], or the bounds of the environment.

    If both boxes contain all actions, the smaller box is taken.

    Returns:
        The middle of the box and half its widths: (actions - middle) / half is in [-1, 1].
    """
    boxes = [(np.zeros_like(space.low), np.ones_like(space.low))]
    if space.is_bounded():
        boxes.append(((space.high + space.low) / 2, (space.high - space.low) / 2))
    fitting = [box for box in boxes if (np.abs(actions - box[0]) <= 1.001 * box[1]).all()]
    if not fitting:
        found = f"The stored actions reach from {actions.min():.4g} to {actions.max():.4g}."
        raise SystemExit(f"{found} Expected: within [-1, 1] or within {space}. Give the data's environment: --env.")
    return min(fitting, key=lambda box: box[1].prod())


def whole(table: relive.Table, columns: list[str], longest: int | None) -> list[Any]:
    """The whole episodes of a table, each a mapping of column name -> array.

    A load truncates the open episode of each lane, so that its return is too low. An episode is left out if it is the
    last one of its lane, is truncated, and is shorter than `longest`, the time limit of the environment.
    """
    found = list(table.episodes(columns))
    last = {episode.lane: number for number, episode in enumerate(found)}
    kept = []
    for number, episode in enumerate(found):
        is_short = longest is None or len(episode) < longest
        if not (episode.truncated and is_short and last[episode.lane] == number):
            kept.append(episode)
    if not kept:
        raise SystemExit("The table has no whole episode. Record at least one episode up to its end.")
    return kept


def saved(folder: str, env: gymnasium.Env[Any, Any]) -> Iterator[Episode]:
    """The whole episodes of a saved table, such as the table of `relive train` (RUN/save), with actions in [-1, 1]."""
    with relive.load(folder) as table:
        found = whole(table, ["observation", "action", "reward"], env.spec.max_episode_steps if env.spec else None)
    space, actions = env.unwrapped.action_space, [episode["action"] for episode in found]
    if isinstance(space, gymnasium.spaces.Box):
        middle, half = units(np.concatenate(actions), space)
        actions = [(action - middle) / half for action in actions]
    for episode, action in zip(found, actions, strict=True):
        yield Episode(episode["observation"], action, episode["reward"], episode.terminated)
