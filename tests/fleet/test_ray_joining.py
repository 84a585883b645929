"""How a process joins a Ray cluster: the node of this host, the names of hosts, port-forwards and Ctrl-C. Stand-ins."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relive import errors

pytest.importorskip("ray", reason="ray is not installed here (pip install 'relive[ray]')")
pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (the extra `ray` brings it)")

from ray._private import client_mode_hook  # noqa: E402
from ray.exceptions import RpcError  # noqa: E402
from ray.util import client  # noqa: E402

from fleet.tools import listener  # noqa: E402
from relive.fleet import ray as fleets  # noqa: E402
from relive.fleet.draws.pace import Wait  # noqa: E402
from relive.fleet.on_ray import cluster as cluster_of_process  # noqa: E402
from relive.fleet.on_ray.cluster import join  # noqa: E402

SETTINGS = b"\0\0\0\x04\0\0\0\0\0"  # with them every server of gRPC greets


# ---- the cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture
def last_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Writes Ray's note of the last cluster of this host. No cluster runs, and ray.init must not be reached."""

    def note(address: str) -> None:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)

    def never(**_: Any) -> None:
        raise AssertionError("ray.init waits without an end for such an address")

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", never)
    return note


@pytest.mark.parametrize("address", [None, "auto"])
def test_a_cluster_that_died_is_not_joined(last_cluster: Callable[[str], None], address: str | None) -> None:
    """Ray's note of the cluster stays when its head is killed."""
    with socket.socket() as bound:  # nothing listens there, and no other program takes the port
        bound.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{bound.getsockname()[1]}"
        last_cluster(place)
        with pytest.raises(errors.InvalidConfig, match=f":{place.split(':')[1]}.*last cluster of this host.*refused"):
            join(address, Wait(5.0))


def test_a_cluster_whose_head_hangs_is_not_joined(last_cluster: Callable[[str], None]) -> None:
    """The kernel accepts connections for a process that is stopped."""
    with socket.create_server(("0.0.0.0", 0)) as listener:
        last_cluster(f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(errors.InvalidConfig, match="does not answer"):
            join(None, Wait(0.2))


def test_without_a_note_no_cluster_is_found(last_cluster: Callable[[str], None]) -> None:
    with pytest.raises(errors.InvalidConfig, match="none found"):
        join(None, Wait(5.0))


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.7:1")  # is for processes that have joined no cluster
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(gcs_address="127.0.0.1:6379"))


@pytest.mark.parametrize("address", ["127.0.0.1:6380", "192.0.2.7:6379", "nonsense", "ray://localhost:6379"])
def test_an_address_of_another_cluster_is_refused(joined: None, address: str) -> None:
    """Otherwise stop() would end the fleet of the cluster that this process has joined.

    The server at an address of ray:// may be that of another cluster of the host.
    """
    with pytest.raises(errors.InvalidConfig, match="127.0.0.1:6379.*has joined"):
        fleets.stop("pong", address=address)


@pytest.mark.parametrize("address", [None, "", "auto", "127.0.0.1:6379", "localhost:6379"])
def test_the_same_cluster_in_another_spelling_is_taken(joined: None, address: str | None) -> None:
    join(address, Wait(1.0))


@pytest.mark.parametrize("address", [6379, b"127.0.0.1:6379", ["auto"]])
def test_an_address_that_is_no_text_is_refused(joined: None, address: Any) -> None:
    with pytest.raises(errors.InvalidConfig, match="expected HOST:PORT"):
        fleets.status("pong", address=address)


def test_threads_join_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray raises an AssertionError where two threads join at once."""
    joins, goes_on, calls = threading.Event(), threading.Event(), list[str]()

    def init(*, address: str, **_: Any) -> None:
        joins.set()
        assert goes_on.wait(60.0)
        calls.append(address)

    monkeypatch.setattr("ray.is_initialized", lambda: bool(calls))
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr(cluster_of_process, "_found", lambda _: "127.0.0.1:6379")
    monkeypatch.setattr(cluster_of_process, "_check_reached", lambda *_: None)
    monkeypatch.setattr(cluster_of_process, "_check_node_here", lambda *_: None)
    first = threading.Thread(target=join, args=(None, Wait(60.0)))
    first.start()
    assert joins.wait(60.0)
    with pytest.raises(errors.DeadlineExceeded, match="another thread"):
        join(None, Wait(0.0))
    goes_on.set()
    join(None, Wait(60.0))
    first.join()
    assert calls == ["127.0.0.1:6379"]


def test_a_call_with_an_address_ends_in_time_when_the_head_hangs(monkeypatch: pytest.MonkeyPatch, joined: None) -> None:
    """A process that joined by ray:// asks for the address of its cluster. Other threads would wait for that call."""
    monkeypatch.setattr("relive.fleet.on_ray.cluster._LEAST_S", 0.05)
    ends = threading.Event()
    monkeypatch.setattr("ray.get_runtime_context", ends.wait)
    for _ in range(2):
        with pytest.raises(errors.DeadlineExceeded, match="head of the Ray cluster"):
            join("ray://127.0.0.1:10001", Wait(0.05))
    ends.set()


