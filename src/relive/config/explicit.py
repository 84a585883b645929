"""Explicit items: the caller makes them from stored rows, with values of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, final

from relive.checks.names import names_arguments
from relive.checks.values import integer, is_name
from relive.config.kinds import ItemsKind, OneTableOnly
from relive.config.spec import DERIVED_NAMES, RESERVED_NAMES, ArraySpec, StepSpec
from relive.errors import InvalidConfig, SpecError, UnknownColumn

__all__ = ["Explicit", "Window", "WindowColumn"]

MAX_WINDOWS = 32
MAX_SPAN = 4096  # rows of the lane from a window's first row to its last
MAX_ITEMS = 2**31
MAX_ITEM_BYTES = 4096  # of the item's own columns
MAX_WINDOW_NAME = 47
# The derived columns of a window's rows.
ROW_NAMES = (
    "mask", "lane", "episode_step", "first", "terminated", "truncated", "discount", "policy_version", "staleness"
)  # fmt: skip
# Names that calls and batches use for something else.
_TAKEN = RESERVED_NAMES | {"index", "windows", "mask", "item_keys", "probabilities", "present", *DERIVED_NAMES}


@names_arguments
@final
@dataclass(frozen=True)
class Window:
    """Rows of one lane that an item may have: at most `length` rows, each `stride` rows after the one before.

    Args:
        length: the most rows, from 1; (length - 1) * stride < 4096.
        columns: names of columns and groups that a batch has by default; None: all.
        stride: distance between rows, from 1.

    Raises:
        InvalidConfig: an argument has another type or value. The table checks the columns that are named.
    """

    length: int
    columns: tuple[str, ...] | None = None
    stride: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", integer("length of a window", self.length, 1, MAX_SPAN))
        object.__setattr__(self, "stride", integer("stride of a window", self.stride, 1, MAX_SPAN))
        span = (self.length - 1) * self.stride + 1
        if span > MAX_SPAN:
            raise InvalidConfig("window", f"rows that lie within {MAX_SPAN} rows of their lane", span)
        if self.columns is None:
            return
        given: Any = self.columns
        names = (given,) if isinstance(given, str) else given
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            raise InvalidConfig("columns of a window", "names of columns, or None for all", self.columns)
        object.__setattr__(self, "columns", tuple(names))

    def expanded(self, spec: StepSpec) -> tuple[str, ...]:
        """The flat names of its columns. Raises UnknownColumn."""
        if self.columns is None:
            return tuple(spec.columns)
        return tuple(dict.fromkeys(flat for name in self.columns for flat in spec.expand(name)))


@final
@dataclass(frozen=True)
class WindowColumn:
    """A column of one window, as a batch names it. is_usual: a batch has it if no columns are named."""

    name: str
    is_usual: bool


@names_arguments
@final
@dataclass(frozen=True, init=False, repr=False)
class Explicit(ItemsKind):
    """Items that create_items() makes: rows of one or more windows, and values of their own.

    An item ends with its first row. Items need no next state, because the row after a window's last one is not part of
    it. An item may leave windows out and have fewer rows. The other rows of a window are zeros, and its mask is False
    there.

    Args:
        windows: {name: Window(length, columns, stride)}; a number stands for a Window of that length. A batch has
            `name/column` [B, length, ...] and `name/mask` bool[B, length]. One Window or number without a name: the
            columns keep their own names, and `mask`.
        columns: {name: ArraySpec} of the item's own values, [B, ...] in a batch; at most 4,096 bytes an item.
        max_items: the most items that live at a time. When one more comes, the oldest item ends, or the item that the
            index's remover chooses.

    Raises:
        InvalidConfig: an argument has another type or value, or a name is taken.
        SpecError: a column has a dtype or shape that is not stored.
    """

    one_table_only: ClassVar[OneTableOnly] = OneTableOnly(
        "Explicit items", "an item's windows would have to lie in one shard", "make such items in a table of their own"
    )
    keys_are_steps: ClassVar[bool] = False
    is_explicit: ClassVar[bool] = True
    steps_apart: ClassVar[int] = 0  # any number of items may stand on one step
    index_condition: ClassVar[str] = "None: items of this index are what create_items() is asked for"

    windows: Mapping[str, Window] = field(hash=False)
    columns: Mapping[str, ArraySpec] = field(default_factory=dict, hash=False)
    max_items: int = 100_000

    def __init__(
        self,
        windows: Mapping[str, Window | int | Mapping[str, Any]] | Window | int,
        columns: Mapping[str, ArraySpec | Mapping[str, Any]] | None = None,
        max_items: int = 100_000,
    ) -> None:
        put = object.__setattr__
        put(self, "windows", MappingProxyType(_checked_windows(windows)))
        put(self, "columns", MappingProxyType(_checked_columns({} if columns is None else columns, self.windows)))
        put(self, "max_items", integer("max_items", max_items, 1, MAX_ITEMS))

    @property
    def is_named(self) -> bool:
        """Whether the windows have names, which stand before the names of their columns."""
        return "" not in self.windows

    def check_against(self, spec: StepSpec) -> None:
        """Raises SpecError or UnknownColumn if the spec lacks a column that these items need."""
        for window in self.windows.values():
            window.expanded(spec)
        tops = {name.partition("/")[0] for name in spec.columns}
        for name in () if self.is_named else sorted(tops & {"mask", *self.columns}):
            raise SpecError(f"column {name!r}", "another name: items of one window without a name have their own", name)

    @property
    def most(self) -> int:
        """The option `max_items`."""
        return self.max_items

    @property
    def window_names(self) -> tuple[str, ...]:
        """The names of the windows, if they have names."""
        return tuple(self.windows) if self.is_named else ()

    def condition_columns(self, spec: StepSpec) -> Mapping[str, ArraySpec]:
        """The items' own columns, because the rows of one item may be steps of several lanes."""
        return self.columns

    def batch_names(
        self, spec: StepSpec, asked: tuple[str, ...] | None, more: tuple[str, ...], others: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """The named columns. The name of a window stands for the columns that it has when none is named."""
        known = {column.name: column.is_usual for column in self.batch_columns(spec)}
        known |= dict.fromkeys(others, False)
        if asked is None:
            return tuple(name for name, is_usual in known.items() if is_usual)
        flat: dict[str, None] = {}
        for name in asked:
            below = [one for one, is_usual in known.items() if is_usual and one.startswith(f"{name}/")]
            if name not in known and not below:
                raise UnknownColumn(str(name), known)
            flat.update(dict.fromkeys([name] if name in known else below))
        return tuple(flat)

    def batch_columns(self, spec: StepSpec) -> Iterator[WindowColumn]:
        """Every column that a batch of these items can have."""
        for name, window in self.windows.items():
            before = f"{name}/" if name else ""
            for column in window.expanded(spec):
                yield WindowColumn(before + column, True)
            for column in (*ROW_NAMES, "num_steps"):
                yield WindowColumn(before + column, column == "mask")
        for name in self.columns:
            yield WindowColumn(name, True)

    def core_config(self, spec: StepSpec) -> dict[str, Any]:
        """The items as the core reads them."""
        return {
            "items": "explicit",
            "max_items": self.max_items,
            "windows": [(name, window.length, window.stride) for name, window in self.windows.items()],
            "columns": [(name, one.dtype.str, one.shape, one.kind) for name, one in self.columns.items()],
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON and TOML can hold."""
        windows: dict[str, Any] = {}
        for name, window in self.windows.items():
            windows[name] = {"length": window.length, "stride": window.stride}
            if window.columns is not None:
                windows[name]["columns"] = list(window.columns)
        columns = {name: {"shape": list(one.shape), "dtype": one.dtype.name} for name, one in self.columns.items()}
        return {"windows": windows, "columns": columns, "max_items": self.max_items}

    def __reduce__(self) -> tuple[Any, ...]:
        return Explicit, tuple(self.to_dict().values())

    def __repr__(self) -> str:
        windows = dict(self.windows) if self.is_named else self.windows[""]
        columns = f", columns={dict(self.columns)!r}" if self.columns else ""
        return f"Explicit({windows!r}{columns}, max_items={self.max_items})"


def _checked_windows(windows: Any) -> dict[str, Window]:
    expected = "{name: Window(length, columns, stride) or a number of rows}, or one of these without a name"
    given = windows if isinstance(windows, Mapping) else {"": windows}
    if not 1 <= len(given) <= MAX_WINDOWS:
        raise InvalidConfig("windows", f"1 to {MAX_WINDOWS} windows", len(given))
    checked: dict[str, Window] = {}
    for name, window in given.items():
        unnamed = isinstance(name, str) and not name and len(given) == 1
        if not unnamed and (not is_name(name, MAX_WINDOW_NAME) or "/" in name):
            raise InvalidConfig("name of a window", f"1 to {MAX_WINDOW_NAME} bytes of text without '/'", name)
        if isinstance(window, Mapping):
            unknown = sorted(str(one) for one in window if one not in ("length", "columns", "stride"))
            if unknown or "length" not in window:
                raise InvalidConfig(f"window {name!r}", "length, and columns and stride where wanted", dict(window))
            window = Window(**window)
        elif not isinstance(window, Window):
            if isinstance(window, (str, bytes)) or not hasattr(window, "__index__"):
                raise InvalidConfig("windows", expected, window)
            window = Window(window)
        checked[name] = window
    return checked


def _checked_columns(columns: Any, windows: Mapping[str, Window]) -> dict[str, ArraySpec]:
    if not isinstance(columns, Mapping):
        raise InvalidConfig("columns of items", "a dict {name: ArraySpec}", columns)
    checked: dict[str, ArraySpec] = {}
    for name, column in columns.items():
        if not is_name(name, 120) or "/" in name:
            raise InvalidConfig("name of an item's column", "1 to 120 bytes of text without '/'", name)
        if name in _TAKEN or name in windows or name.startswith("next_"):
            raise InvalidConfig(f"column {name!r} of items", "a name that no argument, window or batch has", name)
        if isinstance(column, Mapping) and "dtype" in column and not set(column) - {"shape", "dtype"}:
            column = ArraySpec(tuple(column.get("shape", ())), column["dtype"])
        if not isinstance(column, ArraySpec) or column.kind != "step":
            raise InvalidConfig(f"column {name!r} of items", "an ArraySpec(shape, dtype)", column)
        checked[name] = column
    num_bytes = sum(one.num_bytes for one in checked.values())
    if num_bytes > MAX_ITEM_BYTES:
        raise InvalidConfig("columns of items", f"at most {MAX_ITEM_BYTES} bytes an item", num_bytes)
    return checked
