"""Mixture: batches of several sources in exact shares. Sources are indexes of one table, or several tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

from relive.checks.names import names_arguments, refuses_attributes
from relive.checks.values import integer, timeout
from relive.config.casting import as_array, as_keys
from relive.core.closing import Closing
from relive.core.request import DrawRequest
from relive.errors import InvalidConfig, InvalidPriority, NoPriorities, ShapeMismatch
from relive.over.joined import check_alike, join
from relive.over.mixed_draws import MixedDraws
from relive.over.mixed_source import MixedSource
from relive.over.mixture_state import go_on_from, state_of
from relive.over.shares import Shares
from relive.over.sources import sources_of
from relive.reading.batch import Batch
from relive.reading.batches import Batches
from relive.reading.columns import Selection
from relive.reading.draws import Draw
from relive.reading.holds import BatchSource
from relive.reading.rewards import ChangedSource, Rewarded, RewardFunction, check_reward
from relive.table.columns import asked_names

__all__ = ["Mixture"]

Keys = npt.NDArray[np.int64]

_MAX_ITEMS = 2**31 - 1


@refuses_attributes("Mixture")
@final
class Mixture(Closing):
    """Draws batches in which each source has its share of the items.

    After any number of batches of any sizes, the items that came from a source differ from its share of all items by
    less than 1. The mixture therefore carries the rounding of each source from batch to batch. This rounding belongs to
    this object, and depends on the sizes of its batches alone. A batch is drawn from all of its sources, or from
    none: if one source cannot give its part before the deadline, the draws of the others are given back. Their limiters
    and use counts are then as before the call.

    - batch.source, int64[B], is the source of each item, by its position in mixture.names. update_priorities uses it.
    - probabilities, float64[B]: the share of the item's source times the probability of the item within that source.
    - num_live_items counts the items of all sources. weights(beta) therefore corrects towards the uniform draw from all
      items.

    Any number of threads may call a mixture. The mixture makes one call at a time. The tables stay open when the
    mixture is closed.

    Args:
        shares: {name: share}, numbers > 0 that sum to 1.
        sources: one table whose indexes have these names; or {name: table} or {name: (table, index)}, with local or
            remote tables. All sources must have equal columns: names, dtypes and shapes.
        timeout_s: the default deadline of calls, in seconds; None: the first table's.
        seed: seed of the positions of items in a batch.

    Raises:
        InvalidConfig: an argument has a type or value that is not allowed, or the columns differ.
    """

    @names_arguments
    def __init__(
        self,
        shares: Mapping[str, float],
        sources: Any,
        *,
        timeout_s: float | None = None,
        seed: int = 0,
    ) -> None:
        self._shares = Shares(shares)
        self._sources = sources_of(self._shares.names, sources)
        self._numbers = [source.table.index_number(source.index_name) for source in self._sources]
        default = self._sources[0].table.timeout_s
        self._timeout_s = default if timeout_s is None else timeout(timeout_s)
        self._selected: dict[tuple[str, ...] | None, list[Selection]] = {}
        self._select(None)
        self._draws = MixedDraws(self._shares, self._sources, integer("seed", seed, 0))

    # ---- reading ---------------------------------------------------------------------------------------------------

    @names_arguments
    def sample(
        self,
        num_items: int,
        columns: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        where: str | Mapping[str, str] | None = None,
        reward: RewardFunction | Mapping[str, RewardFunction] | None = None,
    ) -> Batch:
        """Draws and gathers num_items items, each source its part, at random positions: any slice is a fair sub-batch.

        Args:
            num_items: items of the batch.
            columns: as for a table's sample.
            timeout_s: how long to wait until every source has its part; None: the mixture's default.
            where: a condition as for a table's sample, for all sources; or {name: condition} for some. The weights are
                then correct within each source, and not between sources.
            reward: a function as for a table's sample, for all sources with Hindsight; or {name: function} for some.
                Each source's function gets the items of this source alone.

        Raises:
            DeadlineExceeded: a source, which the error names, did not have its part in time. No source counts an
                item. The shares count the batch if the ranks of a table with an exchange agreed on its draw.
            ServiceUnavailable: a remote table does not answer. If this happens while a batch is counted, the parts of
                the other sources are counted.
            ReliveError: the other errors of a table's sample.

        Blocks: while it waits, no source has a draw in flight.
        """
        count = integer("num_items", num_items, 1, _MAX_ITEMS)
        selections = self._select(columns)
        rewarded = self._rewarded(selections, reward)
        requests = self._requests(selections, where)
        with self._draws.drawing(self._seconds(timeout_s)) as ends:
            mixed = self._draws.take(requests, count, ends)
            batch = self._draws.batch(mixed, selections[0].columns, ends)
            self._draws.commit(mixed, ends)  # last: a lack of memory before it counts nothing
        return batch if rewarded is None else rewarded(batch)

    @names_arguments
    def draw(
        self, num_items: int, timeout_s: float | None = None, *, where: str | Mapping[str, str] | None = None
    ) -> Draw:
        """Draws without moving data; blocks, counts and raises as sample does. gather(draw) returns the rows."""
        count = integer("num_items", num_items, 1, _MAX_ITEMS)
        requests = self._requests(None, where)
        with self._draws.drawing(self._seconds(timeout_s)) as ends:
            mixed = self._draws.take(requests, count, ends)
            places, source = self._draws.places(mixed)
            keys, probabilities = np.empty(count, np.int64), np.empty(count, np.float64)
            for number, drawn in mixed.drawn.items():
                keys[places[number]] = drawn.item_keys
                probabilities[places[number]] = drawn.probabilities * self._shares.shares[number]
            made = Draw(keys, probabilities, self._draws.num_live(mixed, ends), "").of_sources(source, self.names)
            self._draws.commit(mixed, ends)
            return made

    @names_arguments
    def gather(
        self, items: Draw | npt.ArrayLike, columns: Sequence[str] | None = None, *, source: npt.ArrayLike | None = None
    ) -> Batch:
        """The columns of a draw of this mixture, or of keys. Never waits and never counts.

        batch.present, bool[B], says which keys were still there.

        Args:
            items: a Draw of this mixture, or keys int64[B].
            columns: as for a table's sample.
            source: int64[B], the source of each key; None: that of the draw.

        Raises:
            InvalidConfig: the draw is one of a mixture with other sources, or in another order.
            ReliveError: the errors of a table's gather.
        """
        drawn = items if isinstance(items, Draw) else None
        keys = drawn.item_keys if drawn is not None else as_keys(items)
        if drawn is not None and source is None and drawn.source is not None and drawn.source_names != self.names:
            raise InvalidConfig("source_names of a Draw", f"those of this mixture: {self.names}", drawn.source_names)
        which = self._checked_source(keys, drawn.source if drawn is not None and source is None else source)
        selections = self._select(columns)
        present = np.zeros(len(keys), np.bool_)
        parts: list[list[npt.NDArray[Any]]] = []
        places: list[npt.NDArray[np.intp]] = []
        for number, (one, selection) in enumerate(zip(self._sources, selections, strict=True)):
            rows = np.flatnonzero(which == number)
            if len(rows) or (not parts and number == len(self._sources) - 1):  # without keys: arrays of no items
                some, present[rows] = one.table.gather_arrays(selection, keys[rows])
                parts.append(some)
                places.append(rows)
        shown = selections[0].columns
        arrays = join(shown, parts, places)
        if drawn is None:
            return Batch(shown, arrays, keys, None, 0, present).of_sources(which, self.names)
        made = Batch(shown, arrays, keys, drawn.probabilities, drawn.num_live_items, present)
        return made.of_sources(which, self.names)

    @names_arguments
    def batches(
        self,
        num_items: int,
        prefetch: int = 4,
        columns: Sequence[str] | None = None,
        device: Any = None,
        timeout_s: float | None = None,
        *,
        where: str | Mapping[str, str] | None = None,
        reward: RewardFunction | Mapping[str, RewardFunction] | None = None,
    ) -> Batches:
        """An iterator of batches that a background thread draws and gathers ahead; see Table.batches.

        Its batches and those of sample() share the position of the mixture. When it is closed, batches that are given
        back leave the position where it was, unless others were drawn meanwhile. So a program draws the same items
        however many batches were prefetched. The background thread calls the functions of reward=, as for sample().
        """
        count = integer("num_items", num_items, 1, _MAX_ITEMS)
        seconds = self._seconds(timeout_s)
        ready = integer("prefetch", prefetch, 1)
        selections = self._select(columns)
        rewarded = self._rewarded(selections, reward)
        requests = self._requests(selections, where)
        source: BatchSource = MixedSource(self._draws, requests, selections[0].columns, count, seconds)
        if rewarded is not None:
            source = ChangedSource(source, rewarded)
        return Batches(source, count, ready, device, seconds)

    # ---- changing what is there ------------------------------------------------------------------------------------

    @names_arguments
    def update_priorities(self, item_keys: npt.ArrayLike, priorities: Any, *, source: npt.ArrayLike) -> int:
        """Sets the priorities of items, each in the index of its source; returns how many were still there.

        Items of sources without priorities are skipped. Priorities and sources are all checked before the first
        priority is set. Keys are checked by each source, in the order of names, so a ForeignKey leaves the priorities
        that were set before.

        Args:
            item_keys: int64[B].
            priorities: [B], finite, >= 0.
            source: batch.source.

        Raises:
            InvalidPriority, InvalidConfig, ShapeMismatch: an argument has another type or value.
            ForeignKey: a key belongs to no item of its source.
            NoPriorities: no source has priorities.
            ReadOnly, TableClosed: a table changes nothing, or is closed.
        """
        keys = as_keys(item_keys)
        which = self._checked_source(keys, source)
        numbers = np.asarray(as_array("priorities", priorities), np.float64)
        if numbers.shape != keys.shape or numbers.ndim != 1:
            raise ShapeMismatch("priorities", keys.shape, numbers.shape)
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~(np.isfinite(numbers.astype(np.float32)) & (numbers >= 0.0)))
        if len(bad):
            raise InvalidPriority(int(bad[0]), float(numbers[bad[0]]))
        if not any(one.table.indexes[one.index_name].has_priorities for one in self._sources):
            raise NoPriorities(self._sources[0].index_name)
        there = 0
        for number, one in enumerate(self._sources):
            rows = np.flatnonzero(which == number)
            if len(rows) and one.table.indexes[one.index_name].has_priorities:
                there += one.table.update_priorities(keys[rows], numbers[rows], index=one.index_name)
        return there

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was handed out: of the shares, and of the draws of each source.

        Batches that batches() drew ahead come after it: a mixture that goes on from there draws them again.

        Blocks: for a call of another thread, and for a draw of batches() that is under way.
        """
        with self._draws.at_rest(self._timeout_s):
            return state_of(self._draws)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from the state of a mixture with the same shares. Call it before batches().

        Over equal tables the next batches are those that would have come. A source keeps its own next draw if its
        handle has another stream, or if a server numbers its draws. A state of an older version does not tell the
        stream of a source over shards, and sets its next draw. A source over several shards of this host draws the same
        items only if each of its draws has items of every shard.

        All ranks of a table with an exchange make this call at once, with states of one moment: between the same two
        batches. They take the number of the draw from the state, whatever the stream of each rank's handle is.

        After an error the mixture is as it was. If it has several tables with an exchange, those before the table that
        failed, in the order of names, have their next draw from the state, on every rank.

        Raises:
            InvalidConfig: the state is none, or of other shares; or batches() is open. A rank that raises it does not
                meet the others, which wait for it.
            RanksDisagree: the states of the ranks have unlike numbers. Every rank raises it.
            DeadlineExceeded: another rank is late. The retry with the same state takes up the call.
            RankLost: another rank has ended.

        Blocks: for a call of another thread. With an exchange, for the other ranks, at most the timeout_s of each such
            table, at least a second.
        """
        with self._draws.alone(self._timeout_s):
            go_on_from(self._draws, state)

    # ---- looking at it ---------------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources, in order: batch.source counts in it."""
        return self._shares.names

    @property
    def shares(self) -> dict[str, float]:
        """{name: share}, normalised so that their sum is 1."""
        return dict(zip(self._shares.names, self._shares.shares, strict=True))

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._draws.closed

    def close(self) -> None:
        """Ends its use; the tables stay open. Closing twice is harmless.

        Blocks: for a call of another thread, at most the mixture's timeout_s.
        """
        self._draws.close(self._timeout_s)

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        shares = ", ".join(f"{name}: {share:g}" for name, share in self.shares.items())
        return f"Mixture({shares}{state})"

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _seconds(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout(timeout_s)

    def _requests(self, selections: list[Selection] | None, where: str | Mapping[str, str] | None) -> list[DrawRequest]:
        """The request to each source, with the number of items left open.

        Raises InvalidConfig or UnknownColumn where a source cannot have its condition.
        """
        if isinstance(where, Mapping):
            unknown = [name for name in where if name not in self.names]
            if unknown:
                raise InvalidConfig("where of a Mixture", f"conditions of its sources {list(self.names)}", unknown[0])
        texts = [where.get(name) if isinstance(where, Mapping) else where for name in self.names]
        tables = zip(self._sources, self._numbers, texts, strict=True)
        conditions = [None if text is None else one.table.condition(number, text) for one, number, text in tables]
        chosen = [None] * len(conditions) if selections is None else [selection.core for selection in selections]
        asked = zip(self._numbers, chosen, conditions, strict=True)
        return [DrawRequest(number, 0, selection, condition) for number, selection, condition in asked]

    def _rewarded(self, selections: list[Selection], reward: Any) -> Rewarded | None:
        """The function that computes the rewards of a batch of these columns; None if no source replaces goals.

        Raises InvalidConfig or UnknownColumn if a source cannot have the rewards.
        """
        of_sources = {name: part.goals for name, part in zip(self.names, selections, strict=True) if part.goals}
        if isinstance(reward, Mapping):
            unknown = [name for name in reward if name not in of_sources]
            if unknown:
                expected = f"functions of its sources with Hindsight {list(of_sources)}"
                raise InvalidConfig("reward of a Mixture", expected, unknown[0])
        elif not of_sources:
            check_reward(None, reward)
        functions = {name: reward.get(name) if isinstance(reward, Mapping) else reward for name in of_sources}
        for name, goals in of_sources.items():
            check_reward(goals, functions[name])
        if all(function is None for function in functions.values()):
            return None
        numbered = [(self.names.index(name), goals, functions[name]) for name, goals in of_sources.items()]

        def rewarded(batch: Batch) -> Batch:
            for number, goals, function in numbered:
                goals.rewarded(batch, function, batch.source == number)
            return batch

        return rewarded

    def _select(self, columns: Sequence[str] | None) -> list[Selection]:
        """The same columns of every source. Raises UnknownColumn, and InvalidConfig if they differ."""
        asked = None if columns is None else asked_names(columns)
        found = self._selected.get(asked)
        if found is None:
            replaces = any(one.table.indexes[one.index_name].sampler.replaces_goals for one in self._sources)
            found = [one.table.select(one.index_name, asked, relabelled=replaces) for one in self._sources]
            for one, selection in zip(self._sources, found, strict=True):
                check_alike(self._sources[0].name, found[0], one.name, selection)
            if len(self._selected) < 256:
                self._selected[asked] = found
        return found

    def _checked_source(self, keys: Keys, source: Any) -> npt.NDArray[np.int64]:
        if source is None:
            raise InvalidConfig("source", "batch.source: of each key the position of its source in names", None)
        which = as_array("source", source)
        if which.shape != keys.shape or keys.ndim != 1:
            raise ShapeMismatch("source", keys.shape, which.shape)
        if which.dtype.kind not in "iu" or (len(which) and not 0 <= which.min() <= which.max() < len(self.names)):
            expected = f"integers from 0 to {len(self.names) - 1}: positions in {self.names}"
            raise InvalidConfig("source", expected, which[:8].tolist())
        return which.astype(np.int64, copy=False)
