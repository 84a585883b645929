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
from collections.abc import Callable
from pathlib import Path

import pytest

import relive
from saving.killed import CAPACITY, COMPLETED, INDEX, OLD, OPENS, RECORD, SAVED, SPEC, UPDATED, prove
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
    """The rows of each round that count: those before the first row of a later one."""

    def __init__(self) -> None:
        self.of: list[tuple[int, int]] = []

    def begin(self, first: int, round_: int) -> None:
        self.of = [*(one for one in self.of if one[0] < first), (first, round_)]


def kill_again_and_again(kind: str, folder: Path, after: Callable[[int, dict[bytes, int], Rounds, int], int]) -> None:
    """after(round, told, rounds, newest) checks the folder and returns the newest row that the next process finds."""
    chance, rounds, newest = random.Random(5), Rounds(), -1
    for round_ in range(NUM_KILLS):
        rounds.begin(newest + 1, round_)
        told = killed(kind, folder, round_, chance)
        newest = after(round_, told, rounds, newest)


def newest_save(folder: Path, rounds: Rounds, at_least: int, saved: int = -1) -> int:
    """Checks the newest save of a folder.

    Args:
        folder: the folder.
        rounds: the rows that count.
        at_least: the newest row that must be in the save.
        saved: the row that was complete when the last acknowledged save began.

    Returns:
        The newest row of the save; -1: there is no save, or it has no rows.
    """
    try:
        table = relive.load(folder)
    except relive.errors.NoSuchSave:
        assert at_least < 0
        return -1
    with table:
        assert table.loaded is not None
        newest = prove(table, rounds.of, at_least, saved - OLD - 1)
        beside = table.loaded.beside.get("completed")
        assert beside is None or int(beside) <= newest
        return newest


@pytest.mark.timeout(TIMEOUT_S)
def test_kills_of_a_process_that_saves_again_and_again(tmp_path: Path) -> None:
    folder = tmp_path / "save"

    def after(round_: int, told: dict[bytes, int], rounds: Rounds, newest: int) -> int:
        saved = told.get(SAVED, -1)
        return newest_save(folder, rounds, max(saved, newest), saved)

    kill_again_and_again("save", folder, after)
    with relive.load(folder) as table:
        facts = table.save(folder, keep=2)
        assert facts.num_steps == len(table)
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert sum(name.startswith("cuts/") for name in left) == 2, left
    assert not {name for name in left if name.endswith((".new", ".tmp"))}, left


@pytest.mark.timeout(TIMEOUT_S)
def test_kills_of_a_process_whose_table_lives_in_a_folder(tmp_path: Path) -> None:
    """After every fourth kill the machine restarts, too, and what came after the last save is lost."""
    folder = tmp_path / "table"

    def after(round_: int, told: dict[bytes, int], rounds: Rounds, newest: int) -> int:
        saved = told.get(SAVED, -1)
        in_save = newest_save(folder, rounds, max(saved, newest), saved)
        at_least, updated = max(told.get(COMPLETED, -1), newest), told.get(UPDATED, -1)
        if round_ % 4 == 3 and (folder / "region").exists():
            restart(folder)
            at_least, updated = in_save, saved - OLD - 1
        storage = relive.File(folder, None)
        with relive.Table(SPEC, CAPACITY, INDEX, seed=9, storage=storage) as table:
            newest = prove(table, rounds.of, at_least, updated)
        assert newest_save(folder, rounds, newest) == newest
        return newest

    kill_again_and_again("file", folder, after)
