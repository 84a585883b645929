"""Values and locks that a forked child can use, although another thread of its parent was inside a lock at the fork.

A child has a copy of every lock. If a lock was taken by another thread, no thread of the child ever releases the copy.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, final, overload

__all__ = ["computed_once", "renewed_in_children"]

Value = TypeVar("Value")
Itself = TypeVar("Itself", bound="computed_once[Any]")

_owners: weakref.WeakKeyDictionary[Any, tuple[str, Callable[[], Any]]] = weakref.WeakKeyDictionary()


@final
class computed_once(Generic[Value]):
    """A property that is computed at its first use, and is an attribute of the object from then on.

    It takes no lock, so two threads may both compute the value. functools.cached_property has one lock for all objects
    of its class before Python 3.12.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self: Itself, instance: None, owner: type) -> Itself: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value


def renewed_in_children(owner: object, name: str, make: Callable[[], Any]) -> Any:
    """Returns a lock of `owner`, whose attribute of that name gets a new one in each forked child.

    A `with` block around a fork in the same thread still releases the lock that it took. Use no `release()` through the
    attribute in such a block. An object has one such lock.
    """
    _owners[owner] = name, make
    return make()


def _renew() -> None:
    for owner, (name, make) in list(_owners.items()):
        setattr(owner, name, make())


os.register_at_fork(after_in_child=_renew)
