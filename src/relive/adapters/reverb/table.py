"""Table: Reverb's table, whose items are rows of a relive table; the limiter and the facts of items are beside it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from relive.adapters.reverb import rate_limiters, selectors
from relive.adapters.reverb.errors import DeadlineExceededError, ReverbError, WrongData
from relive.adapters.reverb.rate_limiters import Gate, RateLimiter
from relive.adapters.reverb.samples import SampleInfo
from relive.adapters.trees import leaves
from relive.checks.values import integer
from relive.config.casting import unmasked
from relive.config.index import Index
from relive.config.items import Transitions
from relive.config.samplers import Reservoir
from relive.config.spec import ArraySpec, StepSpec
from relive.errors import DeadlineExceeded as NothingToDraw
from relive.errors import SpecError, WaitsForItself
from relive.reading.batch import Batch
from relive.reading.draws import Draw
from relive.table import table as tables

__all__ = ["Drawn", "Table", "TableClosed", "TableInfo"]

ITEMS, REMOVAL = "items", "removal"  # the indexes: one draws for samplers, one says which item leaves
_WITH_PRIORITIES = (selectors.Prioritized, selectors.MaxHeap, selectors.MinHeap)


@final
class TableClosed(ReverbError, RuntimeError):
    """A call waited for a table whose server was stopped."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"table {name!r}: its server was stopped")


class CallStats(NamedTuple):
    """Calls of one side that were let through."""

    completed: int


class RateLimiterInfo(NamedTuple):
    """The counters of a rate limiter."""

    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float
    insert_stats: CallStats
    sample_stats: CallStats


class TableInfo(NamedTuple):
    """The facts of a table at one moment."""

    name: str
    max_size: int
    max_times_sampled: int
    rate_limiter_info: RateLimiterInfo
    signature: Any
    current_size: int
    num_unique_samples: int


@dataclass(slots=True)
class _Facts:
    """The facts of an item that a relive table does not tell."""

    priority: float
    times_sampled: int = 0
    data: list[Any] | None = None  # of an item whose shapes differ from those of the first one


class Drawn(NamedTuple):
    """One draw: the facts of the item, and its leaves."""

    info: SampleInfo
    leaves: list[Any]


