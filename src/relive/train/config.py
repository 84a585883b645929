"""What a training run is: frozen values that check themselves and go to and from JSON.

A run directory keeps its configuration as `config.json`, so that `--resume` needs nothing but the directory.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from relive.agents.config import DQNConfig, NetworkConfig, OptimizerConfig, require
from relive.errors import InvalidConfig


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environment: its Gymnasium id, and how many copies each actor steps together."""

    env_id: str = "CartPole-v1"
    num_envs_per_actor: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        require(bool(self.env_id), "env_id", "a Gymnasium id", self.env_id)
        require(self.num_envs_per_actor >= 1, "num_envs_per_actor", ">= 1", self.num_envs_per_actor)
        require(0 <= self.seed < 2**31, "seed", "0 <= seed < 2**31", self.seed)


@dataclass(frozen=True)
class ReplayConfig:
    """The table: its size, when learning starts, and how often a step is learnt from."""

    capacity: int = 100_000
    min_size: int = 1_000
    samples_per_insert: float = 32.0
    priority_exponent: float = 0.6

    def __post_init__(self) -> None:
        require(self.capacity >= self.min_size, "capacity", f">= min_size = {self.min_size}", self.capacity)
        require(self.min_size >= 1, "min_size", ">= 1", self.min_size)
        require(self.samples_per_insert > 0, "samples_per_insert", "> 0", self.samples_per_insert)


@dataclass(frozen=True)
class ActingConfig:
    """The actors: how many, how they explore, how often they look for newer parameters.

    Epsilon falls linearly from `epsilon_start` to `epsilon_end` over `epsilon_steps` environment steps of all actors.
    """

    num_actors: int = 2
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_steps: int = 10_000
    publish_period: int = 25

    def __post_init__(self) -> None:
        require(self.num_actors >= 1, "num_actors", ">= 1", self.num_actors)
        require(
            0 <= self.epsilon_end <= self.epsilon_start <= 1,
            "epsilon",
            "0 <= epsilon_end <= epsilon_start <= 1",
            (self.epsilon_start, self.epsilon_end),
        )
        require(self.epsilon_steps >= 1, "epsilon_steps", ">= 1", self.epsilon_steps)
        require(self.publish_period >= 1, "publish_period", ">= 1", self.publish_period)

    def epsilon_at(self, num_steps: int) -> float:
        """The chance of a random action after `num_steps` environment steps of all actors."""
        done = min(1.0, num_steps / self.epsilon_steps)
        return self.epsilon_start + done * (self.epsilon_end - self.epsilon_start)


@dataclass(frozen=True)
class EvaluationConfig:
    """Greedy evaluations: when, how long, and the return at which the run may stop.

    A kept policy stops the run when its mean over `num_episodes` and then over `num_confirm_episodes` on other seeds
    both reach `stop_return` (None: never).
    """

    period_updates: int = 500
    num_episodes: int = 20
    num_confirm_episodes: int = 100
    num_final_episodes: int = 20
    stop_return: float | None = None
    max_episode_steps: int = 27_000

    def __post_init__(self) -> None:
        require(self.period_updates >= 1, "period_updates", ">= 1", self.period_updates)
        require(
            min(self.num_episodes, self.num_confirm_episodes, self.num_final_episodes) >= 1,
            "number of evaluation episodes",
            ">= 1 each",
            (self.num_episodes, self.num_confirm_episodes, self.num_final_episodes),
        )


@dataclass(frozen=True)
class LimitConfig:
    """When a run ends without having reached its return. The wall clock counts every session of a resumed run."""

    max_steps: int = 200_000
    max_minutes: float = 10.0
    checkpoint_period_s: float = 30.0

    def __post_init__(self) -> None:
        require(self.max_steps >= 1, "max_steps", ">= 1", self.max_steps)
        require(self.max_minutes > 0, "max_minutes", "> 0", self.max_minutes)
        require(self.checkpoint_period_s > 0, "checkpoint_period_s", "> 0", self.checkpoint_period_s)


@dataclass(frozen=True)
class TrainConfig:
    """A whole run. `preset(env_id)` gives the defaults that suit an environment."""

    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    agent: DQNConfig = field(default_factory=DQNConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    acting: ActingConfig = field(default_factory=ActingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)
    device: str = "auto"

    def save(self, path: Path) -> None:
        """Writes the configuration as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> TrainConfig:
        """Reads what `save` wrote; raises InvalidConfig where it is something else."""
        try:
            tree = json.loads(path.read_text(encoding="utf-8"))
            agent = dict(tree["agent"])
            agent["network"] = NetworkConfig(**agent["network"])
            agent["optimizer"] = OptimizerConfig(**agent["optimizer"])
            return cls(
                environment=EnvironmentConfig(**tree["environment"]),
                agent=DQNConfig(**agent),
                replay=ReplayConfig(**tree["replay"]),
                acting=ActingConfig(**tree["acting"]),
                evaluation=EvaluationConfig(**tree["evaluation"]),
                limits=LimitConfig(**tree["limits"]),
                device=tree["device"],
            )
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise InvalidConfig(
                what=f"run configuration {path}", expected="the file a run writes", got=str(problem)
            ) from problem


def preset(env_id: str, **environment: Any) -> TrainConfig:
    """The defaults for `env_id`: CartPole-v1, Atari (`ALE/...`), or any other vector observation."""
    if env_id.startswith("ALE/"):
        return TrainConfig(
            environment=EnvironmentConfig(env_id, **{"num_envs_per_actor": 4, **environment}),
            agent=DQNConfig(
                network=NetworkConfig("conv", 512),
                optimizer=OptimizerConfig(1e-4, 5e-5, 1_000_000, 1.5e-4),
                n_step=3,
                batch_size=32,
                target_rate=0.0005,
            ),
            replay=ReplayConfig(capacity=200_000, min_size=5_000, samples_per_insert=8.0),
            acting=ActingConfig(epsilon_end=0.02, epsilon_steps=100_000, publish_period=100),
            evaluation=EvaluationConfig(
                period_updates=2_500,
                num_episodes=4,
                num_confirm_episodes=8,
                num_final_episodes=4,
            ),
            limits=LimitConfig(max_steps=10_000_000, max_minutes=24 * 60.0, checkpoint_period_s=120.0),
        )
    if env_id == "CartPole-v1":
        # 500 is the most there is: none of the hundred confirming episodes may fall before its last tenth.
        return TrainConfig(
            environment=EnvironmentConfig(env_id, **environment),
            # The cart drifts off slowly: at 0.99 the fall lies too far ahead to be seen in time.
            agent=DQNConfig(gamma=0.995),
            evaluation=EvaluationConfig(stop_return=499.5),
            limits=LimitConfig(max_minutes=5.0),
        )
    return TrainConfig(environment=EnvironmentConfig(env_id, **environment))
