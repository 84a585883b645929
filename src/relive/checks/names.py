"""Catches wrong names: UnknownArgument and UnknownAttribute name the right word, which Python's own errors do not."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn, TypeVar

from relive.errors import UnknownArgument, UnknownAttribute, UnnamedColumns, slips

__all__ = [
    "MISSING",
    "columns_by_name",
    "names_arguments",
    "refuse_names",
    "refuse_unknown",
    "refuses_attributes",
    "refuses_unknown",
    "unknown_attribute",
]

Called = TypeVar("Called", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type[Any])
Worded = Callable[[Any, str], AttributeError]  # makes the error of an instance and a name

MISSING: Any = object()  # the value of an argument that was not given

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def names_arguments(called: Called) -> Called:
    """Decorates a class, function or method: a keyword that it does not take raises UnknownArgument, a TypeError.

    The signature and the types stay as they are.

    Cost: one more Python call. Do not decorate calls that are made for every step or batch.
    """
    if isinstance(called, type):
        called.__init__ = _named(called.__init__, called.__name__)  # type: ignore[misc]
        return called
    return _named(called, called.__name__)


def _named(function: Called, name: str) -> Called:
    code = getattr(inspect.unwrap(function), "__code__", None)  # a signature would cost 0.1 ms of each import
    if code is not None and code.co_flags & inspect.CO_VARKEYWORDS:
        return function  # no keyword is wrong

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            known = _names_of(function)
            for argument in kwargs:
                if argument not in known:  # then the call itself failed, before the function began
                    raise UnknownArgument(name, argument, known) from None
            raise

    return call  # type: ignore[return-value]


def _names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    parameters = inspect.signature(function).parameters.values()
    return tuple(one.name for one in parameters if one.kind in _BY_NAME and one.name not in ("self", "cls"))


def refuses_unknown(method: Called) -> Called:
    """Decorates a method that is called for every batch and ends with **unknown; adds no wrapper and so no cost.

    The shown signature leaves `unknown` out. An argument that is needed and was not given arrives as MISSING. The
    method then looks for a wrong keyword in its place. In both cases the method calls refuse_unknown.
    """
    signature = inspect.signature(method)
    known = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    method.__signature__ = signature.replace(parameters=known)  # type: ignore[attr-defined]
    by_place = [one for one in known if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and one.name != "self"]
    method.__defaults__ = tuple(MISSING if one.default is one.empty else one.default for one in by_place)
    return method


def refuse_unknown(method: Callable[..., Any], unknown: Mapping[str, Any]) -> NoReturn:
    """Raises UnknownArgument for the first keyword that a bound method does not take.

    Without such a keyword an argument is missing: then raises the TypeError that Python would raise.
    """
    parameters = inspect.signature(method).parameters
    if unknown:
        raise UnknownArgument(method.__name__, next(iter(unknown)), tuple(parameters))
    needed = [one.name for one in parameters.values() if one.default is one.empty]
    raise TypeError(f"{method.__name__}() needs {', '.join(needed)}: not all of them were given")


def columns_by_name(method: Called) -> Called:
    """Decorates a method of a writer that takes columns by name only: a value without a name raises UnnamedColumns."""

    @functools.wraps(method)
    def call(self: Any, *values: Any, **columns: Any) -> Any:
        if values:
            raise UnnamedColumns(method.__name__, len(values), self._spec.columns)
        return method(self, **columns)

    return call  # type: ignore[return-value]


def refuses_attributes(owner: str, worded: Worded | None = None) -> Callable[[Class], Class]:
    """Decorates a class whose attributes are read too often for a __getattr__, which would slow down every read.

    A name that is a known slip raises the error that `worded` makes of the instance and the name. Without `worded` that
    is UnknownAttribute.
    """

    def decorate(kind: Class) -> Class:
        refuse_names(kind, slips.attributes(owner), worded or (lambda _, name: unknown_attribute(owner, name)))

        def listed(self: object) -> list[str]:
            refused = {name for base in type(self).__mro__ for name, value in vars(base).items() if _is_refused(value)}
            return [name for name in object.__dir__(self) if name not in refused]

        type.__setattr__(kind, "__dir__", listed)
        return kind

    return decorate


def refuse_names(kind: type[Any], names: Iterable[str], worded: Worded) -> None:
    """Does the same for the given names, except for names that the class has."""
    for name in names:
        if name.isidentifier() and not name.startswith("_") and not any(name in vars(base) for base in kind.__mro__):
            setattr(kind, name, _Refused(name, worded))


def unknown_attribute(owner: str, name: str, known: Iterable[str] = ()) -> AttributeError:
    """The error that a __getattr__ raises. known: the names that exist. A private name gets Python's own error."""
    if name.startswith("_"):
        return AttributeError(f"{owner!r} has no attribute {name!r}")
    slip = slips.for_attribute(owner, name, known)
    return UnknownAttribute(owner, name, *(slip or ()))


class _Refused:
    """Takes the place of a name that an object does not have."""

    def __init__(self, name: str, worded: Worded) -> None:
        self._name, self._worded = name, worded

    def __get__(self, instance: object, kind: type[Any]) -> Any:
        raise self._worded(instance, self._name) if instance is not None else AttributeError(self._name)

    def __repr__(self) -> str:
        return f"no attribute {self._name!r}"


def _is_refused(value: object) -> bool:
    return isinstance(value, _Refused)
