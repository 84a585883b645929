"""The base class of all errors, and the text of their fields."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["ReliveError", "bytes_text", "plain", "shown", "stored_before"]

_MAX_REPR = 400


class ReliveError(Exception):
    """Base of every error of the library. Its fields are attributes; str() is the sentence.

    Attributes:
        stored: rows that an append or extend stored before it raised the error: the first ones, step by step, and in
            each step lane by lane. For create_items, the items that were made. Else 0.
        keys: int64[stored], their keys; None if nothing is stored.
    """

    stored: int = 0
    keys: npt.NDArray[np.int64] | None = None

    def __init__(self, sentence: str) -> None:
        # A lone surrogate, in a name that a caller gave, could not be printed.
        super().__init__(sentence.encode("utf-8", "backslashreplace").decode())

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        fields = dict(self.__dict__)
        if isinstance(self, OSError):
            fields["errno"] = self.errno  # OSError keeps it outside __dict__
        if isinstance(self, ImportError):
            fields["name"] = self.name  # so does this one
        return _restore, (type(self), self.args, fields)


def _restore(kind: type[ReliveError], args: tuple[Any, ...], fields: dict[str, Any]) -> ReliveError:
    error = kind.__new__(kind)
    error.args = args
    for name, value in fields.items():
        setattr(error, name, value)
    return error


def stored_before(error: BaseException) -> npt.NDArray[np.int64]:
    """Returns the keys of the first rows, or items, of a call, which the call stored before it raised the error.

    A limiter may let in the first lanes of a step alone. A signal may stop a call that has stored rows: the exception
    of its handler then has the attributes `stored` and `keys`. Other exceptions may have other attributes `keys`.
    """
    keys = getattr(error, "keys", None)
    if not isinstance(keys, np.ndarray) or keys.dtype != np.int64:
        return np.zeros(0, np.int64)
    return keys.reshape(-1)


def way_to_shape(expected: object, got: object, is_argument: bool) -> str:
    """The way out for an array of the wrong shape, as half a sentence. is_argument: the array is no column."""
    if not isinstance(expected, tuple) or not isinstance(got, tuple):
        return ""
    if got == (*expected, 1):
        return "; drop the last axis, which is of size 1: .squeeze(-1)"
    if got != expected and _without_ones(got) == _without_ones(expected):
        lane = (
            "" if is_argument or got[:1] != (1,) else ", or open table.writer(num_lanes=1) if the first is the lanes'"
        )
        return f"; axes of size 1 are too many or missing: .reshape({expected}){lane}"
    if is_argument:
        is_square = len(got) == 2 and got[0] == got[1] and got[:1] == expected
        broadcast = " ([B, 1] and [B] together make [B, B]: squeeze the one before)" if is_square else ""
        return "; one for each item, without further axes" + broadcast
    if got == expected[1:]:
        return (
            "; the first axis, of lanes or time, is missing; where the column has it by mistake, its spec came from the"
            " spaces of a vector environment: take single_observation_space and single_action_space"
        )
    if len(got) == len(expected) + 1 and _one_more(expected, got):
        return (
            f"; an axis of {_one_more(expected, got)} too many: lanes are opened by table.writer(num_lanes=...), steps"
            " of a block go to extend, stacks made by the environment are declared with StepSpec(..., unstack=...)"
        )
    if sorted(map(str, got)) == sorted(map(str, expected)):
        return "; the axes stand in another order: np.moveaxis, or .permute of a tensor"
    return "; axes are (lanes, ...) in append and (time, lanes, ...) in extend, without lanes for a writer of one lane"


def _without_ones(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(size for size in shape if size != 1)


def _one_more(expected: tuple[Any, ...], got: tuple[Any, ...]) -> object:
    """The size of the axis without which `got` would equal `expected`; 0 if there is no such axis."""
    return next((got[at] for at in range(len(got)) if got[:at] + got[at + 1 :] == expected), 0)


def plain(value: object) -> object:
    """The value, if it certainly pickles and prints short; else its repr, as far as it has one."""
    if _is_plain(value) or (isinstance(value, tuple) and all(_is_plain(part) for part in value)):
        return value
    if isinstance(value, np.ndarray) and value.ndim:
        return f"<{value.dtype} array of shape {value.shape}>"
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
    """A value in the form that a sentence shows."""
    return repr(value) if isinstance(value, str) and not value.startswith("<") else str(value)


def bytes_text(num_bytes: float) -> str:
    """A number of bytes with a unit, such as '1.5 GiB'."""
    for unit in ("B", "KiB", "MiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"
