"""Tables that live in folders: kills, restarts of the machine, several processes, full disks, damaged files."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.saving.disk_files import DiskFiles
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
    """Leaves a region of another boot, as a restart of the machine does."""
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


def wait_for(condition: Any, what: str) -> None:
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.01)


def full(*_: Any) -> None:
    raise errors.StorageFull("a disk", 1, 0)


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
        with pytest.raises(errors.NameTaken, match=r"in use by this process; .* attach\(File\(.*/table'\)\)") as taken:
            relive.load(tmp_path / "elsewhere", storage=relive.File(tmp_path / "table"))
        assert "SharedMemory" not in str(taken.value)
        with relive.load(tmp_path / "elsewhere", storage=relive.File(tmp_path / "new"), capacity=2000) as bigger:
            assert bigger.capacity == 2000 and len(bigger) == 3
    assert len_of(tmp_path / "new") == 3
