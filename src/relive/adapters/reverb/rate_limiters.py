"""Reverb's rate limiters: when a table takes items and gives samples; no wait."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from typing import final

from relive.adapters.reverb.errors import WrongData
from relive.checks.values import finite, integer

__all__ = ["Gate", "MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]

_NO_LIMIT = sys.float_info.max


@dataclass(frozen=True)
class RateLimiter:
    """Bounds the difference inserted * samples_per_insert - sampled, once the table has min_size_to_sample items.

    Args:
        samples_per_insert: samples of an item on average, > 0.
        min_size_to_sample: the fewest items to sample from, >= 1.
        min_diff: a sample is allowed while the difference after it is at least this.
        max_diff: an insert is allowed while the difference after it is at most this.
    """

    samples_per_insert: float
    min_size_to_sample: int
    min_diff: float
    max_diff: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples_per_insert", finite("samples_per_insert", self.samples_per_insert, 0.0))
        if not self.samples_per_insert > 0:
            raise WrongData("samples_per_insert", "a number above 0", self.samples_per_insert)
        if not (isinstance(self.min_size_to_sample, int) and self.min_size_to_sample >= 1):
            raise WrongData("min_size_to_sample", "an integer >= 1", self.min_size_to_sample)
        if not self.min_diff < self.max_diff:
            raise WrongData("min_diff", f"a number below max_diff, {self.max_diff}", self.min_diff)


@final
class MinSize(RateLimiter):
    """Samples wait until the table has min_size_to_sample items; inserts never wait."""

    def __init__(self, min_size_to_sample: int) -> None:
        super().__init__(1.0, min_size_to_sample, -_NO_LIMIT, _NO_LIMIT)


@final
class SampleToInsertRatio(RateLimiter):
    """Keeps samples / inserts near samples_per_insert.

    Args:
        samples_per_insert: samples of an item on average.
        min_size_to_sample: the fewest items to sample from.
        error_buffer: how far the difference may move from samples_per_insert * min_size_to_sample, at least
            max(1, samples_per_insert); or (min_diff, max_diff) itself.
    """

    def __init__(
        self, samples_per_insert: float, min_size_to_sample: int, error_buffer: float | tuple[float, float]
    ) -> None:
        if isinstance(error_buffer, tuple):
            low, high = error_buffer
        else:
            least = max(1.0, samples_per_insert)
            if error_buffer < least:
                raise WrongData("error_buffer", f"at least max(1, samples_per_insert), {least}", error_buffer)
            middle = samples_per_insert * min_size_to_sample
            low, high = middle - error_buffer, middle + error_buffer
        first = samples_per_insert * min_size_to_sample
        if low > first:
            raise WrongData("error_buffer", f"a range that begins at {first} or below: else no sample is allowed", low)
        if high < first:
            told = f"error_buffer ends at {high}, below {first}: samplers have to sample while items are inserted"
            warnings.warn(told, stacklevel=2)
        super().__init__(samples_per_insert, min_size_to_sample, float(low), float(high))


@final
class Queue(RateLimiter):
    """A sample waits for an item, and an insert for room. For Fifo selectors with max_times_sampled=1."""

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, float(integer("size", size, 1)))


@final
class Stack(RateLimiter):
    """As Queue, for a Lifo sampler."""

    def __init__(self, size: int) -> None:
        super().__init__(1.0, 1, 0.0, float(integer("size", size, 1)))


@final
@dataclass
class Gate:
    """The counters of one table under its limiter."""

    limiter: RateLimiter
    inserted: int = field(default=0)
    sampled: int = field(default=0)
    deleted: int = field(default=0)

    def can_insert(self, number: int) -> bool:
        """Whether so many inserts are allowed now."""
        limiter = self.limiter
        if self.inserted - self.deleted + number <= limiter.min_size_to_sample:
            return True
        return (self.inserted + number) * limiter.samples_per_insert - self.sampled <= limiter.max_diff

    def can_sample(self, number: int) -> bool:
        """Whether so many samples are allowed now."""
        limiter = self.limiter
        if self.inserted - self.deleted < limiter.min_size_to_sample:
            return False
        return self.inserted * limiter.samples_per_insert - self.sampled - number >= limiter.min_diff

    def reset(self) -> None:
        """Sets all counters to 0."""
        self.inserted = self.sampled = self.deleted = 0
