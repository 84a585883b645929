"""Reverb's tables in relive's words: an index for each, and the spec of their rows.

What relive decided on and does not have yet stands at the top: a class further is a line less there, one more below.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import relive
from conformance.system import NotYet
from conformance.words import Limit, TableSetup

__all__ = ["NoWord", "index_of", "spec_of"]

# What is to come, by the words of a case.
SAMPLERS_TO_COME = {
    "fifo": "Fifo as a sampler",
    "lifo": "Lifo as a sampler",
    "min_heap": "MinPriority as a sampler",
    "max_heap": "MaxPriority as a sampler",
}
REMOVERS_TO_COME = {
    "lifo": "Lifo as a remover",
    "uniform": "Uniform as a remover",
    "prioritized": "Prioritized as a remover",
    "min_heap": "MinPriority as a remover",
    "max_heap": "MaxPriority as a remover",
}
LIMITERS_TO_COME = {"queue": "the limiter Queue", "stack": "the limiter Queue over a Lifo sampler"}


class NoWord(Exception):
    """What the case asks for has no word in relive, on purpose."""


def index_of(setup: TableSetup, items: Any, max_items: int | None = None) -> relive.Index:
    """The index that is this table's like, of these items. Raises NotYet, NoWord, and what relive refuses it with."""
    for what, value, coming in (
        ("sampler", setup.sampler, SAMPLERS_TO_COME),
        ("remover", setup.remover, REMOVERS_TO_COME),
        ("limiter", setup.limit.kind, LIMITERS_TO_COME),
    ):
        if value in coming:
            raise NotYet(coming[value])
        assert value in ("uniform", "prioritized", "fifo", "min_size", "ratio"), f"{what} {value!r}"
    sampler = relive.Prioritized(setup.exponent) if setup.sampler == "prioritized" else relive.Uniform()
    uses = setup.max_times_sampled if setup.max_times_sampled > 0 else None
    limiter = _limiter(setup.limit)
    return relive.Index(items, sampler=sampler, limiter=limiter, max_times_sampled=uses, max_items=max_items)


def _limiter(limit: Limit) -> relive.MinSize | relive.SamplesPerInsert:
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
