"""A shard on another host, whose owner draws and answers over Arrow Flight. Needs the extra `service`.

No call waits for the shard longer than STALL_S plus the transport's own patience of a second. A shard that does not
answer is dead. A thread of this handle tries again and again until the shard answers. If another region answers at the
address, the shard is "replaced", because its keys would mean nothing there.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast, final

import numpy as np
import numpy.typing as npt

from relive.core.ending import start_thread
from relive.errors import (
    BadMessage,
    DeadlineExceeded,
    FormatMismatch,
    ReliveError,
    ServiceUnavailable,
    TableClosed,
)
from relive.fleet.draws.placement import Root
from relive.fleet.remote.streams import Line, Lines, Pending
from relive.fleet.shards import STALL_S, Asked, Missed, Part, Shard, State
from relive.service.client.connection import Connection, cutoff, server_wait
from relive.service.client.remote_core import RemoteCore, RemoteSelection
from relive.service.client.remote_table import RemoteTable
from relive.service.server.shard_session import ROOT
from relive.service.wire import framing
from relive.service.wire.packing import DRAWN

__all__ = ["LazySelection", "RemoteShard"]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]
Present = npt.NDArray[np.bool_]
Value = TypeVar("Value")

_CONNECT_S = 10.0
_LOOK_EVERY_S = 0.2  # between two checks whether a dead shard answers again
_STREAMS = 2**40


@final
class LazySelection:
    """Columns of a shard. The shard resolves them at their first use, because it may be dead when they are named."""

    def __init__(self, shard: RemoteShard, index: int, names: list[str]) -> None:
        self._shard = shard
        self.index = index
        self.names = names
        self._resolved: RemoteSelection | None = None

    @property
    def resolved(self) -> RemoteSelection:
        """The selection that the service made of the columns. Raises UnknownColumn, ServiceUnavailable."""
        if self._resolved is None:
            self._resolved = self._shard.core.select(self.index, self.names)
        return self._resolved

    @property
    def outputs(self) -> list[tuple[str, str, tuple[int, ...], int, str]]:
        """The outputs of the resolved selection."""
        return self.resolved.outputs


class RemoteShard(Shard):
    """A shard at grpc://host:port/name.

    Owns its connection, and the thread that checks whether the shard answers again.
    """

    path = "service"

    def __init__(self, address: str, stream: int | None, timeout_s: float | None) -> None:
        connection = Connection(address, None)
        try:
            table = RemoteTable(connection, timeout_s)
            self._lines = Lines(connection)
            ends = cutoff(_CONNECT_S if timeout_s is None else timeout_s)
            line, hello = self._lines.open(ends)
            self._lines.give(line)
            self.address = address
            self.hello = hello
            uuid = bytes.fromhex(framing.field(hello, "uuid", str))
            slot_bits, num_slots = (framing.whole(hello, name, 1, 1 << 60) for name in ("slot_bits", "num_slots"))
            super().__init__(table, table.core, framing.whole(hello, "shard", 0, 4095), (uuid, slot_bits, num_slots))
        except BaseException:
            connection.close()
            raise
        self.core: RemoteCore = table.core
        self._stream = secrets.randbelow(_STREAMS) if stream is None else stream
        self._state: State = "live"
        self._last_root: dict[int, Root] = {}
        self._last_stats: dict[str, Any] | None = None
        self._policy_version: int | None = None  # the policy version that the shard has not received yet
        self._changed = threading.Lock()
        self._closing = threading.Event()
        self._looks = False
        self._progress = "its owner answers each batch"

    # ---- whether it lives ------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state that the last call found."""
        return self._state

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
            self._state = "replaced" if isinstance(error, FormatMismatch) else "dead"
            starts, self._looks = not self._looks, True
        self._lines.forget()
        self.is_gone()
        if starts:
            start_thread(self._look, f"relive-shard-{self.number}")

    def is_gone(self) -> None:
        """Called when the shard stops answering. A subclass releases its resources other than streams here."""

    def is_back(self) -> None:
        """Called when the shard answers again. A subclass opens here again the resources that is_gone released."""

    def _look(self) -> None:
        while not self._closing.wait(_LOOK_EVERY_S):
            try:
                line, _ = self._lines.open(time.monotonic() + 1.0)
            except FormatMismatch:
                self._state = "replaced"
                continue
            except TableClosed:
                return
            except ReliveError:
                self._state = "dead" if self._state != "replaced" else self._state
                continue
            self._lines.give(line)
            with contextlib.suppress(ReliveError):  # a version that cannot be sent now is sent at the next change
                self._catch_up()
            with self._changed:
                self._looks = False
                self._state = "live"
            self.is_back()
            return

    def _catch_up(self) -> None:
        if self._policy_version is not None:
            self.core.set_policy_version(self._policy_version)
            self._policy_version = None

    def answered(self, call: Callable[[], Value], without: Value) -> Value:
        """Makes the call and returns the answer. If the shard does not answer, notes that and returns `without`."""
        try:
            return call()
        except (ServiceUnavailable, FormatMismatch) as error:
            if self.core.closed:
                raise TableClosed() from None
            self.fails(error)
            return without

    def asked(self, call: Callable[[Any], Value], without: Value, is_only: bool) -> Value:
        """Calls the core.

        Returns `without` if the shard is dead, or if the process that took its lock does not go on.
        """
        if not self.is_live:
            return without
        try:
            return self.answered(lambda: call(self.core), without)
        except DeadlineExceeded:
            if is_only:
                raise
            return without

    # ---- draws -----------------------------------------------------------------------------------------------------

    def select(self, index: int, names: list[str]) -> LazySelection:
        """Returns columns that are resolved at their first use."""
        return LazySelection(self, index, names)

    def ask_root(self, index: int) -> Callable[[], Root]:
        """Asks for the root, an answer of 56 bytes.

        If no answer comes in time, the root is dead and has the counters that were last known.
        """
        pending = None
        if self.is_live:
            pending = self.answered(lambda: self._lines.ask({"op": "roots", "index": index}, cutoff(STALL_S)), None)
        return lambda: self._root(index, pending)

    def _root(self, index: int, pending: Pending | None) -> Root:
        answer = None if pending is None else self.answered(pending.take, None)
        if answer is None:
            known = self._last_root.get(index, Root(self.number, 0.0, 0))
            return Root(self.number, 0.0, 0, known.max_priority, known.inserted, known.sampled, is_dead=True)
        if len(answer.body) != ROOT.size:
            raise BadMessage("a root", f"{ROOT.size} bytes", len(answer.body))
        mass, num_items, max_priority, inserted, sampled, pends, version = ROOT.unpack(bytes(answer.body))
        root = Root(self.number, mass, num_items, max_priority, inserted, sampled, version, False, pends)
        self._last_root[index] = root
        return root

    def begin(self, asked: Asked) -> Part:
        """Asks the owner for keys and masses, 16 bytes an item, and for the columns if there are any."""
        if not self.is_live:
            raise Missed(self)
        return self.part(asked)

    def part(self, asked: Asked) -> RemotePart:
        """Begins a draw by the owner, with or without columns. Raises Missed."""
        seconds, selection = asked.timeout_s, cast("LazySelection | None", asked.request.selection)
        header = {"op": "draw", **asked.request.to_header()}
        header |= {"timeout_s": server_wait(seconds), "is_read": asked.is_read}

        def ask() -> tuple[Pending, Any]:
            packing = DRAWN if selection is None else selection.resolved.sampled
            after = self.core.after()
            return self._lines.ask(header | ({"after": after} if after else {}), cutoff(seconds)), packing

        begun = self.answered(ask, None)
        if begun is None:
            raise Missed(self)
        return RemotePart(self, asked, *begun)

    def gather(
        self, selection: LazySelection, keys: Keys, out: Sequence[npt.NDArray[Any]] | None
    ) -> tuple[Arrays, Present]:
        """Gathers through the owner."""
        if not self.is_live:
            raise Missed(self)
        told = self.answered(lambda: self.core.gather(selection.resolved, keys, out), None)
        if told is None:
            raise Missed(self)
        return told

    # ---- the rest --------------------------------------------------------------------------------------------------

    def request(self, header: dict[str, Any], timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Sends one request to the shard's session and returns the answer.

        Raises the error that the session raised, or ServiceUnavailable.
        """
        reply = self._lines.ask(header, cutoff(timeout_s)).take()
        return reply.header, bytes(reply.body)

    def check_answers(self) -> None:
        """Raises ServiceUnavailable if the shard is dead."""
        if not self.is_live:
            raise ServiceUnavailable(self.address, 0.0, f"the shard is {self.state}")

    def stats(self) -> dict[str, Any]:
        """The shard's statistics. If it does not answer, the last statistics with the last known counters."""
        if self.is_live:
            self.answered(lambda: self._lines.confirm(cutoff(STALL_S)), None)
        told: dict[str, Any] | None = self.asked(lambda core: core.stats(), None, False)
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

    def counts_uses(self, index: int) -> bool:
        """Whether items of an index are used up (max_times_sampled)."""
        return list(self.table.config.index.values())[index].max_times_sampled is not None

    def set_patience(self, timeout_s: float, num_shards: int) -> None:
        """Sets how long calls without a deadline of their own wait for answers, at most STALL_S."""
        self.core.timeout_s = min(timeout_s, STALL_S)
        self._last_stats = self.asked(lambda core: core.stats(), None, False)

    def set_policy_version(self, version: int) -> None:
        """Sets the policy version. A dead shard gets it when it answers again."""
        self._policy_version = version
        if self.asked(lambda core: core.set_policy_version(version) is None, False, False):
            self._policy_version = None

    def close(self) -> None:
        """Ends the streams. Draws that are in flight in them go back."""
        self._closing.set()
        self._lines.forget()
        self.table.close()


@final
class RemotePart:
    """A draw of an owner on another host. The draw stays in flight there until it is settled or the stream ends."""

    def __init__(self, shard: RemoteShard, asked: Asked, pending: Pending, packing: Any) -> None:
        self._shard = shard
        self._asked = asked
        self._pending = pending
        self._packing = packing
        self._line: Line = pending.line
        self._ticket: int | None = None
        self._num_lost = 0
        self._is_taken = False

    def take(self) -> tuple[Arrays, Keys, Masses]:
        """Waits for the answer."""
        self._is_taken = True
        count = self._asked.request.num_items
        try:
            told = self._shard.answered(lambda: self._pending.take(self._packing, count), None)
        except DeadlineExceeded:
            if self._asked.is_only:
                raise
            raise Missed(self._shard) from None
        if told is None:
            raise Missed(self._shard)
        self._ticket = framing.whole(told.header, "ticket", 0, 1 << 62)
        *arrays, keys, masses = self._packing.arrays(told.block, count, self._packing.num_rows(told.header))
        return arrays, keys, masses

    def lose(self, num_items: int) -> None:
        """Notes that num_items items went before their rows were read. Such items do not count as drawn."""
        self._num_lost += num_items

    def commit(self) -> None:
        """Counts the draw. Raises ServiceUnavailable if its uses went back because the stream ended."""
        if self._ticket is None:
            return
        ticket = (self._ticket, self._num_lost) if self._num_lost else self._ticket
        if not self._line.settle("done", ticket) and self._shard.counts_uses(self._asked.request.index_number):
            raise ServiceUnavailable(self._shard.address, 0.0, "the stream that held the batch is over")

    def give_back(self) -> None:
        """Gives the draw back.

        Waits for an answer that was not taken, because its stream may have other draws in flight.
        """
        if not self._is_taken:
            with contextlib.suppress(ReliveError, Missed):
                self.take()
        if self._ticket is not None:
            self._line.settle("back", self._ticket)
