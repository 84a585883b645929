"""Small deterministic environments, and what a hand-written loop says they did.

The observation of environment e in its episode k at time t is [e, k, t]; episode k of environment e lasts
2 + (e + k) % 4 steps and ends terminated and truncated in turn. The action is fed back through the reward.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

import relive


def length_of(env: int, episode: int) -> int:
    return 2 + (env + episode) % 4


def is_truncation(env: int, episode: int) -> bool:
    return (env + episode) % 2 == 1


def reward_of(env: int, episode: int, t: int, action: int) -> float:
    return env + 10.0 * episode + 0.125 * t + 0.5 * action


class World(gymnasium.Env[Any, Any]):
    """One environment; nested: its observation is a dict with a tuple inside."""

    metadata: dict[str, Any] = {}
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, number: int = 0, nested: bool = False) -> None:
        self.number, self.nested = number, nested
        box = gymnasium.spaces.Box(-1000.0, 1000.0, (3,), np.float32)
        self.observation_space: Any = box
        if nested:
            pair = gymnasium.spaces.Tuple((box, gymnasium.spaces.Discrete(1000)))
            self.observation_space = gymnasium.spaces.Dict({"place": box, "pair": pair})
        self.episode, self.t = -1, 0

    def observe(self) -> Any:
        cell = np.asarray([self.number, self.episode, self.t], np.float32)
        return {"place": cell, "pair": (-cell, self.t)} if self.nested else cell

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = reward_of(self.number, self.episode, self.t, int(action))
        self.t += 1
        over = self.t == length_of(self.number, self.episode)
        cut = is_truncation(self.number, self.episode)
        return self.observe(), reward, over and not cut, over and cut, {}


class Pool:
    """Environments stepped in subsets, as EnvPool does: rows come for those that are ready, named by info['env_id']."""

    def __init__(self, num_envs: int, num_ready: int) -> None:
        self.envs = [World(number) for number in range(num_envs)]
        self.num_ready = num_ready
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self.over = [True] * num_envs
        self.queue: list[tuple[int, int | None]] = []
        self.rng = np.random.default_rng(5)
        self.closed = False

    def async_reset(self) -> None:
        self.queue = [(env, None) for env in range(len(self.envs))]

    def send(self, actions: Any, env_id: Any) -> None:
        self.queue += [(int(env), int(action)) for env, action in zip(env_id, actions, strict=True)]

    def recv(self) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        chosen = [self.queue.pop(int(self.rng.integers(len(self.queue)))) for _ in range(self.num_ready)]
        rows = []
        for env, action in chosen:
            if action is None or self.over[env]:
                rows.append((self.envs[env].reset()[0], 0.0, False, False))
            else:
                rows.append(self.envs[env].step(action)[:4])
            self.over[env] = rows[-1][2] or rows[-1][3]
        observation, reward, terminated, truncated = (np.asarray(part) for part in zip(*rows, strict=True))
        return observation, reward, terminated, truncated, {"env_id": np.asarray([env for env, _ in chosen], np.int32)}

    def reset(self) -> tuple[Any, dict[str, Any]]:
        self.async_reset()
        observation, _, _, _, info = self.recv()
        return observation, info

    def step(self, actions: Any, env_id: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.send(actions, env_id)
        return self.recv()

    def close(self) -> None:
        self.closed = True


Transition = tuple[float, ...]


@dataclass
class Diary:
    """The hand-written loop's record: what each environment did, one list an episode."""

    n_step: int = 1
    gamma: float = 0.5
    episodes: dict[tuple[int, int], list[tuple[int, float]]] = field(default_factory=dict)
    ends: dict[tuple[int, int], str] = field(default_factory=dict)

    def note(self, env: int, episode: int, action: int, reward: float, terminated: bool, truncated: bool) -> None:
        self.episodes.setdefault((env, episode), []).append((action, reward))
        if terminated or truncated:
            self.ends[env, episode] = "terminated" if terminated else "truncated"

    def transitions(self) -> set[Transition]:
        """(env, episode, t, action, n-step reward, discount, next t, terminated, truncated) of all that is complete."""
        found = set()
        for (env, episode), steps in self.episodes.items():
            end = self.ends.get((env, episode))
            for t in range(len(steps)):
                m = min(self.n_step, len(steps) - t)
                # Without an end the newest step waits for its next observation.
                if end is None and (m < self.n_step or t + m > len(steps) - 1):
                    continue
                last = t + m == len(steps)
                reward = sum(self.gamma**k * steps[t + k][1] for k in range(m))
                terminated = last and end == "terminated"
                discount = 0.0 if terminated else self.gamma**m
                found.add(
                    (env, episode, t, steps[t][0], reward, discount, t + m, terminated, last and end == "truncated")
                )
        return found


def stored(table: relive.Table, place: str = "observation") -> set[Transition]:
    """All transitions of a table, by drawing until none can be missing."""
    columns = [place, f"next_{place}", "action", "reward", "discount", "terminated", "truncated"]
    found: set[Transition] = set()
    if table.num_items() == 0:
        return found
    batch = table.sample(64 * table.num_items(), columns=columns, timeout_s=5.0)
    flat = batch.flat()
    here, there = flat[place], flat[f"next_{place}"]
    assert (here[:, :2] == there[:, :2]).all(), "no transition joins two episodes"
    rows = zip(
        here,
        there[:, 2],
        flat["action"],
        flat["reward"],
        flat["discount"],
        flat["terminated"],
        flat["truncated"],
        strict=True,
    )
    for cell, t_next, action, reward, discount, terminated, truncated in rows:
        found.add(
            (
                *(int(x) for x in cell),
                int(action),
                float(reward),
                float(discount),
                int(t_next),
                bool(terminated),
                bool(truncated),
            )
        )
    assert len(found) == table.num_items()
    return found


def make_table(space: Any, *, n_step: int = 1, extras: Any = None, **options: Any) -> relive.Table:
    """A uniform table for worlds, gamma 0.5."""
    spec = relive.StepSpec.from_spaces(space, World.action_space, extras=extras)
    return relive.Table(spec, 4000, relive.Index(relive.Transitions(n_step=n_step, gamma=0.5)), max_lanes=16, **options)
