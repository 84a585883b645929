"""A power cut at every operation of a real table's save: relive.load gives the save before, or the new one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import SOAK

import relive
from relive.errors import NoSuchSave
from relive.saving.files import Files
from relive.saving.loading import load_core
from relive.saving.saving import Saving, facts_of
from saving.power import Disk, MemoryFiles
from saving.tools import PATH
from saving.watched import Hook, Kill, Killed, watched

SEEDS = 20 if SOAK else 2
NUM_SAVES = 3
SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((3,), "float32", kind="state"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
    }
)


def save(table: relive.Table, files: Files, number: int) -> None:
    saving = Saving(table.core, PATH, facts_of(table.core, table.config), files)
    saving.make_cut(None, 5.0)
    saving.finish({"number": bytes([number])}, 1)
    saving.wait()


def saves(disk: Disk, hook: Hook) -> tuple[int, list[int]]:
    """Saves a table that grows. Returns the number of saves that have returned, and the steps of each one tried."""
    table = relive.Table(SPEC, 200, max_lanes=2)
    done, steps = 0, [0]
    try:
        with table.writer() as writer:
            for number in range(1, NUM_SAVES + 1):
                for k in range(70):
                    state = np.full(3, 70 * number + k, np.float32)
                    writer.append(observation=state, action=k, reward=1.0, next_observation=state + 1)
                steps.append(len(table))
                save(table, watched(disk, hook), number)
                done = number
    except Killed:
        disk.locked_by = None
    return done, steps


def loaded(disk: Disk) -> tuple[int, int]:
    """Returns the number and the steps of the save that a disk has; (0, 0): none."""
    try:
        one: Any = load_core(PATH, None, None, None, MemoryFiles(disk))
    except NoSuchSave:
        return 0, 0
    return one.beside["number"][0], one.facts["num_steps"]


@pytest.mark.forms(1)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_power_cut_leaves_a_table(seed: int) -> None:
    whole = Hook()
    assert saves(Disk(), whole)[0] == NUM_SAVES
    for at in range(len(whole.calls) + 1):
        disk = Disk()
        done, steps = saves(disk, Kill(at))
        disk.cut_power(1000 * seed + at)
        number, num_steps = loaded(disk)
        assert number in (done, done + 1) and (number == 0 or num_steps <= steps[number])
        assert number == 0 or num_steps > steps[number - 1]
