"""Random SIGKILLs of processes that save: rows, priorities and acknowledgements after each of them.

RELIVE_KILLS=200 makes the long run.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import relive
from saving.killed import (
    CAPACITY,
    COMPLETED,
    INDEX,
    OLD,
    OPENS,
    RECORD,
    SAVED,
    SPEC,
    UPDATED,
    Found,
    Promise,
    prove,
)  # fmt: skip
from saving.test_file import restart

NUM_KILLS = int(os.environ.get("RELIVE_KILLS", "8"))
TIMEOUT_S = 300 + 5 * NUM_KILLS
WAIT_S = 60.0  # for the first acknowledgement of a process
LONGEST_S = 0.4  # from that to the kill


class Killed:
    """A process with a pipe of acknowledgements, which `kill` ends. told: the last number of each letter."""

    def __init__(self, kind: str, folder: Path, round_: int) -> None:
        command = [sys.executable, "-m", "saving.killed", kind, str(folder), str(round_)]
        self._process = subprocess.Popen(
            command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.told: dict[bytes, int] = {}
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        pipe = self._process.stdout
        assert pipe is not None
        while len(record := pipe.read(RECORD.size)) == RECORD.size:
            letter, number = RECORD.unpack(record)
            self.told[letter] = number

    def wait_for(self, letter: bytes) -> None:
        ends_s = time.monotonic() + WAIT_S
        while letter not in self.told and self._process.poll() is None:
            assert time.monotonic() < ends_s, f"the process never said {letter!r}"
            time.sleep(0.001)

    def kill(self) -> None:
        self._process.kill()
        assert self._process.stderr is not None
        problem = self._process.stderr.read().decode()
        status = self._process.wait()
        self._reader.join()  # acknowledgements that were in the pipe count
        assert status == -signal.SIGKILL, problem


def killed(kind: str, folder: Path, round_: int, chance: random.Random) -> dict[bytes, int]:
    """Runs a process, kills it while it opens or (three times of four) writes, and returns its acknowledgements."""
    process = Killed(kind, folder, round_)
    try:
        process.wait_for(OPENS if chance.random() < 0.25 else COMPLETED)
        time.sleep(chance.random() * LONGEST_S)
    finally:
        process.kill()
    return process.told


class Rounds:
    """The rounds so far. of: (first row, round) of the rows that count. found: the rows that the next process finds."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind, self._folder, self._chance = kind, folder, random.Random(5)
        self.of: list[tuple[int, int]] = []
        self.found = Found()

    def kill(self) -> Iterator[dict[bytes, int]]:
        """Kills one process after the other. Returns the acknowledgements of each."""
        for round_ in range(NUM_KILLS):
            first = self.found.newest + 1
            self.of = [*(one for one in self.of if one[0] < first), (first, round_)]
            yield killed(self._kind, self._folder, round_, self._chance)

    def promise(self, row: int, updated: int, *, is_save: bool) -> Promise:
        """The promise after `row` and the new priority of `updated` were acknowledged."""
        return Promise(self.of, self.found.missing, max(row, self.found.newest), updated, is_save)

    def prove_save(self, saved: int) -> Found:
        """Checks the newest save. saved: the row that was complete when the last acknowledged save began."""
        promise = self.promise(saved, saved - OLD - 1, is_save=True)
        try:
            table = relive.load(self._folder)
        except relive.errors.NoSuchSave:
            assert promise.at_least < 0
            return Found()
        with table:
            assert table.loaded is not None
            found = prove(table, promise)
            beside = table.loaded.beside.get("completed")
            assert beside is None or int(beside) <= found.newest
            return found


@pytest.mark.timeout(TIMEOUT_S)
def test_kills_of_a_process_that_saves_again_and_again(tmp_path: Path) -> None:
    folder = tmp_path / "save"
    rounds = Rounds("save", folder)
    for told in rounds.kill():
        rounds.found = rounds.prove_save(told.get(SAVED, -1))
    with relive.load(folder) as table:
        assert table.save(folder, keep=2).num_steps == len(table)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert sum(name.startswith("cuts/") for name in left) == 2, left
    assert not {name for name in left if name.endswith(".new")}, left


@pytest.mark.timeout(TIMEOUT_S)
def test_kills_of_a_process_whose_table_lives_in_a_folder(tmp_path: Path) -> None:
    """After every fourth kill the machine restarts, too, and the rows after the last save are lost."""
    folder = tmp_path / "table"
    rounds = Rounds("file", folder)
    for number, told in enumerate(rounds.kill()):
        saved = told.get(SAVED, -1)
        in_save = rounds.prove_save(saved)
        promise = rounds.promise(told.get(COMPLETED, -1), told.get(UPDATED, -1), is_save=False)
        if number % 4 == 3 and (folder / "region").exists():
            restart(folder)
            promise = rounds.promise(in_save.newest, saved - OLD - 1, is_save=True)
        with relive.Table(SPEC, CAPACITY, INDEX, seed=9, storage=relive.File(folder, None)) as table:
            rounds.found = prove(table, promise)
        assert rounds.prove_save(-1) == rounds.found
