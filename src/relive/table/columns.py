"""The columns that a call asks for, as the columns of a batch."""

from __future__ import annotations

from typing import Any

from relive.config.explicit import Explicit
from relive.config.items import Items
from relive.config.spec import StepSpec
from relive.errors import InvalidConfig
from relive.reading.batch import refuse_columns
from relive.reading.columns import Columns, TimeAxis

__all__ = ["asked_names", "shown_columns"]


def asked_names(columns: Any) -> tuple[str, ...]:
    """The argument columns= as a tuple of names; one name is allowed. Raises InvalidConfig."""
    try:
        names = (columns,) if isinstance(columns, str) else tuple(columns)
    except (TypeError, ValueError):
        names = (None,)
    if not all(isinstance(name, str) for name in names):
        raise InvalidConfig("columns", "names of columns, or None for the usual ones", columns)
    return names


def shown_columns(
    items: Items | Explicit,
    spec: StepSpec,
    asked: tuple[str, ...] | None,
    more: tuple[str, ...],
    others: tuple[str, ...] = (),
    hidden: tuple[str, ...] = (),
) -> Columns:
    """The columns that a batch of these items shows.

    Args:
        items: the items of the index.
        spec: the columns of a step.
        asked: the names that the call asks for; None: the usual ones.
        more: names that the sampler adds.
        others: names that may be asked for, because the index has priorities.
        hidden: columns after these, which no caller sees.

    Raises:
        UnknownColumn: a name stands for no column.
    """
    # Without state columns, the row behind an episode is empty. A ragged episode that was cut has the row nevertheless.
    shows_behind = items.is_ragged or any(column.kind == "state" for column in spec.columns.values())
    axis = TimeAxis(
        items.is_trimmed,
        items.rows_behind if shows_behind else 0,
        items.time_major,
        items.is_ragged,
        items.crosses,
        items.is_grouped,
    )
    names = items.batch_names(spec, asked, more, others)
    refuse_columns({name.partition("/")[0] for name in names})
    return Columns((*names, *hidden), spec, axis, items.window_names)
