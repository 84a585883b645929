"""remote.save: a client has a server save a table, below the server's own folder only."""

from __future__ import annotations

import _thread
import contextlib
import errno
import gc
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import contents, plain_spec, prioritized, step, write_steps

import relive
from relive import errors
from relive.saving.apart import SavedCore
from relive.saving.disk_files import DiskFiles
from relive.saving.folder import Segment
from relive.saving.saving import Saving
from relive.service import RemoteSaving, RemoteTable, Server, ServerOptions, Streaming, connect, serve
from relive.service.server.saves import AskedSave, Saves
from service.hosts import Host

LOOPBACK = "grpc://127.0.0.1:0"
FOLDER = "table"  # of the saves of the served table, below the server's folder


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(plain_spec(), 2_000, prioritized(), max_lanes=16) as one:
        yield one


@pytest.fixture
def served(table: relive.Table, tmp_path: Path) -> Iterator[Server]:
    with serve({FOLDER: table}, LOOPBACK, ServerOptions(saves=tmp_path / "saves")) as server:
        yield server


@pytest.fixture
def remote(served: Server) -> Iterator[RemoteTable]:
    with connect(f"{served.address}/{FOLDER}", timeout_s=30.0) as one:
        yield one


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Writes of page images wait for this event."""
    goes_on = threading.Event()
    append = Segment.append

    def slowly(self: Segment, block: memoryview) -> int:
        goes_on.wait(20.0)
        return append(self, block)

    monkeypatch.setattr(Segment, "append", slowly)
    yield goes_on
    goes_on.set()


def everything_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# ---- what is saved -------------------------------------------------------------------------------------------------


def test_the_facts_are_those_of_a_local_save(remote: RemoteTable, tmp_path: Path) -> None:
    with remote.writer() as writer:
        keys = write_steps(writer, 0, 300)
    remote.update_priorities(keys[:50], np.linspace(1.0, 9.0, 50))
    facts = remote.save("first", beside={"model": b"weights", "empty": b""})
    path = tmp_path / "saves" / FOLDER / "first"
    one = relive.saved(path)
    assert (facts.path, facts.number, facts.num_steps) == (str(path), one.number, one.num_steps) == (str(path), 1, 300)
    assert facts.num_pages == facts.num_pages_written > 0 and facts.wall_s > facts.locked_s > 0.0
    with relive.load(path) as copy:
        assert copy.loaded is not None and dict(copy.loaded.beside) == {"model": b"weights", "empty": b""}
        assert copy.loaded.cut == facts.cut
        assert contents(copy, keys) == contents(remote, keys) and copy.stats().indexes == remote.stats().indexes
        assert np.array_equal(copy.sample(32).item_keys, remote.sample(32).item_keys)
    assert remote.save("first", keep=2).num_pages_written < facts.num_pages  # the folder has the others
    assert sorted(path.name for path in (path / "cuts").iterdir()) == ["1.cut", "2.cut"]


def test_steps_that_were_streamed_before_the_call_are_saved(remote: RemoteTable, tmp_path: Path) -> None:
    with remote.writer(streaming=Streaming(linger_s=5.0)) as writer:
        for k in range(40):
            writer.append(**step(k, k + 1))  # its key is not read, so the step may still wait to be sent
        assert remote.save("streamed").num_steps == 40


def test_large_blobs_travel(remote: RemoteTable, tmp_path: Path) -> None:
    data = np.random.default_rng(1).bytes(40 << 20)
    remote.save("large", beside={"a": data, "b": data[:1000]})
    with relive.load(tmp_path / "saves" / FOLDER / "large") as copy:
        assert copy.loaded is not None and copy.loaded.beside["a"] == data and copy.loaded.beside["b"] == data[:1000]


def test_the_server_serves_while_it_saves(remote: RemoteTable, slow: threading.Event, tmp_path: Path) -> None:
    with remote.writer() as writer:
        keys = write_steps(writer, 0, 200)
        saving = remote.save("slow", wait=False)
        assert isinstance(saving, RemoteSaving) and not saving.done and 0.0 <= saving.progress <= 1.0
        more = write_steps(writer, 200, 100)
        assert len(remote) == 300 and remote.sample(8).num_items == 8 and remote.gather(more).present.all()
        with pytest.raises(errors.DeadlineExceeded):
            saving.wait(timeout_s=0.1)
        slow.set()
        assert saving.wait(timeout_s=20.0).num_steps == 200 and saving.done  # as it was when the call returned
    with relive.load(tmp_path / "saves" / FOLDER / "slow") as copy:
        assert contents(copy, keys)["action"] == list(range(200)) and not copy.gather(more).present.any()


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_a_server_without_a_folder_says_how_to_allow_saves(table: relive.Table, tmp_path: Path) -> None:
    with serve({FOLDER: table}, LOOPBACK) as server, connect(f"{server.address}/{FOLDER}") as remote:
        with pytest.raises(errors.SavesNotAllowed, match='saves = "FOLDER"') as refused:
            remote.save("first")
        assert refused.value.table == FOLDER and isinstance(refused.value, PermissionError)
        assert len(remote) == 0  # the stream goes on


HOSTILE = [
    "",
    ".",
    "..",
    ".hidden",
    "../out",
    "a/b",
    "/tmp/out",
    "a\0b",
    "a\nb",
    "x" * 201,
    "é" * 101,
    "\ud800",
    7,
    b"x",
    None,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_write_nothing(remote: RemoteTable, tmp_path: Path, name: Any) -> None:
    with pytest.raises(errors.ReliveError) as refused:
        remote.save(name)
    assert isinstance(refused.value, (errors.InvalidConfig, errors.BadMessage))
    assert not everything_under(tmp_path)


@pytest.mark.parametrize("name", ["../out", ".hidden", ".."])
def test_the_server_checks_names_itself(remote: RemoteTable, tmp_path: Path, name: str) -> None:
    for header in (
        {"op": "save", "token": "t", "name": name, "beside": [], "keep": 1},
        {"op": "forget", "name": name, "staying": [1]},
    ):
        with pytest.raises(errors.InvalidConfig, match="name of a save"):
            remote.core.tell(dict(header), 5.0)
    with pytest.raises(errors.InvalidConfig, match="name of a blob"):
        header = {"op": "save", "token": "t", "name": "good", "beside": [[name + "/..", 0]], "keep": 1}
        remote.core.tell(header, 5.0)
    assert not everything_under(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"beside": [["a", 5]]},
        {"beside": [["a", 0], ["a", 0]]},
        {"beside": [["a", -1]]},
        {"beside": "a"},
        {"keep": 0},
        {"keep": [-1]},
        {"keep": ["1"]},
        {"keep": None},
        {"token": ""},
        {"token": "x" * 65},
        {"name": None},
    ],
)
def test_malformed_requests_write_nothing(remote: RemoteTable, tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises((errors.BadMessage, errors.InvalidConfig)):
        remote.core.tell({"op": "save", "token": "t", "name": "good", "beside": [], "keep": 1, **wrong}, 5.0)
    assert not everything_under(tmp_path)


def test_links_are_not_followed(remote: RemoteTable, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "saves" / FOLDER).mkdir(parents=True)
    (tmp_path / "saves" / FOLDER / "linked").symlink_to(outside)
    with pytest.raises(errors.InvalidConfig, match="link"):
        remote.save("linked")
    (tmp_path / "saves" / FOLDER / "linked").unlink()
    (tmp_path / "saves" / FOLDER).rmdir()
    (tmp_path / "saves" / FOLDER).symlink_to(outside)
    with pytest.raises(errors.InvalidConfig, match="link"):
        remote.save("first")
    assert not everything_under(outside)


def test_tables_whose_names_are_no_folders_are_not_served_with_saves(table: relive.Table, tmp_path: Path) -> None:
    for name in ("..", ".hidden"):
        with pytest.raises(errors.InvalidConfig, match="name of a table that is saved"):
            serve({name: table}, LOOPBACK, ServerOptions(saves=tmp_path))
    with pytest.raises(errors.InvalidConfig):
        ServerOptions(saves=7)  # type: ignore[arg-type]


def test_two_saves_of_one_name(remote: RemoteTable, slow: threading.Event) -> None:
    with remote.writer() as writer:
        write_steps(writer, 0, 100)
    first = remote.save("one", wait=False)
    with pytest.raises(errors.SaveInUse, match="/saves/table/one") as refused:
        remote.save("one")
    assert os.getpid() in refused.value.pids
    other = remote.save("other", wait=False)
    slow.set()
    assert first.wait(20.0).num_steps == other.wait(20.0).num_steps == 100


def test_saves_at_once_are_bounded(remote: RemoteTable, slow: threading.Event) -> None:
    with remote.writer() as writer:
        write_steps(writer, 0, 20)
    going_on = [remote.save(f"save-{k}", wait=False) for k in range(8)]
    with pytest.raises(errors.InvalidConfig, match="at most 8"):
        remote.save("one-more")
    slow.set()
    assert [one.wait(20.0).num_steps for one in going_on] == [20] * 8
    assert remote.save("one-more").num_steps == 20


def test_a_full_disk_is_the_callers_error(remote: RemoteTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with remote.writer() as writer:
        keys = write_steps(writer, 0, 100)
        remote.save("full")
        write_steps(writer, 100, 100)

    def is_full(self: DiskFiles, handle: int, data: memoryview, at: int) -> None:
        raise errors.StorageFull(self.path, len(data), 0)

    with monkeypatch.context() as patch:
        patch.setattr(DiskFiles, "append", is_full)
        with pytest.raises(errors.StorageFull, match="/saves/table/full"):
            remote.save("full")
    with relive.load(tmp_path / "saves" / FOLDER / "full") as copy:
        assert len(copy) == 100 and contents(copy, keys)["action"] == list(range(100))
    assert remote.save("full").num_steps == 200


def test_a_save_that_is_not_known(remote: RemoteTable) -> None:
    saving = remote.save("one", wait=False)
    with pytest.raises(errors.NotShareable, match="save"):
        pickle.dumps(saving)
    saving.wait()
    saving.token = "another"
    with pytest.raises(errors.ServiceUnavailable, match="does not know this save"):
        saving.wait()
    header = {"op": "save", "token": "twice", "name": "one", "beside": [], "keep": 1}
    remote.core.tell(dict(header), 5.0)
    with pytest.raises(errors.BadMessage, match="token"):
        remote.core.tell(dict(header), 5.0)


def test_a_table_that_the_server_only_reads(shm_name: Any, tmp_path: Path) -> None:
    name = shm_name()
    with relive.Table(plain_spec(), 100, storage=relive.SharedMemory(name)):
        with relive.attach(name, read_only=True) as reader:
            with serve({FOLDER: reader}, LOOPBACK, ServerOptions(saves=tmp_path)) as server:
                with connect(f"{server.address}/{FOLDER}") as remote, pytest.raises(errors.ReadOnly):
                    remote.save("one")


def test_a_checkpoint_of_a_served_table_names_its_save(remote: RemoteTable, tmp_path: Path) -> None:
    import relive.checkpoint

    with pytest.raises(errors.InvalidConfig, match=r"remote\.save\(name"):
        relive.checkpoint.save(tmp_path / "here", table=remote)  # type: ignore[arg-type]
    assert not everything_under(tmp_path)


# ---- ends ----------------------------------------------------------------------------------------------------------


def test_the_deadline_of_the_caller_cancels_the_save(
    remote: RemoteTable, slow: threading.Event, tmp_path: Path
) -> None:
    with remote.writer() as writer:
        write_steps(writer, 0, 100)
    began = time.monotonic()
    threading.Timer(1.0, slow.set).start()
    with pytest.raises(errors.DeadlineExceeded, match="the commit of a save"):
        remote.save("late", timeout_s=0.3)
    assert 0.3 <= time.monotonic() - began < 5.0
    with pytest.raises(errors.NoSuchSave):
        relive.saved(tmp_path / "saves" / FOLDER / "late")
    assert remote.save("late").num_steps == 100  # the folder is free again


@pytest.mark.parametrize("call", ["begin", "told"])
def test_a_save_whose_server_answers_late_is_cancelled(
    remote: RemoteTable, slow: threading.Event, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The client does not hear that the save began, or whether it has its moment, and raises. The save ends, too."""
    with remote.writer() as writer:
        write_steps(writer, 0, 100)
    whole, answers = getattr(Saves, call), threading.Event()
    asked: list[tuple[Saves, str]] = []

    def late(self: Saves, token: str, *more: Any) -> Any:
        told = whole(self, token, *more)
        asked.append((self, token))
        answers.wait(20.0)
        return told

    with monkeypatch.context() as patch:
        patch.setattr(Saves, call, late)
        with pytest.raises(errors.ServiceUnavailable):
            remote.save("late", timeout_s=0.0)
    answers.set()
    slow.set()
    saves, token = asked[0]
    with pytest.raises(errors.SaveCancelled):
        saves._known(token).wait(20.0)
        saves._known(token).facts()


