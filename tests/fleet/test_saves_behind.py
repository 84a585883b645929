"""Saves of all shards that go on while the program does: save(wait=False), and all of its ends."""

from __future__ import annotations

import _thread
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
import relive.fleet
from fleet.saves import cuts, num_saved
from fleet.tools import Owner, config_of, fill
from relive import errors
from relive.fleet import ShardedTable, ShardOwner, ShardsSaving, attach
from relive.saving.copying import Copying
from relive.saving.disk_files import DiskFiles

pytestmark = needs_shared_memory
OWNERS = "owner"  # the folder of saves of a shard that is served, below tmp_path


@pytest.fixture(params=["mapped", "service"])
def table(request: Any, shm_name: Any, tmp_path: Path) -> Iterator[ShardedTable]:
    """Shard 0 with 60 steps, which this process maps; shard 1 with 40 steps, mapped or served by its owner."""
    if request.param == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    with ExitStack() as stack:
        configs = [config_of(shm_name()) for _ in range(2)]
        owners = [stack.enter_context(ShardOwner(number, one)) for number, one in enumerate(configs)]
        places = [one.storage.name for one in configs]
        if request.param == "service":
            places[1] = owners[1].serve("grpc://127.0.0.1:0", saves=tmp_path / OWNERS)
        path = "service" if request.param == "service" else None
        whole = stack.enter_context(attach(places, path=path, timeout_s=30.0))
        fill(whole, 0, 0, 60)
        fill(whole, 1, 1_000, 40)
        yield whole


def until_done(saving: ShardsSaving) -> None:
    ends = time.monotonic() + 20.0
    while not saving.done:
        assert time.monotonic() < ends
        time.sleep(0.01)


# ---- what it gives -------------------------------------------------------------------------------------------------


def test_the_table_goes_on_while_its_shards_are_written(
    table: ShardedTable, slow: threading.Event, tmp_path: Path, shm_name: Any
) -> None:
    saving = table.save(tmp_path / "run", {"note": b"weights"}, wait=False)
    assert isinstance(saving, ShardsSaving) and not saving.done and 0.0 <= saving.progress <= 1.0
    assert "ShardsSaving" in repr(saving) and "done" not in repr(saving)
    later = [fill(table, 0, 60, 20), fill(table, 1, 2_000, 30)]  # after the moments: not in the save
    assert table.sample(16).num_items == 16
    with pytest.raises(errors.DeadlineExceeded, match="a save of all shards"):
        saving.wait(timeout_s=0.1)
    with pytest.raises(errors.NoSuchSave):
        relive.fleet.saved(tmp_path / "run")
    slow.set()
    facts = saving.wait(timeout_s=20.0)
    assert saving.done and saving.progress == 1.0 and "done" in repr(saving) and saving.wait() is facts
    assert (facts.number, facts.num_steps) == (1, 100) and list(facts.shards) == [0, 1]
    described = relive.fleet.saved(tmp_path / "run")
    assert described.num_steps == 100 and described.blob("note") == b"weights"
    assert num_saved(tmp_path / "run", shm_name) == (60, 40) and table.gather(np.concatenate(later)).present.all()


def test_progress_is_that_of_all_shards(
    table: ShardedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: threading.Event
) -> None:
    saving = table.save(tmp_path / "run", wait=False)
    parts = saving._parts.values()
    assert saving.progress == pytest.approx(sum(part.progress for part in parts) / 2)
    slow.set()
    saving.wait(20.0)
    assert [part.progress for part in parts] == [1.0, 1.0] and saving.progress == 1.0


