"""The calls of a handle that read: sample, draw, gather, claim, keys and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from relive.checks.names import MISSING, names_arguments, refuse_unknown, refuses_unknown
from relive.checks.values import integer, timeout
from relive.config.casting import as_buffers, as_keys
from relive.core.request import DrawRequest
from relive.errors import InvalidConfig, RequestTooLarge
from relive.reading.batch import Batch
from relive.reading.batches import Batches
from relive.reading.columns import Selection
from relive.reading.draws import Draw
from relive.reading.own_draws import Order, checked_order, listed
from relive.reading.rewards import RelabelledSource, RewardFunction
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
        limiter = self._index_limiter(selection.number)
        if limiter.window is not None and count > limiter.window:
            raise RequestTooLarge(count, limiter.window, limiter.arithmetic())
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        if selection.goals is not reward:
            _check_reward(selection, reward)
        request = self._request(selection, count, where)
        source, ready = self._batch_source(request, selection.columns, integer("prefetch", prefetch, 1), seconds)
        if selection.goals is not None:
            source = RelabelledSource(source, selection.goals, reward)
        return Batches(source, count, ready, device, seconds)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _request(self, selection: Selection, num_items: int, where: str | None) -> DrawRequest:
        """A draw of a selection. Without a condition it is remembered: making one takes 0.2 us, finding it 0.04."""
        condition = None if where is None else self.condition(selection.number, where)
        request = DrawRequest(selection.number, num_items, selection.core, condition)
        if where is None and len(selection.plain) < MAX_REMEMBERED:
            selection.plain[num_items] = request
        return request


def _check_reward(selection: Selection, reward: Any) -> None:
    if selection.goals is None:
        raise InvalidConfig("reward of a sample", "None where the index has no Hindsight", reward)
    selection.goals.check(reward)
