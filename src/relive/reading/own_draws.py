"""The items that a sampler of the caller chooses from: the keys of an index, in order."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from relive.config.index import Index
from relive.core.table_core import TableCore
from relive.errors import InvalidConfig

__all__ = ["Order", "checked_order", "listed"]

Order: TypeAlias = Literal["age", "priority"]

_LEAVES = 1 << 20  # of one call of the core


def checked_order(order: Any, name: str, index: Index) -> bool:
    """Whether the order is by priority.

    Raises InvalidConfig if it is no order, or if the sampler ignores priorities.
    """
    if not isinstance(order, str) or order not in ("age", "priority"):
        raise InvalidConfig("order of keys", "'age' or 'priority'", order)
    if order == "priority" and not index.draws_by_priority:
        sampler = type(index.sampler).__name__
        raise InvalidConfig(
            f"order of keys of index {name!r}", f"'age': its sampler, {sampler}, looks at no priorities", order
        )
    return order == "priority"


def listed(core: TableCore, index: int, by_priority: bool, where: Any) -> npt.NDArray[np.int64]:
    """The keys of an index, sorted."""
    parts = []
    first = 0
    while True:
        *found, first = core.list_items(index, first, _LEAVES, where)
        parts.append(found)
        if first == 0:
            break
    keys, ages, ranks = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    places = np.lexsort((ages, ranks)) if by_priority else np.argsort(ages, kind="stable")
    return cast("npt.NDArray[np.int64]", keys[places])