# ---- the node of this host -------------------------------------------------------------------------------------------


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A head that answers; the nodes of its cluster, by their ids; the ids of the Ray nodes that run on this host."""
    told = SimpleNamespace(nodes={}, ids=[set()], joined=[])

    def ids() -> set[str]:
        return set(told.ids.pop(0) if len(told.ids) > 1 else told.ids[0])

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda *, address, **_: told.joined.append(address))
    monkeypatch.setattr("ray._private.services.find_node_ids", ids)
    client = SimpleNamespace(get_all_node_info=lambda **_: {bytes.fromhex(k): v for k, v in told.nodes.items()})
    monkeypatch.setattr("ray._private.services.GcsClient", lambda address: client)
    with listener(SETTINGS) as port:
        told.address = f"127.0.0.1:{port}"
        yield told


def node(port: int, is_head: bool = False) -> Any:
    return SimpleNamespace(node_manager_address="127.0.0.1", node_manager_port=port, is_head_node=is_head)


@pytest.mark.parametrize("ids", [set(), {"ff"}], ids=["no node", "a node of another cluster"])
def test_a_cluster_without_a_node_on_this_host_is_not_joined(head: SimpleNamespace, ids: set[str]) -> None:
    """Ray waits a minute for one."""
    head.nodes, head.ids = {"aa": node(1)}, [ids]
    port = head.address.split(":")[1]
    with pytest.raises(errors.InvalidConfig, match=f"no node of it runs on this host.*ray start --address=.*:{port}"):
        join(head.address, Wait(0.1))
    assert head.joined == []


def test_a_node_of_this_host_that_hangs_is_not_joined(head: SimpleNamespace) -> None:
    """Ray ends a process that joins by such a node. The kernel accepts connections for a process that is stopped."""
    with listener(b"") as port:
        head.nodes, head.ids = {"aa": node(port)}, [{"aa"}]
        with pytest.raises(errors.InvalidConfig, match=f"node of this host does not answer at 127.0.0.1:{port}"):
            join(head.address, Wait(0.2))
    assert head.joined == []


def test_a_node_that_starts_is_waited_for(head: SimpleNamespace) -> None:
    with listener(SETTINGS) as port:
        head.nodes, head.ids = {"aa": node(port)}, [set(), {"ff"}, {"ff", "aa"}]
        join(head.address, Wait(60.0))
    assert len(head.joined) == 1


def test_the_head_node_is_the_one_that_is_asked(head: SimpleNamespace) -> None:
    """Ray joins by it if several nodes run on this host."""
    with listener(SETTINGS) as port, listener(b"") as silent:
        head.nodes, head.ids = {"aa": node(silent), "bb": node(port, True)}, [{"aa", "bb"}]
        join(head.address, Wait(60.0))
    assert len(head.joined) == 1


@pytest.mark.parametrize("lacks", ["find_node_ids", "GcsClient"])
def test_a_ray_that_cannot_tell_its_nodes_joins_as_it_does(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace, lacks: str
) -> None:
    head.ids = [{"aa"}]
    monkeypatch.delattr(f"ray._private.services.{lacks}")
    join(head.address, Wait(60.0))
    assert len(head.joined) == 1


def test_a_head_that_hangs_while_it_is_asked_for_its_nodes_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace
) -> None:
    monkeypatch.setattr("relive.fleet.on_ray.cluster._LEAST_S", 0.05)
    ends = threading.Event()
    monkeypatch.setattr("ray._private.services.find_node_ids", lambda: ends.wait() and set())
    with pytest.raises(errors.DeadlineExceeded, match="head of the Ray cluster"):
        join(head.address, Wait(0.05))
    ends.set()
    assert head.joined == []


def test_a_server_of_ray_that_is_no_head_is_not_joined(monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace) -> None:
    """Nodes and workers of Ray speak gRPC, too."""

    def refuse(**_: Any) -> None:
        raise RpcError("Method not found", rpc_code=12)

    head.ids = [{"aa"}]
    monkeypatch.setattr("ray._private.services.GcsClient", lambda address: SimpleNamespace(get_all_node_info=refuse))
    with pytest.raises(errors.InvalidConfig, match="no head of a Ray cluster.*Method not found"):
        fleets.status("pong", address=head.address)
    assert head.joined == []


@pytest.fixture
def joined_by_client(monkeypatch: pytest.MonkeyPatch, joined: None) -> None:
    """By the program itself, and through a port-forward: the cluster knows itself by another address."""
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(gcs_address="192.0.2.7:6379"))
    worker = SimpleNamespace(_conn_str="127.0.0.1:10001")
    monkeypatch.setattr("ray.util.client._default_context.client_worker", worker)


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "ray://localhost:10001", "192.0.2.7:6379"])
def test_the_address_by_which_rays_client_joined_is_taken(joined_by_client: None, address: str) -> None:
    join(address, Wait(60.0))


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10002", "ray://192.0.2.7:10001", "127.0.0.1:10001", "ray://x"])
def test_another_address_than_that_of_rays_client_is_refused(joined_by_client: None, address: str) -> None:
    with pytest.raises(errors.InvalidConfig, match="expected none, or .*has joined"):
        join(address, Wait(60.0))


@pytest.mark.parametrize("joined", [False, True])
def test_the_deadline_holds_while_the_name_of_a_host_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace, joined: bool
) -> None:
    ends = threading.Event()
    monkeypatch.setattr("relive.fleet.on_ray.cluster._LEAST_S", 0.05)
    monkeypatch.setattr("ray.is_initialized", lambda: joined)
    monkeypatch.setattr("ray.get_runtime_context", lambda: SimpleNamespace(gcs_address="192.0.2.7:6379"))
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: ends.wait() and [])
    with pytest.raises(errors.DeadlineExceeded, match="head of the Ray cluster"):
        join("slow.example:6379" if joined else "ray://slow.example:6379", Wait(0.05))
    ends.set()


def test_a_lost_link_is_left_before_another_cluster_is_joined(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace
) -> None:
    """Ray's client gives a lost link up, and ray.init then raises an AssertionError until ray.shutdown."""
    monkeypatch.setattr("ray._private.client_mode_hook.is_client_mode_enabled", True)
    monkeypatch.setattr("ray.shutdown", lambda: head.joined.append("left"))
    join(f"ray://{head.address}", Wait(60.0))
    assert head.joined == ["left", f"ray://{head.address}"]


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_ctrl_c_comes_after_the_process_has_joined(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace, fails: bool
) -> None:
    """Within ray.init, it may leave a process that has joined in C++ and not in Python. The next ray.init aborts it."""

    def init(*, address: str, **_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        head.joined.append(address)
        if fails:
            raise RuntimeError("the node died")

    before = signal.getsignal(signal.SIGINT)
    with listener(SETTINGS) as port:
        head.nodes, head.ids = {"aa": node(port)}, [{"aa"}]
        monkeypatch.setattr("ray.init", init)
        with pytest.raises(KeyboardInterrupt):
            join(head.address, Wait(60.0))
    assert len(head.joined) == 1 and signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_ends_the_wait_for_rays_client(monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace) -> None:
    def init(*, address: str, **_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        head.joined.append(address)

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(KeyboardInterrupt):
        join(f"ray://{head.address}", Wait(60.0))
    assert head.joined == []


@pytest.mark.parametrize("ending", [KeyboardInterrupt, RuntimeError("a lost link")])
def test_a_link_that_is_half_made_is_left(
    monkeypatch: pytest.MonkeyPatch, head: SimpleNamespace, ending: BaseException
) -> None:
    """Ray notes a context when its connect() returns. Neither ray.shutdown nor ray.util.disconnect leaves it before."""
    context, closed = client._default_context, list[bool]()

    def close() -> None:
        closed.append(client_mode_hook.is_client_mode_enabled)
        raise AttributeError("a worker that is half made has no data_client")

    def init(**_: Any) -> None:
        monkeypatch.setattr(client_mode_hook, "is_client_mode_enabled", True)
        monkeypatch.setattr(context, "client_worker", SimpleNamespace(close=close))
        raise ending

    monkeypatch.setattr("ray.init", init)
    with pytest.raises((KeyboardInterrupt, errors.InvalidConfig)):
        join(f"ray://{head.address}", Wait(60.0))
    assert context.client_worker is None and closed == [False]
    monkeypatch.setattr("ray.init", lambda *, address, **_: head.joined.append(address))
    join(f"ray://{head.address}", Wait(60.0))
    assert len(head.joined) == 1
