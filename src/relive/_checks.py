"""Checks of single values, shared by the configs and the calls. Each returns the value in its plain type."""

from __future__ import annotations

import math
import operator
from typing import SupportsFloat, SupportsIndex

from relive.errors import InvalidConfig

__all__ = ["finite", "integer", "timeout"]


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


def timeout(value: SupportsFloat, what: str = "timeout_s") -> float:
    """Seconds: 0 tries once, inf waits for ever; negative and NaN are refused with InvalidConfig."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, (bool, str)) or not seconds >= 0.0:
        raise InvalidConfig(what, "seconds >= 0 (0 tries once, inf waits, None is the table's default)", value)
    return seconds
