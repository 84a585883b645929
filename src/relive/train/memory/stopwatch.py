"""Who spends its time on what: counters around the parts of a process, in shared memory. All processes import this.

A stopwatch charges every moment of its process to one part. Parts nest: what a call inside takes is charged to the
inner part alone, so shares add up to one, and what nobody named is "other". `Watch` puts it around the methods of an
object; where a run is not profiled the object itself is handed on, and nothing is called that would not be called.
Seconds are those of the wall, and of these those that its thread was on a core: in the others it waited, for a lock,
for a core, or for threads that work for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from relive import Batch, Table
from relive.train.memory.shared_block import SharedBlock

PARTS = (
    "environment",
    "inference",
    "insert",
    "sample",
    "gather",
    "priorities",
    "update",
    "parameters",
    "evaluate",
    "report",
    "checkpoint",
    "wait",
    "other",
)
STORAGE = ("insert", "sample", "gather", "priorities")  # what the table does; "wait" is what it is told to do
_NUMBER = {part: number for number, part in enumerate(PARTS)}
LEARNER, ACTOR, SERVER, INFERENCE = "learner", "actor", "server", "inference"  # processes of a run; some are numbered
AGENT_PARTS = {
    "update": "update",
    "apply": "update",
    "parameters": "parameters",
    "state_dict": "checkpoint",
    "metrics": "report",
}

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
Clock = Callable[[], float]


@final
@dataclass(frozen=True)
class Counts:
    """Of one process, by part: [len(PARTS)] each. seconds: by the wall; core_s: of these, its thread on a core."""

    seconds: NDArray[np.float64]
    core_s: NDArray[np.float64]
    calls: NDArray[np.int64]


@final
class Stopwatch:
    """The time of one process, for one thread. Cost of a call: four looks at clocks and some sums, about 4 us."""

    def __init__(self, counts: Counts, clock: Clock = time.perf_counter, core_clock: Clock = time.thread_time) -> None:
        """counts: counted on from what they hold."""
        self._counts = counts
        self._clock, self._core_clock = clock, core_clock
        self._part = _NUMBER["other"]
        self._since, self._core_since = clock(), core_clock()

    def timed(self, part: str, function: Callable[..., T]) -> Callable[..., T]:
        """The function, charged to `part` while it runs, however it ends."""
        number = _NUMBER[part]

        def call(*arguments: Any, **named: Any) -> T:
            outer = self._turn_to(number)
            self._counts.calls[number] += 1
            try:
                return function(*arguments, **named)
            finally:
                self._turn_to(outer)

        return call

    def _turn_to(self, part: int) -> int:
        """Charges what passed to the part under way, which it returns, and goes on with another."""
        now, core_now = self._clock(), self._core_clock()
        self._counts.seconds[self._part] += now - self._since
        self._counts.core_s[self._part] += core_now - self._core_since
        self._since, self._core_since = now, core_now
        before, self._part = self._part, part
        return before

    def look(self) -> None:
        """Charges what passed until now."""
        self._turn_to(self._part)

    def move(self, sources: Sequence[str], target: str, seconds: float) -> None:
        """Charges so many seconds of `sources`, at most all that they were not on a core, to `target`."""
        counts = self._counts
        for source in map(_NUMBER.__getitem__, sources):
            moved = min(seconds, max(0.0, float(counts.seconds[source] - counts.core_s[source])))
            counts.seconds[source] -= moved
            counts.seconds[_NUMBER[target]] += moved
            seconds -= moved


def actor_name(number: int) -> str:
    """Of the process of an actor."""
    return f"{ACTOR} {number}"


def learner_name(number: int) -> str:
    """Of the process of one of several learners."""
    return f"{LEARNER} {number}"


@final
class ProfileBoard:
    """The counts of a run's processes, a row each, by name. It pickles into a child process."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._block = SharedBlock(3 * 8 * len(self.names) * len(PARTS))

    def counts(self, name: str) -> Counts:
        """Of the process of this name, which alone may count; anybody may read."""
        size, row = len(PARTS), self.names.index(name)
        starts = [8 * size * (3 * row + number) for number in range(3)]
        return Counts(
            self._block.array(np.float64, (size,), starts[0]),
            self._block.array(np.float64, (size,), starts[1]),
            self._block.array(np.int64, (size,), starts[2]),
        )

    def close(self) -> None:
        """Ends this process's use of the board; nothing is counted after it."""
        self._block.close()


