"""Saves of all shards that fail: the save before stays whole, with all shards, at whatever step it happens."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, prioritized
from processes.interrupts import interrupted_at
from processes.shm import needs_shared_memory

import relive
import relive.fleet
from fleet.saves import cuts, num_saved
from fleet.tools import config_of, fill
from relive import errors
from relive.fleet import ShardOwner, attach, saving
from relive.fleet.saved import ShardsFolder
from relive.saving.disk_files import DiskFiles
from relive.saving.folder import SaveFolder

pytestmark = needs_shared_memory


# ---- failures ------------------------------------------------------------------------------------------------------


def test_a_failure_between_shards_leaves_the_save_before(
    whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.save(tmp_path)
    fill(whole, 0, 60, 20)
    fill(whole, 1, 2_000, 20)
    append = DiskFiles.append

    def is_full(self: DiskFiles, handle: int, data: memoryview, at: int) -> None:
        if self.path.endswith("shards/1"):
            raise errors.StorageFull(self.path, len(data), 0)
        append(self, handle, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, "append", is_full)
        with pytest.raises(errors.StorageFull, match="shards/1"):
            whole.save(tmp_path)
    assert num_saved(tmp_path, shm_name) == (60, 40)
    assert cuts(tmp_path, 0) == [1]  # the part that was written is removed
    assert whole.save(tmp_path).num_steps == 140 and num_saved(tmp_path, shm_name) == (80, 60)


@pytest.mark.parametrize("step", ["append", "sync_folder"])
def test_a_failure_at_the_bytes_beside_the_shards_removes_what_was_written(
    whole: relive.fleet.ShardedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A full disk gets its room back."""
    whole.save(tmp_path, {"learner": b"1"})
    fill(whole, 0, 60, 20)
    append, sync_folder = DiskFiles.append, DiskFiles.sync_folder

    def is_full(self: DiskFiles, handle: int, data: memoryview, at: int) -> None:
        append(self, handle, data[:1000], at)
        if len(data) == 5_000:
            raise errors.StorageFull(self.path, len(data), 0)

    def fails(self: DiskFiles, *folder: str) -> None:
        if folder == ("shards",):
            raise errors.StorageFull(self.path, 0, 0)
        sync_folder(self, *folder)

    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, step, {"append": is_full, "sync_folder": fails}[step])
        with pytest.raises(errors.StorageFull):
            whole.save(tmp_path, {"learner": bytes(5_000)})
    assert [path.name for path in (tmp_path / "beside").iterdir()] == ["1"] and cuts(tmp_path, 0) == [1]
    assert relive.fleet.saved(tmp_path).blob("learner") == b"1"


