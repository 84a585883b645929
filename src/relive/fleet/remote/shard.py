"""A shard on another host, whose owner draws and answers over Arrow Flight. Needs the extra `service`.

A call waits for an answer until its own deadline, as long as bytes come from the owner. A shard whose owner is silent
for SILENCE_S is dead. A thread of this handle tries again and again until the shard answers. If another region answers
at the address, the shard is "replaced", because its keys would mean nothing there.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from relive.core.ending import start_thread
from relive.core.limiter_words import NO_WORDS, LimiterWords
from relive.errors import (
    BadMessage,
    Draining,
    FormatMismatch,
    HandshakeFailed,
    NoSuchTable,
    ReliveError,
    ServiceUnavailable,
    TableClosed,
)
from relive.fleet.draws.placement import Root
from relive.fleet.remote.answers import Again, FilledAnswer, RemoteAnswer, SettledAnswer, StatsAnswer
from relive.fleet.remote.part import RemotePart, bytes_of
from relive.fleet.remote.saving import RemoteSavingPart
from relive.fleet.remote.streams import Lines, Pending
from relive.fleet.remote.turns import Turn, Turns
from relive.fleet.shards import (
    SILENCE_S,
    STALL_S,
    Answer,
    Asked,
    AskedSave,
    Missed,
    Part,
    SavingPart,
    Shard,
    State,
)
from relive.service.client.connection import Connection
from relive.service.client.deadlines import cutoff, server_wait
from relive.service.client.remote_core import RemoteCore, RemoteSelection, Started
from relive.service.client.remote_table import RemoteTable
from relive.service.server.shard_session import ROOT
from relive.service.wire import framing
from relive.service.wire.access import OPEN, Access
from relive.service.wire.packing import DRAWN, Packing

__all__ = ["CONNECT_S", "RemoteShard"]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]
Present = npt.NDArray[np.bool_]
Value = TypeVar("Value")

CONNECT_S = 10.0
_LOOK_EVERY_S = 0.2  # between two checks whether a dead shard answers again
_STREAMS = 2**40


class RemoteShard(Shard):
    """A shard at grpc://host:port/name.

    Owns its connection, and the thread that checks whether the shard answers again.
    """

    path = "service"

    def __init__(self, address: str, stream: int | None, timeout_s: float | None, access: Access | None = None) -> None:
        connection = Connection(address, None, SILENCE_S, access or OPEN)
        try:
            table = RemoteTable(connection, timeout_s)
            self._lines = Lines(connection)
            ends = cutoff(CONNECT_S if timeout_s is None else timeout_s)
            line, hello = self._lines.open(ends)
            self._lines.give(line)
            self.address = address
            self.hello = hello
            uuid = bytes_of(hello, "uuid")
            slot_bits, num_slots = (framing.whole(hello, name, 1, 1 << 60) for name in ("slot_bits", "num_slots"))
            super().__init__(table, table.core, framing.whole(hello, "shard", 0, 4095), (uuid, slot_bits, num_slots))
        except BaseException:
            connection.close()
            raise
        self.core: RemoteCore = table.core
        connection.retries_s = SILENCE_S
        self._stalled_until = 0.0
        self._is_only = False
        self._stream = secrets.randbelow(_STREAMS) if stream is None else stream
        self._state: State = "live"
        self._last_root: dict[int, Root] = {}
        self._last_stats: dict[str, Any] | None = None
        self._policy_version: int | None = None  # the policy version that the shard has not received yet
        self._newest_version = 0  # of the handle
        self._changed = threading.Lock()
        self._closing = threading.Event()
        self._looks = False
        self._progress = "its owner answers each batch"

    # ---- whether it lives ------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state that the last call found."""
        return "stalled" if self._state == "live" and time.monotonic() < self._stalled_until else self._state

    @property
    def progress(self) -> str:
        """Which component moves the bytes."""
        return self._progress

    @property
    def stream(self) -> int:
        """The random stream that places the points of a draw. The owner draws the items with a stream of its own."""
        return self._stream

    def fails(self, error: ReliveError) -> None:
        """Notes that the shard did not answer, or that another region did.

        Draws leave it out until the same region answers.
        """
        if self._closing.is_set() or self.core.closed:
            return
        with self._changed:
            if not self._looks:  # if Ctrl-C interrupts the start, the shard stays live, and the next call starts again
                name = f"relive-shard-{self.number}"
                start_thread(_look_for, name, weakref.ref(self), self._closing, never_writes=True)
                self._looks = True
            self._state = "replaced" if isinstance(error, FormatMismatch) else "dead"
        self._lines.forget()
        self.is_gone()

    def stalls(self) -> None:
        """Draws leave the shard out for STALL_S. The only shard stays in use: its calls wait until their deadline."""
        if not self._is_only:
            self._stalled_until = time.monotonic() + STALL_S

    def is_gone(self) -> None:
        """Called when the shard stops answering. A subclass releases its resources other than streams here."""

    def is_back(self) -> None:
        """Called when the shard answers again. A subclass opens here again the resources that is_gone released."""

    def look(self) -> bool:
        """Asks once whether the shard answers again. Returns whether to ask no more."""
        try:
            line, hello = self._lines.open(time.monotonic() + CONNECT_S)  # less if the owner is silent
            self._lines.give(line)
            uuid = bytes_of(hello, "uuid")
        except FormatMismatch:
            self._state = "replaced"
            return False
        except TableClosed:
            return True
        except ReliveError:
            self._state = "dead" if self._state != "replaced" else self._state
            return False
        self.hello, self.uuid = hello, uuid  # others, if the shard came back from a save
        self._send_missed_version()
        with self._changed:
            self._looks = False
            self._state = "live"
        self._send_missed_version()  # one that came meanwhile; a later one finds the shard live
        self.is_back()
        return True

    def _send_missed_version(self) -> None:
        version = self._policy_version
        if version is None:
            return
        with contextlib.suppress(ReliveError):  # a version that cannot be sent now is sent at the next change
            self.core.set_policy_version(version)
            self._has_version(version)()
            if self._newest_version != version:  # its own call may have overtaken this one
                self.core.set_policy_version(self._newest_version)

    def answered(self, call: Callable[[], Value]) -> Value:
        """Makes the call and returns the answer.

        Raises Missed if the shard does not answer, and notes that. So does a server that drains, and another server
        that has taken the address. A shard whose answer is on its way at the deadline of the call stays live.
        """
        try:
            return call()
        except (ServiceUnavailable, FormatMismatch, Draining, NoSuchTable, HandshakeFailed) as error:
            if self.core.closed:
                raise TableClosed() from None
            if not (isinstance(error, ServiceUnavailable) and error.is_there):
                self.fails(error)
            raise Missed(self, error) from None

    def started(self, start: Callable[[], Started]) -> Answer:
        """Begins a call of the core. Raises Missed."""
        self.check_live()
        return RemoteAnswer(self, self.answered(start))

    def check_live(self) -> None:
        """Raises Missed if draws do not use the shard."""
        if not self.is_live:
            raise Missed(self, ServiceUnavailable(self.address, 0.0, f"the shard is {self.state}"))

    def ask(self, call: str, *values: Any) -> Answer:
        """Sends a simple call to the owner. A dead shard gets a policy version when it answers again."""
        if call != "set_policy_version":
            return self.started(lambda: self.core.start(call, *values))
        with self._changed:
            self._policy_version = self._newest_version = values[0]
        return RemoteAnswer(self, self.started(lambda: self.core.start(call, *values)), self._has_version(values[0]))

    def _has_version(self, version: int) -> Callable[[], None]:
        def note() -> None:
            with self._changed:
                if self._policy_version == version:
                    self._policy_version = None

        return note

    def ask_list(self, index: int, first: int, count: int, condition: Any) -> Answer:
        """Asks the owner, which may look at fewer leaves."""
        return self.started(lambda: self.core.start_list(index, first, count, condition))

    def ask_claim(self, index: int, keys: Keys, left_s: float) -> Answer:
        """Sends the keys to the owner, which does not wait for items. If its lock is taken, sends them again."""
        began = time.monotonic()

        def start() -> Started:
            return self.core.start_claim(index, keys, max(0.0, began + left_s - time.monotonic()))

        self.check_live()
        waits_s = left_s if self._is_only else min(left_s, STALL_S)
        return RemoteAnswer(self, self.answered(start), again=Again(start, began, began + waits_s))

    def ask_filled(self, keys: Keys) -> Answer:
        """Sends the keys to the owner."""
        self.check_live()
        header, ends = {"op": "filled", "n": len(keys)}, cutoff(self.core.timeout_s)
        return FilledAnswer(self, self.answered(lambda: self._lines.ask(header, ends, np.ascontiguousarray(keys))))

    def ask_free(self, left_s: float | None = None) -> Answer:
        """Asks the owner to take the lock and to release it."""
        self.check_live()
        began, goes_on = time.monotonic(), left_s is None and self._is_only
        waits_s = self.core.timeout_s if goes_on else STALL_S if left_s is None else left_s
        ends = began + waits_s

        def start() -> Pending:
            header = {"op": "free", "timeout_s": min(max(0.0, ends - time.monotonic()), STALL_S)}
            return self._lines.ask(header, cutoff(self.core.timeout_s if left_s is None else left_s))

        again = Again(start, began, ends) if goes_on else None
        waits_whole = not goes_on and waits_s >= STALL_S
        return RemoteAnswer(self, self.answered(start), stalls=waits_whole, again=again)

    def ask_stats(self) -> Answer:
        """Asks the owner for its statistics, after it has received all settled tickets."""
        return StatsAnswer(self, self._lines)

    # ---- draws -----------------------------------------------------------------------------------------------------

    def prepare(self, ends: float | None = None) -> None:
        """Begins to open the streams that are missing."""
        if self.is_live:
            ends = cutoff(self.core.timeout_s) if ends is None else ends
            self._lines.prepare(ends)
            self.core.connection.prepare("call", ends)

    def select(self, index: int, names: list[str], alike: list[Any] | None = None) -> RemoteSelection:
        """Resolves columns without a message. Shards are alike, so one of them resolves the columns for all."""
        told: list[Any] = [] if alike is None else alike
        if not told:
            told.append(self.core.select(index, names))
        return cast(RemoteSelection, told[0])

    def ask_root(self, index: int, left_s: float) -> Callable[[], Root]:
        """Asks for the root, an answer of 56 bytes.

        If no answer comes, the root is dead and has the counters that were last known. The root of a live shard whose
        answer is late is the last known one: a draw without the shard would be of another distribution.
        """

        def ask() -> Pending:
            self.check_live()
            return self.answered(lambda: self._lines.ask({"op": "roots", "index": index}, cutoff(left_s)))

        try:
            pending = ask()
        except Missed as missed:
            known = self._known_root(index, missed.is_late)
            return lambda: known
        return lambda: self._root(index, pending)

    def _known_root(self, index: int, is_late: bool) -> Root:
        known = self._last_root.get(index)
        if known is not None and is_late:
            return known
        return replace(known or Root(self.number, 0.0, 0), mass=0.0, pending=0, is_dead=True)

    def _root(self, index: int, pending: Pending) -> Root:
        try:
            answer = self.answered(pending.take)
        except Missed as missed:
            return self._known_root(index, missed.is_late)
        words = NO_WORDS
        if self.bounds_items[index]:
            massless = framing.whole(answer.header, "massless", 0, 1 << 62)
            words = LimiterWords(massless, framing.whole(answer.header, "base_version", -(1 << 62), 1 << 62))
        return self.note_root(index, bytes(answer.body), words)

    def note_root(self, index: int, told: bytes, words: LimiterWords = NO_WORDS) -> Root:
        """Reads a root that the owner told. Raises BadMessage."""
        if len(told) != ROOT.size:
            raise BadMessage("a root", f"{ROOT.size} bytes", len(told))
        mass, num_items, max_priority, inserted, sampled, pends, version = ROOT.unpack(told)
        root = Root(self.number, mass, num_items, max_priority, inserted, sampled, version, False, pends, words)
        self._last_root[index] = root
        return root

    def begin(self, asked: Asked) -> Part:
        """Asks the owner for keys and masses, 16 bytes an item, and for the columns if there are any."""
        self.check_live()
        return self.part(asked)

    def part(self, asked: Asked, shares: bool = True) -> RemotePart:
        """Begins a draw by the owner, with or without columns, which `shares` its message or not. Raises Missed."""
        selection = cast("RemoteSelection | None", asked.request.selection)
        header = {"op": "draw", **asked.request.to_header()}
        num_items = header.pop("n")  # draws that differ in it alone share messages
        header |= {"timeout_s": server_wait(asked.timeout_s), "is_read": asked.is_read, "root": asked.turns is not None}
        turns = None if asked.turns is None else asked.turns.setdefault(self.number, Turns(self._lines))

        def ask() -> tuple[Pending | Turn, Packing]:
            packing = DRAWN if selection is None else selection.sampled
            after = self.core.after(asked.left_s)
            message = header | ({"after": after} if after else {})
            if turns is None:
                expects = partial(_num_bytes, packing, num_items)
                return self._lines.ask(message | {"n": num_items}, cutoff(asked.left_s), expects=expects), packing
            may_share = shares and self.hello.get("draws") is True
            return turns.add(message, num_items, packing, cutoff(asked.left_s), may_share=may_share), packing

        return RemotePart(self, asked, ask)

    def gather(
        self, selection: RemoteSelection, keys: Keys, out: Sequence[npt.NDArray[Any]] | None
    ) -> tuple[Arrays, Present]:
        """Gathers through the owner."""
        self.check_live()
        return self.answered(lambda: self.core.gather(selection, keys, out))

    def ask_gather(self, selection: RemoteSelection, keys: Keys) -> Answer:
        """Sends the keys to the owner."""
        return self.started(lambda: self.core.start_gather(selection, keys, None))

    # ---- the rest --------------------------------------------------------------------------------------------------

    def begin_save(self, asked: AskedSave) -> SavingPart:
        """Has the owner begin a save below its own folder."""
        return RemoteSavingPart(self, asked)

    def request(self, header: dict[str, Any], timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Sends one request to the shard's session and returns the answer.

        Raises the error that the session raised, or ServiceUnavailable.
        """
        reply = self._lines.ask(header, cutoff(timeout_s)).take()
        return reply.header, bytes(reply.body)

    def note_stats(self, told: dict[str, Any] | None) -> dict[str, Any]:
        """Returns the statistics that the owner told; None: the last ones, with the last known counters."""
        if told is not None:
            self._last_stats = dict(told)
            return self._last_stats
        if self._last_stats is None:
            raise ServiceUnavailable(self.address, 0.0, "it has not told its statistics yet")
        indexes = [dict(one) for one in self._last_stats["indexes"]]
        for index, root in self._last_root.items():
            for name, heard in (("inserted", root.inserted), ("sampled", root.sampled)):
                indexes[index][name] = max(indexes[index][name], heard)
        return self._last_stats | {"indexes": indexes}

    def set_patience(self, timeout_s: float, num_shards: int) -> None:
        """Sets how long calls without a deadline of their own wait for answers that are on their way."""
        self._is_only = num_shards == 1
        self.core.timeout_s = timeout_s
        with contextlib.suppress(Missed):
            self.note_stats(self.ask("stats").take())
        for index in range(len(self.table.config.index)):  # one after another, on one stream
            self.ask_root(index, timeout_s)()  # known from now on

    def flush(self) -> None:
        """Sends the tickets that wait for the next message."""
        self._lines.flush()

    def ask_settled(self) -> Answer:
        """Asks on each stream on which tickets went last."""
        return SettledAnswer(self, self._lines)

    def settling(self) -> Callable[[], None]:
        """Asks on each stream on which tickets went last."""
        asked: list[Pending] = []
        if self.is_live and not self.core.closed:
            with contextlib.suppress(ReliveError):
                # The streams of a forked child are its parent's.
                self.core.connection.check_process("a table over shards")
                asked = self._lines.confirming(cutoff(SILENCE_S))

        def wait() -> None:
            for pending in asked:
                with contextlib.suppress(ReliveError):
                    pending.take()

        return wait

    def cut(self) -> None:
        """Ends the connection at once. Draws that are in flight in its streams go back."""
        self.core.connection.close()

    def close(self) -> None:
        """Ends the streams. Draws that are in flight in them go back."""
        self._closing.set()
        self._lines.forget()
        self.table.close()


def _look_for(shard: weakref.ref[RemoteShard], closing: threading.Event) -> None:
    """Asks for a shard until it answers, is closed or is collected."""
    while not closing.wait(_LOOK_EVERY_S):
        found = shard()
        if found is None or found.look():
            return
        del found


def _num_bytes(packing: Packing, num_items: int, told: dict[str, Any]) -> int:
    return packing.num_bytes(num_items, packing.num_rows(told))
