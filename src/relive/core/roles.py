"""The roles that a served table knows. Each call of the service names the role that it needs at its declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, get_args

__all__ = ["ROLES", "Needed", "Role", "needs", "role_of"]

Role: TypeAlias = Literal["read", "append", "update", "admin"]
Needed: TypeAlias = Literal["read", "append", "update", "admin", "any"]  # any: one of them is enough
ROLES: tuple[Role, ...] = get_args(Role)
Function = TypeVar("Function", bound=Callable[..., Any])


def needs(role: Role) -> Callable[[Function], Function]:
    """Marks a simple call with the role that a client of a server needs for it."""

    def mark(function: Function) -> Function:
        function.__dict__["role"] = role
        return function

    return mark


def role_of(function: Callable[..., Any]) -> Role:
    """Returns the role of a marked call.

    Raises:
        TypeError: The call has no role. A module that declares such a call cannot be imported.
    """
    role: Role | None = getattr(function, "role", None)
    if role is None:
        raise TypeError(f"{function.__qualname__} needs a role: mark it with @needs(...)")
    return role
