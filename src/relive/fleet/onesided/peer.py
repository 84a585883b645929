"""A shard of another host whose rows are read from its memory: the owner gives keys and masses, rows come one-sidedly.

- The process that draws also counts. Draws, priorities and writes therefore go to the owner, as for every shard of
  another host.
- An index with use counts, and every index that the reader refuses (rows.py), is read through the owner entirely.
- A batch whose bytes do not come in time, or have no memory that can be registered, is read through the owner. Its
  reader is given up, and the owner answers until a new reader is made, a second later or more.
- If no path was asked for, the faster way for batches of that kind is used. Over sockets and for small rows that is the
  owner's answer. A network card was not tried.

This module makes readers, and makes them again. The transport makes the reads.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, final

import numpy as np
import numpy.typing as npt

from relive.config.spec import next_step_names
from relive.core.turns import take
from relive.errors import (
    DeadlineExceeded,
    ForeignKey,
    FormatMismatch,
    InvalidConfig,
    ReliveError,
    ServiceUnavailable,
    SystemFailure,
)
from relive.fleet.draws.mixing import Outputs, scatter
from relive.fleet.draws.pace import Wait
from relive.fleet.draws.placement import Root
from relive.fleet.errors import PeerUnreadable
from relive.fleet.onesided.faster_path import Chosen, FasterPath
from relive.fleet.onesided.nixl import Offered, open_memory
from relive.fleet.onesided.opening import opened_within
from relive.fleet.onesided.peer_layout import PeerLayout
from relive.fleet.onesided.rows import OneSidedReader
from relive.fleet.onesided.transport import Memory
from relive.fleet.remote.part import RemotePart
from relive.fleet.remote.shard import CONNECT_S, RemoteShard
from relive.fleet.shards import STALL_S, Answer, Arrays, Asked, Keys, Later, Masses, Missed, Part, Path, Present
from relive.reading.order import hidden_names
from relive.service.client.remote_core import RemoteSelection
from relive.service.wire import framing
from relive.service.wire.access import Access

__all__ = ["PeerShard"]

OFFER = "nixl"
HERE, BY_OWNER = 0, 1  # the two ways to rows
_ANEW_S = 1.0  # between two readers of a shard, which are never made back to back
_REDRAWS = 4  # redraws of items that went before their rows were read; after them the owner draws and reads at once
_SETUP_S = 5.0  # timeout of each answer that the first reader needs
_AGAIN_S = 1.0  # the same for later readers: a draw waits for them, and gets its owner's rows otherwise
_READ_S = 1.0  # timeout of the bytes of one batch


@final
class PeerShard(RemoteShard):
    """A shard whose rows are read one-sidedly as long as that works.

    must: True: only one-sided reads will do (path="nixl"). False: each batch takes the faster way. opens: opens the
    transport to the memory that the owner offers.

    Raises PeerUnreadable if must is True and one-sided reads do not work at first.
    """

    def __init__(
        self,
        address: str,
        stream: int | None,
        timeout_s: float | None,
        must: bool,
        opens: Callable[[Offered], Any] = open_memory,
        access: Access | None = None,
    ) -> None:
        ends = time.monotonic() + (CONNECT_S if timeout_s is None else timeout_s)
        super().__init__(address, stream, timeout_s, access)
        self._opens = opens
        self._quickers: dict[tuple[Any, ...], FasterPath] | None = None if must else {}  # by kind of batch
        self._reading = threading.Lock()
        self._reader: tuple[OneSidedReader, Any] | None = None
        self._not_before = 0.0
        self._is_closed = False
        self._refused: dict[int, bool] = {}  # by index
        self._of_owner = frozenset((*next_step_names(self.table.config.spec), *hidden_names()))
        self.num_torn = 0  # torn rows of all earlier readers
        try:
            self._make_reader(_SETUP_S, ends)
        except (ReliveError, OSError) as problem:
            if must:
                self.close()
                reason = problem.reason if isinstance(problem, PeerUnreadable) else str(problem)
                raise PeerUnreadable(address, reason) from None
            self._by_owner(problem)

    @property
    def path(self) -> Path:  # type: ignore[override]  # the path of other shards never changes
        """The path by which rows are read now."""
        return "service" if self._reader is None else "nixl"

    @property
    def progress(self) -> str:
        """Which component moves the bytes, and for how many kinds of batches the owner does.

        A kind is an index, its columns, and a power of two of items.
        """
        choices = [] if self._reader is None else list((self._quickers or {}).values())
        num_owners = sum(choice.best == BY_OWNER for choice in choices)
        quicker = f"; its owner is quicker for {num_owners} of {len(choices)} kinds" if num_owners else ""
        return self._progress + quicker

    @property
    def torn(self) -> int:
        """Number of rows that changed during their read and were read again."""
        return self.num_torn + (0 if self._reader is None else self._reader[0].num_torn)

    # ---- the reader ------------------------------------------------------------------------------------------------

    def _make_reader(self, timeout_s: float, ends: float = math.inf) -> None:
        """timeout_s: of each answer of the owner. ends: when the caller gives up on all of it."""

        def left() -> float:
            return ends - time.monotonic()

        if OFFER not in framing.field(self.hello, "offers", list):
            raise PeerUnreadable(
                self.address,
                "its owner does not offer its memory (it has no Door(offers=True), or NIXL is not installed there)",
            )
        told, metadata = self.request({"op": "offer", "what": OFFER}, min(timeout_s, left()))
        fields = framing.field(told, "fields", dict)
        if fields.get("uuid") != self.uuid.hex():
            raise FormatMismatch("uuid of the memory that is offered", self.uuid.hex(), fields.get("uuid"))
        base, num_bytes = (framing.whole(fields, name, 1, 1 << 62) for name in ("base", "num_bytes"))
        layout = PeerLayout.from_told(self.request({"op": "layout"}, min(timeout_s, left()))[0])
        offered = Offered(self.address, base, num_bytes, framing.field(fields, "agent", str), metadata)
        memory = self._opens(offered) if ends == math.inf else opened_within(self._opens, offered, left())
        try:
            reader = OneSidedReader(self.table.config, layout, cast(Memory, memory))
        except BaseException:
            memory.close()
            raise
        self._reader = reader, memory
        self._progress = str(memory.progress)

    def _by_owner(self, problem: BaseException) -> None:
        reason = problem.reason if isinstance(problem, PeerUnreadable) else str(problem)
        self._progress = f"its owner answers each batch: {reason}"
        self._not_before = time.monotonic() + _ANEW_S

    def _retire(self, problem: ReliveError) -> None:
        """Gives up the reader. The caller has taken the lock."""
        if self._reader is not None:
            (reader, memory), self._reader = self._reader, None
            self.num_torn += reader.num_torn
            memory.close(reader.close)
        self._by_owner(problem)

    def _revive(self) -> None:
        """Makes a new reader if the last one was given up a while ago. The caller has taken the lock."""
        if self._reader is None and time.monotonic() >= self._not_before:
            self._make_anew()

    def _make_anew(self) -> None:
        try:
            self._make_reader(_AGAIN_S)
        except (ReliveError, OSError) as problem:
            self._by_owner(problem)

    def is_back(self) -> None:
        """Makes a reader, because the owner answers again. The owner may be another process with other metadata."""
        with self._reading:
            if self._reader is None and not self._is_closed:
                self._not_before = math.inf  # until there is a reader the owner sends rows, so no draw waits for it
                self._make_anew()

    def is_gone(self) -> None:
        """Gives up the reader, because the owner does not answer: the memory behind its lists may be gone."""
        mine: list[bool] = []
        try:
            if take(self._reading, 0.0, mine) and self._reader is not None:
                self._retire(ServiceUnavailable(self.address, 0.0, "its owner does not answer"))
        finally:
            if True in mine:
                self._reading.release()

    # ---- reading ---------------------------------------------------------------------------------------------------

    def is_read_here(self, selection: RemoteSelection) -> bool:
        """Whether these columns are read one-sidedly. The steps as such, and leaves of items, are the owner's."""
        index, config = selection.number, self.table.config
        if index >= len(config.index) or not self._of_owner.isdisjoint(selection.names):
            return False
        if index not in self._refused:
            refusal = OneSidedReader.refusal(config, index)
            self._refused[index] = bool(self.counts_uses(index) or refusal)
        if self._refused[index]:
            return False
        return self._reader is not None or time.monotonic() >= self._not_before

    def begin(self, asked: Asked) -> Part:
        """Asks the owner for keys and masses. The rows are read in take()."""
        request, selection = asked.request, cast("RemoteSelection | None", asked.request.selection)
        if selection is None or request.condition is not None or not self.is_read_here(selection):
            return super().begin(asked)
        self.check_live()
        choice, chosen = self._chosen("draw", selection, request.num_items)
        started = time.monotonic()
        begin = self.part if chosen.way == BY_OWNER else partial(self._begun_here, selection)
        if choice is None or not chosen.is_tried:
            return begin(asked)
        part = begin(asked, shares=False)  # else the wait for the message would be that of its first draw
        return _TimedPart(part, partial(choice.took, chosen), time.monotonic() - started)

    def _begun_here(self, selection: RemoteSelection, asked: Asked, shares: bool = True) -> Part:
        return _PeerPart(self, asked, selection, self.part(asked._replace(request=asked.request.keys_only), shares))

    def _chosen(self, call: str, selection: RemoteSelection, num_items: int) -> tuple[FasterPath | None, Chosen]:
        if self._quickers is None:
            return None, _HERE_ALWAYS
        kind = call, selection.number, tuple(selection.names), num_items.bit_length()
        choice = self._quickers.get(kind) or self._quickers.setdefault(kind, FasterPath())
        return choice, choice.choose()

    def gather(
        self, selection: RemoteSelection, keys: Keys, out: Sequence[npt.NDArray[Any]] | None
    ) -> tuple[Arrays, Present]:
        """Gathers by key, one-sidedly or through the owner."""
        if not self.is_read_here(selection):
            return super().gather(selection, keys, out)
        self.check_live()
        are_rows = self.keys.are_rows(keys)
        if not are_rows.all():
            wrong = int(np.argmin(are_rows))
            raise ForeignKey(wrong, int(keys[wrong]))
        choice, chosen = self._chosen("gather", selection, len(keys))
        started = time.monotonic()
        by_owner = chosen.way == BY_OWNER
        told = super().gather(selection, keys, out) if by_owner else self._gathered_here(selection, keys, out)
        if choice is not None:
            choice.took(chosen, time.monotonic() - started)
        return told

    def ask_gather(self, selection: RemoteSelection, keys: Keys) -> Answer:
        """Returns an answer that gathers when it is taken: a read by pages needs one answer after another."""
        if not self.is_read_here(selection):
            return super().ask_gather(selection, keys)
        return Later(partial(self.gather, selection, keys, None))

    def _gathered_here(
        self, selection: RemoteSelection, keys: Keys, out: Sequence[npt.NDArray[Any]] | None
    ) -> tuple[Arrays, Present]:
        arrays, present = self.rows(selection, keys)
        if out is None:
            return arrays, present
        for target, array in zip(out, arrays, strict=True):
            np.copyto(target, array)
        return list(out), present

    def rows(self, selection: RemoteSelection, keys: Keys, drawn_left_s: float | None = None) -> tuple[Arrays, Present]:
        """Columns by key, read one-sidedly.

        The owner sends the rows that changed in every round, and all rows if one-sided reads do not work.

        drawn_left_s: how long the draw that gave these keys waits for the owner, in seconds, at least one. None: the
        keys are the caller's own, which wait for the handle's timeout. Raises Missed.
        """
        names = [output[0] for output in selection.outputs]
        got = self._read(selection.number, names, keys, drawn_left_s is not None)
        if got is None:
            return self._sent(selection, keys, drawn_left_s)
        arrays, present, left = got
        if len(left):
            some, there = self._sent(selection, np.ascontiguousarray(keys[left]), drawn_left_s)
            scatter(selection.outputs, arrays, left, some)
            present[left] = there
        return arrays, present

    def _sent(self, selection: RemoteSelection, keys: Keys, left_s: float | None) -> tuple[Arrays, Present]:
        self.check_live()
        seconds = self.core.timeout_s if left_s is None else left_s
        return self.answered(lambda: self.core.gather_within(selection, keys, seconds))

    def _read(self, index: int, names: list[str], keys: Keys, are_drawn: bool = False) -> Any:
        mine: list[bool] = []
        try:
            if not take(self._reading, STALL_S, mine):
                return None  # another thread's read is slow: the owner answers this call
            self._revive()
            reader = self._reader
            return reader and reader[0].gather(index, names, keys, _READ_S, are_published=are_drawn)
        except (ServiceUnavailable, DeadlineExceeded, PeerUnreadable, InvalidConfig, SystemFailure) as problem:
            self._retire(problem)
            return None
        except BaseException as problem:  # Ctrl-C, in the middle of a read whose bytes may still come
            if True in mine:
                self._retire(ServiceUnavailable(self.address, 0.0, f"a read was cut short ({type(problem).__name__})"))
            raise
        finally:
            if True in mine:
                self._reading.release()

    def close(self) -> None:
        """Ends the reader and the streams."""
        with self._reading:
            if self._reader is not None:
                self._retire(ServiceUnavailable(self.address, 0.0, "it was closed"))
            self._is_closed, self._not_before = True, math.inf
        super().close()


