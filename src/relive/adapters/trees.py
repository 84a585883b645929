"""Nested data as a list of leaves, dicts by sorted keys (the order of Reverb and of jax); no arrays of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["leaves", "mapped", "paths", "rebuilt"]


def leaves(data: Any) -> list[Any]:
    """The leaves of nested dicts, lists and tuples."""
    return [leaf for _, leaf in paths(data)]


def paths(data: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """(path, leaf) of each leaf."""
    if isinstance(data, Mapping):
        for name in sorted(data):
            yield from paths(data[name], (*above, name))
    elif isinstance(data, (list, tuple)):
        for position, part in enumerate(data):
            yield from paths(part, (*above, position))
    else:
        yield above, data


def mapped(function: Callable[[Any], Any], data: Any) -> Any:
    """The same nesting with the function's values as leaves."""
    return rebuilt(data, iter([function(leaf) for leaf in leaves(data)]))


def rebuilt(like: Any, values: Iterator[Any]) -> Any:
    """The nesting of `like` with these leaves."""
    if isinstance(like, Mapping):
        made = {name: rebuilt(like[name], values) for name in sorted(like)}
        return {name: made[name] for name in like}
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*(rebuilt(part, values) for part in like))
    if isinstance(like, (list, tuple)):
        return type(like)(rebuilt(part, values) for part in like)
    return next(values)
