"""A failure or an interrupt at every operation: the save before stays whole, and the next save leaves no garbage."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relive.errors import SaveInUse, StorageFull, SystemFailure
from relive.saving import folder, reader
from relive.saving.current import line_of, read_current
from relive.saving.reader import open_save
from saving.power import Disk, File, MemoryFiles
from saving.tools import leftovers, number_of, read, save
from saving.watched import Fail, Hook, Names, watched

ERRORS: dict[str, Callable[[], BaseException]] = {
    "disk full": lambda: StorageFull("memory", 8 << 20, 0),
    "input or output error": lambda: SystemFailure("writing to memory", errno.EIO),
    "read-only": lambda: SystemFailure("writing to memory", errno.EROFS),
    "interrupt": KeyboardInterrupt,
}


def saved_twice() -> Disk:
    disk = Disk()
    for number in (1, 2):
        save(MemoryFiles(disk), number)
    return disk


def num_operations() -> int:
    hook = Hook()
    save(watched(saved_twice(), hook), 3)
    return len(hook.calls)


@pytest.mark.parametrize("after", [False, True], ids=["instead", "after"])
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_at_each_operation(name: str, after: bool) -> None:
    for at in range(num_operations()):
        disk, error = saved_twice(), ERRORS[name]()
        hook = Fail(at, error, after=after)
        failed = None
        try:
            save(watched(disk, hook), 3)
        except (StorageFull, SystemFailure, KeyboardInterrupt) as raised:
            failed = raised
        if hook.failed == "close":
            continue  # the system closes the files of a process that ends
        left = read(MemoryFiles(disk))
        assert left == 3 if failed is None else left in (2, 3)
        assert disk.locked_by is None, f"{hook.failed} left the folder locked"
        assert failed in (None, error)
        save(MemoryFiles(disk), 4)
        assert read(MemoryFiles(disk)) == 4 and not leftovers(disk)


@pytest.mark.parametrize("name", ["disk full", "input or output error"])
def test_an_error_at_each_operation_of_the_first_save(name: str) -> None:
    hook = Hook()
    save(watched(Disk(), hook), 1)
    assert hook.calls.pop()[0] == "close"
    for at in range(len(hook.calls)):
        disk = Disk()
        try:
            save(watched(disk, Fail(at, ERRORS[name]())), 1)
        except (StorageFull, SystemFailure):
            assert read(MemoryFiles(disk)) in (0, 1)
        save(MemoryFiles(disk), 2)
        assert read(MemoryFiles(disk)) == 2 and not leftovers(disk)


class _FailedSync(Hook):
    """A sync that fails once. The system forgets which blocks it has not written; later syncs of the file succeed."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.failed, self.files = at, False, None
        self.num_syncs = 0

    def changed(self, number: int, operation: str, names: Names, do: Callable[[], Any]) -> Any:
        if operation != "sync":
            return do()
        self.num_syncs += 1
        if self.num_syncs - 1 != self.at:
            return do()
        self.failed = True
        assert self.files is not None
        handle = next(handle for handle, opened in self.files.opened.items() if opened == names)
        self.files.inner.handles[handle].is_lost = True
        raise SystemFailure("syncing a file of memory", errno.EIO)


@pytest.mark.parametrize("seed", range(20))
def test_a_failed_sync_fails_the_save(seed: int) -> None:
    for at in range(10):
        disk, hook = saved_twice(), _FailedSync(at)
        files: Any = watched(disk, hook)
        hook.files = files
        try:
            save(files, 3)
            assert not hook.failed
            break
        except SystemFailure:
            pass
        disk.cut_power(100 * seed + at)
        assert read(MemoryFiles(disk)) == 2
        save(MemoryFiles(disk), 3)
        assert read(MemoryFiles(disk)) == 3 and not leftovers(disk)
    assert at >= 4, "segment, cut, blob, CURRENT"


