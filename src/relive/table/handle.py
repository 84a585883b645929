"""What every handle on a table does with the core below it, wherever that core is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from relive.checks.names import MISSING, names_arguments, refuse_unknown, refuses_attributes, refuses_unknown
from relive.checks.values import finite, integer, timeout
from relive.config.casting import as_array, as_buffers, as_keys, cast
from relive.config.explicit import Explicit
from relive.config.index import Index, check_min_sizes
from relive.config.items import Items
from relive.config.limiters import Limiter, Queue, SamplesPerInsert, limiter_of
from relive.config.samplers import Prioritized
from relive.config.spec import DERIVED_NAMES, StepSpec
from relive.config.table_config import TableConfig
from relive.config.where import where_of
from relive.core.closing import Closing
from relive.core.loadable import Loadable
from relive.core.request import DrawRequest
from relive.core.table_core import TableCore
from relive.errors import InvalidConfig, ReliveError, RequestTooLarge, ShapeMismatch, UnknownColumn
from relive.reading.batch import Batch, Columns, Selection, TimeAxis
from relive.reading.batches import Batches, BatchSource
from relive.reading.draws import Draw
from relive.reading.held_draws import HeldDraws
from relive.reading.own_draws import Order, checked_order, listed
from relive.reading.rewards import RelabelledSource, RewardFunction, extra_columns, goals_of
from relive.table.stats import TableStats, table_stats
from relive.writing.late_rows import LateRows
from relive.writing.new_items import new_items

__all__ = ["TableHandle", "explicit_index"]

Keys = npt.NDArray[np.int64]

_MAX_SELECTIONS = 256  # that a handle remembers; of conditions as many
_MAX_ITEMS = 2**31 - 1
_INT64 = np.dtype(np.int64)
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


@refuses_attributes("Table")
class TableHandle(Closing, Loadable):
    """Reads and changes a table through its core: a region of this machine's memory, or messages to another machine.

    A subclass says where the core comes from, who writes, and what runs ahead. Any number of threads.
    """

    def _bind(self, core: TableCore, config: TableConfig, timeout_s: float) -> None:
        self._core = core
        self._core_draw = core.draw
        self._config = config
        self._spec = config.spec
        self._index_names = tuple(config.index)
        self._timeout_s = timeout_s
        self._selections: dict[tuple[str | None, tuple[str, ...] | None], Selection] = {}
        self._conditions: dict[tuple[int, str], Any] = {}
        self._late = LateRows(config.spec)
        self._default_selection = self.select(None, None)

    def _bind_to(self, core: TableCore, timeout_s: float | None) -> None:
        # To a core that is open already: what the table is comes from its metadata. Closes it where that is foreign.
        try:
            config = TableConfig.from_metadata(core.metadata)
        except ReliveError:
            core.close()
            raise
        self._bind(core, config, config.timeout_s if timeout_s is None else timeout_s)

    # ---- reading ---------------------------------------------------------------------------------------------------

    @refuses_unknown
    def sample(
        self,
        num_items: int,
        columns: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
        where: str | None = None,
        reward: RewardFunction | None = None,
        **unknown: NoReturn,
    ) -> Batch:
        """Draws num_items items and gathers them, in random order: any slice is a fair sub-batch.

        With replacement; none twice in a batch where the index is made with replacement=False.
        columns: names ('a/b' and groups too) of declared columns, next_<state>, discount, terminated, truncated,
        episode_step, first, lane, policy_version, staleness, num_steps; None: all declared, next_<state> and discount.
        Of Sequences and Episodes mask, too; None: all declared, discount and mask; ragged ones always have offsets. Of
        Explicit items 'window/column', or a window's name; None: their windows' columns and masks, and their own.
        where: a condition such as 'reward > 0 and lane < 4' over scalar columns of the step that the item's key names,
        and what a step has by itself (docs/where.md): an item that does not pass is drawn anew, and not counted; those
        that come are in proportion to mass among those that pass. probabilities are mass / total over all items, before
        the condition: how much of the mass passes is not known. weights() normalised over the batch needs no more.
        reward: of an index with Hindsight, function(achieved [R, ...], goal [R, ...], batch) -> [R]: the rewards of
        the R items that got another goal, of next_<achieved> and that goal; batch has those items. Called if R > 0.
        Blocks until the limiter allows it and items are there, at most timeout_s. Raises DeadlineExceeded, RareItems
        (too few pass; nothing is counted), WaitsForItself, RequestTooLarge, UnknownColumn, InvalidConfig, TableClosed.
        Cost: O(num_items log N) and one copy of the rows; where a share s of the mass passes, 1 / s as many draws.
        """
        if unknown:
            refuse_unknown(self.sample, unknown)
        selection = self._default_selection if columns is None and index is None else self.select(index, columns)
        if type(num_items) is not int or not 0 < num_items <= _MAX_ITEMS:
            if num_items is MISSING:
                refuse_unknown(self.sample, unknown)
            num_items = integer("num_items", num_items, 1, _MAX_ITEMS)
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        _, shown, _, goals, plain = selection
        if goals is not reward:
            _check_reward(selection, reward)
        request = plain.get(num_items) if where is None else None
        if request is None:
            request = self._request(selection, num_items, where)
        try:
            arrays, keys, probabilities, num_live = self._core_draw(request, seconds)
        except RequestTooLarge as error:
            raise self._explained(error, index) from None
        batch = Batch(shown, arrays, keys, probabilities, num_live)
        return batch if goals is None else goals.rewarded(batch, reward)

    @names_arguments
    def draw(
        self, num_items: int, timeout_s: float | None = None, *, index: str | None = None, where: str | None = None
    ) -> Draw:
        """Draws without moving data; blocks, counts and raises as sample does. gather(draw) brings the rows."""
        number = self.index_number(index)
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        count = integer("num_items", num_items, 1, _MAX_ITEMS)
        request = DrawRequest(number, count, None, None if where is None else self.condition(number, where))
        try:
            _, keys, probabilities, num_live = self._core_draw(request, seconds)
        except RequestTooLarge as error:
            raise self._explained(error, index) from None
        return Draw(keys, probabilities, num_live, self._index_names[number])

    @names_arguments
    def gather(
        self,
        items: Draw | npt.ArrayLike,
        columns: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
        *,
        index: str | None = None,
    ) -> Batch:
        """The columns of a Draw, or of keys int64[B]. Never waits for the limiter and never counts.

        batch.present[B] says which were still there. out: an earlier batch or {flat name: array} whose memory is used
        again; of Episodes arrays with all max_length + bootstrap rows, which no batch shows; of ragged ones there is
        none, an item whose key is gone has no rows. Raises ForeignKey, InvalidConfig, ShapeMismatch, DtypeMismatch,
        UnknownColumn, TableClosed.
        """
        drawn = items if isinstance(items, Draw) else None
        if index is None and drawn is not None:
            index = drawn.index
        selection = self.select(index, columns)
        keys = drawn.item_keys if drawn is not None else as_keys(items)
        if out is not None and selection.columns.is_ragged:
            raise InvalidConfig("out of ragged items", "None: how many rows they have is known when they are read", out)
        buffers = None if out is None else as_buffers(out, selection.core.outputs, len(keys))
        arrays, present = self._core.gather(selection.core, keys, buffers)
        if drawn is None:
            return Batch(selection.columns, arrays, keys, None, 0, present)
        num_live = drawn.num_live_items or max(1, self._core.num_items(selection.number))  # of one's own draw
        return Batch(selection.columns, arrays, keys, drawn.probabilities, num_live, present)

    @names_arguments
    def claim(self, own: Draw, timeout_s: float | None = None) -> Draw:
        """Counts a Draw.of(...) as draw() would have counted it; returns what of it was there, in its order.

        Blocks until the limiter allows so many items, at most timeout_s, and counts those that come back: where the
        index has max_times_sampled each of them is used once more (a key that comes twice, twice), under the lock; an
        item that is gone or used up is not among them and counts nowhere. An error counts nothing. Give the result to
        gather. Raises DeadlineExceeded, WaitsForItself, RequestTooLarge, ForeignKey, InvalidConfig, ReadOnly,
        TableClosed. Cost: one hold of the lock for some 256 items.
        """
        if not isinstance(own, Draw):
            raise InvalidConfig("own", "a Draw, as Draw.of(keys, probabilities) makes it", own)
        number = self.index_number(own.index)
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        try:
            taken, num_live = self._core.claim(number, own.item_keys, seconds)
        except RequestTooLarge as error:
            raise self._explained(error, own.index) from None
        return Draw(own.item_keys[taken], own.probabilities[taken], num_live, self._index_names[number])

    @names_arguments
    def keys(
        self, index: str | None = None, order: Order = "age", where: str | None = None, page_size: int = 65_536
    ) -> Iterator[Keys]:
        """The keys of an index, in pages of int64[page_size] (the last is shorter), in order; none where it is empty.

        order: 'age', what came first first (of rows within page length x open lanes steps, as Fifo has it);
        'priority', what the sampler prefers first, of equal ones the oldest: for samplers that look at priorities.
        where: a condition as a draw has it.
        The list is made by this call, without the lock, a part of the index at a time. What lives throughout the call
        is there exactly once; what comes meanwhile may be missing, what goes meanwhile, or before its page is read, may
        be there: gather says which keys are absent. Each item stands where its priority was when it was looked at.
        Raises InvalidConfig, UnknownColumn, TableClosed. Cost: a pass over all slots, 24 bytes an item and a sort.
        """
        number = self.index_number(index)
        name = self._index_names[number]
        by_priority = checked_order(order, name, self._config.index[name])
        size = integer("page_size", page_size, 1, _MAX_ITEMS)
        found = listed(self._core, number, by_priority, None if where is None else self.condition(number, where))
        return (found[at : at + size] for at in range(0, len(found), size))

    @names_arguments
    def batches(
        self,
        num_items: int,
        prefetch: int = 4,
        columns: Sequence[str] | None = None,
        device: Any = None,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
        where: str | None = None,
        reward: RewardFunction | None = None,
    ) -> Batches:
        """An iterator of batches that a background thread draws and gathers ahead, to be used in a `with` block.

        prefetch: batches that may wait (at least 1). device: e.g. "cuda"; batches come as torch tensors there; "cpu" as
        tensors here; None as numpy arrays. timeout_s: how long next() waits. where: as of sample, of every batch; where
        too few pass next() raises RareItems, and the next one tries again. reward: as of sample; it is called on the
        background thread. Else as sample.
        Of a Tiered table prefetch counts those whose rows are being read, too: the more are drawn ahead, the more of
        their rows are read once for several batches, and the older the table is that they were drawn from. Of a remote
        table up to `prefetch` batches are asked for before the first is used, on one stream.
        """
        selection = self.select(index, columns)
        count = integer("num_items", num_items, 1, _MAX_ITEMS)
        limiter = self.limiter(self._index_names[selection.number])
        if isinstance(limiter, (SamplesPerInsert, Queue)) and count > limiter.window:
            raise RequestTooLarge(count, limiter.window, limiter.arithmetic())
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        if selection.goals is not reward:
            _check_reward(selection, reward)
        request = self._request(selection, count, where)
        source, ready = self._batch_source(request, selection.columns, integer("prefetch", prefetch, 1), seconds)
        if selection.goals is not None:
            source = RelabelledSource(source, selection.goals, reward)
        return Batches(source, count, ready, device, seconds)

    # ---- changing what is there ------------------------------------------------------------------------------------

    @refuses_unknown
    def update_priorities(
        self, item_keys: npt.ArrayLike, priorities: Any, *, index: str | None = None, **unknown: NoReturn
    ) -> int:
        """Sets priorities [B] (finite, >= 0, taken as given) of items [B]; returns how many were still there.

        The last of duplicates wins. Torch tensors are taken too. All are checked before the first is applied: raises
        InvalidPriority, ForeignKey, ShapeMismatch, NoPriorities, ReadOnly, TableClosed.
        """
        if unknown or priorities is MISSING or item_keys is MISSING:
            refuse_unknown(self.update_priorities, unknown)
        if not isinstance(item_keys, np.ndarray) or item_keys.dtype is not _INT64:
            item_keys = as_keys(item_keys)
        if not isinstance(priorities, np.ndarray) or (
            priorities.dtype is not _FLOAT32 and priorities.dtype is not _FLOAT64
        ):
            priorities = _as_numbers(priorities)
        if priorities.shape != item_keys.shape or priorities.ndim != 1:
            raise ShapeMismatch("priorities", item_keys.shape, priorities.shape)
        number = 0 if index is None else self.index_number(index)
        return self._core.update_priorities(number, item_keys, priorities)

    def complete(self, item_keys: npt.ArrayLike, /, **columns: Any) -> int:
        """Gives steps their late columns, once; returns how many of the steps were still there.

        item_keys: what append and extend returned, in any order, from any process: of any shape, or one key. columns:
        every late column, [*keys' shape, *column's shape], nested ones as dicts and tuples. An item can be drawn once
        all of its steps have theirs. Of more than 256 steps, other calls may see some completed before the others.
        All are checked before the first is applied: raises AlreadyCompleted, ForeignKey, UnknownColumn, MissingColumn,
        LateColumn, ShapeMismatch, DtypeMismatch, ReadOnly, TableClosed. Never waits for a limiter.
        """
        return self._core.complete(*self._late.pack(item_keys, columns))

    def create_items(
        self,
        windows: Any,
        *,
        index: str | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **columns: Any,
    ) -> Keys:
        """Makes N items of an index with Explicit items, in order; returns their keys int64[N].

        windows: {name: rows}, or the rows where the index has one window without a name. Rows are named by the keys
        that append and extend returned: first keys int64[N], for windows of their full length; (first keys, number of
        rows); (last keys, negative number): so many rows that end with it; int64[N, R]: each of them, a stride apart.
        Windows left out, or of 0 rows, are not of the item. All rows that a window spans are steps of one lane.
        Over rows that wait for late columns an item is made, too, and drawn once all of its rows have theirs.
        priority: of the items, finite, >= 0, one for all or [N]. columns: [N, *shape] of every column of the items.
        index None: the one index that has Explicit items. Several items may stand on one step.
        Blocks while the index's limiter refuses, at most timeout_s. All items are checked before the first is made: an
        error changes nothing, unless error.stored > 0: then the first ones are made, error.keys are theirs. Raises
        RowGone, RowsApart, ForeignKey, UnknownColumn, MissingColumn, ShapeMismatch, DtypeMismatch, InvalidConfig,
        InvalidPriority, NoPriorities, DeadlineExceeded, ReadOnly, TableClosed.
        Cost: one lock for some 256 items; an item O(windows x pages they touch).
        """
        number, items = explicit_index(self._config.index, index)
        new = new_items(items, windows, priority, columns)
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        return self._core.create_items(number, new.windows, new.rows, new.priorities, new.columns, seconds)

    @names_arguments
    def delete(self, item_keys: npt.ArrayLike) -> int:
        """Removes these steps from every index at once; returns how many were there. Raises ForeignKey, ReadOnly.

        The key of an Explicit item removes that item alone; items that stand on a step that is removed stay.
        """
        return self._core.delete(as_keys(item_keys))

    def clear(self) -> None:
        """Removes all steps; lanes, priorities' maximum and counters go on. Raises ReadOnly, TableClosed."""
        self._core.clear()

    def set_policy_version(self, version: int) -> None:
        """The learner's version (0 to 2**32 - 1): rows are stamped with it, staleness is counted from it."""
        self._core.set_policy_version(integer("version", version, 0, 2**32 - 1))

    @names_arguments
    def set_limiter(self, limiter: Limiter, *, index: str | None = None) -> None:
        """The limiter of an index from now on, for every process; who waits is judged anew.

        Its corridor begins anew, too: as though the present items, min_size at most, had been inserted and none of them
        drawn. table.config stays what the table was made from; table.limiter() says the present one.
        Raises InvalidConfig where the index cannot have it, CapacityTooSmall, RequestTooLarge where a draw that waits
        now could never pass; then nothing changes. DeadlineExceeded, ReadOnly, TableClosed.
        """
        number = self.index_number(index)
        name = self._index_names[number]
        changed = replace(self._config.index[name], limiter=limiter)
        check_min_sizes(self._config.capacity, {name: changed})
        self._core.set_limiter(number, np.array(limiter.core_numbers(), np.float64))

    @names_arguments
    def set_priority_exponent(self, exponent: float, *, index: str | None = None) -> None:
        """The exponent of an index with a Prioritized sampler from now on, for every process: mass = priority ** it.

        Every mass is computed anew from the priority that it came of, as if the items had been given with the new
        exponent (docs/samplers.md says how exactly); draws that this meets are drawn anew. To 0 all masses are 1 and
        the priorities are forgotten: from 0 any other exponent is refused. table.config stays what the table was made
        from; priority_exponent() says the present one. The exponent of a remover stays.
        Raises InvalidConfig; then nothing changes. DeadlineExceeded, ReadOnly, TableClosed.
        Cost: one hold of the lock, some 60 ns a step that the table has room for: 60 ms for a million.
        """
        number = self._exponent_index(index)
        self._core.set_priority_exponent(number, finite("exponent", exponent, 0.0))

    # ---- looking at it ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Live steps. Raises TableClosed."""
        return self._core.num_steps()

    def __bool__(self) -> bool:
        """True: `if table:` asks whether there is a handle, not whether it holds steps."""
        return True

    def num_items(self, index: str | None = None) -> int:
        """Live items of an index: those that can be drawn. Raises TableClosed."""
        return self._core.num_items(self.index_number(index))

    def limiter(self, index: str | None = None) -> Limiter:
        """The present limiter of an index, its tolerance in numbers. Raises InvalidConfig, TableClosed."""
        return limiter_of(self._core.limiter(self.index_number(index)))

    def priority_exponent(self, index: str | None = None) -> float:
        """The present exponent of an index with a Prioritized sampler. Raises InvalidConfig, TableClosed."""
        return self._core.priority_exponent(self._exponent_index(index))

    def stats(self) -> TableStats:
        """Sizes and counters at this moment, over all processes. Raises TableClosed."""
        return table_stats(self._core.stats(), self._index_names)

    def check(self) -> None:
        """Raises CheckFailed where an invariant is broken. Locks the table for a pass over all of it."""
        self._core.check()

    @property
    def config(self) -> TableConfig:
        """What the table was made from."""
        return self._config

    @property
    def spec(self) -> StepSpec:
        """What a step holds."""
        return self._spec

    @property
    def indexes(self) -> dict[str, Index]:
        """{name: Index}, the first being the default of reading calls."""
        return dict(self._config.index)

    @property
    def capacity(self) -> int:
        """Steps that are kept."""
        return self._config.capacity

    @property
    def timeout_s(self) -> float:
        """The default deadline of this handle's calls."""
        return self._timeout_s

    @property
    def policy_version(self) -> int:
        """What set_policy_version set last. Raises TableClosed."""
        return self._core.policy_version

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._core.closed

    # ---- the handle ------------------------------------------------------------------------------------------------

    @abstractmethod
    def close(self) -> None:
        """Ends the use of this handle. Closing twice is harmless."""

    # ---- for the floors above --------------------------------------------------------------------------------------

    def select(self, index: str | None, columns: Sequence[str] | None) -> Selection:
        """Columns of an index, resolved once and remembered. Raises UnknownColumn, InvalidConfig."""
        asked = None if columns is None else _names(columns)
        number = self.index_number(index)  # first: what is no name may not even have a hash
        selection = self._selections.get((index, asked))
        if selection is None:
            items, sampler = self._config.index[self._index_names[number]].items, self._sampler(number)
            if isinstance(items, Explicit):
                names = _expanded_items(items, self._spec, asked)
                shown = Columns(names, self._spec, windows=tuple(items.windows) if items.is_named else ())
            else:
                more = extra_columns(sampler)
                names = (*self._default_columns(items), *more) if asked is None else self._expanded(asked, items, more)
                axis = TimeAxis(
                    items.is_trimmed,
                    items.rows_behind,
                    items.time_major,
                    items.is_ragged,
                    items.crosses,
                    items.is_grouped,
                )
                shown = Columns(names, self._spec, axis)
            selection = Selection(self._core.select(number, list(names)), shown, number, goals_of(sampler, names), {})
            if len(self._selections) < _MAX_SELECTIONS:
                self._selections[index, asked] = selection
        return selection

    def gather_arrays(self, selection: Selection, keys: Keys) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.bool_]]:
        """The arrays of keys, as the core gives them, and which keys were there."""
        return self._core.gather(selection.core, np.ascontiguousarray(keys), None)

    def _sampler(self, number: int) -> Any:
        return self._config.index[self._index_names[number]].sampler

    def condition(self, number: int, where: str) -> Any:
        """A condition on items of an index, as the core takes it; remembered. Raises InvalidConfig, UnknownColumn."""
        condition = self._conditions.get((number, where)) if isinstance(where, str) else None
        if condition is None:
            checked = where_of(where, self._spec, self._config.index[self._index_names[number]].items)
            condition = self._core.where(number, checked.text, list(checked.operations))
            if len(self._conditions) < _MAX_SELECTIONS:
                self._conditions[number, checked.text] = condition
        return condition

    def index_number(self, name: str | None) -> int:
        """Which of the indexes it is, in their order; None: the first. Raises InvalidConfig."""
        if name is None:
            return 0
        if not isinstance(name, str) or name not in self._index_names:
            raise InvalidConfig("index", " or ".join(map(repr, self._index_names)), name)
        return self._index_names.index(name)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _request(self, selection: Selection, num_items: int, where: str | None) -> DrawRequest:
        """A draw of a selection. Without a condition it is remembered: making one takes 0.2 us, finding it 0.04."""
        condition = None if where is None else self.condition(selection.number, where)
        request = DrawRequest(selection.number, num_items, selection.core, condition)
        if where is None and len(selection.plain) < _MAX_SELECTIONS:
            selection.plain[num_items] = request
        return request

    def _exponent_index(self, index: str | None) -> int:
        number = self.index_number(index)
        name = self._index_names[number]
        sampler = self._config.index[name].drawn_by
        if not isinstance(sampler, Prioritized):
            expected = "an index whose sampler is Prioritized(...)"
            raise InvalidConfig(f"priority_exponent of index {name!r}", expected, type(sampler).__name__)
        return number

    @abstractmethod
    def held_draws(self) -> HeldDraws:
        """Draws that are counted when they are handed out, or given back whole."""

    @abstractmethod
    def _batch_source(
        self, request: DrawRequest, columns: Columns, prefetch: int, timeout_s: float
    ) -> tuple[BatchSource, int]:
        """Where batches of such draws come from, and how many of them wait here ready to be handed out."""

    def _default_columns(self, items: Items) -> tuple[str, ...]:
        spec = self._spec
        if items.has_time:
            return (*spec.columns, "discount", "mask", *(("offsets",) if items.is_ragged else ()))
        return (*spec.columns, *(f"next_{name}" for name in spec.state_columns), "discount")

    def _expanded(self, names: tuple[str, ...], items: Items, more: tuple[str, ...] = ()) -> tuple[str, ...]:
        spec = self._spec
        states = () if items.is_grouped else tuple(f"next_{name}" for name in spec.state_columns)
        masks = ("mask", "loss_mask", *(("offsets",) if items.is_ragged else ())) if items.has_time else ()
        if items.is_grouped:  # what records know of their rows
            masks = ("mask",)
        known = (*spec.columns, *states, "discount", *masks, "terminated", "truncated", *DERIVED_NAMES, *more)
        flat: dict[str, None] = {}
        for name in names:
            matches = [one for one in known if one == name or one.startswith(f"{name}/")]
            if not matches:
                raise UnknownColumn(str(name), known)
            flat.update(dict.fromkeys(matches))
        if items.is_trimmed:
            flat["mask"] = None  # says how long the longest is
        if items.is_ragged:
            flat["offsets"] = None  # says whose the rows are
        return tuple(flat)

    def _explained(self, error: RequestTooLarge, index: str | None = None) -> RequestTooLarge:
        """The same error with the limiter's arithmetic: of the index named, else of the narrowest one."""
        if error.none_twice:
            return error
        names = self._index_names if index is None else (index,)
        limiters = [self.limiter(name) for name in names]
        paced = [limiter for limiter in limiters if isinstance(limiter, (SamplesPerInsert, Queue))]
        if not paced:
            return error
        narrowest = min(paced, key=lambda limiter: limiter.window)
        return RequestTooLarge(error.requested, error.window, narrowest.arithmetic())


