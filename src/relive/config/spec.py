"""The columns of one step: ArraySpec describes a column, StepSpec describes all columns.

A spec is a frozen value: it prints, compares, pickles, and goes to JSON and back. Columns may be nested in dicts and
tuples. Inside the library a nested column has one flat name, the parts of its path joined by '/', such as
'observation/camera'.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast, final, get_args

import numpy as np
import numpy.typing as npt

from relive.checks.names import names_arguments
from relive.checks.values import is_name
from relive.config import spaces
from relive.errors import ReliveError, SpecError, UnknownColumn
from relive.errors.base import plain

__all__ = ["DERIVED_NAMES", "PER_ITEM_NAMES", "RESERVED_NAMES", "ArraySpec", "Kind", "StepSpec"]

Kind: TypeAlias = Literal["step", "state", "start", "episode"]

# Columns that the table computes or keeps itself; a batch has them if columns= names them.
DERIVED_NAMES = ("episode_step", "first", "lane", "policy_version", "staleness", "num_steps")
# Derived columns with one value an item, where items have a time axis.
PER_ITEM_NAMES = ("lane", "policy_version", "staleness", "num_steps")
# Names of arguments, and of columns that every table has: no user column may have them.
RESERVED_NAMES = frozenset(
    {"terminated", "truncated", "discount", "lanes", "priority", "timeout_s", "self", *DERIVED_NAMES}
)

MAX_COLUMNS = 128
MAX_NAME_BYTES = 120
MAX_DIMS = 8
MAX_VALUE_BYTES = 2**32  # of one value, here and in the core
MAX_LATE_BYTES = 256  # of the late columns of one step together, here and in the core
_MAX_STACK = 4096


@names_arguments
@final
@dataclass(frozen=True, init=False, repr=False)
class ArraySpec:
    """One column of a step: the shape and dtype of one value, and when a value comes.

    Args:
        shape: shape of one value, without lane and time axes; () for a scalar.
        dtype: a bool, integer, float or complex dtype of fixed size. It is stored in native byte order.
        kind: when a value comes, as in the table below.
        late: append does not take the column. `table.complete(keys, <name>=...)` fills it later, and no item is drawn
            before all of its steps are filled. Only with kind 'step'.

    | kind | a value comes | example |
    |---|---|---|
    | 'step' | with each step | action, reward |
    | 'state' | with each step, and once more after an episode's last step; yields next_<name> | observation |
    | 'start' | with each step, and is kept only for a step that an item starts at | recurrent state |
    | 'episode' | with each step, and is the same in all steps of an episode | task, prompt |

    Raises:
        SpecError: an argument has another type, or a value is too large: 2**32 bytes, or 256 bytes if late.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    kind: Kind
    late: bool

    def __init__(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike, kind: Kind = "step", late: bool = False
    ) -> None:
        object.__setattr__(self, "shape", _checked_shape(shape))
        object.__setattr__(self, "dtype", _checked_dtype(dtype))
        if self.num_bytes > MAX_VALUE_BYTES:
            raise SpecError("shape", f"a value of at most {MAX_VALUE_BYTES} bytes", self.shape)
        if not isinstance(kind, str) or kind not in get_args(Kind):
            raise SpecError("kind", "'step', 'state', 'start' or 'episode'", kind)
        if not isinstance(late, (bool, np.bool_)):
            raise SpecError("late", "True or False", late)
        if late and kind != "step":
            raise SpecError("kind of a late column", "'step'", kind)
        if late and self.num_bytes > MAX_LATE_BYTES:
            raise SpecError("shape of a late column", f"a value of at most {MAX_LATE_BYTES} bytes", self.shape)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "late", bool(late))

    def __repr__(self) -> str:
        kind = "" if self.kind == "step" else f", kind={self.kind!r}"
        late = ", late=True" if self.late else ""
        return f"ArraySpec({self.shape}, {self.dtype.name!r}{kind}{late})"

    @property
    def num_bytes(self) -> int:
        """Bytes of one value."""
        return self.dtype.itemsize * math.prod(self.shape)


NestedSpecs: TypeAlias = "ArraySpec | Mapping[str, NestedSpecs] | Sequence[NestedSpecs]"


