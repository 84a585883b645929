"""A table's core over several shards: agreed roots place the draws, and each key contains the number of its shard."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, final

import numpy as np
import numpy.typing as npt

from relive._core import CoreSelection
from relive.core.request import DrawRequest
from relive.core.table_core import DrawnItems, Normalise, WriterCore
from relive.errors import InvalidConfig, ReadOnly, ServiceUnavailable, TableClosed
from relive.fleet.agreement import Agreement, Exchange
from relive.fleet.calls import Calls
from relive.fleet.draws.mixing import Outputs, mixed
from relive.fleet.draws.pace import Pace, Wait
from relive.fleet.draws.placement import Roots, home, place, shared_point, within
from relive.fleet.errors import NoLiveShard, NotOverShards
from relive.fleet.shards import STALL_S, Asked, Missed, Part, Shard, Shards, Short
from relive.fleet.totals import totals
from relive.fleet.writing import Inserted, PacedWriterCore, emptiest

__all__ = ["Drawn", "FleetCore", "FleetSelection"]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]

_USES_S = 0.02  # how long a shard whose uses are counted waits for items: others may have them
_LEAVES_BITS = 48  # low bits of a listing's position are the leaf, the bits above are the shard


class FleetSelection(NamedTuple):
    """Columns of an index: the selection of each shard's core, and the outputs, which are the same in every shard."""

    parts: list[Any]
    outputs: Outputs


class Drawn(NamedTuple):
    """A draw in flight in its shards, until it is committed or given back."""

    call: int
    arrays: Arrays
    item_keys: Keys
    probabilities: Masses
    num_live_items: int
    held: list[Part]


class _Making(NamedTuple):
    """A draw to make: its request, its number, and its deadline."""

    request: DrawRequest
    call: int
    wait: Wait


