"""Processes that write rows with checksums and save them until they are killed, and the proof of what they leave.

A process writes the rows number, number + 1, ... of one round. It completes row n after it has appended row n + LATE,
and then updates the priority of row n - OLD. So the newest row of a table says what priority every other row must have.
Each record of the pipe is one acknowledgement: a letter and a number.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import relive

CAPACITY = 2_000
LATE, OLD = 3, 40  # rows from an append to its late column, and from that to its new priority
SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((4,), "float32", kind="state"),
        "number": relive.ArraySpec((), "int64"),
        "round": relive.ArraySpec((), "int64"),
        "payload": relive.ArraySpec((100,), "uint8"),
        "sum": relive.ArraySpec((), "int64"),
        "score": relive.ArraySpec((), "int64", late=True),
    }
)
COLUMNS = ("observation", "number", "round", "payload", "sum", "score", "next_observation", "terminated")
INDEX = relive.Index(relive.Transitions(), relive.Prioritized(1.0))
OPENS, COMPLETED, UPDATED, SAVED = b"O", b"C", b"U", b"S"
RECORD = struct.Struct("<cq")


def observation(number: int, round_: int) -> np.ndarray:
    return np.array([number, round_, number % 101, 7 * round_], np.float32)


def payload(number: int, round_: int) -> bytes:
    return struct.pack("<5I", number, round_, number ^ 0x5A5A5A5A, 3 * number, ~number & 0xFFFFFFFF) * 5


def checksum(number: int, round_: int, bytes_: bytes) -> int:
    return zlib.crc32(struct.pack("<qq", number, round_) + bytes_)


def first_priority(number: Any) -> Any:
    return 1.0 + number % 7


def new_priority(number: Any) -> Any:
    return 9.0 + number % 5


# ---- the process that is killed ------------------------------------------------------------------------------------


def acknowledge(letter: bytes, number: int) -> None:
    """Tells the parent. A write of so few bytes is whole, or is not there."""
    os.write(1, RECORD.pack(letter, number))


class Rows:
    """The rows that one process writes. completed: the last row whose late column is acknowledged."""

    def __init__(self, table: relive.Table, round_: int) -> None:
        self._table, self._round = table, round_
        self._keys = keys_of(table)  # of rows of earlier processes, too
        self._first = max(self._keys, default=-1) + 1
        self.completed = self._first - 1
        for number in range(self._first - 2 * OLD, self._first - OLD):  # the last process may not have come so far
            self._update(number)

    def write(self) -> None:
        """Writes rows until the process is killed."""
        writer = self._table.writer()
        number = self._first
        while True:
            self._keys[number] = append(writer, number, self._round)
            done = number - LATE
            if done >= self._first:
                self._table.complete([self._keys[done]], score=[3 * done + self._round])
                self.completed = done
                acknowledge(COMPLETED, done)
                self._update(done - OLD)
                acknowledge(UPDATED, done - OLD)
                self._keys.pop(done - CAPACITY, None)
            number += 1

    def _update(self, number: int) -> None:
        key = self._keys.get(number)
        if key is not None:
            self._table.update_priorities([key], [new_priority(number)])


def append(writer: Any, number: int, round_: int) -> int:
    bytes_ = payload(number, round_)
    key = writer.append(
        observation=observation(number, round_),
        number=number,
        round=round_,
        payload=np.frombuffer(bytes_, np.uint8),
        sum=checksum(number, round_, bytes_),
        next_observation=observation(number + 1, round_),
        terminated=number % 10 == 9,
        priority=first_priority(number),
    )
    return int(key)


def keys_of(table: relive.Table) -> dict[int, int]:
    """{number: key} of the rows of a table."""
    found: dict[int, int] = {}
    for keys in table.keys():
        batch = table.gather(keys, columns=("number",))
        assert batch.present is not None
        found |= zip(batch["number"][batch.present].tolist(), keys[batch.present].tolist(), strict=True)
    return found


def save_again_and_again(folder: str, round_: int) -> None:
    """Saves a table of this process, which begins as the newest save, while a thread writes rows."""
    try:
        table = relive.load(folder)
    except relive.errors.NoSuchSave:
        table = relive.Table(SPEC, CAPACITY, INDEX, seed=9)
    rows = Rows(table, round_)
    threading.Thread(target=rows.write, daemon=True).start()
    while True:
        completed = rows.completed
        table.save(folder, {"completed": str(completed).encode()}, keep=2)
        acknowledge(SAVED, completed)


def live_in_a_folder(folder: str, round_: int) -> None:
    """Writes rows into a table that lives in the folder, while a thread asks for saves."""
    table = relive.Table(SPEC, CAPACITY, INDEX, seed=9, storage=relive.File(folder, sync_s=0.05))
    rows = Rows(table, round_)

    def sync() -> None:
        while True:
            completed = rows.completed
            table.sync()
            acknowledge(SAVED, completed)
            time.sleep(0.02)

    threading.Thread(target=sync, daemon=True).start()
    rows.write()


# ---- the proof -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Promise:
    """The rows that a killed process must leave.

    Attributes:
        rounds: (first row, round) of each process, in order: a row of a later process replaced one that was lost.
        missing: rows that an earlier proof found to be incomplete.
        at_least: the newest row that was acknowledged.
        updated: the newest row whose new priority was acknowledged.
        is_save: whether the table comes from a save. Its newest rows may then be incomplete between complete ones:
            late columns may be in a save although they came after its moment.
    """

    rounds: Sequence[tuple[int, int]]
    missing: frozenset[int]
    at_least: int
    updated: int
    is_save: bool


@dataclass(frozen=True)
class Found:
    """The newest row of a table (-1: it has none), and the rows before it that are incomplete."""

    newest: int = -1
    missing: frozenset[int] = frozenset()


def prove(table: relive.Table, promise: Promise) -> Found:
    """Checks a table that a killed process left."""
    table.check()
    pages = list(table.keys())
    if not pages:
        assert promise.at_least < 0, f"row {promise.at_least} was acknowledged, and the table is empty"
        return Found()
    batch = table.gather(np.concatenate(pages), columns=COLUMNS)
    assert batch.present is not None and batch.present.all()
    numbers = np.sort(batch["number"])
    oldest, newest = int(numbers[0]), int(numbers[-1])
    assert newest >= promise.at_least, f"row {promise.at_least} was acknowledged, and row {newest} is the newest"
    assert oldest <= max(newest - CAPACITY // 2, 0), "old rows are missing"
    assert len(np.unique(numbers)) == len(numbers), f"rows {numbers[:-1][np.diff(numbers) == 0][:9]} are there twice"
    for problem in problems_of(batch, promise.rounds):
        raise AssertionError(problem)
    last = last_update(table, numbers)
    assert last >= promise.updated, (
        f"new priorities were acknowledged up to row {promise.updated}, and end at row {last}"
    )
    missing = frozenset(range(oldest, newest)).difference(numbers.tolist())
    lost = sorted(missing - promise.missing)
    complete = max(last + OLD, promise.at_least) if promise.is_save else newest  # at the moment of the save, at least
    assert not lost or lost[0] > complete, f"rows {lost[:9]} are missing, row {newest} is the newest"
    return Found(newest, missing)


def problems_of(batch: relive.Batch, rounds: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Rows that are not as one process wrote them."""
    firsts = np.array([first for first, _ in rounds])
    names = ("number", "round", "sum", "score", "terminated")
    columns = zip(*(np.asarray(batch[name]).tolist() for name in names), strict=True)
    for row, (number, round_, sum_, score, terminated) in enumerate(columns):
        at = f"row {number} of round {round_}"
        if round_ != rounds[int(np.searchsorted(firsts, number, "right")) - 1][1]:
            yield f"{at}: another process wrote the row that counts"
        bytes_ = batch["payload"][row].tobytes()
        if bytes_ != payload(number, round_) or sum_ != checksum(number, round_, bytes_):
            yield f"{at}: its checksum is wrong"
        if not np.array_equal(batch["observation"][row], observation(number, round_)):
            yield f"{at}: its state is wrong"
        if not np.array_equal(batch["next_observation"][row], observation(number + 1, round_)):
            yield f"{at}: its next state is wrong"
        if score != 3 * number + round_:
            yield f"{at}: its late column is {score}"
        if terminated != (number % 10 == 9):
            yield f"{at}: its end is wrong"