@pytest.mark.parametrize("step", ["append", "sync", "rename", "sync_folder"])
def test_a_failure_of_the_common_commit(
    whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Either save is whole: the one before, and after the rename maybe the new one."""
    whole.save(tmp_path)
    fill(whole, 0, 60, 20)
    call, commit = getattr(DiskFiles, step), ShardsFolder._put

    def fails(self: DiskFiles, *arguments: Any) -> Any:
        if self.path == str(tmp_path):
            raise errors.SystemFailure(step, 5)
        return call(self, *arguments)

    def put(self: ShardsFolder, name: str, value: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(DiskFiles, step, fails)
            commit(self, name, value)

    with monkeypatch.context() as patch:
        patch.setattr(ShardsFolder, "_put", put)
        with pytest.raises(errors.SystemFailure):
            whole.save(tmp_path)
    assert num_saved(tmp_path, shm_name) == ((80, 40) if step == "sync_folder" else (60, 40))
    assert whole.save(tmp_path).num_steps == 120 and num_saved(tmp_path, shm_name) == (80, 40)


def test_an_interrupt_behind_the_rename_leaves_the_new_save(
    whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole.save(tmp_path)
    fill(whole, 0, 60, 20)
    put = ShardsFolder._put

    def interrupted(self: ShardsFolder, name: str, value: Any) -> None:
        put(self, name, value)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ShardsFolder, "_put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            whole.save(tmp_path)
    assert num_saved(tmp_path, shm_name) == (80, 40)


def _save_and_die(names: Any, path: str, after: str) -> None:
    """Saves, and dies at a moment of the save."""
    table = attach(names)
    if after == "a part":
        forgets = SaveFolder._remove_unnamed

        def dies(self: SaveFolder) -> None:
            if self._kept and self._kept[0].number == 2:  # after the commit of the first part, or of both
                os._exit(9)
            forgets(self)

        SaveFolder._remove_unnamed = dies  # type: ignore[method-assign]
    else:
        ShardsFolder.commit = lambda *_: os._exit(9)  # type: ignore[method-assign, assignment]
    table.save(path)


@pytest.mark.parametrize("after", ["a part", "all parts"])
def test_a_saver_that_dies_between_shards(
    whole: relive.fleet.ShardedTable, tmp_path: Path, names: tuple[str, str], shm_name: Any, after: str
) -> None:
    whole.save(tmp_path)
    fill(whole, 0, 60, 20)
    fill(whole, 1, 2_000, 20)
    process = multiprocessing.get_context("spawn").Process(target=_save_and_die, args=(names, str(tmp_path), after))
    process.start()
    process.join(60)
    assert process.exitcode == 9
    assert 2 in cuts(tmp_path, 0) + cuts(tmp_path, 1)
    assert num_saved(tmp_path, shm_name) == (60, 40)
    assert whole.save(tmp_path).num_steps == 140 and num_saved(tmp_path, shm_name) == (80, 60)


def _save_for_ever(names: Any, path: str, pipe: Any) -> None:
    with attach(names) as table, table.writer(shard=0) as writer:
        while True:
            writer.append(observation=[0.0, 0.0], action=0, reward=0.0, next_observation=[1.0, 1.0])
            table.save(path)
            table.save(path, wait=False).wait()
            pipe.send(None)


def test_a_saver_that_is_killed_at_any_moment(
    whole: relive.fleet.ShardedTable, tmp_path: Path, names: tuple[str, str], shm_name: Any
) -> None:
    whole.save(tmp_path)
    rng = np.random.default_rng(11)
    context = multiprocessing.get_context("spawn")
    for _ in range(4):
        mine, theirs = context.Pipe()
        process = context.Process(target=_save_for_ever, args=(names, str(tmp_path), theirs))
        process.start()
        assert mine.poll(60)
        time.sleep(float(rng.uniform(0.0, 0.1)))
        process.kill()
        process.join(60)
        assert num_saved(tmp_path, shm_name)[0] >= 60
    assert whole.save(tmp_path).number > 4


def test_the_deadline_cancels_all_parts(
    whole: relive.fleet.ShardedTable, tmp_path: Path, slow: threading.Event, shm_name: Any
) -> None:
    threading.Timer(1.0, slow.set).start()
    began = time.monotonic()
    with pytest.raises(errors.DeadlineExceeded, match="a save of all shards"):
        whole.save(tmp_path, timeout_s=0.3)
    assert 0.3 <= time.monotonic() - began < 5.0
    with pytest.raises(errors.NoSuchSave):
        relive.fleet.saved(tmp_path)
    assert whole.save(tmp_path).number == 1 and num_saved(tmp_path, shm_name) == (60, 40)


def test_ctrl_c_cancels_all_parts(
    whole: relive.fleet.ShardedTable, tmp_path: Path, slow: threading.Event, shm_name: Any
) -> None:
    threading.Timer(0.5, _thread.interrupt_main).start()
    threading.Timer(1.0, slow.set).start()
    with pytest.raises(KeyboardInterrupt):
        whole.save(tmp_path)
    with pytest.raises(errors.NoSuchSave):
        relive.fleet.saved(tmp_path)
    assert whole.save(tmp_path).number == 1 and num_saved(tmp_path, shm_name) == (60, 40)


def test_a_save_goes_after_an_interrupt_at_any_step_of_another(
    whole: relive.fleet.ShardedTable, tmp_path: Path
) -> None:
    """Also while the program has the error, whose frames have the save."""
    for at in count():
        raised = interrupted_at(at, lambda: whole.save(tmp_path), saving.__file__)
        whole.save(tmp_path)
        if raised is None:
            break
    assert at > 20


# ---- damaged folders -----------------------------------------------------------------------------------------------


def test_damaged_files_are_one_error(whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any) -> None:
    whole.save(tmp_path)
    rng = np.random.default_rng(3)
    for name in ("CURRENT", "relive-shards.json"):
        good = (tmp_path / name).read_bytes()
        for _ in range(60):
            bad = bytearray(good)
            bad[int(rng.integers(len(bad)))] ^= 1 << int(rng.integers(8))
            (tmp_path / name).write_bytes(bad)
            with pytest.raises(errors.DamagedSave):
                relive.fleet.saved(tmp_path)
        for size in (0, 1, len(good) // 2, len(good) - 1):
            (tmp_path / name).write_bytes(good[:size])
            with pytest.raises(errors.DamagedSave):
                relive.fleet.saved(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(errors.NoSuchSave):
            relive.fleet.saved(tmp_path)
        (tmp_path / name).symlink_to("/etc/passwd")
        with pytest.raises(errors.DamagedSave):
            relive.fleet.saved(tmp_path)
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(good)
    assert num_saved(tmp_path, shm_name) == (60, 40)


@pytest.mark.parametrize(
    "saves",
    [
        [],
        {},
        [[1]],
        [[1, []]],
        [[-1, [[0, None, "a", 1, 1]]]],
        [[1, [[0, None, "a", 1, 1], [0, None, "a", 1, 1]]]],
        [[1, [[1, None, "a", 1, 1], [0, None, "a", 1, 1]]]],
        [[1, [[4096, None, "a", 1, 1]]]],
        [[1, [[0, 7, "a", 1, 1]]]],
        [[1, [[0, None, 7, 1, 1]]]],
        [[1, [[0, None, "a", True, 1]]]],
        [[1, [[0, None, "a", 1, -1]]]],
    ],
)
def test_lists_of_saves_that_lie(whole: relive.fleet.ShardedTable, tmp_path: Path, saves: Any) -> None:
    whole.save(tmp_path)
    with ShardsFolder(str(tmp_path)) as folder:
        folder._put("CURRENT", {"folder": folder._id, "saves": saves})
    with pytest.raises(errors.DamagedSave):
        relive.fleet.saved(tmp_path)


def test_a_part_that_is_another_or_gone(whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any) -> None:
    whole.save(tmp_path / "a")
    (tmp_path / "b").mkdir()
    with relive.Table(plain_spec(), 4096, prioritized()) as other:
        other.save(tmp_path / "b" / "0")
    (tmp_path / "a" / "shards" / "0").rename(tmp_path / "b" / "was")
    with pytest.raises(errors.NoSuchSave):
        ShardOwner(0, config_of(shm_name()), load=tmp_path / "a")
    (tmp_path / "b" / "0").rename(tmp_path / "a" / "shards" / "0")
    with pytest.raises(errors.DamagedSave, match="the cut"):
        ShardOwner(0, config_of(shm_name()), load=tmp_path / "a")
    with ShardsFolder(str(tmp_path / "a")) as folder:
        folder._put("relive-shards.json", {"format": 9, "lowest_reader": 9, "folder": folder._id})
    with pytest.raises(errors.FormatMismatch):
        relive.fleet.saved(tmp_path / "a")
