"""The Ray cluster of this process: how it is joined, and questions to it that have a deadline."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import ray
from ray._private import client_mode_hook, services
from ray.exceptions import RayError
from ray.util import client

from relive.core.ending import start_thread
from relive.core.turns import take
from relive.errors import DeadlineExceeded, InvalidConfig, ReliveError, SystemFailure
from relive.fleet.draws.pace import Wait
from relive.fleet.errors import ClusterFailed

__all__ = ["FOREVER_S", "NAMESPACE", "ask", "explained", "join", "reason"]

Answer = TypeVar("Answer")

NAMESPACE = "relive"
FOREVER_S = 1e6  # Ray counts milliseconds in 64 bits
_LEAST_S = 1.0  # for one question of a call whose deadline is near: a healthy head answers in milliseconds
_REACH_S = 5.0
_PAUSE_S = 0.1
_CLIENT = "ray://"
_WHAT = "address of the Ray cluster"
# RFC 9113, 3.4: both ends begin with a frame of settings: its length (3 bytes), type 4, flags, and stream 0 (4 bytes).
_HTTP2_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _HTTP2_SETTINGS


_joining = threading.Lock()  # ray.init() of two threads would meet


def reason(error: BaseException) -> str:
    """The last line of Ray's error that describes the failure."""
    details = getattr(error, "details", None)  # of an error of gRPC
    if callable(details):
        return str(details())
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or ".errors." in line]
    return (told or lines or [type(error).__name__])[-1]


@contextmanager
def explained(call: str) -> Iterator[None]:
    """Raises ClusterFailed in place of an error of Ray."""
    try:
        yield
    except Exception as error:
        if isinstance(error, ReliveError) or not _is_of_ray(error):
            raise
        raise ClusterFailed(call, reason(error)) from error


def _is_of_ray(error: Exception) -> bool:
    """Whether Ray raises such an error. A lost link of ray:// is an error of gRPC, and later a ConnectionError."""
    is_of_grpc = any(kind.__module__ == "grpc" for kind in type(error).__mro__)
    return is_of_grpc or isinstance(error, RayError | ValueError | ConnectionError)


def ask(
    wait: Wait, question: Callable[[], Answer], undo: Callable[[Answer], object] | None = None, own_s: float = 0.0
) -> Answer:
    """Returns question(), which asks the head of the cluster, and gives up at the deadline.

    Ray's own questions have no timeout, and a head may hang. A thread therefore asks. If the answer comes after this
    call gave up, by the deadline or by Ctrl-C, the thread undoes it.

    Args:
        wait: the wait of the call. One question has a second at least.
        question: calls Ray.
        undo: takes the answer that comes too late. None: such an answer changes nothing.
        own_s: seconds after which the question ends by itself. It has a second more, to say that it did: a node that is
            silent is no head that is silent.

    Raises:
        DeadlineExceeded: the head does not answer in time.
        SystemFailure: no thread can start.
    """
    answer: Future[Answer] = Future()

    def work() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:
            answer.set_exception(error)

    def take_back(late: Future[Answer]) -> None:
        if undo is not None and late.exception() is None:
            undo(late.result())

    try:
        try:
            start_thread(work, "relive-ray", never_writes=True)
        except RuntimeError as error:
            if not sys.is_finalizing():  # a limit of the system: without a thread, a head that hangs has no deadline
                raise SystemFailure("starting a thread that asks Ray", errno.EAGAIN) from error
            work()  # the interpreter ends, where no thread starts
        if wait_for([answer], min(max(wait.left_s, own_s + _LEAST_S), FOREVER_S)).not_done:
            raise wait.exceeded("an answer of the head of the Ray cluster", "none")
    except BaseException:
        answer.add_done_callback(take_back)
        raise
    return answer.result()


# ---- joining ---------------------------------------------------------------------------------------------------------


def join(address: str | None, wait: Wait) -> None:
    """Joins the cluster if this process is not part of one. Never starts one.

    Args:
        address: HOST:PORT or ray://HOST:PORT. None: the cluster that this process has joined, else the one of
            RAY_ADDRESS, else the one that runs on this host.
        wait: the wait of the call.

    Raises:
        InvalidConfig: no cluster answers at the address, no node of it answers on this host, or this process has joined
            another cluster.
        DeadlineExceeded: another thread has not joined in time, or the head stopped answering.
    """
    if address is not None and not isinstance(address, str):
        raise InvalidConfig(_WHAT, "HOST:PORT, ray://HOST:PORT or None", address)
    mine: list[bool] = []
    try:
        if not take(_joining, max(wait.left_s, _LEAST_S), mine):
            raise wait.exceeded("the end of another thread's try to join the Ray cluster", "none")
        _join(address, wait)
    finally:
        if True in mine:
            _joining.release()