def last_update(table: relive.Table, numbers: np.ndarray) -> int:
    """Checks the sum of the priorities, and drawn items, against the priorities that these rows must have.

    A process that was killed may not have come to its last update. Late columns may be in a save although they came
    after its moment: the newest row is then up to LATE rows newer than the one that was complete at that moment.

    Returns:
        The newest row that has its new priority.
    """
    newest = int(numbers[-1])
    total = table.stats().indexes["default"].total_mass
    for last in range(newest - OLD, newest - OLD - LATE - 2, -1):
        priorities = np.where(numbers <= last, new_priority(numbers), first_priority(numbers))
        if np.isclose(total, priorities.sum(), rtol=1e-9):
            break
    else:
        raise AssertionError(f"the priorities have the sum {total}, and the newest row is {newest}")
    for _ in range(4):
        batch = table.sample(512, columns=("number",))
        drawn = batch.probabilities * total
        right = np.isclose(drawn, priorities[np.searchsorted(numbers, batch["number"])], rtol=1e-9)
        assert right.all(), f"rows {batch['number'][~right][:5]}: {drawn[~right][:5]}, the newest row is {newest}"
    return last


if __name__ == "__main__":
    acknowledge(OPENS, 0)
    {"save": save_again_and_again, "file": live_in_a_folder}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
