"""Checks of single values, shared by the configs and the calls. Each returns the value in its plain type."""

from __future__ import annotations

import math
import operator
from typing import SupportsFloat, SupportsIndex

import numpy as np

from relive.errors import InvalidConfig

__all__ = ["bytes_in_text", "finite", "flag", "integer", "is_text", "num_bytes", "timeout"]

MAX_FLOAT32 = float(np.finfo(np.float32).max)
_MAX_INTEGER = 2**63 - 1
_MAX_BYTES = 2**62
_ENDLESS_S = 1e9  # as in the core; the system's own waits end near 9e9
# What Python or numpy would turn into a number although it is none.
_NO_NUMBERS = (bool, np.bool_, str, bytes, bytearray, np.timedelta64)

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def is_text(value: object, max_bytes: int) -> bool:
    """Whether it is text of 1 to max_bytes bytes that every system can keep as a name: no NUL, no lone surrogate."""
    if not isinstance(value, str) or not value or "\0" in value:
        return False
    try:
        return len(value.encode()) <= max_bytes
    except UnicodeEncodeError:
        return False


def flag(what: str, value: object) -> bool:
    """A bool (numpy's too), else InvalidConfig: texts and arrays have a truth value, but not one that was meant."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidConfig(what, "True or False", value)
    return bool(value)


def integer(what: str, value: SupportsIndex, least: int, most: int = _MAX_INTEGER) -> int:
    """An int (numpy integers too, bools not) in [least, most], else InvalidConfig."""
    bounds = f"an integer >= {least}" if most == _MAX_INTEGER else f"an integer from {least} to {most}"
    if isinstance(value, _NO_NUMBERS):
        raise InvalidConfig(what, bounds, value)
    if isinstance(value, float) and value.is_integer():
        raise InvalidConfig(what, f"{bounds}, written as one: {int(value):_}", value)
    try:
        number = operator.index(value)
    except (TypeError, RuntimeError):  # a RuntimeError of tensors that hold no data
        raise InvalidConfig(what, bounds, value) from None
    if number > most:
        raise InvalidConfig(what, f"an integer from {least} to {most}", number)
    if number < least:
        raise InvalidConfig(what, bounds, number)
    return number


def _number(value: SupportsFloat) -> float:
    """The float that a real number is (arrays without axes too), NaN of everything else."""
    if isinstance(value, _NO_NUMBERS) or getattr(value, "ndim", 0) != 0:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


def finite(what: str, value: SupportsFloat, least: float, most: float = math.inf, above: bool = False) -> float:
    """A finite float in [least, most] ((least, most] where above), else InvalidConfig."""
    bounds = f"a finite number {'>' if above else '>='} {least:g}" + (f" and <= {most:g}" if most < math.inf else "")
    number = _number(value)
    if not math.isfinite(number) or number > most:
        raise InvalidConfig(what, bounds, value)
    if number < least or (above and number == least):
        raise InvalidConfig(what, bounds, number)
    return number


def bytes_in_text(text: str) -> float:
    """The bytes that a text such as '40GiB' or '500 MB' names; NaN where it names none."""
    compact = text.replace(" ", "").upper()
    digits = compact.rstrip("KMGTIB")
    try:
        return float(digits) * _UNITS[compact[len(digits) :]]
    except (ValueError, KeyError):
        return math.nan


def num_bytes(what: str, value: SupportsIndex | str) -> int:
    """Bytes, given as an integer > 0 or as a text such as '2GiB'; else InvalidConfig."""
    if not isinstance(value, str):
        return integer(what, value, 1, _MAX_BYTES)
    number = bytes_in_text(value)
    if not 1 <= number <= _MAX_BYTES:
        raise InvalidConfig(what, "bytes, or a text such as '2GiB' or '500MB'", value)
    return int(number)


def timeout(value: SupportsFloat, what: str = "timeout_s") -> float:
    """Seconds: 0 tries once, inf (and 30 years) waits for ever; negative and NaN are refused with InvalidConfig."""
    seconds = _number(value)
    if seconds >= _ENDLESS_S:
        return math.inf
    if not seconds >= 0.0:
        raise InvalidConfig(what, "seconds >= 0 (0 tries once, inf waits, None is the table's default)", value)
    return seconds