def test_a_save_that_goes_on_keeps_the_saves_before(table: ShardedTable, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        fill(table, 0, 100 * number, 10)
        assert table.save(tmp_path / "run", {"n": b"%d" % number}, wait=False, keep=2).wait(20.0).number == number
    assert cuts(tmp_path / "run", 0) == [2, 3] and relive.fleet.saved(tmp_path / "run").blob("n") == b"3"


def test_what_wait_takes(table: ShardedTable, tmp_path: Path) -> None:
    saving = table.save(tmp_path / "run", wait=False)
    with pytest.raises(errors.InvalidConfig, match="timeout_s"):
        saving.wait(-1.0)
    assert saving.wait(float("inf")).number == 1
    with pytest.raises(errors.InvalidConfig, match="wait"):
        table.save(tmp_path / "run", wait="no")  # type: ignore[call-overload]


# ---- how it ends ---------------------------------------------------------------------------------------------------


def test_a_second_save_into_the_folder_meanwhile(
    table: ShardedTable, slow: threading.Event, tmp_path: Path, shm_name: Any
) -> None:
    saving = table.save(tmp_path / "run", wait=False)
    for waits in (True, False):
        with pytest.raises(errors.SaveInUse) as refused:
            table.save(tmp_path / "run", wait=waits)
        assert refused.value.path == str(tmp_path / "run") and os.getpid() in refused.value.pids
    slow.set()
    assert saving.wait(20.0).number == 1  # the refused calls ended nothing
    assert table.save(tmp_path / "run").number == 2 and num_saved(tmp_path / "run", shm_name) == (60, 40)


def test_a_save_that_is_cancelled_leaves_the_one_before(
    table: ShardedTable, slow: threading.Event, tmp_path: Path, shm_name: Any
) -> None:
    slow.set()
    table.save(tmp_path / "run")
    slow.clear()
    fill(table, 0, 60, 20)
    fill(table, 1, 2_000, 20)
    saving = table.save(tmp_path / "run", wait=False)
    threading.Timer(0.5, slow.set).start()
    saving.cancel()
    with pytest.raises(errors.SaveCancelled) as cancelled:
        saving.wait(20.0)
    assert cancelled.value.path == str(tmp_path / "run") and saving.done and "failed" in repr(saving)
    assert relive.fleet.saved(tmp_path / "run").number == 1 and cuts(tmp_path / "run", 0) == [1]
    assert num_saved(tmp_path / "run", shm_name) == (60, 40)
    assert table.save(tmp_path / "run").num_steps == 140 and num_saved(tmp_path / "run", shm_name) == (80, 60)
    saving.cancel()  # too late to end anything
    assert relive.fleet.saved(tmp_path / "run").number == 2


def test_a_cancel_after_the_commit_changes_nothing(table: ShardedTable, tmp_path: Path) -> None:
    saving = table.save(tmp_path / "run", wait=False)
    until_done(saving)
    saving.cancel()
    assert saving.wait().number == relive.fleet.saved(tmp_path / "run").number == 1


def test_closing_the_table_waits_for_the_save(
    table: ShardedTable, slow: threading.Event, tmp_path: Path, shm_name: Any
) -> None:
    saving = table.save(tmp_path / "run", wait=False)
    threading.Timer(0.5, slow.set).start()
    table.close()
    assert saving.done and saving.wait().num_steps == 100 and num_saved(tmp_path / "run", shm_name) == (60, 40)
    with pytest.raises(errors.TableClosed):
        table.save(tmp_path / "run", wait=False)


def test_a_save_under_way_does_not_pickle(table: ShardedTable, tmp_path: Path) -> None:
    saving = table.save(tmp_path / "run", wait=False)
    with pytest.raises(errors.NotShareable, match="save under way"):
        pickle.dumps(saving)
    assert pickle.loads(pickle.dumps(saving.wait(20.0))).num_steps == 100


def test_a_fork_while_a_save_goes_on(whole: ShardedTable, slow: threading.Event, tmp_path: Path) -> None:
    saving = whole.save(tmp_path, wait=False)
    child = os.fork()
    if child == 0:
        try:
            saving.cancel()  # of the child's copy alone
            saving.wait(0.0)
        except errors.InvalidConfig:
            signal.alarm(20)
            whole.close()  # does not wait for a thread that the child does not have
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    slow.set()
    assert saving.wait(20.0).num_steps == 100 and whole.save(tmp_path).number == 2


def test_a_part_that_fails_ends_the_others(
    table: ShardedTable, tmp_path: Path, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of shard 1 is full while shard 0 is still written: the error comes at once."""
    table.save(tmp_path / "run")
    fill(table, 0, 60, 20)
    fill(table, 1, 2_000, 20)
    append, goes_on = DiskFiles.append, threading.Event()

    def fails(self: DiskFiles, handle: int, data: memoryview, at: int) -> None:
        if self.path.endswith("shards/0"):
            goes_on.wait(20.0)
        if self.path.endswith("shards/1") or OWNERS in self.path:
            raise errors.StorageFull(self.path, len(data), 0)
        append(self, handle, data, at)

    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, "append", fails)
        threading.Timer(1.0, goes_on.set).start()  # while the others end
        with pytest.raises(errors.StorageFull):  # of the call, if the part fails before the call has seen its moment
            table.save(tmp_path / "run", wait=False).wait(20.0)
    assert num_saved(tmp_path / "run", shm_name) == (60, 40) and cuts(tmp_path / "run", 0) == [1]
    assert table.save(tmp_path / "run").num_steps == 140 and num_saved(tmp_path / "run", shm_name) == (80, 60)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Moments of saves wait for this event."""
    goes_on, cut = threading.Event(), Copying.cut

    def slowly(self: Copying, timeout_s: float) -> None:
        goes_on.wait(20.0)
        cut(self, timeout_s)

    monkeypatch.setattr(Copying, "cut", slowly)
    yield goes_on
    goes_on.set()


def test_the_call_returns_after_the_moments_of_all_shards(
    table: ShardedTable, late: threading.Event, slow: threading.Event, tmp_path: Path
) -> None:
    began = time.monotonic()
    threading.Timer(0.5, late.set).start()
    saving = table.save(tmp_path / "run", wait=False)
    assert time.monotonic() - began >= 0.5 and [part.has_cut for part in saving._parts.values()] == [True, True]
    slow.set()
    assert saving.wait(20.0).number == 1


def test_the_deadline_of_the_moments_cancels_all_parts(
    table: ShardedTable, late: threading.Event, tmp_path: Path
) -> None:
    threading.Timer(1.0, late.set).start()
    with pytest.raises(errors.DeadlineExceeded, match="the moments of a save of all shards"):
        table.save(tmp_path / "run", wait=False, timeout_s=0.3)
    with pytest.raises(errors.NoSuchSave):
        relive.fleet.saved(tmp_path / "run")
    assert table.save(tmp_path / "run").number == 1


def test_ctrl_c_before_the_moments_cancels_all_parts(
    table: ShardedTable, late: threading.Event, tmp_path: Path
) -> None:
    threading.Timer(0.5, _thread.interrupt_main).start()
    threading.Timer(1.0, late.set).start()
    with pytest.raises(KeyboardInterrupt):
        table.save(tmp_path / "run", wait=False)
    with pytest.raises(errors.NoSuchSave):
        relive.fleet.saved(tmp_path / "run")
    assert table.save(tmp_path / "run").number == 1


def test_ctrl_c_in_the_start_of_the_thread_ends_the_save(
    table: ShardedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(thread: threading.Thread) -> None:
        if thread.name == "relive-save":
            raise KeyboardInterrupt
        start(thread)

    start = threading.Thread.start
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupted)
        table.save(tmp_path / "run", wait=False)
    with pytest.raises(errors.NoSuchSave):
        relive.fleet.saved(tmp_path / "run")
    assert table.save(tmp_path / "run").number == 1  # the folder is not locked
    table.close()  # nothing is waited for


def test_ctrl_c_in_a_wait_leaves_the_save_going_on(table: ShardedTable, slow: threading.Event, tmp_path: Path) -> None:
    saving = table.save(tmp_path / "run", wait=False)
    main = threading.main_thread().ident or 0
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        saving.wait()
    assert time.monotonic() - began < 10.0
    slow.set()
    assert saving.wait(20.0).number == 1


# ---- deaths --------------------------------------------------------------------------------------------------------

ENDS = """
import sys
import numpy as np, relive
from relive.fleet import ShardOwner, attach
spec = relive.StepSpec({"image": relive.ArraySpec((84, 84), "uint8")})
names = sys.argv[2:]
owners = [
    ShardOwner(number, relive.TableConfig(spec, 2_000, relive.Index(), relive.SharedMemory(name)))
    for number, name in enumerate(names)
]
table = attach(names)
for shard in (0, 1):
    with table.writer(64, shard=shard) as writer:
        for _ in range(20):
            writer.append(image=np.zeros((64, 84, 84), np.uint8))
saving = table.save(sys.argv[1], wait=False)
"""


def test_a_process_that_ends_finishes_its_save(tmp_path: Path, shm_name: Any) -> None:
    command = [sys.executable, "-c", ENDS, str(tmp_path), shm_name(), shm_name()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert relive.fleet.saved(tmp_path).num_steps == 2 * 20 * 64


def _save_and_end(names: Any, path: str) -> None:
    table = attach(names)
    table.save(path, wait=False)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_that_ends_finishes_its_save(
    whole: ShardedTable, names: tuple[str, str], tmp_path: Path, method: str
) -> None:
    child = multiprocessing.get_context(method).Process(target=_save_and_end, args=(names, str(tmp_path)))
    child.start()
    child.join(60.0)
    child.kill()  # if it never ends
    assert child.exitcode == 0 and relive.fleet.saved(tmp_path).num_steps == 100


def _save_and_die(names: Any, path: str, pipe: Any) -> None:
    """Dies between the moments of the shards and the commit."""
    DiskFiles.append = lambda *_: time.sleep(60.0)  # type: ignore[method-assign]
    table = attach(names)
    table.save(path, wait=False)
    pipe.send(None)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_saver_that_is_killed_before_the_commit(
    whole: ShardedTable, names: tuple[str, str], tmp_path: Path, shm_name: Any
) -> None:
    whole.save(tmp_path)
    fill(whole, 0, 60, 20)
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    child = context.Process(target=_save_and_die, args=(names, str(tmp_path), theirs))
    child.start()
    assert mine.poll(60.0)
    child.join(60.0)
    assert child.exitcode == -signal.SIGKILL and num_saved(tmp_path, shm_name) == (60, 40)
    assert whole.save(tmp_path).num_steps == 120 and num_saved(tmp_path, shm_name) == (80, 40)


def test_an_owner_that_dies_beside_a_saver_that_maps_its_shard(
    names: tuple[str, str], owners: list[Owner], slow: threading.Event, tmp_path: Path, shm_name: Any
) -> None:
    """The memory outlives its owner, so the save goes on: its moment has passed."""
    owners += [Owner(number, config_of(name)) for number, name in enumerate(names)]
    with attach(names, timeout_s=30.0) as table:
        fill(table, 0, 0, 30)
        saving = table.save(tmp_path, wait=False)
        owners[1].kill()
        slow.set()
        assert saving.wait(20.0).num_steps == 30 and num_saved(tmp_path, shm_name) == (30, 0)
        with pytest.raises(relive.fleet.ShardNotSaved):
            table.save(tmp_path, wait=False)
        assert relive.fleet.saved(tmp_path).number == 1