def test_ctrl_c_cancels_the_save(remote: RemoteTable, slow: threading.Event, tmp_path: Path) -> None:
    with remote.writer() as writer:
        write_steps(writer, 0, 100)
    threading.Timer(0.5, _thread.interrupt_main).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        remote.save("interrupted")
    assert time.monotonic() - began < 5.0
    slow.set()
    ends = time.monotonic() + 10.0
    while True:
        try:
            assert remote.save("interrupted").number == 1  # the save that was interrupted has not committed
            break
        except errors.SaveInUse:
            assert time.monotonic() < ends


def test_cancel(remote: RemoteTable, slow: threading.Event, tmp_path: Path) -> None:
    with remote.writer() as writer:
        write_steps(writer, 0, 100)
        slow.set()
        remote.save("one")
        slow.clear()
        write_steps(writer, 100, 100)
    saving = remote.save("one", wait=False)
    saving.cancel()
    slow.set()
    with pytest.raises(errors.SaveCancelled):
        saving.wait(20.0)
    assert relive.saved(tmp_path / "saves" / FOLDER / "one").num_steps == 100


def test_a_cancel_that_comes_before_its_save_ends_it(table: relive.Table, tmp_path: Path) -> None:
    """They come over two streams, and a server that was stopped may read the cancel first."""
    saves = Saves(FOLDER, table, str(tmp_path))
    saves.cancel("one")
    with pytest.raises(errors.SaveCancelled):
        saves.begin("one", AskedSave("run", {}, 1))
    assert not list(tmp_path.iterdir())
    saves.begin("two", AskedSave("run", {}, 1))
    assert saves.told("two", 20.0, until_cut=False)["facts"]["number"] == 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_save_that_has_ended_keeps_no_memory(
    table: relive.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A server remembers the outcome of 64 saves."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "no space")

    write_steps(table.writer(), 0, 100)
    saves = Saves(FOLDER, table, str(tmp_path))
    if fails:
        monkeypatch.setattr(Segment, "append", full)
    saves.begin("one", AskedSave("run", {"learner": bytes(1000)}, 1))
    with pytest.raises((errors.ReliveError, OSError)) if fails else contextlib.nullcontext():
        assert saves.told("one", 20.0, until_cut=False)["progress"] == 1.0
    ends = time.monotonic() + 20.0
    while alive := [one for one in gc.get_objects() if isinstance(one, (Saving, SavedCore))]:
        assert time.monotonic() < ends, alive  # the thread of the save is just ending


def test_a_save_outlives_its_client(served: Server, slow: threading.Event, tmp_path: Path) -> None:
    with connect(f"{served.address}/{FOLDER}") as remote:
        with remote.writer() as writer:
            write_steps(writer, 0, 100)
        remote.save("left", wait=False)
    slow.set()
    ends = time.monotonic() + 20.0
    while time.monotonic() < ends:
        try:
            assert relive.saved(tmp_path / "saves" / FOLDER / "left").num_steps == 100
            return
        except errors.NoSuchSave:
            time.sleep(0.05)
    raise AssertionError("the save has not ended")


def test_a_server_that_closes_cancels_its_saves(table: relive.Table, slow: threading.Event, tmp_path: Path) -> None:
    server = serve({FOLDER: table}, LOOPBACK, ServerOptions(saves=tmp_path))
    remote = connect(f"{server.address}/{FOLDER}")
    with remote.writer() as writer:
        write_steps(writer, 0, 100)
    remote.save("one", wait=False)
    threading.Timer(0.3, slow.set).start()
    server.close()
    table.save(tmp_path / FOLDER / "one")  # its lock is free
    assert relive.saved(tmp_path / FOLDER / "one").number == 1
    remote.close()


@pytest.mark.forms(2)
@pytest.mark.parametrize("after_s", [None, 0.0, 0.01, 0.03, 0.1])
def test_a_server_that_is_killed_during_a_save(
    start_host: Callable[[], Host], tmp_path: Path, after_s: float | None
) -> None:
    """The save before it stays whole, and loads, whenever the server died. None: between the moment and the commit."""
    host = start_host()
    spec = relive.StepSpec({"frame": relive.ArraySpec((60, 60), "uint8"), "action": relive.ArraySpec((), "int64")})
    remote = connect(host.serve(spec, 20_000, saves=str(tmp_path)), timeout_s=30.0)
    frames = np.zeros((5_000, 60, 60), np.uint8)
    with remote.writer() as writer:
        keys = writer.extend(frame=frames, action=np.arange(5_000), truncated=True)
        assert remote.save("kept").num_steps == 5_000
        writer.extend(frame=frames + 1, action=np.arange(5_000), truncated=True)
    killing = threading.Timer(after_s or 0.0, lambda: os.kill(host.process.pid or 0, signal.SIGKILL))
    began = time.monotonic()
    with contextlib.suppress(errors.ServiceUnavailable):
        saving = remote.save("kept", wait=False) if after_s is None else None
        killing.start()
        facts = remote.save("kept", timeout_s=20.0) if saving is None else saving.wait()
        assert facts.num_steps == 10_000
    assert time.monotonic() - began < 10.0
    killing.join()
    with relive.load(tmp_path / FOLDER / "kept") as copy:
        assert len(copy) in (5_000, 10_000) and copy.gather(keys).present.all()
        assert np.array_equal(np.asarray(copy.gather(keys)["action"]), np.arange(5_000))
        copy.check()
        copy.save(tmp_path / FOLDER / "kept")  # the folder can be used
    remote.close()
