"""`python -m benchmarks.training.relive_run CASE SEED STEPS TOPOLOGY [NAME=VALUE ...]`: a whole run; JSON of it.

The curve is that of the evaluations inside the run, [steps, seconds of training, mean return]; the final returns are
those of the agent as it is after its last update. Seconds are counted from the start of `train`, processes included,
without those that evaluations take.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.training.cases import CASES, Side
from benchmarks.training.playing import final_seeds, play
from benchmarks.training.relive_side import settings_of
from benchmarks.training.whole_runs import PARITY, WholeRun
from relive.train import Callback, CurvePoint, load_policy, preset, train
from relive.train.settings import parse_assignments


class Clock(Callback):
    """The curve of a run, and its seconds without evaluations: from one question whether to stop to the next."""

    def __init__(self, num_updates: int) -> None:
        self._num_updates = num_updates
        self._began_s = self._asked_s = time.monotonic()
        self._evaluated = False
        self._apart_s = 0.0
        self.curve: list[tuple[int, float, float]] = []
        self.reached = (0, 0)

    @property
    def seconds(self) -> float:
        """Seconds of training until the last call of `stop_when`."""
        return self._asked_s - self._began_s - self._apart_s

    def on_evaluation(self, point: CurvePoint) -> None:
        """See Callback."""
        self._evaluated = True
        self.curve.append((point.num_steps, self.seconds, point.evaluation_return))

    def stop_when(self, num_steps: int, num_updates: int) -> bool:
        """Asked before every batch."""
        now_s = time.monotonic()
        if self._evaluated:
            self._apart_s += now_s - self._asked_s
            self._evaluated = False
        self._asked_s, self.reached = now_s, (num_steps, num_updates)
        return num_updates >= self._num_updates


def settings_for(run: WholeRun, seed: int, topology: str, given: list[str]) -> dict[str, object]:
    """The options of the run: those of the case at equal work, then what is given."""
    side, case = Side("relive", "relive_side", 1, topology), CASES[run.case]
    explores = {"start": 1.0, "end": run.epsilon_end, "steps": run.epsilon_steps}
    return {
        **settings_of(case, seed, side),
        **({f"agent.epsilon_{name}": value for name, value in explores.items()} if case.agent == "dqn" else {}),
        "evaluation.period_updates": run.period_updates,
        "evaluation.num_episodes": run.curve_episodes,
        "evaluation.max_minutes": 10.0,
        "limits.max_minutes": 600.0,
        "limits.max_steps": 10**9,
        **parse_assignments(given),
    }


def main() -> None:
    seed, topology, given = int(sys.argv[2]), sys.argv[4], sys.argv[5:]
    run = replace(PARITY[sys.argv[1]], num_steps=int(sys.argv[3]))
    case = CASES[run.case]
    config, clock = preset(case.agent, case.env_id, settings_for(run, seed, topology, given)), Clock(run.num_updates)
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run", callbacks=[clock], stop_when=clock.stop_when)
        if clock.reached[1] < run.num_updates:
            sys.exit("stopped by a signal")
        seconds = clock.seconds
        policy = load_policy(Path(folder) / "run", which="last")
    final = play(case.env_id, final_seeds(seed, run.final_episodes), policy.act)
    num_steps, num_updates = clock.reached
    result = {"curve": clock.curve, "final": final, "seconds": seconds, "num_steps": num_steps}
    print(json.dumps({**result, "num_updates": num_updates, "topology": str(config.topology)}))


if __name__ == "__main__":
    main()