def _join(address: str | None, wait: Wait) -> None:
    if ray.is_initialized():
        if address and address != "auto":
            _check_joined(address, wait)
        return
    ask(wait, _leave_lost)
    asked = address or os.environ.get("RAY_ADDRESS") or "auto"
    found = asked
    expected = "one that runs: ray start --head, and on the other nodes ray start --address=HEAD:6379"
    try:
        found = ask(wait, partial(_found, asked))  # asks for the addresses of names, too
        ask(wait, partial(_check_reached, found, min(_REACH_S, 0.9 * wait.left_s)))  # its error comes in time
        is_client = found.startswith(_CLIENT)
        if not is_client:
            _check_node_here(found, wait)
        with _whole_or_left() if is_client else _sigint_afterwards(), _own_handler_of_sigterm():
            ray.init(address=found, namespace=NAMESPACE, logging_level="error", log_to_driver=False)
    except DeadlineExceeded:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidConfig(_WHAT, expected, _got(asked, found, reason(error))) from error


def _leave_lost() -> None:
    """Leaves a cluster whose link of ray:// is lost or half made. Ray's client would refuse to join again."""
    if getattr(client_mode_hook, "is_client_mode_enabled", False):
        ray.shutdown()
        _leave_half_made()


def _leave_half_made() -> None:
    """Leaves a link of ray:// that Ray has not noted, because the call that made it ended in its middle."""
    context = client.ray.get_context()
    worker, context.client_worker = context.client_worker, None
    context.disconnect()
    client_mode_hook._explicitly_disable_client_mode()
    if worker is not None:  # last: it may wait for its threads
        with suppress(Exception):  # the worker may be half made, too
            worker.close()


@contextmanager
def _whole_or_left() -> Iterator[None]:
    """Leaves the link of ray:// if Ctrl-C or an error ends the block: this process can then join by a later call."""
    try:
        yield
    except BaseException:
        with suppress(Exception):  # the caller raises the error of the block
            ask(Wait(_LEAST_S), _leave_half_made)
        raise


def _got(asked: str, found: str, why: str) -> str:
    if found == "auto":
        return "none found"
    if asked == "auto":
        return f"{found!r}, which Ray notes as the last cluster of this host ({why})"
    return f"{asked!r} ({why})" if found == asked else f"{asked!r}, which is {found!r} to Ray ({why})"


def _found(asked: str) -> str:
    """The address that ray.init would use, HOST:PORT or ray://HOST:PORT.

    Raises OSError if no cluster was found on this host, and ValueError for a text that is no address.
    """
    if asked == "auto":  # Ray's note of the last cluster stays when that cluster is killed
        asked = str(services.get_ray_address_from_environment("auto", None))
    if asked.startswith(_CLIENT):
        return asked
    found = services.canonicalize_bootstrap_address(asked)
    if found is None:
        raise ValueError("not HOST:PORT")
    return str(found)


@contextmanager
def _own_handler_of_sigterm() -> Iterator[None]:
    """Keeps the handler that the program has for SIGTERM, which ray.init would replace. Ray's stays if it has none."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _sigint_afterwards() -> Iterator[None]:
    """Delays a SIGINT that comes while the block runs in the main thread until the end of the block.

    If a handler raises within ray.init, this process may have joined for Ray's C++ and not for its Python. The next
    ray.init would then abort the process.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    try:
        signal.signal(signal.SIGINT, lambda number, _: came.append(number))
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _parts(address: str) -> tuple[str, int]:
    """Host and port. Raises ValueError."""
    host, _, port = address.removeprefix(_CLIENT).rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError("not HOST:PORT")
    return host.strip("[]"), int(port)