@names_arguments
@final
class StepSpec:
    """The columns of one step, in order, with their nesting.

    Args:
        columns: {name: ArraySpec}. A value may also be a dict or a tuple of more columns. A name is any text without
            '/'. n-step returns add up the column 'reward', which is a step column at the top level. These names are
            reserved at the top level: terminated, truncated and discount, which are arguments of append; done, dones,
            next_*, lanes, priority, timeout_s and self; and the derived columns episode_step, first, lane,
            policy_version, staleness and num_steps.
        unstack: {state column: k}, for an environment that returns a stack of the last k values, the newest last.
            append then takes the stack [k, *shape] and stores the newest value only. The name of a group
            ('observation') stands for all columns below it.

    Raises:
        SpecError: a name, a column or a stack is not allowed, or there are more than 128 columns.
    """

    __slots__ = ("_columns", "_tuples", "_unstack")

    def __init__(self, columns: Mapping[str, NestedSpecs], *, unstack: Mapping[str, int] | None = None) -> None:
        if not isinstance(columns, Mapping):
            raise SpecError("columns", "a dict {name: ArraySpec}", columns)
        for name in columns:
            _check_top_name(name)
        flat: dict[str, ArraySpec] = {}
        tuples: set[str] = set()
        _flatten(columns, "", flat, tuples)
        if len(flat) > MAX_COLUMNS:
            raise SpecError("columns", f"at most {MAX_COLUMNS} columns", len(flat))
        late = [column.num_bytes for column in flat.values() if column.late]
        if sum(late) > MAX_LATE_BYTES:
            raise SpecError("late columns", f"at most {MAX_LATE_BYTES} bytes a step together", sum(late))
        if len(late) == len(flat):
            raise SpecError("columns", "at least one that is not late, for append to take", ", ".join(flat))
        self._columns = MappingProxyType(flat)
        self._tuples = frozenset(tuples)
        self._unstack = MappingProxyType(self._expand_stacks({} if unstack is None else unstack, "unstack"))

    @classmethod
    @names_arguments
    def from_spaces(
        cls,
        observation_space: object,
        action_space: object,
        *,
        extras: Mapping[str, NestedSpecs] | None = None,
        unstack: Mapping[str, int] | None = None,
        float64_as: npt.DTypeLike | None = None,
    ) -> StepSpec:
        """The spec of an environment: observation (state), action (step), reward (float32, step), then the extras.

        Args:
            observation_space: a Gymnasium Box, Discrete, MultiDiscrete or MultiBinary, or a Dict or Tuple of them. For
                a vector environment, its single_observation_space.
            action_space: the same for actions; for a vector environment, its single_action_space.
            extras: more columns, such as {"log_prob": ArraySpec((), "float32")}.
            unstack: as for StepSpec, for columns whose space has k stacked values on its first axis. The column gets
                the shape without that axis.
            float64_as: dtype in which float64 spaces are stored; None keeps float64.

        Raises:
            SpecError: a space, a name or a stack is not allowed.
        """
        replacement = None if float64_as is None else _checked_dtype(float64_as)
        stacks = _checked_stacks({} if unstack is None else unstack, "unstack")
        if extras is not None and not isinstance(extras, Mapping):
            raise SpecError("extras", "a dict {name: ArraySpec}", extras)

        def convert(path: str, given_shape: Any, given_dtype: Any, kind: Kind) -> ArraySpec:
            shape, dtype = _checked_shape(given_shape), _checked_dtype(given_dtype)
            stack = next((k for name, k in stacks.items() if path == name or path.startswith(name + "/")), 1)
            if stack != 1:
                if len(shape) == 0 or shape[0] != stack:
                    raise SpecError(
                        f"unstack of {path!r}", f"a space whose first axis is {stack}, of the newest last", shape
                    )
                shape = shape[1:]
            if replacement is not None and dtype == np.float64:
                dtype = replacement
            return ArraySpec(shape, dtype, kind)

        columns: dict[str, Any] = {
            "observation": spaces.translate(
                observation_space, "observation", lambda path, shape, dtype: convert(path, shape, dtype, "state")
            ),
            "action": spaces.translate(
                action_space, "action", lambda path, shape, dtype: convert(path, shape, dtype, "step")
            ),
            "reward": ArraySpec((), np.float32),
        }
        for name, spec in (extras or {}).items():
            if name in columns:
                raise SpecError(f"extras {name!r}", "names other than observation, action and reward", name)
            columns[name] = spec
        return cls(columns, unstack=stacks)

    # ---- reading it ------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> Mapping[str, ArraySpec]:
        """Flat name -> ArraySpec, in declared order."""
        return self._columns

    @property
    def unstack(self) -> Mapping[str, int]:
        """Flat name -> k, for the columns whose environment gives stacks."""
        return self._unstack

    @property
    def state_columns(self) -> tuple[str, ...]:
        """Flat names of the state columns."""
        return tuple(name for name, column in self._columns.items() if column.kind == "state")

    @property
    def late_columns(self) -> tuple[str, ...]:
        """Flat names of the late columns, which table.complete fills."""
        return tuple(name for name, column in self._columns.items() if column.late)

    @property
    def is_flat(self) -> bool:
        """Whether no column is nested."""
        return not any("/" in name for name in self._columns)

    @property
    def num_bytes(self) -> int:
        """Bytes of the columns of one step, as given. The table adds 16 B a step and rounds up."""
        return sum(column.num_bytes for column in self._columns.values())

    def is_tuple(self, path: str) -> bool:
        """Whether the group at this path ('observation', 'next_observation/arms') was declared as a tuple."""
        is_name = isinstance(path, str)
        return is_name and (path in self._tuples or (path.startswith("next_") and path[5:] in self._tuples))

    def expand(self, name: str) -> tuple[str, ...]:
        """The flat names that a name stands for: the name itself, or every column of a group. Raises UnknownColumn."""
        if not isinstance(name, str):
            raise SpecError("name of a column", "text", name)
        if name in self._columns:
            return (name,)
        below = tuple(path for path in self._columns if path.startswith(name + "/"))
        if not below:
            raise UnknownColumn(name, self._columns)
        return below

    # ---- value semantics -------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepSpec):
            return NotImplemented
        return (list(self._columns.items()), self._tuples, self._unstack) == (
            list(other._columns.items()),
            other._tuples,
            other._unstack,
        )

    def __hash__(self) -> int:
        return hash((tuple(self._columns.items()), self._tuples, tuple(sorted(self._unstack.items()))))

    def __repr__(self) -> str:
        unstack = f", unstack={dict(self._unstack)!r}" if self._unstack else ""
        return f"StepSpec({nest(dict(self._columns), self.is_tuple)!r}{unstack})"

    def __reduce__(self) -> tuple[Any, ...]:
        return StepSpec.from_json, (self.to_json(),)

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON and TOML can hold; from_dict gives an equal spec back.

        `columns` is nested as declared: a dict for a group, a list for a tuple, {'shape', 'dtype', 'kind'} for an
        ArraySpec, and 'late' if the column is late.
        """

        def plain(node: Any) -> Any:
            if isinstance(node, ArraySpec):
                late = {"late": True} if node.late else {}
                return {"shape": list(node.shape), "dtype": node.dtype.name, "kind": node.kind, **late}
            if isinstance(node, tuple):
                return [plain(part) for part in node]
            return {name: plain(part) for name, part in node.items()}

        return {"columns": plain(nest(dict(self._columns), self.is_tuple)), "unstack": dict(self._unstack)}

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> StepSpec:
        """The spec that to_dict wrote. shape (), kind 'step' and late False may be left out. Raises SpecError."""
        if not isinstance(parts, Mapping) or "columns" not in parts or set(parts) - {"columns", "unstack"}:
            got = sorted(map(str, parts)) if isinstance(parts, Mapping) else parts
            raise SpecError("a StepSpec", "columns, and unstack where that is wanted", got)
        if not isinstance(parts["columns"], Mapping):
            raise SpecError("columns", "a dict {name: column or group}", parts["columns"])
        return cls(_declared(parts["columns"], ""), unstack=parts.get("unstack"))

    def to_json(self) -> str:
        """to_dict as JSON text; from_json gives an equal spec back."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> StepSpec:
        """The spec that to_json wrote. Raises SpecError."""
        try:
            parts = json.loads(text)
            return cls.from_dict(parts)
        except ReliveError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SpecError("JSON of a StepSpec", "what to_json wrote", str(error)) from error

    def core_config(self) -> dict[str, Any]:
        """The columns as the core reads them."""
        columns = self._columns.items()
        return {
            "columns": [(name, one.dtype.str, one.shape, "late" if one.late else one.kind) for name, one in columns]
        }

    def _expand_stacks(self, stacks: Mapping[str, int], what: str) -> dict[str, int]:
        """{flat state column: k} from {column or group: k}, for `unstack` of a spec and `stack` of an index."""
        expanded: dict[str, int] = {}
        for name, stack in _checked_stacks(stacks, what).items():
            for column in self.expand(name):
                if self._columns[column].kind != "state":
                    raise SpecError(f"{what} of {column!r}", "a column of kind 'state'", self._columns[column].kind)
                expanded[column] = stack
        return expanded

    def expand_stack(self, stack: Mapping[str, int]) -> dict[str, int]:
        """{flat state column: frames} from the option `stack` of an index. Raises SpecError, UnknownColumn."""
        return self._expand_stacks(stack, "stack")


