"""Patterns in relive's words: relive.Pattern, its conditions, and one column more, which counts an episode's steps.

relive's conditions read columns of a step. Reverb's writer counts the steps of an episode itself; here a column of the
step contains this count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import relive
from conformance.relive_tables import NoWord
from conformance.words import Condition, Part, Pattern, TdError

__all__ = ["STEP_INDEX", "patterns_of"]

STEP_INDEX = "step_index"


def patterns_of(patterns: Sequence[Pattern]) -> list[relive.Pattern]:
    """The patterns of relive that stand for these patterns of Reverb.

    Raises:
        NoWord: relive has no equivalent.
        ReliveError: relive refuses a pattern.
    """
    return [made for one in patterns for made in _made(one)]


def _made(pattern: Pattern) -> Iterator[relive.Pattern]:
    """One pattern; several where a condition is met by several rests of a division."""
    if isinstance(pattern.priority, TdError):
        raise NoWord("a pattern's priority is a number")
    windows = {name: _slice(part) for name, part in pattern.parts.items()}
    at_end: bool | None = None
    rhythms: list[tuple[int, int | None]] = [(1, None)]  # every, first
    where: list[relive.Condition] = []
    for condition in pattern.conditions:
        if condition.left == "end_episode":
            at_end = True
        elif condition.left == "steps_since_applied":
            if condition.compare != ">=" or len(pattern.conditions) > 1:
                raise NoWord("items in a rhythm of steps, which do not look at each other")
            rhythms = [(condition.right, condition.right - 1)]
        elif condition.modulo is not None:
            rhythms = [(condition.modulo, rest) for rest in _rests(condition)]
        else:
            where.append(relive.Condition(condition.left, condition.compare, condition.right))  # type: ignore[arg-type]
    given = None if pattern.priority == 1.0 else pattern.priority
    for every, first in rhythms:
        yield relive.Pattern(
            windows, every=every, first=first, at_end=at_end, where=tuple(where), priority=given, index=pattern.table
        )


def _rests(condition: Condition) -> list[int]:
    if condition.of_data or condition.compare not in ("==", "!=") or condition.modulo is None:
        raise NoWord("conditions compare a column with a number")
    rests = range(condition.modulo)
    return [rest for rest in rests if (rest == condition.right) == (condition.compare == "==")]


def _slice(part: Part) -> slice:
    """The steps of a part as a slice without a stride, which is the window's."""
    if isinstance(part.steps, int):
        return slice(part.steps, part.steps + 1 or None)
    if part.steps.step is not None and part.steps.step > 0:
        return slice(part.steps.start, part.steps.stop)
    return part.steps  # type: ignore[no-any-return]
