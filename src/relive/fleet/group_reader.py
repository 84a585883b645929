"""Gives the ranks that compute one model together the same batches: one rank draws, and all ranks get its batch.

Protocol of one call:

1. The leader draws, and its draw stays in flight.
2. *Ask*: one all_gather of 36 bytes a rank: the digest of the arguments, the state of the call, and the number of bytes
   that follow.
3. *Send*: the leader broadcasts the batch, or the keys. By keys, each rank then gathers the rows itself. No rank
   gathers longer than the leader, whose time left comes with the keys.
4. *Confirm*: one all_gather of 36 bytes a rank: the rank has the batch. By keys, a rank adds which rows were gone. If
   rows were gone on any rank, the leader draws replacements for them, and steps 2 to 4 follow again, until no row is
   gone or the deadline of a rank has passed. The leader draws replacements alone (Drawing.replace): if its table draws
   together with those of other leaders, these leaders do not know of the rows.
5. Only then the draws count.
6. *Count*: if the index counts uses, or if a server keeps the leader's draw, counting may fail. One more all_gather
   tells whether it did. The leader's message of step 4 says whether this step follows.

Messages of all_gathers have one form (draws/messages.py). A message contains the number of its step in the call. If the
call fails on a rank in any of these steps, the rank puts its error into the message of the next all_gather, and every
rank ends the call with that error. The draws go back, and the group goes on.

A rank that gives up (its deadline has passed, Ctrl-C, or its process ends) cannot tell the others:

| it gives up in | the other ranks | the draw |
|---|---|---|
| 2 | wait for it in step 2, or in step 4 if they come later than its message | goes back |
| 3, or before its message of step 4 | wait for it in step 4 | goes back |
| 4, after its message, and is not the leader | go on. The rank has the batch, too, and raises an error | counts |
| 4, after its message, and is the leader | go on, and return the batch. Their next call raises RankLost | goes back |
| 6 | raise an error. All ranks have received the batch | counts |

A rank that waits for another one until its own deadline gives up, too. A rank that gave up stays out of step, because
the other ranks may be a collective further on: its later calls raise RankLost. The number of the step shows a message
of another call.

The leader's draw may end later than the leader's deadline: it waits for answers of shards and for other leaders one
second at least. The other ranks therefore wait for the leader longer than their deadline.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol, TypeVar, final, runtime_checkable

import numpy as np
import numpy.typing as npt

from relive.checks.values import integer, timeout
from relive.core.request import DrawRequest
from relive.errors import InvalidConfig, ReliveError, TableClosed
from relive.fleet.agreement import Exchange, end_closes
from relive.fleet.draws.messages import (
    FAILED,
    LATE,
    Keys,
    Message,
    packed,
    packed_keys,
    tell_left,
    unpacked,
    unpacked_keys,
)
from relive.fleet.draws.pace import Wait
from relive.fleet.errors import RankFailed, RankLost, RanksDisagree
from relive.fleet.shards import SILENCE_S
from relive.reading.batch import Batch
from relive.reading.columns import Selection
from relive.reading.holds import HeldDraw, HeldDraws, Hold, TimedHold
from relive.table.handle import TableHandle
from relive.table.table import Table

__all__ = ["Broadcasts", "GroupReader"]

Bytes = npt.NDArray[np.uint8]
Value = TypeVar("Value")

_CARRIES = ("rows", "keys")
_LEAST_S = 1.0  # the shortest wait of the leader for the others
_GRACE_S = 5 * SILENCE_S  # how long the others wait past their deadline: the waits of a draw that have a least time
_USUAL_S = 60.0
_UNKNOWN = bytes(8)


class Broadcasts(Exchange, Protocol):
    """An exchange in which one rank can also send many bytes to the others."""

    def broadcast(self, given: Bytes | None, num_bytes: int, source: int, timeout_s: float) -> Bytes:
        """Sends bytes of one rank to all ranks.

        Args:
            given: uint8 [num_bytes], the bytes to send, on rank `source`. None on the other ranks.
            num_bytes: number of bytes, the same on every rank.
            source: the rank that sends.
            timeout_s: timeout in seconds.

        Returns:
            uint8 [num_bytes], the bytes that rank `source` gave.

        Raises:
            DeadlineExceeded, RankLost: as in all_gather.
        """
        ...


@final
@dataclass(frozen=True)
class _Asked:
    """The batch that every rank of the group asks for."""

    num_items: int
    columns: tuple[str, ...] | None
    index: str | None
    where: str | None

    @property
    def digest(self) -> bytes:
        """The same on ranks that ask for equal values, such as a str and a np.str_."""
        columns = None if self.columns is None else tuple(map(_plain, self.columns))
        values = self.num_items, columns, _plain(self.index), _plain(self.where)
        return hashlib.sha256(repr(values).encode()).digest()[:8]


class _Call:
    """One call of sample(): its arguments, its deadline, and the number of its next all_gather."""

    def __init__(self, asked: _Asked, wait: Wait) -> None:
        self.asked = asked
        self.wait = wait
        self.step = 0
        self.digest = asked.digest


@final
class GroupReader:
    """Gives the same batches, bit for bit, to all ranks that compute one model together. One rank, the leader, draws.

    Use it for tensor-parallel ranks, and for pipeline stages that only read. All ranks make the same calls in the same
    order, one thread at a time. Rows are pickled: ranks must trust each other, as with torch's own collectives of
    objects.

    Args:
        table: on the leader, the table. In a data-parallel job, attach it with an exchange among the leaders. On the
            other ranks None, or with carries="keys" a handle of the rank's own on the same table.
        exchange: the exchange of the group, such as TorchExchange(mesh["tensor"].get_group()).
        carries: "rows" (default): the batch travels. "keys": 16 bytes an item travel, and each rank reads the rows
            itself.
        leader: the leader's rank in the group. Default 0.

    Raises:
        InvalidConfig: carries is unknown, leader is out of range, or a table is missing. Or the table's own exchange
            has the same group.
    """

    def __init__(
        self,
        table: TableHandle | None,
        exchange: Broadcasts,
        carries: Literal["rows", "keys"] = "rows",
        leader: int = 0,
    ) -> None:
        if carries not in ("rows", "keys"):
            raise InvalidConfig("carries", "'rows' or 'keys'", carries)
        if not all(hasattr(exchange, part) for part in ("rank", "world", "all_gather", "broadcast")):
            raise InvalidConfig("exchange", "one with broadcasts, such as TorchExchange()", exchange)
        self._exchange = exchange
        self._leader = integer("leader", leader, 0, exchange.world - 1)
        self.is_leader = exchange.rank == self._leader
        self._by_keys = carries == "keys"
        if not isinstance(table, TableHandle) and (table is not None or self.is_leader or self._by_keys):
            raise InvalidConfig("table", "a table, of the leader and where keys are carried", table)
        fleet = getattr(table, "_fleet", None)
        if fleet is not None and fleet.agreement.goes_over(exchange):
            expected = (
                "one without an exchange, or with one of another group: its draws are calls of the other ranks, too"
            )
            raise InvalidConfig("table of a group's reader", expected, "one whose exchange has the reader's group")
        self._table = table
        self._regions = _regions(table) if self._by_keys else _UNKNOWN
        self._is_in_step = True

    def sample(
        self,
        num_items: int,
        columns: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
        where: str | None = None,
    ) -> Batch:
        """Draws one batch for all ranks of the group, as the table's sample(). The draw counts once.

        Every rank calls it at once with the same arguments. With carries="keys", the index must not have
        max_times_sampled, and the columns must not include staleness, because each rank would see another moment. An
        index with Hindsight is refused.

        Args:
            num_items: number of items of the batch.
            columns: names of the columns. None: all columns of the index.
            timeout_s: timeout in seconds. None: the table's, or 60 s on a rank without a table.
            index: name of the index. None: as in the table's sample().
            where: a condition, as in the table's sample().

        Returns:
            The batch, the same on every rank.

        Raises:
            ReliveError: on the leader, every error that the table's sample() raises. The other ranks then raise
                DeadlineExceeded or RankFailed.
            RankFailed: another rank could not do its part. The group may go on.
            DeadlineExceeded: a rank did not make the call, and the error names such ranks. Or, with carries="keys", a
                rank did not find items of any draw until its deadline.
            InvalidConfig: a rank asks for another batch, or the index or a column is refused.
            RanksDisagree: a rank has a reader with another leader or another carries, makes another call over the
                group, or reads another table by keys. Nothing was drawn.
            RankLost: a rank ended, or an earlier call was given up. End all ranks, and start the group again.

        Blocks:
            The leader's draw and gather end one second before timeout_s, or a quarter of timeout_s if that is
            shorter: the rest is for the other ranks. The draw's DeadlineExceeded comes that much earlier.
            The leader waits for the others at most timeout_s. The others wait at most timeout_s + 5 s, because the
            leader waits for shards and other leaders one second at least. Once timeout_s is over, each exchange that
            is left waits at most one second on the leader, and 5 s on the others: there are up to four.
        """
        if isinstance(columns, (str, bytes)) or not (columns is None or isinstance(columns, Iterable)):
            raise InvalidConfig("columns", "a list of names, or None", columns)
        names = None if columns is None else tuple(columns)
        asked = _Asked(integer("num_items", num_items, 1, 2**31 - 1), names, index, where)
        usual_s = _USUAL_S if self._table is None else self._table.timeout_s
        call = _Call(asked, Wait(usual_s if timeout_s is None else timeout(timeout_s)))
        if not self._is_in_step:
            raise RankLost("an earlier call was given up, and ranks may be out of step")
        end_closes(self._exchange, time.monotonic() + self._patience(call.wait))
        return self._led(call) if self.is_leader else self._followed(call)

    # ---- the leader ------------------------------------------------------------------------------------------------

    def _led(self, call: _Call) -> Batch:
        with ExitStack() as stack:
            with self._telling(call):
                table, selection = self._selected(call.asked)
                draws = stack.enter_context(closing(table.held_draws()))
                stack.callback(draws.hurry)  # before it is closed: the others wait for the leader's next call
                held = _Held(table, selection, call.asked, draws)
                drawn = held.draw(call.wait, self._by_keys)
                batch = None if self._by_keys else Batch(selection.columns, *drawn[:-1])
                given = _keys_of(drawn) if batch is None else packed(batch)
            self._gives(call, given)
            if batch is None:
                batch = self._gathered(call, held, unpacked_keys(given))
            else:
                self._exchanged(call, held.count_may_fail)
            if not held.count_may_fail:  # all ranks have the batch
                held.commit(call.wait)
                return batch
            with self._telling(call, BaseException):  # the others are there, so it does not wait for them
                held.commit(call.wait)
            self._exchanged(call)
            return batch

    def _gives(self, call: _Call, given: Bytes) -> None:
        self._exchanged(call, len(given))
        if self._by_keys:
            tell_left(given, call.wait.left_s)  # now: the leader may have waited for ranks that came later
        self._in_step(self._exchange.broadcast, given, len(given), self._leader, self._patience(call.wait))

    # ---- the others ------------------------------------------------------------------------------------------------

    def _followed(self, call: _Call) -> Batch:
        if self._by_keys:
            with self._telling(call):
                held = _Held(*self._selected(call.asked), call.asked)
            return self._gathered(call, held, unpacked_keys(self._hears(call)))
        told = self._hears(call)
        with self._telling(call):
            batch: Batch = unpacked(told)
        if self._exchanged(call)[self._leader].number:
            self._exchanged(call)  # the leader has counted the uses
        return batch

    def _hears(self, call: _Call) -> Bytes:
        num_bytes = self._exchanged(call)[self._leader].number
        return self._in_step(self._exchange.broadcast, None, num_bytes, self._leader, self._patience(call.wait))

    # ---- all of them -----------------------------------------------------------------------------------------------

    def _selected(self, asked: _Asked) -> tuple[TableHandle, Selection]:
        assert self._table is not None  # __init__ checked it for a leader and for carries="keys"
        selection = self._table.select(asked.index, asked.columns)
        if selection.goals is not None:
            raise InvalidConfig("index of a group's batches", "one without Hindsight", asked.index)
        if self._by_keys:
            index = list(self._table.indexes.values())[selection.number]
            if index.max_times_sampled is not None:
                raise InvalidConfig("carries, with max_times_sampled", "'rows': used items are gone", "keys")
            if "staleness" in selection.columns.names:
                raise InvalidConfig("carries, with the column staleness", "'rows': it is of a moment", "keys")
        return self._table, selection

    def _gathered(self, call: _Call, held: _Held, keys: Keys) -> Batch:
        """Gathers the rows of the keys. The leader draws a replacement for each item that is gone on any rank."""
        while True:
            with self._telling(call):
                arrays, present = held.rows(keys, min(call.wait.left_s, keys.left_s))
            gone = np.zeros(len(keys.item_keys), np.bool_)
            heard = self._exchanged(call, held.count_may_fail, np.packbits(~present).tobytes())
            for message in heard:
                gone |= np.unpackbits(np.frombuffer(message.body, np.uint8), count=len(gone)).astype(np.bool_)
            if not gone.any():
                if heard[self._leader].number and not self.is_leader:
                    self._exchanged(call)  # the leader has counted the draws
                return Batch(held.selection.columns, arrays, *keys[:3])
            others = self._replacements(call, held, int(gone.sum()))
            keys.item_keys[gone], keys.probabilities[gone] = others.item_keys, others.probabilities
            keys = keys._replace(left_s=others.left_s)

    def _replacements(self, call: _Call, held: _Held, num_items: int) -> Keys:
        with self._telling(call):
            if call.wait.is_over:
                raise call.wait.exceeded(
                    "a batch that every rank finds", f"{num_items} items that a rank does not find"
                )
            given = _keys_of(held.replace(num_items, call.wait)) if self.is_leader else None
        if given is None:
            return unpacked_keys(self._hears(call))
        self._gives(call, given)
        return unpacked_keys(given)

    @contextmanager
    def _telling(self, call: _Call, kinds: type[BaseException] = Exception) -> Iterator[None]:
        """Tells the other ranks about an error that the block raises."""
        try:
            yield
        except kinds as error:  # such as a MemoryError: the others would wait for this rank
            with suppress(ReliveError):
                self._exchanged(call, error=error)
            raise

    def _exchanged(
        self, call: _Call, number: int = 0, body: bytes = b"", error: BaseException | None = None
    ) -> list[Message]:
        """Exchanges the messages of the next step. Raises the same error on all ranks if the call failed on a rank."""
        mine = Message(call.step, call.digest, self._regions, self._leader, self._by_keys, number=number, body=body)
        mine = mine if error is None else mine.of(error)
        call.step += 1
        told = self._in_step(self._exchange.all_gather, mine.pack(), self._patience(call.wait))
        if told[self._exchange.rank] != mine.pack():
            self._lose()
        heard = self._of_this_step(mine, told)
        for rank, other in enumerate(heard):
            if other.status == LATE:
                raise call.wait.exceeded(f"a batch from rank {rank}", other.reason)
            if other.status == FAILED:
                raise RankFailed(rank, other.reason)
        for rank, other in enumerate(heard):
            if other.asked != mine.asked:
                raise InvalidConfig(f"arguments of sample() on rank {rank}", "those of every other rank", "others")
        known = next((one.regions for one in (mine, *heard) if one.regions != _UNKNOWN), _UNKNOWN)
        for rank, other in enumerate(heard):
            if other.regions not in (known, _UNKNOWN):
                raise RanksDisagree(rank, "a table, or shards,")
        return heard

    def _of_this_step(self, mine: Message, told: Sequence[bytes]) -> list[Message]:
        """The messages of all ranks. Raises RanksDisagree for another kind of call, and RankLost for another step."""
        heard = []
        for rank, other in enumerate(map(Message.unpack, told)):
            if other is None and mine.step == 0:
                draws = "another call over the group, such as a draw of a table that was attached with this exchange"
                raise RanksDisagree(rank, "a call", "GroupReader.sample()", draws)
            if other is None or other.step != mine.step:
                self._lose()
            if other.leader != mine.leader:
                raise RanksDisagree(rank, "a leader", mine.leader, other.leader)
            if other.by_keys != mine.by_keys:
                raise RanksDisagree(rank, "carries", _CARRIES[mine.by_keys], _CARRIES[other.by_keys])
            heard.append(other)
        return heard

    def _lose(self) -> NoReturn:
        self._is_in_step = False
        raise RankLost("an earlier call over this group was given up, and ranks may be out of step")

    def _patience(self, wait: Wait) -> float:
        """How long this rank waits for the others, in seconds."""
        return max(wait.left_s, _LEAST_S) if self.is_leader else wait.left_s + _GRACE_S

    def _in_step(self, call: Callable[..., Value], *arguments: Any) -> Value:
        self._is_in_step = False
        result = call(*arguments)
        self._is_in_step = True
        return result


@runtime_checkable
class _SharedDraws(Protocol):
    """Held draws that may be calls of other leaders, too."""

    def replace(self, request: DrawRequest, timeout_s: float) -> HeldDraw:
        """Draws items in place of those of the newest draw that are gone, without a call of other leaders."""
        ...


@final
class _Held:
    """The table and columns that a rank reads a batch from. On the leader also the draws in flight."""

    def __init__(self, table: TableHandle, selection: Selection, asked: _Asked, draws: HeldDraws | None = None) -> None:
        self.selection = selection
        self.asked = asked
        self._table = table
        self._draws = draws
        self._holds: list[Hold] = []

    def draw(self, wait: Wait, keys_only: bool) -> HeldDraw:
        """Makes the draw of the call, on the leader."""
        assert self._draws is not None
        selection = None if keys_only else self.selection.core
        return self._kept(
            self._draws.draw(self._request(self.asked.num_items, selection), _without_telling(wait.left_s))
        )

    def replace(self, num_items: int, wait: Wait) -> HeldDraw:
        """Draws keys in place of some that are gone, on the leader. No other leader has a part in it."""
        assert self._draws is not None
        draw = self._draws.replace if isinstance(self._draws, _SharedDraws) else self._draws.draw
        return self._kept(draw(self._request(num_items, None), _without_telling(wait.left_s)))

    def _request(self, num_items: int, selection: Any) -> DrawRequest:
        where, number = self.asked.where, self.selection.number
        condition = None if where is None else self._table.condition(number, where)
        return DrawRequest(number, num_items, selection, condition)

    def _kept(self, drawn: HeldDraw) -> HeldDraw:
        self._holds.append(drawn.hold)
        return drawn

    def rows(self, keys: Keys, left_s: float) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.bool_]]:
        """The rows of the keys, and which rows were present. left_s: seconds for the gather and the telling."""
        return self._table.gather_arrays(self.selection, keys.item_keys, _without_telling(left_s))

    @property
    def count_may_fail(self) -> bool:
        """Whether counting may fail on the leader: a draw of the index counts uses, or a server keeps the draw."""
        counts_uses = list(self._table.indexes.values())[self.selection.number].max_times_sampled is not None
        return self._draws is not None and (counts_uses or any(isinstance(hold, TimedHold) for hold in self._holds))

    def commit(self, wait: Wait) -> None:
        """Counts all draws of the batch as sampled. Waits for a server until the deadline, at least a second."""
        for hold in self._holds:
            if isinstance(hold, TimedHold):
                hold.commit_within(wait.left_s)
            else:
                hold.commit()


def _plain(value: object) -> object:
    """The value of a text in its plain type. Other values are no names: the table refuses them."""
    return str.__str__(value) if isinstance(value, str) else value


def _without_telling(left_s: float) -> float:
    """The seconds until the deadline, without a part for telling the others: they give up if they hear of no error."""
    return left_s - min(_LEAST_S, left_s / 4)


def _keys_of(drawn: HeldDraw) -> Bytes:
    return packed_keys(Keys(drawn.item_keys, drawn.probabilities, drawn.num_live_items))


def _regions(table: TableHandle | None) -> bytes:
    """The digest of the regions that a handle reads.

    Not known for a handle of relive.connect(): its server may load a save, which keeps keys, into another region.
    """
    uuids: list[bytes] = [shard.uuid for shard in getattr(getattr(table, "_core", None), "shards", ())]
    if isinstance(table, Table):
        with suppress(TableClosed):  # sample() raises it
            uuids = [table.core.geometry["uuid"]]
    return hashlib.sha256(b"".join(sorted(uuids))).digest()[:8] if uuids else _UNKNOWN
