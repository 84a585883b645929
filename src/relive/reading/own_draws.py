"""The items that a sampler of the caller chooses from: the keys of an index, in order."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.config.index import Index
from relive.core.table_core import TableCore
from relive.errors import InvalidConfig

__all__ = ["Order", "checked_order", "listed", "listed_with_ages"]

Order: TypeAlias = Literal["age", "priority"]

Keys = npt.NDArray[np.int64]
Ages = npt.NDArray[np.uint64]

_LEAVES = 1 << 20  # of one call of the core


def checked_order(order: Any, name: str, index: Index, what: str = "keys") -> bool:
    """Whether the order is by priority. what: the things in order, for messages.

    Raises InvalidConfig if it is no order, or if the sampler ignores priorities.
    """
    if not isinstance(order, str) or order not in ("age", "priority"):
        raise InvalidConfig(f"order of {what}", "'age' or 'priority'", order)
    if order == "priority" and not index.draws_by_priority:
        sampler = type(index.sampler).__name__
        raise InvalidConfig(
            f"order of {what} of index {name!r}", f"'age': its sampler, {sampler}, looks at no priorities", order
        )
    return order == "priority"


def listed(core: TableCore, index: int, by_priority: bool, where: Any) -> Keys:
    """The keys of an index, sorted."""
    keys, ages, ranks = _all_listed(core, index, where)
    places = np.lexsort((ages, ranks)) if by_priority else np.argsort(ages, kind="stable")
    return keys[places]


def listed_with_ages(core: TableCore, index: int) -> tuple[Keys, Ages]:
    """The keys of an index, or of the steps, and their ages, in no order. Ages are counted within each shard."""
    keys, ages, _ = _all_listed(core, index, None)
    return keys, ages


def _all_listed(core: TableCore, index: int, where: Any) -> tuple[Keys, Ages, npt.NDArray[np.float64]]:
    parts = []
    first = 0
    while True:
        *found, first = core.list_items(index, first, _LEAVES, where)
        parts.append(found)
        if first == 0:
            break
    keys, ages, ranks = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return keys, ages, ranks
