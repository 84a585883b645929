"""Checks of single values, which configurations and calls share. Each check returns the value in its plain type."""

from __future__ import annotations

import math
import operator
import os
from typing import SupportsFloat, SupportsIndex

import numpy as np

from relive.errors import InvalidConfig

__all__ = ["bytes_in_text", "finite", "flag", "folder_path", "integer", "is_name", "is_text", "num_bytes", "timeout"]

MAX_FLOAT32 = float(np.finfo(np.float32).max)
_MAX_INTEGER = 2**63 - 1
_MAX_BYTES = 2**62
_ENDLESS_S = 1e9  # as in the core; the waits of the system end near 9e9 seconds
# Types that Python or numpy would turn into a number although their values are not numbers.
_NO_NUMBERS = (bool, np.bool_, str, bytes, bytearray, np.timedelta64)

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def is_text(value: object, max_bytes: int) -> bool:
    """Whether the value is text of 1 to max_bytes bytes that can be a name on every system.

    Such a text has no NUL and no lone surrogate.
    """
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        return len(value.encode()) <= max_bytes
    except UnicodeEncodeError:
        return False


def is_name(value: object, max_bytes: int) -> bool:
    """Whether the value is such a text that can be printed as it is: without line feeds and escape codes."""
    return is_text(value, max_bytes) and str(value).isprintable()


def folder_path(what: str, path: object) -> str:
    """The path of a folder as text. Raises InvalidConfig: bytes, descriptors, an empty text and NUL name no folder."""
    told = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(told, str) or not told or "\0" in told:
        raise InvalidConfig(what, "the path of a folder, as text", path)
    return told


def flag(what: str, value: object) -> bool:
    """The value as a bool; numpy bools pass.

    Raises InvalidConfig for other values: texts and arrays have a truth value, but not one that was meant.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidConfig(what, "True or False", value)
    return bool(value)


def integer(what: str, value: SupportsIndex, least: int, most: int = _MAX_INTEGER) -> int:
    """The value as an int in [least, most]; numpy integers pass, bools do not. Raises InvalidConfig."""
    bounds = f"an integer >= {least}" if most == _MAX_INTEGER else f"an integer from {least} to {most}"
    if isinstance(value, _NO_NUMBERS):
        raise InvalidConfig(what, bounds, value)
    if isinstance(value, float) and value.is_integer():
        raise InvalidConfig(what, f"{bounds}, written as one: {int(value):_}", value)
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError):  # tensors without data raise RuntimeError
        raise InvalidConfig(what, bounds, value) from None
    if number > most:
        raise InvalidConfig(what, f"an integer from {least} to {most}", number)
    if number < least:
        raise InvalidConfig(what, bounds, number)
    return number


def _number(value: SupportsFloat) -> float:
    """The value as a float, also from an array without axes; NaN for anything that is not a real number."""
    if isinstance(value, _NO_NUMBERS) or getattr(value, "ndim", 0) != 0:
        return math.nan
    if isinstance(value, np.ndarray) and getattr(value, "mask", False):  # numpy warns before it makes NaN of it
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def finite(what: str, value: SupportsFloat, least: float, most: float = math.inf, above: bool = False) -> float:
    """The value as a finite float in [least, most], or in (least, most] if `above`. Raises InvalidConfig."""
    bounds = f"a finite number {'>' if above else '>='} {least:g}" + (f" and <= {most:g}" if most < math.inf else "")
    number = _number(value)
    if not math.isfinite(number) or number > most:
        raise InvalidConfig(what, bounds, value)
    if number < least or (above and number == least):
        raise InvalidConfig(what, bounds, number)
    return number


def bytes_in_text(text: str) -> float:
    """The number of bytes that a text such as '40GiB' or '500 MB' names; NaN for any other text."""
    compact = text.replace(" ", "").upper()
    digits = compact.rstrip("KMGTIB")
    try:
        return float(digits) * _UNITS[compact[len(digits) :]]
    except (ValueError, KeyError):
        return math.nan


def num_bytes(what: str, value: SupportsIndex | str) -> int:
    """A number of bytes, given as an integer > 0 or as a text such as '2GiB'. Raises InvalidConfig."""
    if not isinstance(value, str):
        return integer(what, value, 1, _MAX_BYTES)
    number = bytes_in_text(value)
    if not 1 <= number <= _MAX_BYTES:
        raise InvalidConfig(what, "bytes, or a text such as '2GiB' or '500MB'", value)
    return int(number)


def timeout(value: SupportsFloat, what: str = "timeout_s") -> float:
    """A number of seconds >= 0: 0 tries once, inf waits for ever, and so does 30 years or more.

    Raises InvalidConfig for a negative number or NaN.
    """
    seconds = _number(value)
    if seconds >= _ENDLESS_S:
        return math.inf
    if not seconds >= 0.0:
        raise InvalidConfig(what, "seconds >= 0 (0 tries once, inf waits, None is the table's default)", value)
    return seconds
