"""Processes that open, fill, save, close, drop and are killed over one folder: no acknowledged step is lost.

RELIVE_FILE_ROUNDS=200 for a long walk.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import relive
from relive.saving.place import Place
from saving.test_file import NFS, opened, restart, wait_for

ROUNDS = int(os.environ.get("RELIVE_FILE_ROUNDS", "6"))
CAPACITY = 20_000

PROGRAM = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[1])
import relive
from pathlib import Path
from relive import _core
from saving.test_file import append, opened
from saving.test_file_walk import CAPACITY
folder, in_memory, seed = Path(sys.argv[2]), sys.argv[3] == "True", int(sys.argv[4])
if in_memory:
    _core.file_system_kind = lambda folder: 0x6969
rng = random.Random(seed)
for life in range(rng.randrange(1, 5)):
    table = opened(folder, rng.choice([None, 0.02, 0.2]), capacity=CAPACITY)
    for _ in range(rng.randrange(1, 4)):
        with table.writer() as writer:
            first = rng.randrange(2**23)  # float32 has each of these numbers
            for number in range(first, first + rng.randrange(1, 60)):
                append(writer, number)
                os.write(1, b"%d\\n" % number)
        act = rng.random()
        if act < 0.3:
            table.sync()
        elif act < 0.5:
            table.sample(8)
        elif act < 0.6:
            os.kill(os.getpid(), signal.SIGKILL)
    act = rng.random()
    if act < 0.6:
        table.close()
    elif act < 0.8:
        del table
    elif act < 0.9:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def actions_of(table: relive.Table) -> set[int]:
    first, found = 0, set[int]()
    while True:
        keys, _, _, after = table.core.list_items(0, first, 1000)
        if len(keys):
            found |= set(table.gather(keys)["action"].tolist())
        if after <= first or not len(keys):
            return found
        first = after


@pytest.mark.forms(1)
@pytest.mark.parametrize("in_memory", [False, True])
def test_processes_come_and_go(tmp_path: Path, in_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_memory:
        monkeypatch.setattr("relive._core.file_system_kind", lambda folder: NFS)
    folder, rng, acknowledged = tmp_path / "table", random.Random(int(in_memory)), set[int]()
    for _ in range(ROUNDS):
        arguments = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[1]), str(folder), str(in_memory)]
        running = [
            subprocess.Popen([*arguments, str(rng.randrange(2**30))], stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        for process in running:
            said, _ = process.communicate(timeout=120)
            assert process.returncode in (0, -9)
            acknowledged |= {int(line) for line in said.split("\n")[:-1]}
        with opened(folder, capacity=CAPACITY) as table:
            table.check()
            assert acknowledged <= actions_of(table)
        if rng.random() < 0.3 and not in_memory:
            restart(folder)  # after a clean close
        saved = relive.load(folder)
        assert acknowledged <= actions_of(saved)
        saved.close()
    assert len(acknowledged) < CAPACITY
    region = Place.of(str(folder)).region
    relive.remove(relive.File(folder))
    wait_for(lambda: not os.path.lexists(region), "a region is left")
