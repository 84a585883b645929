"""table.toml and `relive serve`."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import write_steps
from processes.shm import shared_files

import relive
from relive import errors
from relive.cli.entry import run
from relive.service import config as service_config
from relive.service import connect
from relive.service.config import load_config, open_table

FILE = """
address = "grpc://127.0.0.1:0"

[tables.pong]
capacity = 5000
storage = { shared = "NAME" }
max_lanes = 16
timeout_s = 20.0
seed = 3

[tables.pong.columns]
observation = { shape = [2], dtype = "float32", kind = "state" }
action = { dtype = "int64" }
reward = { dtype = "float32" }

[tables.pong.index]
items = { type = "Transitions", n_step = 3, gamma = 0.99, stack = { observation = 2 } }
sampler = { type = "Prioritized", priority_exponent = 0.6 }
limiter = { type = "MinSize", min_size = 10 }

[tables.nested]
capacity = "1MiB"
storage = "local"

[tables.nested.columns]
reward = { dtype = "float32" }
[tables.nested.columns.sensors]
camera = { shape = [8, 8], dtype = "uint8", kind = "state" }
speed = { dtype = "float32", kind = "state" }

[tables.nested.indexes.first]
sampler = { type = "Uniform" }
[tables.nested.indexes.second]
max_times_sampled = 4
"""


# Every option of every kind of items, none as it is by default.
KINDS = """
[tables.all]
capacity = 5000
storage = "local"

[tables.all.columns]
observation = { shape = [2], dtype = "float32", kind = "state" }
core = { shape = [2], dtype = "float32", kind = "start" }
task = { dtype = "int64", kind = "episode" }
reward = { dtype = "float32", late = true }

[tables.all.indexes.windows]
items = { type = "Sequences", length = 8, burn_in = 4, bootstrap = 1, period = 2, at_end = "shift", pad = "left", \
gamma = 0.9, stack = { observation = 3 }, stack_pad = "zeros", time_major = true }
sampler = { type = "Prioritized", priority_exponent = 0.9, initial = "given" }
limiter = { type = "SamplesPerInsert", samples_per_insert = 2.0, min_size = 10, tolerance = 50.0 }
remover = { type = "Fifo" }
max_times_sampled = 7

[tables.all.indexes.padded]
items = { type = "Episodes", max_length = 9, bootstrap = 1, too_long = "tail", pad = "left", gamma = 0.9, \
stack = { observation = 3 }, stack_pad = "zeros", time_major = true }

[tables.all.indexes.ragged]
items = { type = "Episodes", max_length = 9, too_long = "random", layout = "ragged" }

[tables.all.indexes.ranked]
sampler = { type = "RankBased", priority_exponent = 0.5, initial = 2.0 }

[tables.all.indexes.best]
sampler = { type = "TopK", k = 1 }

[tables.all.indexes.best_share]
sampler = { type = "TopK", k = 1.0 }

[tables.all.indexes.grouped]
items = { type = "Episodes", max_length = 9, group_by = "task", group_size = 4, max_groups = 50 }