@final
class Table:
    """Reverb's Table.

    Items whose leaves have the shapes and dtypes of the first item lie in a relive table. Other items are kept as
    Python objects. Items that share steps each have these steps.

    Args:
        name: the name that writers and samplers use.
        sampler: the selector that chooses items to sample.
        remover: the selector that chooses the item that leaves when the table has max_size items.
        max_size: the most items.
        rate_limiter: when inserts and samples wait.
        max_times_sampled: an item leaves after so many samples; 0 or less: no limit.
        extensions: none; the argument has to be empty.
        signature: nested objects with `shape` and `dtype`; items have to fit. None: any items.

    Raises:
        WrongData: an argument has another type or value.
    """

    def __init__(
        self,
        name: str,
        sampler: selectors.Selector,
        remover: selectors.Selector,
        max_size: int,
        rate_limiter: RateLimiter,
        max_times_sampled: int = 0,
        extensions: Sequence[Any] = (),
        signature: Any = None,
    ) -> None:
        if extensions:
            raise WrongData("extensions of a Table", "none: relive has no extensions of tables", extensions)
        if not isinstance(name, str) or not name:
            raise WrongData("name of a Table", "text that is not empty", name)
        self.name = name
        self.max_size = integer("max_size", max_size, 1)
        self.max_times_sampled = max(integer("max_times_sampled", max_times_sampled, -(2**31)), 0)
        self.signature = signature
        self._sampler, self._remover = sampler, remover
        self._has_priorities = isinstance(sampler, _WITH_PRIORITIES) or isinstance(remover, _WITH_PRIORITIES)
        self._gate = Gate(rate_limiter)
        self._changed = threading.Condition()
        self._facts: dict[int, _Facts] = {}
        self._num_unique = 0
        self._random = np.random.default_rng()
        self._closed = False
        self._columns: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
        self.table: tables.Table | None = None  # made with the first item

    @classmethod
    def queue(cls, name: str, max_size: int, extensions: Sequence[Any] = (), signature: Any = None) -> Table:
        """A table that gives each item once, the oldest first."""
        kind, limiter = selectors.Fifo(), rate_limiters.Queue(max_size)
        return cls(name, kind, kind, max_size, limiter, 1, extensions, signature)

    @classmethod
    def stack(cls, name: str, max_size: int, extensions: Sequence[Any] = (), signature: Any = None) -> Table:
        """A table that gives each item once, the newest first."""
        kind, limiter = selectors.Lifo(), rate_limiters.Stack(max_size)
        return cls(name, kind, kind, max_size, limiter, 1, extensions, signature)

    # ---- looking ---------------------------------------------------------------------------------------------------

    @property
    def info(self) -> TableInfo:
        """The facts of the table at this moment."""
        with self._changed:
            gate, limiter = self._gate, self._gate.limiter
            bounds = (limiter.samples_per_insert, limiter.min_size_to_sample, limiter.min_diff, limiter.max_diff)
            calls = RateLimiterInfo(*bounds, CallStats(gate.inserted), CallStats(gate.sampled))
            own = (self.name, self.max_size, self.max_times_sampled, calls, self.signature)
            return TableInfo(*own, len(self._facts), self._num_unique)

    def can_insert(self, num_inserts: int) -> bool:
        """Whether the rate limiter allows so many inserts now."""
        with self._changed:
            return self._gate.can_insert(num_inserts)

    def can_sample(self, num_samples: int) -> bool:
        """Whether the rate limiter allows so many samples now."""
        with self._changed:
            return self._gate.can_sample(num_samples)

    # ---- changing --------------------------------------------------------------------------------------------------

    def insert(self, data: Sequence[Any], priority: float, timeout_s: float | None) -> int:
        """Inserts an item of these leaves when the rate limiter allows it; returns its key.

        Raises:
            DeadlineExceededError: the rate limiter did not allow it in time; nothing is inserted.
            WrongData: the data do not fit the signature, or the priority is no number.
            DtypeMismatch: a masked array hides a value.
            TableClosed: the server was stopped.
        """
        if not np.isfinite(priority):
            raise WrongData("priority of an item", "a finite number", priority)
        arrays = [unmasked(f"leaf {number}", leaf) for number, leaf in enumerate(data)]
        with self._changed:
            self._wait(lambda: self._gate.can_insert(1), timeout_s, f"an insert into table {self.name!r}")
            if self.table is None:
                self._make(arrays)
            key = self._write(arrays, float(priority))
            self._gate.inserted += 1
            while len(self._facts) > self.max_size:  # the new item is a candidate, too
                self._drop([self._victim()])
            self._changed.notify_all()
            return key

    def mutate(self, updates: Mapping[int, float], deletes: Iterable[int]) -> None:
        """Changes priorities and deletes items. Keys of items that are gone are left out."""
        with self._changed:
            known = {int(key): float(value) for key, value in updates.items() if int(key) in self._facts}
            if known and self.table is not None and self._has_priorities:
                keys = np.fromiter(known, np.int64, len(known))
                values = np.fromiter(known.values(), np.float64, len(known))
                for index, kind in ((ITEMS, self._sampler), (REMOVAL, self._remover)):
                    if isinstance(kind, _WITH_PRIORITIES):
                        self.table.update_priorities(keys, values, index=index)
            for key, value in known.items():
                self._facts[key].priority = value
            self._drop([int(key) for key in deletes if int(key) in self._facts])
            self._changed.notify_all()

    def reset(self) -> None:
        """Removes all items, and sets the rate limiter's counters to 0."""
        with self._changed:
            if self.table is not None:
                self.table.clear()
            self._facts.clear()
            self._gate.reset()
            self._num_unique = 0
            self._changed.notify_all()

    def close(self) -> None:
        """Ends calls that wait, and frees the memory."""
        with self._changed:
            self._closed = True
            if self.table is not None:
                self.table.close()
            self._changed.notify_all()

    def _make(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Makes the relive table: a row an item, a column a leaf."""
        spec: dict[str, Any] = {"leaf": ArraySpec((), np.int8)}  # a table has one column at least
        try:
            spec |= {f"leaf{number}": ArraySpec(one.shape, one.dtype) for number, one in enumerate(arrays)}
            StepSpec(spec)
            self._columns = [(one.shape, one.dtype) for one in arrays]
        except SpecError:  # texts: such items are kept as they are
            spec = {"leaf": ArraySpec((), np.int8)}
        oldest_first = isinstance(self._remover, selectors.Fifo)
        drawn = Index(Transitions(), self._sampler.sampler())
        if not oldest_first:
            drawn = replace(drawn, remover=Reservoir(), max_items=self.max_size + 2)
        capacity = drawn.steps_to_hold or 2 * self.max_size + 64
        indexes = {ITEMS: drawn, REMOVAL: Index(Transitions(), self._remover.sampler())}
        self.table = tables.Table(StepSpec(spec), capacity, indexes, max_lanes=1)
        self._writer = self.table.writer()

    def _write(self, arrays: Sequence[NDArray[Any]], priority: float) -> int:
        fits = bool(self._columns) and [(one.shape, one.dtype) for one in arrays] == self._columns
        columns: dict[str, Any] = {"leaf": np.int8(fits)}
        for number, (shape, dtype) in enumerate(self._columns):
            columns[f"leaf{number}"] = arrays[number] if fits else np.zeros(shape, dtype)
        key = int(self._writer.append(priority=priority if self._has_priorities else None, **columns))
        self._facts[key] = _Facts(priority, data=None if fits else [one.copy() for one in arrays])
        return key

    def _victim(self) -> int:
        assert self.table is not None
        try:
            return int(self.table.draw(1, timeout_s=0, index=REMOVAL).item_keys[0])
        except (NothingToDraw, WaitsForItself):  # all priorities are 0
            return int(next(iter(self.table.keys()))[0])

    def _drop(self, keys: Sequence[int]) -> None:
        if not keys:
            return
        assert self.table is not None
        self.table.delete(np.array(keys, np.int64))
        for key in keys:
            del self._facts[key]
        self._gate.deleted += len(keys)

    # ---- sampling --------------------------------------------------------------------------------------------------

    def sample(self, most: int, timeout_s: float | None) -> list[Drawn]:
        """Draws at least one item and at most so many, as the rate limiter allows.

        Raises:
            DeadlineExceededError: the rate limiter allowed none in time.
            TableClosed: the server was stopped.
        """
        with self._changed:
            self._wait(lambda: self._gate.can_sample(1), timeout_s, f"a sample of table {self.name!r}")
            number = 1
            while number < most and self._gate.can_sample(number + 1):
                number += 1
            if self.max_times_sampled or not self._sampler.by_chance:
                drawn = self._one_by_one(number)
            else:
                batch = self._batch(number)
                drawn = [self._drawn(batch, row) for row in range(number)]
            self._gate.sampled += len(drawn)
            self._changed.notify_all()
            return drawn

    def _one_by_one(self, number: int) -> list[Drawn]:
        drawn: list[Drawn] = []
        while len(drawn) < number and (not drawn or self._gate.can_sample(len(drawn) + 1)) and self._facts:
            one = self._drawn(self._batch(1), 0)
            drawn.append(one)
            if self.max_times_sampled and one.info.times_sampled >= self.max_times_sampled:
                self._drop([one.info.key])
        return drawn

    def _batch(self, number: int) -> Batch:
        assert self.table is not None
        try:
            return self.table.sample(number, timeout_s=0, index=ITEMS)
        except (NothingToDraw, WaitsForItself):  # all priorities are 0: every item has the same probability
            known = np.fromiter(self._facts, np.int64, len(self._facts))
            keys = self._random.choice(known, number)
            return self.table.gather(Draw.of(keys, np.full(number, 1 / len(known)), index=ITEMS))

    def _drawn(self, batch: Batch, row: int) -> Drawn:
        key = int(batch.item_keys[row])
        facts = self._facts[key]
        self._num_unique += facts.times_sampled == 0
        facts.times_sampled += 1
        probability = float(batch.probabilities[row])
        info = SampleInfo(key, probability, len(self._facts), facts.priority, facts.times_sampled)
        if facts.data is not None:
            return Drawn(info, [one.copy() for one in facts.data])
        return Drawn(info, [np.asarray(batch[f"leaf{number}"][row]) for number in range(len(self._columns))])

    def _wait(self, ready: Any, timeout_s: float | None, what: str) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._closed:
                raise TableClosed(self.name)
            if ready():
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise DeadlineExceededError(what, float(timeout_s or 0.0))
            self._changed.wait(1.0 if left is None else min(left, 1.0))

    def check(self, structure: Any) -> None:
        """Raises WrongData if nested arrays do not fit the signature."""
        if self.signature is None:
            return
        specs, given = leaves(self.signature), leaves(structure)
        if len(specs) != len(given):
            raise WrongData(f"item of table {self.name!r}", f"{len(specs)} leaves, as its signature", len(given))
        for spec, one in zip(specs, given, strict=True):
            dtype = np.dtype(getattr(spec.dtype, "as_numpy_dtype", spec.dtype))
            shape = tuple(spec.shape)
            is_text = dtype.kind == "O" and one.dtype.kind in "OSU"
            fits = len(shape) == one.ndim and all(a is None or a == b for a, b in zip(shape, one.shape, strict=True))
            if not fits or not (is_text or dtype == one.dtype):
                raise WrongData(
                    f"item of table {self.name!r}", f"{dtype}{list(shape)}", f"{one.dtype}{list(one.shape)}"
                )

    def __repr__(self) -> str:
        return f"Table({self.name!r}, {len(self._facts)} of {self.max_size} items)"
