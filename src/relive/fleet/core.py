"""A table's core over several shards: agreed roots place the draws, and each key contains the number of its shard."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, final

import numpy as np
import numpy.typing as npt

from relive._core import CoreSelection
from relive.core.one_call import OneCall
from relive.core.request import DrawRequest
from relive.core.table_core import DrawnItems, Normalise, WriterCore
from relive.errors import DeadlineExceeded, InvalidConfig, ReadOnly, TableClosed
from relive.fleet.agreement import Exchange
from relive.fleet.calls import Calls, totals
from relive.fleet.drawing import Drawing
from relive.fleet.draws.mixing import Outputs
from relive.fleet.draws.pace import Pace, Wait, most_insertable
from relive.fleet.draws.placement import Roots, home
from relive.fleet.errors import NoLiveShard, NotOverShards
from relive.fleet.shards import Missed, Shard, Shards
from relive.fleet.writing import PacedWriterCore, emptiest, made_as_let_in
from relive.writing.blocks import Inserted
from relive.writing.new_items import NewItems

__all__ = ["FleetCore", "FleetSelection"]

Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]

_LEAVES_BITS = 48  # low bits of a listing's position are the leaf, the bits above are the shard


class _NewItems(NamedTuple):
    """Items that a limiter may let in: their index, their number, and the number of their shard."""

    index_number: int
    num_items: int
    shard: int


class FleetSelection(NamedTuple):
    """Columns of an index: the selection of each shard's core, and the outputs, which are the same in every shard."""

    parts: list[Any]
    outputs: Outputs


