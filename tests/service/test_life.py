"""The life of a server: it drains, ends, starts again, loses a table by order, and says how it is."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, step, write_steps
from processes.shm import shared_files

import relive
from relive import errors
from relive.cli.entry import run
from relive.service import Health, Streaming, connect, health, serve
from relive.service.server import life
from relive.service.server.saves import Saves
from relive.service.server.write_session import WriteSession
from service.doors import tokens_for

LOOPBACK = "grpc://127.0.0.1:0"


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(plain_spec(), 200) as one:
        with one.writer() as writer:
            write_steps(writer, 0, 20)
        yield one


# ---- memory that stays -----------------------------------------------------------------------------------------------


def test_a_table_that_is_kept_outlives_its_last_close(shm_name: Any) -> None:
    name = shm_name()
    with relive.Table(plain_spec(), 100, storage=relive.SharedMemory(name, keep=True)) as table, table.writer() as one:
        write_steps(one, 0, 5)
    for _ in range(2):
        with relive.attach(name) as again:
            assert len(again) == 5 and again.config.storage == relive.SharedMemory(name, keep=True)
            again.check()
    with relive.attach(name, read_only=True) as again:
        assert len(again) == 5
    relive.remove(name)
    assert not shared_files(name)


def test_a_table_that_is_not_kept_goes(shm_name: Any) -> None:
    name = shm_name()
    relive.Table(plain_spec(), 100, storage=relive.SharedMemory(name)).close()
    assert not shared_files(name)
    with pytest.raises(errors.InvalidConfig, match="keep"):
        relive.SharedMemory(name, keep="yes")


def test_the_process_that_made_a_kept_table_leaves_it(shm_name: Any) -> None:
    name = shm_name()
    program = (
        "import relive\n"
        "spec = relive.StepSpec({'action': relive.ArraySpec((), 'int64')})\n"
        f"table = relive.Table(spec, 100, storage=relive.SharedMemory({name!r}, keep=True))\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert shared_files(name)
    relive.remove(name)


# ---- draining --------------------------------------------------------------------------------------------------------


def test_a_server_that_drains_goes_on_with_its_streams(table: relive.Table) -> None:
    with serve({"pong": table}, LOOPBACK) as server, connect(f"{server.address}/pong", timeout_s=2.0) as remote:
        assert health(server.address) == Health("serving") and not server.is_drained
        with remote.writer() as writer:
            writer.append(**step(50, 51))
            server.drain()
            assert health(server.address).state == "draining"
            writer.append(**step(51, 52))
            assert len(remote) == 22
            with pytest.raises(errors.Draining):
                connect(f"{server.address}/pong", timeout_s=1.0)


def test_a_writer_hears_of_a_closing_server_once_and_then_waits_for_the_next(table: relive.Table) -> None:
    with serve({"pong": table}, LOOPBACK) as server, connect(f"{server.address}/pong", timeout_s=5.0) as remote:
        writer = remote.writer()
        writer.append(**step(50, 51))
        server.drain()
        server._closing.set()  # what close() does first
        with pytest.raises(errors.ServiceUnavailable, match="closes"):
            writer.append(**step(51, 52))
        with pytest.raises(errors.Draining):
            writer.append(**step(51, 52), timeout_s=0.5)
        server.close()
        with serve({"pong": table}, server.address):
            writer.append(**step(51, 52))
            assert len(remote) == 22  # the first row begins no item: its lane was cut
            writer.close()


def test_rows_that_were_sent_and_not_answered_are_counted(table: relive.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    monkeypatch.setattr(WriteSession, "_apply", lambda *given: hold.wait(10.0))
    with serve({"pong": table}, LOOPBACK) as server, connect(f"{server.address}/pong", timeout_s=5.0) as remote:
        writer = remote.writer()
        with pytest.raises(errors.ServiceUnavailable, match="may have stored 1 of the 1 rows") as caught:
            writer.append(**step(51, 52), timeout_s=0.2)
        assert caught.value.unanswered == 1 and caught.value.stored == 0 and caught.value.keys is None
        hold.set()
    assert errors.ServiceUnavailable("there", 1.0).unanswered == 0


def test_a_call_waits_for_a_server_until_its_deadline(table: relive.Table) -> None:
    with serve({"pong": table}, LOOPBACK) as server:
        remote = connect(f"{server.address}/pong")
    with pytest.raises(errors.ServiceUnavailable):
        remote.sample(1)  # its stream was open: the server may have drawn
    for timeout_s in (1.3, 2.0):
        start = time.monotonic()
        with pytest.raises(errors.ServiceUnavailable):
            remote.sample(1, timeout_s=timeout_s)
        assert timeout_s - 0.25 < time.monotonic() - start < timeout_s + 1.0
    remote.close()


def test_a_client_waits_for_the_server_that_comes_after(table: relive.Table) -> None:
    first = serve({"pong": table}, LOOPBACK)
    address = f"{first.address}/pong"
    first.drain()
    found: list[int] = []

    def count() -> None:
        with connect(address, timeout_s=20.0) as remote:
            found.append(len(remote))

    thread = threading.Thread(target=count)
    thread.start()
    time.sleep(0.3)
    first.close()
    with serve({"pong": table}, first.address):
        thread.join(20.0)
        assert found == [20]


def test_drain_and_drop_are_for_admins(table: relive.Table, tmp_path: Path) -> None:
    tokens = tokens_for(tmp_path / "tokens.toml", "pong")
    with serve({"pong": table, "other": table}, LOOPBACK, tokens=tmp_path / "tokens.toml") as server:
        with connect(f"{server.address}/pong", token=tokens["read"]) as remote:
            for call in (remote.drop, remote.drain):
                with pytest.raises(errors.AccessDenied):
                    call()
        with connect(f"{server.address}/pong", token=tokens["admin"]) as remote:
            with pytest.raises(errors.AccessDenied):
                remote.drain()  # it has no role for the other table
            assert health(server.address).is_well
            remote.drop()
        with pytest.raises(errors.NoSuchTable):
            connect(f"{server.address}/pong", timeout_s=2.0, token=tokens["admin"])


def test_a_table_that_is_dropped_is_gone(shm_name: Any) -> None:
    name = shm_name()
    with relive.Table(plain_spec(), 100, storage=relive.SharedMemory(name, keep=True)) as table:
        with serve({"pong": table}, LOOPBACK) as server:
            other = connect(f"{server.address}/pong", timeout_s=2.0)
            with connect(f"{server.address}/pong") as remote:
                remote.drop()
                assert not shared_files(name)
            with pytest.raises((errors.NoSuchTable, errors.ServiceUnavailable)):
                for _ in range(100):
                    len(other)
                    time.sleep(0.05)
            with pytest.raises(errors.NoSuchTable):
                connect(f"{server.address}/pong", timeout_s=2.0)
            other.close()
    assert not shared_files(name)


def test_a_server_closes_although_a_table_is_dropped_meanwhile(
    table: relive.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    with relive.Table(plain_spec(), 100) as other:
        server = serve({"pong": table, "other": other}, LOOPBACK)
        close = Saves.close

        def drops(saves: Saves, ends: float) -> None:
            if "other" in server.tables:
                server._life.drop("other")
            close(saves, ends)

        monkeypatch.setattr(Saves, "close", drops)
        server.close()
        assert server.tables == ("pong",) and server._flight is None
        with pytest.raises(errors.ServiceUnavailable):
            connect(f"{server.address}/pong", timeout_s=1.0)


# ---- health ----------------------------------------------------------------------------------------------------------


def test_health_needs_no_token_and_names_a_stuck_table(
    table: relive.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens_for(tmp_path / "tokens.toml", "pong")
    with serve({"pong": table}, LOOPBACK, tokens=tmp_path / "tokens.toml") as server:
        assert run(["health", server.address]) == 0 and capsys.readouterr().out == "serving\n"

        def stuck(core: Any, timeout_s: float) -> None:
            raise errors.DeadlineExceeded("the lock of the table", "", timeout_s, 4242)

        monkeypatch.setattr(life, "check_lock", stuck)
        assert health(server.address) == Health("serving", {"pong": 4242})
        assert run(["health", server.address]) == 1
        assert capsys.readouterr().out == "serving; table 'pong' is locked by process 4242\n"
    with pytest.raises(errors.ServiceUnavailable):
        health(server.address, timeout_s=1.0)


def test_a_server_uses_its_tables_until_its_close_is_over(table: relive.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve({"t": table}, LOOPBACK)
    seen, end = [], server._shut_down
    monkeypatch.setattr(server, "_shut_down", lambda: [seen.append(server.is_in_use("t")), end()])
    server.close()
    assert seen == [True] and not server.is_in_use("t")


# ---- relive serve ----------------------------------------------------------------------------------------------------


def _serve(config: Path) -> tuple[subprocess.Popen[str], str]:
    words = [sys.executable, "-m", "relive.cli", "serve", str(config)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("grpc://"), line
    return process, line.split(": ")[0]


STOPS = 100 if os.environ.get("RELIVE_SOAK") == "1" else 2
CAPACITY = 100_000 + 50_000 * STOPS  # steps: more than a writer stores before the last stop


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_stops_under_load_lose_no_acknowledged_row(number: int, shm_name: Any, tmp_path: Path) -> None:
    name = shm_name()
    config = tmp_path / "table.toml"

    def write(port: str) -> None:
        config.write_text(
            f'address = "grpc://127.0.0.1:{port}"\n[tables.t]\ncapacity = {CAPACITY}\n'
            f'storage = {{ shared = "{name}" }}\n[tables.t.columns]\naction = {{ dtype = "int64" }}\n'
        )

    write("0")
    process, address = _serve(config)
    write(address.split(":")[2].partition("/")[0])
    kept: list[np.ndarray[Any, Any]] = []
    ends = threading.Event()

    def append() -> None:
        with connect(address, timeout_s=60.0) as remote:
            writer = remote.writer(streaming=Streaming(linger_s=0.001))
            while not ends.is_set():
                try:
                    keys = [writer.append(action=1) for _ in range(20)]
                    writer.flush(timeout_s=60.0)
                    kept.append(np.asarray([np.asarray(one) for one in keys]))
                except (errors.Unacknowledged, errors.ServiceUnavailable):
                    continue
            writer.close()

    thread = threading.Thread(target=append)
    thread.start()
    try:
        for _ in range(STOPS):
            before = len(kept)
            deadline = time.monotonic() + 60.0
            while len(kept) < before + 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(kept) >= before + 3, "the handle works again"
            process.send_signal(number)
            said = process.communicate(timeout=60)[0]
            assert process.returncode == (0 if number == signal.SIGTERM else -number), said
            assert shared_files(name)
            process, again = _serve(config)
            assert again == address
    finally:
        ends.set()
        thread.join(90.0)
        process.terminate()
        process.communicate(timeout=60)
    with relive.attach(name) as table:
        assert len(table) < CAPACITY, "no row was removed to make room"
        assert table.gather(np.concatenate(kept)).present.all()
        table.check()
    assert run(["rm", name]) == 0 and not shared_files(name)


def test_serve_removes_the_memory_if_it_is_told_to(shm_name: Any, tmp_path: Path) -> None:
    name, config = shm_name(), tmp_path / "table.toml"
    text = (
        f'address = "{LOOPBACK}"\npersist = %s\n[tables.t]\ncapacity = 100\nstorage = {{ shared = "{name}" }}\n'
        '[tables.t.columns]\naction = { dtype = "int64" }\n'
    )
    for persists in ("true", "false"):  # the second server takes over the table of the first one
        config.write_text(text % persists)
        process, _ = _serve(config)
        process.terminate()
        process.communicate(timeout=60)
        assert bool(shared_files(name)) == (persists == "true")
    config.write_text(text % "3")
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(errors.InvalidConfig, match="persist"):
        run(["serve", str(config)])
    assert signal.getsignal(signal.SIGINT) is before


def _file_of_a_table(name: str, folder: Path) -> Path:
    config = folder / "table.toml"
    config.write_text(
        f'address = "{LOOPBACK}"\npersist = false\n[tables.t]\ncapacity = 100\nstorage = {{ shared = "{name}" }}\n'
        '[tables.t.columns]\naction = { dtype = "int64" }\n'
    )
    return config


def test_serve_gives_the_handlers_of_signals_back(
    shm_name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may call the command: Ctrl-C is its own again after the end."""
    config = _file_of_a_table(shm_name(), tmp_path)
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    monkeypatch.setattr("relive.cli.tables.say", lambda _: _thread.interrupt_main())  # it says that it serves
    assert run(["serve", str(config)]) == 0
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_server_that_is_drained_ends_although_a_client_calls_on(shm_name: Any, tmp_path: Path) -> None:
    """Learners draw ahead against a limiter: a draw is under way at every moment."""
    process, address = _serve(_file_of_a_table(shm_name(), tmp_path))
    with contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(stack.enter_context(connect(address)).batches(4))
        with connect(address) as admin:
            admin.drain()
        assert "relive:" not in process.communicate(timeout=60)[0] and process.returncode == 0


