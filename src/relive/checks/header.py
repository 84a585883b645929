"""Fields of a message's header, each checked as it is read.

A header comes from another process, so every field may be missing, of another type or out of range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from relive.errors import BadMessage

__all__ = ["field", "number", "seconds", "whole"]


def field(header: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """header[name], which must exist and have this type. Raises BadMessage."""
    value = header.get(name)
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join("null" if one is type(None) else one.__name__ for one in kinds)
        raise BadMessage(f"header field {name!r}", names, type(value).__name__)
    return value


def whole(header: Mapping[str, Any], name: str, least: int, most: int) -> int:
    """An integer field in [least, most]. Raises BadMessage."""
    value: int = field(header, name, int)
    if not least <= value <= most:
        raise BadMessage(f"header field {name!r}", f"an integer from {least} to {most}", str(value)[:40])
    return value


def number(header: Mapping[str, Any], name: str) -> float:
    """A number field that is not NaN. Raises BadMessage."""
    value = float(field(header, name, (int, float)))
    if math.isnan(value):
        raise BadMessage(f"header field {name!r}", "a number", value)
    return value


def seconds(header: Mapping[str, Any], name: str = "timeout_s") -> float:
    """A number of seconds >= 0. JSON has no infinity, so null means to wait for ever. Raises BadMessage."""
    if name in header and header[name] is None:
        return math.inf
    value = number(header, name)
    if value < 0.0:
        raise BadMessage(f"header field {name!r}", "seconds >= 0", value)
    return value
