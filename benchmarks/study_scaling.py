"""`python -m benchmarks.study_scaling`: how acting and learning scale over the cores there are, and the model beyond.

Acting alone: 1, 2, ... actor processes, up to one a core, write into one table. The limiter of the table never makes an
actor wait, and no process learns. The same is measured in an environment with more expensive steps (--acting-env;
LunarLander-v3 needs gymnasium[box2d]).

Learning alone: 1, 2, ... learners of one update, up to one a core, use batches of one filled table. No process acts.

The settings are measured alternately, in rounds, and a figure is a median. The prediction of the tuner's model, from a
calibration in the same rounds, is printed next to each figure. For more cores than the machine has, only the prediction
is printed.
Results: benchmarks/results/scaling.json and .md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.run import RESULTS, save
from benchmarks.tables import aligned, markdown_table
from relive import MinSize, SharedMemory, Table
from relive.train.acting.actor_pool import ActorPool
from relive.train.acting.environments import describe as spaces_of
from relive.train.config import TrainConfig, preset
from relive.train.learners.group import GroupOptions, LearnerGroup
from relive.train.learners.numerics import learner_numerics
from relive.train.memory.parameters import ParameterBoard, ParameterLayout
from relive.train.memory.scoreboard import Scoreboard
from relive.train.settings import changed
from relive.train.tuning.calibrate import Sizes, calibrate
from relive.train.tuning.throughput import Costs, Setting, Work, predict

MORE_CORES = (4, 8, 16, 32)
HEADINGS = ["what", "processes", "cores", "a second", "spread", "times one", "model", "model, times one"]
_START_S = 60.0
Found = dict[tuple[str, int], Any]  # of one round: a rate by (what, how many); the costs of each what by (what, 0)
_ACTS, _LEARNS = Work(1e-6, 10**6), Work(1e6, 10**6)  # next to nothing of the other side


def acting(config: TrainConfig, num_actors: int, seconds: float) -> float:
    """Environment steps a second of so many actor processes, once all of them act."""
    config = changed(config, {"topology": f"actors({num_actors})"})
    spaces = spaces_of(config.environment.env_id)
    agent = config.agent.make(spaces, seed=0, device="cpu")
    with ExitStack() as stack:
        lanes = 2 * num_actors * config.environment.num_envs_per_actor
        stack.enter_context(
            Table(
                agent.spec(), config.replay.capacity, agent.index(MinSize(1)),
                storage=SharedMemory(f"scaling-{os.getpid()}"), max_lanes=lanes,
            )
        )  # fmt: skip
        board = ParameterBoard(ParameterLayout.of(agent.parameters()))
        stack.callback(board.close)
        board.publish(agent.parameters())
        scoreboard = Scoreboard(num_actors)
        stack.callback(scoreboard.close)
        pool = ActorPool(config, agent.policy(), f"scaling-{os.getpid()}", board, scoreboard)
        stack.callback(pool.stop)
        pool.start()
        until_s = time.monotonic() + _START_S
        while min(scoreboard.steps_of(actor) for actor in range(num_actors)) < 100 and time.monotonic() < until_s:
            pool.watch()
            time.sleep(0.02)
        before, began_s = scoreboard.num_steps, time.monotonic()
        time.sleep(seconds)
        rate = (scoreboard.num_steps - before) / (time.monotonic() - began_s)
    return rate


def filled(config: TrainConfig, stack: ExitStack) -> Table:
    """A table with two batches of random rows for the agent, in this process."""
    spaces = spaces_of(config.environment.env_id)
    agent = config.agent.make(spaces, seed=0, device="cpu")
    table = stack.enter_context(Table(agent.spec(), 20_000, agent.index(MinSize(1)), seed=0))
    rng, space = np.random.default_rng(0), spaces.action
    space.seed(0)
    with table.writer() as writer:
        for step in range(2 * config.agent.batch_size):
            writer.append(
                observation=rng.normal(size=spaces.observation_shape).astype(np.float32), action=space.sample(),
                reward=np.float32(rng.normal()), terminated=step % 100 == 99, truncated=False,
            )  # fmt: skip
    return table


def learning(config: TrainConfig, num_learners: int, seconds: float) -> float:
    """Updates a second of so many learners of one update, once all of them learn."""
    spaces, whole = spaces_of(config.environment.env_id), config.agent
    mine = replace(whole, batch_size=whole.batch_size // num_learners)
    with learner_numerics(1), ExitStack() as stack:
        table = filled(config, stack)
        agent = mine.make(spaces, seed=0, device="cpu")
        update = agent.update
        if num_learners > 1:
            group = LearnerGroup(agent, whole, spaces, GroupOptions(num_learners, "cpu", 1))
            stack.callback(group.stop)
            update = group.update

        def learn() -> None:
            batch = table.sample(whole.batch_size, columns=tuple(agent.columns), timeout_s=10.0)
            priorities = update(batch)
            if priorities is not None:
                table.update_priorities(batch.item_keys, priorities)

        for _ in range(5):
            learn()
        number, began_s = 0, time.monotonic()
        while time.monotonic() - began_s < seconds:
            learn()
            number += 1
        return number / (time.monotonic() - began_s)


@dataclass(frozen=True)
class What:
    """A configuration that is measured with 1, 2, ... processes: acting alone, or learning alone."""

    name: str
    config: TrainConfig
    learns: bool = False

    def counts(self, cores: int) -> list[int]:
        """The numbers of processes to measure. A number of learners must divide the batch size."""
        found = sorted({number for number in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if number <= cores} | {cores})
        return [number for number in found if not self.learns or self.config.agent.batch_size % number == 0]

    def rate(self, number: int, seconds: float) -> float:
        """Environment steps or updates a second."""
        return (learning if self.learns else acting)(self.config, number, seconds)

    def costs(self, seconds: float) -> Costs:
        """The costs that the model needs, from a calibration."""
        batch, has_two = self.config.agent.batch_size, len(os.sched_getaffinity(0)) >= 2
        learners_too = self.learns and has_two and batch % 2 == 0
        sizes = Sizes((self.config.environment.num_envs_per_actor,), (batch,), learners_too)
        return calibrate(self.config, sizes, seconds)


def modelled(costs: Costs, what: What, number: int, cores: int) -> float:
    """The rate that the model predicts for acting alone, or for learning alone."""
    envs, batch = what.config.environment.num_envs_per_actor, what.config.agent.batch_size
    if not what.learns:
        return predict(costs, Setting(number, envs, batch), _ACTS, cores).steps_per_s
    return predict(costs, Setting(1, envs, batch, number), _LEARNS, cores).updates_per_s


def measured_rows(rounds: list[Found], ones: list[tuple[What, int]]) -> list[dict[str, Any]]:
    cores = len(os.sched_getaffinity(0))
    rows = []
    for what, number in ones:
        values = [one[what.name, number] for one in rounds]
        models = [modelled(one[what.name, 0], what, number, cores) for one in rounds]
        middle = float(np.median(values))
        row = {"what": what.name, "number": number, "cores": cores, "rate": middle, "model": float(np.median(models))}
        rows.append(row | {"spread": (max(values) - min(values)) / middle})
    return rows


def more_rows(rounds: list[Found], whats: list[What]) -> list[dict[str, Any]]:
    """The model alone: a process a core."""
    here, rows = len(os.sched_getaffinity(0)), []
    for cores in (number for number in MORE_CORES if number > here):
        for what in (one for one in whats if cores in one.counts(cores)):
            models = [modelled(one[what.name, 0], what, cores, cores) for one in rounds]
            rows.append({"what": what.name, "number": cores, "cores": cores, "model": float(np.median(models))})
    return rows


def lines_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    first = {row["what"]: row for row in reversed(rows)}
    lines = [HEADINGS]
    for row in rows:
        one = first[row["what"]]
        here = "rate" in row
        cells = [row["what"], str(row["number"]), str(row["cores"])]
        cells += (
            [f"{row['rate']:,.0f}", f"{row['spread']:.0%}", f"{row['rate'] / one['rate']:.2f}"]
            if here
            else ["not measured", "", ""]
        )
        lines.append([*cells, f"{row['model']:,.0f}", f"{row['model'] / one['model']:.2f}"])
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agent", default="dqn")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--acting-env", default="LunarLander-v3", help="another one for acting alone; empty: none")
    parser.add_argument("--batch", type=int, default=2_048, help="of all learners: they pay where slices are large")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    settings = {"agent.batch_size": arguments.batch}
    config = preset(arguments.agent, arguments.env, settings)
    whats = [What("acting", config), What("learning", config, learns=True)]
    if arguments.acting_env:
        whats.insert(
            1, What(f"acting in {arguments.acting_env}", preset(arguments.agent, arguments.acting_env, settings))
        )
    machine, cores = describe(), len(os.sched_getaffinity(0))
    ones = [(what, number) for what in whats for number in what.counts(cores)]
    rounds: list[Found] = []
    for turn in range(arguments.rounds):
        found: Found = {(what.name, 0): what.costs(3 * arguments.seconds) for what in whats}
        for what, number in ones[turn % len(ones) :] + ones[: turn % len(ones)]:
            found[what.name, number] = what.rate(number, arguments.seconds)
            print(f"  round {turn + 1}: {what.name}, {number}: {found[what.name, number]:,.0f} a second", flush=True)
        rounds.append(found)
    rows = measured_rows(rounds, ones) + more_rows(rounds, whats)
    lines = lines_of(rows)
    described = ", ".join(f"{name} {value}" for name, value in machine.items())
    head = (
        f"# scaling: {arguments.agent} on {arguments.env}, {config.environment.num_envs_per_actor} environments an"
        f" actor, batch {arguments.batch}\n\n{described}\n\nActing: environment steps; learning: updates.\n\n"
    )
    values = {"part": "scaling", "machine": machine, "rows": rows}
    save("scaling", arguments.out, values, head + markdown_table(lines, right_from=1))
    print(aligned(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
