"""`saves` and `load` of the file of `relive serve`: where clients save tables, and which save a table starts from."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import contents, plain_spec, write_steps

import relive
from relive import errors
from relive.cli.entry import run
from relive.service import ServerOptions, connect, serve
from relive.service.config import load_config, open_table
from service.test_config import ended, start

FILE = """
address = "grpc://127.0.0.1:0"
saves = "kept/saves"

[tables.pong]
capacity = CAPACITY
storage = STORAGE
max_lanes = 16
seed = 3

[tables.pong.columns]
observation = { shape = [2], dtype = "float32", kind = "state" }
action = { dtype = "int64" }
reward = { dtype = "float32" }

[tables.pong.index]
sampler = { type = "Prioritized", priority_exponent = 0.6 }
limiter = { type = "SamplesPerInsert", samples_per_insert = 1.0, min_size = 10, tolerance = 900.0 }
"""


def written(folder: Path, storage: str = '"local"', capacity: int = 500, more: str = "", text: str = FILE) -> Path:
    path = folder / "table.toml"
    whole = text.replace("STORAGE", storage).replace("CAPACITY", str(capacity))
    path.write_text(whole.replace("max_lanes", f"{more}\nmax_lanes", 1))
    return path


def opened(path: Path) -> relive.Table:
    """The table of a file, as `relive serve` opens it."""
    loaded = load_config(path)
    return open_table(loaded.tables["pong"], loaded.save_of("pong"))


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[tuple[Path, np.ndarray]]:
    """A file whose table has two saves: `old` of 100 steps, then `new` of 150."""
    with opened(written(tmp_path)) as table, table.writer() as writer:
        keys = write_steps(writer, 0, 100)
        table.save(tmp_path / "kept" / "saves" / "pong" / "old")
        keys = np.concatenate([keys, write_steps(writer, 100, 50)])
        table.save(tmp_path / "kept" / "saves" / "pong" / "new")
    newer = tmp_path / "kept" / "saves" / "pong" / "new" / "CURRENT"
    past = newer.stat().st_mtime - 100
    os.utime(tmp_path / "kept" / "saves" / "pong" / "old" / "CURRENT", (past, past))
    yield tmp_path, keys


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    loaded = load_config(written(tmp_path, more='load = "../else/where"'))
    assert loaded.saves == str(tmp_path / "kept" / "saves")
    assert loaded.save_of("pong") == str(tmp_path.parent / "else" / "where")
    monkeypatch.chdir(tmp_path)
    assert load_config("table.toml").saves == str(tmp_path / "kept" / "saves")


def test_a_table_starts_from_its_newest_save(saved: tuple[Path, np.ndarray]) -> None:
    folder, keys = saved
    (folder / "kept" / "saves" / "pong" / "unfinished").mkdir()
    (folder / "kept" / "saves" / "pong" / "file").write_text("no save")
    (folder / "kept" / "saves" / "other").mkdir()
    with opened(written(folder)) as table:
        assert len(table) == 150 and contents(table, keys)["action"] == list(range(150))
        assert table.loaded is not None and table.loaded.keeps_keys


def test_the_save_to_start_from_can_be_named(saved: tuple[Path, np.ndarray]) -> None:
    folder, keys = saved
    with opened(written(folder, more='load = "old"')) as table:
        assert len(table) == 100 and table.gather(keys).present.sum() == 100
    (folder / "kept" / "saves" / "pong" / "old").rename(folder / "moved")
    with opened(written(folder, more='load = "./moved"')) as table:
        assert len(table) == 100
    with opened(written(folder, more="load = false")) as table:
        assert len(table) == 0 and table.loaded is None
    with pytest.raises(errors.NoSuchSave, match="saves/pong/old"):
        opened(written(folder, more='load = "old"'))


def test_shared_memory_is_newer_than_any_save(saved: tuple[Path, np.ndarray], shm_name: Any) -> None:
    folder, _ = saved
    name = shm_name()
    path = written(folder, f'{{ shared = "{name}" }}')
    with opened(path) as table, table.writer() as writer:
        assert len(table) == 150
        write_steps(writer, 150, 30)
        with opened(path) as again:
            assert len(again) >= 179 and again.loaded is None
    with opened(path) as again:
        assert len(again) >= 179, "the memory stays after the last close"
    relive.remove(name)
    with opened(path) as table:
        assert len(table) == 150
    relive.remove(name)


def test_another_capacity(saved: tuple[Path, np.ndarray]) -> None:
    folder, keys = saved
    with opened(written(folder, capacity=2_000)) as larger:
        assert larger.capacity == 2_000 and larger.gather(keys).present.all()
    with opened(written(folder, capacity=120)) as smaller:
        assert len(smaller) == 120 and smaller.loaded is not None and not smaller.loaded.keeps_keys


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seed = 3", "seed = 4", "seed of the table saved in"),
        ('reward = { dtype = "float32" }', 'reward = { dtype = "float64" }', "spec of the table saved in"),
        ("samples_per_insert = 1.0", "samples_per_insert = 2.0", "index of the table saved in"),
    ],
)
def test_another_table_is_not_loaded(saved: tuple[Path, np.ndarray], old: str, new: str, says: str) -> None:
    assert old in FILE
    with pytest.raises(errors.InvalidConfig) as refused:
        opened(written(saved[0], text=FILE.replace(old, new)))
    assert says in str(refused.value) and "saves/pong/new" in str(refused.value)


def test_a_damaged_save_is_not_passed_over(saved: tuple[Path, np.ndarray]) -> None:
    folder, _ = saved
    cut = folder / "kept" / "saves" / "pong" / "new" / "cuts" / "1.cut"
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.raises(errors.DamagedSave, match="saves/pong/new"):
        opened(written(folder))
    assert len(opened(written(folder, more='load = "old"'))) == 100


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('saves = "kept/saves"', "saves = 7", "saves of"),
        ('saves = "kept/saves"', 'saves = ""', "saves of"),
        ("seed = 3", "seed = 3\nload = true", "load"),
        ("seed = 3", "seed = 3\nload = 7", "load"),
        ("seed = 3", 'seed = 3\nload = ".."', "name of a save"),
        ("seed = 3", 'seed = 3\nload = ".hidden"', "name of a save"),
        ("tables.pong", 'tables.".."', "which is saved"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in FILE
    with pytest.raises(errors.InvalidConfig) as refused:
        load_config(written(tmp_path, text=FILE.replace(old, new)))
    assert says in refused.value.what and refused.value.expected


def test_a_name_needs_the_folder_of_saves(tmp_path: Path) -> None:
    text = FILE.replace('saves = "kept/saves"', "")
    with pytest.raises(errors.InvalidConfig, match="no `saves`"):
        load_config(written(tmp_path, more='load = "old"', text=text))
    assert load_config(written(tmp_path, text=text)).save_of("pong") is None


def test_serve_saves_and_comes_back(tmp_path: Path, shm_name: Any) -> None:
    """After a kill and the loss of its memory, as by a restart of the machine, and after a clean end."""
    name = shm_name()
    path = written(tmp_path, f'{{ shared = "{name}" }}')
    first, address = start(path)
    with connect(address) as remote:
        with remote.writer() as writer:
            keys = write_steps(writer, 0, 60)
            remote.sample(16)
            facts = remote.save("nightly")
            assert facts.path == str(tmp_path / "kept" / "saves" / "pong" / "nightly") and facts.num_steps == 60
            write_steps(writer, 60, 20)
        first.kill()
        first.wait(20)
    subprocess.run([sys.executable, "-m", "relive.cli", "rm", name], check=True, capture_output=True)
    second, address = start(path)
    with connect(address) as remote:
        assert len(remote) == 60 and contents(remote, keys)["action"] == list(range(60))
        (index,) = remote.stats().indexes.values()
        assert (index.inserted, index.sampled) == (60, 16)  # the limiter goes on where it was
        remote.save("nightly")
    second.send_signal(signal.SIGTERM)
    assert ended(second, 20) == 0
    third, address = start(path)
    with connect(address) as remote:
        assert len(remote) == 60 and contents(remote, keys)["action"] == list(range(60))
    third.send_signal(signal.SIGTERM)
    assert third.stdout is not None
    assert ended(third, 20) == 0


@pytest.mark.parametrize("option", ["--address", "--metrics-port"])
def test_a_serve_that_cannot_listen_leaves_no_table_of_its_own(tmp_path: Path, shm_name: Any, option: str) -> None:
    new, old = shm_name(), shm_name()
    spec = relive.StepSpec({"a": relive.ArraySpec((), "int64")})
    relive.Table(spec, 10, storage=relive.SharedMemory(old, keep=True)).close()
    path = written(tmp_path, f'{{ shared = "{new}" }}')
    with path.open("a") as file:
        file.write(f'[tables.old]\ncapacity = 10\nstorage = {{ shared = "{old}" }}\n')
        file.write('[tables.old.columns]\na = { dtype = "int64" }\n[tables.old.index]\n')
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        with pytest.raises(errors.CannotListen):
            run(["serve", str(path), option, f"grpc://127.0.0.1:{port}" if option == "--address" else port])
    left = {row.name for row in relive.list_tables()}
    assert old in left and new not in left
    relive.remove(old)


def test_handles_go_on_after_a_load(tmp_path: Path) -> None:
    """Keys name the same rows, lost keys are gone, batches are those that the saved table would have drawn."""
    path = written(tmp_path)
    first, address = start(path)
    where = ("--address", address.rpartition("/")[0])
    with connect(address) as remote, connect(address) as other:
        writer = remote.writer()
        keys = write_steps(writer, 0, 60)
        remote.save("nightly")
        expected = [remote.sample(16).item_keys for _ in range(3)]
        lost = write_steps(writer, 60, 20)
        first.kill()
        first.wait(20)
        second, _ = start(path, *where)
        assert remote.gather(keys).present.sum() >= 59 and not remote.gather(lost).present.any()
        assert [list(remote.sample(16).item_keys) for _ in range(3)] == [list(one) for one in expected]
        with pytest.raises(errors.ServiceUnavailable):
            writer.append(observation=[0.0, 0.0], action=0, reward=0.0)
        new = write_steps(writer, 80, 30)
        assert not set(new.tolist()) & {*keys.tolist(), *lost.tolist()}
        assert contents(other, new)["action"] == list(range(80, 110))
        second.kill()
        second.wait(20)
        third, _ = start(written(tmp_path, capacity=1_000), *where)
        with pytest.raises(errors.FormatMismatch):
            len(remote)
        with connect(address) as again:
            assert again.gather(keys[:50]).present.all()
        third.send_signal(signal.SIGTERM)
        assert ended(third, 20) == 0


def test_serve_says_which_save_a_table_came_from(saved: tuple[Path, np.ndarray]) -> None:
    folder, _ = saved
    command = [sys.executable, "-m", "relive.cli", "serve", str(written(folder, capacity=120))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    path = folder / "kept" / "saves" / "pong" / "new"
    assert line.rstrip().endswith(f"/pong: 120 of 120 steps, loaded from {path} under new keys")
    process.send_signal(signal.SIGTERM)
    assert ended(process, 20) == 0


def test_serve_ends_with_an_error_if_it_cannot_load(saved: tuple[Path, np.ndarray]) -> None:
    folder, _ = saved
    (folder / "kept" / "saves" / "pong" / "new" / "CURRENT").write_text("damaged")
    command = [sys.executable, "-m", "relive.cli", "serve", str(written(folder))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("relive: the save in") and "saves/pong/new" in done.stderr


def test_a_staleness_budget_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its totals and its version are saved: the same insert waits, the same number of versions lets it go on."""
    budget = relive.StalenessBudget(1.0, 10)
    index = relive.Index(sampler=relive.Fifo(), limiter=budget, max_times_sampled=1)
    options = ServerOptions(saves=tmp_path / "saves")
    with (
        relive.Table(plain_spec(), 500, index, timeout_s=0.3) as table,
        serve({"paced": table}, "grpc://127.0.0.1:0", options) as one,
    ):
        with connect(f"{one.address}/paced") as client:
            client.set_policy_version(5)  # the base: (1 + 0 + 1) x 10 items
            with client.writer() as writer:
                write_steps(writer, 0, 20)
                client.set_policy_version(6)
                write_steps(writer, 20, 10)
                client.sample(15)
                with pytest.raises(errors.DeadlineExceeded):
                    write_steps(writer, 30, 1)
            facts = client.save("paced", timeout_s=60.0)
            expected = client.stats()
    with relive.load(facts.path, timeout_s=0.3) as copy, serve({"paced": copy}, "grpc://127.0.0.1:0") as one:
        with connect(f"{one.address}/paced") as client, client.writer() as writer:
            told = client.stats()
            assert told.indexes == expected.indexes and told.policy_version == 6
            with pytest.raises(errors.DeadlineExceeded):
                write_steps(writer, 50, 1)
            client.set_policy_version(7)
            write_steps(writer, 50, 10)
            with pytest.raises(errors.DeadlineExceeded):
                write_steps(writer, 60, 1)


def test_a_table_that_lives_in_a_folder_is_served_as_it_is(tmp_path: Path) -> None:
    """The path is relative to the file. The save of the key `load` is for a table that is not there yet."""
    storage = '{ file = "kept/pong", sync_s = 5.0 }'
    with opened(written(tmp_path, storage)) as table:
        assert table.config.storage == relive.File(tmp_path / "kept" / "pong", 5.0)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 40)
        table.save(tmp_path / "elsewhere")
    with opened(written(tmp_path, storage, more='load = "./elsewhere"')) as table:
        assert len(table) == 40 and len(table.gather(keys)["reward"]) == 40 and table.loaded is None
    with pytest.raises(errors.InvalidConfig, match="^capacity of the table that lives in"):
        opened(written(tmp_path, storage, capacity=600))
    new = '{ file = "kept/new" }'
    with opened(written(tmp_path, new, more='load = "./elsewhere"')) as table:
        assert len(table) == 40 and table.loaded is not None
    with pytest.raises(errors.InvalidConfig, match="sync"):
        load_config(written(tmp_path, '{ file = "kept/pong", sync = 5.0 }'))
