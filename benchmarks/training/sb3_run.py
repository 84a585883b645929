"""`python -m benchmarks.training.sb3_run CASE SEED STEPS`: a whole run of Stable-Baselines3, one thread; JSON of it.

As relive_run: the curve, the final returns of the agent after its last update, seconds of training without those of
evaluations. `at_first`: the returns of the agent before it has learnt anything, on the seeds of the final ones.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.training.cases import CASES
from benchmarks.training.playing import curve_seeds, final_seeds, play
from benchmarks.training.sb3_side import model_of
from benchmarks.training.whole_runs import PARITY


def main() -> None:
    seed = int(sys.argv[2])
    run = replace(PARITY[sys.argv[1]], num_steps=int(sys.argv[3]))
    case = CASES[run.case]
    torch.set_num_threads(1)
    model = model_of(case, seed)

    def act(observations: Any) -> Any:
        return model.predict(observations, deterministic=True)[0]

    class Evaluating(BaseCallback):
        """Plays every period of updates; ends the run after its last update."""

        def __init__(self) -> None:
            super().__init__()
            self.curve: list[tuple[int, float, float]] = []
            self.began_s, self.apart_s = time.monotonic(), 0.0
            self._next = max(1, run.period_updates // 10)

        @property
        def seconds(self) -> float:
            return time.monotonic() - self.began_s - self.apart_s

        def _on_step(self) -> bool:
            num_updates, seconds = self.model._n_updates, self.seconds
            if num_updates >= self._next:
                self._next = num_updates - num_updates % run.period_updates + run.period_updates
                began_s = time.monotonic()
                returns = play(case.env_id, curve_seeds(seed, len(self.curve), run.curve_episodes), act)
                self.curve.append((self.num_timesteps, seconds, sum(returns) / len(returns)))
                self.apart_s += time.monotonic() - began_s
            return num_updates < run.num_updates

    seeds = final_seeds(seed, run.final_episodes)
    at_first = play(case.env_id, seeds, act)
    watching = Evaluating()
    watching.began_s = time.monotonic()
    model.learn(total_timesteps=10**9, callback=watching, log_interval=None)
    seconds = watching.seconds
    result = {"curve": watching.curve, "final": play(case.env_id, seeds, act), "at_first": at_first}
    print(json.dumps({**result, "seconds": seconds, "num_steps": model.num_timesteps, "num_updates": model._n_updates}))


if __name__ == "__main__":
    main()
