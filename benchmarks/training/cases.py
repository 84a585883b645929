"""The settings that both sides train, as plain values. Each side translates them. Imports nothing of either side."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Case:
    """Equal work: uniform, 1-step, no double or dueling; the same networks, batch, target rule, clipping, environments.

    Numbers are counted in environment steps of all environments together, but target_period, which is in updates.
    must: how many times Stable-Baselines3's speed at one thread, as shipped, relive has to reach; must_default: the
    same at the threads that it takes by itself.
    """

    name: str
    agent: str
    env_id: str
    batch_size: int
    updates_per_step: float
    learning_rate: float
    window_steps: int
    must: float
    must_default: float = 1.5
    hidden: tuple[int, ...] = (256, 256)
    gamma: float = 0.99
    target_rate: float = 0.005
    target_period: int = 1
    max_gradient_norm: float = 0.0
    num_envs: int = 4
    capacity: int = 50_000
    learning_starts: int = 1_000
    warm_updates: int = 100

    def scaled(self, scale: float) -> Case:
        """The same work over a window of another length."""
        return replace(self, window_steps=max(100, round(self.window_steps * scale)))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


CASES = {
    case.name: case
    for case in (
        Case(
            "dqn-cartpole", "dqn", "CartPole-v1", 64, 0.25, 1e-3, 12_000, 2.5,
            target_rate=1.0, target_period=500, max_gradient_norm=10.0,
        ),
        Case("ddpg-pendulum", "ddpg", "Pendulum-v1", 256, 1.0, 1e-3, 1_200, 2.0),
        Case("td3-pendulum", "td3", "Pendulum-v1", 256, 1.0, 1e-3, 1_200, 2.0),
        Case("sac-pendulum", "sac", "Pendulum-v1", 256, 1.0, 3e-4, 1_200, 2.0),
        Case("sac-hopper", "sac", "Hopper-v5", 256, 1.0, 3e-4, 1_200, 2.0),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """One row of a case: a programme of benchmarks/training, and what it is told.

    threads: torch's, of each process that learns; 0: as many as torch takes by itself.
    """

    name: str
    programme: str
    threads: int
    topology: str = ""
    settings: tuple[str, ...] = ()
    flushes: bool = False

    @property
    def is_relive(self) -> bool:
        """Whose row it is."""
        return self.programme == "relive_side"

    @property
    def num_learners(self) -> int:
        """Processes that learn."""
        return int(self.topology[len("learners(") :].partition(",")[0]) if "learners" in self.topology else 1


_BF16 = ("agent.precision=bfloat16",)
SHIPPED, DEFAULT = "sb3", "sb3, its threads"
SIDES = {
    side.name: side
    for side in (
        Side("relive, inline", "relive_side", 1, "inline"),
        Side("relive, actors(1)", "relive_side", 1, "actors(1)"),
        Side("relive, learners(2, sync)", "relive_side", 1, "learners(2, sync)"),
        Side("relive, learners(2, sync) alone", "relive_side", 1, "learners(2, sync)", ("acting.inline=true",)),
        Side("relive, actors(1), compiled", "relive_side", 1, "actors(1)", ("update=compiled",)),
        Side("relive, actors(1), bf16", "relive_side", 1, "actors(1)", _BF16),
        Side("relive, learners(2, sync), bf16", "relive_side", 1, "learners(2, sync)", _BF16),
        Side(SHIPPED, "sb3_side", 1),
        Side("sb3, denormals flushed", "sb3_side", 1, flushes=True),
        Side(DEFAULT, "sb3_side", 0),
    )
}


@dataclass
class Window:
    """The clock of one side: from the first update after the warm-up until window_steps later."""

    case: Case
    began_s: float
    first: tuple[float, float, float, int, int] | None = None
    last: tuple[float, float, float, int, int] | None = None
    first_update_s: float | None = None

    def tick(self, now: tuple[float, float, float, int, int]) -> bool:
        """now: wall, CPU of all processes, CPU of the updates, environment steps, updates. True when it is over."""
        wall_s, _, _, num_steps, num_updates = now
        if self.first_update_s is None and num_updates > 0:
            self.first_update_s = wall_s - self.began_s
        if self.first is None:
            if num_updates >= self.case.warm_updates:
                self.first = now
            return False
        self.last = now
        return num_steps - self.first[3] >= self.case.window_steps

    def result(self) -> dict[str, float]:
        """Microseconds a step and an update."""
        assert self.first is not None and self.last is not None and self.first_update_s is not None, "no window"
        wall_s, cpu_s, update_s, num_steps, num_updates = (b - a for a, b in zip(self.first, self.last, strict=True))
        return {
            "step_us": 1e6 * wall_s / num_steps,
            "step_cpu_us": 1e6 * cpu_s / num_steps,
            "update_cpu_us": 1e6 * update_s / num_updates,
            "updates_per_step": num_updates / num_steps,
            "num_steps": num_steps,
            "num_updates": num_updates,
            "first_update_s": self.first_update_s,
        }
