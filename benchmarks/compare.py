"""Holds the present tree against a commit: `python -m benchmarks.compare COMMIT [--pairs 24] [--cases sample,update]`.

The programme builds both (benchmarks.builds) and measures them alternately within one run. The speed of a machine
changes from hour to hour by more than a usual change of the code, so only ratios of figures that were taken next to
each other can be compared. In a turn, each of three processes runs one round of calls, one process after the other: the
commit (base), the tree (new), and the commit a second time (null). new / base is the answer. null / base is the ratio
that the same code gives by chance.

Five measures make null / base tight (README.md has the figures):
  short rounds   many short rounds instead of few long ones, because other load comes and goes within tens of
                 milliseconds
  orders         every order of the three processes occurs equally often
  generations    the processes are started several times, because some processes are slower than their twin for their
                 whole life; the cause is the place of their memory
  median         the median over all pairs, which one such slow process cannot move
  even pace      a rented core runs at half its speed for seconds at a time while its sibling is busy. Every round
                 therefore has a fixed loop of plain Python before it and after it. If the loop's time changed within a
                 turn, that turn is repeated, whatever its result was
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks import builds, machine
from benchmarks.compare_worker import GROUPS, Scale
from benchmarks.run import ONE_THREAD, RESULTS, ROOT, TIME_LIMIT_S, save
from benchmarks.tables import aligned, markdown_table

ROLES = ("base", "new", "null")
ORDERS = tuple(itertools.permutations(ROLES))
LEAST_PAIRS = 24  # fewer are a glance, saved in benchmarks/results/quick
LEAST_SHARE = 4  # pairs of a generation
EVEN_PACE = 1.04  # slowest by quickest of a turn's paces: what an undisturbed core shows
MOST_TRIES = 4  # of a turn, before it counts as it is and is told
MOST = 1.03  # of new / base: what a rebuilt part may cost; told, never asserted


@dataclasses.dataclass(frozen=True)
class Case:
    """Something users do, measured in a table that it may share with other cases of its group."""

    group: str
    title: str
    pairs: int
    generations: int  # of processes, over which the pairs are spread


CASES = {
    "sample": Case("hopper", "sample 256, with keys and weights", 240, 12),
    "uniform": Case("uniform", "sample 256 of a uniform index", 240, 12),
    "update": Case("hopper", "update 256 priorities, keys just drawn", 240, 12),
    "append": Case("hopper", "append one step", 240, 12),
    "lanes": Case("lanes", "append one step of 256 lanes", 240, 12),
    "atari": Case("atari", "sample 256 Atari transitions, stacks of 4", 120, 12),
    "service": Case("service", "sample 256 over loopback", 120, 6),
    "tiers": Case("tiers", "read 32 rows of 700 kB, tiered", 48, 6),
}
Turn = dict[str, float]  # one figure for each role


class WorkerFailed(Exception):
    """A process of one build could not do what was asked; the message says which and why."""


class Worker:
    """A process of one build, asleep unless it is asked."""

    def __init__(self, role: str, build: builds.Build, group: str, scale: Scale) -> None:
        self.pace_us = 0.0  # of the last measurement's loop
        self._role = role
        options = json.dumps(dataclasses.asdict(scale))
        command = [str(build.python), "-m", "benchmarks.compare_worker", group, options, str(build.packages)]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C ends them through their standard input, servers and shared memory too
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def opened(self) -> dict[str, str]:
        """Waits until the worker has filled its tables. Returns the versions of its packages."""
        versions: dict[str, str] = self._answer()["versions"]
        return versions

    def measure(self, case: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(case + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.pace_us = float(answer["pace_us"])
        return float(answer["figure_us"])

    def _answer(self) -> dict[str, Any]:
        """The next line; a worker writes one for each that it reads, so nothing waits in the reader's buffer."""
        output = self._process.stdout
        assert output is not None
        if not select.select([output], [], [], TIME_LIMIT_S)[0]:
            self._process.kill()
            raise WorkerFailed(f"{self._role}: no answer within {TIME_LIMIT_S} s")
        line = output.readline()
        if not line:
            raise WorkerFailed(f"{self._role}: ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerFailed(f"{self._role}: {answer['error']}")
        return answer


@contextmanager
def open_workers(
    group: str, by_role: dict[str, builds.Build], scale: Scale, order: Sequence[str] = ROLES
) -> Iterator[tuple[dict[str, Worker], dict[str, dict[str, str]]]]:
    """One worker a role, opened and filled one after the other in this order, and what each runs with."""
    with ExitStack() as stack:
        workers, versions = {}, {}
        for role in order:
            workers[role] = stack.enter_context(Worker(role, by_role[role], group, scale))
            versions[role] = workers[role].opened()
        yield workers, versions


def take_turn(workers: dict[str, Worker], case: str, order: Sequence[str], uneven: Counter[str]) -> Turn:
    """One figure of each role at one pace; `uneven` counts the cases whose turn never came to one."""
    for _ in range(MOST_TRIES):
        turn = {role: workers[role].measure(case) for role in order}
        paces = [workers[role].pace_us for role in order]
        if max(paces) <= EVEN_PACE * min(paces):
            return turn
    uneven[case] += 1
    return turn


def take_turns(
    workers: dict[str, Worker], cases: Sequence[str], turns: range, uneven: Counter[str] | None = None
) -> dict[str, list[Turn]]:
    """One turn of each case before the ones that count, then those; the position of a turn says its order."""
    found: dict[str, list[Turn]] = {case: [] for case in cases}
    uneven = Counter() if uneven is None else uneven
    for position in [turns.start, *turns]:
        for case in cases:
            found[case].append(take_turn(workers, case, ORDERS[position % len(ORDERS)], uneven))
    return {case: taken[1:] for case, taken in found.items()}


def shares(pairs: int, generations: int) -> list[range]:
    """The turns of each generation, as even as they go; few pairs make few generations, as filling takes time."""
    generations = min(generations, max(pairs // LEAST_SHARE, 1))
    edges = [pairs * position // generations for position in range(generations + 1)]
    return [range(begin, end) for begin, end in itertools.pairwise(edges)]


def summarise(generations: Sequence[Sequence[Turn]]) -> dict[str, Any]:
    """Ratios over all turns of a case, new / base and null / base, and the medians of what each role took."""
    turns = [turn for generation in generations for turn in generation]
    summary: dict[str, Any] = {
        f"{role}_us": round(statistics.median(turn[role] for turn in turns), 3) for role in ("base", "new")
    }
    for role in ("new", "null"):
        ratios = sorted(turn[role] / turn["base"] for turn in turns)
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        spread = {"median": middle, "q1": low, "q3": high, "min": ratios[0], "max": ratios[-1]}
        summary[role] = {name: round(value, 4) for name, value in spread.items()}
        summary[role]["generation_medians"] = [
            round(statistics.median(turn[role] / turn["base"] for turn in generation), 4) for generation in generations
        ]
    return {**summary, "pairs": len(turns), "turns_us": [list(generation) for generation in generations]}


def compare(
    base: builds.Build, new: builds.Build, cases: Sequence[str], pairs: int | None = None, scale: Scale | None = None
) -> dict[str, Any]:
    """Every case, group after group, each with as many pairs as it wants or `pairs`; failures are told, not raised."""
    scale = scale or Scale()
    by_role = dict(zip(ROLES, (base, new, base), strict=True))
    values: dict[str, Any] = {
        "part": "compare",
        "machine": machine.describe(),
        "base": {"name": base.name, "commit": base.commit},
        "new": {"name": new.name, "commit": new.commit},
        "scale": dataclasses.asdict(scale),
        "cases": {},
        "versions": {},
        "failures": [],
    }
    for group in GROUPS:
        asked = [case for case in cases if CASES[case].group == group]
        if not asked:
            continue
        start = time.monotonic()
        num_pairs = pairs or CASES[asked[0]].pairs
        print(f"{', '.join(asked)}: {num_pairs} pairs", end=" ", flush=True)
        found: dict[str, list[list[Turn]]] = {case: [] for case in asked}
        uneven: Counter[str] = Counter()
        try:
            for generation, turns in enumerate(shares(num_pairs, CASES[asked[0]].generations)):
                order = ORDERS[generation % len(ORDERS)]  # the first process finds other memory and disk
                with open_workers(group, by_role, scale, order) as (workers, values["versions"]):
                    for case, taken in take_turns(workers, asked, turns, uneven).items():
                        found[case].append(taken)
        except WorkerFailed as failure:
            values["failures"].append(f"{', '.join(asked)}: {failure}")
            print(f"failed: {failure}", flush=True)
            continue
        done = {case: summarise(taken) | {"uneven": uneven[case]} for case, taken in found.items()}
        medians = ", ".join(f"{summary['new']['median']:.3f}" for summary in done.values())
        print(f"({time.monotonic() - start:.0f} s): {medians}", flush=True)
        values["cases"] |= done
    return values


def verdict(found: dict[str, Any]) -> str:
    """Whether the case keeps within MOST; of a run whose own noise is larger than that nothing can be said."""
    if abs(found["null"]["median"] - 1) > MOST - 1:
        return "too noisy"
    return "yes" if found["new"]["median"] <= MOST else "NO"


def grid(values: dict[str, Any]) -> list[list[str]]:
    lines = [
        ["case", "new / base", "quartiles", "null / base", "quartiles", "base us", "new us", "pairs", f"<= {MOST}"]
    ]
    for case, found in values["cases"].items():
        cells = [f"{case}: {CASES[case].title}"]
        for role in ("new", "null"):
            cells += [f"{found[role]['median']:.3f}", f"{found[role]['q1']:.3f} to {found[role]['q3']:.3f}"]
        lines.append(
            [*cells, f"{found['base_us']:,.1f}", f"{found['new_us']:,.1f}", str(found["pairs"]), verdict(found)]
        )
    return lines


def as_text(values: dict[str, Any]) -> str:
    """The table, or why there is none, and what failed."""
    table = aligned(grid(values)) if values["cases"] else "nothing measured\n"
    for case, found in values["cases"].items():
        if (uneven := found["uneven"]) > 0:
            table += f"note: {case}: the machine's pace changed within {uneven} turns, each tried {MOST_TRIES} times\n"
    return table + "".join(f"failed: {failure}\n" for failure in values["failures"])


def as_markdown(values: dict[str, Any]) -> str:
    described = ", ".join(f"{name} {value}" for name, value in values["machine"].items())
    base, new = (f"{values[role]['name']} ({values[role]['commit']})" for role in ("base", "new"))
    failed = "".join(f"\n- failed: {failure}" for failure in values["failures"])
    return f"# {new} against {base}\n\n{described}\n\n{markdown_table(grid(values))}{failed}\n".rstrip() + "\n"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Holds the present tree against a commit, in pairs.")
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--pairs", type=int, help="pairs a case, instead of each case's own number")
    parser.add_argument("--cases", default=",".join(CASES), help=f"some of {', '.join(CASES)}, separated by commas")
    arguments = parser.parse_args(given)
    cases = arguments.cases.split(",")
    unknown = sorted(set(cases) - set(CASES))
    if unknown:
        parser.error(f"unknown cases {unknown}; there are {', '.join(CASES)}")
    if arguments.pairs is not None and arguments.pairs < 1:
        parser.error(f"at least one pair is needed, not {arguments.pairs}")

    base, new = builds.of_commit(arguments.base), builds.of_tree()
    values = compare(base, new, cases, arguments.pairs)
    if values["machine"]["load_before"] > 0.7:
        print(f"note: load {values['machine']['load_before']} before the first case; the spread says what that did")
    is_whole = set(cases) == set(CASES) and (arguments.pairs or LEAST_PAIRS) >= LEAST_PAIRS
    folder = RESULTS if is_whole else RESULTS / "quick"
    save("compare", folder, values, as_markdown(values))
    print("\n" + as_text(values))
    print(f"saved in {folder.relative_to(ROOT)}: compare.json, compare.md")
    return 1 if values["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
