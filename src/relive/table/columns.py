"""The columns of a batch: the flat names that a call asks for, by the kind of items that the index has."""

from __future__ import annotations

from typing import Any

from relive.config.explicit import Explicit
from relive.config.items import Items
from relive.config.spec import DERIVED_NAMES, StepSpec
from relive.errors import InvalidConfig, UnknownColumn
from relive.reading.batch import Columns, TimeAxis

__all__ = ["asked_names", "shown_columns"]


def asked_names(columns: Any) -> tuple[str, ...]:
    """columns= as a call gave it: names, or one name."""
    try:
        names = (columns,) if isinstance(columns, str) else tuple(columns)
    except (TypeError, ValueError):
        names = (None,)
    if not all(isinstance(name, str) for name in names):
        raise InvalidConfig("columns", "names of columns, or None for the usual ones", columns)
    return names


def shown_columns(
    items: Items | Explicit, spec: StepSpec, asked: tuple[str, ...] | None, more: tuple[str, ...]
) -> Columns:
    """The columns that a batch of these items shows; asked None: the usual ones. more: names that the sampler adds.

    Raises UnknownColumn.
    """
    if isinstance(items, Explicit):
        return Columns(_of_items(items, spec, asked), spec, windows=tuple(items.windows) if items.is_named else ())
    names = (*_usual(items, spec), *more) if asked is None else _expanded(asked, items, spec, more)
    axis = TimeAxis(
        items.is_trimmed, items.rows_behind, items.time_major, items.is_ragged, items.crosses, items.is_grouped
    )
    return Columns(names, spec, axis)


def _usual(items: Items, spec: StepSpec) -> tuple[str, ...]:
    if items.has_time:
        return (*spec.columns, "discount", "mask", *(("offsets",) if items.is_ragged else ()))
    return (*spec.columns, *(f"next_{name}" for name in spec.state_columns), "discount")


def _expanded(names: tuple[str, ...], items: Items, spec: StepSpec, more: tuple[str, ...]) -> tuple[str, ...]:
    states = () if items.is_grouped else tuple(f"next_{name}" for name in spec.state_columns)
    masks = ("mask", "loss_mask", *(("offsets",) if items.is_ragged else ())) if items.has_time else ()
    if items.is_grouped:  # what records know of their rows
        masks = ("mask",)
    known = (*spec.columns, *states, "discount", *masks, "terminated", "truncated", *DERIVED_NAMES, *more)
    flat: dict[str, None] = {}
    for name in names:
        matches = [one for one in known if one == name or one.startswith(f"{name}/")]
        if not matches:
            raise UnknownColumn(str(name), known)
        flat.update(dict.fromkeys(matches))
    if items.is_trimmed:
        flat["mask"] = None  # says how long the longest is
    if items.is_ragged:
        flat["offsets"] = None  # says whose the rows are
    return tuple(flat)


def _of_items(items: Explicit, spec: StepSpec, asked: tuple[str, ...] | None) -> tuple[str, ...]:
    """The flat names of columns of explicit items. A window's name stands for what comes of it when none is named."""
    known = {column.name: column.is_usual for column in items.batch_columns(spec)}
    if asked is None:
        return tuple(name for name, is_usual in known.items() if is_usual)
    flat: dict[str, None] = {}
    for name in asked:
        below = [one for one, is_usual in known.items() if is_usual and one.startswith(f"{name}/")]
        if name not in known and not below:
            raise UnknownColumn(str(name), known)
        flat.update(dict.fromkeys([name] if name in known else below))
    return tuple(flat)
