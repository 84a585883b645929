"""The files of a save on a real disk: links, pipes, short writes, folders that go, two savers."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import weakref
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.interrupts import interrupted_at

from relive.errors import DamagedSave, InvalidConfig, NoSuchSave, ReliveError, SaveInUse, StorageFull, SystemFailure
from relive.saving import disk_files
from relive.saving.disk_files import DiskFiles, _locks
from relive.saving.folder import IMAGE, SaveFolder
from saving.tools import read, save


def test_saves_and_reads(tmp_path: Path) -> None:
    path = str(tmp_path / "runs" / "one")
    assert read(None, path) == 0
    for number in range(1, 6):
        cut = save(None, number, path=path)
        assert read(None, path) == cut.number == number
    assert sorted(os.listdir(path)) == ["CURRENT", "beside", "cuts", "lock", "relive-save.json", "segments"]
    assert os.listdir(f"{path}/cuts") == ["5.cut"] and os.listdir(f"{path}/beside") == ["5"]


def test_the_folders_above_outlast_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save that has returned is lost if the name of its folder is."""
    synced, sync = set(), os.fsync

    def noted(handle: int) -> None:
        synced.add(os.stat(handle).st_ino)
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    save(None, 1, path=str(tmp_path / "a" / "b" / "c"))
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"):
        assert folder.stat().st_ino in synced


def test_a_blob_is_stored_as_it_was_given(tmp_path: Path) -> None:
    with_blobs = {"model.bin": b"weights", "empty": b"", "ü ñ": bytes(9000)}
    folder = SaveFolder.open(str(tmp_path))
    folder.commit([], np.zeros(0, IMAGE), {}, with_blobs, 1)
    folder.close()
    for name, data in with_blobs.items():
        assert (tmp_path / "beside" / "1" / name).read_bytes() == data


@pytest.mark.parametrize("most", [1, 700, 4096, 5000])
def test_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: write(handle, data[:most], at))
    save(None, 1, path=str(tmp_path))
    assert read(None, str(tmp_path)) == 1


def test_short_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(None, 1, path=str(tmp_path))
    get = os.preadv
    monkeypatch.setattr(os, "preadv", lambda handle, into, at: get(handle, [into[0][:100]], at))
    assert read(None, str(tmp_path)) == 1


def test_direct_writes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    control = fcntl.fcntl

    def refused(handle: int, command: int, value: int = 0) -> int:
        if command == fcntl.F_SETFL and value & os.O_DIRECT:
            tried.append(handle)
            raise OSError(errno.EINVAL, "no direct writes")
        return control(handle, command, value)

    monkeypatch.setattr(fcntl, "fcntl", refused)
    save(None, 1, path=str(tmp_path))
    assert read(None, str(tmp_path)) == 1 and tried


def test_writes_that_write_nothing_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: 0)
    with pytest.raises(SystemFailure):
        save(None, 1, path=str(tmp_path))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_how_much_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    save(None, 1, path=str(tmp_path))

    def full(handle: int, data: memoryview, at: int) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageFull) as failed:
        save(None, 2, path=str(tmp_path))
    assert failed.value.path == str(tmp_path)
    assert failed.value.needs_bytes > 0 and failed.value.has_bytes > 0
    assert "another folder" in str(failed.value) and "capacity" not in str(failed.value)
    monkeypatch.undo()
    assert read(None, str(tmp_path)) == 1
    save(None, 2, path=str(tmp_path))
    assert read(None, str(tmp_path)) == 2


@pytest.mark.parametrize("call", ["open", "mkdir", "rename", "unlink", "pwrite", "fsync"])
def test_a_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Tests run as root, for which no folder is read-only: the calls fail as they do on a read-only file system."""
    for number in (1, 2):
        save(None, number, path=str(tmp_path))
    real = getattr(os, call)

    def refused(*given: Any, **named: Any) -> Any:
        is_read = call == "open" and not given[1] & (os.O_WRONLY | os.O_RDWR)
        if is_read or (call == "mkdir" and given[0] in ("segments", "cuts", "beside")):
            return real(*given, **named)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, call, refused)
    try:
        save(None, 3, path=str(tmp_path))
        number = 3  # only removals fail, and those are for the next save
        assert call == "unlink"
    except SystemFailure as failed:
        assert failed.errno == errno.EROFS
        number = 2
    monkeypatch.undo()
    assert read(None, str(tmp_path)) == number
    save(None, 4, path=str(tmp_path))
    assert read(None, str(tmp_path)) == 4


@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
def test_a_folder_that_goes_during_the_save(tmp_path: Path, again: bool) -> None:
    path = tmp_path / "one"
    folder = SaveFolder.open(str(path))
    segment = folder.new_segment()
    segment.append(memoryview(bytes(4096)))
    shutil.rmtree(path)
    if again:
        path.mkdir()
        (path / "mine").write_text("of the user")
    with pytest.raises(SystemFailure):
        folder.commit([], np.zeros(0, IMAGE), {}, {"model": b"x"}, 1)
    folder.close()
    assert [one.name for one in path.iterdir()] == ["mine"] if again else not path.exists()


# ---- two savers ------------------------------------------------------------------------------------------------------


def test_two_savers_of_one_process(tmp_path: Path) -> None:
    folder = SaveFolder.open(str(tmp_path))
    with pytest.raises(SaveInUse) as refused:
        SaveFolder.open(str(tmp_path))
    assert refused.value.path == str(tmp_path) and refused.value.pids == (os.getpid(),)
    folder.close()
    SaveFolder.open(str(tmp_path)).close()


def test_a_lock_whose_file_is_removed_as_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saver must lock the file that has the name: a second saver would lock that one."""
    lock, tries = fcntl.flock, []

    def removed_first(handle: int, command: int) -> None:
        if not tries:
            (tmp_path / "lock").unlink()
        tries.append(handle)
        lock(handle, command)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    folder = SaveFolder.open(str(tmp_path))
    with pytest.raises(SaveInUse):
        SaveFolder.open(str(tmp_path))
    folder.close()
    SaveFolder.open(str(tmp_path)).close()


