"""Entries: the description of a value and its place as one text, which other systems copy and send at low cost."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from relive.adapters.rollouts.blocks import Place

__all__ = ["Description", "describe", "entries_of", "place_of"]


class Description(NamedTuple):
    """The type of a value, a torch dtype's name or "pickle", and the shape of a tensor."""

    type: str
    shape: tuple[int, ...]


def entries_of(descriptions: Sequence[Description], places: Sequence[Place]) -> list[str]:
    """The entry of each value: type, shape and place, each a list of numbers."""
    return [
        f"{described.type} {','.join(map(str, described.shape))} {','.join(map(str, place))}"
        for described, place in zip(descriptions, places, strict=True)
    ]


def describe(entry: str) -> Description:
    """The description in an entry."""
    return _description(entry[: entry.rindex(" ")])


@functools.lru_cache(maxsize=4096)
def _description(text: str) -> Description:
    kind, shape = text.split(" ")
    return Description(kind, tuple(map(int, shape.split(","))) if shape else ())


def place_of(entry: str) -> Place:
    """The place in an entry."""
    return [int(number) for number in entry.rpartition(" ")[2].split(",")]
