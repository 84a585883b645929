"""The shards of one table as this process sees them: how each is read, whether it is live, and its root."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from relive.checks.values import integer
from relive.config.index import Index
from relive.config.table_config import TableConfig
from relive.core.distinct import distinct
from relive.core.one_call import OneCall, asked_at
from relive.core.request import DrawRequest
from relive.core.table_core import TableCore
from relive.errors import ForeignKey, InvalidConfig, ReliveError, ServiceUnavailable, TableClosed
from relive.fleet.draws.pace import region_limiter
from relive.fleet.draws.placement import MAX_SHARDS, Root
from relive.fleet.draws.sharing import sharing_of
from relive.fleet.errors import NotOverShards, OtherShards
from relive.fleet.keys import LEAF_BITS, ShardKeys
from relive.saving.copying import SaveFacts
from relive.table.handle import TableHandle

__all__ = [
    "SILENCE_S",
    "STALL_S",
    "Answer",
    "AreOwn",
    "Asked",
    "AskedSave",
    "Later",
    "Missed",
    "Part",
    "Path",
    "SavingPart",
    "Shard",
    "Shards",
    "Short",
    "State",
    "check_indexes",
]

State: TypeAlias = Literal["live", "dead", "stalled", "replaced"]
Path: TypeAlias = Literal["mapped", "service", "nixl"]
Keys = npt.NDArray[np.int64]
Masses = npt.NDArray[np.float64]
Arrays = list[npt.NDArray[Any]]
Present = npt.NDArray[np.bool_]
Places = npt.NDArray[np.intp]
AreOwn: TypeAlias = Callable[[ShardKeys, Keys], npt.NDArray[np.bool_]]  # which keys a call takes, of one shard's

_OPENS_S = 1.0  # how long the beginning of a question may take, whatever the deadline: networks have short outages
STALL_S = 0.5  # how long a call waits for the lock of one shard; draws then leave the shard out for as long
SILENCE_S = 1.0  # how long a call waits without a byte from the owner of a shard; the shard is dead then


class Missed(Exception):
    """A shard gave no answer: its items were gone, it stalled, or its owner is gone or silent.

    Attributes:
        shard: the shard.
        error: why, if the shard or its transport said so.
    """

    def __init__(self, shard: Shard, error: ReliveError | None = None) -> None:
        super().__init__()
        self.shard = shard
        self.error = error

    @property
    def is_late(self) -> bool:
        """Whether the shard is live, and its answer was on its way at the deadline of the call."""
        return isinstance(self.error, ServiceUnavailable) and self.error.is_there


@final
class Short(Missed):
    """A shard answers, but has fewer items to draw than it was asked for."""


class Asked(NamedTuple):
    """The part of a draw that one shard makes: the request to its core, and how the draw is made and counted."""

    request: DrawRequest
    timeout_s: float  # how long the shard waits for its lock and for items, in seconds
    left_s: float  # how long the call waits for an answer that is on its way, in seconds
    counts_nowhere: bool  # the draw of a read-only handle
    is_read: bool  # the batch contains its rows when it is handed out; otherwise the caller gathers them later
    is_only: bool  # the table has no other shard, so the draw cannot go on without this one
    # A caller that draws ahead passes what it has asked for, by shard: each shard makes these draws in their order. The
    # ticket that settles a draw then rides with the next message, and the caller calls flush() when none follows soon.
    turns: dict[int, Any] | None = None
    retry_s: float = 0.0  # how long the draw is tried again if it ends because another caller has the shard's lock


class Answer(Protocol):
    """The answer of a shard that was asked: due until take() or drop()."""

    def take(self) -> Any:
        """Waits for the answer.

        Raises Missed if none comes, and the error with which the shard refuses the call.
        """
        ...

    def drop(self) -> None:
        """Gives up on the answer."""
        ...


@final
class Later:
    """An answer that is made when it is taken, by a call that raises as take() does."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.take = call

    def drop(self) -> None:
        """Does nothing: nothing was begun."""