def test_a_client_drains_a_served_table(shm_name: Any, tmp_path: Path) -> None:
    process, address = _serve(_file_of_a_table(shm_name(), tmp_path))
    with connect(address) as remote:
        remote.drain()
    assert "relive:" not in process.communicate(timeout=60)[0] and process.returncode == 0


def test_serve_gives_the_memory_of_a_dropped_table_back(shm_name: Any, tmp_path: Path) -> None:
    names, config = {"gone": shm_name(), "stays": shm_name()}, tmp_path / "table.toml"
    tables = [
        f'[tables.{name}]\ncapacity = 100\nstorage = {{ shared = "{path}" }}\ncolumns.action = {{ dtype = "int64" }}\n'
        for name, path in names.items()
    ]
    config.write_text(f'address = "{LOOPBACK}"\npersist = false\n' + "".join(tables))
    process, address = _serve(config)
    server_address = address.rpartition("/")[0]
    inodes = {name: str(os.stat(shared_files(path)[0]).st_ino) for name, path in names.items()}

    def is_mapped(name: str) -> bool:
        lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        return any(inodes[name] == line.split()[4] for line in lines)

    try:
        with (
            connect(f"{server_address}/gone", timeout_s=5.0) as user,
            connect(f"{server_address}/stays") as other,
        ):
            assert len(user) == 0 and is_mapped("gone")  # its stream stays open
            with user.batches(4), connect(f"{server_address}/gone") as admin:
                admin.drop()
            ends = time.monotonic() + 60.0
            while is_mapped("gone") and time.monotonic() < ends:
                time.sleep(0.02)
            assert not is_mapped("gone") and is_mapped("stays") and len(other) == 0
    finally:
        process.terminate()
        said = process.communicate(timeout=60)[0]
    assert process.returncode == 0 and "relive:" not in said