class Timed(Protocol):
    """Puts a stopwatch around a function."""

    def __call__(self, part: str, function: F, /) -> F:
        """The function, charged to `part`; the function itself where nothing is profiled."""
        ...


def timed_by_nobody(part: str, function: F, /) -> F:
    """The function itself."""
    return function


class Watch(Protocol):
    """Puts a stopwatch around methods of an object."""

    def __call__(self, thing: T, parts: Mapping[str, str], /) -> T:
        """The object, with {method: part} timed; the object itself where nothing is profiled."""
        ...


def watch_with(stopwatch: Stopwatch | None) -> Watch:
    """How a process watches its objects. None: it does not."""

    def watch(thing: T, parts: Mapping[str, str], /) -> T:
        return thing if stopwatch is None else cast(T, _Watched(thing, stopwatch, parts))

    return watch


def stopwatch_of(profile: ProfileBoard | None, name: str) -> Stopwatch | None:
    """What the process of this name counts with; None where nothing is profiled. After a restart it counts on."""
    return None if profile is None else Stopwatch(profile.counts(name))


def timed_with(stopwatch: Stopwatch | None, part: str, function: F) -> F:
    """The function, charged to `part`; the function itself where there is no stopwatch."""
    return function if stopwatch is None else cast(F, stopwatch.timed(part, function))


@final
class _Watched:
    """Another object: some of its methods are timed, some are replaced, everything else is its own."""

    def __init__(
        self,
        thing: Any,
        stopwatch: Stopwatch,
        parts: Mapping[str, str],
        replaced: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self._thing = thing
        for method, part in parts.items():
            setattr(self, method, stopwatch.timed(part, getattr(thing, method)))
        for method, function in (replaced or {}).items():
            setattr(self, method, function)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._thing, name)

    def __len__(self) -> int:
        return len(self._thing)

    def __bool__(self) -> bool:
        return bool(self._thing)


@final
class _WatchedBatches:
    def __init__(self, batches: Iterator[Batch], stopwatch: Stopwatch) -> None:
        self._next = stopwatch.timed("gather", batches.__next__)

    def __next__(self) -> Batch:
        return self._next()


@final
class _Reads:
    """Draws and gathers one after the other, so that each is seen for itself."""

    def __init__(self, table: Table, stopwatch: Stopwatch) -> None:
        self._table, self._stopwatch = table, stopwatch
        self._draw = stopwatch.timed("sample", table.draw)
        self._gather = stopwatch.timed("gather", table.gather)
        self._draw_and_gather = stopwatch.timed("gather", table.sample)

    def sample(self, num_items: int, *, columns: Sequence[str], timeout_s: float) -> Batch:
        """See Table. What was evicted between the draw and the gather is drawn once more, in one call."""
        batch = self._gather(self._draw(num_items, timeout_s=timeout_s), columns=columns)
        if batch.present is None or batch.present.all():
            return batch
        return self._draw_and_gather(num_items, columns=columns, timeout_s=timeout_s)

    @contextmanager
    def batches(self, *arguments: Any, **options: Any) -> Iterator[Iterator[Batch]]:
        """See Table. What next() takes is "gather": its thread draws and gathers behind the learner's back."""
        with self._table.batches(*arguments, **options) as batches:
            yield cast(Iterator[Batch], _WatchedBatches(batches, self._stopwatch))


def watched_table(table: Table, stopwatch: Stopwatch | None) -> Table:
    """A table as a learner sees it, every call that a learner makes timed; the table itself without a stopwatch."""
    if stopwatch is None:
        return table
    parts = {"update_priorities": "priorities", "set_policy_version": "parameters", "stats": "report"}
    reads = _Reads(table, stopwatch)
    return cast(Table, _Watched(table, stopwatch, parts, {"sample": reads.sample, "batches": reads.batches}))
