"""Where wrong names are caught: UnknownArgument and UnknownAttribute instead of Python's errors without a way out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from relive import _slips
from relive.errors import UnknownArgument, UnknownAttribute, UnnamedColumns

__all__ = ["columns_by_name", "names_arguments", "refuses_attributes", "unknown_attribute"]

Called = TypeVar("Called", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type[Any])

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def names_arguments(called: Called) -> Called:
    """Decorates a class, function or method: a keyword that it does not take raises UnknownArgument, a TypeError.

    Signature and types stay what they are. Costs one call of Python: not for what is called for every step.
    """
    if isinstance(called, type):
        called.__init__ = _named(called.__init__, called.__name__)  # type: ignore[misc]
        return called
    return _named(called, called.__name__)


def _named(function: Called, name: str) -> Called:
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return function  # no keyword is wrong
    known = tuple(one.name for one in parameters if one.kind in _BY_NAME and one.name not in ("self", "cls"))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            for argument in kwargs:
                if argument not in known:  # then it was the call that failed, and nothing has been done
                    raise UnknownArgument(name, argument, known) from None
            raise

    return call  # type: ignore[return-value]


def columns_by_name(method: Called) -> Called:
    """Decorates a method of a writer that takes columns by name only: values without one raise UnnamedColumns."""

    @functools.wraps(method)
    def call(self: Any, *values: Any, **columns: Any) -> Any:
        if values:
            raise UnnamedColumns(method.__name__, len(values), self._spec.columns)
        return method(self, **columns)

    return call  # type: ignore[return-value]


def refuses_attributes(owner: str) -> Callable[[Class], Class]:
    """Decorates a class whose attributes are read too often for a __getattr__: known slips raise UnknownAttribute."""

    def decorate(kind: Class) -> Class:
        wrong = [name for name in _slips.attributes(owner) if not hasattr(kind, name)]
        for name in wrong:
            setattr(kind, name, _Refused(owner, name))

        def listed(self: object) -> list[str]:
            return [name for name in object.__dir__(self) if name not in wrong]

        type.__setattr__(kind, "__dir__", listed)
        return kind

    return decorate


def unknown_attribute(owner: str, name: str, known: Iterable[str] = ()) -> AttributeError:
    """What a __getattr__ raises; known are the names that would do. For a private name, Python's own error."""
    if name.startswith("_"):
        return AttributeError(f"{owner!r} has no attribute {name!r}")
    slip = _slips.for_attribute(owner, name, known)
    return UnknownAttribute(owner, name, *(slip or ()))


class _Refused:
    """Stands under a name that an object does not have."""

    def __init__(self, owner: str, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: object, kind: type[Any]) -> Any:
        raise unknown_attribute(self._owner, self._name)

    def __repr__(self) -> str:
        return str(unknown_attribute(self._owner, self._name))