class Part(Protocol):
    """The items that one shard gives to a draw, in flight until commit or give_back."""

    @property
    def root(self) -> Root | None:
        """The root of the shard after the draw, if take() has heard it."""
        ...

    def take(self) -> tuple[Arrays, Keys, Masses]:
        """Waits for the items: arrays, keys, and each item's mass divided by its shard's mass at the descent.

        Raises Missed, and Short if the shard lacks items.
        """
        ...

    def check(self) -> None:
        """Raises the error of commit(), as far as it can be known before, and counts nothing."""
        ...

    def ask_commit(self) -> None:
        """Begins what commit() would wait for, so that several shards are waited for once. Raises as commit()."""
        ...

    def commit(self, waits: bool = True) -> None:
        """Counts the items as handed out. waits=False: only if that needs no answer.

        Raises ServiceUnavailable if their uses went back, or if the shard does not answer: then they may be counted.
        """
        ...

    def give_back(self, ends: float = math.inf) -> None:
        """Gives the items back with their uses, even if take() was never called.

        ends: until when to wait for an answer that was not taken, a time.monotonic(); 0: not at all.
        """
        ...


def give_back(parts: Sequence[Part], waits: bool = True) -> None:
    """Gives parts of a draw back, the last one first. Waits for answers on their way: one SILENCE_S for all, or not."""
    ends = time.monotonic() + SILENCE_S if waits else 0.0
    for part in reversed(parts):
        part.give_back(ends)


class AskedSave(NamedTuple):
    """The part of one shard in a save of all shards.

    `path`: the folder, if this process writes it. `name`: the name of the save, if an owner of another host writes it.
    `staying`: the numbers of the cuts that stay in the folder until the save of all shards is committed.
    """

    path: str
    name: str
    staying: frozenset[int]
    timeout_s: float


class SavingPart(Protocol):
    """The save of one shard, which goes on until wait() has returned its facts or raised its error."""

    @property
    def has_cut(self) -> bool:
        """Whether the save has its moment, as far as wait() has heard."""
        ...

    @property
    def progress(self) -> float:
        """The part of the pages that is copied, from 0 to 1, as far as wait() has heard."""
        ...

    def wait(self, timeout_s: float, until_cut: bool = False) -> SaveFacts | None:
        """Waits for the end of the save, or for its moment. Returns the facts; None: it has not ended.

        Raises the error that ended it.
        """
        ...

    def cancel(self) -> None:
        """Ends the save, if it has not committed. Raises no error of the library."""
        ...

    def forget(self, staying: frozenset[int]) -> None:
        """Removes all cuts of the folder but those with these numbers; none if none of these is there."""
        ...