[tables.all.indexes.made.items]
type = "Explicit"
windows = { now = 3, far = { length = 2, stride = 4, columns = ["observation", "reward"] } }
columns = { score = { dtype = "float64" }, ranks = { shape = [3], dtype = "int16" } }
max_items = 9
"""
STACKED = {"gamma": 0.9, "stack": {"observation": 3}, "stack_pad": "zeros", "time_major": True}
OF_KINDS = {
    "windows": relive.Index(
        relive.Sequences(8, 4, 1, 2, "shift", "left", **STACKED),
        relive.Prioritized(0.9, initial="given"),
        relive.SamplesPerInsert(2.0, 10, tolerance=50.0),
        relive.Fifo(),
        7,
    ),
    "padded": relive.Index(relive.Episodes(9, 1, "tail", "left", **STACKED)),
    "ragged": relive.Index(relive.Episodes(9, too_long="random", layout="ragged")),
    "ranked": relive.Index(sampler=relive.RankBased(0.5, 2.0)),
    "best": relive.Index(sampler=relive.TopK(1)),
    "best_share": relive.Index(sampler=relive.TopK(1.0)),
    "grouped": relive.Index(relive.Episodes(9, group_by="task", group_size=4, max_groups=50)),
    "made": relive.Index(
        relive.Explicit(
            {"now": relive.Window(3), "far": relive.Window(2, ("observation", "reward"), 4)},
            {"score": relive.ArraySpec((), "float64"), "ranks": relive.ArraySpec((3,), "int16")},
            max_items=9,
        )
    ),
}


def written(folder: Path, text: str, name: str = "nobody") -> Path:
    path = folder / "table.toml"
    path.write_text(text.replace("NAME", name))
    return path


def test_a_file_is_the_tables_it_describes(tmp_path: Path, shm_name: Any) -> None:
    loaded = load_config(written(tmp_path, FILE, shm_name()))
    with open_table(loaded.tables["pong"]) as pong, open_table(loaded.tables["nested"]) as nested:
        items = relive.Transitions(n_step=3, gamma=0.99, stack={"observation": 2})
        expected = relive.Index(items, relive.Prioritized(0.6), relive.MinSize(10))
        assert pong.indexes == {"default": expected} and (pong.capacity, pong.timeout_s) == (5000, 20.0)
        assert pong.spec.columns["observation"] == relive.ArraySpec((2,), "float32", kind="state")
        assert list(nested.spec.columns) == ["reward", "sensors/camera", "sensors/speed"]
        assert list(nested.indexes) == ["first", "second"] and nested.indexes["second"].max_times_sampled == 4


def test_a_file_spells_every_option_of_every_kind_of_items(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, KINDS.replace("\\\n", ""))).tables["all"]
    assert dict(config.index) == OF_KINDS and list(config.index) == list(OF_KINDS)
    assert config.spec.columns["reward"] == relive.ArraySpec((), "float32", late=True)
    assert [column.kind for column in config.spec.columns.values()] == ["state", "start", "episode", "step"]
    for kind in (relive.Sequences, relive.Episodes, relive.Explicit, relive.Window, relive.ArraySpec):
        for field in dataclasses.fields(kind):
            assert f"{field.name} = " in KINDS, f"{field.name} of {kind.__name__} is not in the file"
    with open_table(config) as table:
        assert dict(table.indexes) == OF_KINDS


@pytest.mark.parametrize("twice", ["index = {}", "spec = { columns = { reward = { dtype = 'float32' } } }"])
def test_what_a_file_says_twice_is_refused(tmp_path: Path, twice: str) -> None:
    """Neither of the two is passed over."""
    with pytest.raises(errors.InvalidConfig) as caught:
        load_config(written(tmp_path, KINDS.replace('storage = "local"', twice)))
    assert twice.split()[0] in caught.value.what and "[tables.all]" in caught.value.what


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("capacity = 5000\n", "", "capacity"),
        ("capacity = 5000", "capacitee = 5000\ncapacity = 5000", "capacitee"),
        ('type = "Uniform"', 'type = "Unifrom"', "Uniform"),
        ("n_step = 3", "n_steps = 3", "n_steps"),
        ('storage = "local"', 'storage = "disk"', "storage"),
        ('address = "grpc://127.0.0.1:0"', 'address = "tcp://x"', "grpc://host:port"),
        ('dtype = "int64"', 'dtype = "str"', "dtype"),
        ("seed = 3", "seed = ", "TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in FILE
    with pytest.raises(errors.ReliveError) as caught:
        config = load_config(written(tmp_path, FILE.replace(old, new, 1)))
        open_table(config.tables["nested"]).close()
    assert says in str(caught.value)


@pytest.mark.parametrize("content", [b"address = '\xff'", b"\xff\xfe", b"\0", b"a = " + b"[" * 5000])
def test_a_file_that_is_no_text_of_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "table.toml"
    path.write_bytes(content)
    with pytest.raises(errors.InvalidConfig, match="table.toml: expected TOML"):
        load_config(path)


def test_another_table_under_the_name_is_not_taken(tmp_path: Path, shm_name: Any) -> None:
    name = shm_name()
    spec = relive.StepSpec({"reward": relive.ArraySpec((), "float32")})
    with relive.Table(spec, 100, storage=relive.SharedMemory(name)) as there:
        with pytest.raises(errors.InvalidConfig) as caught:
            open_table(load_config(written(tmp_path, FILE, name)).tables["pong"])
        assert name in caught.value.what and len(there) == 0


def start(path: Path, *more: str) -> tuple[subprocess.Popen[str], str]:
    """`relive serve` as a user runs it, and the address of its table."""
    command = [sys.executable, "-m", "relive.cli", "serve", str(path), *more]
    environment = {**os.environ, "COLUMNS": "200", "PYTHONFAULTHANDLER": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("grpc://"), line
    return process, line.split(": ")[0]


def ended(process: subprocess.Popen[str], seconds: float) -> int:
    """Its exit status. Where it does not end in time it says where its threads are before it is made to."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        return process.wait(20)


def test_serve_is_killed_and_started_again(tmp_path: Path, shm_name: Any) -> None:
    """On the same shared table, which stays after a clean end too, until it is removed by name."""
    name = shm_name()
    path = written(tmp_path, FILE, name)
    first, address = start(path)
    with connect(address) as remote:
        with remote.writer() as writer:
            keys = write_steps(writer, 0, 40)
        first.kill()
        first.wait(20)
        second, again = start(path, "--address", address.rpartition("/")[0])
        assert again == address and len(remote) == 40 and remote.gather(keys).present.sum() >= 37
    second.send_signal(signal.SIGTERM)
    assert ended(second, 20) == 0
    with relive.attach(name) as table:
        assert table.gather(keys).present.sum() >= 37
    relive.remove(name)


