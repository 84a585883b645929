"""Errors that are made from the status codes of the compiled core."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relive.errors import (
    arguments,
    episodes,
    handles,
    items,
    late,
    names,
    packages,
    saving,
    service,
    storage,
    waiting,
)
from relive.errors.base import ReliveError

__all__ = ["KIND_OF_CODE", "from_core"]

_MODULES = (arguments, episodes, handles, items, late, names, packages, saving, service, storage, waiting)
KIND_OF_CODE: dict[str, type[ReliveError]] = {
    name: getattr(module, name) for module in _MODULES for name in module.__all__
}
for _kind in KIND_OF_CODE.values():
    _kind.__module__ = "relive.errors"  # a traceback names the public path of the class
KIND_OF_CODE["SystemError"] = storage.SystemFailure


def from_core(code: str, fields: Mapping[str, Any]) -> ReliveError:
    """Returns (does not raise) the error of a core status.

    It never fails: an unknown code, or fields that this version does not know, give a plain ReliveError with the fields
    in its sentence and its attributes.

    Args:
        code: the code as in status.hpp, without its k.
        fields: {name: value}.
    """
    kind = KIND_OF_CODE.get(code)
    if kind is not None:
        named = kind.__init__.__code__.co_varnames[1 : kind.__init__.__code__.co_argcount]
        try:
            error = kind(**{name: value for name, value in fields.items() if name in named})
        except (TypeError, ValueError):
            pass  # a core of another version left out fields; the plain error below shows all that came
        else:
            for name in fields.keys() - set(named):
                setattr(error, name, fields[name])
            if error.stored:
                error.args = (f"{error}; {_what_is_stored(error.stored, fields)}", *error.args[1:])
            return error
    shown = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    plain = ReliveError(f"{code}({shown})")
    plain.__dict__.update(fields)
    return plain


def _what_is_stored(stored: int, fields: Mapping[str, Any]) -> str:
    if "num_items" in fields:
        return f"the first {stored} of {fields['num_items']} items are made, under the error's keys: go on after them"
    return (
        f"the first {stored} of {fields.get('num_rows', 'the')} rows are stored, step by step, under the error's keys:"
        " go on with the rows after them, not with the whole block again"
    )
