"""The base of all parts of a handle: its core, its configuration, and the selections and conditions it has resolved."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from relive.config.explicit import Explicit
from relive.config.limiters import Limiter, limiter_of
from relive.config.table_config import TableConfig
from relive.config.where import where_of
from relive.core.closing import Closing
from relive.core.loadable import Loadable
from relive.core.request import DrawRequest
from relive.core.table_core import TableCore
from relive.errors import InvalidConfig, ReliveError, RequestTooLarge
from relive.reading.columns import Columns, Selection
from relive.reading.holds import BatchSource, HeldDraws
from relive.reading.rewards import RELABELLED, extra_columns, goals_of
from relive.table.columns import asked_names, shown_columns
from relive.writing.late_rows import LateRows

__all__ = ["MAX_REMEMBERED", "Bound"]

Keys = npt.NDArray[np.int64]

MAX_REMEMBERED = 256  # selections and conditions of a handle, and requests of a selection


@runtime_checkable
class _AsksServer(Protocol):
    """A core whose gather is a message to a server, which may not answer."""

    def gather_within(
        self, selection: Any, keys: Keys, timeout_s: float
    ) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.bool_]]:
        """As TableCore.gather. Raises ServiceUnavailable after timeout_s, at least a second."""
        ...


class Bound(Closing, Loadable):
    """The core and the configuration of a handle."""

    def _bind(self, core: TableCore, config: TableConfig, timeout_s: float) -> None:
        self._core = core
        self._core_draw = core.draw
        self._config = config
        self._spec = config.spec
        self._index_names = tuple(config.index)
        self._timeout_s = timeout_s
        self._selections: dict[tuple[Any, ...], Selection] = {}
        self._conditions: dict[tuple[int, str], Any] = {}
        self._late = LateRows(config.spec)
        self._default_selection = self.select(None, None)

    def _bind_to(self, core: TableCore, timeout_s: float | None) -> None:
        # The metadata of the open core has the configuration. The core is closed if this version cannot read it.
        try:
            config = TableConfig.from_metadata(core.metadata)
        except ReliveError:
            core.close()
            raise
        self._bind(core, config, config.timeout_s if timeout_s is None else timeout_s)

    # ---- for the floors above --------------------------------------------------------------------------------------

    def select(
        self,
        index: str | None,
        columns: Sequence[str] | None,
        *,
        relabelled: bool = False,
        hidden: tuple[str, ...] = (),
    ) -> Selection:
        """The columns of an index, resolved once and remembered. Raises UnknownColumn, InvalidConfig.

        Args:
            index: the name of an index; None: the first.
            columns: their names; None: the usual ones.
            relabelled: whether an index without Hindsight has the column relabelled, too: False for each item.
            hidden: columns after these, which no caller sees.
        """
        asked = None if columns is None else asked_names(columns)
        number = self.index_number(index)  # first, because a value that is no name may have no hash
        kind = index, asked, relabelled, hidden
        selection = self._selections.get(kind)
        if selection is None:
            one = self._config.index[self._index_names[number]]
            more = (RELABELLED,) if relabelled else extra_columns(one.sampler)
            others = ("priority",) if one.has_priorities else ()
            shown = shown_columns(one.items, self._spec, asked, more, others, hidden)
            core = self._core.select(number, list(shown.names))
            selection = Selection(core, shown, number, goals_of(one.sampler, shown.names), {})
            self._remember(kind, selection)
        return selection

    def _remember(self, kind: tuple[Any, ...], selection: Selection) -> None:
        if len(self._selections) < MAX_REMEMBERED:
            self._selections[kind] = selection

    def gather_arrays(
        self, selection: Selection, keys: Keys, timeout_s: float | None = None
    ) -> tuple[list[npt.NDArray[Any]], npt.NDArray[np.bool_]]:
        """The arrays of keys, as the core gives them, and which keys were there.

        Args:
            selection: the columns.
            keys: int64[n], the keys.
            timeout_s: how long a handle of relive.connect() waits for its server, in seconds; None: the handle's
                timeout. A handle over shards waits for each served shard as long as the handle's timeout, whatever
                timeout_s is. A table of this machine does not wait.
        """
        core, rows = self._core, np.ascontiguousarray(keys)
        if timeout_s is not None and isinstance(core, _AsksServer):
            return core.gather_within(selection.core, rows, timeout_s)
        return core.gather(selection.core, rows, None)

    def condition(self, number: int, where: str) -> Any:
        """A condition on items of an index in the core's form; remembered. Raises InvalidConfig, UnknownColumn."""
        condition = self._conditions.get((number, where)) if isinstance(where, str) else None
        if condition is None:
            checked = where_of(where, self._spec, self._config.index[self._index_names[number]].items)
            condition = self._core.where(number, checked.text, list(checked.operations))
            if len(self._conditions) < MAX_REMEMBERED:
                self._conditions[number, checked.text] = condition
        return condition

    def index_number(self, name: str | None) -> int:
        """The position of an index among the table's indexes; None: the first. Raises InvalidConfig."""
        if name is None:
            return 0
        if not isinstance(name, str) or name not in self._index_names:
            raise InvalidConfig("index", " or ".join(map(repr, self._index_names)), name)
        return self._index_names.index(name)

    # ---- parts -----------------------------------------------------------------------------------------------------

    @property
    def _repeated_stacks(self) -> frozenset[str]:
        """The columns whose stacks repeat the first value of an episode, where there are fewer values."""
        items = [index.items for index in self._config.index.values() if not isinstance(index.items, Explicit)]
        repeating = [one for one in items if one.stack_pad == "repeat"]
        return frozenset(name for one in repeating for name in self._spec.expand_stack(one.stack))

    def _index_limiter(self, number: int) -> Limiter:
        return limiter_of(self._core.limiter(number))

    def _exponent_index(self, index: str | None) -> int:
        number = self.index_number(index)
        name = self._index_names[number]
        sampler = self._config.index[name].drawn_by
        if not sampler.has_exponent:
            expected = "an index whose sampler is Prioritized(...)"
            raise InvalidConfig(f"priority_exponent of index {name!r}", expected, type(sampler).__name__)
        return number

    def _explained(self, error: RequestTooLarge, index: str | None = None) -> RequestTooLarge:
        """The same error with the arithmetic of the index's limiter; without an index, of the narrowest limiter."""
        if error.none_twice or error.uses:
            return error
        number = getattr(error, "index", None)  # the core says which index refused a block
        if index is None and type(number) is int:
            index = self._index_names[number]
        names = self._index_names if index is None else (index,)
        try:
            limiters = [self._index_limiter(self.index_number(name)) for name in names]
        except ReliveError:  # a client that may append may not look at the limiter: the error stays without arithmetic
            return error
        paced = [(limiter.window, limiter.arithmetic()) for limiter in limiters if limiter.window is not None]
        if not paced:
            return error
        _, arithmetic = min(paced, key=lambda pair: pair[0])
        return RequestTooLarge(error.requested, error.window, arithmetic)

    @abstractmethod
    def held_draws(self) -> HeldDraws:
        """Draws that are counted when they are handed out, or given back as a whole."""

    @abstractmethod
    def _batch_source(
        self, request: DrawRequest, columns: Columns, prefetch: int, timeout_s: float
    ) -> tuple[BatchSource, int]:
        """The source of batches of such draws, and how many of them wait here, ready to be handed out."""