KEPT = """
import os, signal, sys
import numpy as np
from relive.service.config import load_config, open_table

one = load_config(sys.argv[1]).tables["kept"]
table = open_table(one)
with table.writer() as writer:
    writer.extend(reward=np.arange(20.0), truncated=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
table.close()
"""


def kept_file(folder: Path, name: str, persists: bool, capacity: int = 100) -> Path:
    """The file of one shared table."""
    path = folder / "kept.toml"
    path.write_text(
        f"""
address = "grpc://127.0.0.1:0"
persist = {str(persists).lower()}
[tables.kept]
capacity = {capacity}
storage = {{ shared = "{name}" }}
columns.reward = {{ shape = [], dtype = "float32" }}
"""
    )
    return path


@pytest.mark.parametrize("refused", ["capacity", "--address", "--metrics-port"])
@pytest.mark.parametrize("left", ["persisted", "killed"])
def test_a_serve_that_is_refused_leaves_the_table_that_is_there(
    tmp_path: Path, shm_name: Any, left: str, refused: str
) -> None:
    """The file of the refused command has `persist = false`, and the table has no process."""
    name = shm_name()
    path = kept_file(tmp_path, name, left == "persisted")
    subprocess.run([sys.executable, "-c", KEPT, str(path), left], timeout=60)
    kept_file(tmp_path, name, False, 200 if refused == "capacity" else 100)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        options = {"--address": f"grpc://127.0.0.1:{port}", "--metrics-port": port}
        more = (refused, options[refused]) if refused in options else ()
        with pytest.raises(errors.InvalidConfig if refused == "capacity" else errors.CannotListen):
            run(["serve", str(path), *more])
    with relive.attach(name) as table:
        assert len(table) == 20
    relive.remove(name)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_serve_that_is_refused_leaves_the_choice_of_a_table_in_use(
    tmp_path: Path, shm_name: Any, keeps: bool
) -> None:
    name = shm_name()
    spec = relive.StepSpec({"reward": relive.ArraySpec((), "float32")})
    with relive.Table(spec, 100, storage=relive.SharedMemory(name, keep=keeps)):
        for persists in (True, False):
            with pytest.raises(errors.InvalidConfig, match="capacity"):
                run(["serve", str(kept_file(tmp_path, name, persists, 200))])
    assert bool(shared_files(name)) == keeps


@pytest.mark.parametrize(("number", "end"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_a_serve_that_opens_its_tables(
    tmp_path: Path, shm_name: Any, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, end: type[BaseException]
) -> None:
    """At once. No table is left of those that it had made."""
    first, second = shm_name(), shm_name()
    text = FILE.replace('storage = "local"', f'storage = {{ shared = "{second}" }}').replace('"1MiB"', "500")
    path = written(tmp_path, text.replace("[tables.nested]", "[tables.nested]\nload = './save'"), first)
    with relive.Table(load_config(path).tables["nested"].spec, 500, load_config(path).tables["nested"].index) as table:
        table.save(tmp_path / "save")
    heard_late = []

    def load(*_: Any, **__: Any) -> relive.Table:
        assert shared_files(first)
        signal.raise_signal(number)
        heard_late.append(number)
        raise AssertionError("the command goes on")

    monkeypatch.setattr(service_config, "load_table", load)
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(end) as ended:
        run(["serve", str(path)])
    assert not heard_late and not shared_files(first) and not shared_files(second)
    assert not isinstance(ended.value, SystemExit) or ended.value.code == 128 + number
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_load_that_is_interrupted_leaves_no_table(
    tmp_path: Path, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the signal comes while the core ends the load, so that the handler runs after the region was made."""
    name = shm_name()
    config = load_config(kept_file(tmp_path, name, True)).tables["kept"]
    with relive.Table(config.spec, 100) as table:
        table.save(tmp_path / "save")

    def interrupt(*_: Any) -> None:
        assert shared_files(name)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("relive.saving.loading.LoadedCore", interrupt)
        open_table(config, str(tmp_path / "save"))
    assert not shared_files(name)
    open_table(config, str(tmp_path / "save")).close()
    assert shared_files(name), "a table that is loaded has the choice of the file"
    relive.remove(name)


@pytest.mark.parametrize(("capacity", "is_crowded"), [(1000, False), (300, True)])
def test_serve_says_what_a_remover_costs(tmp_path: Path, capacity: int, is_crowded: bool) -> None:
    path = tmp_path / "table.toml"
    path.write_text(
        f"""
address = "grpc://127.0.0.1:0"
persist = false
[tables.kept]
capacity = {capacity}
columns.reward = {{ shape = [], dtype = "float32" }}
index = {{ remover = {{ type = "Uniform" }}, max_items = 10 }}
"""
    )
    process, _ = start(path)
    assert process.stdout is not None
    line = process.stdout.readline()
    steps = relive.Index(remover=relive.Uniform(), max_items=10).steps_to_hold
    assert f"default: Uniform() keeps 10 items, which can lie in up to {steps} steps" in line
    assert ("crowded_out" in line) == is_crowded
    process.send_signal(signal.SIGTERM)
    assert ended(process, 20) == 0
