"""The steps of a buffer: a table with one lane for each row, and the keys of its steps by place; no samples by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from relive.adapters.flashbax.arrays import canonical, concrete, handed_over, taken_apart
from relive.checks.values import finite, integer
from relive.config.casting import unmasked
from relive.config.index import Index
from relive.config.items import MAX_ROWS, Sequences
from relive.config.samplers import Prioritized, Uniform
from relive.config.spec import ArraySpec, StepSpec
from relive.config.storage import Storage
from relive.core.protocol import ReplayWriter
from relive.errors import DtypeMismatch, InvalidConfig, ShapeMismatch
from relive.reading.batch import Batch
from relive.table.table import Table

__all__ = ["Form", "Plan", "Store"]

Form = Literal["trajectories", "pairs", "items"]  # of a sample

_STEP, _PLACE = "experience", "place"  # the columns of the table: the leaves of a step, and its place in the ring


@final
@dataclass(frozen=True)
class Plan:
    """The numbers of a buffer: B rows of at most `most` steps, and samples of N windows of `length` steps."""

    rows: int
    num_samples: int
    length: int
    period: int
    least: int
    most: Any
    form: Form = "trajectories"
    has_batches: bool = True
    has_sequences: bool = True
    exponent: float | None = None
    storage: Storage | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        integer("sample_batch_size", self.num_samples, 1)
        integer("sample_sequence_length", self.length, 1, MAX_ROWS)
        integer("period", self.period, 1, MAX_ROWS)
        integer("the most steps of a row, from max_length_time_axis, max_size or max_length", self.most, self.length)
        integer("the fewest steps of a row before a sample, from min_length", self.least, 0, self.most)
        integer("seed", self.seed, 0)
        if self.exponent is not None:
            finite("priority_exponent", self.exponent, 0.0, 1.0)


@final
class Store:
    """A table with one lane for each row of the buffer, and the keys of its steps by place."""

    def __init__(self, plan: Plan, step: Any) -> None:
        self.plan = plan
        leaves, self._build = taken_apart(step)
        if not leaves:
            raise InvalidConfig("experience of init", "one step: a tree with at least one array", step)
        self.leaves = {name: canonical(leaf, "init") for name, leaf in leaves.items()}
        specs = {name: ArraySpec(leaf.shape, leaf.dtype) for name, leaf in self.leaves.items()}
        items = Sequences(plan.length, period=plan.period, at_end="drop", time_major=plan.form == "pairs")
        sampler = Uniform() if plan.exponent is None else Prioritized(plan.exponent)
        steps = plan.rows * plan.most
        self.table = Table(
            StepSpec({_STEP: specs, _PLACE: ArraySpec((), np.int64)}),
            steps + steps // 2 + 64 * plan.rows,  # room for pages with deleted steps
            Index(items, sampler),
            storage=plan.storage,
            max_lanes=plan.rows,
            seed=plan.seed,
        )
        self._writer: ReplayWriter = self.table.writer(plan.rows)
        self._names = [*(f"{_STEP}/{name}" for name in self.leaves), _PLACE]
        self.keys = np.full((plan.rows, plan.most), -1, np.int64)
        self.total = 0  # steps that each row ever got
        self.version = 0

    def add(self, batch: Any) -> None:
        """Writes the steps of a batch. They take the places of the oldest ones."""
        leaves, _ = taken_apart(batch)
        if list(leaves) != list(self.leaves):
            raise InvalidConfig("batch to add", f"the leaves {', '.join(self.leaves)}", ", ".join(leaves))
        arrays = {name: self._by_time(name, leaf) for name, leaf in leaves.items()}
        number = len(next(iter(arrays.values())))
        for name, array in arrays.items():
            expected = (number, self.plan.rows, *self.leaves[name].shape)
            if array.shape != expected or not 0 < number <= self.plan.most:
                most = f"at most {self.plan.most} steps of {self.plan.rows} rows: (steps, rows, ...) {expected}"
                raise ShapeMismatch(f"{name} of the batch to add", most, array.shape)
        places = (self.total + np.arange(number)) % self.plan.most
        old = self.keys[:, places]
        if self.total + number > self.plan.most:
            self.table.delete(old[old >= 0])
            self.keys[:, places] = -1
        ring = places[:, np.newaxis] + np.arange(self.plan.rows) * self.plan.most
        self.keys[:, places] = self._writer.extend(**{_STEP: arrays, _PLACE: ring}).T
        self.total += number
        self.version += 1

    def _by_time(self, name: str, leaf: Any) -> NDArray[Any]:
        """The values of a leaf, [T, B, ...]."""
        array = canonical(leaf, "add")
        if array.dtype != self.leaves[name].dtype:
            raise DtypeMismatch(f"{name} of the batch to add", str(self.leaves[name].dtype), str(array.dtype))
        if not self.plan.has_batches:
            array = array[np.newaxis]
        if not self.plan.has_sequences and array.ndim:
            array = array[:, np.newaxis]
        if array.ndim < 2:
            return array
        if self.plan.form == "items":
            return array.reshape(-1, 1, *array.shape[2:])
        return array.swapaxes(0, 1)

    def draw(self) -> Batch:
        """One sample. Raises DeadlineExceeded if there is no item yet."""
        return self.table.sample(self.plan.num_samples, self._names, timeout_s=0.0)

    def steps(self, batch: Batch, place: Any) -> Any:
        """A part of the leaves of a sample, as a tree of the caller's."""
        return self._build([handed_over(batch[name][place]) for name in self._names[:-1]])

    def indices(self, batch: Batch) -> Any:
        """The numbers of the items of a sample: row * (items of a row) + place // period, as in Flashbax."""
        places = batch[_PLACE][0] if self.plan.form == "pairs" else batch[_PLACE][:, 0]
        return handed_over((places // self.plan.period).astype(np.int32))

    def set_priorities(self, indices: Any, priorities: Any) -> None:
        """Sets the priorities of the items that stand at these indices now."""
        numbers = unmasked("indices", concrete(indices, "set_priorities")).reshape(-1)
        given = unmasked("priorities", concrete(priorities, "set_priorities"), np.float32).reshape(-1)
        if numbers.dtype.kind not in "iu":
            raise DtypeMismatch("indices", "int32", str(numbers.dtype))
        if numbers.shape != given.shape:
            raise ShapeMismatch("priorities", numbers.shape, given.shape)
        most = self.keys.size // self.plan.period
        if ((numbers < 0) | (numbers >= most)).any():
            raise InvalidConfig("indices", f"integers from 0 to {most - 1}", numbers)
        keys = self.keys.reshape(-1)[numbers.astype(np.int64) * self.plan.period]
        self.table.update_priorities(keys[keys >= 0], given[keys >= 0])
        self.version += 1
