"""Calls that go to several shards: what they wait for, what a shard without an answer changes, and what is checked.

- All shards are asked before the first answer is awaited, so any number of silent shards costs one wait.
- A call waits for a shard while bytes come from its owner, at most until the deadline of the call. It waits for the
  lock of a shard at most STALL_S, and the waits for all locks begin together. If the table has only one shard, a
  claim or a change of all shards waits until its deadline. A shard that gives no answer is left out: its keys are not
  present, and not counted. Changes by key reach a mapped shard also while it has no owner, as rows do.
- A live shard whose answer is late is no shard without an answer where that would say something false: gather() raises,
  because the rows are not gone, and complete() raises before it completes a row, because it has not checked them all.
- Everything that can be refused is checked before the first shard changes. If another process completes a row after
  the check, that row's shard still refuses its part. The parts of the other shards are then done, and the error says
  how many rows they had.
- A refusal names positions in the caller's keys.

docs/design/fleet.md has the table of all calls.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, final

import numpy as np
import numpy.typing as npt

from relive.config.kinds import SamplerKind
from relive.core.late_rows import check_twice
from relive.core.one_call import OneCall
from relive.errors import AlreadyCompleted, DeadlineExceeded, InvalidPriority, ReliveError, TableClosed, from_core
from relive.fleet.draws.mixing import Outputs, are_ragged, empty, end_to_end, scatter
from relive.fleet.draws.pace import Pace
from relive.fleet.draws.placement import Root
from relive.fleet.keys import ShardKeys
from relive.fleet.shards import Answer, AreOwn, Missed, Places, Shard, Shards

__all__ = ["Calls", "totals"]

Keys = npt.NDArray[np.int64]
Arrays = list[npt.NDArray[Any]]

_NO_KEYS: Places = np.empty(0, np.intp)
_DROP_EVERY_S = 0.1  # how often calls that wait have the overdue items of an index dropped
_LAST_DROP_EVERY_S = 0.01  # for those that end now
# Dead shards add nothing to the first of these statistics. The others are not added up: the largest counts.
_LIVE_ONLY = ("num_steps", "num_items", "pending", "total_mass", "num_lanes", "in_flight")
_LARGEST = ("max_priority", "sampler_waits_s", "writer_waits_s", "draw_size", "insert_size", "page_len", "is_stuck")


# A shard that is to be asked, the positions of its keys in the call, and the question; the same with the answer.
_Due: TypeAlias = tuple[Shard, Places, Callable[[], Answer]]
_Told: TypeAlias = tuple[Shard, Places, Any]


@final
class Calls:
    """Calls of a table over shards, other than draws. Any number of threads."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        indexes = shards[0].table.config.index.values()
        # By index with max_wait_s: when a call that waits last began to have overdue items dropped, and when one ended.
        self._drop_began = {number: 0.0 for number, index in enumerate(indexes) if index.max_wait_s is not None}
        self._drop_ended = dict(self._drop_began)

    # ---- the table as a whole --------------------------------------------------------------------------------------

    def of_live(self, call: str, *values: Any) -> list[Any]:
        """The answers of the live shards to a simple call."""
        return self._values((shard, _NO_KEYS, partial(shard.ask, call, *values)) for shard in self._shards.live)

    def sum_of_live(self, call: str, *values: Any) -> int:
        """The sum of these answers, which are numbers. Raises TableClosed."""
        return int(sum(self.of_live(call, *values)))

    def of_all(self, call: str, *values: Any) -> list[Any]:
        """The answers of all shards that answered, live or not, to a simple call."""
        return self._values((shard, _NO_KEYS, partial(shard.ask, call, *values)) for shard in self._shards)

    def stats(self) -> list[tuple[Shard, dict[str, Any]]]:
        """The statistics of every shard: the last known ones of a shard that does not answer."""
        with OneCall():
            self._taken((shard, _NO_KEYS, shard.ask_settled) for shard in self._shards)
            told = self._taken((shard, _NO_KEYS, shard.ask_stats) for shard in self._shards)
        return [(shard, value) for shard, _, value in told]

    def change_all(self, call: str, *values: Any) -> None:
        """Changes every shard by a simple call.

        Raises the error of a shard that does not answer, or whose lock is not free, before the first change.
        """
        with OneCall():
            self._taken(((shard, _NO_KEYS, shard.ask_free) for shard in self._shards), must_answer=True)
            self._taken(
                ((shard, _NO_KEYS, partial(shard.ask, call, *values)) for shard in self._shards), must_answer=True
            )

    def drop_overdue(self, index: int, roots: Sequence[Root], left_s: float) -> bool:
        """Has shards drop the items that have waited longer than max_wait_s, while a call waits for the totals.

        The waiting items take room of the limiters. A shard drops overdue items when a process releases its lock, and a
        call that reads roots takes no lock. A shard that gives no answer, or whose lock is taken, keeps its items.

        Args:
            index: the index that the call waits for. Shards are asked for it every _DROP_EVERY_S at most.
            roots: the roots of the index in the shards that may be asked. Those in which no item waits are not asked.
            left_s: seconds until the deadline of the call; 0: the call ends now, and asks every _LAST_DROP_EVERY_S, and
                while another call asks.

        Returns:
            Whether a shard was asked: the roots are then outdated.

        Blocks:
            For the locks, at most left_s. For an owner at an address until it answers, or is silent for SILENCE_S.
        """
        began, now = self._drop_began.get(index), time.monotonic()
        if began is None or self._shards.read_only:
            return False
        period_s = _DROP_EVERY_S if left_s > 0.0 else _LAST_DROP_EVERY_S
        is_under_way = self._drop_ended[index] < began
        if now < began + period_s and not (is_under_way and left_s == 0.0):
            return False
        waiting = {root.shard for root in roots if root.pending and not root.is_dead}
        if not waiting:
            return False
        self._drop_began[index] = now
        asked = [shard for shard in self._shards if shard.number in waiting]
        try:
            with contextlib.suppress(DeadlineExceeded):
                self._taken(((shard, _NO_KEYS, partial(shard.ask_free, left_s)) for shard in asked), left_s=left_s)
        finally:
            self._drop_ended[index] = time.monotonic()
        return True

    def has_dropped(self, index: int, since: float) -> bool:
        """Whether a call has had overdue items dropped since this time.monotonic(): roots of then are outdated."""
        return self._drop_ended.get(index, -math.inf) >= since

    def list_items(self, at: int, index: int, first: int, count: int, condition: Any) -> Any:
        """Lists leaves of one shard, in the form of TableCore.list_items; None if the shard does not answer."""
        shard = self._shards[at]
        if not shard.is_live and not self._shards.closed:
            return None
        told = self._taken([(shard, _NO_KEYS, partial(shard.ask_list, index, first, count, condition))])
        return told[0][2] if told else None

    # ---- items by key ----------------------------------------------------------------------------------------------

    def gather(self, parts: Sequence[Any], outputs: Outputs, keys: Keys, out: Any) -> tuple[Arrays, npt.NDArray[Any]]:
        """Gathers columns by key, each key from its shard; into `out` if it is given. Rows that are gone read as 0."""
        places = self._shards.places_of(keys, None)
        if len(self._shards) == 1 and (not len(keys) or self._shards[0].is_live):
            try:
                return self._shards[0].gather(parts[0], keys, out)
            except Missed as missed:
                self._leave_out(missed, must_come=True)
            places = np.full(len(keys), -1)  # the call has had its time
        present = np.zeros(len(keys), np.bool_)
        due = (
            (self._shards[at], mine, partial(self._shards[at].ask_gather, parts[at], keys[mine]))
            for at, mine in self._split(places)
        )
        told = self._taken(due, must_come=True)
        for _, mine, (_, there) in told:
            present[mine] = there
        if are_ragged(outputs):  # no caller gives arrays for these: their lengths are not known before
            return end_to_end(outputs, [(mine, some) for _, mine, (some, _) in told], len(keys)), present
        arrays = [empty(output, len(keys)) for output in outputs] if out is None else list(out)
        for array in arrays:
            array.fill(0)
        for _, mine, (some, _) in told:
            scatter(outputs, arrays, mine, some)
        return arrays, present

    def update_priorities(self, index: int, keys: Keys, priorities: npt.NDArray[Any]) -> int:
        """Sets priorities in the shard of each key. Returns the number of items that were still present."""
        if len(self._shards) > 1:
            with np.errstate(over="ignore"):
                narrow = priorities.astype(np.float32)
            wrong = np.flatnonzero(~((narrow >= 0.0) & np.isfinite(narrow)))
            if wrong.size:
                raise InvalidPriority(int(wrong[0]), float(priorities[wrong[0]]))

        def values(mine: Places) -> tuple[Any, ...]:
            return index, keys[mine], np.ascontiguousarray(priorities[mine])

        return self._summed("update_priorities", keys, self.items_of(index), values)

    def delete(self, keys: Keys) -> int:
        """Removes steps, and items with keys of their own, each from its shard."""
        return self._summed("delete", keys, ShardKeys.are_own, lambda mine: (keys[mine],))

    def complete(self, keys: Keys, cells: npt.NDArray[np.uint8]) -> int:
        """Writes late columns of rows, each row in its shard."""
        rows = cells.reshape(len(keys), -1) if len(keys) else cells.reshape(0, 1)

        def values(mine: Places) -> tuple[Any, ...]:
            return keys[mine], np.ascontiguousarray(rows[mine]).reshape(-1)

        with OneCall():
            if len(self._shards) > 1:
                self._check_unfilled(keys)
            return self._summed("complete", keys, ShardKeys.are_rows, values)

    def _check_unfilled(self, keys: Keys) -> None:
        places = self._shards.places_of(keys, ShardKeys.are_rows)
        columns = self._shards[0].table.config.spec.columns.items()
        column = next((name for name, one in columns if one.late), "")
        check_twice(keys, column)
        due = (
            (self._shards[at], mine, partial(self._shards[at].ask_filled, keys[mine]))
            for at, mine in self._split(places, changes=True)
        )
        filled = [int(mine[first]) for _, mine, first in self._taken(due, must_come=True) if first >= 0]
        if filled:
            raise AlreadyCompleted(min(filled), int(keys[min(filled)]), column)

    def claim(self, index: int, keys: Keys, left_s: float) -> npt.NDArray[np.bool_]:
        """Claims each key in its shard. Returns which keys were claimed."""
        taken = np.zeros(len(keys), np.bool_)
        due = (
            (self._shards[at], mine, partial(self._shards[at].ask_claim, index, keys[mine], left_s))
            for at, mine in self._split(self._shards.places_of(keys, self.items_of(index)))
        )
        for _, mine, claimed in self._taken(due, left_s=left_s):
            taken[mine] = claimed
        return taken

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _split(self, places: Places, changes: bool = False) -> list[tuple[int, Places]]:
        """(place, positions) of each live shard that has keys of the call; changes: of each that takes changes."""
        found = [(at, np.flatnonzero(places == at)) for at in range(len(self._shards))]
        asked = [(at, mine, self._shards[at]) for at, mine in found if mine.size]
        return [(at, mine) for at, mine, shard in asked if (shard.takes_changes if changes else shard.is_live)]

    def items_of(self, index: int) -> AreOwn:
        """Tells which keys may be those of items of an index. The number after that of the last index is the steps'."""
        are_steps = index >= len(self._shards.sharings)
        return ShardKeys.are_rows if are_steps else lambda of, keys: of.are_items(keys, index)

    def _summed(self, call: str, keys: Keys, are_own: AreOwn, values: Callable[[Places], tuple[Any, ...]]) -> int:
        places = self._shards.places_of(keys, are_own)
        split = self._split(places, changes=True)
        if not len(keys):  # some shard checks the other arguments
            split = [(0, np.arange(0))]
        due = ((self._shards[at], mine, partial(self._shards[at].ask, call, *values(mine))) for at, mine in split)
        return sum(int(count) for _, _, count in self._taken(due))

    def _values(self, due: Iterable[_Due]) -> list[Any]:
        return [value for _, _, value in self._taken(due)]

    def _taken(
        self, due: Iterable[_Due], must_answer: bool = False, must_come: bool = False, left_s: float | None = None
    ) -> list[_Told]:
        """Asks all, then takes all answers. A shard that does not answer is left out.

        left_s: seconds until the deadline of the call; None: the handle's timeout.

        Raises the first refusal after all answers were taken. Raises DeadlineExceeded if the table's only shard is
        locked, the error of a shard that does not answer if must_answer is True, that of a live one whose answer is
        late if must_come is True, and TableClosed.
        """
        if self._shards.closed:
            raise TableClosed()
        asked: list[tuple[Shard, Places, Answer]] = []
        told: list[_Told] = []
        refusals: list[ReliveError] = []
        wanted = list(due)
        try:
            with OneCall():
                self._shards.prepare([shard for shard, _, _ in wanted], left_s)
                for shard, mine, ask in wanted:
                    try:
                        asked.append((shard, mine, ask()))
                    except Missed as missed:
                        self._leave_out(missed, must_answer, must_come)
            while asked:
                shard, mine, answer = asked[0]
                try:
                    told.append((shard, mine, answer.take()))
                except Missed as missed:
                    self._leave_out(missed, must_answer, must_come)
                except ReliveError as error:
                    refusals.append(_placed(error, mine))
                asked.pop(0)
        finally:
            for _, _, answer in asked:
                answer.drop()
        if refusals:
            raise _counted(refusals, told)
        return told

    def _leave_out(self, missed: Missed, must_answer: bool = False, must_come: bool = False) -> None:
        is_only = len(self._shards) == 1 and isinstance(missed.error, DeadlineExceeded)
        if missed.error is not None and (must_answer or is_only or (must_come and missed.is_late)):
            raise missed.error from None


