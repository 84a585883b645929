"""Every kind of item over one shared table, four processes for some time: `python tests/processes/programme.py`.

Two processes write steps in lanes and make explicit items of them, one completes late columns in random order, one
draws from all indexes, verifies every row, sets priorities and deletes. The table is small, so that eviction never
stops. --kills: the number of times that a process, chosen at random, is killed and restarted. The programme ends with
status 1 if a row was wrong, an invariant is broken or the table's counters differ from the counts of the processes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing import connection
from pathlib import Path
from typing import Any, final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as the tests import their helpers

import relive
from processes.kinds import CALL_S, complete, read, write
from processes.numbered import WIDTH, make_table, words
from processes.shm import shared_files
from processes.tools import Child, children

CAPACITY, MAX_ITEMS = 600, 150
START_S = 60.0
WRITERS, COMPLETER, READER = ("writer 1", "writer 2"), "completer", "reader"
ROLES = (*WRITERS, COMPLETER, READER)
FAULTS = ("torn", "deleted_drawn", "evicted_drawn")


@final
class Programme:
    """One run: processes by their role, what they counted, and the way of keys from writers to the completer."""

    def __init__(self, table: relive.Table, name: str, start: Callable[..., Child], seed: int, has_kills: bool) -> None:
        self._table = table
        self._name = name
        self._start = start
        self._random = np.random.default_rng(seed)
        self._has_kills = has_kills
        self._started = 0
        self._children: dict[str, Child] = {}
        self.counts: Counter[str] = Counter()
        for role in ROLES:
            self._launch(role)
        for child in self._children.values():
            assert child.answer(START_S) == "ready"
        for child in self._children.values():
            child.tell("go")

    def _launch(self, role: str) -> None:
        self._started += 1
        seed = int(self._random.integers(2**31))
        if role == COMPLETER:
            child = self._start("spawn", complete, self._name, seed)
        elif role == READER:
            child = self._start("spawn", read, self._name, seed, self._has_kills)
        else:
            child = self._start("spawn", write, self._name, self._started)
        self._children[role] = child

    def run(self, seconds: float, kills: int) -> None:
        """Carries keys from the writers to the completer, and kills at even intervals."""
        begin = time.monotonic()
        for kill in range(kills):
            self._carry(begin + seconds * (kill + 1) / (kills + 1))
            self._kill(str(self._random.choice(ROLES)))
        self._carry(begin + seconds)
        patience = time.monotonic() + START_S
        while idle_in(self._table.stats()) and time.monotonic() < patience:  # on a machine that others want, too
            self._carry(time.monotonic() + 0.5)

    def _kill(self, role: str) -> None:
        child = self._children[role]
        child.kill()
        child.pipe.close()
        self._table.check()
        self._launch(role)

    def _carry(self, until: float) -> None:
        """Passes messages until that time. A restarted process begins when it is ready."""
        roles = {child.pipe: role for role, child in self._children.items()}
        while (left := until - time.monotonic()) > 0:
            for pipe in connection.wait(list(roles), min(left, 0.2)):
                self._hear(roles[pipe])  # type: ignore[index]

    def _hear(self, role: str) -> None:
        told = self._children[role].answer()
        if isinstance(told, str):
            self._children[role].tell("go")
        elif isinstance(told, dict):
            raise AssertionError(f"the {role} ended by itself: {told}")
        else:
            self._forward(told)

    def _forward(self, told: Any) -> None:
        self._children[COMPLETER].tell(told)

    def end(self) -> None:
        """The writers end their episodes, the completer what it was told; the reader reads until then."""
        for roles in (WRITERS, (COMPLETER, READER)):
            for role in roles:
                self._children[role].tell("stop")
            for role in roles:
                self.counts.update(self._last_words(role))
        for child in self._children.values():
            child.join()

    def _last_words(self, role: str) -> dict[str, int]:
        while not isinstance(told := self._children[role].answer(), dict):
            if not isinstance(told, str):
                self._forward(told)
        return told


def fill(table: relive.Table) -> dict[str, int]:
    """New steps in the place of all that were there, each an episode, none complete: what waited has gone by then."""
    count = 2 * table.capacity
    with table.writer() as writer:
        for step in range(count):
            number = np.int64(step << 16)
            states = {"observation": words(number, WIDTH), "next_observation": words(number + 1, WIDTH)}
            writer.append(number=number, truncated=True, timeout_s=CALL_S, **states)
    return {"steps": count, "items": 3 * (count - len(table))}


def idle_in(stats: relive.TableStats) -> list[str]:
    """The events that have not happened. Without them the programme shows nothing."""
    busy = {"evicted steps": stats.evicted, "incomplete items": stats.incomplete_items, "deletions": stats.deleted}
    busy |= {f"draws from {name}": index.sampled for name, index in stats.indexes.items()}
    return [f"no {what}" for what, count in busy.items() if not count]


def faults_in(counts: Counter[str], stats: relive.TableStats, has_kills: bool) -> list[str]:
    """The faults, in sentences. The counts of a killed process are lost: then only the table's own numbers add up."""
    wrong = [f"{fault}: {counts[fault]}" for fault in FAULTS if counts[fault]]
    # A lane that is cut gives up its last step, whose next state never came: neither live nor evicted.
    given_up = stats.appended - stats.num_steps - stats.evicted
    if not 0 <= given_up <= stats.cut_lanes * has_kills:
        wrong.append(f"steps appended = live + evicted: {stats.appended}, {stats.num_steps} + {stats.evicted}")
    told = {
        "open lanes": (stats.num_lanes, 0),
        "handles": (stats.num_participants, 1),
        "draws in flight": (sum(index.in_flight for index in stats.indexes.values()), 0),
    }
    if not has_kills:
        told |= _counted(counts, stats)
        # An item that is deleted before it is published is none of these: a step may be one of each other index.
        missing = counts["items"] - _items_told(stats)
        if not 0 <= missing <= 2 * stats.deleted:
            wrong.append(f"items published, incomplete or skipped: {_items_told(stats)}, expected {counts['items']}")
    wrong += [f"{what}: {one}, expected {other}" for what, (one, other) in told.items() if one != other]
    return wrong + idle_in(stats)


