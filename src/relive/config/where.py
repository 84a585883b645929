"""A condition over the columns of an item, compiled from its text to a small program that the core runs.

A text consists of:

- comparisons < <= > >= == !=, chained as in Python
- and, or, not, and parentheses
- + - * / of numbers
- names of columns, numbers, True and False

A program has at most 32 operations in postfix order, over whole numbers (int64) and real numbers (float64). This code
settles the type of each operation and checks the names of the columns, so that the core does neither.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, final

from relive.checks.values import is_text
from relive.config.explicit import Explicit
from relive.config.items import Items
from relive.config.spec import ArraySpec, StepSpec
from relive.errors import InvalidConfig, UnknownColumn

__all__ = ["MAX_OPERATIONS", "MAX_TEXT", "Operation", "Where", "check_text", "where_of"]

MAX_OPERATIONS = 32  # here and in the core
MAX_TEXT = 1000  # bytes
_TRIES = 20  # of a text that Python parses in several threads
_EXACT = 2**53  # a float64 represents every integer up to here

_WHOLE, _REAL, _TRUTH = "a whole number", "a real number", "a condition"

# The derived columns of a step, and the types of their values.
_DERIVED = {
    "lane": _WHOLE,
    "episode_step": _WHOLE,
    "policy_version": _WHOLE,
    "staleness": _WHOLE,
    "num_steps": _WHOLE,
    "first": _TRUTH,
    "terminated": _TRUTH,
    "truncated": _TRUTH,
}
_ARITHMETIC = {ast.Add: "add", ast.Sub: "subtract", ast.Mult: "multiply", ast.Div: "divide"}
# The operation, and whether its operands are swapped.
_COMPARISONS = {
    ast.Lt: ("less", False),
    ast.LtE: ("at_most", False),
    ast.Gt: ("less", True),
    ast.GtE: ("at_most", True),
    ast.Eq: ("equal", False),
    ast.NotEq: ("unequal", False),
}
_EXPECTED = "comparisons, and, or, not, + - * / of numbers, and parentheses"


class Operation(NamedTuple):
    """One operation of a program: its code, the column that it loads (code 'column'), or the number that it loads."""

    code: str
    column: str = ""
    number: float = 0.0
    whole: int = 0


@final
@dataclass(frozen=True)
class Where:
    """A condition that was checked against the items that it filters.

    Attributes:
        text: the text as it was given.
        operations: the program, in postfix order.
        changes: derived columns of the program that are not settled when an item is published. `staleness` changes
            while the item lives, and `num_steps` is the length of its window.
    """

    text: str
    operations: tuple[Operation, ...]
    changes: tuple[str, ...] = ()


class _Part(NamedTuple):
    """A compiled piece: operations that leave one value, and the type of that value.

    constant: the number, if the piece is a number.
    """

    operations: tuple[Operation, ...]
    type: str
    constant: int | float | None = None


def check_text(text: object) -> str:
    """The text, if it is text of 1 to 1000 bytes. Raises InvalidConfig."""
    if isinstance(text, str) and is_text(text, MAX_TEXT):
        return text
    got = f"{text[:40]!r}... of {len(text)}" if isinstance(text, str) and len(text) > MAX_TEXT else text
    raise InvalidConfig("where", f"a condition as text, of 1 to {MAX_TEXT} bytes, such as 'reward > 0'", got)


def where_of(text: object, spec: StepSpec, items: Items | Explicit) -> Where:
    """The program of a text, over items of a spec. Raises InvalidConfig or UnknownColumn, which name the column."""
    text = check_text(text)
    try:
        _parsed(text.strip())  # first, so that the offset of an error is that of the given text
        names = _Names(spec, items)
        named, paths = _with_paths_named(text.strip(), names)
        part = _Compiler(text, names, paths).part(_parsed(named).body)
    except SyntaxError as error:
        problem = f"{error.msg}, at character {error.offset}" if error.offset else error.msg
        raise InvalidConfig(f"where {text!r}", f"an expression of Python: {_EXPECTED}", problem) from None
    except (ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, (InvalidConfig, UnknownColumn)):
            raise
        raise InvalidConfig(f"where {text!r}", _EXPECTED, "one that is nested too deeply") from None
    if part.type != _TRUTH:
        expected = "a condition, true or false: compare it with something, such as != 0"
        raise InvalidConfig(f"where {text!r}", expected, part.type)
    if len(part.operations) > MAX_OPERATIONS:
        expected = f"at most {MAX_OPERATIONS} operations (columns, numbers, comparisons, and, or, not, + - * /)"
        raise InvalidConfig(f"where {text!r}", expected, len(part.operations))
    asked = {one.code for one in part.operations}
    changes = tuple(name for name in ("staleness", "num_steps") if name in asked)
    return Where(text, part.operations, changes)


def _parsed(text: str) -> ast.Expression:
    """The tree of a text. Raises what ast.parse raises.

    If several threads parse at once, Python 3.11 raises SystemError now and then: the threads share the count of the
    depth (CPython, gh-106905). The text is then parsed again.
    """
    for _ in range(_TRIES - 1):
        with contextlib.suppress(SystemError):
            return ast.parse(text, mode="eval")
    return ast.parse(text, mode="eval")


@final
class _Names:
    """The columns that a condition over these items may name."""

    def __init__(self, spec: StepSpec, items: Items | Explicit) -> None:
        self._spec, self._items = spec, items
        self._own: Mapping[str, ArraySpec] = spec.columns
        self._derived = tuple(_DERIVED)
        own = items.condition_columns(spec)
        if own is not None:
            self._own, self._derived = own, ()
        self.known = (*(name for name, one in self._own.items() if _refusal(one) is None), *self._derived)

    def is_column(self, path: str) -> bool:
        return path in self._spec.columns or path in self._own

    def is_group(self, path: str) -> bool:
        return path not in self._own and any(name.startswith(f"{path}/") for name in self._spec.columns)

    def load(self, name: str) -> _Part:
        """The operation that loads a column. Raises UnknownColumn, InvalidConfig."""
        if name in self._derived:
            if name == "num_steps" and not self._items.has_time and not self._items.sums_rewards:
                return _constant(1)
            return _Part((Operation(name),), _DERIVED[name])
        column = self._own.get(name)
        if column is not None:
            expected = _refusal(column)
            if expected is not None:
                raise InvalidConfig(f"column {name!r} of where", f"{expected} (known: {self._listed})", repr(column))
            kind = column.dtype.kind
            value_type = _TRUTH if kind == "b" else _REAL if kind == "f" else _WHOLE
            return _Part((Operation("column", name),), value_type)
        if name in self._spec.columns or name in _DERIVED:
            expected = f"what {self._items.in_words} have one value of: {self._listed or 'these have none'}"
            raise InvalidConfig(f"column {name!r} of where", expected, "a column of their rows")
        if self.is_group(name):
            below = next(one for one in self._spec.columns if one.startswith(f"{name}/"))
            raise InvalidConfig(f"column {name!r} of where", f"one column of the group, such as {below}", "the group")
        raise UnknownColumn(name, self.known)

    @property
    def _listed(self) -> str:
        return ", ".join(self.known)


def _refusal(column: ArraySpec) -> str | None:
    """The kind of column that a condition may name, in words, if this column is another one; else None."""
    if column.kind not in ("step", "episode"):
        return "a column of kind 'step' or 'episode'"
    if column.shape != ():
        return "a column of one number a step, shape ()"
    if column.dtype.kind == "u" and column.dtype.itemsize == 8:
        return "bools, float32, float64 or integers that fit int64: uint64 is compared with nothing exactly"
    if column.dtype.kind not in "biuf" or column.dtype.itemsize not in _SIZES[column.dtype.kind]:
        return "bools, float32, float64 or integers"
    return None


_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4), "f": (4, 8)}


def _constant(value: int | float) -> _Part:
    if isinstance(value, float):
        return _Part((Operation("real", number=value),), _REAL, value)
    return _Part((Operation("whole", whole=int(value)),), _TRUTH if isinstance(value, bool) else _WHOLE, value)


def _with_paths_named(text: str, names: _Names) -> tuple[str, dict[str, str]]:
    """The text with a name in place of each 'a/b', which Python would take for a division; and {name: path}."""
    paths: dict[str, str] = {}
    mark = "path"
    while mark in text:
        mark += "_"

    def replaced(match: re.Match[str]) -> str:
        parts, kept = re.split(r"\s*/\s*", match[0]), []
        while parts:
            count = 1
            if names.is_group(parts[0]) and len(parts) > 1:
                columns = [n for n in range(2, len(parts) + 1) if names.is_column("/".join(parts[:n]))]
                count = max(columns, default=len(parts))  # the other parts are divisors
                name = f"{mark}{len(paths)}"
                paths[name] = "/".join(parts[:count])
                kept.append(name)
            else:
                kept.append(parts[0])
            parts = parts[count:]
        return "/".join(kept)

    return _PATH.sub(replaced, text), paths


_PATH = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\s*/\s*\w+)+")


@final
class _Compiler:
    """Compiles nodes of Python's grammar to operations. paths: the names that stand for columns in groups."""

    def __init__(self, text: str, names: _Names, paths: Mapping[str, str]) -> None:
        self._text, self._names, self._paths = text, names, paths

    def part(self, node: ast.expr) -> _Part:
        if isinstance(node, ast.Name):
            return self._names.load(self._paths.get(node.id, node.id))
        if isinstance(node, ast.Constant):
            return self._number(node)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.BoolOp):
            parts = [self._truth(one) for one in node.values]
            code = Operation("and" if isinstance(node.op, ast.And) else "or")
            operations = parts[0].operations
            for one in parts[1:]:
                operations = (*operations, *one.operations, code)
            return _Part(operations, _TRUTH)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node)
        self._refuse(node)

    def _number(self, node: ast.Constant) -> _Part:
        value = node.value
        if not isinstance(value, (bool, int, float)):
            self._refuse(node)
        if isinstance(value, int) and abs(value) >= 2**63:
            raise InvalidConfig(f"where {self._text!r}", "integers that int64 holds", value)
        return _constant(value)

    def _truth(self, node: ast.expr) -> _Part:
        part = self.part(node)
        if part.type != _TRUTH:
            what = self._written(node)
            expected = f"conditions beside and, or, not; a number is none: write {what} != 0"
            raise InvalidConfig(f"where {self._text!r}", expected, what)
        return part

    def _unary(self, node: ast.UnaryOp) -> _Part:
        if isinstance(node.op, ast.Not):
            return _Part((*self._truth(node.operand).operations, Operation("not")), _TRUTH)
        if isinstance(node.op, ast.Invert):
            self._refuse(node)
        number = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if isinstance(node.op, ast.USub) and type(number) is int and number == 2**63:
            return _constant(-(2**63))  # int64 holds it, and not the number without its sign
        part = self.part(node.operand)
        if part.constant is not None:
            return _constant(-part.constant if isinstance(node.op, ast.USub) else +part.constant)
        real = self._real(part, node.operand)
        return _Part((*real, Operation("negate")), _REAL) if isinstance(node.op, ast.USub) else _Part(real, _REAL)

    def _arithmetic(self, node: ast.BinOp) -> _Part:
        code = _ARITHMETIC.get(type(node.op))
        if code is None:
            self._refuse(node)
        left = self._real(self.part(node.left), node.left)
        return _Part((*left, *self._real(self.part(node.right), node.right), Operation(code)), _REAL)

    def _comparison(self, node: ast.Compare) -> _Part:
        operands = [node.left, *node.comparators]
        operations: tuple[Operation, ...] = ()
        for at, op in enumerate(node.ops):
            if type(op) not in _COMPARISONS:
                self._refuse(node)
            one = self._compared(operands[at], operands[at + 1], *_COMPARISONS[type(op)])
            operations = (*operations, *one, Operation("and")) if at else one
        return _Part(operations, _TRUTH)

    def _compared(self, a: ast.expr, b: ast.expr, code: str, swapped: bool) -> tuple[Operation, ...]:
        left, right = self.part(a), self.part(b)
        if swapped:
            left, right, a, b = right, left, b, a
        if _REAL not in (left.type, right.type):  # a truth value is 0 or 1
            return (*left.operations, *right.operations, Operation(f"{code}_whole"))
        return (*self._real(left, a), *self._real(right, b), Operation(f"{code}_real"))

    def _real(self, part: _Part, node: ast.expr) -> tuple[Operation, ...]:
        """The same value as a real number."""
        if part.type == _REAL:
            return part.operations
        if part.constant is None:
            return (*part.operations, Operation("to_real"))
        if abs(part.constant) > _EXACT:
            expected = "integers of at most 2**53 beside real numbers: a float64 holds no larger ones exactly"
            raise InvalidConfig(f"where {self._text!r}", expected, part.constant)
        return _constant(float(part.constant)).operations

    def _written(self, node: ast.expr) -> str:
        text = ast.unparse(node)
        for name, path in self._paths.items():
            text = re.sub(rf"\b{name}\b", path, text)
        return text

    def _refuse(self, node: ast.expr) -> NoReturn:
        text = self._written(node)
        hint = ""
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            hint = "; & and | are written and, or"
        elif isinstance(node, ast.UnaryOp):
            hint = "; ~ is written not"
        elif isinstance(node, ast.Compare):
            hint = "; is and in are written ==, with or between them"
        elif isinstance(node, ast.Attribute):
            hint = "; a column in a group is written group/column"
        raise InvalidConfig(f"where {self._text!r}", _EXPECTED + hint, text)
