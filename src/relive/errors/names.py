"""Errors of unknown names: columns, arguments, attributes. Each error says the name that would do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from relive.errors.base import ReliveError
from relive.errors.slips import Slip, for_argument, for_column, for_missing, said

__all__ = ["MissingColumn", "UnknownArgument", "UnknownAttribute", "UnknownColumn", "UnnamedColumns"]


@final
class MissingColumn(ReliveError, ValueError):
    """A call left out a declared column. given: the columns that came."""

    def __init__(self, column: str, given: Iterable[str] = ()) -> None:
        self.column = column
        self.given = tuple(given)
        super().__init__(
            f"column {column!r} is declared but was not given"
            + (f" (given: {', '.join(self.given)})" if self.given else "")
            + said(for_missing(column, self.given))
        )


@final
class UnknownColumn(ReliveError, KeyError):
    """No spec or item has a column of this name.

    Attributes:
        known: the names that exist.
        instead: the name or code to write, or ''.
    """

    def __init__(self, column: str, known: Iterable[str] = (), instead: str = "") -> None:
        self.column = column
        self.known = tuple(known)
        slip = Slip(instead) if instead else for_column(column, self.known)
        self.instead = _instead(slip)
        super().__init__(
            f"unknown column {column!r}{said(slip)}" + (f" (known: {', '.join(self.known)})" if self.known else "")
        )


@final
class UnknownArgument(ReliveError, TypeError):
    """A class, function or method does not take this keyword.

    Attributes:
        callee: its name.
        known: its arguments.
        instead: the name or code to write, or ''.
    """

    def __init__(self, callee: str, argument: str, known: Iterable[str] = ()) -> None:
        self.callee = callee
        self.argument = argument
        self.known = tuple(known)
        slip = for_argument(callee, argument, self.known)
        self.instead = _instead(slip)
        takes = f"it takes {', '.join(self.known)}" if self.known else "it takes none"
        super().__init__(f"{callee}() has no argument {argument!r}{said(slip)}; {takes}")


@final
class UnknownAttribute(ReliveError, AttributeError):
    """An object of the library does not have this attribute. instead: the name or code to write, or ''."""

    def __init__(self, owner: str, attribute: str, instead: str = "", why: str = "") -> None:
        self.owner = owner
        self.attribute = attribute
        self.instead = instead
        super().__init__(f"{owner!r} has no attribute {attribute!r}{said(Slip(instead, why) if instead else None)}")


@final
class UnnamedColumns(ReliveError, TypeError):
    """A call that takes columns by name got values without a name. columns: the declared columns."""

    def __init__(self, callee: str, num_values: int, columns: Iterable[str] = ()) -> None:
        self.callee = callee
        self.num_values = num_values
        self.columns = tuple(columns)
        named = ", ".join(f"{name}=..." for name in dict.fromkeys(one.partition("/")[0] for one in self.columns))
        super().__init__(
            f"{callee}() takes columns by name, got {num_values} without: {callee}({named or 'name=...'}); a dict of"
            f" columns is given as {callee}(**columns)"
        )


def _instead(slip: Slip | None) -> str:
    return "" if slip is None else slip.instead
