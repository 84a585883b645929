"""The answers of the owner of a shard on another host, which are on their way (relive.fleet.shards.Answer)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, final

from relive.core.locked import is_of_lock
from relive.errors import DeadlineExceeded
from relive.fleet.remote.streams import Lines, Pending
from relive.fleet.shards import STALL_S, Answer, Missed
from relive.service.client.deadlines import cutoff
from relive.service.wire import framing

if TYPE_CHECKING:
    from relive.fleet.remote.shard import RemoteShard

__all__ = ["Again", "FilledAnswer", "RemoteAnswer", "SettledAnswer", "StatsAnswer"]


class Again(NamedTuple):
    """Asks a question again that was refused because another process has the lock of the shard.

    ask: sends the question. began, ends: the time.monotonic() of the first question, and that until which it is sent
    again. If the answers of other shards were waited for that long, it is sent once more.
    """

    ask: Callable[[], Any]
    began: float
    ends: float


@final
class RemoteAnswer:
    """An answer of the owner of a shard on another host, which is on its way."""

    def __init__(
        self,
        shard: RemoteShard,
        due: Any,
        then: Callable[[], None] = lambda: None,
        *,
        stalls: bool = False,
        again: Again | None = None,
    ) -> None:
        self._shard = shard
        self._due = due
        self._then = then
        self._stalls = stalls  # the owner waits for its lock for STALL_S
        self._again = again
        self._asked_at = time.monotonic()

    def take(self) -> Any:
        """Waits for the answer."""
        while True:
            try:
                told = self._shard.answered(self._due.take)
                break
            except DeadlineExceeded as error:
                again = self._again if is_of_lock(error) else None
                if again is None or self._asked_at >= again.ends:
                    raise self._missed(error) from None
            self._asked_at = time.monotonic()
            self._due = None  # its stream serves other calls now
            self._due = self._shard.answered(again.ask)
        self._then()
        return told

    def _missed(self, error: DeadlineExceeded) -> Missed:
        if not is_of_lock(error):
            return Missed(self._shard, error)
        if self._again is not None:  # the owner tells the wait for the last question
            waited_s = time.monotonic() - self._again.began
            error = DeadlineExceeded(error.needs, error.has, waited_s, error.holder_pid)
        if self._stalls or error.waited_s >= STALL_S:
            self._shard.stalls()
        return Missed(self._shard, error)

    def drop(self) -> None:
        """Ends the stream."""
        if self._due is not None:
            self._due.drop()


@final
class FilledAnswer:
    """The position of the first row that has its late columns."""

    def __init__(self, shard: RemoteShard, pending: Pending) -> None:
        self._answer = RemoteAnswer(shard, pending)
        self.drop = self._answer.drop

    def take(self) -> int:
        """Waits for the answer."""
        return framing.whole(self._answer.take().header, "position", -1, 1 << 62)


@final
class SettledAnswer:
    """The answers after which an owner has received all settled tickets. None are due if it has them already."""

    def __init__(self, shard: RemoteShard, lines: Lines) -> None:
        self._shard = shard
        self._due: list[Pending] = []
        if shard.is_live:
            with contextlib.suppress(Missed):
                self._due = shard.answered(lambda: lines.confirming(cutoff(shard.core.timeout_s)))

    @property
    def is_due(self) -> bool:
        """Whether an answer is due."""
        return bool(self._due)

    def take(self) -> None:
        """Waits for the answers. One that does not come is left out."""
        with contextlib.suppress(Missed):
            while self._due:
                self._shard.answered(self._due.pop().take)
        self.drop()

    def drop(self) -> None:
        """Ends the streams of the answers that were not taken."""
        while self._due:
            self._due.pop().drop()


@final
class StatsAnswer:
    """The statistics of a shard: asked for at once if the owner has received all settled tickets, else after them."""

    def __init__(self, shard: RemoteShard, lines: Lines) -> None:
        self._shard = shard
        self._settled = SettledAnswer(shard, lines)
        self._answer: Answer | None = None
        if shard.is_live and not self._settled.is_due:
            with contextlib.suppress(Missed):
                self._answer = shard.ask("stats")

    def take(self) -> dict[str, Any]:
        """Waits for the answers."""
        told = None
        with contextlib.suppress(Missed):
            self._settled.take()
            told = (self._answer or self._shard.ask("stats")).take()
        return self._shard.note_stats(told)

    def drop(self) -> None:
        """Ends the streams of the answers that were not taken."""
        self._settled.drop()
        if self._answer is not None:
            self._answer.drop()
