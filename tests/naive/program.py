"""Random programmes of appends, extends, ends and closings, done to a table and to its naive twin alike.

Numbers are chosen so that every sum and product is exact in float32 (rewards in quarters, gammas and discounts powers
of two): the comparison is exact, whatever order the table adds in.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import relive
from naive.twin import Cells, NaiveItems, NaiveReplay

# name -> (shape, dtype, kind); a name with "/" is nested; kind "late": a step column that comes later
Columns = dict[str, tuple[tuple[int, ...], str, str]]

SPECS: dict[str, Columns] = {
    "flat": {
        "observation": ((3,), "float32", "state"),
        "action": ((), "int64", "step"),
        "reward": ((), "float32", "step"),
    },
    "nested": {
        "observation/pos": ((2,), "float32", "state"),
        "observation/cam": ((40, 30), "uint8", "state"),
        "action": ((2,), "float32", "step"),
        "reward": ((), "float32", "step"),
        "core": ((2, 4), "float16", "start"),
        "memory": ((90,), "float32", "start"),
    },
    "frames": {
        "observation": ((9, 7), "uint8", "state"),
        "action": ((), "uint8", "step"),
        "flag": ((), "bool", "step"),
        "reward": ((), "float64", "step"),
        "note": ((5,), "int16", "step"),
    },
    "stateless": {
        "token": ((), "int32", "step"),
        "memory": ((3, 33), "float64", "start"),
        "logits": ((70,), "float32", "step"),
        "reward": ((), "float32", "step"),
    },
    "two_states": {
        "observation": ((1,), "float64", "state"),
        "allowed": ((70,), "uint8", "state"),
        "reward": ((), "float32", "step"),
        "action": ((3,), "int32", "step"),
    },
    "late": {
        "observation": ((3,), "float32", "state"),
        "action": ((), "int64", "step"),
        "reward": ((), "float32", "late"),
        "judge/verdict": ((3,), "int16", "late"),
        "judge/sure": ((), "bool", "late"),
    },
}

DISCOUNTS = (None, 1.0, 0.5, 0.0)


@dataclass(frozen=True)
class Op:
    """One call. Bits are read lane by lane; what would be illegal where it is applied is made legal."""

    kind: str  # append | extend | end | abandon | reopen | version | complete | reload
    writer: int = 0
    lanes: int = ~0
    terminations: int = 0
    truncations: int = 0
    gives_next: bool = True
    by_ids: bool = False
    full_size: bool = False
    num_rows: int = 1
    tail_rows: bool = False
    discount: int = 0
    scalar_end: bool = False


@dataclass(frozen=True)
class Programme:
    """A table's configuration and what is done to it."""

    columns: str
    indexes: tuple[NaiveItems, ...]
    writers: tuple[int | None, ...]  # lanes of each writer; None: one lane, no lane axis
    capacity: int
    ops: tuple[Op, ...]


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """{"a/b": x} -> {"a": {"b": x}}."""
    result: dict[str, Any] = {}
    for name, value in flat.items():
        *folders, leaf = name.split("/")
        place = result
        for folder in folders:
            place = place.setdefault(folder, {})
        place[leaf] = value
    return result


def make_spec(columns: Columns) -> relive.StepSpec:
    return relive.StepSpec(nested({n: _column(*column) for n, column in columns.items()}))


def _column(shape: tuple[int, ...], dtype: str, kind: str) -> relive.ArraySpec:
    return relive.ArraySpec(shape, dtype, late=True) if kind == "late" else relive.ArraySpec(shape, dtype, kind=kind)


def make_items(items: NaiveItems) -> relive.Transitions | relive.Sequences | relive.Episodes:
    window = items.window
    common: dict[str, Any] = {"gamma": items.gamma, "stack": dict(items.stack), "stack_pad": items.stack_pad}
    if window is None:
        return relive.Transitions(n_step=items.n_step, **common)
    common |= {"bootstrap": window.bootstrap, "pad": window.pad}
    if window.is_episode:
        layout: Any = "ragged" if window.is_ragged else "padded"
        return relive.Episodes(window.length, too_long=window.at_end, layout=layout, **common)
    return relive.Sequences(window.length, burn_in=window.burn_in, period=window.period, at_end=window.at_end, **common)


