"""The order of the items in a batch, where the caller asks for one."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt

from relive.config.index import Index
from relive.reading.batch import Batch
from relive.reading.columns import Columns
from relive.reading.own_draws import Order, checked_order

__all__ = ["Ordered", "hidden_columns", "hidden_names", "places"]

_AGE = "/age"  # no column of a table has such a name
_PRIORITY = "priority"


def hidden_names() -> tuple[str, ...]:
    """Every column that an order may need."""
    return (_AGE, _PRIORITY)


def hidden_columns(order: Order, name: str, index: Index) -> tuple[str, ...]:
    """The columns that the order needs: the age of each item, and its priority.

    A sampler with an order already brings the items that it prefers first; then there is nothing to sort by.

    Args:
        order: 'age' or 'priority'.
        name: the name of the index, for messages.
        index: the index.

    Raises InvalidConfig if it is no order, or if the sampler ignores priorities.
    """
    if not checked_order(order, name, index, "items of a batch"):
        return (_AGE,)
    return () if index.sampler.draws_by == "order" else (_AGE, _PRIORITY)


def places(hidden: list[npt.NDArray[Any]]) -> npt.NDArray[np.intp]:
    """The items in their order, from the arrays of the hidden columns. Among equal priorities the oldest come first."""
    ages, *priorities = hidden
    if not priorities:
        return np.argsort(ages, kind="stable")
    return np.lexsort((ages, -priorities[0]))


@final
class Ordered:
    """Puts the items of a batch in order.

    asked: the columns of the batches that come, with the hidden ones last. shown: those of the batches that go.
    """

    def __init__(self, shown: Columns, asked: Columns) -> None:
        self._shown = shown
        self.asked = asked
        self._num_hidden = len(asked.names) - len(shown.names)

    def __call__(self, batch: Batch) -> Batch:
        """The batch without its hidden columns, its items in order. Cost: one copy of the batch."""
        return batch.in_order(self._shown, self._num_hidden, places)
