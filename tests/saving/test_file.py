"""Tables that live in folders: kills, restarts of the machine, several processes, full disks, damaged files."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import _core, errors
from relive.cli.entry import run
from relive.saving.files import DiskFiles
from relive.saving.keeping import Keeper
from relive.saving.place import Place

SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((2,), "float32", kind="state"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
    }
)
BOOT_AT, BOOT_BYTES = 32, 40  # of the boot's id in a region
NFS = 0x6969


def opened(folder: Path, sync_s: float | None = None, **options: Any) -> relive.Table:
    given = {"capacity": 1000, "index": relive.Index(sampler=relive.Prioritized(0.6)), "timeout_s": 20.0, **options}
    return relive.Table(SPEC, storage=relive.File(folder, sync_s), **given)


def add(table: relive.Table, count: int, first: int = 0) -> list[int]:
    with table.writer() as writer:
        return [append(writer, number) for number in range(first, first + count)]


def append(writer: Any, number: int) -> int:
    state = np.full(2, number, np.float32)
    key = writer.append(
        observation=state, action=number, reward=number, next_observation=state + 1, terminated=number % 10 == 9
    )
    return int(key)


def all_actions(table: relive.Table) -> set[int]:
    found: set[int] = set()
    for _ in range(60):
        found |= set(table.sample(256)["action"].tolist())
    return found


def restart(folder: Path) -> None:
    """What a restart of the machine leaves: a region of another boot."""
    with open(Place.of(str(folder)).region, "r+b") as file:
        file.seek(BOOT_AT)
        file.write(b"another boot".ljust(BOOT_BYTES, b"\0"))


def child(folder: Path, lines: str, *more: str) -> subprocess.Popen[str]:
    """A process with an open table and these lines."""
    code = f"""
import os, signal, sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import relive
from pathlib import Path
from relive import _core
from saving.test_file import add, all_actions, append, opened
folder = Path({str(folder)!r})
{lines}
"""
    return subprocess.Popen(
        [sys.executable, "-c", code, *more], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is on a file system that other hosts use."""
    monkeypatch.setattr(_core, "file_system_kind", lambda folder: NFS)


# ---- open, close, attach ---------------------------------------------------------------------------------------------


def test_a_table_goes_on_where_its_last_close_left_it(tmp_path: Path) -> None:
    with opened(tmp_path / "table") as table:
        keys = add(table, 300)
        table.update_priorities(keys[:10], np.full(10, 9.0))
        uuid = table.core.geometry["uuid"]
    assert relive.saved(tmp_path / "table").num_steps == 300
    with opened(tmp_path / "table") as table:
        assert len(table) == 300 and table.core.geometry["uuid"] == uuid and table.loaded is None
        assert table.stats().indexes["default"].max_priority == 9.0
        table.check()
        add(table, 5, 300)
        assert set(table.gather(keys)["action"].tolist()) == set(range(300))


def test_a_table_that_lives_there_must_be_the_one_that_is_asked_for(tmp_path: Path) -> None:
    opened(tmp_path / "table").close()
    for options, field in (
        ({"index": relive.Index()}, "index"),
        ({"seed": 7}, "seed"),
        ({"max_lanes": 3}, "max_lanes"),
    ):
        with pytest.raises(errors.InvalidConfig, match=f"^{field} of the table that lives in"):
            opened(tmp_path / "table", **options)
    (tmp_path / "table" / "region").unlink()
    with pytest.raises(errors.InvalidConfig, match="^seed of the table that lives in"):
        opened(tmp_path / "table", seed=7)
    opened(tmp_path / "table", timeout_s=3.0).close()


def test_handles_attach_by_the_path_and_pickled(tmp_path: Path) -> None:
    storage = relive.File(tmp_path / "table")
    with pytest.raises(errors.NoSuchTable):
        relive.attach(storage)
    with opened(tmp_path / "table") as table:
        add(table, 10)
        with relive.attach(storage) as other, pickle.loads(pickle.dumps(table)) as third:
            assert len(other) == len(third) == 10 and third.config.storage == table.config.storage
        with relive.attach(storage, read_only=True) as reader:
            assert len(reader) == 10 and reader.stats().file is None
            with pytest.raises(errors.ReadOnly):
                reader.sync()
        reopen = table.reopens()
        assert reopen is not None
        with reopen(3) as fourth:
            assert len(fourth) == 10


def test_the_last_of_several_handles_saves(tmp_path: Path) -> None:
    first, storage = opened(tmp_path / "table"), relive.File(tmp_path / "table", None)
    second = relive.attach(storage)
    add(first, 20)
    first.close()
    assert relive.saved(tmp_path / "table").num_steps == 0
    add(second, 5, 20)
    second.close()
    assert relive.saved(tmp_path / "table").num_steps == 25


