"""What every error stands on: the base class, and how fields become text."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ReliveError", "bytes_text", "hint", "plain", "shown"]

_MAX_REPR = 400


class ReliveError(Exception):
    """Base of every error of the library. Attributes are the fields; str() is the sentence.

    stored: rows of the append or extend that raised it which are stored: the first ones, step by step and in each step
    lane by lane; items of the create_items that raised it which are made; 0 for all other calls. keys: int64[stored],
    theirs; None where nothing is stored.
    """

    stored: int = 0
    keys: npt.NDArray[np.int64] | None = None

    def __init__(self, sentence: str) -> None:
        # A lone surrogate, of a name that somebody gave, could not be printed.
        super().__init__(sentence.encode("utf-8", "backslashreplace").decode())

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        fields = dict(self.__dict__)
        if isinstance(self, OSError):
            fields["errno"] = self.errno  # OSError keeps it outside __dict__
        return _restore, (type(self), self.args, fields)


def _restore(kind: type[ReliveError], args: tuple[Any, ...], fields: dict[str, Any]) -> ReliveError:
    error = kind.__new__(kind)
    error.args = args
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def hint(name: str, known: Iterable[str]) -> str:
    """The nearest known name as half a sentence, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def plain(value: object) -> object:
    """The value where it certainly pickles and prints short, else its repr, as far as it has one."""
    if _is_plain(value) or (isinstance(value, tuple) and all(_is_plain(part) for part in value)):
        return value
    if isinstance(value, int):
        return f"<an integer of {value.bit_length()} bits>"
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= _MAX_REPR else f"{text[:_MAX_REPR]}..."


def _is_plain(value: object) -> bool:
    # Python refuses to print integers of more than 4300 digits.
    return value is None or isinstance(value, (float, str)) or (isinstance(value, int) and abs(value) < 2**128)


def shown(value: object) -> str:
    """A value as a sentence shows it."""
    return repr(value) if isinstance(value, str) and not value.startswith("<") else str(value)


def bytes_text(num_bytes: float) -> str:
    """A size for people."""
    for unit in ("B", "KiB", "MiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"
