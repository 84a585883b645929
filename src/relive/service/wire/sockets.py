"""The TCP connections of this process. Arrow does not show its sockets, so they are found among all descriptors."""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import os
import socket
import stat
import struct
from collections.abc import Callable, Container, Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote

from relive.errors import CannotListen
from relive.service.wire.address import host_and_port

__all__ = [
    "check_free",
    "cut",
    "heard_s",
    "is_of_port",
    "is_stuck",
    "keep_alive",
    "keep_alive_to",
    "moved_s",
    "new_mark",
    "peer_in",
    "peer_of",
    "peers_of",
    "tcp_sockets",
]

_TCP_INFO = struct.Struct("=24xI16xI4xII68xQ8xI")  # of struct tcp_info of Linux, the fields of _State
_LOOPBACK = frozenset(("127.0.0.1", "::1"))
# The type of a copy. For another type, Python makes the program's socket non-blocking, too, if the program has called
# socket.setdefaulttimeout(): copies of a socket share this mode. A pipe of multiprocessing then raises BlockingIOError.
_LEAVES_BLOCKING = socket.SOCK_STREAM | getattr(socket, "SOCK_NONBLOCK", 0)
_NO_LINGER = struct.pack("ii", 1, 0)  # the last close of the socket resets the connection
_OF_IPV4 = "::ffff:"  # before an IPv4 address of a socket for both versions


class _State(NamedTuple):
    """The state of a connection. Times are milliseconds that have passed."""

    unacked: int  # packets without an acknowledgement
    sent_ms: int  # since bytes were sent
    data_ms: int  # since bytes came
    ack_ms: int  # since an acknowledgement came
    num_received: int  # bytes
    num_unsent: int  # bytes that this process has written, and for which the peer has no room yet


def tcp_sockets() -> Iterator[socket.SocketType]:
    """Yields a copy of each socket of this process. The copy is closed when the next one is asked for.

    Do not send or receive with the copy: it may wait although the program's socket does not.
    """
    for name in os.listdir("/dev/fd"):
        found = None
        try:
            found = _copied(int(name))
            if found is not None:
                yield found
        finally:
            if found is not None:
                found.close()


def _copied(number: int) -> socket.SocketType | None:
    """Returns a copy of a socket. Returns None for another descriptor, and for a socket that was closed meanwhile.

    Ctrl-C at any moment leaves no copy behind. A copy would keep a socket of the program open after its close().
    Each extend() is one step of the interpreter, which runs handlers of signals between its steps only.
    """
    copies: list[int] = []
    found: list[socket.SocketType] = []
    try:
        if not stat.S_ISSOCK(os.fstat(number).st_mode):
            return None
        copies.extend(map(os.dup, (number,)))
        found.extend(map(socket.SocketType, (-1,), (_LEAVES_BLOCKING,), (-1,), copies))
        return found[0]
    except BaseException as problem:
        for one in found:
            one.close()
        if copies and not found:
            os.close(copies[0])
        if isinstance(problem, OSError):
            return None
        raise


def peers_of(location: str) -> frozenset[tuple[str, int]]:
    """Returns the addresses that grpc://host:port means; none if the name cannot be resolved.

    A name that means a loopback address means both of them. gRPC takes ::1 for localhost, also if the system resolves
    the name to 127.0.0.1 alone.
    """
    host, port = host_and_port(location)
    try:
        found = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return frozenset()
    hosts = {_plain(str(address[0])) for *_, address in found}
    if _ip(host) is None and not hosts.isdisjoint(_LOOPBACK):
        hosts |= _LOOPBACK
    return frozenset((one, int(port)) for one in hosts)


def heard_s(peers: frozenset[tuple[str, int]]) -> float | None:
    """Returns how long ago the last byte came over a connection to one of these peers, in seconds.

    While bytes to a peer are under way, each acknowledgement of a part of them counts, too. None if no connection is
    found, or if the system does not tell.
    """
    return _least_s(min(one.data_ms, one.ack_ms) if one.unacked else one.data_ms for one in _states(peers))


def moved_s(peers: frozenset[tuple[str, int]]) -> float | None:
    """Returns how long ago one of these peers last had room for bytes that wait until it has more, in seconds.

    None if no bytes wait for room, or if the system does not tell.
    """
    return _least_s(one.sent_ms for one in _states(peers) if one.num_unsent and not one.unacked)


def _states(peers: frozenset[tuple[str, int]]) -> Iterator[_State]:
    """Yields the state of each connection to one of these peers over which bytes have come."""
    for one in tcp_sockets() if hasattr(socket, "TCP_INFO") else ():
        state = _state_of(one, peers)
        if state is not None:
            yield state


def _state_of(one: socket.SocketType, peers: frozenset[tuple[str, int]]) -> _State | None:
    """Returns the state of a connection to one of these peers over which bytes have come; None for another socket."""
    try:
        if peer_of(one) not in peers:
            return None
        state = _State(*_TCP_INFO.unpack(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)))
    except (OSError, ValueError, AttributeError, struct.error):
        return None  # a listening socket, a socket of another family, or a system that tells less
    return state if state.num_received else None


