"""Statistics of runs with several seeds: bootstrap intervals, and when a curve reached a return. No clock, no file.

difference   mean(a) - mean(b) of two independent samples
interval     percentile bootstrap (Efron 1979): each sample is resampled with replacement, num_draws times. A 90%
             interval lies between the 5th and the 95th percentile of the differences of the resampled means
parity       the lower end of the 90% interval of (ours - theirs) is at least -5% of their range. Their range is the
             distance from their mean return before learning to their mean return at the end
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Interval:
    """A difference of means, and its bootstrap interval."""

    difference: float
    low: float
    high: float


def interval(
    ours: Sequence[float], theirs: Sequence[float], *, level: float = 0.9, num_draws: int = 10_000, seed: int = 0
) -> Interval:
    """The bootstrap interval of mean(ours) - mean(theirs).

    Raises:
        ValueError: A sample is empty, or level is not inside (0, 1).
    """
    if not len(ours) or not len(theirs) or not 0.0 < level < 1.0:
        raise ValueError(f"two samples and a level in (0, 1), got {len(ours)}, {len(theirs)} values and {level}")
    rng = np.random.default_rng(seed)
    means = [rng.choice(np.asarray(sample, float), (num_draws, len(sample))).mean(axis=1) for sample in (ours, theirs)]
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(means[0] - means[1], (tail, 100.0 - tail))
    return Interval(float(np.mean(ours) - np.mean(theirs)), float(low), float(high))


@dataclass(frozen=True)
class Parity:
    """Whether ours is no worse than theirs. margin: the lowest end of the interval that is let pass, <= 0."""

    interval: Interval
    margin: float

    @property
    def reached(self) -> bool:
        """Whether the interval's lower end is above the margin."""
        return self.interval.low >= self.margin


def parity(
    ours: Sequence[float], theirs: Sequence[float], theirs_at_first: Sequence[float], *, share: float = 0.05
) -> Parity:
    """The parity of final returns, one a seed. theirs_at_first: their returns before learning."""
    found = interval(ours, theirs)
    came = abs(float(np.mean(theirs)) - float(np.mean(theirs_at_first)))
    return Parity(found, -share * came)


def reached_at(curve: Points, threshold: float) -> float | None:
    """The first place of a curve [(place, return)] at which the return is at least the threshold; None: nowhere."""
    return next((place for place, value in curve if value >= threshold), None)


def median_with_none(values: Sequence[float | None]) -> float | None:
    """The median where None counts as later than all others; None where that is in the middle."""
    if not values:
        return None
    ordered = sorted(float("inf") if value is None else value for value in values)
    middle = float(np.median(ordered)) if np.isfinite(ordered[len(ordered) // 2]) else float("inf")
    return None if np.isinf(middle) else middle


def mean_curve(curves: Sequence[Points], num_places: int = 101) -> tuple[np.ndarray, np.ndarray]:
    """Places [P], and at each of them the returns [curves, P], straight between points; held beyond the ends."""
    first = min(curve[0][0] for curve in curves)
    last = min(curve[-1][0] for curve in curves)
    places = np.linspace(first, last, num_places)
    values = [np.interp(places, *np.asarray(curve, float).T) for curve in curves]
    return places, np.asarray(values)
