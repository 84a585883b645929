"""Tables that live in folders: disks that fill, folders that go, interrupts, damaged files, and memory elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import _core, errors
from relive.cli.entry import run
from relive.saving import keeping
from relive.saving.disk_files import DiskFiles
from relive.saving.keeping import Keeper
from relive.saving.place import Place
from saving.test_file import NFS, add, child, full, len_of, opened, wait_for


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is on a file system that other hosts use."""
    monkeypatch.setattr(_core, "file_system_kind", lambda folder: NFS)


# ---- the folder's region is elsewhere --------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_memory")
def test_a_folder_of_several_hosts_has_the_saves_only(tmp_path: Path) -> None:
    with opened(tmp_path / "table") as table:
        told = table.stats().file
        assert told is not None and told.reason == "the folder is on NFS" and told.region.startswith("/dev/shm/")
        add(table, 12)
        assert os.path.exists(told.region)
    assert not os.path.exists(told.region) and relive.saved(tmp_path / "table").num_steps == 12
    with opened(tmp_path / "table") as table:
        assert len(table) == 12 and table.loaded is not None


@pytest.mark.usefixtures("in_memory")
def test_a_region_in_memory_that_could_not_be_saved_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(tmp_path / "table")
    add(table, 12)
    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, "append", full)
        with pytest.raises(errors.StorageFull):
            table.close()
    assert table.closed and relive.saved(tmp_path / "table").num_steps == 0
    with opened(tmp_path / "table") as table:
        assert len(table) == 12 and table.loaded is None
    assert relive.saved(tmp_path / "table").num_steps == 12


@pytest.mark.usefixtures("in_memory")
def test_handles_that_close_at_once_lose_nothing(tmp_path: Path) -> None:
    for _ in range(10):
        tables = [opened(tmp_path / "table") for _ in range(3)]
        before = len(tables[0])
        for number, table in enumerate(tables):
            add(table, 10, 10 * number)
        threads = [threading.Thread(target=table.close) for table in tables]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert relive.saved(tmp_path / "table").num_steps == min(before + 30, 1000)


@pytest.mark.usefixtures("in_memory")
def test_another_host_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path / "table"):
        elsewhere = Place.of(str(tmp_path / "table"))
        with pytest.raises(errors.InUse):
            elsewhere.among_hosts(alone=True)
    ended = elsewhere.among_hosts(alone=True)
    assert ended is not None
    with pytest.raises(errors.InUse):
        opened(tmp_path / "table")
    ended.close()
    opened(tmp_path / "table").close()


# ---- what fails ------------------------------------------------------------------------------------------------------


def test_a_save_that_fails_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path / "table", 0.05) as table:
        with monkeypatch.context() as patch:
            patch.setattr(DiskFiles, "append", full)
            add(table, 12)
            wait_for(lambda: (told := table.stats().file) is not None and "a disk" in told.problem, "no problem")
            with pytest.raises(errors.StorageFull):
                table.sync()
        wait_for(lambda: relive.saved(tmp_path / "table").num_steps == 12, "no save")
        wait_for(lambda: (told := table.stats().file) is not None and told.problem == "", "the problem stays")


def test_a_table_that_cannot_be_made_leaves_no_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, "append", full)
        with pytest.raises(errors.StorageFull):
            opened(tmp_path / "table")
    assert not (tmp_path / "table" / "region").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("mine")
    with pytest.raises(errors.InvalidConfig, match="note.txt"):
        opened(tmp_path / "other")
    assert os.listdir(tmp_path / "other") == ["note.txt"]


def test_a_folder_that_disappears(tmp_path: Path) -> None:
    table = opened(tmp_path / "table")
    add(table, 12)
    subprocess.run(["rm", "-rf", tmp_path / "table"], check=True)
    with pytest.raises((errors.SystemFailure, FileNotFoundError)):
        table.sync()
    with pytest.raises((errors.SystemFailure, FileNotFoundError)):
        table.close()
    assert table.closed
    table.close()


def test_ctrl_c_in_a_close_leaves_the_rest_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(tmp_path / "table")
    add(table, 12)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "sync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.close()
    assert not table.closed and len(table) == 12
    table.close()
    assert relive.saved(tmp_path / "table").num_steps == 12


def test_a_close_in_a_signals_handler_that_interrupts_a_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = opened(tmp_path / "table")
    add(table, 12)
    sync = Keeper.sync

    def closes(keeper: Keeper, timeout_s: float) -> None:
        table.close()
        sync(keeper, timeout_s)

    monkeypatch.setattr(Keeper, "sync", closes)
    table.close()
    assert table.closed and relive.saved(tmp_path / "table").num_steps == 12