def test_a_table_that_is_left_open_is_saved_at_the_end_of_the_process(tmp_path: Path) -> None:
    process = child(tmp_path / "table", "table = opened(folder); add(table, 30)")
    assert process.wait(60) == 0
    assert relive.saved(tmp_path / "table").num_steps == 30


def test_a_forked_child_saves_nothing(tmp_path: Path) -> None:
    lines = """
table = opened(folder, 0.05); add(table, 30); table.sync()
pid = os.fork()
if pid == 0:
    try:
        table.sync()
    except relive.errors.InvalidConfig:
        add(table, 3, 100)
        table.close()
        os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), relive.saved(folder).num_steps, len(table), flush=True)
table.close()
"""
    process = child(tmp_path / "table", lines)
    assert said(process) in ("7 30 33", "7 33 33")  # the parent's thread may have saved meanwhile
    assert process.wait(60) == 0 and relive.saved(tmp_path / "table").num_steps == 33


# ---- kills and restarts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 57, 400, 1500])
def test_sigkill_loses_nothing(tmp_path: Path, after: int) -> None:
    lines = """
table = opened(folder, 0.05)
writer = table.writer()
for number in range(100_000):
    append(writer, number)
    print(number, flush=True)
"""
    process = child(tmp_path / "table", lines)
    for _ in range(after):
        last = int(said(process))
    process.kill()
    assert process.stdout is not None
    for line in process.stdout:  # acknowledged before the kill
        last = int(line) if line.endswith("\n") else last
    process.wait()
    with opened(tmp_path / "table") as table:
        table.check()
        kept = all_actions(table)
        assert set(range(max(last - 900, 0), last + 1)) <= kept
        add(table, 30, 200_000)
    assert relive.saved(tmp_path / "table").num_steps == len_of(tmp_path / "table")


def len_of(folder: Path) -> int:
    with relive.attach(relive.File(folder, None)) as table:
        return len(table)


