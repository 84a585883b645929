"""A draw of the owner of a shard on another host, in flight."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np
import numpy.typing as npt

from relive.core.locked import is_of_lock
from relive.errors import BadMessage, DeadlineExceeded, ReliveError, ServiceUnavailable
from relive.fleet.draws.placement import Root
from relive.fleet.remote.streams import Lent, Pending, Reply
from relive.fleet.remote.turns import Turn
from relive.fleet.shards import SILENCE_S, Asked, Missed, Short
from relive.service.client.deadlines import cutoff
from relive.service.wire import framing
from relive.service.wire.packing import Packing

if TYPE_CHECKING:
    from relive.fleet.remote.shard import RemoteShard

__all__ = ["RemotePart", "bytes_of"]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]
Value = TypeVar("Value")


@final
class RemotePart:
    """A draw of an owner on another host. The draw stays in flight there until it is settled or the stream ends."""

    def __init__(self, shard: RemoteShard, asked: Asked, ask: Callable[[], tuple[Pending | Turn, Packing]]) -> None:
        self._shard = shard
        self._asked = asked
        self._ask = ask
        self._pending, self._packing = shard.answered(ask)
        self._lent: Lent | None = None
        self._num_lost = 0
        self._is_taken = False
        self._confirming: Pending | None = None
        self.root: Root | None = None

    def take(self) -> tuple[Arrays, Keys, Masses]:
        """Waits for the answer. One that was asked for ahead has its whole time from now on."""
        self._is_taken = True
        if isinstance(self._pending, Turn):
            self._pending.extend(cutoff(self._asked.left_s))
        count = self._asked.request.num_items
        told = self._told_draw()
        self._lent = told.lent
        if "root" in told.header:
            self.root = self._shard.note_root(self._asked.request.index_number, bytes_of(told.header, "root"))
        *arrays, keys, masses = self._packing.arrays(told.block, count, self._packing.num_rows(told.header))
        return arrays, keys, masses

    def _told_draw(self) -> Reply:
        began = time.monotonic()
        while True:
            try:
                told = self._shard.answered(self._pending.take)
                self._shard.note_lock(self._asked.request.index_number)
                return told
            except DeadlineExceeded as error:
                if self._asked.is_only:
                    raise
                if not is_of_lock(error):
                    self._shard.note_lock(self._asked.request.index_number)
                    raise Short(self._shard, error) from None
                if time.monotonic() >= began + self._asked.retry_s:
                    self._shard.note_refused(self._asked, began)
                    raise Missed(self._shard, error) from None
            self._pending, self._packing = self._shard.answered(self._ask)

    def lose(self, num_items: int) -> None:
        """Notes that num_items items went before their rows were read. Such items do not count as drawn."""
        self._num_lost += num_items

    def check(self) -> None:
        """Raises ServiceUnavailable if the uses of the draw went back because the stream ended."""
        if self._lent is not None and self._counts_uses and not self._lent.is_there():
            raise self._gone_back()

    def ask_commit(self) -> None:
        """Asks the owner to count the draw, if uses are counted. Raises ServiceUnavailable if it does not answer."""
        if self._lent is not None and self._counts_uses and self._confirming is None:
            shard, lent = self._shard, self._lent
            if lent.is_over:
                raise self._gone_back()
            self._confirming = self._told(lambda: lent.ask_confirm(shard._lines, cutoff(shard.core.timeout_s)))

    def commit(self, waits: bool = True) -> None:
        """Counts the draw. Raises as check(), and ServiceUnavailable if the owner does not answer."""
        if self._lent is None:
            return
        if not self._counts_uses:
            self._lent.commit(self._num_lost, self._asked.turns is not None)
            return
        if not waits:
            return
        self.ask_commit()
        lent, pending = self._lent, self._confirming
        assert pending is not None
        self._confirming = None
        if not self._told(lambda: lent.confirmed(pending)):
            raise self._gone_back()
        self._lent = None

    def _told(self, call: Callable[[], Value]) -> Value:
        """Makes a call about the count. Raises ServiceUnavailable if the owner does not answer."""
        started = time.monotonic()
        try:
            return self._shard.answered(call)
        except Missed:
            reason = "as a batch was handed out: its items went back, or count as drawn"
            raise ServiceUnavailable(self._shard.address, time.monotonic() - started, reason) from None

    @property
    def _counts_uses(self) -> bool:
        return self._shard.counts_uses(self._asked.request.index_number)

    def _gone_back(self) -> ServiceUnavailable:
        return ServiceUnavailable(self._shard.address, 0.0, "the stream that held the batch is over")

    def give_back(self, ends: float = math.inf) -> None:
        """Gives the draw back.

        Waits a little for an answer that was not taken, because its stream may have other draws in flight. Rows that
        take longer are not waited for: the stream ends, and the owner takes its draws back. The shard stays live then,
        because the caller waits no longer. A shard that sent no byte is dead, as for a part that is taken. If there is
        no time at all, the stream of a draw that was not asked for ahead ends at once.
        """
        if not self._is_taken and not ends and isinstance(self._pending, Pending):
            self._is_taken = True
            self._pending.drop()
        if not self._is_taken:
            self._pending.hurry(min(ends, time.monotonic() + SILENCE_S))
            self._is_taken = True
            with contextlib.suppress(ReliveError):
                try:
                    self._lent = self._pending.take().lent
                except ServiceUnavailable as error:
                    if not error.is_there:
                        self._shard.fails(error)
        if self._confirming is not None:  # another shard has failed meanwhile
            self._confirming.hurry(time.monotonic() + SILENCE_S)
            with contextlib.suppress(ServiceUnavailable):
                self.commit()
        if self._lent is not None:
            self._lent.give_back()


def bytes_of(told: dict[str, Any], name: str) -> bytes:
    """Returns the bytes that a message tells in hexadecimal digits. Raises BadMessage."""
    text = framing.field(told, name, str)
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise BadMessage(name, "hexadecimal digits", text[:40]) from None
