"""Reverb's tables in relive's words: an index for each, and the spec of their rows.

To add a selector, add a line to SELECTORS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

import relive
from conformance.words import Limit, TableSetup

__all__ = ["NoWord", "has_priorities", "index_of", "spec_of"]

# A selector by the words of a case, with the exponent of a prioritized one.
SELECTORS: dict[str, Callable[[float], Any]] = {
    "uniform": lambda exponent: relive.Uniform(),
    "prioritized": relive.Prioritized,
    "fifo": lambda exponent: relive.Fifo(),
    "lifo": lambda exponent: relive.Lifo(),
    "min_heap": lambda exponent: relive.MinPriority(),
    "max_heap": lambda exponent: relive.MaxPriority(),
}
WITH_PRIORITIES = ("prioritized", "min_heap", "max_heap")


class NoWord(Exception):
    """relive has no equivalent of a part of the case, on purpose."""


def index_of(setup: TableSetup, items: Any, max_items: int | None = None) -> relive.Index:
    """The index that is this table's like, of these items. Raises NoWord, and what relive refuses it with."""
    return relive.Index(
        items,
        sampler=SELECTORS[setup.sampler](setup.exponent),
        remover=SELECTORS[setup.remover](setup.exponent),
        limiter=_limiter(setup.limit),
        max_times_sampled=setup.max_times_sampled if setup.max_times_sampled > 0 else None,
        max_items=max_items,
    )


def has_priorities(setup: TableSetup) -> bool:
    """Whether what draws or what removes looks at them."""
    return setup.sampler in WITH_PRIORITIES or setup.remover in WITH_PRIORITIES


def _limiter(limit: Limit) -> Any:
    if limit.kind in ("queue", "stack"):
        return relive.Queue(limit.size)
    if limit.kind == "min_size":
        return relive.MinSize(limit.size)
    buffer = limit.buffer
    if isinstance(buffer, tuple):
        middle, half = sum(buffer) / 2, (buffer[1] - buffer[0]) / 2
        if middle != limit.ratio * limit.size:
            raise NoWord("the window lies around samples_per_insert x min_size")
        buffer = half
    return relive.SamplesPerInsert(limit.ratio, limit.size, tolerance=buffer)


def spec_of(signature: Mapping[str, Any], late: Set[str] = frozenset()) -> dict[str, Any]:
    """The columns of a StepSpec, nested as the signature is, these of them late."""
    return {
        name: spec_of(one) if isinstance(one, Mapping) else relive.ArraySpec(one[1], one[0], late=name in late)
        for name, one in signature.items()
    }