class Shard(ABC):
    """A handle on one shard. Any number of threads."""

    path: Path  # by which the rows are read

    def __init__(self, table: TableHandle, core: TableCore, number: int, facts: tuple[bytes, int, int]) -> None:
        self.table = table
        self.core = core
        self.number = number
        self.uuid = facts[0]
        self.keys = ShardKeys(table.config.index, *facts[1:])
        self.bounds_items = [index.limiter.bounds_items for index in table.config.index.values()]
        self._counts_uses = [index.max_times_sampled is not None for index in table.config.index.values()]
        # Time of the first and of the last draw that did not get the lock, with no draw in between that got it.
        self._lock_missed: tuple[float, float] | None = None

    def counts_uses(self, index: int) -> bool:
        """Whether items of an index are used up (max_times_sampled). Its draws take the lock."""
        return self._counts_uses[index]

    def note_lock(self, index: int) -> None:
        """Notes that a draw of an index had the lock, whether or not the items were there."""
        if self._counts_uses[index]:
            self._lock_missed = None

    def note_refused(self, asked: Asked, began: float) -> None:
        """Notes that a draw has waited for the lock since this time.monotonic(), and did not get it.

        A lock that is not free for STALL_S stalls the shard. Draws that have less time count together, if they end so
        one after another.
        """
        now, refused = time.monotonic(), self._lock_missed
        since = began if refused is None or refused[1] + 2 * STALL_S < began else min(refused[0], began)
        self._lock_missed = since, now
        if max(asked.timeout_s, asked.retry_s) >= STALL_S or since + STALL_S <= now:
            self.stalls()

    @abstractmethod
    def stalls(self) -> None:
        """Notes that the lock kept a call waiting for STALL_S: draws leave the shard out for as long."""

    @property
    def progress(self) -> str:
        """Which component moves the bytes if another process or library does, and why no faster path is used."""
        return ""

    @property
    @abstractmethod
    def state(self) -> State:
        """Whether draws use this shard.

        - "live": draws use it.
        - "dead": no process owns it, or its owner does not answer.
        - "stalled": a process took its lock and does not go on. Draws leave the shard out for a while.
        - "replaced": another region answers in its place.
        """

    @property
    def is_live(self) -> bool:
        """Whether draws use this shard."""
        return self.state == "live"

    @property
    def takes_changes(self) -> bool:
        """Whether changes by key go to this shard: its owner answers, or this process changes the memory itself."""
        return self.is_live

    @property
    @abstractmethod
    def stream(self) -> int:
        """The random stream of this handle."""

    def flush(self) -> None:  # noqa: B027 - a mapped shard counts at once
        """Sends what waits for the next message to this shard (Asked.turns)."""

    def ask_settled(self) -> Answer:
        """Asks whether what became of draws has arrived. The answer waits for the shard's own timeout."""
        return Later(lambda: None)  # a mapped shard counts at once

    def settling(self) -> Callable[[], None]:
        """Asks whether what became of draws has arrived. Returns a function that waits for the answer a little."""
        return lambda: None  # a mapped shard counts at once

    def cut(self) -> None:  # noqa: B027 - a mapped shard has no connection
        """Ends the connection at once, so that close() waits for no answer."""

    def prepare(self, ends: float | None = None) -> None:  # noqa: B027 - a mapped shard has nothing to prepare
        """Begins what the next question to this shard would wait for, so that several shards are waited for once.

        The beginning waits while the way to the shard is full, until `ends`; None: for the shard's own timeout.
        """

    @abstractmethod
    def select(self, index: int, names: list[str], alike: list[Any] | None = None) -> Any:
        """Resolves columns for draws and gathers. The result has `outputs`. Raises UnknownColumn.

        alike: one list for the same columns of all shards, in which shards may find what others have resolved.
        """

    @abstractmethod
    def ask_root(self, index: int, left_s: float) -> Callable[[], Root]:
        """Asks for the root of an index.

        Returns a function that waits for the answer, at most left_s: a dead root if none comes.
        """

    @abstractmethod
    def begin(self, asked: Asked) -> Part:
        """Begins a draw. Raises Missed."""

    @abstractmethod
    def gather(self, selection: Any, keys: Keys, out: Sequence[npt.NDArray[Any]] | None) -> tuple[Arrays, Present]:
        """Gathers columns by key. Raises Missed."""

    @abstractmethod
    def ask_gather(self, selection: Any, keys: Keys) -> Answer:
        """Asks for columns by key: arrays, and which keys are present. Raises Missed."""

    @abstractmethod
    def ask(self, call: str, *values: Any) -> Answer:
        """Asks the shard's core for a simple call (relive.core.table_core.SimpleCalls). Raises Missed."""

    @abstractmethod
    def ask_list(self, index: int, first: int, count: int, condition: Any) -> Answer:
        """Asks for the items of some leaves (relive.core.table_core.TableCore.list_items). Raises Missed."""

    @abstractmethod
    def ask_claim(self, index: int, keys: Keys, left_s: float) -> Answer:
        """Asks the shard to claim keys: which of them were claimed. Waits for no items. Raises Missed.

        The answer waits for the lock at most left_s, and for that of one of several shards at most STALL_S.
        """

    @abstractmethod
    def ask_filled(self, keys: Keys) -> Answer:
        """Asks for the position of the first key whose row has its late columns; -1: no row has them. Raises Missed."""

    @abstractmethod
    def ask_stats(self) -> Answer:
        """Asks for the statistics of the shard's core; the last known statistics if the shard does not answer."""

    @abstractmethod
    def ask_free(self, left_s: float | None = None) -> Answer:
        """Asks whether the shard can be changed now. The shard then drops its overdue items.

        The answer raises if its lock or its owner stand in the way. It waits for the lock at most left_s and STALL_S.
        A lock that is not free for STALL_S stalls the shard.

        left_s: None before a change of all shards. A table's only shard may then wait for its lock until the deadline.
        """

    @abstractmethod
    def begin_save(self, asked: AskedSave) -> SavingPart:
        """Begins a save of the shard. Raises the errors of a save as far as they are known at once."""

    @abstractmethod
    def set_patience(self, timeout_s: float, num_shards: int) -> None:
        """Sets how long calls without a deadline of their own wait for the shard."""

    @abstractmethod
    def close(self) -> None:
        """Closes the handle."""


