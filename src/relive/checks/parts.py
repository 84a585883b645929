"""Configuration values as dicts of plain values, which JSON and TOML can hold, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from relive.errors import InvalidConfig

__all__ = ["from_parts", "refuse_unknown", "to_parts"]


def to_parts(value: Any) -> dict[str, Any]:
    """A frozen dataclass as {'type': name of its class, option: value, ...}: by its to_dict(), or by its fields."""
    options = value.to_dict() if hasattr(value, "to_dict") else asdict(value)
    return {"type": type(value).__name__, **options}


def from_parts(what: str, parts: Any, kinds: Sequence[type[Any]]) -> Any:
    """The value that to_parts wrote, of one of these classes. Options that are left out get their defaults.

    Args:
        what: the value in words, for messages.
        parts: the dict.
        kinds: the classes that the value may have.

    Raises:
        InvalidConfig: the type or an option is unknown; the message lists the known ones.
        ReliveError: anything that the class raises.
    """
    known = {kind.__name__: kind for kind in kinds}
    if not isinstance(parts, Mapping):
        raise InvalidConfig(what, "a dict with a type: " + " or ".join(known), parts)
    name = parts.get("type")
    kind = known.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidConfig(f"type of {what}", " or ".join(known), name)
    options = {option: value for option, value in parts.items() if option != "type"}
    refuse_unknown(f"option of {what}", options, [field.name for field in fields(kind)])
    try:
        return kind.from_dict(options) if hasattr(kind, "from_dict") else kind(**options)
    except TypeError as problem:  # an option without a default is missing
        raise InvalidConfig(what, "every option that it needs", str(problem)) from None


def refuse_unknown(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raises InvalidConfig for the first name that is not known."""
    for name in given:
        if name not in known:
            raise InvalidConfig(what, "one of " + ", ".join(known) if known else "none", name)