def test_a_dropped_handle_leaves_its_table(tmp_path: Path) -> None:
    table = opened(tmp_path / "table")
    add(table, 12)
    threads = threading.active_count()
    del table
    wait_for(lambda: threading.active_count() < threads, "the thread stays")
    assert len_of(tmp_path / "table") == 12


def test_an_error_that_nobody_expects_ends_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any, **__: Any) -> None:
        raise RuntimeError("what no save expects")

    with opened(tmp_path / "table") as table:
        with monkeypatch.context() as patch:
            patch.setattr(keeping, "Saving", breaks)
            with pytest.raises(RuntimeError, match="no save expects"):
                table.sync()
        table.sync()


# ---- damaged files ---------------------------------------------------------------------------------------------------

NUM_FLIPS = int(os.environ.get("RELIVE_FLIPS", "60"))


@pytest.mark.forms(1)
@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_word_is_an_error_or_a_sound_table(tmp_path: Path, seed: int) -> None:
    """RELIVE_FLIPS=1000 flips 2,000 words."""
    lines = """
table = opened(folder)
writer = table.writer()
for number in range(1500):
    append(writer, number)
os.kill(os.getpid(), signal.SIGKILL)
"""
    child(tmp_path / "table", lines).wait()
    region = tmp_path / "table" / "region"
    whole = region.read_bytes()
    end = _slabs_at(tmp_path / "table")
    rng = np.random.default_rng(seed)
    for _ in range(NUM_FLIPS):
        words = np.frombuffer(whole, np.uint64).copy()
        used = np.flatnonzero(words[: end // 8]) if rng.random() < 0.7 else np.arange(end // 8)
        at = int(rng.choice(used))
        words[at] = [words[at] ^ np.uint64(1 << int(rng.integers(64))), 0, 2**64 - 1, int(rng.integers(2**40))][
            int(rng.integers(4))
        ]
        with open(region, "r+b") as file:
            file.write(words.tobytes())
        pid = os.fork()
        if pid == 0:
            os._exit(_tried(tmp_path / "table"))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status in (0, 1), f"word {at} {hex(int(words[at]))}: status {status}"
    with open(region, "r+b") as file:
        file.write(whole)
    assert len_of(tmp_path / "table") >= 900


def _slabs_at(folder: Path) -> int:
    with relive.attach(relive.File(folder), read_only=True) as table:
        return int(table.core.geometry["slabs_offset"])


def _tried(folder: Path) -> int:
    signal.alarm(30)
    try:
        table = relive.attach(relive.File(folder, None), timeout_s=3.0)
    except relive.ReliveError:
        return 1
    try:
        table.check()
        return 0
    except relive.ReliveError:
        return 5


def test_a_region_that_is_cut_short_or_of_another_format(tmp_path: Path) -> None:
    with opened(tmp_path / "table") as table:
        add(table, 10)
    region = tmp_path / "table" / "region"
    whole = region.read_bytes()
    region.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(errors.FormatMismatch):
        opened(tmp_path / "table")
    region.write_bytes(b"nothing")
    with pytest.raises(errors.NotARegion):
        opened(tmp_path / "table")
    region.unlink()
    assert len_of(tmp_path / "table") == 10


# ---- ls and rm -------------------------------------------------------------------------------------------------------


def test_tables_in_folders_are_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with opened(tmp_path / "one") as table:
        add(table, 10)
        opened(tmp_path / "two").close()
        rows = relive.list_tables(tmp_path)
        assert [(Path(row.name).name, row.num_steps, row.alive) for row in rows] == [
            ("one", 10, True),
            ("two", 0, False),
        ]
        with pytest.raises(errors.InUse):
            relive.remove(relive.File(tmp_path / "one"))
        assert run(["ls", str(tmp_path)]) == 0
        assert "one" in capsys.readouterr().out
        assert run(["rm", str(tmp_path / "one")]) == 1
    (tmp_path / "two" / "note.txt").write_text("mine")
    assert run(["rm", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    assert not (tmp_path / "one").exists() and os.listdir(tmp_path / "two") == ["note.txt"]
    with pytest.raises(errors.NoSuchTable):
        relive.remove(relive.File(tmp_path / "one"))
    assert json.dumps(relive.File(tmp_path / "one").sync_s) == "10.0"


@pytest.mark.usefixtures("in_memory")
def test_memory_elsewhere_is_saved_at_the_last_close_whatever_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every change moves a counter, and the close frees the memory."""
    monkeypatch.setattr(Keeper, "_state", lambda keeper: 0)
    with opened(tmp_path / "table") as table:
        table.sync()
        add(table, 12)
    assert relive.saved(tmp_path / "table").num_steps == 12
