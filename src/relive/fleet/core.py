"""What a table asks of its core, answered by several: draws are placed by agreed roots, keys say whose they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, final

import numpy as np
import numpy.typing as npt

from relive._core import Claims, CoreTable, mix_batches
from relive.errors import DeadlineExceeded, InvalidPriority, ReadOnly, TableClosed
from relive.fleet.agreement import Agreement, Exchange
from relive.fleet.errors import NotOverShards
from relive.fleet.pace import Pace, Wait, pace_of
from relive.fleet.placement import Roots, place, shared_point
from relive.fleet.shards import STALL_S, Places, Shard, Shards
from relive.fleet.totals import totals
from relive.fleet.writing import PacedWriterCore, emptiest
from relive.sources import DrawNumber
from relive.table_core import Normalise, WriterCore

__all__ = ["Drawn", "FleetCore", "FleetSelection"]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]
Outputs = list[tuple[str, str, tuple[int, ...], int, str]]

_LEAVES_BITS = 48  # of the position of a listing: the shard stands above


class FleetSelection(NamedTuple):
    """Columns of an index: what each shard's core made of them, and how their arrays look, the same of every shard."""

    number: int
    parts: list[Any]
    outputs: Outputs


class Held(NamedTuple):
    """What one shard has in flight for a draw. claims None: a reader's, which counts nowhere."""

    shard: Shard
    num_items: int
    claims: Claims | None
    number: DrawNumber


class Drawn(NamedTuple):
    """A draw that is in flight in its shards until it is committed or given back."""

    index_number: int
    call: int
    arrays: Arrays
    item_keys: Keys
    probabilities: Masses
    num_live_items: int
    held: list[Held]


class _Request(NamedTuple):
    """A draw to be made."""

    index_number: int
    selection: FleetSelection | None
    call: int
    wait: Wait
    where: Any
    is_final: bool  # its uses are not given back


class _Missed(Exception):
    """A shard did not give its items: what it had went, or it stalled."""

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        self.shard = shard