def test_a_restart_of_the_machine_leaves_the_last_save(tmp_path: Path) -> None:
    lines = """
table = opened(folder); add(table, 50); table.sync(); add(table, 20, 50)
print(len(table), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = child(tmp_path / "table", lines)
    assert said(process) == "70"
    process.wait()
    restart(tmp_path / "table")
    with pytest.raises(errors.NoSuchTable):
        relive.attach(relive.File(tmp_path / "table"), read_only=True)
    with relive.attach(relive.File(tmp_path / "table")) as table:
        table.check()
        assert len(table) == 50 and table.loaded is not None and table.loaded.keeps_keys
        assert all_actions(table) <= set(range(50))
        new = add(table, 5, 90)
        assert table.gather(np.array(new))["action"].tolist() == [90, 91, 92, 93, 94]
    assert relive.saved(tmp_path / "table").num_steps == 55


def test_a_table_that_was_closed_needs_no_save_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path / "table") as table:
        add(table, 40)
        uuid = table.core.geometry["uuid"]
    restart(tmp_path / "table")
    table = opened(tmp_path / "table")
    assert table.core.geometry["uuid"] == uuid and len(table) == 40
    table.close()


def test_a_copy_of_a_folder_in_use_is_built_from_its_save(tmp_path: Path) -> None:
    with opened(tmp_path / "table") as table:
        add(table, 40)
        table.sync()
        add(table, 7, 40)
        subprocess.run(["cp", "-r", tmp_path / "table", tmp_path / "copy"], check=True)
        with opened(tmp_path / "copy") as copy:
            assert len(copy) == 40 and copy.core.geometry["uuid"] != table.core.geometry["uuid"]


def test_a_region_that_another_host_has_outlived_is_left_out(tmp_path: Path) -> None:
    """The newest save is of another region: the table went on elsewhere."""
    with opened(tmp_path / "table") as table:
        add(table, 10)
    old = (tmp_path / "table" / "region").read_bytes()
    (tmp_path / "table" / "region").unlink()
    with opened(tmp_path / "table") as table:
        add(table, 10, 10)
    (tmp_path / "table" / "region").write_bytes(old)
    assert len_of(tmp_path / "table") == 20


# ---- saves by itself -------------------------------------------------------------------------------------------------


def wait_for(condition: Any, what: str) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.01)


def test_a_table_saves_itself_when_something_has_changed(tmp_path: Path) -> None:
    with opened(tmp_path / "table", 0.05) as table:
        keys = add(table, 10)
        wait_for(lambda: relive.saved(tmp_path / "table").num_steps == 10, "no save")
        number = relive.saved(tmp_path / "table").number
        time.sleep(0.3)
        assert relive.saved(tmp_path / "table").number <= number + 1, "a save without a change"
        for change in (
            lambda: table.update_priorities(keys[:2], [3.0, 4.0]),
            lambda: table.sample(4),
            lambda: table.set_policy_version(3),
            lambda: table.set_priority_exponent(0.3),
        ):
            number = relive.saved(tmp_path / "table").number
            change()
            wait_for(lambda number=number: relive.saved(tmp_path / "table").number > number, "a change without a save")
        told = table.stats().file
        assert told is not None and told.saver and told.region == str(tmp_path / "table" / "region")
        assert told.saved_s is not None and told.saved_s < 20 and told.reason == told.problem == ""


def test_another_process_saves_when_the_saver_was_killed(tmp_path: Path) -> None:
    process = child(tmp_path / "table", "table = opened(folder, 0.05); print(1, flush=True); time.sleep(100)")
    assert said(process) == "1"
    with opened(tmp_path / "table", 0.05) as table:
        wait_for(lambda: _is_saver_elsewhere(table), "no saver")
        process.kill()
        process.wait()
        add(table, 12)
        wait_for(lambda: relive.saved(tmp_path / "table").num_steps == 12, "nobody saves")
        told = table.stats().file
        assert told is not None and told.saver


def _is_saver_elsewhere(table: relive.Table) -> bool:
    told = table.stats().file
    return told is not None and not told.saver


def test_sync_waits_for_a_save_that_begins_after_it(tmp_path: Path) -> None:
    with opened(tmp_path / "table") as table:
        for count in range(1, 6):
            add(table, 3, 3 * count)
            table.sync(20.0)
            assert relive.saved(tmp_path / "table").num_steps == 3 * count
        threads = [threading.Thread(target=table.sync) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with pytest.raises(errors.TableClosed):
        table.sync()
    with relive.Table(SPEC, 100) as local, pytest.raises(errors.InvalidConfig, match="save"):
        local.sync()


def test_a_sync_beside_another_save_waits_and_has_a_deadline(tmp_path: Path) -> None:
    with opened(tmp_path / "table") as table:
        add(table, 3)
        other = DiskFiles(str(tmp_path / "table"), makes=False)
        other.lock()
        with pytest.raises(errors.DeadlineExceeded):
            table.sync(0.2)
        other.close()
        table.sync(20.0)


def test_only_the_table_itself_saves_into_its_folder(tmp_path: Path) -> None:
    with opened(tmp_path / "table") as table, relive.Table(SPEC, 100) as local:
        add(table, 3)
        for one in (table, local):
            with pytest.raises(errors.InvalidConfig, match="no table lives"):
                one.save(tmp_path / "table")
        table.sync()
        table.save(tmp_path / "elsewhere")
        assert relive.saved(tmp_path / "elsewhere").num_steps == 3
        with relive.load(tmp_path / "table") as copy:
            assert len(copy) == 3
        with pytest.raises(errors.NameTaken):
            relive.load(tmp_path / "elsewhere", storage=relive.File(tmp_path / "table"))
        with relive.load(tmp_path / "elsewhere", storage=relive.File(tmp_path / "new"), capacity=2000) as bigger:
            assert bigger.capacity == 2000 and len(bigger) == 3
    assert len_of(tmp_path / "new") == 3


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
        patch.setattr(DiskFiles, "append", _full)
        with pytest.raises(errors.StorageFull):
            table.close()
    assert table.closed and relive.saved(tmp_path / "table").num_steps == 0
    with opened(tmp_path / "table") as table:
        assert len(table) == 12 and table.loaded is None
    assert relive.saved(tmp_path / "table").num_steps == 12


def _full(*_: Any) -> None:
    raise errors.StorageFull("a disk", 1, 0)


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
            patch.setattr(DiskFiles, "append", _full)
            add(table, 12)
            wait_for(lambda: (told := table.stats().file) is not None and "a disk" in told.problem, "no problem")
            with pytest.raises(errors.StorageFull):
                table.sync()
        wait_for(lambda: relive.saved(tmp_path / "table").num_steps == 12, "no save")
        wait_for(lambda: (told := table.stats().file) is not None and told.problem == "", "the problem stays")


def test_a_table_that_cannot_be_made_leaves_no_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, "append", _full)
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


# ---- damaged files ---------------------------------------------------------------------------------------------------

NUM_FLIPS = int(os.environ.get("RELIVE_FLIPS", "60"))


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