def _check_reached(address: str, timeout_s: float) -> None:
    """Raises ValueError or OSError if no server of gRPC, as Ray's are, answers at the address in time.

    Ray waits without an end for an address where nothing listens, for a head that was stopped, and for a listener that
    is no Ray.
    """
    place = _parts(address)
    ends = time.monotonic() + max(_PAUSE_S, timeout_s)
    with socket.create_connection(place, max(_PAUSE_S, timeout_s)) as line:
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return  # the greeting would have to be encrypted
        line.sendall(_HTTP2_GREETING)
        heard = b""
        while len(heard) < len(_HTTP2_SETTINGS):
            line.settimeout(max(0.001, ends - time.monotonic()))
            try:
                some = line.recv(len(_HTTP2_SETTINGS) - len(heard))
            except TimeoutError:
                raise TimeoutError("no Ray: what listens there does not answer") from None
            if not some:
                break
            heard += some
    if heard[3:4] != _HTTP2_SETTINGS[3:4] or heard[5:] != _HTTP2_SETTINGS[5:]:
        raise ValueError("no Ray: what listens there does not speak gRPC")


def _check_node_here(address: str, wait: Wait) -> None:
    """Raises ValueError if no node of the cluster runs on this host within _REACH_S, or if that node does not answer.

    Ray waits a minute for a node of this host. If the node hangs, Ray waits longer, and ends the process.
    """
    starts = Wait(min(_REACH_S, wait.left_s))
    while not (nodes := ask(wait, partial(_nodes_here, address))):
        if nodes is None:
            return
        if starts.is_over:
            raise ValueError(f"no node of it runs on this host; on this host: ray start --address={address}")
        time.sleep(min(_PAUSE_S, starts.left_s))
    node = next((one for one in nodes if one.is_head_node), nodes[0])  # as Ray chooses
    place = f"{node.node_manager_address}:{node.node_manager_port}"
    try:
        _check_reached(place, min(_REACH_S, wait.left_s))
    except (OSError, ValueError):
        raise ValueError(f"its node of this host does not answer at {place}") from None


def _nodes_here(address: str) -> list[Any] | None:
    """The live nodes of the cluster on this host, as ray.init finds them. None: this Ray finds them in another way.

    Raises ValueError if the server at the address is no head: nodes and workers of Ray speak gRPC, too.
    """
    try:
        ids = services.find_node_ids()
        alive = services.GcsNodeInfo.GcsNodeState.ALIVE
        gcs = services.GcsClient(address=address)
        nodes = gcs.get_all_node_info(timeout=FOREVER_S, state_filter=alive) if ids else {}
        return [node for number, node in nodes.items() if number.hex() in ids]
    except RayError as error:
        raise ValueError(f"no head of a Ray cluster answers there: {reason(error)}") from error
    except (AttributeError, TypeError):
        return None


def _check_joined(address: str, wait: Wait) -> None:
    """Raises InvalidConfig if the address is not known to be that of the cluster that this process has joined."""
    joined = _address_of_client()
    if joined is None or (joined != address and not address.startswith(_CLIENT)):
        joined = ask(wait, lambda: str(ray.get_runtime_context().gcs_address))  # asks the head if joined by ray://
    try:
        is_same = address == joined or ask(wait, partial(_is_same, address, joined))
    except DeadlineExceeded:
        raise
    except (OSError, ValueError):  # a name that is not known, or no address
        is_same = False
    if not is_same:
        expected = f"none, or {joined!r}: this process has joined that cluster (ray.shutdown() leaves it)"
        raise InvalidConfig(_WHAT, expected, address)


def _address_of_client() -> str | None:
    """ray://HOST:PORT if this process has joined so. A port-forward may have changed it: the cluster does not know."""
    worker = client.ray.get_context().client_worker
    place = getattr(worker, "_conn_str", None)
    return None if place is None else f"{_CLIENT}{place}"


def _is_same(address: str, joined: str) -> bool:
    """Whether both are of one cluster. Raises OSError and ValueError.

    Ray's servers for clients (ray://) have ports of their own, and a host may run servers of several clusters.
    """
    (host, port), (joined_host, joined_port) = _parts(address), _parts(joined)
    if port != joined_port or address.startswith(_CLIENT) != joined.startswith(_CLIENT):
        return False
    return host == joined_host or bool(_hosts(host) & _hosts(joined_host))


def _hosts(host: str) -> set[str]:
    """The addresses of a host. All addresses of this host are one."""
    found = {str(one[4][0]) for one in socket.getaddrinfo(host, None)}
    return {"here" if _is_here(one) else one for one in found}


def _is_here(host: str) -> bool:
    """Whether it is an address of this host: then it can be bound."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            any_socket.bind((host, 0))
        except OSError:
            return False
    return True


def _forget_in_child() -> None:
    global _joining
    _joining = threading.Lock()  # the copy may be taken


os.register_at_fork(after_in_child=_forget_in_child)
