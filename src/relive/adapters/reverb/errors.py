"""The errors of Reverb's names, as ReliveErrors that Reverb's programs can catch."""

from __future__ import annotations

from typing import final

from relive.errors import ReliveError

__all__ = ["DeadlineExceededError", "ReverbError", "TableNotFound", "WrongData"]


class ReverbError(ReliveError):
    """The base of the errors of this module."""


@final
class DeadlineExceededError(ReverbError):
    """A call did not end before its timeout."""

    def __init__(self, what: str, timeout_s: float) -> None:
        self.what = what
        self.timeout_s = timeout_s
        super().__init__(f"{what} did not end within {timeout_s} s: the table's rate limiter does not allow it")


@final
class TableNotFound(ReverbError, RuntimeError):
    """A server has no table of this name."""

    def __init__(self, name: str, known: list[str]) -> None:
        self.name = name
        self.known = known
        super().__init__(f"no table {name!r}; expected {' or '.join(map(repr, known)) or 'a server with tables'}")


@final
class WrongData(ReverbError, ValueError):
    """Data do not fit: a signature, the steps before, or the call."""

    def __init__(self, what: str, expected: str, got: object) -> None:
        self.what = what
        self.expected = expected
        self.got = got
        super().__init__(f"{what}: expected {expected}, got {got}")