def make_index(items: NaiveItems, sampler: Any = None) -> relive.Index:
    return relive.Index(
        make_items(items),
        sampler or relive.Uniform(),
        relive.MinSize(1),
        where=items.where,
        max_staleness=items.max_staleness,
    )


class Driver:
    """Does one programme to a table and to its twin."""

    def __init__(
        self, columns: Columns, table: relive.Table, writers: tuple[int | None, ...], all_items: tuple[NaiveItems, ...]
    ) -> None:
        self.columns = columns
        self.all_items = all_items
        self.states = {n: (s, d) for n, (s, d, k) in columns.items() if k == "state"}
        self.late = [n for n, (_, _, k) in columns.items() if k == "late"]
        self.table = table
        starts = frozenset(n for n, (_, _, k) in columns.items() if k == "start")
        self.twin = NaiveReplay(self.states, starts, bool(self.late))
        self.sizes = list(writers)
        self.writers = [table.writer(num_lanes=size) for size in writers]
        self.lanes = [[self.twin.open_lane() for _ in range(size or 1)] for size in writers]
        self.counter = 0
        self.version = 0
        self.num_loads = 0
        self.storage = table.config.storage

    def apply(self, op: Op) -> None:
        getattr(self, f"_{op.kind}")(op)

    # values

    def _cell(self, name: str) -> np.ndarray:
        """A value no other row has (up to the width of the type)."""
        shape, dtype = self.columns[name][:2]
        self.counter += 1
        size = int(np.prod(shape, dtype=int))
        if name == "reward":
            return np.asarray((self.counter * 5 % 33 - 16) / 4, dtype)
        if dtype == "bool":
            return np.asarray(self.counter % 3 == 0)
        values = self.counter * 31 + np.arange(size) * (1 + self.counter % 5)
        values %= {"uint8": 251, "int16": 32749, "float16": 2039}.get(dtype, 1 << 20)
        return values.astype(dtype).reshape(shape)

    def _state(self) -> Cells:
        return {name: self._cell(name) for name in self.states}

    def _step(self) -> Cells:
        return {name: self._cell(name) for name in self.columns if name not in self.states}

    # which lanes a call names

    def _named(self, op: Op) -> list[int]:
        size = self.sizes[op.writer]
        if size is None:
            return [0]
        return [i for i in range(size) if op.lanes >> i & 1] or [op.lanes % size]

    def _lanes_argument(self, op: Op, named: list[int]) -> Any:
        size = self.sizes[op.writer]
        if size is None or (len(named) == size and not op.by_ids):
            return None
        if op.by_ids:
            return np.asarray(named, np.int64)
        return np.isin(np.arange(size), named)

    def _arranged(self, op: Op, named: list[int], rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """One dict of cells a named lane -> arrays [M, ...] or, with filler for the others, [L, ...]."""
        size = self.sizes[op.writer]
        if size is None:
            return dict(rows[0])
        result = {}
        for name in rows[0]:
            cells = [row[name] for row in rows]
            if op.full_size and self._lanes_argument(op, named) is not None:
                by_lane = dict(zip(named, cells, strict=True))
                cells = [by_lane.get(i, np.ones_like(cells[0])) for i in range(size)]
            result[name] = np.stack(cells)
        return result

    # operations

    def _version(self, op: Op) -> None:
        self.version += 1 + op.num_rows
        self.twin.version = self.version
        self.table.set_policy_version(self.version)

    def _reopen(self, op: Op) -> None:
        self.writers[op.writer].close()
        for lane in self.lanes[op.writer]:
            self.twin.close_lane(lane)
        self.writers[op.writer] = self.table.writer(num_lanes=self.sizes[op.writer])
        self.lanes[op.writer] = [self.twin.open_lane() for _ in self.lanes[op.writer]]

    def _reload(self, op: Op) -> None:
        """The table is saved with its writers open. The programme continues with the loaded table.

        A tiered table is loaded into memory, and the next time on to the disk again.
        """
        on_disk = isinstance(self.storage, relive.Tiered) and self.num_loads % 2 == 1
        self.table = loaded = saved_and_loaded(self.table, self.storage if on_disk else None)
        self.num_loads += 1
        for lanes in self.lanes:
            for lane in lanes:
                self.twin.close_lane(lane)
        self.writers = [loaded.writer(num_lanes=size) for size in self.sizes]
        self.lanes = [[self.twin.open_lane() for _ in lanes] for lanes in self.lanes]

    def _end(self, op: Op) -> None:
        """Ends the open episodes; where the last next state was given, as truncated only, and it must agree."""
        named = [i for i in self._named(op) if self.twin.open_episode(self.lanes[op.writer][i]) is not None]
        if not named:
            return
        ending = [self.lanes[op.writer][i] for i in named]
        episodes = [self.twin.open_episode(lane) for lane in ending]
        terminated = bool(op.terminations & 1) and bool(self.states)
        terminated &= all(not episode.has_seam and episode.steps[-1].discount == 1.0 for episode in episodes)
        may_omit = terminated or all(episode.has_seam for episode in episodes)
        nexts = [episode.states[-1] if episode.has_seam else self._state() for episode in episodes]
        arguments: dict[str, Any] = {"terminated": True} if terminated else {"truncated": True}
        omits = may_omit and not op.gives_next
        if not omits:
            arguments.update(nested({f"next_{n}": v for n, v in self._arranged(op, named, nexts).items()}))
        if self._lanes_argument(op, named) is not None:
            arguments["lanes"] = self._lanes_argument(op, named)
        self.writers[op.writer].end_episode(**arguments)
        for i, lane in enumerate(ending):
            self.twin.end_episode(lane, None if omits else nexts[i], terminated, not terminated)

    def _abandon(self, op: Op) -> None:
        """Open episodes of some lanes are given up; another lane goes on in each one's place."""
        named = self._named(op)
        lanes = self.lanes[op.writer]
        self.writers[op.writer].abandon(self._lanes_argument(op, named))
        for i in named:
            if self.twin.open_episode(lanes[i]) is not None:
                self.twin.abandon(lanes[i], self.all_items)
                lanes[i] = self.twin.open_lane()

    def _complete(self, op: Op) -> None:
        """Late columns of some steps that wait for them, of any lanes, in an order of their own."""
        waiting = self.twin.waiting()
        if not waiting:
            return
        bits = op.terminations | op.lanes
        chosen = [key for place, key in enumerate(waiting) if bits >> place % 24 & 1][:: -1 if op.by_ids else 1]
        chosen = chosen or waiting[-1:]
        cells = self.twin.complete(chosen)
        columns = {name: np.stack([cell[name] for cell in cells]) for name in self.late}
        keys = np.asarray(chosen, np.int64)
        if op.scalar_end and len(chosen) == 1:
            keys, columns = keys[0], {name: value[0] for name, value in columns.items()}
        elif op.full_size and len(chosen) % 2 == 0:
            keys = keys.reshape(2, -1)
            columns = {name: value.reshape(2, -1, *value.shape[1:]) for name, value in columns.items()}
        applied = self.table.complete(keys, **nested(columns))
        assert 0 <= applied <= len(chosen)

    def _append(self, op: Op) -> None:
        self._extend(op, single=True)

    def _extend(self, op: Op, single: bool = False) -> None:
        named = self._named(op)
        num_rows = 1 if single else 1 + op.num_rows % 6
        tail_rows = op.tail_rows and not single
        ends = self._ends(op, named, num_rows, tail_rows)
        gives_next = not tail_rows and (op.gives_next or any(truncated for row in ends for _, truncated in row))
        discount = None if op.discount == 0 else DISCOUNTS[op.discount % 4]

        current: list[Cells] = []
        for i in named:
            episode = self.twin.open_episode(self.lanes[op.writer][i])
            current.append(episode.states[-1] if episode is not None and episode.has_seam else self._state())
        states, steps, nexts = [], [], []
        for row in range(num_rows):
            states.append(current)
            steps.append([self._step() for _ in named])
            nexts.append([self._state() for _ in named])
            fresh = [self._state() if any(end) and not tail_rows else nexts[row][m] for m, end in enumerate(ends[row])]
            current = fresh
        given = states + ([nexts[-1]] if tail_rows else [])
        keys = self._call(op, named, single, given, steps, nexts, ends, gives_next, discount)
        for row in range(num_rows):
            for m, i in enumerate(named):
                known = gives_next or (tail_rows and row == num_rows - 1)
                self.twin.append(
                    self.lanes[op.writer][i], int(keys[row, m]), states[row][m], steps[row][m],
                    nexts[row][m] if known else None, *ends[row][m], discount, self.version,
                )  # fmt: skip

    def _ends(self, op: Op, named: list[int], num_rows: int, tail_rows: bool) -> list[list[tuple[bool, bool]]]:
        """[row][lane] -> terminated, truncated."""
        ends = []
        for row in range(num_rows):
            ends.append([])
            last = row == num_rows - 1
            for i in named:
                bit = 0 if op.scalar_end else i + 3 * row
                terminated, truncated = bool(op.terminations >> bit & 1), bool(op.truncations >> bit & 1)
                if not last and (tail_rows or op.scalar_end):
                    terminated = truncated = False
                if not last and not op.gives_next:
                    truncated = False
                ends[-1].append((terminated, truncated))
        return ends

    def _call(
        self, op: Op, named: list[int], single: bool, states: list[list[Cells]], steps: list[list[Cells]],
        nexts: list[list[Cells]], ends: list[list[tuple[bool, bool]]], gives_next: bool, discount: float | None,
    ) -> np.ndarray:  # fmt: skip
        def rows_of(rows: list[list[Cells]]) -> dict[str, np.ndarray]:
            arranged = [self._arranged(op, named, row) for row in rows]
            return {n: np.stack([a[n] for a in arranged]) for n in arranged[0]} if not single else arranged[0]

        flat: dict[str, Any] = rows_of(states) | rows_of(steps)
        flat = {name: value for name, value in flat.items() if name not in self.late}
        if gives_next:
            flat |= {f"next_{n}": v for n, v in rows_of(nexts).items()}
        for which, name in enumerate(("terminated", "truncated")):
            values = [[{name: np.asarray(end[which])} for end in row] for row in ends]
            if any(end[which] for row in ends for end in row):
                flat[name] = bool(ends[-1][0][which]) if op.scalar_end else rows_of(values)[name]
        if discount is not None:
            flat["discount"] = rows_of([[{"discount": np.float32(discount)} for _ in named] for _ in steps])["discount"]
        lanes = self._lanes_argument(op, named)
        writer = self.writers[op.writer]
        write = writer.append if single else writer.extend
        keys = write(**nested(flat), **({} if lanes is None else {"lanes": lanes}))
        expected = (len(steps),) * (not single) + (len(named),) * (self.sizes[op.writer] is not None)
        assert np.shape(keys) == expected, f"keys are {np.shape(keys)}, expected {expected}"
        assert np.asarray(keys).dtype == np.int64
        return np.asarray(keys).reshape(len(steps), len(named))


def saved_and_loaded(table: relive.Table, storage: relive.Tiered | None = None) -> relive.Table:
    """Saves a table, loads it again with the same keys, and closes the first one with its writers."""
    with tempfile.TemporaryDirectory() as folder:
        table.save(folder)
        loaded = relive.load(folder, storage=storage)
    assert loaded.loaded is not None and loaded.loaded.keeps_keys
    loaded.check()
    table.close()
    return loaded


def run_at_random(
    rng: random.Random,
    calls: list[Callable[[], None]],
    num_calls: int,
    check: tuple[int, Callable[[], None]],
    end: Callable[[], None],
) -> None:
    """So many calls of a long programme; check = (every so many of them, what is then to hold)."""
    every, holds = check
    try:
        for number in range(num_calls):
            rng.choice(calls)()
            if number % every == 0:
                holds()
    finally:
        end()
