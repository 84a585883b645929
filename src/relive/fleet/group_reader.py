"""Gives the ranks that compute one model together the same batches: one rank draws, and all ranks get its batch.

Protocol of one call:

1. The leader draws, and its draw stays in flight.
2. All ranks exchange 17 bytes: the digest of the arguments, the state of the call, and the number of bytes that follow.
   If the call failed on a rank, the rank adds its reason, and every rank ends the call with that reason.
3. The leader broadcasts. If rows travel, the broadcast is the batch.
4. If keys travel, each rank gathers the rows itself. All ranks exchange which rows were gone, and the leader draws
   replacements for those rows in the same way until no row is gone.
5. Only then the draws count.

A rank that gives up in the middle of a call stays out of step: the other ranks may be a collective further on.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, final

import numpy as np
import numpy.typing as npt

from relive.checks.values import integer, timeout
from relive.core.request import DrawRequest
from relive.errors import DeadlineExceeded, InvalidConfig, ReliveError, TableClosed
from relive.fleet.agreement import Exchange
from relive.fleet.draws.pace import Wait
from relive.fleet.errors import RankFailed, RankLost, RanksDisagree
from relive.reading.batch import Batch
from relive.reading.columns import Selection
from relive.reading.holds import HeldDraw, HeldDraws, Hold
from relive.table.handle import TableHandle

__all__ = ["Broadcasts", "GroupReader"]

Bytes = npt.NDArray[np.uint8]
Keys = npt.NDArray[np.int64]
Value = TypeVar("Value")

# Digest of the arguments, state of the draw, number of bytes that follow; leader and carries of this reader.
_HEAD = struct.Struct("<8sBqH?")
_CARRIES = ("rows", "keys")
_GOOD, _LATE, _FAILED = 0, 1, 2
_MAX_REASON = 500  # bytes of an error's text
_LEAST_S = 1.0  # the shortest wait of ranks for each other, for every deadline
_USUAL_S = 60.0
_ALIGNED = 64


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
        return hashlib.sha256(repr(self).encode()).digest()[:8]


class _Keys(NamedTuple):
    """The keys and probabilities from which a rank gathers a batch."""

    item_keys: Keys
    probabilities: npt.NDArray[np.float64]
    num_live_items: int


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
        InvalidConfig: carries is unknown, leader is out of range, or a table is missing.
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
        self._table = table
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
        max_times_sampled,
        and the columns must not include staleness, because each rank would see another moment. An index with Hindsight
        is
        refused.

        Args:
            num_items: number of items of the batch.
            columns: names of the columns. None: all columns of the index.
            timeout_s: timeout in seconds. None: the table's, or 60 s on a rank without a table. Ranks wait for each
                other for
                at least 1 s.
            index: name of the index. None: as in the table's sample().
            where: a condition, as in the table's sample().

        Returns:
            The batch, the same on every rank.

        Raises:
            ReliveError: on the leader, every error that the table's sample() raises. The other ranks then raise
                DeadlineExceeded or RankFailed.
            DeadlineExceeded: a rank did not make the call. The error names such ranks.
            InvalidConfig: a rank asks for another batch, or the index or a column is refused.
            RanksDisagree: a rank has a reader with another leader or another carries. Nothing was drawn.
            RankLost: a rank ended, or an earlier call was given up. End all ranks, and start the group again.
        """
        if isinstance(columns, (str, bytes)) or not (columns is None or isinstance(columns, Iterable)):
            raise InvalidConfig("columns", "a list of names, or None", columns)
        names = None if columns is None else tuple(columns)
        asked = _Asked(integer("num_items", num_items, 1, 2**31 - 1), names, index, where)
        usual_s = _USUAL_S if self._table is None else self._table.timeout_s
        wait = Wait(usual_s if timeout_s is None else timeout(timeout_s))
        if not self._is_in_step:
            raise RankLost("an earlier call was given up, and ranks may be out of step")
        return self._led(asked, wait) if self.is_leader else self._followed(asked, wait)

    # ---- the leader ------------------------------------------------------------------------------------------------

    def _led(self, asked: _Asked, wait: Wait) -> Batch:
        with ExitStack() as stack:
            with self._telling(asked, wait):
                table, selection = self._selected(asked)
                draws = stack.enter_context(closing(table.held_draws()))
                held = _Held(table, selection, asked, draws)
                drawn = held.draw(asked.num_items, wait, self._by_keys)
            if self._by_keys:  # no uses are counted, so commit() does not fail
                batch = self._gathered(held, self._gives_keys(asked, drawn, wait), wait)
                held.commit()
                return batch
            batch = Batch(selection.columns, *drawn[:-1])
            given = _packed(batch)
            self._heads(asked, wait, len(given))  # all ranks are here
            try:
                held.commit()
            except BaseException:
                with suppress(ReliveError):
                    self._sends(np.zeros_like(given), wait)  # a batch of no parts
                raise
            self._sends(given, wait)
            return batch

    def _sends(self, given: Bytes, wait: Wait) -> None:
        self._in_step(self._exchange.broadcast, given, len(given), self._leader, _patience(wait))

    def _gives(self, asked: _Asked, given: Bytes, wait: Wait) -> None:
        self._heads(asked, wait, len(given))
        self._sends(given, wait)

    def _gives_keys(self, asked: _Asked, drawn: HeldDraw, wait: Wait) -> _Keys:
        keys = _Keys(drawn.item_keys, drawn.probabilities, drawn.num_live_items)
        self._gives(asked, _packed_keys(keys), wait)
        return keys

    @contextmanager
    def _telling(self, asked: _Asked, wait: Wait) -> Iterator[None]:
        """Tells the other ranks about an error that the block raises."""
        try:
            yield
        except Exception as error:  # such as a MemoryError: the others would wait for this rank
            with suppress(ReliveError):
                self._heads(asked, wait, 0, error)
            raise

    # ---- the others ------------------------------------------------------------------------------------------------

    def _followed(self, asked: _Asked, wait: Wait) -> Batch:
        if not self._by_keys:
            told = self._hears(asked, wait)
            if not told[:8].any():
                raise RankFailed(self._leader, "no owner confirmed the draw: its items went back, or count as drawn")
            batch: Batch = _unpacked(told)
            return batch
        with self._telling(asked, wait):
            held = _Held(*self._selected(asked), asked)
        return self._gathered(held, _unpacked_keys(self._hears(asked, wait)), wait)

    def _hears(self, asked: _Asked, wait: Wait) -> Bytes:
        num_bytes = self._heads(asked, wait)
        return self._in_step(self._exchange.broadcast, None, num_bytes, self._leader, _patience(wait))

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

    def _gathered(self, held: _Held, keys: _Keys, wait: Wait) -> Batch:
        """Gathers the rows of the keys. The leader draws a replacement for each item that is gone on any rank."""
        while True:
            arrays, present = held.rows(keys)
            mine = b"" if present is None else np.packbits(~present).tobytes()
            gone = np.zeros(len(keys.item_keys), np.bool_)
            for rank, told in enumerate(self._in_step(self._exchange.all_gather, mine, _patience(wait))):
                if not told:
                    raise RankFailed(rank, "its table was closed")
                gone |= np.unpackbits(np.frombuffer(told, np.uint8), count=len(gone)).astype(np.bool_)
            if not gone.any():
                return Batch(held.selection.columns, arrays, *keys)
            anew = self._anew(held, int(gone.sum()), wait)
            keys.item_keys[gone], keys.probabilities[gone] = anew.item_keys, anew.probabilities

    def _anew(self, held: _Held, num_items: int, wait: Wait) -> _Keys:
        if not self.is_leader:
            return _unpacked_keys(self._hears(held.asked, wait))
        with self._telling(held.asked, wait):
            drawn = held.draw(num_items, wait, keys_only=True)
        return self._gives_keys(held.asked, drawn, wait)

    def _heads(self, asked: _Asked, wait: Wait, num_bytes: int = 0, error: Exception | None = None) -> int:
        """Exchanges the heads of all ranks. Returns the number of bytes that the leader sends.

        Raises the same error on all ranks if the call failed on one rank.
        """
        status, reason = _GOOD, b""
        if error is not None:
            status = _LATE if isinstance(error, DeadlineExceeded) else _FAILED
            reason = f"{type(error).__name__}: {error}".encode()[:_MAX_REASON]
        mine = _HEAD.pack(asked.digest, status, num_bytes, self._leader, self._by_keys) + reason
        heard = self._in_step(self._exchange.all_gather, mine, _patience(wait))
        if heard[self._exchange.rank] != mine:
            self._is_in_step = False
            raise RankLost("an earlier call over this group was given up, and ranks may be out of step")
        heads = [(*_HEAD.unpack_from(one), one[_HEAD.size :].decode(errors="replace")) for one in heard]
        for rank, (_, _, _, leader, by_keys, _) in enumerate(heads):
            if leader != self._leader:
                raise RanksDisagree(rank, "a leader", self._leader, leader)
            if by_keys != self._by_keys:
                raise RanksDisagree(rank, "carries", _CARRIES[self._by_keys], _CARRIES[by_keys])
        for rank, (_, status, *_, text) in enumerate(heads):
            if status == _LATE:
                raise wait.exceeded(f"a batch from rank {rank}", text)
            if status == _FAILED:
                raise RankFailed(rank, text)
        for rank, (digest, *_) in enumerate(heads):
            if digest != asked.digest:
                raise InvalidConfig(f"arguments of sample() on rank {rank}", "those of every other rank", "others")
        size: int = heads[self._leader][2]
        return size

    def _in_step(self, call: Callable[..., Value], *arguments: Any) -> Value:
        self._is_in_step = False
        result = call(*arguments)
        self._is_in_step = True
        return result


