"""Decides which calls a client may make, and ends the streams of clients that may no longer make them."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple, final

from relive.core.ending import start_thread
from relive.core.roles import ROLES, Needed, Role
from relive.errors import AccessDenied, InvalidConfig
from relive.service.wire.door import Door
from relive.service.wire.sockets import peer_in
from relive.service.wire.tokens import Entry, Grant, entry_of, read_tokens

__all__ = ["Caller", "Guard", "Permit"]

_ALL: frozenset[Role] = frozenset(ROLES)
_NONE: frozenset[Role] = frozenset()
_LOOK_EVERY_S = 0.2
_PENALTY_S = 0.5
_MOST_DELAYED = 64  # refusals that wait at once: a flood of wrong tokens takes no more threads
_LONGEST_IDENTITY = 256
_log = logging.getLogger("relive.service")


class Caller(NamedTuple):
    """The client of a stream: the hash of its token ("" without one), its certificate's name, and its peer address."""

    digest: str
    certificate: str
    peer: str


@final
class Permit:
    """The calls that the client of one stream may make on one table.

    The stream's thread and the guard's thread use it.
    """

    def __init__(self, guard: Guard, caller: Caller, table: str) -> None:
        self._guard = guard
        self.caller = caller
        self.table = table
        self.name = ""
        self._used: set[Needed] = set()
        found = peer_in(caller.peer)
        self._host = "" if found is None else found[0]
        self._generation = -1
        self._roles = _NONE
        self._expires = 0.0
        self._look()

    def _look(self) -> None:
        self._generation = self._guard.generation
        entry = self._guard.entry_of(self.caller)
        self.name = "" if entry is None else entry.name
        self._roles = _NONE if entry is None else entry.roles_for(self.table)
        self._expires = 0.0 if entry is None else entry.expires

    @property
    def client(self) -> str:
        """The client that shares of memory and streams are counted for: its token or certificate, else its host."""
        return self.name or self._host

    def roles(self) -> frozenset[Role]:
        """Returns the roles that the client has now."""
        if self._generation != self._guard.generation:
            self._look()
        return self._roles if self._expires == math.inf or self._guard.now() < self._expires else _NONE

    def check(self, role: Needed) -> None:
        """Raises AccessDenied if the client does not have the role now."""
        roles = self.roles()
        if role == "any" and roles:
            return
        if role not in roles:
            self._guard.count_refusal()
            raise AccessDenied(self.table, role) if roles else AccessDenied()
        self._used.add(role)

    def check_any(self, roles: Collection[Role]) -> None:
        """Raises AccessDenied if the client has none of these roles now. A role that stands alone counts as used."""
        mine = self.roles()
        if not mine.intersection(roles):
            raise AccessDenied(self.table, " or ".join(sorted(roles))) if mine else AccessDenied()
        if len(roles) == 1:
            self._used.update(roles)  # an idle writer has lanes, although it has sent no message

    def is_lost(self) -> bool:
        """Returns whether the stream must end: the client has no role any more, or lost one that the stream used."""
        roles = self.roles()
        return not roles or not self._used <= roles