@final
class FleetCore:
    """A TableCore over shards, mapped here or on other hosts.

    Any number of threads may use it. `drawing` makes the draws (drawing.py). `calls` makes every other call that goes
    to several shards (calls.py).
    """

    def __init__(self, shards: Shards, exchange: Exchange, root_age: int, local: int | None) -> None:
        self.shards = shards
        self.calls = Calls(shards)
        self.drawing = Drawing(shards, self.calls, exchange, root_age)
        self.agreement = self.drawing.agreement
        self._local = local
        config = shards[0].table.config
        self._timeout_s = config.timeout_s  # of calls that have no deadline of their own
        self._paces: list[Pace] = [index.limiter for index in config.index.values()]
        self._items = [index.items for index in config.index.values()]
        # Explicit items are made by create_items(). Their limiters do not stop steps.
        self._stops_steps = [
            pace.stops_inserts and not items.is_explicit for pace, items in zip(self._paces, self._items, strict=True)
        ]

    def set_patience(self, timeout_s: float) -> None:
        """Sets how long calls without a deadline of their own wait for answers that are on their way."""
        self._timeout_s = timeout_s
        for shard in self.shards:
            shard.set_patience(timeout_s, len(self.shards))

    # ---- drawing ---------------------------------------------------------------------------------------------------

    def select(self, index: int, names: list[str]) -> FleetSelection:
        """Resolves columns in every shard.

        Raises UnknownColumn, and ServiceUnavailable if this process has to ask a shard that then does not answer.
        """
        alike: list[Any] = []
        live_first = sorted(self.shards, key=lambda shard: not shard.is_live)
        told = {shard.number: shard.select(index, names, alike) for shard in live_first}
        parts = [told[shard.number] for shard in self.shards]
        mapped = next((part for part in parts if isinstance(part, CoreSelection)), parts[0])
        return FleetSelection(parts, mapped.outputs)

    def where(self, index: int, text: str, operations: list[Any]) -> list[Any]:
        """The condition, translated for each shard."""
        return [shard.core.where(index, text, operations) for shard in self.shards]

    def draw(self, request: DrawRequest, timeout_s: float) -> DrawnItems:
        """Draws one batch and counts it."""
        drawn = self.drawing.hold(request, timeout_s)
        self.drawing.commit(drawn)
        return drawn.arrays, drawn.item_keys, drawn.probabilities, drawn.num_live_items

    def claim(self, index: int, keys: Keys, timeout_s: float) -> tuple[npt.NDArray[np.bool_], int]:
        """Claims each key in its shard. Returns which keys were claimed, and the number of live items."""
        wait, pace = Wait(timeout_s), self._paces[index]
        if self.read_only:
            raise ReadOnly()
        self.shards.places_of(keys, self.calls.items_of(index), in_parts=True)
        pace.check_draw(len(keys))
        while not pace.can_sample(roots := self.agreement.read(index, wait.arrives_s), len(keys)):
            left_s = wait.left_s
            self.calls.drop_overdue(index, roots.shards, left_s)
            if left_s == 0.0:
                raise wait.exceeded(pace.needs(len(keys)), pace.has(roots))
            wait.pause()
        try:
            return self.calls.claim(index, keys, wait.arrives_s), roots.num_items
        except DeadlineExceeded as error:  # it has the wait of its last part alone
            raise DeadlineExceeded(error.needs, error.has, wait.waited_s, error.holder_pid) from None

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
        core, pace = self.shards[0].core, self._paces[index]
        acts_here = pace.stops_inserts and not pace.bounds_items  # else it acts in the shard, or nowhere
        if not acts_here or not len(windows):
            return core.create_items(index, windows, rows, priorities, columns, timeout_s)
        number = self.shards[0].number
        return made_as_let_in(
            NewItems(windows, list(rows), priorities, list(columns)),
            lambda part, left_s: core.create_items(index, *part, left_s),
            lambda count, left_s: self._lets_in([_NewItems(index, count, number)], left_s),
            Wait(timeout_s),
        )

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
        paced = [pace for pace, stops in zip(self._paces, self._stops_steps, strict=True) if stops]
        if not paced:
            return core
        has_own_limit = any(pace.bounds_items for pace in paced)
        return PacedWriterCore(
            core,
            partial(self._has_room, shard.number),
            shard.table.config.spec.columns,
            is_single=single,
            has_own_limit=has_own_limit,
        )

    def _has_room(self, shard: int, inserted: Inserted, left_s: float) -> bool:
        """Whether the limiters let in an insert of a shard, by the totals. Raises RequestTooLarge if they never do."""
        asked = []
        for number, (pace, items) in enumerate(zip(self._paces, self._items, strict=True)):
            if self._stops_steps[number]:
                num_items = inserted.num_ends if items.end_with_episodes else inserted.num_steps
                owed = most_insertable(pace, inserted.num_owed) if items.end_with_episodes else 0
                asked.append(_NewItems(number, max(num_items, owed), shard))
        return self._lets_in(asked, left_s, is_whole=True)

    def _lets_in(self, asked: Sequence[_NewItems], left_s: float, is_whole: bool = False) -> bool:
        """Whether the totals have room for items. Has overdue items dropped.

        is_whole: raises RequestTooLarge at once if a limiter refuses the items and will never let them in together. The
        first fill lets in more items than fit the window, so only a limiter that refuses them is asked.
        """
        with OneCall():
            return self._let_in(asked, left_s, is_whole)

    def _let_in(self, asked: Sequence[_NewItems], left_s: float, is_whole: bool) -> bool:
        """See _lets_in. Every question has its time from the beginning of the look."""
        began = time.monotonic()
        refusing = self._refusing(asked, left_s)
        if is_whole:
            num_items = {one.index_number: one.num_items for one in asked}
            for number, _ in refusing:
                self._paces[number].check_insert(num_items[number])
        for number, roots in refusing:
            self.calls.drop_overdue(number, roots.shards, left_s)
        have_dropped = any(self.calls.has_dropped(number, began) for number, _ in refusing)  # also other threads
        return not refusing or (have_dropped and not self._refusing(asked, left_s))

    def _refusing(self, asked: Sequence[_NewItems], left_s: float) -> list[tuple[int, Roots]]:
        """The indexes whose limiters refuse, with the roots that say so."""
        read = [(one, self._totals(one, left_s)) for one in asked]
        return [
            (one.index_number, roots)
            for one, roots in read
            if not self._paces[one.index_number].can_insert(roots, one.num_items)
        ]

    def _totals(self, asked: _NewItems, left_s: float) -> Roots:
        """The roots by which a limiter lets items in.

        The items of a dead shard do not count as live, so the rows of its writers would never end a first fill. These
        writers therefore wait as if all shards lived. A limiter that bounds items acts in the shard's region, too.
        """
        roots = self.agreement.read(asked.index_number, left_s)
        is_dead = any(root.is_dead and root.shard == asked.shard for root in roots.shards)
        return roots.with_dead() if is_dead and not self._paces[asked.index_number].bounds_items else roots

    def shard_of_group(self, value: int) -> int:
        """The number of the live shard for groups of this value. Raises NoLiveShard and TableClosed."""
        if self.closed:
            raise TableClosed()
        live = [shard.number for shard in self.shards.live]
        if not live:
            raise NoLiveShard(len(self.shards))
        return home(value, live)

    def num_steps(self) -> int:
        """Live steps of live shards. Raises TableClosed."""
        return self.calls.sum_of_live("num_steps")

    def num_items(self, index: int) -> int:
        """Live items of live shards. Raises TableClosed."""
        return self.calls.sum_of_live("num_items", index)

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
        """The exponent of the first live shard that answers."""
        known: list[float] = self.calls.of_live("priority_exponent", index)
        return known[0] if known else self.shards[0].core.priority_exponent(index)

    def set_priority_exponent(self, index: int, exponent: float) -> None:
        """Sets the exponent in every shard, one after another. Draws in between mix masses of both exponents.

        Raises before the first change: ServiceUnavailable if a shard of another host does not answer, DeadlineExceeded
        if the lock of a shard is not free, and InvalidConfig if a shard refuses the exponent.
        """
        self._check_changes()
        with OneCall():
            told = self.calls.of_all("priority_exponent", index)
            if exponent != 0.0 and 0.0 in told and any(told):
                self._ask_forgetful(index, exponent)
            self.calls.change_all("set_priority_exponent", index, exponent)

    def _ask_forgetful(self, index: int, exponent: float) -> None:
        """Asks the shards that forgot their priorities, one after another, for an exponent. Raises their refusal.

        A shard that does not answer is left out: a change of all shards is refused before the first one changes.
        """
        for shard in self.shards:
            with contextlib.suppress(Missed):
                if shard.ask("priority_exponent", index).take() == 0.0:
                    shard.ask("set_priority_exponent", index, exponent).take()

    def set_policy_version(self, version: int) -> None:
        """Sets the policy version in every shard.

        Dead mapped shards get it too. Shards of other hosts get it when they answer. A mapped shard whose lock is stuck
        gets it with a later call of this handle, after the lock is free.
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
        return self.shards.read_only

    @property
    def closed(self) -> bool:
        """Whether this core or the handle of a shard was closed."""
        return self.shards.closed

    def close(self) -> None:
        """Closes the handles of all shards."""
        self.shards.close()
