"""`python -m benchmarks.gpu.training --out FOLDER --device cuda`: DQN and SAC trained on a card, to their marks.

The trainer is relive's own (relive.train), in one process (topology inline), with hand-written updates. The marks are
those of benchmarks/training/whole_runs.py: a mean return of 475 on CartPole-v1 and of -200 on Pendulum-v1, over twenty
episodes of the kept policy, on seeds that nothing else uses. The networks are small, so a card is no faster here than a
processor: the runs show that learning on a card is right.

`--device cpu` makes a few hundred steps only: too short for the mark.

Writes FOLDER/training.json, and the directory of each run to FOLDER/training. Exit status: 0 if every run reached its
mark, or was too short for it; 1 if a run missed its mark or failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.stand_ins import stand_in
from benchmarks.training.whole_runs import PARITY

REPLAY = ("sample", "gather", "priorities")  # the parts of the learner's profile that read the table
REPLAY_PATH = "host gather, then copy"
SHORT_STEPS = 600
Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """A run on the card.

    Attributes:
        agent: Name of the agent.
        case: Case of benchmarks/training/whole_runs.py, which has the mark.
        env_id: Gymnasium id.
        stop_return: Return that ends the run. It is above the mark, so that other seeds reach the mark too.
        max_steps: Environment steps at most.
        settings: Options besides those of every run.
    """

    agent: str
    case: str
    env_id: str
    stop_return: float
    max_steps: int
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def mark(self) -> float:
        return PARITY[self.case].threshold


RUNS = (
    Run("dqn", "dqn-cartpole", "CartPole-v1", 495.0, 120_000, {"evaluation.num_confirm_episodes": 40}),
    Run(
        "sac",
        "sac-pendulum",
        "Pendulum-v1",
        -165.0,
        15_000,
        {"agent.gamma": 0.98, "agent.hidden": (64, 64), "evaluation.num_confirm_episodes": 40},
    ),
)


def settings_of(run: Run, device: str, seed: int, minutes: float) -> dict[str, Any]:
    """The options of a run. Without a card it is short."""
    settings = {
        "device": device,
        "topology": "inline",
        "update": "handwritten",
        "profile": True,
        "environment.seed": seed,
        "evaluation.stop_return": run.stop_return,
        "limits.max_steps": run.max_steps,
        "limits.max_minutes": minutes,
        **run.settings,
    }
    if device == "cpu":
        few = {"evaluation.num_episodes": 2, "evaluation.num_confirm_episodes": 2, "evaluation.num_final_episodes": 2}
        settings |= {**few, "replay.min_size": 200, "limits.max_steps": SHORT_STEPS, "evaluation.stop_return": None}
    return settings


def measure(run: Run, device: str, seed: int, folder: Path, minutes: float) -> Row:
    """Trains once. Returns the figures of the run."""
    from relive.train import load_profile, preset, train

    shutil.rmtree(folder, ignore_errors=True)
    began_s = time.monotonic()
    result = train(preset(run.agent, run.env_id, settings_of(run, device, seed, minutes)), folder)
    wall_s = time.monotonic() - began_s
    learner = load_profile(folder).learner
    reached = result.mean_return >= run.mark
    row: Row = {"agent": run.agent, "env_id": run.env_id, "device": device, "seed": seed, "ending": result.ending}
    row |= {"wall_s": round(wall_s, 1), "num_steps": result.num_steps, "num_updates": result.num_updates}
    row |= {"updates_per_s": round(result.num_updates / wall_s, 1), "mean_return": result.mean_return}
    row |= {"num_episodes": len(result.returns), "mark": run.mark, "reached": reached, "too_short": device == "cpu"}
    row |= {"replay": REPLAY_PATH, "replay_share": round(learner.share(*REPLAY), 4)}
    return row | {"shares": {part: round(learner.share(part), 4) for part in learner.seconds if learner.seconds[part]}}


def line_of(row: Row) -> str:
    """A run in a line."""
    mark = "reached" if row["reached"] else "not reached"
    verdict = "too short for the mark" if row["too_short"] else f"mark {row['mark']:g} {mark}"
    return (
        f"{row['agent']} on {row['env_id']}, {row['device']}: {row['wall_s']} s, {row['num_steps']:,} steps,"
        f" {row['num_updates']:,} updates ({row['updates_per_s']:,} a second); return {row['mean_return']:.1f} over"
        f" {row['num_episodes']} episodes: {verdict}; replay: {row['replay']}, {row['replay_share']:.1%} of the"
        " learner's time (the copy to the device counts as update)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of training.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--agents", default=",".join(run.agent for run in RUNS), help="names, by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=2.0, help="of a run at most")
    parser.add_argument("--full", action="store_true", help="whole runs on the CPU, too")
    arguments = parser.parse_args()
    missing = stand_in()
    if missing:
        print(f"note: no {' and no '.join(missing)} here: the runs draw no pictures and write no logs of that package")
    import torch

    card = torch.cuda.get_device_name() if arguments.device == "cuda" else "none"
    rows, failed = [], []
    for run in (run for run in RUNS if run.agent in arguments.agents.split(",")):
        folder = arguments.out / "training" / run.agent
        try:
            row = measure(run, arguments.device, arguments.seed, folder, arguments.minutes)
        except Exception:
            traceback.print_exc()
            failed.append(run.agent)
            continue
        rows.append(row)
        print(line_of(row), flush=True)
    result = {"part": "training", "card": card, "versions": {"torch": torch.__version__}, "rows": rows}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "training.json").write_text(json.dumps({**result, "failed": failed}, indent=1) + "\n")
    missed = [row["agent"] for row in rows if not row["reached"] and not row["too_short"]]
    if failed or missed:
        print(f"failed: {', '.join(failed) or 'none'}; mark missed: {', '.join(missed) or 'none'}")
        return 1
    print(f"{len(rows)} runs, card: {card}" + ("; too short for the mark" if arguments.device == "cpu" else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