_HERE_ALWAYS = Chosen(HERE, False)


@final
class _TimedPart:
    """A part that reports how long its caller waited, for the choice between the ways."""

    def __init__(self, part: Part, tells: Callable[[float], None], begun_s: float) -> None:
        self._part = part
        self._tells = tells
        self._begun_s = begun_s
        self.check, self.ask_commit, self.commit = part.check, part.ask_commit, part.commit
        self.give_back = part.give_back

    @property
    def root(self) -> Root | None:
        return self._part.root

    def take(self) -> tuple[Arrays, Keys, Masses]:
        """Takes the part, and reports the time."""
        started = time.monotonic()
        taken = self._part.take()
        self._tells(self._begun_s + time.monotonic() - started)
        return taken


@final
class _PeerPart:
    """A draw of an owner whose rows are read here. Items that went meanwhile are drawn again, by draws of their own.

    If a writer replaces items faster than they are read, redraws alone would not end. The owner therefore sends the
    rows of the last redraw.
    """

    def __init__(self, shard: PeerShard, asked: Asked, selection: RemoteSelection, first: RemotePart) -> None:
        self._shard = shard
        self._asked = asked
        self._selection = selection
        self._parts = [first]

    @property
    def root(self) -> Root | None:
        return self._parts[0].root

    def take(self) -> tuple[Arrays, Keys, Masses]:
        """Waits for the keys, then for the rows."""
        wait = Wait(self._asked.timeout_s, arrives_s=self._asked.left_s)
        _, keys, masses = self._parts[0].take()
        arrays, present = self._shard.rows(self._selection, keys, wait.arrives_s)
        if present.all():
            return arrays, keys, masses
        keys, masses = keys.copy(), masses.copy()
        outputs: Outputs = self._selection.outputs
        for attempt in range(_REDRAWS + 1):
            gone = np.flatnonzero(~present)
            if not len(gone):
                break
            self._parts[-1].lose(len(gone))
            left = self._asked._replace(timeout_s=wait.left_s, left_s=wait.arrives_s)
            # The last redraw comes with its rows, of the same moment as its keys.
            is_last = attempt == _REDRAWS
            request = self._asked.request._replace(num_items=len(gone), selection=self._selection if is_last else None)
            self._parts.append(self._shard.part(left._replace(request=request)))
            some, keys[gone], masses[gone] = self._parts[-1].take()
            if not is_last:
                some, present[gone] = self._shard.rows(self._selection, keys[gone], wait.arrives_s)
            if arrays and not arrays[0].flags.writeable:
                arrays = [array.copy() for array in arrays]
            scatter(outputs, arrays, gone, some)
        return arrays, keys, masses

    def check(self) -> None:
        for part in self._parts:
            part.check()

    def ask_commit(self) -> None:
        for part in self._parts:
            part.ask_commit()

    def commit(self, waits: bool = True) -> None:
        for part in self._parts:
            part.commit(waits)

    def give_back(self, ends: float = math.inf) -> None:
        for part in reversed(self._parts):
            with contextlib.suppress(Missed):
                part.give_back(ends)
