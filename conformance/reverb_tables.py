"""The tables and patterns of cases in dm-reverb's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import reverb
import tensorflow as tf
from reverb import structured_writer

from conformance.words import Condition, Limit, Pattern, TableSetup, TdError

__all__ = ["columns_looked_at", "config_of", "table_of"]

TYPES = {"str": tf.string}  # by the names that numpy has for them


def table_of(setup: TableSetup) -> Any:
    return reverb.Table(
        setup.name,
        sampler=_selector(setup.sampler, setup.exponent),
        remover=_selector(setup.remover, setup.exponent),
        max_size=setup.max_size,
        rate_limiter=_limiter(setup.limit),
        max_times_sampled=setup.max_times_sampled,
        signature=None if setup.signature is None else _signature(setup.signature),
    )


def _selector(name: str, exponent: float) -> Any:
    if name == "prioritized":
        return reverb.selectors.Prioritized(exponent)
    kinds = {
        "uniform": reverb.selectors.Uniform,
        "fifo": reverb.selectors.Fifo,
        "lifo": reverb.selectors.Lifo,
        "min_heap": reverb.selectors.MinHeap,
        "max_heap": reverb.selectors.MaxHeap,
    }
    return kinds[name]()


def _limiter(limit: Limit) -> Any:
    if limit.kind == "min_size":
        return reverb.rate_limiters.MinSize(limit.size)
    if limit.kind == "ratio":
        return reverb.rate_limiters.SampleToInsertRatio(limit.ratio, limit.size, limit.buffer)
    return (reverb.rate_limiters.Queue if limit.kind == "queue" else reverb.rate_limiters.Stack)(limit.size)


def _signature(signature: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _signature(one) if isinstance(one, Mapping) else tf.TensorSpec(one[1], TYPES.get(one[0], one[0]))
        for name, one in signature.items()
    }


def columns_looked_at(patterns: Sequence[Pattern]) -> set[str]:
    """The columns that conditions and priorities of these patterns look at."""
    names = {condition.left for one in patterns for condition in one.conditions if condition.of_data}
    return names | {one.priority.column for one in patterns if isinstance(one.priority, TdError)}


def config_of(pattern: Pattern, step_structure: Mapping[str, None]) -> Any:
    reference = structured_writer.create_reference_step(dict(step_structure))
    priority = pattern.priority
    return structured_writer.create_config(
        {name: reference[part.column][part.steps] for name, part in pattern.parts.items()},
        pattern.table,
        [_condition(one, step_structure) for one in pattern.conditions],
        structured_writer.td_error(priority.weight, dict(step_structure), lambda step: step[priority.column])
        if isinstance(priority, TdError)
        else structured_writer.constant_priority_fn(priority),
    )


def _condition(condition: Condition, step_structure: Mapping[str, None]) -> Any:
    kinds = structured_writer.Condition
    if condition.left == "end_episode":
        return kinds.is_end_episode()
    if condition.of_data:
        left = kinds.data(dict(step_structure))[condition.left]
    else:
        left = getattr(kinds, condition.left)()
    if condition.modulo is not None:
        left = left % condition.modulo
    right = condition.right
    compared = {
        "==": lambda: left == right,
        "!=": lambda: left != right,
        "<=": lambda: left <= right,
        ">=": lambda: left >= right,
        "<": lambda: left < right,
        ">": lambda: left > right,
    }
    return compared[condition.compare]()