@final
class _Held:
    """The table and columns that a rank reads a batch from. On the leader also the draws in flight."""

    def __init__(self, table: TableHandle, selection: Selection, asked: _Asked, draws: HeldDraws | None = None) -> None:
        self.selection = selection
        self.asked = asked
        self._table = table
        self._draws = draws
        self._holds: list[Hold] = []

    def draw(self, num_items: int, wait: Wait, keys_only: bool) -> HeldDraw:
        """Makes one more draw, on the leader."""
        assert self._draws is not None
        where, number = self.asked.where, self.selection.number
        condition = None if where is None else self._table.condition(number, where)
        request = DrawRequest(number, num_items, None if keys_only else self.selection.core, condition)
        # The last part of the deadline is kept to tell the others. Otherwise they would give up before they hear of it.
        seconds = wait.left_s - min(_LEAST_S, wait.left_s / 4)
        drawn = self._draws.draw(request, seconds)
        self._holds.append(drawn.hold)
        return drawn

    def rows(self, keys: _Keys) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.bool_] | None]:
        """The rows of the keys, and which rows were present; ([], None) if the table was closed."""
        try:
            return self._table.gather_arrays(self.selection, keys.item_keys)
        except TableClosed:
            return [], None

    def commit(self) -> None:
        """Counts all draws of the batch as sampled."""
        for hold in self._holds:
            hold.commit()


