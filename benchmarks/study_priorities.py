"""`python -m benchmarks.study_priorities`: steps to a threshold with priorities, beside uniform draws.

The same DQN (double, dueling, n-step: the preset) in one process, with items drawn in proportion to |error| ** 0.6 and
with items drawn uniformly, ten seeds each; nothing else differs. A run ends when an evaluation of ten episodes reaches
the threshold, or at its last step, which then counts as the step at which it was reached: differences are understated
where runs do not get there. Every finished run stays in benchmarks/results/priorities; the same command goes on.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.run import save
from benchmarks.studies.command import Study, main
from benchmarks.studies.runner import Job, finished, python
from benchmarks.studies.statistics import interval, median_with_none
from benchmarks.tables import aligned, markdown_table

EXPONENTS = {"prioritized": 0.6, "uniform": 0.0}
HEADINGS = [
    "environment", "threshold", "draws", "seeds", "reached", "median steps", "mean steps", "prioritized - uniform",
    "90% interval",
]  # fmt: skip


@dataclass(frozen=True)
class World:
    """An environment, what counts as learnt there, and the steps after which a run gives up."""

    env_id: str
    threshold: float
    num_steps: int
    num_seeds: int = 10
    num_episodes: int = 10
    period_updates: int = 250


WORLDS = {world.env_id: world for world in (World("CartPole-v1", 475.0, 100_000), World("Acrobot-v1", -100.0, 60_000))}


def run(world: World, draws: str, seed: int) -> dict[str, Any]:
    """One run, in this process: the curve [steps, updates, return], and the steps of the first that reached it."""
    from relive.train import Callback, CurvePoint, preset, train

    class Reaching(Callback):
        def __init__(self) -> None:
            self.curve: list[tuple[int, int, float]] = []

        def on_evaluation(self, point: CurvePoint) -> bool:
            self.curve.append((point.num_steps, point.num_updates, point.evaluation_return))
            return point.evaluation_return >= world.threshold

    options: dict[str, object] = {
        "agent.priority_exponent": EXPONENTS[draws],
        "topology": "inline",
        "acting.num_actors": 1,
        "environment.seed": seed,
        "evaluation.period_updates": world.period_updates,
        "evaluation.num_episodes": world.num_episodes,
        "evaluation.stop_return": None,
        "limits.max_minutes": 600.0,
        "limits.max_steps": 10**9,
    }
    watching, last = Reaching(), [0]

    def stop_when(num_steps: int, num_updates: int) -> bool:
        last[0] = num_steps
        return num_steps >= world.num_steps

    with tempfile.TemporaryDirectory() as folder:
        config = preset("dqn", world.env_id, options)
        train(config, Path(folder) / "run", callbacks=[watching], stop_when=stop_when)
    reached = next((steps for steps, _, value in watching.curve if value >= world.threshold), None)
    if reached is None and last[0] < world.num_steps:
        sys.exit("stopped by a signal")
    return {"curve": watching.curve, "reached_at": reached}


def jobs_of(worlds: Sequence[World]) -> list[Job]:
    """Seed by seed and world by world, the two ways of drawing in turn."""
    jobs = []
    for seed in range(max(world.num_seeds for world in worlds)):
        for number, world in enumerate(world for world in worlds if seed < world.num_seeds):
            order = list(EXPONENTS) if (seed + number) % 2 == 0 else list(EXPONENTS)[::-1]
            jobs += [job_of(world, draws, seed) for draws in order]
    return jobs


def job_of(world: World, draws: str, seed: int) -> Job:
    words = json.dumps([asdict(world), draws, seed])
    about = {**asdict(world), "draws": draws, "exponent": EXPONENTS[draws], "seed": seed}
    return Job(f"{world.env_id}-{draws}-{seed}", (python(), "-m", "benchmarks.study_priorities", "--one", words), about)


def rows_of(world: World, folder: Path) -> list[dict[str, Any]]:
    """Both ways of drawing, over the seeds that both have finished."""
    found = {draws: {} for draws in EXPONENTS}  # type: dict[str, dict[int, dict[str, Any]]]
    for draws in EXPONENTS:
        for seed in range(world.num_seeds):
            result = finished(job_of(world, draws, seed), folder)
            if result is not None:
                found[draws][seed] = result
    seeds = sorted(set.intersection(*(set(ones) for ones in found.values())))
    if not seeds:
        return []
    steps = {draws: [found[draws][seed]["reached_at"] for seed in seeds] for draws in EXPONENTS}
    counted = {draws: [one if one is not None else world.num_steps for one in steps[draws]] for draws in EXPONENTS}
    between = interval(counted["prioritized"], counted["uniform"])
    return [
        {
            "env_id": world.env_id, "threshold": world.threshold, "draws": draws, "seeds": len(seeds),
            "reached": sum(one is not None for one in steps[draws]), "steps": steps[draws],
            "median": median_with_none(steps[draws]), "mean": float(np.mean(counted[draws])),
            **({"interval": asdict(between)} if draws == "prioritized" else {}),
        }
        for draws in EXPONENTS
    ]  # fmt: skip


def lines_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [HEADINGS]
    for row in rows:
        between = row.get("interval")
        median = "never" if row["median"] is None else f"{row['median']:,.0f}"
        cells = [row["env_id"], f"{row['threshold']:g}", row["draws"], str(row["seeds"]), str(row["reached"])]
        cells += [median, f"{row['mean']:,.0f}"]
        cells += (
            [f"{between['difference']:+,.0f}", f"{between['low']:+,.0f} to {between['high']:+,.0f}"]
            if between
            else ["", ""]
        )
        lines.append(cells)
    return lines


def report(worlds: Sequence[World], out: Path) -> str:
    """Writes priorities.json and priorities.md; the table as text."""
    rows = [row for world in worlds for row in rows_of(world, out / "priorities")]
    if not rows:
        return "nothing is finished yet\n"
    machine, lines = describe(), lines_of(rows)
    described = ", ".join(f"{name} {value}" for name, value in machine.items())
    head = f"# priorities\n\n{described}\n\nEnvironment steps until an evaluation reached the threshold.\n\n"
    values = {"part": "priorities", "machine": machine, "rows": rows}
    save("priorities", out, values, head + markdown_table(lines, right_from=3))
    return aligned(lines)


def one(told: Any) -> dict[str, Any]:
    """The run that the command line of a job names."""
    world, draws, seed = told
    return run(World(**world), draws, seed)


if __name__ == "__main__":
    sys.exit(main(Study("priorities", __doc__ or "", WORLDS, one, jobs_of, report)))
