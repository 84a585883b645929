"""The late columns of some rows, as table.complete gets them: checked, and packed in the form that the core takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import numpy.typing as npt

from relive.config.casting import Normaliser, as_array, cast
from relive.config.spec import StepSpec, groups_of, spread
from relive.errors import LateColumn, MissingColumn, SpecError, UnknownColumn

__all__ = ["LateRows"]

_INT64 = np.dtype(np.int64)


@final
class LateRows:
    """The late columns of one table: the arguments that complete() takes, and their form for the core."""

    __slots__ = ("_groups", "_names", "_normalise", "_row", "_spec")

    def __init__(self, spec: StepSpec) -> None:
        self._spec = spec
        self._names = spec.late_columns
        self._groups = groups_of(self._names)
        self._normalise = Normaliser(spec, single=True)
        columns = [spec.columns[name] for name in self._names]
        self._row = np.dtype([(f"f{at}", column.dtype, column.shape) for at, column in enumerate(columns)])

    def pack(self, item_keys: Any, columns: Mapping[str, Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
        """The keys and late columns of rows, packed.

        Args:
            item_keys: of any shape, or one key.
            columns: every late column, [*keys' shape, *column's shape].

        Returns:
            Keys int64[B]; the late columns row after row, uint8[B * bytes of a row].

        Raises:
            UnknownColumn, MissingColumn: a name is not known, or is missing.
            LateColumn: a named column is not late.
            ShapeMismatch, DtypeMismatch: an array has another shape or dtype.
            SpecError: the table has no late columns.
        """
        flat = self._flattened(columns)
        keys = as_array("item_keys", item_keys)
        if keys.size:
            keys = cast("item_keys", keys, _INT64) if keys.dtype != _INT64 else keys
        rows = np.empty(math.prod(keys.shape), self._row)
        for at, name in enumerate(self._names):
            values = self._normalise(name, flat[name], keys.shape)
            rows[f"f{at}"] = values.reshape(len(rows), *self._spec.columns[name].shape)
        return np.ascontiguousarray(keys.reshape(-1), dtype=np.int64), rows.view(np.uint8)

    def _flattened(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        if not self._names:
            raise SpecError("complete", "a table with late columns: ArraySpec(..., late=True)", "none declared")
        flat: dict[str, Any] = {}
        for name, value in columns.items():
            if name in self._groups:
                spread(name, value, self._groups[name], flat)
            else:
                flat[name] = value
        for name in flat:
            if name in self._names:
                continue
            if name in self._spec.columns:
                raise LateColumn(name, is_late=False)
            if name in self._groups:
                raise SpecError(f"column {name!r}", "a dict or tuple, as it was declared", flat[name])
            raise UnknownColumn(name, self._names)
        for name in self._names:
            if name not in flat:
                raise MissingColumn(name, flat)
        return flat