@final
class FleetCore:
    """A TableCore over shards, mapped here or on other hosts.

    Any number of threads may use it. Ranks that agree make their draws one after another.

    Draws are made here. `calls` makes every other call that goes to several shards (calls.py).
    """

    def __init__(self, shards: Shards, exchange: Exchange, root_age: int, local: int | None) -> None:
        self.shards = shards
        self.calls = Calls(shards)
        self._exchange = exchange
        self._local = local
        self._lock = threading.Lock()  # protects the agreement of ranks
        self._numbers = threading.Lock()  # protects the count of draws
        self.agreement = Agreement(shards, exchange, root_age)
        config = shards[0].table.config
        self._seed = config.seed
        self._timeout_s = config.timeout_s  # of calls that have no deadline of their own
        self._paces: list[Pace] = [index.limiter for index in config.index.values()]
        self._items = [index.items for index in config.index.values()]
        self._max_times = [index.max_times_sampled for index in config.index.values()]
        self._call = 0

    def set_patience(self, timeout_s: float) -> None:
        """Sets how long calls without a deadline of their own wait for answers that are on their way."""
        self._timeout_s = timeout_s
        for shard in self.shards:
            shard.set_patience(timeout_s, len(self.shards))

    # ---- drawing ---------------------------------------------------------------------------------------------------

    def select(self, index: int, names: list[str]) -> FleetSelection:
        """Resolves columns in every shard. Raises UnknownColumn."""
        alike: list[Any] = []
        parts: list[Any] = [shard.select(index, names, alike) for shard in self.shards]
        live = [part for part, shard in zip(parts, self.shards, strict=True) if shard.is_live]
        outputs: Outputs = next((part for part in parts if isinstance(part, CoreSelection)), (live or parts)[0]).outputs
        return FleetSelection(parts, outputs)

    def where(self, index: int, text: str, operations: list[Any]) -> list[Any]:
        """The condition, translated for each shard."""
        return [shard.core.where(index, text, operations) for shard in self.shards]

    def check_request(self, request: DrawRequest) -> None:
        """Raises RequestTooLarge for a draw that could wait for ever, and NotOverShards for one with a condition.

        The limiter must let pass all draws of all ranks that one read of the roots serves.
        """
        num_served = request.num_items * self._exchange.world * self.agreement.root_age
        self._paces[request.index_number].check_draw(num_served)
        where = request.condition
        if where is not None and len(self.shards) > 1:
            raise NotOverShards(
                "where= of a draw",
                "how much of a shard's mass passes is not known, so neither is its share of the draw",
                "give the condition to an index, Index(where=...), which draws from what passes",
            )

    def draw(self, request: DrawRequest, timeout_s: float) -> DrawnItems:
        """Draws one batch and counts it."""
        drawn = self.hold(request, timeout_s)
        self.commit(drawn)
        return drawn.arrays, drawn.item_keys, drawn.probabilities, drawn.num_live_items

    def hold(self, request: DrawRequest, timeout_s: float, arrives_s: float = 0.0) -> Drawn:
        """Draws items and keeps them in flight until commit or give_back.

        A draw of keys alone keeps items that it uses for the last time until they are gathered. A shard whose items
        went, that does not answer, or whose lock is not free for STALL_S, is left out: the draw is made again from the
        same roots without that shard.

        Args:
            request: the draw.
            timeout_s: how long to wait for the limiter, for items, and for rows that are on their way.
            arrives_s: how long to wait for rows that are on their way, if that is longer.

        Raises:
            DeadlineExceeded, RequestTooLarge, TableClosed, and NotOverShards for a condition.
        """
        self.check_request(request)
        wait, pace = Wait(timeout_s, arrives_s=arrives_s), self._paces[request.index_number]
        if self.closed:
            raise TableClosed()
        roots, call = self._begin(request.index_number, request.num_items, pace, wait)
        try:
            return self._drawn(_Making(request, call, wait), roots)
        except BaseException:
            self._return_number(call)
            raise

    def _drawn(self, making: _Making, roots: Roots) -> Drawn:
        """Draws by these roots.

        If that fails, reads the roots again until the draw succeeds or the deadline has passed.
        """
        call, wait = making.call, making.wait
        index, num_items = making.request.index_number, making.request.num_items
        attempt, is_anew = 0, False  # the first roots may be those of earlier draws
        room: dict[int, int] = {}  # by place: the uses that a shard has left, where it lacked some
        while True:
            placed = self._placed(index, roots, num_items, call, attempt, room) if roots.bounds[-1] > 0.0 else None
            if placed is not None:
                try:
                    return self._descend(making, *placed, roots.num_items)
                except Missed as missed:
                    if missed.is_late:
                        needs = f"{num_items} items, of which those of shard {missed.shard.number} are on their way"
                        raise wait.exceeded(needs, roots.num_items) from None
                    if isinstance(missed, Short) and self._shares_uses(index):
                        at = list(self.shards).index(missed.shard)
                        room[at] = self._room_of(making, at, placed[0][at] - 1)
                    else:
                        roots = roots.without({missed.shard.number})
                    self.agreement.forget(index)  # the root of that shard is outdated
            elif wait.is_over and is_anew:
                raise wait.exceeded(f"{num_items} items of shards that answer", self.num_items(index))
            else:
                if is_anew:
                    wait.pause()
                self.agreement.forget(index)
                roots, is_anew = self.agreement.read(index, wait.arrives_s), True
                room.clear()
            attempt += 1

    def commit(self, drawn: Drawn) -> None:
        """Counts the draw as handed out, in every shard or in none.

        If the uses of a part went back because its stream ended, the other parts go back, too. Only a stream that ends
        between the check of all parts and the commit of this one leaves the parts before it counted.

        A signal's handler that raises leaves no draw half counted: all parts are counted, and then the error goes on.

        Raises:
            TableClosed: the table was closed, which gave back all draws in flight.
            ServiceUnavailable: the uses of a part went back. The draw is over.
        """
        if self.closed:
            raise TableClosed()
        try:
            if len(drawn.held) > 1:
                for part in drawn.held:
                    part.check()
            for part in drawn.held:
                part.commit()
        except ServiceUnavailable:
            self.give_back(drawn)
            raise
        except BaseException:
            for part in drawn.held:
                with contextlib.suppress(ServiceUnavailable):
                    part.commit()
            raise

    def give_back(self, drawn: Drawn) -> None:
        """Gives the draw back: its items, its uses and the numbers of draws."""
        for part in reversed(drawn.held):
            part.give_back()
        self._return_number(drawn.call)

    def _return_number(self, call: int) -> None:
        """Gives the number to the next draw, unless another draw came in between.

        In a group the number is used up on every rank.
        """
        with self._numbers:
            if self._exchange.world == 1 and self._call == call + 1:
                self._call = call

    def claim(self, index: int, keys: Keys, timeout_s: float) -> tuple[npt.NDArray[np.bool_], int]:
        """Claims each key in its shard. Returns which keys were claimed, and the number of live items."""
        wait, pace = Wait(timeout_s), self._paces[index]
        if self.read_only:
            raise ReadOnly()
        self.shards.places_of(keys, self.calls.items_of(index))
        pace.check_draw(len(keys))
        while not pace.can_sample(roots := self.agreement.read(index, wait.arrives_s), len(keys)):
            if wait.is_over:
                raise wait.exceeded(pace.needs(len(keys)), self.num_items(index))
            wait.pause()
        return self.calls.claim(index, keys, wait.arrives_s), roots.num_items

    @property
    def num_ranks(self) -> int:
        """Number of ranks that draw together."""
        return self._exchange.world

    @property
    def next_call(self) -> int | None:
        """The number of the next draw; None if the owner of a shard numbers its draws."""
        return None if any(shard.table.next_draw is None for shard in self.shards) else self._call

    def number_draws(self, number: int, timeout_s: float) -> None:
        """Gives the next draw this number, here and in every shard.

        Raises RanksDisagree if another rank gives another number.
        """
        self.agreement.check_alike(number, timeout_s)
        with self._numbers:
            self._call = number
        for shard in self.shards:
            shard.table.number_draws(number)

    def _begin(self, index: int, num_items: int, pace: Pace, wait: Wait) -> tuple[Roots, int]:
        """The roots of a draw, and its number. A refused draw takes no number."""
        is_group = self._exchange.world > 1
        # Ranks agree on one draw after another. Threads of a handle that draws alone wait for the limiter in parallel.
        if is_group and not self._lock.acquire(timeout=min(wait.left_s, threading.TIMEOUT_MAX)):
            raise wait.exceeded("the end of this rank's earlier draws", "")
        try:
            roots = self.agreement.roots(index, num_items, pace, wait)
            with self._numbers:
                call, self._call = self._call, self._call + 1
        finally:
            if is_group:
                self._lock.release()
        return roots, call

    def _placed(
        self, index: int, roots: Roots, num_items: int, call: int, attempt: int, room: dict[int, int]
    ) -> tuple[list[int], Sequence[float]] | None:
        """Number of items of each shard, and its share. None if uses are counted and too few are left."""
        # Ranks that draw together share stream 0. A rank alone uses the stream of its handle.
        world, stream = self._exchange.world, 0 if self._exchange.world > 1 else self.stream
        point = shared_point(self._seed, stream, call, attempt, world)
        counts = place(roots, num_items, point, self._exchange.rank, world)
        most = self._max_times[index]
        if most is None or not self._shares_uses(index):
            return counts, roots.shares
        # A shard that is asked for too many items gives none. If counts are cut, they are the shares.
        items = self.shards.sharings[index].room
        uses = [most * items(root) if share else 0 for root, share in zip(roots.shards, roots.shares, strict=True)]
        cut = within(counts, [min(most, room.get(at, most)) for at, most in enumerate(uses)])
        if cut is None:
            return None
        return cut, (roots.shares if cut == counts else [count / num_items for count in cut])

    def _shares_uses(self, index: int) -> bool:
        """Whether uses are counted, and other shards give what one lacks."""
        return self._max_times[index] is not None and self._exchange.world == 1 and len(self.shards) > 1

    def _room_of(self, making: _Making, at: int, most: int) -> int:
        """Number of uses, up to `most`, that a shard has left: draws of keys that go back show it."""
        keys = making._replace(request=making.request.keys_only)
        held, found, step = list[Part](), 0, most
        try:
            while step and found < most:
                count = min(step, most - found)
                try:
                    part = self.shards[at].begin(self._asked(keys, at, count))
                    held.append(part)
                    part.take()
                    found += count
                except Short:
                    step //= 2
                except Missed:
                    return 0
        finally:
            for part in reversed(held):
                part.give_back()
        return found

    def _descend(self, making: _Making, counts: list[int], shares: Sequence[float], num_live_items: int) -> Drawn:
        request, held = making.request, list[Part]()
        parts: list[tuple[Arrays, Keys, Masses, float]] = []
        drawn_from = [at for at, count in enumerate(counts) if count]
        is_certain = self.shards.sharings[request.index_number].is_certain
        try:
            self.shards.prepare([self.shards[at] for at in drawn_from])
            for at in drawn_from:  # all shards are asked before the first wait
                held.append(self.shards[at].begin(self._asked(making, at, counts[at])))
            for at, part in zip(drawn_from, held, strict=True):
                parts.append((*part.take(), 1.0 if is_certain else shares[at]))
        except BaseException:
            for part in reversed(held):
                part.give_back()
            raise
        if len(parts) == 1:
            arrays, keys, masses, share = parts[0]
            probabilities = masses if share == 1.0 else masses * share
        else:  # at permuted positions, so that every slice of the batch is a fair sample
            outputs = [] if request.selection is None else request.selection.outputs
            shown = None if request.selection is None else request.selection.parts
            arrays, keys, probabilities = mixed(shown, outputs, parts, (self._seed, self.stream, making.call))
        return Drawn(making.call, arrays, keys, probabilities, num_live_items, held)

    def _asked(self, making: _Making, at: int, count: int) -> Asked:
        whole, is_only = making.request, len(self.shards) == 1
        seconds = making.wait.left_s
        if not is_only:
            seconds = min(seconds, _USES_S if self._shares_uses(whole.index_number) else STALL_S)
        request = whole._replace(
            num_items=count,
            selection=None if whole.selection is None else whole.selection.parts[at],
            condition=None if whole.condition is None else whole.condition[at],
        )
        is_read = whole.selection is not None
        return Asked(request, seconds, making.wait.arrives_s, self.read_only, is_read, is_only)

    # ---- items by key ----------------------------------------------------------------------------------------------

    def gather(
        self, selection: FleetSelection, keys: Keys, out: Sequence[npt.NDArray[Any]] | None
    ) -> tuple[Arrays, npt.NDArray[np.bool_]]:
        """Gathers columns by key, each key from its shard; into `out` if it is given."""
        return self.calls.gather(selection.parts, selection.outputs, keys, out)

    def update_priorities(self, index: int, keys: Keys, priorities: npt.NDArray[Any]) -> int:
        """Sets priorities in the shard of each key. Returns the number of items that were still present."""
        self._check_changes()
        return self.calls.update_priorities(index, keys, priorities)

    def complete(self, keys: Keys, cells: npt.NDArray[np.uint8]) -> int:
        """Writes late columns of rows, each row in its shard."""
        self._check_changes()
        return self.calls.complete(keys, cells)

    def delete(self, keys: Keys) -> int:
        """Removes steps, each from its shard."""
        self._check_changes()
        return self.calls.delete(keys)

    def _check_changes(self) -> None:
        if self.read_only:
            raise ReadOnly()

    def list_items(
        self, index: int, first: int, count: int, where: Any = None
    ) -> tuple[Keys, npt.NDArray[np.uint64], Masses, int]:
        """Lists up to `count` leaves of one shard after another. Ages are counted within each shard."""
        at, leaf = first >> _LEAVES_BITS, first & ((1 << _LEAVES_BITS) - 1)
        if first == 0 and len(self.shards) > 1:
            # Finds all silent shards at once. The steps have no root.
            self.agreement.read(index if index < len(self._paces) else 0, self._timeout_s)
        found = self.calls.list_items(at, index, leaf, count, None if where is None else where[at])
        keys, ages, ranks, next_leaf = found or (np.empty(0, np.int64), np.empty(0, np.uint64), np.empty(0), 0)
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
        """Creates items in the only shard. A table of several shards has no Explicit items."""
        return self.shards[0].core.create_items(index, windows, rows, priorities, columns, timeout_s)

    # ---- the table as a whole --------------------------------------------------------------------------------------

    def open_writer(self, num_lanes: int, single: bool, normalise: Normalise) -> WriterCore:
        """Opens lanes in the local shard, otherwise in the emptiest shard.

        Raises InvalidConfig if an index has groups and no shard is named: members in several shards form no group.
        """
        if self._local is not None:
            return self.open_writer_of(self.shards.numbered(self._local), num_lanes, single, normalise)
        if len(self.shards) > 1 and any(items.is_grouped for items in self._items):
            expected = (
                "a number, because the members of a group meet in one shard only: writer(shard=), where"
                " table.shard_of_group(value) gives the same shard in every process, or attach(local=)"
            )
            raise InvalidConfig("shard of a writer of groups", expected, None)
        return self.open_writer_of(emptiest(self.calls.stats()), num_lanes, single, normalise)

    def open_writer_of(self, shard: Shard, num_lanes: int, single: bool, normalise: Normalise) -> WriterCore:
        """Opens lanes in this shard."""
        core: WriterCore = shard.core.open_writer(num_lanes, single, normalise)
        if not any(pace.stops_inserts for pace in self._paces):
            return core
        columns = shard.table.config.spec.columns.items()
        return PacedWriterCore(core, self._has_room, {name for name, column in columns if column.kind == "step"})

    def _has_room(self, inserted: Inserted, left_s: float) -> bool:
        """Whether the limiters let an insert pass, by the totals. Raises RequestTooLarge if they never do."""
        paced = []
        for number, (pace, items) in enumerate(zip(self._paces, self._items, strict=True)):
            if pace.stops_inserts:
                paced.append((number, pace, inserted.num_ends if items.end_with_episodes else inserted.num_steps))
        for _, pace, num_items in paced:
            pace.check_insert(num_items)
        roots = {number: self.agreement.read(number, left_s) for number, _, _ in paced}
        return all(pace.can_insert(roots[number], num_items) for number, pace, num_items in paced)

    def shard_of_group(self, value: int) -> int:
        """The number of the live shard for groups of this value. Raises NoLiveShard."""
        live = [shard.number for shard in self.shards.live]
        if not live:
            raise NoLiveShard(len(self.shards))
        return home(value, live)

    def num_steps(self) -> int:
        """Live steps of live shards. Raises TableClosed."""
        return self._sum_of("num_steps")

    def num_items(self, index: int) -> int:
        """Live items of live shards. Raises TableClosed."""
        return self._sum_of("num_items", index)

    def _sum_of(self, call: str, *values: Any) -> int:
        if self.closed:
            raise TableClosed()
        return int(sum(self.calls.of_live(call, *values)))

    @property
    def policy_version(self) -> int:
        """The lowest policy version of the live shards; of all shards if none is live."""
        known: list[int] = self.calls.of_live("policy_version")
        return min(known or [int(told["policy_version"]) for _, told in self.calls.stats()])

    def limiter(self, index: int) -> list[float]:
        """The limiter that acts on totals, as numbers."""
        if self.closed:
            raise TableClosed()
        return list(self._paces[index].core_numbers())

    def set_limiter(self, index: int, numbers: npt.NDArray[np.float64]) -> NoReturn:
        """Always raises NotOverShards: the new limiter would have to reach every handle."""
        raise NotOverShards(
            "set_limiter()", "a limiter over totals is what the shards were made with", "make them again with another"
        )

    def priority_exponent(self, index: int) -> float:
        """The exponent of the first live shard."""
        return (self.shards.live or list(self.shards))[0].core.priority_exponent(index)

    def set_priority_exponent(self, index: int, exponent: float) -> None:
        """Sets the exponent in every shard, one after another. Draws in between mix masses of both exponents.

        Raises before the first change: ServiceUnavailable if a shard of another host does not answer, DeadlineExceeded
        if the lock of a shard is not free, and InvalidConfig if a shard refuses the exponent.
        """
        self._check_changes()
        told = self.calls.of_all("priority_exponent", index)
        if exponent != 0.0 and 0.0 in told and any(told):  # those that forgot their priorities refuse
            self.shards[told.index(0.0)].ask("set_priority_exponent", index, exponent).take()
        self.calls.change_all("set_priority_exponent", index, exponent)

    def set_policy_version(self, version: int) -> None:
        """Sets the policy version in every shard.

        Dead mapped shards get it too; shards of other hosts get it when they answer.
        """
        self._check_changes()
        self.calls.of_all("set_policy_version", version)

    def clear(self) -> None:
        """Clears every shard.

        Raises before the first change: ServiceUnavailable if a shard of another host does not answer, DeadlineExceeded
        if the lock of a shard is not free.
        """
        self._check_changes()
        self.calls.change_all("clear")

    def check(self) -> None:
        """Checks every live shard."""
        self.calls.of_live("check")

    def stats(self) -> dict[str, Any]:
        """The totals, and the statistics of each shard."""
        if self.closed:
            raise TableClosed()
        return totals(self.calls.stats(), self._paces)

    @property
    def metadata(self) -> bytes:
        """The metadata of the first shard."""
        return self.shards[0].core.metadata

    @property
    def path(self) -> None:
        """None: there is no path for all shards."""
        return None

    @property
    def stream(self) -> int:
        """The random stream of the first shard's handle."""
        return self.shards[0].stream

    @property
    def read_only(self) -> bool:
        """Whether any shard was attached read-only."""
        return any(shard.core.read_only for shard in self.shards)

    @property
    def closed(self) -> bool:
        """Whether this core or the handle of a shard was closed."""
        return any(shard.core.closed for shard in self.shards)

    def close(self) -> None:
        """Closes the handles of all shards."""
        self.shards.close()
