"""Errors of the values that a caller gives: columns, configurations, lanes, priorities, keys."""

from __future__ import annotations

from typing import final

from relive.errors.base import ReliveError, plain, shown, way_to_shape

__all__ = [
    "DtypeMismatch",
    "ForeignKey",
    "InvalidConfig",
    "InvalidPriority",
    "LaneError",
    "NoPriorities",
    "NoProbabilities",
    "ShapeMismatch",
    "SpecError",
]


@final
class SpecError(ReliveError, ValueError):
    """A StepSpec or ArraySpec is not possible. what: the part of it, such as a column."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        self.what = what
        self.expected = expected
        self.got = plain(got)
        super().__init__(f"{what}: expected {expected}, got {shown(self.got)}")


@final
class InvalidConfig(ReliveError, ValueError):
    """A configuration value, or an argument of a call, is out of its range."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        self.what = what
        self.expected = expected
        self.got = plain(got)
        super().__init__(f"{what}: expected {expected}, got {shown(self.got)}")


@final
class ShapeMismatch(ReliveError, ValueError):
    """An array has another shape than its column or argument."""

    def __init__(self, column: str, expected: object, got: object) -> None:
        self.column = column
        self.expected = plain(expected)
        self.got = plain(got)
        way_out = way_to_shape(self.expected, self.got, _is_argument(column))
        if column.startswith("out["):  # of gather: a batch of Episodes shows fewer rows than its memory has
            way_out = "; of Episodes with every row: give a dict of arrays, not a batch, whose time axis is cut"
        super().__init__(f"{_what(column)}: expected shape {self.expected}, got {self.got}" + way_out)


@final
class DtypeMismatch(ReliveError, TypeError):
    """The dtype of a column or argument cannot represent the values without loss."""

    def __init__(self, column: str, expected: str, got: object) -> None:
        self.column = column
        self.expected = expected
        self.got = plain(got)
        is_image = expected.startswith("uint8") and str(self.got).startswith("float")
        way_out = (
            "store images as they are and scale them after sampling"
            if is_image
            else "convert it before the call or declare another dtype"
        )
        super().__init__(
            f"{_what(column)}: expected {expected}, got {self.got}; only lossless casts and numpy's same_kind casts"
            f" (float64 to float32) are made, so {way_out}"
        )


def _is_argument(column: str) -> bool:
    return column in ("priorities", "item_keys") or column.startswith("out[")


def _what(column: str) -> str:
    return column if _is_argument(column) else f"column {column!r}"


@final
class LaneError(ReliveError, ValueError):
    """lanes= does not fit the writer: its shape, its range, or a lane that is named twice."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        self.what = what
        self.expected = expected
        self.got = plain(got)
        super().__init__(f"{what}: expected {expected}, got {shown(self.got)}")


@final
class InvalidPriority(ReliveError, ValueError):
    """A priority is NaN, infinite or negative. Nothing of the call was applied."""

    def __init__(self, position: int, value: float) -> None:
        self.position = position
        self.value = value
        super().__init__(
            f"priority {value!r} at position {position}: expected a finite number >= 0; take abs() of an error and see"
            " why it is not finite"
        )


@final
class ForeignKey(ReliveError, ValueError):
    """This table never gave out the key. Nothing of the call was applied."""

    def __init__(self, position: int, key: int) -> None:
        self.position = position
        self.key = key
        super().__init__(
            f"key {key} at position {position} is not of this table; pass the item_keys of its own batches and draws"
        )


@final
class NoPriorities(ReliveError, ValueError):
    """Priorities were given to an index whose sampler and remover ignore priorities."""

    def __init__(self, index: object = None) -> None:
        self.index = index
        super().__init__(
            f"nothing of index {index!r} looks at priorities, so it has none; build it with Prioritized(),"
            " RankBased(), TopK(k), MaxPriority() or MinPriority(), or name another one"
        )


@final
class NoProbabilities(ReliveError, ValueError):
    """A batch that was gathered by keys, and not drawn, has no weights and probabilities."""

    def __init__(self) -> None:
        super().__init__(
            "this batch was gathered by keys, so it was drawn with no probability; gather a Draw, or use sample()"
        )
