"""What tests run in other processes: light to import."""

from __future__ import annotations

from relive.train.memory.scoreboard import Scoreboard


def count(scoreboard: Scoreboard, actor: int) -> None:
    """300 calls of 4 steps, an episode each, and one wait."""
    for number in range(300):
        scoreboard.add_steps(actor, 4, number)
        scoreboard.add_episode(actor, float(number), 1)
    scoreboard.add_wait(actor, 0.5)
