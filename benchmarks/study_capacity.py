"""`python -m benchmarks.study_capacity`: whether the size of a buffer matters, and on what that depends.

DQN on CartPole and SAC on Pendulum, with the networks of `relive train`, uniform draws, and one process. Three settings
vary:

    capacity   steps in the table
    ratio      updates for each step of the environment
    oldest     updates since a step was made, after which it is no longer drawn (Index(max_staleness=)); None: no limit

The oldest step that is drawn is min(capacity * ratio, oldest) updates old, once the table is full. The score of a run
is the mean of all its greedy evaluations: it is high if the run learns soon, and keeps what it learnt. Source of the
question: Fedus et al. 2020 (Revisiting Fundamentals of Experience Replay).

Every finished run stays in benchmarks/results/capacity; the same command goes on.
Results: benchmarks/results/capacity.json, .md and .png.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import describe
from benchmarks.run import save
from benchmarks.studies.command import Study, main
from benchmarks.studies.runner import Job, finished, python
from benchmarks.studies.statistics import interval
from benchmarks.tables import aligned, markdown_table

MIN_ITEMS = 200  # before the first update
HEADINGS = [
    "agent", "updates a step", "capacity", "oldest drawn", "seeds", "score", "90% interval", "best - this",
    "last quarter",
]  # fmt: skip


@dataclass(frozen=True)
class World:
    """An agent in an environment, and the settings that are tried.

    Attributes:
        num_steps: Environment steps of a run.
        period_steps: Steps between evaluations.
        grid: For each ratio, (capacity, oldest) in the order of the table.
        options: Options of the agent that differ from the preset of `relive train`.
    """

    agent: str
    env_id: str
    num_steps: int
    period_steps: int
    grid: tuple[tuple[float, tuple[tuple[int, int | None], ...]], ...]
    options: dict[str, Any] = field(default_factory=dict)
    num_seeds: int = 5
    num_episodes: int = 10

    def settings(self) -> list[Setting]:
        """All settings."""
        return [Setting(ratio, *pair) for ratio, pairs in self.grid for pair in pairs]


class Setting(NamedTuple):
    """One point of the grid. The names are those of the file's head."""

    ratio: float
    capacity: int
    oldest: int | None

    @property
    def age(self) -> float:
        """Age in updates of the oldest step that is drawn from a full table."""
        full = self.capacity * self.ratio
        return full if self.oldest is None else min(full, self.oldest)


def grid(ratios: Sequence[float], capacities: Sequence[int], ages: Sequence[int]) -> Any:
    """Each ratio with each capacity, and the largest capacity with each limit of the age."""
    pairs = [(capacity, None) for capacity in capacities] + [(capacities[-1], age) for age in ages]
    return tuple((ratio, tuple(pairs)) for ratio in ratios)


SMALL_SAC = {  # learns within 5,000 steps
    "agent.hidden": (64, 64),
    "agent.actor.learning_rate": 2e-3,
    "agent.critic.learning_rate": 2e-3,
    "agent.alpha_learning_rate": 2e-3,
    "agent.batch_size": 128,
    "agent.random_steps": 500,
    "agent.gamma": 0.97,
    "agent.target_rate": 0.02,
}
WORLDS = {
    "dqn": World("dqn", "CartPole-v1", 20_000, 500, grid((0.125, 0.5), (500, 2_000, 20_000), (250, 1_000))),
    "sac": World("sac", "Pendulum-v1", 5_000, 250, grid((0.5, 2.0), (500, 1_500, 5_000), (500, 2_000)), SMALL_SAC),
}


def run(world: World, setting: Setting, seed: int) -> dict[str, Any]:
    """One run, in this process: the curve [steps, return], the score, and the mean of the last quarter (`final`)."""
    from relive import MinSize, Table
    from relive.adapters.gymnasium import record
    from relive.train import preset
    from relive.train.acting.environments import describe as spaces_of
    from relive.train.acting.environments import make_environments
    from relive.train.evaluating.evaluate import Evaluator
    from relive.train.learners.numerics import learner_numerics

    config = preset(world.agent, world.env_id, {"agent.priority_exponent": 0.0, **world.options})
    spaces, number = spaces_of(world.env_id), config.environment.num_envs_per_actor
    agent = config.agent.make(spaces, seed=seed, device="cpu")
    index = replace(agent.index(MinSize(MIN_ITEMS)), max_staleness=setting.oldest)
    policy, noise = agent.policy(), np.random.default_rng([seed, 1])
    curve: list[tuple[int, float]] = []
    with (
        learner_numerics(1),
        Table(agent.spec(), setting.capacity, index, max_lanes=number, seed=seed) as table,
        closing(record(make_environments(world.env_id, number), table)) as envs,
        closing(Evaluator(world.env_id, policy, 1_000)) as evaluator,
    ):
        observations, _ = envs.reset(seed=1_000 * seed)
        step, owed, parameters = 0, 0.0, agent.parameters()
        while step < world.num_steps:
            observations, *_ = envs.step(policy.explore(parameters, observations, step, noise))
            step += number
            if table.num_items() >= MIN_ITEMS:
                owed += setting.ratio * number
            while owed >= 1.0 and table.num_items() >= MIN_ITEMS:
                owed -= 1.0
                agent.update(table.sample(config.agent.batch_size, agent.columns))
                table.set_policy_version(agent.num_updates)
            envs.writer.set_policy_version(agent.num_updates)
            parameters = agent.parameters()
            if step % world.period_steps < number:
                seeds = range(10_000, 10_000 + world.num_episodes)
                curve.append((step, float(evaluator.play(parameters, seeds).returns.mean())))
    score = float(np.mean([value for _, value in curve]))
    final = float(np.mean([value for at, value in curve if at > 0.75 * world.num_steps]))
    return {"curve": curve, "score": score, "final": final, "updates": agent.num_updates}


