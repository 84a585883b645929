"""Makes the messages of the simple calls, on both sides, from the list in relive/core/table_core.py.

The request is {"op": name, one field for each number, "arrays": [[dtype, length] of each array]}, followed by the
arrays, one after the other. The answer is {"value": the core's return value}.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, get_type_hints

import numpy as np

from relive.core.roles import Role, role_of
from relive.core.table_core import InBody, IndexOf, Number, SimpleCalls, Whole
from relive.errors import BadMessage
from relive.service.wire import framing
from relive.service.wire.framing import Bytes

__all__ = ["VERBS", "Asks", "Verb", "answered_by_messages", "arguments", "asking"]

_MAX_LENGTH = 2**31 - 1

Core = TypeVar("Core", bound=type[Any])
Asks = Callable[[Any, "Verb", dict[str, Any], list[Any]], Any]


class Verb(NamedTuple):
    """One simple call: how each of its arguments travels, in order.

    If `looks`, it changes no data and may be sent twice. A client needs the role `role`.
    """

    name: str
    parameters: Mapping[str, Whole | Number | IndexOf | InBody]
    looks: bool
    is_property: bool
    role: Role


def _verb(name: str, member: Any) -> Verb:
    is_property = isinstance(member, property)
    function = member.fget if is_property else member
    hints = get_type_hints(function, include_extras=True)
    names = [one for one in inspect.signature(function).parameters if one != "self"]
    parameters = {one: hints[one].__metadata__[0] for one in names}
    return Verb(name, parameters, getattr(function, "looks", False), is_property, role_of(function))


VERBS = {name: _verb(name, member) for name, member in vars(SimpleCalls).items() if not name.startswith("_")}


# ---- the client ----------------------------------------------------------------------------------------------------


def answered_by_messages(core: Core) -> Core:
    """Gives a class every simple call. Each call goes through the class's method _ask(verb, header, arrays)."""
    for verb in VERBS.values():
        call = _sending(verb)
        setattr(core, verb.name, property(call) if verb.is_property else call)
    return core


def asking(verb: Verb, values: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Returns the header and the arrays of the message of a simple call."""
    header: dict[str, Any] = {"op": verb.name}
    arrays = []
    for (name, kind), value in zip(verb.parameters.items(), values, strict=True):
        if isinstance(kind, InBody):
            dtype = value.dtype if value.dtype.str in kind.dtypes else np.dtype(kind.dtypes[-1])
            arrays.append(np.ascontiguousarray(value, dtype))
        else:
            header[name] = value
    if arrays:
        header["arrays"] = [[array.dtype.str, len(array)] for array in arrays]
    return header, arrays


def _sending(verb: Verb) -> Callable[..., Any]:
    def call(self: Any, *values: Any) -> Any:
        return self._ask(verb, *asking(verb, values))

    call.__name__, call.__doc__ = verb.name, f"As SimpleCalls.{verb.name}, answered by the server."
    return call


# ---- the server ----------------------------------------------------------------------------------------------------


def arguments(verb: Verb, header: Mapping[str, Any], body: Bytes, num_indexes: int) -> list[Any]:
    """Returns the arguments for the core, with every value checked.

    Raises BadMessage. Allocates no more bytes than were received.
    """
    told = header.get("arrays", [])
    kinds = [kind for kind in verb.parameters.values() if isinstance(kind, InBody)]
    if not isinstance(told, list) or len(told) != len(kinds):
        raise BadMessage("header field 'arrays'", f"{len(kinds)} pairs", str(told)[:40])
    wanted = [_array(kind, pair) for kind, pair in zip(kinds, told, strict=True)]
    arrays = iter(framing.arrays_of(body, *wanted))
    return [_value(name, kind, header, num_indexes, arrays) for name, kind in verb.parameters.items()]


def _array(kind: InBody, pair: Any) -> tuple[str, tuple[int, ...]]:
    if not (isinstance(pair, list) and len(pair) == 2 and pair[0] in kind.dtypes and type(pair[1]) is int):
        raise BadMessage("header field 'arrays'", " or ".join(kind.dtypes) + " and a length", str(pair)[:40])
    if not 0 <= pair[1] <= _MAX_LENGTH:
        raise BadMessage("header field 'arrays'", f"lengths from 0 to {_MAX_LENGTH}", str(pair[1])[:40])
    return pair[0], (pair[1],)


def _value(name: str, kind: Any, header: Mapping[str, Any], num_indexes: int, arrays: Any) -> Any:
    if isinstance(kind, InBody):
        return next(arrays)
    if isinstance(kind, IndexOf):
        return framing.whole(header, name, 0, num_indexes - 1)
    if isinstance(kind, Number):
        return framing.number(header, name)
    return framing.whole(header, name, kind.least, kind.most)