def _check_reward(selection: Selection, reward: Any) -> None:
    if selection.goals is None:
        raise InvalidConfig("reward of a sample", "None where the index has no Hindsight", reward)
    selection.goals.check(reward)


def explicit_index(indexes: Mapping[str, Index], name: str | None) -> tuple[int, Explicit]:
    """Number and items of the index of this name, or of the only one, with Explicit items. Raises InvalidConfig."""
    found = {one: number for number, one in enumerate(indexes) if isinstance(indexes[one].items, Explicit)}
    if name is None and len(found) == 1:
        name = next(iter(found))
    if not isinstance(name, str) or name not in found:
        raise InvalidConfig("index of create_items", " or ".join(map(repr, found)) or "one with Explicit items", name)
    items = indexes[name].items
    assert isinstance(items, Explicit)
    return found[name], items


def _expanded_items(items: Explicit, spec: StepSpec, asked: tuple[str, ...] | None) -> tuple[str, ...]:
    """The flat names of columns of explicit items. A window's name stands for what comes of it when none is named."""
    known = {column.name: column.is_usual for column in items.batch_columns(spec)}
    if asked is None:
        return tuple(name for name, is_usual in known.items() if is_usual)
    flat: dict[str, None] = {}
    for name in asked:
        below = [one for one, is_usual in known.items() if is_usual and one.startswith(f"{name}/")]
        if name not in known and not below:
            raise UnknownColumn(str(name), known)
        flat.update(dict.fromkeys([name] if name in known else below))
    return tuple(flat)


def _as_numbers(priorities: Any) -> npt.NDArray[Any]:
    """Priorities of any other sort, as an array that the core takes; complex ones and texts are refused."""
    if not isinstance(priorities, np.ndarray) or priorities.dtype.kind not in "fiub":
        priorities = as_array("priorities", priorities)
    if priorities.dtype.itemsize > 8 or priorities.dtype.kind == "c":
        priorities = cast("priorities", priorities, _FLOAT64)
    array: npt.NDArray[Any] = priorities
    return array


def _names(columns: Any) -> tuple[str, ...]:
    """columns= as a call gave it: names, or one name."""
    try:
        names = (columns,) if isinstance(columns, str) else tuple(columns)
    except (TypeError, ValueError):
        names = (None,)
    if not all(isinstance(name, str) for name in names):
        raise InvalidConfig("columns", "names of columns, or None for the usual ones", columns)
    return names