@final
class Guard:
    """Knows the tokens of a server, and the streams that are open.

    Owns a thread, which reads the file of the tokens when it changes, and ends the streams of permits that are lost.
    `_changed` protects the set of permits. Without tokens and certificates, every client has every role, and there is
    no thread.

    Args:
        door: The clients that are let in.
        cut: Ends the connections with these peer addresses.

    Raises:
        InvalidConfig: The file of the tokens cannot be used.
    """

    def __init__(self, door: Door, cut: Callable[[Collection[str]], None]) -> None:
        self._door = door
        self._cut = cut
        self.generation = 0
        self.num_refusals = 0
        self._path = None if door.tokens is None else os.fspath(door.tokens)
        self._seen = self._state_of_file()
        self._entries: tuple[Entry, ...] = () if self._path is None else read_tokens(self._path)
        self._changed = threading.Lock()
        self._permits: set[Permit] = set()
        self._delayed = threading.BoundedSemaphore(_MOST_DELAYED)
        self._began = time.time(), time.monotonic()
        self.ends = threading.Event()
        self._thread = None
        if door.knows_clients:
            self._thread = start_thread(self._run, "relive-server-guard", never_writes=True)

    # ---- the entrance ----------------------------------------------------------------------------------------------

    def now(self) -> float:
        """Returns the time for expiry. A clock that is set back does not lengthen the life of a token."""
        wall, steady = self._began
        return max(time.time(), wall + time.monotonic() - steady)

    def entry_of(self, caller: Caller) -> Entry | None:
        """Returns the entry of a client, with the roles that the file gives it now."""
        if not self._door.knows_clients:
            return _ANYONE
        if self._path is None:
            return _known(caller.certificate)
        return entry_of(self._entries, caller.digest, caller.certificate)

    def told_by(self, digest: str) -> Entry | None:
        """Returns the entry of a call whose headers alone are known; None: the call is a stranger's.

        If its certificate is to tell, the entry is one without a name that has every role.
        """
        if self._path is None or (not digest and self._door.asks_certificates):
            return _ANYONE
        entry = entry_of(self._entries, digest, "")
        return entry if entry is not None and self.now() < entry.expires else None

    def enter(self, caller: Caller, table: str, roles: Collection[Role], most_streams: int) -> Permit:
        """Returns the permit of a new stream that needs one of these roles. leave() ends it.

        Raises:
            AccessDenied: The client has none of the roles. A stranger waits half a second for the answer.
            InvalidConfig: The client has too many streams.
        """
        permit = Permit(self, caller, table)
        try:
            permit.check_any(roles)
        except AccessDenied:
            self.refuse(is_stranger=not permit.roles())
            raise
        with self._changed:
            num_streams = sum(one.client == permit.client for one in self._permits)
            if num_streams < most_streams:
                self._permits.add(permit)
                return permit
        raise InvalidConfig("streams of one client", f"at most {most_streams} at once", num_streams)

    def leave(self, permit: Permit) -> None:
        """Forgets the permit of a stream that has ended."""
        with self._changed:
            self._permits.discard(permit)

    def count_refusal(self) -> None:
        """Counts a call that was refused."""
        with self._changed:
            self.num_refusals += 1

    def refuse(self, is_stranger: bool) -> None:
        """Counts a refusal, and delays that of a stranger. Blocks: for at most half a second."""
        self.count_refusal()
        if is_stranger and self._delayed.acquire(blocking=False):
            try:
                self.ends.wait(_PENALTY_S)
            finally:
                self._delayed.release()

    # ---- changes ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.ends.wait(_LOOK_EVERY_S):
            self._read_again()
            with self._changed:
                lost = {one.caller.peer for one in self._permits if one.is_lost()}
            if lost:
                with contextlib.suppress(OSError):  # no descriptor is left to find them with: the next look cuts them
                    self._cut(lost)

    def _read_again(self) -> None:
        state = self._state_of_file()
        if self._path is None or state == self._seen:
            return
        self._seen = state
        try:
            entries = read_tokens(self._path)
        except InvalidConfig as problem:
            _log.warning("the tokens stay as they were: %s", problem)
            return
        if entries != self._entries:
            self._entries = entries
            self.generation += 1  # after the entries: a stream that sees the number sees the entries

    def _state_of_file(self) -> tuple[int, ...]:
        if self._path is None:
            return ()
        try:
            told = os.stat(self._path)
        except OSError as problem:
            return (problem.errno or 0,)
        return told.st_mtime_ns, told.st_ctime_ns, told.st_ino, told.st_size, told.st_mode

    def permits(self) -> list[Permit]:
        """Returns the permits of the open streams."""
        with self._changed:
            return list(self._permits)

    def peers(self) -> set[tuple[str, int]]:
        """Returns the peers that have a stream."""
        with self._changed:
            found = {peer_in(one.caller.peer) for one in self._permits}
        return {one for one in found if one is not None}

    def cut_streams_of(self, table: str) -> None:
        """Ends the connections with a stream of the table."""
        with self._changed:
            peers = {one.caller.peer for one in self._permits if one.table == table}
        if peers:
            self._cut(peers)

    def close(self) -> None:
        """Ends the thread."""
        self.ends.set()
        if self._thread is not None:
            self._thread.join(1.0)


def _entry_with_all(name: str) -> Entry:
    return Entry(name, "", "", math.inf, (Grant(_ALL, ("*",)),))


def _known(certificate: str) -> Entry | None:
    is_name = certificate.isprintable() and 0 < len(certificate) <= _LONGEST_IDENTITY
    return _entry_with_all(certificate) if is_name else None


_ANYONE = _entry_with_all("")
