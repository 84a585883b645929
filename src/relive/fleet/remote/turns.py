"""Draws that one thread asks a shard for behind each other on one stream. Small ones share a message and its answer."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any, NamedTuple, final

from relive.errors import BadMessage
from relive.fleet.remote.streams import Lent, Line, Lines, Pending, Reply
from relive.service.wire import framing
from relive.service.wire.packing import MOST_DRAWS, MOST_TOGETHER_BYTES, MOST_TOGETHER_ITEMS, Packing

__all__ = ["Turn", "Turns"]


@final
class Turn:
    """One draw. It waits for Turns.send(), then for its answer.

    Args:
        turns: the draws of which this is one.
        header: the draw as a message, without its number of items.
        num_items: number of items.
        packing: how the arrays of the answer lie.
        ends: the deadline, a time.monotonic().
        may_share: whether the shard answers several draws at once.
    """

    def __init__(
        self, turns: Turns, header: dict[str, Any], num_items: int, packing: Packing, ends: float, may_share: bool
    ) -> None:
        self._turns = turns
        self.header = header
        self.num_items = num_items
        self.packing = packing
        self.ends = ends
        self.num_bytes = 0 if packing.is_ragged else packing.num_bytes(num_items)  # of the answer
        self.may_share = may_share and not packing.is_ragged
        self.message: _Message | None = None  # that has this draw
        self.outcome: Reply | BaseException | None = None

    def take(self) -> Reply:
        """Waits for the answer. Raises the error of the draw, and ServiceUnavailable if no answer comes in time."""
        self._turns.receive(self)
        outcome, self.outcome = self.outcome, None  # the rows belong to the batch alone from now on
        try:
            if isinstance(outcome, Reply):
                return outcome
            assert outcome is not None
            raise outcome
        finally:
            del outcome  # an error refers to this frame

    def hurry(self, ends: float) -> None:
        """Brings the deadline forward."""
        self.ends = min(self.ends, ends)
        if self.message is not None:
            self.message.pending.hurry(ends)

    def extend(self, ends: float) -> None:
        """Puts the deadline off: the answers before this one took their time. All draws of a message have theirs."""
        self.ends = max(self.ends, ends)
        if self.message is not None:
            self.message.pending.extend(_ends_of(self.message.turns))


class _Message(NamedTuple):
    """A message that was sent, and its draws."""

    pending: Pending
    turns: list[Turn]


@final
class Turns:
    """The draws of one thread, in order. The shard makes them in this order, and its answers come in the same order.

    The wait for one of them receives those before it. Draws that are alike but for their number of items go in one
    message, up to the bounds of relive.service.wire.packing. Each of them has a ticket of its own, so the shard draws,
    counts and takes back each as if it had come alone. If one fails, those after it are sent again, in order.
    """

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._unsent: deque[Turn] = deque()
        self._due: deque[_Message] = deque()
        self.most_together = 1  # how many draws like the last one share a message

    def add(
        self, header: dict[str, Any], num_items: int, packing: Packing, ends: float, *, may_share: bool = False
    ) -> Turn:
        """Adds a draw, which send() sends. The arguments are those of Turn."""
        turn = Turn(self, header, num_items, packing, ends, may_share)
        self._unsent.append(turn)
        fit = min(MOST_TOGETHER_ITEMS // num_items, MOST_TOGETHER_BYTES // max(turn.num_bytes, 1), MOST_DRAWS)
        self.most_together = max(fit, 1) if turn.may_share else 1
        return turn

    def send(self) -> None:
        """Sends the draws that were added. Waits for no answer, and leaves its errors to the take() of each draw."""
        while self._unsent:
            self._send(self._together())

    def _together(self) -> list[Turn]:
        """Takes the next draws that go in one message."""
        first = self._unsent.popleft()
        turns, num_items, num_bytes = [first], first.num_items, first.num_bytes
        while self._unsent and first.may_share and len(turns) < MOST_DRAWS:
            other = self._unsent[0]
            num_items, num_bytes = num_items + other.num_items, num_bytes + other.num_bytes
            fit = num_items <= MOST_TOGETHER_ITEMS and num_bytes <= MOST_TOGETHER_BYTES
            if not (fit and other.may_share and other.header == first.header):
                break
            turns.append(self._unsent.popleft())
        return turns

    def _send(self, turns: list[Turn]) -> None:
        first = turns[0]
        counts = [turn.num_items for turn in turns]
        more = {"n": counts[0]} if len(turns) == 1 else {"op": "draws", "n": counts}
        try:
            pending = self._lines.ask(
                first.header | more,
                _ends_of(turns),
                expects=lambda told: sum(_sizes(told, turns)),
                behind=self._line,
            )
        except BaseException as problem:
            for turn in turns:
                turn.outcome = problem
            if not isinstance(problem, Exception):
                raise
        else:
            message = _Message(pending, turns)
            self._due.append(message)
            for turn in turns:
                turn.message = message

    @property
    def _line(self) -> Line | None:
        """The line on which answers are due, unless it is over."""
        line = self._due[-1].pending.line if self._due else None
        return line if line is not None and not line.is_over else None

    def receive(self, turn: Turn) -> None:
        """Receives the answers up to this one, unless they came before."""
        while turn.outcome is None:
            if self._unsent:
                self.send()
                continue
            assert turn.message is not None
            pending, turns = self._due.popleft()
            if pending.line is turn.message.pending.line:  # it has the time of the answer that is waited for
                pending.extend(turn.message.pending.ends)
                pending.hurry(turn.message.pending.ends)
            is_last = not (self._due and self._due[0].pending.line is pending.line)
            try:
                self._unsent.extendleft(reversed(_settle(turns, pending.take(is_last), pending.line)))
            except BaseException as problem:
                for one in turns:
                    one.outcome = problem
                if not isinstance(problem, Exception):
                    raise
            finally:
                for one in turns:  # else a message and its draws would refer to each other, and wait for the collector
                    one.message = None


def _ends_of(turns: list[Turn]) -> float:
    """The deadline of a message: each of its draws has its time."""
    ends = max(turn.ends for turn in turns)
    if len(turns) == 1 or math.isinf(ends):
        return ends
    return ends + max(ends - time.monotonic(), 0.0) * (len(turns) - 1)


def _settle(turns: list[Turn], reply: Reply, line: Line) -> list[Turn]:
    """Gives the draws of a message their parts of the answer. Returns those that the shard did not try."""
    if len(turns) == 1:
        turns[0].outcome = reply
        return []
    drawn: list[dict[str, Any]] = reply.header["drawn"]  # _sizes has looked at it
    lent = [Lent(line, told["ticket"]) for told in drawn]
    begin = 0
    for turn, told, own in zip(turns, drawn, lent, strict=False):
        turn.outcome = Reply(told, framing.NOTHING, reply.block[begin : begin + turn.num_bytes], own)
        begin += turn.num_bytes
    for turn in turns[len(drawn) : len(drawn) + 1]:
        turn.outcome = framing.error_from(reply.header.get("stopped"))
    return turns[len(drawn) + 1 :]


def _sizes(told: dict[str, Any], turns: list[Turn]) -> list[int]:
    """The bytes of the arrays of each draw of a message. Raises BadMessage."""
    if len(turns) == 1:
        packing = turns[0].packing
        return [packing.num_bytes(turns[0].num_items, packing.num_rows(told))]
    drawn = framing.field(told, "drawn", list)
    if len(drawn) > len(turns) or not all(isinstance(one, dict) for one in drawn):
        raise BadMessage("draws of an answer", f"at most {len(turns)}", str(drawn)[:100])
    for one in drawn:
        framing.whole(one, "ticket", 0, 1 << 62)
    return [turn.num_bytes for turn, _ in zip(turns, drawn, strict=False)]