@final
class Shards:
    """All shards, ordered by number. Owns their handles.

    Raises InvalidConfig: no shard, a number twice, different specs, indexes or seeds, or a shard with a limiter of its
    own.
    Raises NotOverShards if an index does not work over several shards.
    Raises OtherShards if a shard was loaded from a save of other shards than these.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        if not 1 <= len(shards) <= MAX_SHARDS:
            raise InvalidConfig("number of shards", f"1 to {MAX_SHARDS}", len(shards))
        self._shards = sorted(shards, key=lambda shard: shard.number)
        self.are_served = any(shard.path != "mapped" for shard in shards)
        self._place_of = np.full(MAX_SHARDS, -1, np.intp)
        for place, shard in enumerate(self._shards):
            if self._place_of[shard.number] >= 0:
                raise InvalidConfig("numbers of shards", "each once", f"shard {shard.number} twice")
            self._place_of[shard.number] = place
        for shard in self._shards:
            self._check_alike(shard)
            self._check_saved(shard)
        indexes = self._shards[0].table.config.index
        check_indexes(indexes, len(self))
        self.sharings = [sharing_of(name, index.drawn_by, len(self)) for name, index in indexes.items()]

    def __len__(self) -> int:
        return len(self._shards)

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards)

    def __getitem__(self, place: int) -> Shard:
        return self._shards[place]

    @property
    def read_only(self) -> bool:
        """Whether any shard was attached read-only."""
        return any(shard.core.read_only for shard in self._shards)

    @property
    def closed(self) -> bool:
        """Whether the handle of a shard was closed."""
        return any(shard.core.closed for shard in self._shards)

    @property
    def live(self) -> list[Shard]:
        """The live shards."""
        return [shard for shard in self._shards if shard.is_live]

    def roots(self, index: int, left_s: float, first: int = 0, step: int = 1) -> list[Root]:
        """The roots of every step-th shard from `first` on. The sampler's sharing sets the masses (`sharing.py`).

        All shards are asked before the first wait for an answer, which takes at most left_s seconds.
        Raises TableClosed.
        """
        if self.closed:
            raise TableClosed()
        asked = self._shards[first::step]
        with OneCall():
            self.prepare(asked, left_s)
            answers = [shard.ask_root(index, left_s) for shard in asked]
        return [self.sharings[index].of(answer()) for answer in answers]

    def prepare(self, asked: Sequence[Shard], left_s: float | None = None) -> None:
        """Begins what questions to these shards would wait for, in at most left_s seconds; None: as Shard.prepare."""
        if self.are_served:
            now = time.monotonic()
            ends = None if left_s is None else max(asked_at(now) + max(left_s, _OPENS_S), now)
            for shard in asked:
                shard.prepare(ends)

    def flush(self) -> None:
        """Sends what waits for the next messages to the shards."""
        if self.are_served:
            for shard in self._shards:
                shard.flush()

    def numbered(self, number: int) -> Shard:
        """The shard with this number. Raises InvalidConfig."""
        wanted = integer("shard", number, 0)
        for shard in self._shards:
            if shard.number == wanted:
                return shard
        raise InvalidConfig("shard", " or ".join(str(shard.number) for shard in self._shards), number)

    def places_of(self, keys: Keys, are_own: AreOwn | None, in_parts: bool = False) -> Places:
        """[B] The place in this list of each key's shard.

        Raises ForeignKey for a key of no shard. A shard checks the keys of a read itself. Keys of a change are all
        checked before the first shard is changed: are_own tells which of a shard's keys the call takes. An only shard
        checks them itself, unless it gets them in parts.
        """
        numbers, checks = keys >> LEAF_BITS, in_parts or len(self) > 1
        if not checks and (numbers == self._shards[0].number).all():
            return np.zeros(len(keys), np.int64)
        places: Places = np.where(keys >= 0, self._place_of[numbers & (MAX_SHARDS - 1)], -1)
        wrong = places < 0
        if are_own is not None and checks:
            for place in distinct(places[~wrong]):
                mine = places == place
                wrong[mine] = ~are_own(self[place].keys, keys[mine])
        if wrong.any():
            position = int(np.flatnonzero(wrong)[0])
            raise ForeignKey(position, int(keys[position]))
        return places

    def close(self) -> None:
        """Closes the handles of all shards, also if Ctrl-C ends the wait for one of them.

        Waits until the owners have heard what became of draws, or are silent for SILENCE_S. Then it waits for the
        writers of all shards at once, as the close of one table does.
        """
        with OneCall(), ExitStack() as stack:
            for shard in reversed(self._shards):
                stack.callback(self._or_cut, shard.close)
            self._or_cut(self._settle)

    def _settle(self) -> None:
        for wait in [shard.settling() for shard in self._shards]:
            wait()

    def _or_cut(self, wait: Callable[[], None]) -> None:
        """Waits. After Ctrl-C the rest of the close waits for no owner."""
        try:
            wait()
        except Exception:
            raise
        except BaseException:
            for shard in self._shards:
                shard.cut()
            raise

    def _check_saved(self, shard: Shard) -> None:
        saved = TableConfig.shards_in(shard.core.metadata)
        here = tuple(one.number for one in self._shards)
        if saved and saved != here:
            raise OtherShards(saved, here)

    def _check_alike(self, shard: Shard) -> None:
        first, config = self._shards[0], shard.table.config
        expected: dict[str, Any] = {
            "spec": first.table.config.spec,
            "indexes": list(first.table.config.index.items()),
            "seed": first.table.config.seed,
        }
        given = {"spec": config.spec, "indexes": list(config.index.items()), "seed": config.seed}
        for what, value in expected.items():
            if given[what] != value:
                raise InvalidConfig(
                    f"{what} of shard {shard.number}", f"{value!r}, as shard {first.number}", given[what]
                )
        for name, index in config.index.items():
            own, made = shard.table.limiter(name), region_limiter(index.limiter)
            if own != made:
                expected_limiter = (
                    f"{made!r} in its region, as ShardOwner makes it: the limiters of a fleet act on totals"
                )
                raise InvalidConfig(f"limiter of index {name!r} in shard {shard.number}", expected_limiter, own)


def check_indexes(indexes: Mapping[str, Index], num_shards: int) -> None:
    """Raises NotOverShards if an index does not work over so many shards."""
    if num_shards == 1:
        return
    for name, index in indexes.items():
        if index.items.one_table_only is not None:
            what, reason, instead = index.items.one_table_only
            raise NotOverShards(f"index {name!r} with {what}", reason, instead)
        if not index.replacement:
            raise NotOverShards(
                f"replacement=False of index {name!r}",
                "shards do not know what others gave a batch, nor how much of their mass is left",
                "draw with replacement, or from one table",
            )
        sharing_of(name, index.drawn_by, num_shards)
