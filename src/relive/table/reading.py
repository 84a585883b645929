"""The calls of a handle that read: sample, draw, gather, claim, keys and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, overload

import numpy as np
import numpy.typing as npt

from relive.checks.names import MISSING, names_arguments, refuse_unknown, refuses_unknown
from relive.checks.values import flag, integer, timeout
from relive.config.casting import as_buffers, as_keys
from relive.core.request import DrawRequest
from relive.errors import InvalidConfig, RequestTooLarge
from relive.reading.batch import Batch
from relive.reading.batches import Batches
from relive.reading.columns import Selection
from relive.reading.draws import Draw
from relive.reading.order import Ordered, hidden_columns, places
from relive.reading.own_draws import Order, checked_order, listed
from relive.reading.rewards import ChangedSource, RewardFunction, check_reward, rewarded_by
from relive.table.bound import MAX_REMEMBERED, Bound

__all__ = ["Reading"]

Keys = npt.NDArray[np.int64]

_MAX_ITEMS = 2**31 - 1


class Reading(Bound):
    """The part of a handle that reads."""

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
        order: Order | None = None,
        **unknown: NoReturn,
    ) -> Batch:
        """Draws num_items items and returns their rows as a batch.

        Randomly drawn items are in random order, so any slice of the batch is a fair sub-batch. Samplers with an order
        keep that order. `order` asks for another order. Samplers by chance draw with replacement, except
        Shuffle. With Index(replacement=False), no item occurs twice in a batch.

        If a drawn item does not meet `where`, the table draws another item. Limiters and max_times_sampled count only
        the items of the batch. These items are drawn in proportion to their masses. batch.probabilities divides each
        mass by the mass of all items, because the mass of the items that meet `where` is unknown. Every probability of
        the batch is therefore too small by the same factor. The factor cancels in weights(), which divides by the
        largest weight of the batch. The factor does not cancel in weights(normalize=None).

        Args:
            num_items: items of the batch, B.
            columns: names of columns, see below. 'a/b' is a nested column, and 'a' all columns below it. None: the
                usual columns.
            timeout_s: how long to wait for the limiter and for items, in seconds; 0 tries once, inf waits for ever,
                None is the table's default.
            index: the name of an index; None: the first.
            where: a condition such as 'reward > 0 and lane < 4'. Every item of the batch meets the condition. The
                condition reads scalar columns and derived columns of the step that the item's key names. For explicit
                items and groups see docs/where.md.
            reward: for an index with Hindsight, function(achieved [R, ...], goal [R, ...], batch) -> rewards [R] of the
                R items that got another goal. `achieved` is next_<achieved> of each of them, and `goal` the new
                goal of each. `batch` has only these R items. The function is called if R > 0.
            order: of the items in the batch. None: random, or the order of the sampler. 'age': as keys(order='age')
                lists them, the oldest first. 'priority': the highest priority first, among equal ones the oldest. It
                needs a sampler that uses priorities. With `order` the batch is copied once more.

        The names for `columns`, and the usual columns:

        - Transitions: declared columns, next_<state>, discount, terminated, truncated, episode_step, first, lane,
          policy_version, staleness, num_steps. Usual: declared columns, next_<state> and discount. Only a table with
          state columns has the next two names.
        - next_<column> is the value of a step column at the step after the window (SARSA's next_action). Late columns
          have none. 0 if that step does not exist.
        - has_next, bool[B], is whether that step exists: False at the end of an episode, and until the step is written.
        - Sequences and Episodes: the names of Transitions except next_<column> and has_next, plus mask and loss_mask.
          Usual: declared columns, discount and mask.
        - Groups of Episodes: the names of Episodes without next_<state> and loss_mask.
        - Ragged Episodes: the names of Episodes. The batch always contains offsets, too.
        - Explicit: 'window/column', the name of a window, and the items' own columns. Usual: the columns and the mask
          of each window, and the items' own columns.
        - Every index with priorities: priority, float32[B], as update_priorities set it. It is the priority
          now, and may differ from the priority at the draw. NaN if the item is used up, or if the priority exponent is
          0: the table then keeps no priorities.

        Raises:
            DeadlineExceeded: at the deadline, the limiter did not allow the draw, or the index had too few items.
            RareItems: too few items meet the condition. The draw counts nothing.
            WaitsForItself: no other thread or process could end the wait.
            RequestTooLarge: the limiter, the sampler or the capacity could never allow so many items.
            UnknownColumn: a column has an unknown name.
            InvalidConfig: an argument has a type or value that is not allowed.
            TableClosed: the handle is closed.

        Cost: O(num_items log N) and one copy of the rows. With `where`, the table tests about 1 / s items for each
        item of the batch; s is the share of the mass that meets the condition.
        """
        if unknown:
            refuse_unknown(self.sample, unknown)
        if order is not None:
            selection, ordered = self._ordered(index, columns, order)
        else:
            selection = self._default_selection if columns is None and index is None else self.select(index, columns)
            ordered = None
        if type(num_items) is not int or not 0 < num_items <= _MAX_ITEMS:
            if num_items is MISSING:
                refuse_unknown(self.sample, unknown)
            num_items = integer("num_items", num_items, 1, _MAX_ITEMS)
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        _, shown, _, goals, plain = selection
        if goals is not reward:
            check_reward(goals, reward)
        request = plain.get(num_items) if where is None else None
        if request is None:
            request = self._request(selection, num_items, where)
        try:
            arrays, keys, probabilities, num_live = self._core_draw(request, seconds)
        except RequestTooLarge as error:
            raise self._explained(error, index) from None
        batch = Batch(shown, arrays, keys, probabilities, num_live)
        if ordered is not None:
            batch = ordered(batch)
        return batch if goals is None else goals.rewarded(batch, reward)

    @names_arguments
    def draw(
        self,
        num_items: int,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
        where: str | None = None,
        order: Order | None = None,
    ) -> Draw:
        """Draws without moving data; blocks, counts and raises as sample does. gather(draw) returns the rows."""
        number = self.index_number(index)
        hidden = () if order is None else self._hidden(number, order)
        selection = self.select(index, (), hidden=hidden).core if hidden else None
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        count = integer("num_items", num_items, 1, _MAX_ITEMS)
        request = DrawRequest(number, count, selection, None if where is None else self.condition(number, where))
        try:
            arrays, keys, probabilities, num_live = self._core_draw(request, seconds)
        except RequestTooLarge as error:
            raise self._explained(error, index) from None
        drawn = Draw(keys, probabilities, num_live, self._index_names[number])
        return drawn.rows(places(arrays[-len(hidden) :])) if hidden else drawn

    @names_arguments
    def gather(
        self,
        items: Draw | npt.ArrayLike,
        columns: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
        *,
        index: str | None = None,
    ) -> Batch:
        """The columns of a Draw, or of keys. Never waits for the limiter and never counts.

        batch.present, bool[B], says which keys were still there.

        Args:
            items: a Draw, or keys int64[B].
            columns: as for sample.
            out: an earlier batch, or {flat name: array}, whose memory is used again. For Episodes the arrays have all
                max_length + bootstrap rows, which no batch shows. For ragged items None: an item whose key is gone has
                no rows.
            index: the name of an index; None: that of the Draw, else the first.

        Raises:
            ForeignKey: a key belongs to no row of this table.
            UnknownColumn, InvalidConfig: an argument has another type or value.
            ShapeMismatch, DtypeMismatch: an array of `out` does not fit.
            ServiceUnavailable: a server did not answer in time. Over shards: the rows of a live shard are late. Those
                of a dead shard are not present.
            TableClosed: the handle is closed.
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
        """Counts a Draw.of(...) as draw() would have counted it, and returns the items that were there, in its order.

        If the index has max_times_sampled, each returned item is used once more under the lock; a key that comes twice
        is used twice. Items that are gone or used up are not returned and not counted. An error counts nothing. Pass
        the result to gather.

        Args:
            own: the draw, made by Draw.of(keys, probabilities).
            timeout_s: how long to wait for the limiter, as for sample.

        Raises:
            DeadlineExceeded, WaitsForItself, RequestTooLarge: as for sample.
            ForeignKey: a key belongs to no item of this table.
            InvalidConfig: `own` is no Draw.
            ReadOnly, TableClosed: the handle counts nothing, or is closed.

        Cost: one critical section for each 256 items.
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

    @overload
    def keys(
        self,
        index: str | None = None,
        order: Order = "age",
        where: str | None = None,
        page_size: int = 65_536,
        *,
        priorities: Literal[False] = False,
    ) -> Iterator[Keys]: ...
    @overload
    def keys(
        self,
        index: str | None = None,
        order: Order = "age",
        where: str | None = None,
        page_size: int = 65_536,
        *,
        priorities: Literal[True],
    ) -> Iterator[tuple[Keys, npt.NDArray[np.float32]]]: ...
    @names_arguments
    def keys(
        self,
        index: str | None = None,
        order: Order = "age",
        where: str | None = None,
        page_size: int = 65_536,
        *,
        priorities: bool = False,
    ) -> Iterator[Any]:
        """The keys of an index in order, in pages of int64[page_size]; the last page is shorter.

        No page if it is empty.

        This call makes the list, without the lock and a part of the index at a time. An item that lives throughout the
        call is listed exactly once. An item that is added meanwhile may be missing. An item that is removed meanwhile,
        or before its page is read, may be listed; gather says which keys are absent. Each item stands at the priority
        that it had when it was read.

        Args:
            index: the name of an index; None: the first.
            order: 'age': in the order in which their first rows were written, within page length x open lanes steps.
                Fifo draws in the order in which items were published.
                'priority': the items that the sampler prefers come first, among equal ones the oldest; only for
                samplers that look at priorities.
            where: a condition, as for sample.
            page_size: keys of a page.
            priorities: True: pages are (keys, priorities float32). Each page's priorities are read when the page is
                taken; NaN: the item is gone or used up.

        Raises:
            InvalidConfig, UnknownColumn: an argument has another type or value.
            TableClosed: the handle is closed.

        Cost: a pass over all slots, 24 bytes an item, and a sort.
        """
        number = self.index_number(index)
        name = self._index_names[number]
        by_priority = checked_order(order, name, self._config.index[name])
        size = integer("page_size", page_size, 1, _MAX_ITEMS)
        selection = self.select(index, ("priority",)) if flag("priorities of keys", priorities) else None
        found = listed(self._core, number, by_priority, None if where is None else self.condition(number, where))
        pages = (found[at : at + size] for at in range(0, len(found), size))
        return pages if selection is None else ((page, self._priorities(selection, page)) for page in pages)

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
        order: Order | None = None,
    ) -> Batches:
        """Returns an iterator of batches that a background thread draws and gathers ahead. Use it in a `with` block.

        Args:
            num_items: items of a batch.
            prefetch: the most batches that are ready and not yet taken, at least 1. On a Tiered table `prefetch` also
                counts batches with rows that are still being read. A larger number then lets several batches share the
                reading of a row, but the draws are older. On a remote table up to `prefetch` batches are requested
                before the first is used, on one stream.
            columns: as for sample.
            device: for example 'cuda': batches have torch tensors on that device; 'cpu': torch tensors; None: numpy
                arrays.
            timeout_s: how long next() waits, as for sample.
            index: the name of an index; None: the first.
            where: as for sample, for every batch. If too few items pass, next() raises RareItems, and the following
                next() tries again.
            reward: as for sample. The background thread calls it.
            order: as for sample, of each batch.

        Raises:
            RequestTooLarge, UnknownColumn, InvalidConfig: as for sample. next() raises the other errors of sample.
        """
        selection, ordered = (
            (self.select(index, columns), None) if order is None else self._ordered(index, columns, order)
        )
        count = integer("num_items", num_items, 1, _MAX_ITEMS)
        limiter = self._index_limiter(selection.number)
        if limiter.window is not None and count > limiter.window:
            raise RequestTooLarge(count, limiter.window, limiter.arithmetic())
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        if selection.goals is not reward:
            check_reward(selection.goals, reward)
        request = self._request(selection, count, where)
        source, ready = self._batch_source(request, selection.columns, integer("prefetch", prefetch, 1), seconds)
        if ordered is not None:
            source = ChangedSource(source, ordered)
        if selection.goals is not None:
            source = ChangedSource(source, rewarded_by(selection.goals, reward))
        return Batches(source, count, ready, device, seconds)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _priorities(self, selection: Selection, keys: Keys) -> npt.NDArray[np.float32]:
        arrays, present = self.gather_arrays(selection, keys)
        values = arrays[selection.columns.positions["priority"]]
        values[~present] = np.nan
        return values

    def _hidden(self, number: int, order: Order) -> tuple[str, ...]:
        name = self._index_names[number]
        return hidden_columns(order, name, self._config.index[name])

    def _ordered(
        self, index: str | None, columns: Sequence[str] | None, order: Order
    ) -> tuple[Selection, Ordered | None]:
        """A selection with the columns that an order needs, and the change of its batches."""
        hidden = self._hidden(self.index_number(index), order)
        if not hidden:
            return self.select(index, columns), None
        asked = self.select(index, columns, hidden=hidden)
        return asked, Ordered(self.select(index, columns).columns, asked.columns)

    def _request(self, selection: Selection, num_items: int, where: str | None) -> DrawRequest:
        """A draw of a selection. Without a condition it is remembered: making it takes 0.2 us, finding it 0.04 us."""
        condition = None if where is None else self.condition(selection.number, where)
        request = DrawRequest(selection.number, num_items, selection.core, condition)
        if where is None and len(selection.plain) < MAX_REMEMBERED:
            selection.plain[num_items] = request
        return request
