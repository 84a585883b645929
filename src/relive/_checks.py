"""Checks of single values, shared by the configs and the calls. Each returns the value in its plain type."""

from __future__ import annotations

import math
import operator
from typing import SupportsFloat, SupportsIndex

from relive.errors import InvalidConfig

__all__ = ["bytes_in_text", "finite", "integer", "num_bytes", "timeout"]

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def integer(what: str, value: SupportsIndex, least: int, most: int | None = None) -> int:
    """An int (numpy integers too, bools not) in [least, most], else InvalidConfig."""
    bounds = f"an integer >= {least}" if most is None else f"an integer from {least} to {most}"
    if isinstance(value, bool):
        raise InvalidConfig(what, bounds, value)
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidConfig(what, bounds, value) from None
    if number < least or (most is not None and number > most):
        raise InvalidConfig(what, bounds, number)
    return number


def finite(what: str, value: SupportsFloat, least: float, most: float = math.inf, above: bool = False) -> float:
    """A finite float in [least, most] ((least, most] where above), else InvalidConfig."""
    bounds = f"a finite number {'>' if above else '>='} {least:g}" + (f" and <= {most:g}" if most < math.inf else "")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidConfig(what, bounds, value) from None
    if isinstance(value, (bool, str)) or not math.isfinite(number) or number > most:
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
        return integer(what, value, 1)
    number = bytes_in_text(value)
    if not 1 <= number < math.inf:
        raise InvalidConfig(what, "bytes, or a text such as '2GiB' or '500MB'", value)
    return int(number)


def timeout(value: SupportsFloat, what: str = "timeout_s") -> float:
    """Seconds: 0 tries once, inf waits for ever; negative and NaN are refused with InvalidConfig."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, (bool, str)) or not seconds >= 0.0:
        raise InvalidConfig(what, "seconds >= 0 (0 tries once, inf waits, None is the table's default)", value)
    return seconds
