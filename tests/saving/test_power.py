"""A power cut, or the death of the saver, at every operation: the folder has the save before, or the new one."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from conftest import SOAK

from relive.errors import DamagedSave
from relive.saving.folder import IMAGE, SaveFolder
from saving.power import Disk, MemoryFiles
from saving.tools import leftovers, read, save
from saving.watched import Hook, Kill, KillAndSkip, Killed, Names, watched

NUM_SAVES = 4
SEEDS = 100 if SOAK else 6
FEW_SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, SEEDS))]


def saves(disk: Disk, hook: Hook, keep: int) -> int:
    """Saves four times, until the hook kills. Returns the number of saves that have returned."""
    done = 0
    try:
        for number in range(1, NUM_SAVES + 1):
            save(watched(disk, hook), number, keep)
            done = number
    except Killed:
        disk.locked_by = None
    return done


def num_operations(keep: int) -> int:
    hook = Hook()
    assert saves(Disk(), hook, keep) == NUM_SAVES
    return len(hook.calls)


@pytest.mark.forms(3)
@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_power_cut_leaves_a_whole_save(seed: int, keep: int) -> None:
    for at in range(num_operations(keep) + 1):
        disk = Disk()
        done = saves(disk, Kill(at), keep)
        disk.cut_power(1000 * seed + at)
        left = read(MemoryFiles(disk))
        assert left in (done, done + 1)
        save(MemoryFiles(disk), left + 1)
        assert read(MemoryFiles(disk)) == left + 1 and not leftovers(disk)
        disk.cut_power(seed)
        assert read(MemoryFiles(disk)) == left + 1


@pytest.mark.forms(1)
@pytest.mark.parametrize("seed", FEW_SEEDS)
def test_a_dead_saver_then_a_power_cut(seed: int) -> None:
    """The next saver must not trust names that the dead one has not synced."""
    rng = Random(seed)
    for at in range(num_operations(1) + 1):
        disk = Disk()
        done = saves(disk, Kill(at), 1)
        seen = read(MemoryFiles(disk))
        assert seen in (done, done + 1)
        hook = Kill(rng.randrange(40))
        try:
            save(watched(disk, hook), seen + 1)
        except Killed:
            pass
        disk.cut_power(1000 * seed + at)
        assert read(MemoryFiles(disk)) in range(done, seen + 2)


def test_the_number_of_a_segment_is_never_given_again() -> None:
    """A reader without a lock that comes late must not find another save's pages under a name that it knows."""
    disk, made = Disk(), []
    for writes in (True, True, False, True):
        folder = SaveFolder.open("memory", MemoryFiles(disk))
        images = folder.reusable()[:1]
        if writes:
            segment = folder.new_segment()
            made.append(segment.number)
            at = segment.append(memoryview(bytes(4096)))
            new = np.array([(made[-1], 1, 1, at, 4096, 0, made[-1])], IMAGE)
            images = np.concatenate([images, new])
        folder.commit([], images, {}, {}, 1)
        folder.close()
    assert made == [1, 2, 4]


# ---- programs that leave an operation out ----------------------------------------------------------------------------


def _no_sync_of(*names: str) -> Callable[[Hook, str, Names], bool]:
    return lambda hook, operation, given: operation == "sync" and given[: len(names)] == names


def _no_folder_sync_of(*names: str) -> Callable[[Hook, str, Names], bool]:
    return lambda hook, operation, given: operation == "sync_folder" and given[: max(1, len(names))] == names


def _is_after_rename(hook: Hook) -> bool:
    return len(hook.calls) > 1 and hook.calls[-2][0] == "rename"


def _no_root_sync_before(hook: Hook, operation: str, names: Names) -> bool:
    return operation == "sync_folder" and not names and not _is_after_rename(hook)


def _no_root_sync_after(hook: Hook, operation: str, names: Names) -> bool:
    return operation == "sync_folder" and not names and _is_after_rename(hook)


MUTANTS: dict[str, Callable[[Hook, str, Names], bool]] = {
    "no sync of segments": _no_sync_of("segments"),
    "no sync of the cut": _no_sync_of("cuts"),
    "no sync of blobs": _no_sync_of("beside"),
    "no sync of CURRENT": _no_sync_of("CURRENT.new"),
    "no folder sync of segments": _no_folder_sync_of("segments"),
    "no folder sync of cuts": _no_folder_sync_of("cuts"),
    "no folder sync of blobs": _no_folder_sync_of("beside"),
    "no folder sync before the rename": _no_root_sync_before,
    "no folder sync after the rename: old files go first": _no_root_sync_after,
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_sync_is_needed(mutant: str) -> None:
    for seed in range(40):
        for at in range(num_operations(1) + 1):
            disk = Disk()
            done = saves(disk, KillAndSkip(at, MUTANTS[mutant]), 1)
            disk.cut_power(1000 * seed + at)
            try:
                left = read(MemoryFiles(disk))
            except (DamagedSave, AssertionError):
                return
            if left not in (done, done + 1):
                return
    pytest.fail("a power cut never shows that this operation is missing")


def test_the_disk_in_memory_forgets() -> None:
    """The simulator itself: unsynced bytes and names are lost in some runs, synced ones in none."""
    seen = set()
    for seed in range(50):
        disk = Disk()
        files = MemoryFiles(disk)
        handle = files.create("one")
        files.append(handle, memoryview(b"synced"), 0)
        files.sync(handle)
        files.sync_folder()
        other = files.create("two")
        files.append(other, memoryview(b"x" * 5000), 0)
        files.rename("two", "three")
        disk.cut_power(seed)
        assert bytes(disk.root.nodes["one"].data) == b"synced"
        seen.add(frozenset(disk.root.nodes))
    assert {frozenset({"one"}), frozenset({"one", "two"}), frozenset({"one", "three"})} <= seen
