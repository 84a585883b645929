"""The state of a mixture as plain values: where its shares are, and which draws of its sources come next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from relive.errors import InvalidConfig
from relive.over.mixed_draws import MixedDraws, Position
from relive.over.shares import Counted, Shares
from relive.over.sources import Source, stream_of

__all__ = ["go_on_from", "state_of"]

_VERSION = 1


def state_of(draws: MixedDraws) -> dict[str, Any]:
    """Returns the state after the last batch that was handed out. The caller is alone with the draws."""
    position, shares = draws.frontier(), draws.shares
    return {
        "version": _VERSION,
        "shares": dict(zip(shares.names, shares.weights, strict=True)),
        "num_items": position.counted.num_items,
        "of_source": list(position.counted.of_source),
        "random": dict(position.random),
        "streams": [stream_of(one.table) for one in draws.sources],
        "next_draws": list(position.numbers),
    }


def go_on_from(draws: MixedDraws, state: Mapping[str, Any]) -> None:
    """Goes on from a state that `state_of` returned.

    Raises InvalidConfig for another, and the errors of MixedDraws.go_to. The position then stays as it was.
    """
    if not isinstance(state, Mapping):
        raise InvalidConfig("state of a Mixture", "what its state_dict() returned", state)
    if state.get("version") != _VERSION:
        raise InvalidConfig("version of the state of a Mixture", str(_VERSION), state.get("version"))
    shares = draws.shares
    expected = dict(zip(shares.names, shares.weights, strict=True))
    if state.get("shares") != expected or list(state["shares"]) != list(expected):
        raise InvalidConfig("shares in the state of a Mixture", f"those of this one: {expected}", state.get("shares"))
    counted = _counted(shares, state.get("num_items"), state.get("of_source"))
    streams = _entries(state, "streams", shares, 64)
    following = _entries(state, "next_draws", shares, 63)
    numbers = tuple(map(_number_for, draws.sources, streams, following))
    draws.go_to(Position(counted, 0, _random(state.get("random")), numbers))


def _number_for(source: Source, stream: int | None, following: int | None) -> int | None:
    """The number that the next draw of a source takes; None: it keeps its own.

    Ranks that draw together take the number of the state on whatever streams they draw, because it is one for all. If
    the state has none, each rank gives its own: no rank may leave out the call in which all agree on it. `stream` is
    None in older states for a table over shards.
    """
    if source.table.num_ranks > 1:
        return source.next_draw if following is None else following
    is_same = stream in (None, stream_of(source.table)) and source.next_draw is not None
    return following if is_same else None


def _entries(state: Mapping[str, Any], name: str, shares: Shares, num_bits: int) -> list[int | None]:
    """An integer or None for each source. Raises InvalidConfig for anything else."""
    entries = state.get(name)
    if not isinstance(entries, (list, tuple)) or len(entries) != len(shares.names):
        raise InvalidConfig(f"{name!r} in the state of a Mixture", f"one for each of {shares.names}", entries)
    for value in entries:
        if value is not None and (type(value) is not int or not 0 <= value < 1 << num_bits):
            expected = f"integers from 0 to {(1 << num_bits) - 1}, or None"
            raise InvalidConfig(f"{name!r} in the state of a Mixture", expected, value)
    return list(entries)


def _counted(shares: Shares, num_items: Any, of_source: Any) -> Counted:
    """The position of the shares. Raises InvalidConfig for one that no mixture with these shares reaches."""
    expected = "a position that the shares reach"
    whole = [num_items, *of_source] if isinstance(of_source, (list, tuple)) else [None]
    if any(type(one) is not int for one in whole) or not 0 <= num_items < shares.period:
        raise InvalidConfig("'num_items' and 'of_source' in the state of a Mixture", expected, (num_items, of_source))
    off = [shares.period * one - num_items * weight for one, weight in zip(of_source, shares.weights, strict=False)]
    fits = len(of_source) == len(shares.weights) and sum(of_source) == num_items
    if not fits or max(map(abs, off)) >= shares.period:
        raise InvalidConfig("'of_source' in the state of a Mixture", expected, list(of_source))
    return Counted(num_items, tuple(of_source))


def _random(state: Any) -> Mapping[str, Any]:
    """The state of a generator. Raises InvalidConfig."""
    try:
        generator = np.random.PCG64(0)
        generator.state = state
    except (TypeError, ValueError, KeyError, OverflowError) as problem:
        raise InvalidConfig("'random' in the state of a Mixture", "a state of PCG64", str(problem)) from problem
    return dict(state)
