"""Whole runs of the cases: how long, how many seeds, what counts as having learnt. Imports nothing of either side."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.training.cases import CASES


@dataclass(frozen=True)
class WholeRun:
    """One case at its equal-work settings, from its first step to its last.

    num_steps: environment steps of all environments. threshold: a mean return of an evaluation that counts as learnt.
    Evaluations along the way: num_points of curve_episodes each; the last one: final_episodes on seeds of their own.
    epsilon_steps: of epsilon-greedy sides, over which it falls from 1 to epsilon_end. variant, given: what relive's
    side has besides, and what that is called; SB3's side stays as it is.
    """

    case: str
    num_steps: int
    num_seeds: int
    threshold: float
    num_points: int = 20
    curve_episodes: int = 5
    final_episodes: int = 20
    epsilon_steps: int = 5_000
    epsilon_end: float = 0.05
    variant: str = ""
    given: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the case and the variant."""
        return f"{self.case}-{self.variant}" if self.variant else self.case

    def epsilon_at(self, num_steps: float) -> float:
        """After so many environment steps."""
        return 1.0 + min(1.0, num_steps / self.epsilon_steps) * (self.epsilon_end - 1.0)

    @property
    def num_updates(self) -> int:
        """Updates of the whole run."""
        case = CASES[self.case]
        return max(1, round((self.num_steps - case.learning_starts) * case.updates_per_step))

    @property
    def period_updates(self) -> int:
        """Updates between two evaluations."""
        return max(1, self.num_updates // self.num_points)

    def about(self) -> dict[str, Any]:
        """All that a side's result depends on, but the side, the seed and what relive's side has besides."""
        fields = asdict(self)
        del fields["variant"], fields["given"], fields["num_seeds"]
        return {**fields, "settings": CASES[self.case].as_dict()}


_BF16: dict[str, Any] = {"variant": "bf16", "given": ("agent.precision=bfloat16",)}
PARITY = {
    run.name: run
    for run in (
        WholeRun("dqn-cartpole", 50_000, 10, 475.0),
        WholeRun("ddpg-pendulum", 10_000, 10, -200.0),
        WholeRun("td3-pendulum", 10_000, 10, -200.0),
        WholeRun("sac-pendulum", 10_000, 10, -200.0),
        WholeRun("sac-hopper", 50_000, 10, 1_000.0),
        WholeRun("ddpg-pendulum", 10_000, 10, -200.0, **_BF16),
        WholeRun("td3-pendulum", 10_000, 20, -200.0, **_BF16),
        WholeRun("sac-pendulum", 10_000, 10, -200.0, **_BF16),
    )
}