def test_the_files_of_a_failed_save_go_at_once() -> None:
    """A disk that is full stays full if the failed save leaves its pages there."""
    hook = Hook()
    save(watched(saved_twice(), hook), 3)
    renamed = [operation for operation, _ in hook.calls].index("rename")
    appends = [at for at, (operation, _) in enumerate(hook.calls) if operation == "append" and at < renamed]
    assert len(appends) > 3
    for at in appends:
        disk = saved_twice()
        with pytest.raises(StorageFull):
            save(watched(disk, Fail(at, StorageFull("memory", 1, 0))), 3)
        assert not leftovers(disk)


def test_two_savers() -> None:
    disk = Disk()
    files = MemoryFiles(disk)
    files.lock()
    with pytest.raises(SaveInUse):
        save(MemoryFiles(disk), 1)
    assert disk.paths() == set()
    files.close()
    save(MemoryFiles(disk), 1)


def test_files_that_no_save_has_named_stay() -> None:
    disk = saved_twice()
    strange = ["01.pages", "x.pages", "7.pages.bak", "٣.pages", "notes.txt", "-1.pages", "²"]
    places = ("segments", "cuts", "beside")
    for place in places:
        for name in strange:
            disk.root.nodes[place].nodes[name] = disk.root.nodes["CURRENT"]
    save(MemoryFiles(disk), 3)
    assert leftovers(disk) == {f"{place}/{name}" for place in places for name in strange}


def test_a_reader_of_the_save_before() -> None:
    """If a newer save removes files under a reader, the reader goes on with its open files, or starts again."""
    hook = Hook()
    open_save("memory", watched(saved_twice(), hook)).close()
    for at in range(len(hook.calls)):
        disk = saved_twice()
        with open_save("memory", watched(disk, _Saves(disk, at))) as found:
            assert found.facts["number"] in (2, 3)
            if found.facts["number"] == 3:
                assert number_of(found) == 3


def test_a_reader_keeps_the_blobs_of_its_save() -> None:
    """A newer save removes them as it removes the pages: neither may be reported as damage."""
    disk = saved_twice()
    with open_save("memory", MemoryFiles(disk)) as found:
        save(MemoryFiles(disk), 3)
        assert not any("beside/2/" in path for path in disk.paths())
        assert number_of(found) == 2


def test_a_reader_holds_few_files_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_BLOBS", 3)
    disk = Disk()
    one = folder.SaveFolder.open("memory", MemoryFiles(disk))
    blobs = {f"blob {number}": bytes([number]) for number in range(9)}
    one.commit([], np.zeros(0, folder.IMAGE), {}, blobs, 1)
    one.close()
    files = MemoryFiles(disk)
    with open_save("memory", files) as found:
        assert len(files.handles) == 1 + 3
        for _ in range(2):
            assert {name: found.blob(name) for name in found.blob_names()} == blobs
    assert not files.handles


class _Saves(Hook):
    """Another process saves before one operation."""

    def __init__(self, disk: Disk, at: int) -> None:
        super().__init__()
        self.disk, self.at = disk, at

    def changed(self, number: int, operation: str, names: Names, do: Callable[[], Any]) -> Any:
        if number == self.at:
            save(MemoryFiles(self.disk), 3)
        return do()


def test_many_small_saves_name_few_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (folder, reader):
        monkeypatch.setattr(module, "MOST_SEGMENTS", 3)
    disk = Disk()
    for number in range(1, 30):
        save(MemoryFiles(disk), number)
        assert read(MemoryFiles(disk)) == number and not leftovers(disk)
        assert len(MemoryFiles(disk).names("segments")) <= 3


def test_a_thousand_kept_saves_of_many_segments_are_read() -> None:
    segments = [2**20 + k for k in range(256)]
    line = line_of({"folder": "x", "cuts": [[number, segments] for number in range(1000, 0, -1)]})
    disk = Disk()
    disk.root.nodes["CURRENT"] = File(bytearray(line))
    assert [cut.number for cut in read_current(MemoryFiles(disk), "memory", "x")] == list(range(1000, 0, -1))
