"""Chooses the shard of a new writer, and makes writers wait for limiters that act on totals."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from relive.config.spec import ArraySpec
from relive.core.table_core import WriterCore
from relive.errors import (
    DeadlineExceeded,
    ReliveError,
    RequestTooLarge,
    ServiceUnavailable,
    from_core,
    stored_before,
)
from relive.fleet.draws.pace import Wait
from relive.fleet.errors import NoLiveShard
from relive.fleet.shards import Shard
from relive.writing.blocks import Block, Inserted, count_steps
from relive.writing.new_items import NewItems

__all__ = ["HasRoom", "Inserted", "PacedWriterCore", "emptiest", "made_as_let_in"]

Lanes = npt.NDArray[np.int32]
Keys = npt.NDArray[np.int64]

_WHOLE_FOR_S = 0.5  # how long a block waits to be let in whole
_COUNTS_FOR_S = 1.0  # how long the items with room are counted, at least: a call with timeout_s=0 makes all of them
_SLOW_LINK = 2.5e5  # bytes/s: rows on their way to a shard get the time that they take over such a link


def emptiest(told: Sequence[tuple[Shard, dict[str, Any]]]) -> Shard:
    """The live shard with the smallest part of its capacity in use. Ties go to the fewest open lanes.

    Args:
        told: every shard with its statistics.

    Raises:
        NoLiveShard: no shard is live.
    """
    live = [(shard, raw) for shard, raw in told if shard.is_live]
    if not live:
        raise NoLiveShard(len(told))
    return min(live, key=lambda one: (one[1]["num_steps"] / one[1]["capacity"], one[1]["num_lanes"]))[0]


# Asks the shards for at most so many seconds. With 0 seconds it has overdue items dropped, and looks again.
HasRoom: TypeAlias = Callable[[Inserted, float], bool]


@final
class PacedWriterCore:
    """Lanes of one shard. Each call waits until the totals leave room. One thread at a time.

    A call waits half a second to be let in whole. From then on its rows go in as there is room for them: step by step,
    and in each step lane by lane. A draw of another process may wait for items of these rows, and the limiter's window
    may be too small for both: neither of the two knows of the other.

    end_episode waits for no limiter. The next step of each lane that it ended asks for the room of one item instead.

    Args:
        core: the lanes.
        has_room: asks the limiters over the totals.
        columns: the table's columns, which tell how many steps a block has.
        is_single: the arrays have no lane axis.
        has_own_limit: the shard's region has a limiter of its own that bounds items (Queue, StalenessBudget).
    """

    def __init__(
        self,
        core: WriterCore,
        has_room: HasRoom,
        columns: Mapping[str, ArraySpec],
        *,
        is_single: bool,
        has_own_limit: bool,
    ) -> None:
        self._core = core
        self._has_room = has_room
        self._states = {name for name, column in columns.items() if column.kind == "state"}
        self._steps = {name for name, column in columns.items() if column.kind != "state"}
        self._is_single = is_single
        self._has_own_limit = has_own_limit
        self._owes = np.zeros(core.num_lanes, np.bool_)  # lanes whose last episode end_episode ended, until a step
        self.abandon = core.abandon
        self.set_policy_version = core.set_policy_version
        self.close = core.close

    def append(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> Any:
        """Appends one step to each lane as soon as there is room for it, or by parts. Returns the keys."""
        num_lanes = self._count(lanes)
        if num_lanes > 1:
            lifted = {name: _lifted(value) for name, value in columns.items()}
            block = Block(lifted, _lifted(priority), 1, num_lanes)
            if block.is_divisible:
                keys = self._stored(block, lanes, Wait(timeout_s))
                return keys.reshape(-1)
        wait = Wait(timeout_s)
        self._admitted(Block(columns, priority, 1, num_lanes), lanes, 0, wait)
        try:
            keys = self._core.append(columns, lanes, priority, wait.left_s)
        except DeadlineExceeded as error:
            raise _of_call(error, wait) from None
        self._note_rows(lanes, 0, num_lanes)
        return keys

    def append_alike(self, columns: dict[str, Any], timeout_s: float) -> None:
        """Returns None, so that the writer calls append, which waits for room."""

    def extend(self, columns: dict[str, Any], lanes: Lanes | None, priority: Any, timeout_s: float) -> Any:
        """Appends a block of steps as soon as there is room for all of them, or by parts. Returns the keys.

        If an exception ends it in a later part, its `stored` and `keys` tell which rows are stored. The rows of a part
        whose answer was lost (ServiceUnavailable, or Ctrl-C in the wait for it) are `unanswered` rows after these: they
        may be stored, too.
        """
        num_steps = count_steps(columns, self._steps, self._states)
        return self._stored(Block(columns, priority, num_steps, self._count(lanes)), lanes, Wait(timeout_s))

    def end_episode(self, columns: dict[str, Any], terminated: bool, lanes: Lanes | None, timeout_s: float) -> None:
        """Ends an episode without a wait for the totals."""
        self._core.end_episode(columns, terminated, lanes, timeout_s)
        self._owes[slice(None) if lanes is None else lanes] = True

    @property
    def closed(self) -> bool:
        """Whether this core or the table was closed."""
        return self._core.closed

    @property
    def num_lanes(self) -> int:
        """Number of lanes, with or without a lane axis in the arrays."""
        return self._core.num_lanes

    def _count(self, lanes: Lanes | None) -> int:
        return self._core.num_lanes if lanes is None else len(lanes)

    def _stored(self, block: Block, lanes: Lanes | None, wait: Wait) -> Keys:
        """Stores a block whole or by parts. Returns the keys in the shape that the core gives them."""
        if not block.num_rows:
            nothing: Keys = self._core.extend(block.columns, lanes, block.priority, wait.left_s)
            return nothing
        stored: list[Keys] = []
        first, at_most = 0, block.num_rows  # from the second part on, a limit in the region lets in single rows
        try:
            while first < block.num_rows:
                if first and wait.left_s == 0.0:  # room that opens row by row must not outlast the deadline
                    raise wait.exceeded("room in the limiter's window for all rows", "room for some of them")
                upto = min(self._admitted(block, lanes, first, wait), first + at_most)
                is_whole = upto - first == block.num_rows
                try:
                    stored.append(self._extended(block, lanes, first, upto, wait))
                except DeadlineExceeded as error:
                    if not (self._has_own_limit and block.is_divisible and wait.left_s > 0.0 and at_most > 1):
                        raise
                    stored.append(stored_before(error))
                    upto, is_whole, at_most = first + len(stored[-1]), False, 1
                self._note_rows(lanes, first, upto)
                first = upto
                if is_whole:
                    return stored[0]
        except BaseException as error:
            if isinstance(error, ServiceUnavailable):
                error.tell_rows(_keys_of(error, stored), block.num_rows, error.unanswered)
            elif any(map(len, stored)):
                _note_stored(error, stored, block.num_rows)
            raise
        keys = np.concatenate([part.reshape(-1) for part in stored])
        return keys if self._is_single else keys.reshape(block.num_steps, block.num_lanes)

    def _extended(self, block: Block, lanes: Lanes | None, first: int, upto: int, wait: Wait) -> Keys:
        patience = wait.left_s
        if self._has_own_limit and block.is_divisible and upto - first > 1:
            patience = _WHOLE_FOR_S + block.num_bytes / _SLOW_LINK
        part, named = block, lanes
        if upto - first < block.num_rows:
            part, named = block.part(first, upto), block.lanes_of(lanes, first, upto)
        try:
            keys: Keys = self._core.extend(part.columns, named, part.priority, min(patience, wait.left_s))
        except DeadlineExceeded as error:
            raise _of_call(error, wait) from None
        return keys

    def _inserted(self, block: Block, lanes: Lanes | None, first: int, upto: int) -> Inserted:
        """These rows, the ends in them, and the lanes among them that owe the room of an item."""
        owed = (self._owes if lanes is None else self._owes[lanes])[first:upto]
        return block.inserted(first, upto)._replace(num_owed=int(np.count_nonzero(owed)))

    def _note_rows(self, lanes: Lanes | None, first: int, upto: int) -> None:
        """Notes that these rows of a block are stored: the lanes among them owe nothing."""
        if lanes is None:
            self._owes[first:upto] = False
        else:
            self._owes[lanes[first:upto]] = False

    def _admitted(self, block: Block, lanes: Lanes | None, first: int, wait: Wait) -> int:
        """Waits for room, and for the totals, until the deadline of the call.

        Returns the row up to which the block may be stored now, more than `first`. Raises DeadlineExceeded.
        """
        started = wait.waited_s
        # A closed core raises its own error.
        while not self._core.closed:
            left_s = wait.left_s
            if self._lets_in(block, lanes, first, block.num_rows, left_s):
                break
            if left_s > 0.0 and block.is_divisible and (first or wait.waited_s - started >= _WHOLE_FOR_S):
                fits = self._num_fitting(block, lanes, first, wait)
                if fits:
                    return first + fits
            if left_s == 0.0:  # overdue items were dropped before the last look
                raise wait.exceeded("room in the limiter's window over all shards", "none")
            wait.pause()
        return block.end_of(first, block.num_rows)

    def _lets_in(self, block: Block, lanes: Lanes | None, first: int, upto: int, left_s: float) -> bool:
        """Whether there is room for these rows. Raises RequestTooLarge if the whole block never gets in."""
        try:
            return self._has_room(self._inserted(block, lanes, first, upto), left_s)
        except RequestTooLarge:
            if upto - first == block.num_rows:
                raise
            return False  # a smaller part of the block may get in

    def _num_fitting(self, block: Block, lanes: Lanes | None, first: int, wait: Wait) -> int:
        """How many rows from `first` on there is room for, as far as the time suffices: more never need less room."""
        fits, beyond = 0, block.num_rows - first
        while fits + 1 < beyond and wait.left_s > 0.0:
            middle = 1 if fits == 0 else fits + (beyond - fits) // 2
            upto = block.end_of(first, first + middle)
            if self._lets_in(block, lanes, first, upto, wait.left_s):
                fits = middle
            elif middle == 1:
                return 0
            else:
                beyond = middle
        return block.end_of(first, first + fits) - first if fits else 0


def _of_call(error: DeadlineExceeded, wait: Wait) -> ReliveError:
    """The error of a part with the wait of the whole call."""
    return from_core(type(error).__name__, {**vars(error), "waited_s": wait.waited_s})


def _note_stored(error: BaseException, parts: list[Keys], num_rows: int) -> None:
    """Adds to an exception which rows the parts before it have stored. Keeps `unanswered`, of the part under way."""
    keys = _keys_of(error, parts)
    if isinstance(error, ReliveError) and error.args and not error.stored:
        error.args = (
            f"{error}; the first {len(keys)} of {num_rows} rows are stored, step by step, under the error's keys: go on"
            " with the rows after them, not with the whole block again",
            *error.args[1:],
        )
    with suppress(AttributeError):  # an exception of a signal's handler may take no attributes
        error.stored, error.keys = len(keys), keys  # type: ignore[attr-defined]


def _keys_of(error: BaseException, parts: list[Keys]) -> Keys:
    return np.concatenate([*(part.reshape(-1) for part in parts), stored_before(error)])


def _lifted(value: Any) -> Any:
    """A value of one step as a block of one step."""
    return np.asarray(value)[None] if np.ndim(value) else value


# ---- explicit items -------------------------------------------------------------------------------------------------


def made_as_let_in(
    items: NewItems,
    create: Callable[[NewItems, float], Keys],
    lets_in: Callable[[int, float], bool],
    wait: Wait,
) -> Keys:
    """Makes items in order, as many at a time as there is room for, as in one table. Returns their keys.

    Args:
        items: at least one item.
        create: makes items, within so many seconds.
        lets_in: tells whether the limiter lets in so many items. More items never need less room.
        wait: the wait of the call.

    Raises:
        DeadlineExceeded: the limiter did not let in all items in time. error.stored and error.keys tell which are made.
        The errors of create. Those that name an item count it from the first item of the call. The exception of a
        signal's handler has `stored` and `keys`, too, and `unanswered`: the items after these that may be made.
    """
    made: list[Keys] = []
    begin, count, sent = 0, len(items.windows), 0
    try:
        while begin < count:
            if begin and wait.left_s == 0.0:
                raise wait.exceeded("room in the limiter's window for all items", "room for some of them")
            upto = begin + _num_let_in(lets_in, count - begin, wait)
            sent = upto - begin
            made.append(create(_part(items, begin, upto), wait.left_s))
            begin, sent = upto, 0
    except ReliveError as error:
        raise _of_all(error, made, count) from None
    except BaseException as error:  # of a signal's handler
        keys, tells = _keys_of(error, made), isinstance(getattr(error, "keys", None), np.ndarray)
        told: Any = error
        told.stored, told.keys, told.unanswered = len(keys), keys, 0 if tells else sent
        raise
    return np.concatenate(made)


def _num_let_in(lets_in: Callable[[int, float], bool], count: int, wait: Wait) -> int:
    """Waits until the limiter lets in an item. Returns how many items it lets in, `count` at most.

    The count ends within a second after the deadline, with the items for which there was room until then.
    """
    begun = wait.waited_s

    def has_no_room(count: int) -> bool:
        is_late = wait.left_s == 0.0 and wait.waited_s - begun > _COUNTS_FOR_S
        return is_late or not lets_in(count, wait.left_s)

    while True:
        left_s = wait.left_s
        if lets_in(1, left_s):
            return 1 + bisect_left(range(2, count + 1), True, key=has_no_room)
        if left_s == 0.0:
            raise wait.exceeded("room in the limiter's window for an item", "none")
        wait.pause()


def _part(items: NewItems, begin: int, upto: int) -> NewItems:
    cut = slice(begin, upto)
    return NewItems(
        items.windows[cut],
        [None if rows is None else rows[cut] for rows in items.rows],
        None if items.priorities is None else items.priorities[cut],
        [column[cut] for column in items.columns],
    )


def _of_all(error: ReliveError, made: list[Keys], count: int) -> ReliveError:
    """The error of a part as that of the whole call."""
    begin = sum(map(len, made))
    if not begin:
        return error
    keys = np.concatenate([*made, stored_before(error)])
    if isinstance(error, ServiceUnavailable):
        error.tell_items(keys, count, error.unanswered)
        return error
    fields = {**vars(error), "stored": len(keys), "num_items": count, "keys": keys}
    fields |= {name: begin + fields[name] for name in ("item", "position") if type(fields.get(name)) is int}
    return from_core(type(error).__name__, fields)
