"""Everything that takes an address works with TLS and a token: fleets, mixtures, loaders, children and commands."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, write_steps

import relive
from relive import errors
from relive.cli.entry import run
from relive.service import Access, ClientTLS, Door, ServerTLS, connect, serve
from service.certificates import Authority, needs_openssl
from service.doors import tokens_for

pytestmark = needs_openssl
TLS = "grpc+tls://127.0.0.1:0"


class Locked(NamedTuple):
    """A server with TLS and tokens, and the files of its clients."""

    door: Door
    client: ClientTLS
    file: Path  # of a token that may read
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Locked:
    folder = tmp_path_factory.mktemp("locked")
    authority = Authority(folder)
    tokens = tokens_for(folder / "tokens.toml", "*")
    (folder / "token").write_text(tokens["read"])
    (folder / "token").chmod(0o600)
    door = Door(ServerTLS(*authority.issue("server")), folder / "tokens.toml")
    return Locked(door, ClientTLS(authority.path), folder / "token", tokens)


@pytest.fixture
def address(locked: Locked) -> Iterator[str]:
    with relive.Table(plain_spec(), 200) as table:
        with table.writer() as writer:
            write_steps(writer, 0, 20)
        with serve({"pong": table}, TLS, tls=locked.door.tls, tokens=locked.door.tokens) as server:
            yield f"{server.address}/pong"


def _count(remote: Any, answers: Any) -> None:
    answers.put((len(remote), Path("/proc/self/cmdline").read_bytes(), Path("/proc/self/environ").read_bytes()))


def test_a_spawned_child_finds_the_token_in_its_file(locked: Locked, address: str) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with connect(address, tls=locked.client, token=locked.file) as remote:
        child = context.Process(target=_count, args=(remote, answers))
        child.start()
        number, *told = answers.get(timeout=60)
        child.join()
    assert number == 20 and not any(token.encode() in one for one in told for token in locked.tokens.values())


def test_loader_workers(locked: Locked, address: str) -> None:
    torch_data = pytest.importorskip("torch.utils.data", reason="torch is not installed here")
    with connect(address, tls=locked.client, token=locked.file) as remote:
        loader = torch_data.DataLoader(
            relive.loader(remote, 4), batch_size=None, num_workers=1, multiprocessing_context="spawn"
        )
        assert len(next(iter(loader))["item_keys"]) == 4


def test_a_mixture_over_remote_tables(locked: Locked, address: str) -> None:
    with connect(address, tls=locked.client, token=locked.tokens["read"]) as remote:
        mixture = relive.Mixture({"a": 0.5, "b": 0.5}, {"a": remote, "b": remote})
        assert mixture.sample(8).num_items == 8


def test_shards_at_addresses(locked: Locked, shm_name: Any) -> None:
    from relive.fleet import ShardOwner, attach

    config = relive.TableConfig(plain_spec(), capacity=200, storage=relive.SharedMemory(shm_name()))
    with ShardOwner(0, config) as owner:
        with owner.table.writer() as writer:
            write_steps(writer, 0, 20)
        where = owner.serve(TLS, door=locked.door)
        with attach([where], path="service", access=Access.of(locked.client, locked.file)) as table:
            assert len(table) == 20 and table.sample(4).num_items == 4
        with pytest.raises(errors.AccessDenied):
            attach([where], path="service", access=Access.of(locked.client, locked.tokens["append"]))
        with pytest.raises(errors.AccessDenied):
            attach([where], path="service", access=Access.of(locked.client, None))


def test_an_owner_serves_openly_on_loopback_alone(shm_name: Any) -> None:
    from relive.fleet import ShardOwner

    config = relive.TableConfig(plain_spec(), capacity=200, storage=relive.SharedMemory(shm_name()))
    with ShardOwner(0, config) as owner, pytest.raises(errors.InvalidConfig, match="insecure=True"):
        owner.serve("grpc://0.0.0.0:0")


def test_the_door_of_a_run_and_of_a_fleet(locked: Locked, tmp_path: Path) -> None:
    from relive.fleet.ray_config import load_config
    from relive.train.acting.serving import door_of
    from relive.train.sections import ServingConfig

    tls = locked.door.tls
    assert tls is not None
    run = ServingConfig(TLS, str(tls.certificate), str(tls.key), tokens=str(locked.door.tokens))
    assert door_of(run) == locked.door
    with pytest.raises(errors.InvalidConfig):
        door_of(ServingConfig(TLS, str(tls.certificate)))
    (tmp_path / "fleet.toml").write_text(
        f'name = "f"\nnum_shards = 1\ntokens = "{locked.door.tokens}"\n[tls]\ncertificate = "{tls.certificate}"\n'
        f'key = "{tls.key}"\n[table]\ncapacity = 100\n[table.columns]\naction = {{ dtype = "int64" }}\n'
    )
    assert load_config(tmp_path / "fleet.toml").door == locked.door


def _relive(*words: str | Path, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "relive.cli", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **more,
    )


def test_commands_that_look_at_a_table_of_an_address(
    locked: Locked, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writes = tmp_path / "append"
    writes.write_text(locked.tokens["append"])
    writes.chmod(0o600)
    access = ["--ca", str(locked.client.ca), "--token-file"]
    assert run(["inspect", address, "--once", "--every", "0.1", *access, str(locked.file)]) == 0
    assert "20 of 200 steps" in capsys.readouterr().out
    with connect(address, tls=locked.client, token=writes) as remote, remote.writer() as writer:
        write_steps(writer, 20, 4, truncated=True)
    assert run(["export", address, str(tmp_path / "out.npz"), *access, str(locked.file)]) == 0
    assert run(["import", str(tmp_path / "out.npz"), address, *access, str(writes)]) == 0
    assert capsys.readouterr().out.endswith("steps written\n")


@pytest.mark.parametrize("command", ["inspect {}", "export {} out.npz", "import out.npz {}"])
@pytest.mark.parametrize("target", ["name", "./folder"])
def test_the_options_of_a_client_are_for_an_address(
    command: str, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--ca", "--token-file", "--certificate", "--key"):
        with pytest.raises(SystemExit) as end:
            run([*command.format(target).split(), option, "file"])
        assert end.value.code == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"{option} is for a table of a server: expected grpc+tls://HOST:PORT/NAME, got '{target}'" in said


def test_the_commands(locked: Locked, tmp_path: Path) -> None:
    made = _relive("token", "new", "actor", "--role", "read", "--table", "po*", "--file", tmp_path / "tokens.toml")
    token = made.communicate(timeout=60)[0].strip()
    assert made.returncode == 0 and token not in (tmp_path / "tokens.toml").read_text()
    listed = _relive("token", "ls", "--file", tmp_path / "tokens.toml").communicate(timeout=60)[0]
    assert listed == "actor: read for po*\n"
    tls = locked.door.tls
    assert tls is not None
    (tmp_path / "table.toml").write_text(
        f'address = "{TLS}"\ntokens = "tokens.toml"\n[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n'
        '[tables.pong]\ncapacity = 100\nstorage = "local"\n[tables.pong.columns]\naction = { dtype = "int64" }\n'
    )
    server = _relive("serve", tmp_path / "table.toml", env={**os.environ, "PYTHONUNBUFFERED": "1"})
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split(": ")[0]
        with connect(address, tls=locked.client, token=token) as remote:
            assert len(remote) == 0
            with pytest.raises(errors.AccessDenied):
                remote.clear()
        assert token.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    finally:
        server.send_signal(signal.SIGTERM)
        said = server.communicate(timeout=60)[0]
    assert server.returncode == 0 and token not in said, said
    (tmp_path / "open.toml").write_text(
        '[tables.pong]\ncapacity = 100\nstorage = "local"\n[tables.pong.columns]\naction = { dtype = "int64" }\n'
    )
    refused = _relive("serve", tmp_path / "open.toml", "--address", "grpc://0.0.0.0:0")
    assert "--insecure" in refused.communicate(timeout=60)[0] and refused.returncode == 1