def _counted(counts: Counter[str], stats: relive.TableStats) -> dict[str, tuple[int, int]]:
    """The table's counters, and what the processes counted."""
    return {
        "steps appended": (stats.appended, counts["steps"]),
        "steps completed": (stats.completed, counts["applied"]),
        "steps completed or gone by then": (counts["applied"] + counts["stale"], counts["told"] - counts["left"]),
        "completions of steps that were gone": (stats.completions_stale, counts["stale"] + counts["again"]),
        "steps and pieces deleted": (stats.deleted, counts["deleted"]),
        "updates": (stats.updates_applied + stats.updates_stale, counts["updates"]),
        "dead": (stats.swept, 0),
        **{f"drawn of {name}": (index.sampled, counts[name]) for name, index in stats.indexes.items()},
    }


def _items_told(stats: relive.TableStats) -> int:
    return sum(one.inserted for one in stats.indexes.values()) + stats.incomplete_items + stats.skipped_items


def run(name: str, seconds: float, kills: int, seed: int) -> tuple[Counter[str], relive.TableStats, list[str]]:
    """Runs it and says what was counted, the table's counters, and what is wrong."""
    with make_table(name, CAPACITY, MAX_ITEMS, seed) as table, children() as start:
        programme = Programme(table, name, start, seed, kills > 0)
        programme.run(seconds, kills)
        programme.end()
        table.check()
        programme.counts.update(fill(table))
        table.check()
        stats = table.stats()
    wrong = faults_in(programme.counts, stats, kills > 0)
    return programme.counts, stats, wrong + [f"left behind: {path}" for path in shared_files(name)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Every kind of item over one shared table, in four processes.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kills", type=int, default=0, help="processes that are killed and started anew")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts, stats, wrong = run(f"p{os.getpid()}", arguments.seconds, arguments.kills, arguments.seed)
    print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    shown = (
        "appended",
        "evicted",
        "deleted",
        "completed",
        "completions_stale",
        "incomplete_items",
        "swept",
        "recoveries",
    )
    print(", ".join(f"{name} {getattr(stats, name):,}" for name in shown))
    for sentence in wrong:
        print(f"WRONG {sentence}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