def next_step_names(spec: StepSpec) -> tuple[str, ...]:
    """next_<step> of each step column that is not late, and has_next. None if no state follows a step."""
    if not spec.state_columns:
        return ()
    steps = (name for name, column in spec.columns.items() if column.kind == "step" and not column.late)
    return (*(f"next_{name}" for name in steps), "has_next")


# ---- nesting -------------------------------------------------------------------------------------------------------


def nest(flat: Mapping[str, Any], is_tuple: Any) -> dict[str, Any]:
    """{'a/b': x} -> {'a': {'b': x}}. A group for which is_tuple(path) is true becomes a tuple."""
    root: dict[str, Any] = {}
    for name, value in flat.items():
        *groups, leaf = name.split("/")
        node = root
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = value

    def finish(node: dict[str, Any], path: str) -> Any:
        for key, value in node.items():
            if type(value) is dict:
                node[key] = finish(value, f"{path}{key}/")
        return tuple(node.values()) if path and is_tuple(path[:-1]) else node

    return cast("dict[str, Any]", finish(root, ""))


Groups: TypeAlias = "dict[str, str | Groups]"


def groups_of(names: Iterable[str]) -> dict[str, Groups]:
    """{'a': {'b': 'a/b'}} from 'a/b': the flat names for the parts of each nested argument. Flat names are left out."""
    targets = nest({name: name for name in names if "/" in name}, lambda path: False)
    return cast("dict[str, Groups]", targets)


