"""The parts of a case: tables that both systems can make, calls on them, and the expected result of each call.

A case is a value. Nothing here knows either system; `system.System` defines the meaning of the verbs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, final

__all__ = [
    "SAME",
    "Call",
    "Case",
    "Column",
    "Condition",
    "Limit",
    "Near",
    "Other",
    "Part",
    "Pattern",
    "Setup",
    "Shares",
    "TableSetup",
    "TdError",
    "agrees",
    "in_words",
]

# ---- tables --------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Limit:
    """When draws and inserts may go on. kind: 'min_size' | 'ratio' | 'queue' | 'stack'.

    size: min_size_to_sample, or the length of a queue. buffer: half the width of the window around ratio x size, or
    (min_diff, max_diff).
    """

    kind: str
    size: int
    ratio: float = 1.0
    buffer: float | tuple[float, float] = 0.0


@final
@dataclass(frozen=True)
class TableSetup:
    """One table, in Reverb's words; relive's driver finds the index that is its like.

    sampler, remover: 'uniform' | 'prioritized' | 'fifo' | 'lifo' | 'min_heap' | 'max_heap'; exponent is of prioritized
    ones. max_times_sampled 0: no limit. signature: {column: (dtype, shape)}, nested or None: one int64 label an item.
    """

    name: str = "table"
    sampler: str = "uniform"
    remover: str = "fifo"
    max_size: int = 100
    limit: Limit = Limit("min_size", 1)
    max_times_sampled: int = 0
    exponent: float = 1.0
    signature: Mapping[str, Any] | None = field(default=None, hash=False)


@final
@dataclass(frozen=True)
class Setup:
    """The tables of a case, over the same data."""

    tables: tuple[TableSetup, ...]


# ---- trajectories --------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Part:
    """Some steps of one column, by Python's rules for an index, a slice or a list of indexes."""

    column: str
    steps: Any


@final
@dataclass(frozen=True)
class Column:
    """A column of the steps written so far: Column('a')[-3:] are its last three values."""

    name: str

    def __getitem__(self, steps: Any) -> Part:
        return Part(self.name, steps)


@final
@dataclass(frozen=True)
class Condition:
    """When a pattern applies. left: 'step_index' | 'steps_since_applied' | 'end_episode', or a column by its name.

    compare: '==', '!=', '<=', '>=', '<', '>'; modulo: the left side is taken by it first.
    """

    left: str
    compare: str = "=="
    right: int = 1
    modulo: int | None = None
    of_data: bool = False


@final
@dataclass(frozen=True)
class TdError:
    """The priority of a pattern's items: weight x max + (1 - weight) x mean of a column's absolute values."""

    weight: float
    column: str


@final
@dataclass(frozen=True)
class Pattern:
    """Items that write themselves as steps come."""

    parts: Mapping[str, Part] = field(hash=False)
    conditions: tuple[Condition, ...] = ()
    table: str = "table"
    priority: float | TdError = 1.0


# ---- what is expected ----------------------------------------------------------------------------------------------


@final
class _Mark:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


SAME: Any = _Mark("the same")


@final
@dataclass(frozen=True)
class Near:
    """Numbers, nested in lists as given, to a millionth of their size."""

    value: Any


@final
@dataclass(frozen=True)
class Other:
    """Anything but this."""

    value: Any


@final
@dataclass(frozen=True)
class Shares:
    """Draws in proportion to these weights, by a chi-square that a fair sampler exceeds less than once"
    " in 100,000 runs."""

    weights: Mapping[int, float] = field(hash=False)

    @property
    def bound(self) -> float:
        """The quantile at 1 - 1e-5 by Wilson and Hilferty's approximation, which is a little larger."""
        freedom = sum(weight > 0 for weight in self.weights.values()) - 1
        if freedom < 1:
            return 0.0
        spread = 2.0 / (9.0 * freedom)
        return float(freedom * (1.0 - spread + 4.2649 * math.sqrt(spread)) ** 3)

    def statistic(self, counts: Mapping[str, int]) -> float:
        """The chi-square of these counts by label; infinite where an item was drawn that never may be."""
        draws, total = sum(counts.values()), sum(self.weights.values())
        if any(self.weights.get(int(label), 0.0) <= 0.0 for label, count in counts.items() if count):
            return math.inf
        found = 0.0
        for label, weight in self.weights.items():
            expected = draws * weight / total
            if expected > 0.0:
                found += (counts.get(str(label), 0) - expected) ** 2 / expected
        return found


def agrees(expected: Any, observed: Any) -> bool:
    """Whether a call gave what was expected of it."""
    if isinstance(expected, Shares):
        return isinstance(observed, dict) and bool(observed) and expected.statistic(observed) <= expected.bound
    if isinstance(expected, Near):
        return _near(expected.value, observed)
    if isinstance(expected, Other):
        return bool(expected.value != observed)
    return bool(type(expected) is type(observed) and expected == observed)


def _near(expected: Any, observed: Any) -> bool:
    if isinstance(expected, (list, tuple)):
        whole = isinstance(observed, (list, tuple)) and len(expected) == len(observed)
        return whole and all(_near(a, b) for a, b in zip(expected, observed, strict=True))
    if isinstance(expected, (int, float)) and isinstance(observed, (int, float)):
        return math.isclose(expected, observed, rel_tol=1e-6, abs_tol=1e-9)
    return bool(expected == observed)


def in_words(expected: Any) -> str:
    """An expectation or an observation as a page shows it; draws by chance as the shares they are to have."""
    if isinstance(expected, Shares):
        return "shares " + ", ".join(f"{label}: {weight:g}" for label, weight in expected.weights.items())
    if isinstance(expected, Near):
        return str(expected.value)
    if isinstance(expected, Other):
        return f"anything but {expected.value}"
    return str(expected)


# ---- calls and cases -----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Call:
    """One call of a programme: a verb of System, its arguments, what it gives; relive: what it gives there instead."""

    verb: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    expected: Any = "done"
    relive: Any = SAME

    def gives(self, expected: Any, relive: Any = SAME) -> Call:
        """The same call with what it is to give."""
        return replace(self, expected=expected, relive=relive)

    def expected_of(self, system: str) -> Any:
        """The expected result on 'reverb' or 'relive'."""
        return self.expected if system != "relive" or self.relive is SAME else self.relive

    def __str__(self) -> str:
        parts = [*map(str, self.arguments), *(f"{name}={value}" for name, value in self.options.items())]
        return f"{self.verb}({', '.join(parts)})"


@final
@dataclass(frozen=True)
class Case:
    """A rule of Reverb's and a programme that shows it.

    says: what the documentation says, in words of our own; source: where. differs: why relive gives something else on
    purpose, and what; empty where it gives the same.
    """

    name: str
    says: str
    source: str
    setup: Setup
    calls: tuple[Call, ...]
    differs: str = ""


def verb(name: str, expected: Any = "done") -> Callable[..., Call]:
    """A maker of calls of one verb."""

    def make(*arguments: Any, **options: Any) -> Call:
        return Call(name, arguments, options, expected)

    return make