def jobs_of(worlds: Sequence[World]) -> list[Job]:
    """Seed by seed, so that a stop leaves all settings with equally many seeds."""
    return [
        job_of(world, setting, seed)
        for seed in range(max(world.num_seeds for world in worlds))
        for world in worlds
        if seed < world.num_seeds
        for setting in world.settings()
    ]


def job_of(world: World, setting: Setting, seed: int) -> Job:
    """The job of one run."""
    words = json.dumps([world.agent, world.num_steps, setting, seed])
    about = {name: value for name, value in asdict(world).items() if name not in ("grid", "num_seeds")}
    about |= {**setting._asdict(), "seed": seed}
    key = f"{world.agent}-{setting.ratio:g}-{setting.capacity}-{setting.oldest}-{seed}"
    return Job(key, (python(), "-m", "benchmarks.study_capacity", "--one", words), about)


def rows_of(world: World, folder: Path) -> list[dict[str, Any]]:
    """One row for each setting with a finished run. `behind`: the interval of the ratio's best score minus this one."""
    rows = []
    for setting in world.settings():
        found = [finished(job_of(world, setting, seed), folder) for seed in range(world.num_seeds)]
        ended = [one for one in found if one is not None]
        if ended:
            row = {"agent": world.agent, **setting._asdict(), "age": setting.age}
            row |= {"scores": [one["score"] for one in ended], "final": float(np.mean([one["final"] for one in ended]))}
            rows.append(row | {"score": float(np.mean(row["scores"]))})
    for row in rows:
        same = [one for one in rows if one["ratio"] == row["ratio"]]
        best = max(same, key=lambda one: one["score"])
        row["own"] = asdict(interval(row["scores"], [0.0]))
        row["behind"] = None if best is row else asdict(interval(best["scores"], row["scores"]))
    return rows


def lines_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The table as text."""
    lines = [HEADINGS]
    for row in rows:
        own, behind = row["own"], row["behind"]
        last = "best" if behind is None else f"{behind['low']:+.0f} to {behind['high']:+.0f}"
        cells = [row["agent"], f"{row['ratio']:g}", f"{row['capacity']:,}", f"{row['age']:,.0f}"]
        cells += [
            str(len(row["scores"])),
            f"{row['score']:.0f}",
            f"{own['low']:.0f} to {own['high']:.0f}",
            last,
            f"{row['final']:.0f}",
        ]
        lines.append(cells)
    return lines


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """The picture: a panel for each agent; score over capacity (lines), and with limits of the age (marks)."""
    from matplotlib.figure import Figure

    agents = list(dict.fromkeys(row["agent"] for row in rows))
    panels = Figure(figsize=(5.2 * len(agents), 3.8), layout="constrained").subplots(1, len(agents), squeeze=False)[0]
    for panel, agent in zip(panels, agents, strict=True):
        own = [row for row in rows if row["agent"] == agent]
        for number, ratio in enumerate(dict.fromkeys(row["ratio"] for row in own)):
            for limited, style in ((False, "o-"), (True, "x--")):
                points = sorted(
                    (row["age"], row["score"], row["own"])
                    for row in own
                    if row["ratio"] == ratio and (row["oldest"] is not None) is limited
                )
                label = f"{ratio:g} updates a step" + (", largest table, age limited" if limited else "")
                spread = [[mean - found["low"] for _, mean, found in points]]
                spread += [[found["high"] - mean for _, mean, found in points]]
                places, means = [point[0] for point in points], [point[1] for point in points]
                panel.errorbar(places, means, spread, fmt=style, color=f"C{number}", label=label, capsize=3)
        panel.set(title=agent, xlabel="oldest step drawn, in updates", ylabel="mean return of the run", xscale="log")
        panel.legend(fontsize=7)
    panels[0].figure.savefig(path, dpi=100, metadata={"Software": None})


def report(worlds: Sequence[World], out: Path) -> str:
    """Writes capacity.json, .md and .png; the table as text."""
    rows = [row for world in worlds for row in rows_of(world, out / "capacity")]
    if not rows:
        return "nothing is finished yet\n"
    machine, lines = describe(), lines_of(rows)
    described = ", ".join(f"{name} {value}" for name, value in machine.items())
    head = f"# capacity\n\n{described}\n\nScore: mean return of all evaluations of a run. The oldest step drawn is in "
    head += "updates.\n\n"
    values = {"part": "capacity", "machine": machine, "rows": rows}
    save("capacity", out, values, head + markdown_table(lines, right_from=1))
    draw(rows, out / "capacity.png")
    return aligned(lines)


def one(told: Any) -> dict[str, Any]:
    """The run that the command line of a job names."""
    agent, num_steps, setting, seed = told
    return run(replace(WORLDS[agent], num_steps=num_steps), Setting(*setting), seed)


if __name__ == "__main__":
    sys.exit(main(Study("capacity", __doc__ or "", WORLDS, one, jobs_of, report)))
