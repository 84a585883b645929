"""The calls of a handle that look at the table: sizes, statistics, and the configuration."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from relive.checks.html import html_table
from relive.config.index import Index
from relive.config.limiters import Limiter
from relive.config.spec import StepSpec
from relive.config.table_config import TableConfig
from relive.table.bound import Bound

if TYPE_CHECKING:
    from relive.table.stats import TableStats

__all__ = ["Looking"]


class Looking(Bound):
    """The part of a handle that looks at the table."""

    def __len__(self) -> int:
        """Live steps. Raises TableClosed."""
        return self._core.num_steps()

    def __bool__(self) -> bool:
        """True: `if table:` asks whether a handle exists, and not whether it has steps."""
        return True

    def num_items(self, index: str | None = None) -> int:
        """Live items of an index: those that can be drawn. Raises InvalidConfig, TableClosed."""
        return self._core.num_items(self.index_number(index))

    def limiter(self, index: str | None = None) -> Limiter:
        """The present limiter of an index, with its tolerance as a number. Raises InvalidConfig, TableClosed."""
        return self._index_limiter(self.index_number(index))

    def priority_exponent(self, index: str | None = None) -> float:
        """The present exponent of an index with a Prioritized sampler. Raises InvalidConfig, TableClosed."""
        return self._core.priority_exponent(self._exponent_index(index))

    def stats(self) -> TableStats:
        """Sizes and counters at this moment, over all processes. Raises TableClosed."""
        stats = importlib.import_module("relive.table.stats")  # here, so that `import relive` does not wait for it
        told: TableStats = stats.table_stats(self._core.stats(), self._index_names)
        return told

    def _repr_html_(self) -> str:
        if self.closed:
            return html_table(f"{type(self).__name__}, closed", (), ())
        columns = [(name, one.kind, one.dtype, list(one.shape)) for name, one in self._spec.columns.items()]
        indexes = [(name, self.num_items(name), one.sampler, one.limiter) for name, one in self.indexes.items()]
        title = f"{type(self).__name__}: {len(self):,} of {self.capacity:,} steps"
        return html_table(title, ("column", "kind", "dtype", "shape"), columns) + html_table(
            "Indexes", ("index", "items", "sampler", "limiter"), indexes
        )

    def check(self) -> None:
        """Raises CheckFailed if an invariant is broken.

        Blocks: takes the table's lock for a pass over the whole table.
        """
        self._core.check()

    @property
    def config(self) -> TableConfig:
        """The configuration that the table was made from."""
        return self._config

    @property
    def spec(self) -> StepSpec:
        """The columns of a step."""
        return self._spec

    @property
    def indexes(self) -> dict[str, Index]:
        """{name: Index}; the first is the default of reading calls."""
        return dict(self._config.index)

    @property
    def capacity(self) -> int:
        """Steps that are kept."""
        return self._config.capacity

    @property
    def timeout_s(self) -> float:
        """The default deadline of this handle's calls, in seconds."""
        return self._timeout_s

    @property
    def policy_version(self) -> int:
        """The version that set_policy_version set last. Raises TableClosed."""
        return self._core.policy_version

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._core.closed
