"""Reads and changes the options of a run by name: for `--set agent.gamma=0.98`, presets, TOML files and config.json.

An option is a field of a frozen dataclass, or of a dataclass inside it. The path of an option is the names of these
fields, joined by dots. The type of an option is the type of its field: bool, int, float, str, Literal, `... | None`, a
tuple of one of these types, or `Written`, a value with a text of its own.

This module reads values itself. No library that was tried keeps all of these rules:

- text and the values of Python, JSON and TOML are read by the same types: `none` is None, `64,32` is a tuple, and
  neither 1.5 nor True is an int;
- a change starts from a configuration with any agent, and the result is checked once, as a whole;
- an error is one InvalidConfig with the path, the expected type, the value received and the nearest name.

The libraries that were tried, and the rules that each breaks:

- pydantic 2.14: in the mode that reads text, 1.0 and True are an int; no `none`, no `64,32`; no nearest name; its
  compiled core has 5 MB;
- cattrs 26.2: "no" and "maybe" are True, 1.5 is the int 1, "64, 32" is a tuple of characters; no nearest name;
- jsonargparse 4.53: no `none`, no `64,32`; no nearest name; it installs a YAML parser;
- tyro 1.0: reads text only, so presets and JSON would need a second reader; no `none`; an error ends the process.

With each library, relive would still need its own rules for bool, int, None, tuples and `Written`. These rules are
most of this module.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, Union, final, get_args, get_origin, get_type_hints

from relive.errors import InvalidConfig
from relive.errors.slips import hint

_Config = TypeVar("_Config")
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Written(ABC):
    """A value that is one option, although it has parts: `str` gives its text, and `parse` reads the text."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Written:
        """Reads a value.

        Args:
            text: the text that `str` of the value gives.

        Returns:
            The value.

        Raises:
            InvalidConfig: the text is no value of this class.
        """


@final
@dataclass(frozen=True)
class Option:
    """One option of a configuration: its path, its type in words, and its value."""

    path: str
    type_name: str
    value: Any


def options(config: Any) -> Iterator[Option]:
    """Yields all options of a configuration (a frozen dataclass), in the order of its fields."""
    hints = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if _is_section(value):
            for inner in options(value):
                yield Option(f"{field.name}.{inner.path}", inner.type_name, inner.value)
        else:
            yield Option(field.name, _type_name(hints[field.name]), value)


def changed(config: _Config, settings: Mapping[str, object]) -> _Config:
    """Sets options of a configuration.

    All options are set at once: two values that are checked against each other can change together.

    Args:
        config: a frozen dataclass. It is not changed.
        settings: {path: value}. A string is read by the type of the option.

    Returns:
        The configuration with these options.

    Raises:
        InvalidConfig: a path is unknown (the error names the nearest path), a value has another type, or the
            configuration refuses the values.
    """
    known = {option.path for option in options(config)}
    for path in settings:
        if path not in known:
            nearest = hint(str(path), known) or _hint_by_last_name(str(path), known)
            raise InvalidConfig(f"option {path!r}", f"one of {_listed(known)}{nearest}", "no such option")
    replaced: _Config = _replaced(config, settings, "")
    return replaced


def parse_assignments(assignments: list[str]) -> dict[str, object]:
    """Splits assignments.

    Args:
        assignments: texts `path=value`.

    Returns:
        {path: text of the value}.

    Raises:
        InvalidConfig: a text has another form, or a path is given twice.
    """
    settings: dict[str, object] = {}
    for text in assignments:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise InvalidConfig("--set", "NAME=VALUE, such as agent.gamma=0.98", text)
        if path.strip() in settings:
            raise InvalidConfig(f"option {path.strip()!r}", "given once", "given twice")
        settings[path.strip()] = value.strip()
    return settings


def to_tree(config: Any) -> dict[str, Any]:
    """The options of a configuration as nested dicts, for JSON. A `Written` value becomes its text."""
    tree: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if _is_section(value):
            tree[field.name] = to_tree(value)
        else:
            tree[field.name] = str(value) if isinstance(value, Written) else value
    return tree


def _is_section(value: object) -> bool:
    """Whether options lie inside it."""
    return dataclasses.is_dataclass(value) and not isinstance(value, Written)


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Joins the names of nested dicts to paths.

    Args:
        tree: nested dicts. A name may be a path itself.
        prefix: comes before each path.

    Returns:
        {path: value}.

    Raises:
        InvalidConfig: two values have the same path.
    """
    settings: dict[str, object] = {}
    for name, value in tree.items():
        inside = flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
        for path in inside.keys() & settings.keys():
            raise InvalidConfig(f"option {path!r}", "given once", "given twice")
        settings.update(inside)
    return settings


def nested(settings: Mapping[str, object]) -> dict[str, Any]:
    """Nested dicts from {path: value}, for TOML: the reverse of `flat`."""
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        *sections, name = path.split(".")
        inside = tree
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[name] = value
    return tree


def _replaced(config: Any, settings: Mapping[str, object], prefix: str) -> Any:
    hints = get_type_hints(type(config))
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        path, value = prefix + field.name, getattr(config, field.name)
        if path in settings:
            fields[field.name] = _converted(settings[path], hints[field.name], path)
        elif _is_section(value) and any(name.startswith(path + ".") for name in settings):
            fields[field.name] = _replaced(value, settings, path + ".")
    return dataclasses.replace(config, **fields) if fields else config


def _converted(value: object, kind: Any, path: str) -> object:
    """The value as `kind`; text is read. Raises InvalidConfig, which names the path, for any other value."""
    try:
        return _read(value, kind)
    except (ValueError, TypeError, OverflowError):
        raise InvalidConfig(f"option {path!r}", _type_name(kind), value) from None


def _read(value: object, kind: Any) -> object:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _read(value, inner)
    if origin is Literal:
        if value not in arguments:
            raise ValueError
        return value
    if origin is tuple:
        parts = value.strip("()").split(",") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            raise TypeError
        return tuple(_read(part, arguments[0]) for part in parts if not isinstance(part, str) or part.strip())
    return _plain(value, kind)


def _plain(value: object, kind: type) -> object:
    if issubclass(kind, Written):
        if isinstance(value, str):
            return kind.parse(value)
        if not isinstance(value, kind):
            raise TypeError
        return value
    if isinstance(value, str) and kind is bool:
        if value.lower() not in _WORDS:
            raise ValueError
        return _WORDS[value.lower()]
    if isinstance(value, str) and kind in (int, float):
        return kind(value.strip().replace("_", ""))
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise TypeError
    return value


def _type_name(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join("none" if argument is type(None) else _type_name(argument) for argument in arguments)
    if origin is Literal:
        return " or ".join(repr(argument) for argument in arguments)
    if origin is tuple:
        return f"{_type_name(arguments[0])},..."
    return str(getattr(kind, "__name__", kind))


def _hint_by_last_name(path: str, known: set[str]) -> str:
    """Half a sentence with the path whose last name is nearest: `gama` leads to `agent.gamma`."""
    by_name = {option.rpartition(".")[2]: option for option in sorted(known)}
    close = difflib.get_close_matches(path.rpartition(".")[2], list(by_name), n=1)
    return f"; did you mean {by_name[close[0]]!r}?" if close else ""


def _listed(paths: set[str]) -> str:
    """The sections of these paths, and the paths without a section: short enough for an error sentence."""
    sections = sorted({path.partition(".")[0] + (".*" if "." in path else "") for path in paths})
    return ", ".join(sections)
