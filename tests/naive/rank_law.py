"""The law of RankBased and TopK, written a second time: item by item, from a sorted list."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import relive

Numbers = npt.NDArray[np.float64]


def class_of(priority: float) -> int:
    """The class of a priority: its exponent and 7 bits behind the point; higher classes are better."""
    bits = int(np.float32(priority).view(np.uint32)) & 0x7FFFFFFF
    return bits >> 16 if bits >> 23 else 0


def masses(sampler: Any, n: int) -> Numbers:
    """The mass of each rank, the best first. The masses sum to 1."""
    if isinstance(sampler, relive.RankBased):
        weights = np.arange(1, n + 1, dtype=np.float64) ** -sampler.priority_exponent
    else:
        k = sampler.k if isinstance(sampler.k, int) else max(1, int(np.floor(sampler.k * n + 0.5)))
        weights = (np.arange(n) < k).astype(np.float64)
    return np.asarray(weights / weights.sum())


def expected(sampler: Any, priorities: Numbers) -> Numbers:
    """The probability of each item: its class's share of the mass of ranks."""
    classes = np.array([class_of(p) for p in priorities])
    of_ranks = masses(sampler, len(priorities))
    shares = np.zeros(len(priorities))
    before = 0
    for one in sorted(set(classes.tolist()), reverse=True):
        members = np.flatnonzero(classes == one)
        shares[members] = of_ranks[before : before + len(members)].sum() / len(members)
        before += len(members)
    return shares