def _least_s(times_ms: Iterable[int]) -> float | None:
    least_ms = min(times_ms, default=None)
    return None if least_ms is None else least_ms / 1000.0


def cut(connections: Callable[[socket.SocketType], bool], drops_unsent: bool = False) -> int:
    """Ends every TCP connection of this process for which the function is true. Returns the number of them.

    drops_unsent: Bytes that wait to be sent are dropped, and the peer learns of the end at once. By default the system
    sends them first, which takes a minute over a slow link.
    """
    number = 0
    for one in tcp_sockets():
        try:
            if connections(one):
                if drops_unsent:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                one.shutdown(socket.SHUT_RDWR)
                number += 1
        except (OSError, IndexError, TypeError, ValueError):
            continue  # a listening socket, or a socket of another family
    return number


def is_of_port(port: int, host: str = "") -> Callable[[socket.SocketType], bool]:
    """Returns a function that says whether a socket is a connection that a server at this host and port accepted.

    If the host is no IP address, or the address of every interface, the port alone decides. A process may have further
    servers at the port, at other addresses.
    """
    address = _ip(host)
    if address is None or address.is_unspecified:
        return lambda one: bool(one.getsockname()[1] == port and one.getpeername())
    return lambda one: bool(
        one.getsockname()[1] == port and _ip(str(one.getsockname()[0])) == address and one.getpeername()
    )


def new_mark(taken: Container[int]) -> int:
    """Returns a mark for the connections of one handle: their TCP_USER_TIMEOUT in ms, a little more than 15 s.

    If all 999 are taken, two handles have the same mark.
    """
    numbers = (_USER_TIMEOUT_MS + 1 + next(_marks) % _NUM_MARKS for _ in range(_NUM_MARKS))
    return next((one for one in numbers if one not in taken), _USER_TIMEOUT_MS + 1)


def is_stuck(
    peers: frozenset[tuple[str, int]], mark: int, or_unacked: bool = True
) -> Callable[[socket.SocketType], bool]:
    """Returns a function that says whether a socket is a connection to one of these peers, with this mark, over which
    bytes wait to be sent, or_unacked: or to be acknowledged. It is false for every socket if the system does not tell.
    """

    def holds(one: socket.SocketType) -> bool:
        state = _state_of(one, peers)
        if state is None or not (state.num_unsent or (or_unacked and state.unacked)):
            return False
        return one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == mark

    return holds


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the IP address that a text is, an IPv4 address within IPv6 as the former; None for a name."""
    try:
        found = ipaddress.ip_address(_plain(host.strip("[]")))
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _plain(host: str) -> str:
    return host.removeprefix(_OF_IPV4).partition("%")[0]


def peer_of(one: socket.SocketType) -> tuple[str, int]:
    """Returns host and port of the other end. Raises OSError for a socket without one."""
    host, port = one.getpeername()[:2]
    return _plain(str(host)), int(port)


def peer_in(text: str) -> tuple[str, int] | None:
    """Returns host and port of a peer as gRPC writes it, such as ipv4:127.0.0.1:4711; None for another text."""
    _, _, rest = unquote(text).partition(":")
    host, _, port = rest.rpartition(":")
    host = _plain(host.strip("[]"))
    return (host, int(port)) if host and port.isdigit() else None


_USER_TIMEOUT_MS = 15_000
_NUM_MARKS = 999
_KEEP_ALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))
_marks = itertools.count()


def keep_alive(one: socket.SocketType, has_mark: bool = False) -> None:
    """Sets the options with which the system finds out, within about 15 s, that the machine of the peer is gone.

    A stopped process whose system answers stays connected. An option that the system does not have is left out.

    has_mark: The socket has a TCP_USER_TIMEOUT of new_mark(), which stays.
    """
    with contextlib.suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (*_KEEP_ALIVE, *(() if has_mark else (("TCP_USER_TIMEOUT", _USER_TIMEOUT_MS),))):
            if hasattr(socket, name):
                one.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def keep_alive_to(peers: frozenset[tuple[str, int]]) -> None:
    """Sets these options on the connections of this process to one of these peers, which have marks.

    Without a descriptor to look with, connections stay as they are.
    """
    with contextlib.suppress(OSError):
        for one in tcp_sockets():
            with contextlib.suppress(OSError, ValueError, TypeError):
                if peer_of(one) in peers:
                    keep_alive(one, has_mark=True)


def check_free(address: str, host: str, port: int) -> None:
    """Raises CannotListen if nothing can listen there, with the system's reason.

    gRPC tells no reason, and a Flight server that could not start is never freed.
    """
    try:
        places = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:  # UnicodeError: of a name such as "a..b"
        raise CannotListen(address, getattr(problem, "strerror", None) or str(problem)) from None
    reasons = []
    for family, kind, protocol, _, place in places:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a server before may linger
                probe.bind(place)
            return
        except OSError as problem:
            reasons.append(problem.strerror or str(problem))
    raise CannotListen(address, reasons[0])
