"""`python -m benchmarks.tune`: the tuner's predictions beside measurements, twelve settings of one run, in rounds.

Each round calibrates again and then runs every setting for some seconds. The order changes with each round. A
prediction is the median over the rounds' calibrations. A measurement is the median over the rounds, and its spread is
(highest - lowest) / median. `quiet` is the measurement without the time in which the slower side waited for a core that
other programmes used. It is given for settings that have a core for each process. The table has the errors of the
predictions against `quiet`, and against the plain measurement. The tuner's choice is its best prediction among the
twelve settings, compared with the best measured setting.
Results: benchmarks/results/tune.json and .md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.run import RESULTS, save
from benchmarks.tables import aligned, markdown_table
from benchmarks.training.cases import CASES, SIDES
from benchmarks.training.relive_side import settings_of
from relive.train.config import TrainConfig, preset
from relive.train.tuning.calibrate import Sizes, calibrate
from relive.train.tuning.throughput import Costs, Prediction, Setting, Work, predict, ranked
from relive.train.tuning.trial import run_trial
from relive.train.tuning.tuner import Tried

HEADINGS = ["setting", "limit", "predicted", "measured", "spread", "no core", "quiet", "error", "of quiet"]
MUST_ERROR, MUST_CHOICE = 0.15, 0.9


def settings(batch_size: int) -> list[Setting]:
    """Twelve: one process, one actor and two, two learners; 1, 4 and 16 environments."""
    found = [Setting(1, envs, batch_size, inline=True) for envs in (1, 4, 16)]
    found += [Setting(actors, envs, batch_size) for actors in (1, 2) for envs in (1, 4, 16)]
    found += [Setting(1, envs, batch_size, 2) for envs in (4, 16)]
    return [*found, Setting(1, 4, batch_size, 2, inline=True)]


def one_round(config: TrainConfig, ones: list[Setting], seconds: float, turn: int) -> dict[str, Any]:
    """A calibration and a trial of each setting; of each its prediction, and what was measured (None: nothing)."""
    costs = calibrate(config, Sizes((1, 4, 16), (config.agent.batch_size,), learners_too=True), 8 * seconds)
    work = Work(config.replay.updates_per_step, config.acting.publish_period)
    trials: dict[Setting, Tried | None] = {}
    for setting in ones[turn:] + ones[:turn]:
        trial = run_trial(config, setting, seconds)
        prediction = predict(costs, setting, work)
        trials[setting] = None if trial is None else Tried(prediction, trial)
        told = "nothing measured" if trial is None else f"measured {trial.steps_per_s:,.0f}"
        print(f"  {setting}: predicted {prediction.steps_per_s:,.0f}, {told}", flush=True)
    return {"costs": costs, "predictions": {one: predict(costs, one, work) for one in ones}, "trials": trials}


def rows_of(ones: list[Setting], rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over the rounds of each setting that was measured."""
    rows = []
    for setting in ones:
        predictions: list[Prediction] = [one["predictions"][setting] for one in rounds]
        tried: list[Tried] = [one["trials"][setting] for one in rounds if one["trials"][setting] is not None]
        if not tried:
            continue
        measured = [one.trial.steps_per_s for one in tried]
        predicted = float(np.median([one.steps_per_s for one in predictions]))
        quiet = float(np.median([one.quiet_steps_per_s for one in tried]))
        rows.append(
            {
                "setting": str(setting),
                "limit": predictions[-1].limit.value,
                "predicted": predicted,
                "measured": float(np.median(measured)),
                "spread": (max(measured) - min(measured)) / float(np.median(measured)),
                "waited": float(np.median([one.waited for one in tried])),
                "fits": tried[0].fits,
                "quiet": quiet,
                "error": predicted / float(np.median(measured)) - 1.0,
                "quiet_error": predicted / quiet - 1.0,
                "rounds": [asdict(one.trial) for one in tried],
            }
        )
    return rows


def verdict(rows: list[dict[str, Any]], chosen: str) -> dict[str, Any]:
    """Median errors, the median spread, and what the choice reached of the best."""
    best = max(rows, key=lambda row: row["measured"])
    mine = next((row for row in rows if row["setting"] == chosen), None)
    return {
        "median_error": median_of(rows, lambda row: abs(row["error"])),
        "median_quiet_error": median_of([row for row in rows if row["fits"]], lambda row: abs(row["quiet_error"])),
        "median_spread": median_of(rows, lambda row: row["spread"]),
        "chosen": chosen,
        "best": best["setting"],
        "chosen_of_best": None if mine is None else mine["measured"] / best["measured"],
    }


def median_of(rows: list[dict[str, Any]], value: Callable[[dict[str, Any]], float]) -> float | None:
    return float(np.median([value(row) for row in rows])) if rows else None


def lines_of(rows: list[dict[str, Any]]) -> list[list[str]]:
    lines = [HEADINGS]
    for row in rows:
        rates = [f"{row[name]:,.0f}" for name in ("predicted", "measured")]
        quiet = [f"{row['quiet']:,.0f}" if row["fits"] else "", f"{row['error']:+.0%}"]
        shares = [f"{row['spread']:.0%}", f"{row['waited']:.0%}"]
        last = f"{row['quiet_error']:+.0%}" if row["fits"] else ""
        lines.append([row["setting"], row["limit"], *rates, *shares, *quiet, last])
    return lines


def told(found: dict[str, Any]) -> str:
    """The verdict as lines."""
    error, spread = found["median_error"], found["median_spread"]
    reached = error <= max(MUST_ERROR, spread)
    share = found["chosen_of_best"]
    lines = [
        f"Median error {error:.0%} (quiet: {found['median_quiet_error']:.0%}), median spread {spread:.0%}; at most 15%"
        f" or the spread: {'reached' if reached else 'not reached'}.",
        f"Chosen by prediction: {found['chosen']}; best measured: {found['best']}.",
        "The choice was not measured."
        if share is None
        else f"The choice reaches {share:.0%} of the best; 90% at least:"
        f" {'reached' if share >= MUST_CHOICE else 'not reached'}.",
    ]
    return "\n".join(lines)


def costs_of(rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[Costs] = [one["costs"] for one in rounds]
    return [asdict(one) for one in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", default="dqn-cartpole", choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each trial's windows")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    case = CASES[arguments.case]
    config = preset(case.agent, case.env_id, settings_of(case, 0, SIDES["relive, actors(1)"]))
    ones, machine = settings(case.batch_size), describe()
    work = Work(config.replay.updates_per_step, config.acting.publish_period)
    rounds: list[dict[str, Any]] = []
    for number in range(arguments.rounds):
        rounds.append(one_round(config, ones, arguments.seconds, (number * 5) % len(ones)))
        print(f"round {number + 1} of {arguments.rounds}", flush=True)
    rows = rows_of(ones, rounds)
    middle = sorted(rounds, key=lambda one: predict(one["costs"], ones[4], work).steps_per_s)[len(rounds) // 2]
    chosen = str(ranked(list(middle["predictions"].values()))[0].setting)
    found = verdict(rows, chosen)
    lines = lines_of(rows)
    values = {"part": "tune", "case": case.name, "machine": machine, "rows": rows, **found, "costs": costs_of(rounds)}
    described = ", ".join(f"{name} {value}" for name, value in machine.items())
    head = f"# tune: {case.name}, {arguments.rounds} rounds\n\n{described}\n\nEnvironment steps a second.\n\n"
    save("tune", arguments.out, values, head + markdown_table(lines, right_from=2) + "\n" + told(found) + "\n")
    print(aligned(lines))
    print(told(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