def spread(name: str, value: Any, targets: Groups, into: dict[str, Any]) -> None:
    """Flattens one nested argument of append, a dict or a tuple, into entries 'name/key'.

    Parts that no spec declares also get flat names, for the caller to refuse.
    """
    if isinstance(value, (tuple, list)) and "0" in targets:
        value = {str(position): part for position, part in enumerate(value)}
    elif not isinstance(value, (dict, Mapping)):
        into[name] = value
        return
    for key, part in value.items():
        target = targets.get(key)
        if type(target) is str:
            into[target] = part
        elif target is None:
            into[f"{name}/{plain(key)}"] = part
        else:
            spread(f"{name}/{key}", part, cast("Groups", target), into)


def _flatten(node: Any, path: str, flat: dict[str, ArraySpec], tuples: set[str]) -> None:
    if isinstance(node, ArraySpec):
        if len(path.encode()) > MAX_NAME_BYTES:
            raise SpecError(f"column {path!r}", f"a name of at most {MAX_NAME_BYTES} bytes", len(path.encode()))
        flat[path] = node
        return
    parts: Iterator[tuple[str, Any]]
    if len(path.encode()) > MAX_NAME_BYTES:  # first: a dict that contains itself would lead deeper
        raise SpecError(f"group {path[:40]!r}...", f"a name of at most {MAX_NAME_BYTES} bytes", len(path.encode()))
    if isinstance(node, Mapping):
        parts = iter(node.items())
    elif isinstance(node, (tuple, list)):
        tuples.add(path)
        parts = ((str(position), part) for position, part in enumerate(node))
    else:
        raise SpecError(f"column {path!r}", "an ArraySpec(shape, dtype), or a dict or tuple of them", node)
    if len(node) == 0:
        raise SpecError(f"column {path!r}" if path else "columns", "at least one column", "none")
    for key, part in parts:
        if not is_name(key, MAX_NAME_BYTES) or "/" in key:
            expected = f"1 to {MAX_NAME_BYTES} bytes of text without '/' (nested columns are declared as dicts)"
            raise SpecError("name of a column" + (f" in {path!r}" if path else ""), expected, key)
        _flatten(part, f"{path}/{key}" if path else key, flat, tuples)