def test_an_interrupt_at_any_step_leaves_the_folder_unlocked(tmp_path: Path) -> None:
    def lock() -> None:
        with closing(DiskFiles(str(tmp_path), makes=True)) as files:
            files.lock()

    for at in count():
        raised = interrupted_at(at, lock, disk_files.__file__, weakref.__file__)
        is_over = raised is None
        raised = None  # its frames have the files
        with closing(DiskFiles(str(tmp_path), makes=True)) as files:
            assert files.try_lock("lock"), at
        if is_over:
            break
    assert at > 20


HOLDS = """
import sys
from relive.saving.folder import SaveFolder
folder = SaveFolder.open(sys.argv[1])
folder.new_segment().append(memoryview(bytes(4096)))
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_saver_of_another_process_and_its_death(tmp_path: Path) -> None:
    save(None, 1, path=str(tmp_path))
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "locked\n"
        with pytest.raises(SaveInUse) as refused:
            save(None, 2, path=str(tmp_path))
        assert refused.value.pids == (other.pid,) and str(other.pid) in str(refused.value)
        assert read(None, str(tmp_path)) == 1
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.communicate()
    save(None, 2, path=str(tmp_path))
    assert read(None, str(tmp_path)) == 2 and os.listdir(tmp_path / "segments").count("2.pages") == 1


def _waits(pipe: Any) -> None:
    pipe.send("there")
    pipe.recv()


def test_a_forked_child_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    folder = SaveFolder.open(str(tmp_path))
    child = context.Process(target=_waits, args=(there,))
    child.start()
    try:
        assert here.recv() == "there"
        os.close(_lock_of(folder))  # as the death of the saver does: a copy of the descriptor would keep the lock
        SaveFolder.open(str(tmp_path)).close()
    finally:
        here.send("end")
        child.join()
        folder.close()


def _lock_of(folder: SaveFolder) -> int:
    files: Any = folder._files
    lock = int(files._open.pop())
    _locks.discard(lock)
    return lock


# ---- folders that are none, links, pipes -----------------------------------------------------------------------------


def test_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(InvalidConfig):
        SaveFolder.open(str(tmp_path))
    assert os.listdir(tmp_path) == ["thesis.txt"]
    with pytest.raises(NoSuchSave):
        read_all(str(tmp_path))


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 300])
def test_paths_that_no_folder_can_have(tmp_path: Path, name: str) -> None:
    for call in (lambda: SaveFolder.open(f"{tmp_path}/{name}"), lambda: read_all(f"{tmp_path}/{name}")):
        with pytest.raises(ReliveError):
            call()


@pytest.mark.parametrize("names", [("..", "x"), ("a/b",), ("",), (".",), ("/etc/passwd",), ("cuts", "../x"), ("\0",)])
def test_no_name_leaves_the_folder(tmp_path: Path, names: tuple[str, ...]) -> None:
    (tmp_path / "in" / "cuts").mkdir(parents=True)
    files = DiskFiles(str(tmp_path / "in"), makes=False)
    for call in (files.open, files.create, files.remove, files.make_folder):
        with pytest.raises(SystemFailure):
            call(*names)
    files.remove_folder(*names)
    files.close()
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


PLACES = [
    "relive-save.json",
    "CURRENT",
    "cuts/1.cut",
    "segments/1.pages",
    "beside/1/model",
    "cuts",
    "segments",
    "beside",
]


@pytest.mark.parametrize("kind", ["link", "loop", "pipe", "folder", "file", "nothing"])
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_file_of_a_save(tmp_path: Path, place: str, kind: str) -> None:
    path = tmp_path / "save"
    save(None, 1, path=str(path))
    other = tmp_path / "other"
    (path / place).rename(other)
    if kind == "link":
        (path / place).symlink_to(other)
    elif kind == "loop":
        (path / place).symlink_to(path / place)
    elif kind == "pipe":
        os.mkfifo(path / place)
    elif kind == "folder":
        (path / place).mkdir()
    elif kind == "file":
        (path / place).write_bytes(b"")
    with pytest.raises((DamagedSave, NoSuchSave)):
        read_all(str(path))
    try:
        save(None, 2, path=str(path))
        assert read(None, str(path)) == 2
    except ReliveError:
        pass
    assert other.exists() and (other.is_dir() or other.stat().st_size > 0), "a link leads to files of others"


def read_all(path: str) -> int:
    """Reads a save and raises NoSuchSave if there is none."""
    number = read(None, path)
    if number == 0:
        raise NoSuchSave(path)
    return number


def test_the_lock_may_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "save").mkdir()
    (tmp_path / "save" / "lock").symlink_to(tmp_path / "mine")
    with pytest.raises(ReliveError):
        save(None, 1, path=str(tmp_path / "save"))
    assert not (tmp_path / "mine").exists()


def test_a_folder_is_unlocked_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """A save that ends there must leave the lock to the next one of the same process."""
    program = """
import atexit, sys
@atexit.register
def saves_twice():  # registered first, so it runs after the finalizers of weakref have ended
    for _ in range(2):
        files = DiskFiles(sys.argv[1], makes=False)
        files.lock()
        files.close()
    print("twice")
import relive
from relive.saving.disk_files import DiskFiles
DiskFiles(sys.argv[1], makes=False).close()
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("twice\n", "")