def _patience(wait: Wait) -> float:
    return max(wait.left_s, _LEAST_S)


# ---- bytes that travel -----------------------------------------------------------------------------------------------


def _packed_keys(keys: _Keys) -> Bytes:
    parts = [np.array([keys.num_live_items], np.int64), keys.item_keys, keys.probabilities.view(np.int64)]
    return np.concatenate(parts).view(np.uint8)


def _unpacked_keys(told: Bytes) -> _Keys:
    numbers = told.view(np.int64)
    count = (len(numbers) - 1) // 2
    return _Keys(numbers[1 : count + 1], numbers[count + 1 :].view(np.float64), int(numbers[0]))


def _packed(batch: Batch) -> Bytes:
    """The batch as bytes: the sizes of all parts, the pickle, then the arrays, each at a multiple of 64 bytes."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(batch, 5, buffer_callback=buffers.append)
    parts = [np.frombuffer(head, np.uint8), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]
    sizes = np.array([len(parts), *map(len, parts)], np.int64)
    ends = _ends(sizes)
    packed = np.empty(ends[-1], np.uint8)
    packed[: sizes.nbytes] = sizes.view(np.uint8)
    for part, end in zip(parts, ends[1:], strict=True):
        packed[end - _padded(len(part)) : end][: len(part)] = part
    return packed


def _unpacked(told: Bytes) -> Any:
    sizes = told[:8].view(np.int64)
    sizes = told[: 8 * (int(sizes[0]) + 1)].view(np.int64)
    parts = [
        told[end - _padded(int(size)) : end][: int(size)] for size, end in zip(sizes[1:], _ends(sizes)[1:], strict=True)
    ]
    return pickle.loads(parts[0].tobytes(), buffers=parts[1:])


def _ends(sizes: npt.NDArray[np.int64]) -> list[int]:
    """Where the sizes and each part after the sizes end, in bytes."""
    return list(accumulate(_padded(int(size)) for size in (sizes.nbytes, *sizes[1:])))


def _padded(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