def _declared(node: Any, path: str) -> Any:
    """Columns from plain values: a dict that has a dtype is a column, any other dict a group, a list a tuple."""
    if isinstance(node, (list, tuple)):
        return tuple(_declared(part, f"{path}/{position}") for position, part in enumerate(node))
    if not isinstance(node, Mapping):
        raise SpecError(f"column {path!r}", "{'dtype': ...}, or a dict or list of columns", node)
    if not isinstance(node.get("dtype"), str):
        return {name: _declared(part, f"{path}/{name}" if path else str(name)) for name, part in node.items()}
    unknown = sorted(set(node) - {"shape", "dtype", "kind", "late"})
    if unknown:
        raise SpecError(f"column {path!r}", "shape, dtype, kind and late", ", ".join(map(str, unknown)))
    return ArraySpec(tuple(node.get("shape", ())), node["dtype"], node.get("kind", "step"), node.get("late", False))


# ---- checks --------------------------------------------------------------------------------------------------------


def _check_top_name(name: object) -> None:
    if not isinstance(name, str):
        raise SpecError("name of a column", "text", name)
    if name in ("terminated", "truncated", "discount"):
        raise SpecError(f"column {name!r}", "it not to be declared: every append takes it", name)
    if name in ("done", "dones"):  # else a table whose episodes never end would be learnt from without an error
        expected = "no column for it: an end is given to every append, as terminated= or, by a time limit, truncated="
        raise SpecError(f"column {name!r}", expected, name)
    if name.startswith("next_"):
        expected = f"no column for it: {name[5:]!r} with kind='state' yields it, and every append takes it"
        raise SpecError(f"column {name!r}", expected, name)
    if name in RESERVED_NAMES:
        raise SpecError(f"column {name!r}", "a name that is not reserved (next_*, lanes, priority, ...)", name)


def _checked_stacks(stacks: Any, what: str) -> dict[str, int]:
    if not isinstance(stacks, Mapping):
        raise SpecError(what, "a dict {state column: values}", stacks)
    for name, stack in stacks.items():
        if (
            isinstance(stack, (bool, np.timedelta64))
            or not isinstance(stack, (int, np.integer))
            or not 1 <= stack <= _MAX_STACK
        ):
            raise SpecError(f"{what} of {plain(name)!r}", f"an integer from 1 to {_MAX_STACK}", stack)
    return {name: int(stack) for name, stack in stacks.items()}


def _checked_shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    parts: Iterable[Any] = (shape,) if isinstance(shape, (int, np.integer)) else shape
    expected = f"a tuple of at most {MAX_DIMS} integers >= 1"
    if isinstance(shape, (str, bytes, bytearray, memoryview, Mapping, Set)):
        raise SpecError("shape", expected, shape)
    try:
        checked = tuple(itertools.islice(parts, MAX_DIMS + 1))
    except TypeError:
        raise SpecError("shape", expected, shape) from None
    for size in checked:
        if isinstance(size, (bool, np.timedelta64)) or not isinstance(size, (int, np.integer)) or size < 1:
            raise SpecError("shape", expected, shape)
    if len(checked) > MAX_DIMS:
        raise SpecError("shape", expected, shape)
    return tuple(int(size) for size in checked)


def _checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    expected = "a bool, integer, float or complex dtype of fixed size (variable-size values are not stored)"
    if dtype is None:
        raise SpecError("dtype", expected, dtype)
    if (isinstance(dtype, (str, type)) or type(dtype).__module__ == "torch") and "bfloat16" in str(dtype):
        raise SpecError("dtype", "a dtype of numpy, which has no bfloat16: float32 has its range", dtype)
    if type(dtype).__module__ == "torch":
        raise SpecError("dtype", f"a dtype of numpy, such as {str(dtype).removeprefix('torch.')!r}", dtype)
    try:
        checked = np.dtype(dtype)
    except (TypeError, ValueError, KeyError, SyntaxError, RecursionError):  # numpy raises any of these
        raise SpecError("dtype", expected, dtype) from None
    if checked.kind not in "biufc" or checked.itemsize > 16 or checked.char in "gG":
        raise SpecError("dtype", expected, str(checked))
    # By its text: numpy's longlong equals int64, but the core knows only one of the two.
    return np.dtype(checked.newbyteorder("=").str)