def _placed(error: ReliveError, mine: Places) -> ReliveError:
    """The refusal of a shard's part, with its position among the keys of the whole call."""
    position = getattr(error, "position", None)
    if type(position) is not int or not 0 <= position < len(mine):
        return error
    return _again(error, position=int(mine[position]))


def _counted(refusals: Sequence[ReliveError], told: Sequence[_Told]) -> ReliveError:
    """The first refusal, with the number of rows that all shards completed, those that refuse included."""
    first = refusals[0]
    if not isinstance(first, AlreadyCompleted):
        return first
    refused = sum(one.applied for one in refusals if isinstance(one, AlreadyCompleted))
    return _again(first, applied=refused + sum(int(count) for _, _, count in told))


def _again(error: ReliveError, **changed: Any) -> ReliveError:
    return from_core(type(error).__name__, {**vars(error), **changed})


# ---- statistics ------------------------------------------------------------------------------------------------------


def totals(told: Sequence[tuple[Shard, dict[str, Any]]], paces: Sequence[Pace]) -> dict[str, Any]:
    """The statistics of one table, from those of each shard's core.

    Counters sum over all shards, so that no counter falls when a shard dies. Present amounts sum over live shards only.
    """
    live = [shard.is_live for shard, _ in told]
    raws = [raw for _, raw in told]
    plain = [{name: value for name, value in raw.items() if name not in ("indexes", "tiers")} for raw in raws]
    whole = _merged(plain, live)
    versions = [raw["policy_version"] for raw, is_live in zip(raws, live, strict=True) if is_live or not any(live)]
    whole["policy_version"] = min(versions)
    samplers = [index.drawn_by for index in told[0][0].table.config.index.values()]
    whole["indexes"] = [
        _merged([raw["indexes"][number] for raw in raws], live, sampler) | {"limiter": list(pace.core_numbers())}
        for number, (pace, sampler) in enumerate(zip(paces, samplers, strict=True))
    ]
    whole["tiers"] = None
    whole["shards"] = [
        {"shard": shard.number, "state": shard.state, "path": shard.path, "progress": shard.progress}
        | {name: raw[name] for name in ("num_steps", "capacity", "policy_version")}
        for shard, raw in told
    ]
    return whole


def _merged(raws: Sequence[dict[str, Any]], live: Sequence[bool], sampler: SamplerKind | None = None) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, first in raws[0].items():
        values = [raw[name] for raw, is_live in zip(raws, live, strict=True) if is_live or name not in _LIVE_ONLY]
        if isinstance(first, (str, list)):
            merged[name] = next((value for value in values if value), first)
        else:
            merged[name] = max(values) if name in _LARGEST else sum(values)
    if sampler is not None and sampler.draws_by != "mass":
        merged["total_mass"] = _best_of(
            (raw["total_mass"] for raw, one in zip(raws, live, strict=True) if one), sampler
        )
    return merged


def _best_of(values: Iterable[float], sampler: SamplerKind) -> float:
    """The value of the best item of several shards. A shard without items tells the infinity of one table without."""
    return min(values, default=math.inf) if sampler.best_is_least else max(values, default=-math.inf)
