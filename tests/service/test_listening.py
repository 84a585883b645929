"""A server that cannot listen where it is told to."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.fleet import ShardOwner

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from relive.service import serve  # noqa: E402

SPEC = relive.StepSpec({"a": relive.ArraySpec((), "int64")})


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


@pytest.mark.parametrize("by", ["serve", "owner", "metrics"])
def test_a_port_that_is_taken_is_named_with_the_reason(taken: int, by: str, shm_name: Any) -> None:
    address = f"grpc://127.0.0.1:{taken}"
    with relive.Table(SPEC, 100) as table:
        with ShardOwner(0, relive.TableConfig(SPEC, 100, storage=relive.SharedMemory(shm_name()))) as owner:
            with serve({"a": table}, "grpc://127.0.0.1:0") as server:
                calls: dict[str, Callable[[], Any]] = {
                    "serve": lambda: serve({"a": table}, address),
                    "owner": lambda: owner.serve(address),
                    "metrics": lambda: server.serve_metrics(taken),
                }
                with pytest.raises(errors.CannotListen, match="in use.*take a free port") as caught:
                    calls[by]()
                assert str(taken) in caught.value.address and "in use" in caught.value.reason
                with relive.connect(server.address + "/a") as remote, remote.writer() as writer:
                    writer.append(a=np.int64(1), terminated=True)
                    assert remote.sample(1)["a"].tolist() == [1]


def test_a_host_that_is_not_this_machine_is_named() -> None:
    with relive.Table(SPEC, 100) as table:
        for host in ("192.0.2.1", "no-such-host.invalid"):
            with pytest.raises(errors.CannotListen, match="of this machine") as caught:
                serve({"a": table}, f"grpc://{host}:0", insecure=True)
            assert host in caught.value.address and caught.value.reason


@pytest.mark.parametrize("by", ["serve", "metrics"])
def test_a_text_that_is_no_host_name_is_refused_in_words(by: str) -> None:
    """Python raises a UnicodeError for it."""
    with relive.Table(SPEC, 100) as table, serve({"a": table}, "grpc://127.0.0.1:0") as server:
        with pytest.raises(errors.CannotListen, match=r"a\.\.b"):
            if by == "serve":
                serve({"a": table}, "grpc://a..b:0", insecure=True)
            server.serve_metrics(0, "a..b")


@pytest.mark.parametrize("text", ["70000", "-1", "x", "1.5", "²"])
def test_a_port_of_the_command_line_is_checked_before_anything_is_served(
    text: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from relive.cli.entry import run

    with pytest.raises(SystemExit) as ended:
        run(["serve", str(tmp_path / "table.toml"), "--metrics-port", text])
    assert ended.value.code == 2 and "expected a port from 0 to 65535" in capsys.readouterr().err


def test_a_shard_has_room_for_the_streams_of_a_thousand_actors(shm_name: Any) -> None:
    """Each has two of them, and once more those of a broken network."""
    with ShardOwner(0, relive.TableConfig(SPEC, 100, storage=relive.SharedMemory(shm_name()))) as owner:
        owner.serve()
        options = owner._server._options
        assert min(options.max_streams, options.max_streams_per_client, options.max_connections) >= 2 * 2 * 1_000