@final
class FleetCore:
    """A TableCore over shards that are mapped here. Any number of threads; calls of ranks that agree one after another.

    A call that changes items splits them by shard, all keys and priorities checked before the first shard hears of it.
    Items of a dead or stalled shard count as gone.
    """

    def __init__(self, shards: Shards, exchange: Exchange, root_age: int, local: int | None) -> None:
        self.shards = shards
        self._exchange = exchange
        self._local = local
        self._lock = threading.Lock()  # over the agreement of ranks
        self._numbers = threading.Lock()  # over the count of draws
        self.agreement = Agreement(shards, exchange, root_age)
        config = shards[0].table.config
        self._seed = config.seed
        self._paces = [pace_of(index.limiter) for index in config.index.values()]
        self._counts_uses = [index.max_times_sampled is not None for index in config.index.values()]
        self._call = 0

    # ---- drawing ---------------------------------------------------------------------------------------------------

    def select(self, index: int, names: list[str]) -> FleetSelection:
        """Resolves columns in every shard. Raises UnknownColumn, NotOverShards where items lie end to end."""
        parts: list[Any] = [shard.core.select(index, names) for shard in self.shards]
        outputs: Outputs = parts[0].outputs
        if len(self.shards) > 1 and any(per != "item" for *_, per in outputs):
            raise NotOverShards(
                "a ragged batch", "rows of several shards are not put end to end yet", "use layout='padded'"
            )
        return FleetSelection(index, parts, outputs)

    def where(self, index: int, text: str, operations: list[Any]) -> Any:
        """The condition of the only shard. Raises NotOverShards where there are more."""
        if len(self.shards) > 1:
            raise NotOverShards(
                "where=",
                "how much of a shard's mass passes is not known, so neither is its share of the draw",
                "give the condition to an index, Index(where=...), which draws from what passes",
            )
        return self.shards[0].core.where(index, text, operations)

    def sample(
        self, selection: FleetSelection, num_items: int, timeout_s: float, *, where: Any = None
    ) -> tuple[Arrays, Keys, Masses, int]:
        """One batch, drawn and counted."""
        drawn = self.hold(selection.number, selection, num_items, timeout_s, where)
        self.commit(drawn)
        return drawn.arrays, drawn.item_keys, drawn.probabilities, drawn.num_live_items

    def draw(self, index: int, num_items: int, timeout_s: float, *, where: Any = None) -> tuple[Keys, Masses, int]:
        """Keys, probabilities, live items."""
        # What is drawn for the last time is still gathered: its uses are not held back until a commit, which says that
        # the rows were read.
        drawn = self.hold(index, None, num_items, timeout_s, where, is_final=self._counts_uses[index])
        self.commit(drawn)
        return drawn.item_keys, drawn.probabilities, drawn.num_live_items

    def hold(
        self,
        index: int,
        selection: FleetSelection | None,
        num_items: int,
        timeout_s: float,
        where: Any = None,
        is_final: bool = False,
    ) -> Drawn:
        """Draws num_items, in flight until commit or give_back; is_final: handed out at once, shard by shard.

        A shard whose items went, or that does not answer within STALL_S, is left out: the draw is made again by the
        same roots without it. Raises DeadlineExceeded, RequestTooLarge, TableClosed.
        """
        wait, pace = Wait(timeout_s), self._paces[index]
        if self.closed:
            raise TableClosed()
        pace.check_draw(num_items)
        roots, call = self._begin(index, num_items, pace, wait)
        attempt = 0
        while True:
            if roots.bounds[-1] > 0.0:
                counts = self._counts(roots, num_items, call, attempt)
                try:
                    request = _Request(index, selection, call, wait, where, is_final or self.read_only)
                    return self._descend(request, counts, roots)
                except _Missed as missed:
                    roots = roots.without({missed.shard.number})
            elif wait.is_over:
                raise wait.exceeded(f"{num_items} items of shards that answer", self.num_items(index))
            else:
                wait.pause()
                roots = self.agreement.read(index)
            attempt += 1

    def commit(self, drawn: Drawn) -> None:
        """The draw is handed out. Raises TableClosed."""
        if self.closed:
            raise TableClosed()
        for shard, num_items, claims, _ in drawn.held:
            if claims is not None:
                shard.core.commit_batch(drawn.index_number, num_items, claims)

    def give_back(self, drawn: Drawn) -> None:
        """The draw is not handed out: items, uses and the numbers of draws go back."""
        self._return(drawn.index_number, drawn.held)
        with self._numbers:
            if self._exchange.world == 1 and self._call == drawn.call + 1:
                self._call = drawn.call

    def claim(self, index: int, keys: Keys, timeout_s: float) -> tuple[npt.NDArray[np.bool_], int]:
        """Which of the keys were claimed, each by its shard; live items."""
        wait, pace = Wait(timeout_s), self._paces[index]
        places = self.shards.places_of(keys, True)
        pace.check_draw(len(keys))
        while not pace.can_sample(roots := self.agreement.read(index), len(keys)):
            if wait.is_over:
                raise wait.exceeded(pace.needs(len(keys)), self.num_items(index))
            wait.pause()
        taken = np.zeros(len(keys), np.bool_)
        for shard, mine in self._split(places):
            seconds = min(wait.left_s, STALL_S)
            taken[mine] = self._asked(shard, partial(_claimed, index=index, keys=keys[mine], timeout_s=seconds), False)
        return taken, roots.num_items

    @property
    def num_ranks(self) -> int:
        """That draw together."""
        return self._exchange.world

    @property
    def next_call(self) -> int:
        """The number of the next draw."""
        return self._call

    def number_draws(self, number: int, timeout_s: float) -> None:
        """The next draw has this number, here and in every shard. Raises RanksDisagree where a rank says another."""
        self.agreement.check_alike(number, timeout_s)
        with self._numbers:
            self._call = number
        for shard in self.shards:
            shard.core.set_next_call(number)

    def _begin(self, index: int, num_items: int, pace: Pace, wait: Wait) -> tuple[Roots, int]:
        """Roots to draw by and the number of the draw, which a draw that is refused does not take."""
        is_group = self._exchange.world > 1
        # Ranks agree on one draw after another. Who draws alone waits for the limiter beside others, not behind them.
        if is_group and not self._lock.acquire(timeout=min(wait.left_s, threading.TIMEOUT_MAX)):
            raise wait.exceeded("its turn among this rank's draws", "")
        try:
            roots = self.agreement.roots(index, num_items, pace, wait)
            with self._numbers:
                call, self._call = self._call, self._call + 1
        finally:
            if is_group:
                self._lock.release()
        return roots, call

    def _counts(self, roots: Roots, num_items: int, call: int, attempt: int) -> list[int]:
        # Ranks that draw together share stream 0; a rank alone has its handle's own.
        world, stream = self._exchange.world, 0 if self._exchange.world > 1 else self.stream
        point = shared_point(self._seed, stream, call, attempt, world)
        return place(roots, num_items, point, self._exchange.rank, world)

    def _descend(self, request: _Request, counts: list[int], roots: Roots) -> Drawn:
        held: list[Held] = []
        parts: list[tuple[Arrays, Keys, Masses, float]] = []
        try:
            for at, count in enumerate(counts):
                if count == 0:
                    continue
                shard = self.shards[at]
                claims, number = None if request.is_final else Claims(), DrawNumber(shard.core)
                arrays, keys, masses = self._drawn(request, at, count, claims)
                number.taken()
                held.append(Held(shard, count, claims, number))
                parts.append((arrays, keys, masses, roots.shares[at]))
        except BaseException:
            self._return(request.index_number, held)
            raise
        if len(parts) == 1:
            arrays, keys, masses, share = parts[0]
            probabilities = masses if share == 1.0 else masses * share
        else:  # at permuted positions, so that any slice of the batch is a fair one
            shown = None if request.selection is None else request.selection.parts[0]
            arrays, keys, probabilities = mix_batches(shown, parts, self._seed, self.stream, request.call)
        return Drawn(request.index_number, request.call, arrays, keys, probabilities, roots.num_items, held)

    def _drawn(self, request: _Request, at: int, count: int, claims: Claims | None) -> tuple[Arrays, Keys, Masses]:
        """What one shard draws: stratified over its mass at that moment, at permuted positions."""
        shard, selection, where = self.shards[at], request.selection, request.where
        if not shard.is_live:  # since the roots were read
            raise _Missed(shard)
        is_only = len(self.shards) == 1
        seconds = request.wait.left_s if is_only else min(request.wait.left_s, STALL_S)
        try:
            if selection is None:
                keys, masses, _ = shard.core.draw(request.index_number, count, seconds, where=where, claims=claims)
                return [], keys, masses
            part = selection.parts[at]
            arrays, keys, masses, _ = shard.core.sample(part, count, seconds, where=where, claims=claims)
            return arrays, keys, masses
        except DeadlineExceeded as error:
            if is_only:
                raise
            if error.holder_pid is not None:
                shard.stalls()
            raise _Missed(shard) from None

    def _return(self, index: int, held: list[Held]) -> None:
        for shard, num_items, claims, number in reversed(held):
            if claims is not None and not shard.core.closed:
                shard.core.give_back_batch(index, num_items, claims)
            number.give_back()

    # ---- items by key ----------------------------------------------------------------------------------------------

    def gather(
        self, selection: FleetSelection, keys: Keys, out: Sequence[npt.NDArray[Any]] | None
    ) -> tuple[Arrays, npt.NDArray[np.bool_]]:
        """Columns by key, each from its shard; into `out` where that is given."""
        places = self.shards.places_of(keys, False)
        if len(self.shards) == 1 and (not len(keys) or self.shards[0].is_live):
            return self.shards[0].core.gather(selection.parts[0], keys, out)
        arrays = [_empty(output, len(keys)) for output in selection.outputs] if out is None else list(out)
        present = np.zeros(len(keys), np.bool_)
        for array in arrays:
            array.fill(0)  # what is gone reads as 0
        for at, shard in enumerate(self.shards):
            mine = np.flatnonzero(places == at)
            if mine.size and shard.is_live:
                some, present[mine] = shard.core.gather(selection.parts[at], np.ascontiguousarray(keys[mine]), None)
                _scatter(selection.outputs, arrays, mine, some)
        return arrays, present

    def update_priorities(self, index: int, keys: Keys, priorities: npt.NDArray[Any]) -> int:
        """Priorities go to the shard in the key; how many items were still there."""
        if len(self.shards) > 1:
            with np.errstate(over="ignore"):
                narrow = priorities.astype(np.float32)
            wrong = np.flatnonzero(~((narrow >= 0.0) & np.isfinite(narrow)))
            if wrong.size:
                raise InvalidPriority(int(wrong[0]), float(priorities[wrong[0]]))
        return self._summed(
            keys, lambda core, mine: core.update_priorities(index, keys[mine], np.ascontiguousarray(priorities[mine]))
        )

    def complete(self, keys: Keys, cells: npt.NDArray[np.uint8]) -> int:
        """Late columns of rows, each to its shard."""
        rows = cells.reshape(len(keys), -1) if len(keys) else cells.reshape(0, 1)
        return self._summed(
            keys, lambda core, mine: core.complete(keys[mine], np.ascontiguousarray(rows[mine]).reshape(-1))
        )

    def delete(self, keys: Keys) -> int:
        """Removes steps, each from its shard."""
        return self._summed(keys, lambda core, mine: core.delete(keys[mine]))

    def list_items(
        self, index: int, first: int, count: int, where: Any = None
    ) -> tuple[Keys, npt.NDArray[np.uint64], Masses, int]:
        """Of so many leaves of one shard after another; ages are each shard's own."""
        at, leaf = first >> _LEAVES_BITS, first & ((1 << _LEAVES_BITS) - 1)
        keys, ages, ranks, next_leaf = self.shards[at].core.list_items(index, leaf, count, where)
        if not self.shards[at].is_live:
            keys, ages, ranks, next_leaf = keys[:0], ages[:0], ranks[:0], 0
        if next_leaf == 0 and at + 1 < len(self.shards):
            return keys, ages, ranks, (at + 1) << _LEAVES_BITS
        return keys, ages, ranks, next_leaf and at << _LEAVES_BITS | next_leaf

    def create_items(
        self,
        index: int,
        windows: Keys,
        rows: Sequence[Keys | None],
        priorities: npt.NDArray[np.float32] | None,
        columns: Sequence[npt.NDArray[Any]],
        timeout_s: float,
    ) -> Keys:
        """Of the only shard: a table of more has no Explicit items."""
        return self.shards[0].core.create_items(index, windows, rows, priorities, columns, timeout_s)

    def _split(self, places: Places) -> Iterator[tuple[Shard, npt.NDArray[np.intp]]]:
        for at, shard in enumerate(self.shards):
            mine = np.flatnonzero(places == at)
            if mine.size and shard.is_live:
                yield shard, mine

    def _summed(self, keys: Keys, call: Callable[..., int]) -> int:
        if self.read_only:
            raise ReadOnly()
        places = self.shards.places_of(keys, True)
        if len(self.shards) == 1 and (not len(keys) or self.shards[0].is_live):
            return call(self.shards[0].core, mine=np.arange(len(keys)))
        if not len(keys):
            return call(self.shards[0].core, mine=np.arange(0))
        return sum(self._asked(shard, partial(call, mine=mine), 0) for shard, mine in self._split(places))

    def _asked(self, shard: Shard, call: Callable[[Any], Any], without: Any) -> Any:
        """What a shard answers; `without` where its lock is held by somebody who does not go on."""
        try:
            return call(shard.core)
        except DeadlineExceeded:
            if len(self.shards) == 1:
                raise
            shard.stalls()
            return without

    # ---- the table as a whole --------------------------------------------------------------------------------------

    def open_writer(self, num_lanes: int, single: bool, normalise: Normalise) -> WriterCore:
        """Lanes of the local shard, else of the emptiest one."""
        shard = emptiest(self.shards) if self._local is None else self.shards.numbered(self._local)
        return self.open_writer_of(shard, num_lanes, single, normalise)

    def open_writer_of(self, shard: Shard, num_lanes: int, single: bool, normalise: Normalise) -> WriterCore:
        """Lanes of this shard."""
        core: WriterCore = shard.core.open_writer(num_lanes, single, normalise)
        paced = [(number, pace) for number, pace in enumerate(self._paces) if pace.holds_inserts]
        if not paced:
            return core

        def has_room(num_steps: int) -> bool:
            for _, pace in paced:
                pace.check_insert(num_steps)
            return all(pace.can_insert(self.agreement.read(number), num_steps) for number, pace in paced)

        columns = shard.table.config.spec.columns.items()
        return PacedWriterCore(core, has_room, {name for name, column in columns if column.kind == "step"})

    def num_steps(self) -> int:
        """Live steps of shards that live. Raises TableClosed."""
        return sum(shard.core.num_steps() for shard in self.shards if shard.is_live or self.closed)

    def num_items(self, index: int) -> int:
        """Live items of shards that live. Raises TableClosed."""
        return sum(shard.core.num_items(index) for shard in self.shards if shard.is_live or self.closed)

    @property
    def policy_version(self) -> int:
        """The lowest of the shards that live, of all where none does."""
        return min(shard.core.policy_version for shard in self.shards.live or self.shards)

    def limiter(self, index: int) -> list[float]:
        """What acts on totals."""
        self.shards[0].core.limiter(index)  # raises TableClosed
        return list(self._paces[index].limiter.core_numbers())

    def set_limiter(self, index: int, numbers: npt.NDArray[np.float64]) -> NoReturn:
        """Refused: it would have to reach every handle."""
        raise NotOverShards(
            "set_limiter()", "a limiter over totals is what the shards were made with", "make them anew with another"
        )

    def priority_exponent(self, index: int) -> float:
        """That of the first shard."""
        return self.shards[0].core.priority_exponent(index)

    def set_priority_exponent(self, index: int, exponent: float) -> None:
        """In every shard, one after the other: masses of draws in between are of both."""
        for shard in self.shards:
            shard.core.set_priority_exponent(index, exponent)

    def set_policy_version(self, version: int) -> None:
        """In every shard, dead ones included where they are mapped."""
        for shard in self.shards:
            shard.core.set_policy_version(version)

    def clear(self) -> None:
        """Every shard."""
        for shard in self.shards:
            shard.core.clear()

    def check(self) -> None:
        """Every shard that lives."""
        for shard in self.shards.live:
            shard.core.check()

    def stats(self) -> dict[str, Any]:
        """Totals, and each shard."""
        return totals([(shard, shard.core.stats()) for shard in self.shards], self._paces)

    @property
    def metadata(self) -> bytes:
        """That of the first shard."""
        return self.shards[0].core.metadata

    @property
    def path(self) -> None:
        """There is none for all."""
        return None

    @property
    def stream(self) -> int:
        """Of the first shard's handle."""
        return self.shards[0].core.stream

    @property
    def read_only(self) -> bool:
        """Whether a shard was attached for reading only."""
        return any(shard.core.read_only for shard in self.shards)

    @property
    def closed(self) -> bool:
        """Whether close() was called, of this or of a shard's handle."""
        return any(shard.core.closed for shard in self.shards)

    def close(self) -> None:
        """Closes every handle."""
        self.shards.close()


def _claimed(core: CoreTable, index: int, keys: Keys, timeout_s: float) -> npt.NDArray[np.bool_]:
    return core.claim(index, keys, timeout_s)[0]


def _empty(output: tuple[str, str, tuple[int, ...], int, str], num_items: int) -> npt.NDArray[Any]:
    _, dtype, shape, axis, _ = output
    return np.empty((*shape[:axis], num_items, *shape[axis:]), dtype)


def _scatter(outputs: Outputs, arrays: Arrays, positions: npt.NDArray[Any], some: Arrays) -> None:
    for (_, _, _, axis, _), array, part in zip(outputs, arrays, some, strict=True):
        if axis == 0:
            array[positions] = part
        else:  # behind the axis of time
            array[:, positions] = part
