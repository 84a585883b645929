"""Measures the time that the parts of a process take, with counters in shared memory. All processes import this.

- A stopwatch charges every moment of its process to one part. Parts nest: the time of an inner call is charged to the
  inner part alone. So shares add up to one; time outside of all parts is "other".
- `Watch` puts a stopwatch around methods of an object. In a run without a profile it returns the object itself, and
  no call is added.
- Two clocks run: the wall clock, and the time that the thread was on a core. The rest of the wall-clock time the
  thread waited: for a lock, for a core, or for threads that work for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from relive import Batch
from relive.table.handle import TableHandle
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
STORAGE = ("insert", "sample", "gather", "priorities")  # the work of the table; its limiter's waits are "wait"
_NUMBER = {part: number for number, part in enumerate(PARTS)}
LEARNER, ACTOR, SERVER, INFERENCE = "learner", "actor", "server", "inference"  # processes of a run, or their first word
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
    """The counters of one process, by part.

    Attributes:
        seconds: Wall-clock seconds [len(PARTS)].
        core_s: The part of these seconds that the thread was on a core [len(PARTS)].
        calls: Calls [len(PARTS)].
    """

    seconds: NDArray[np.float64]
    core_s: NDArray[np.float64]
    calls: NDArray[np.int64]


@final
class Stopwatch:
    """Charges the time of one thread to parts. Cost: a timed call reads clocks four times, about 4 us."""

    def __init__(self, counts: Counts, clock: Clock = time.perf_counter, core_clock: Clock = time.thread_time) -> None:
        """counts: the counters, which count on from their values."""
        self._counts = counts
        self._clock, self._core_clock = clock, core_clock
        self._part = _NUMBER["other"]
        self._since, self._core_since = clock(), core_clock()

    def timed(self, part: str, function: Callable[..., T]) -> Callable[..., T]:
        """Returns the function with its time charged to `part`, also if it raises."""
        number = _NUMBER[part]

        def call(*arguments: Any, **named: Any) -> T:
            outer = self._switch_to(number)
            self._counts.calls[number] += 1
            try:
                return function(*arguments, **named)
            finally:
                self._switch_to(outer)

        return call

    def _switch_to(self, part: int) -> int:
        """Charges the time since the last switch to the current part, which is returned, and goes on with another."""
        now, core_now = self._clock(), self._core_clock()
        self._counts.seconds[self._part] += now - self._since
        self._counts.core_s[self._part] += core_now - self._core_since
        self._since, self._core_since = now, core_now
        before, self._part = self._part, part
        return before

    def look(self) -> None:
        """Charges the time until now."""
        self._switch_to(self._part)

    def move(self, sources: Sequence[str], target: str, seconds: float) -> None:
        """Moves seconds from `sources` to `target`, at most those that the thread was not on a core."""
        counts = self._counts
        for source in map(_NUMBER.__getitem__, sources):
            moved = min(seconds, max(0.0, float(counts.seconds[source] - counts.core_s[source])))
            counts.seconds[source] -= moved
            counts.seconds[_NUMBER[target]] += moved
            seconds -= moved


def actor_name(number: int) -> str:
    """Returns the name of the process of an actor."""
    return f"{ACTOR} {number}"


def learner_name(number: int) -> str:
    """Returns the name of the process of one of several learners."""
    return f"{LEARNER} {number}"


@final
class ProfileBoard:
    """The counters of the processes of a run, a row for each name. It can be pickled into a child process."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._block = SharedBlock(3 * 8 * len(self.names) * len(PARTS))

    def counts(self, name: str) -> Counts:
        """Returns the counters of the process of this name. That process alone writes them; all may read them."""
        size, row = len(PARTS), self.names.index(name)
        starts = [8 * size * (3 * row + number) for number in range(3)]
        return Counts(
            self._block.array(np.float64, (size,), starts[0]),
            self._block.array(np.float64, (size,), starts[1]),
            self._block.array(np.int64, (size,), starts[2]),
        )

    def close(self) -> None:
        """Ends the use of the board by this process; nothing is counted after it."""
        self._block.close()


class Timed(Protocol):
    """Puts a stopwatch around a function."""

    def __call__(self, part: str, function: F, /) -> F:
        """Returns the function with its time charged to `part`; without a profile the function itself."""
        ...


def untimed(part: str, function: F, /) -> F:
    """Returns the function itself. See Timed."""
    return function


class Watch(Protocol):
    """Puts a stopwatch around methods of an object."""

    def __call__(self, thing: T, parts: Mapping[str, str], /) -> T:
        """Returns the object with its methods timed, {method: part}; without a profile the object itself."""
        ...


def watch_with(stopwatch: Stopwatch | None) -> Watch:
    """Returns the watch of a process that counts with this stopwatch; None: the process is not profiled."""

    def watch(thing: T, parts: Mapping[str, str], /) -> T:
        return thing if stopwatch is None else cast(T, _Watched(thing, stopwatch, parts))

    return watch


def stopwatch_of(profile: ProfileBoard | None, name: str) -> Stopwatch | None:
    """Returns the stopwatch of the process of this name, which counts on after a restart; None without a profile."""
    return None if profile is None else Stopwatch(profile.counts(name))


def timed_with(stopwatch: Stopwatch | None, part: str, function: F) -> F:
    """Returns the function with its time charged to `part`; without a stopwatch the function itself."""
    return function if stopwatch is None else cast(F, stopwatch.timed(part, function))


@final
class _Watched:
    """Stands for another object: some methods are timed, some are replaced, all others are those of the object."""

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
    """Draws and gathers in two calls, so that each is timed by itself."""

    def __init__(self, table: TableHandle, stopwatch: Stopwatch) -> None:
        self._table, self._stopwatch = table, stopwatch
        self._draw = stopwatch.timed("sample", table.draw)
        self._gather = stopwatch.timed("gather", table.gather)
        self._draw_and_gather = stopwatch.timed("gather", table.sample)

    def sample(self, num_items: int, *, columns: Sequence[str], timeout_s: float) -> Batch:
        """See Table. If items are evicted between the draw and the gather, the batch is drawn again, in one call."""
        batch = self._gather(self._draw(num_items, timeout_s=timeout_s), columns=columns)
        if batch.present is None or batch.present.all():
            return batch
        return self._draw_and_gather(num_items, columns=columns, timeout_s=timeout_s)

    @contextmanager
    def batches(self, *arguments: Any, **options: Any) -> Iterator[Iterator[Batch]]:
        """See Table. The time of next() is "gather": a thread of the batches draws and gathers ahead."""
        with self._table.batches(*arguments, **options) as batches:
            yield cast(Iterator[Batch], _WatchedBatches(batches, self._stopwatch))


def watched_table(table: TableHandle, stopwatch: Stopwatch | None) -> TableHandle:
    """Returns the table with every call timed that a learner makes; without a stopwatch the table itself."""
    if stopwatch is None:
        return table
    parts = {"update_priorities": "priorities", "set_policy_version": "parameters", "stats": "report"}
    reads = _Reads(table, stopwatch)
    return cast(TableHandle, _Watched(table, stopwatch, parts, {"sample": reads.sample, "batches": reads.batches}))
