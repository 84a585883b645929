"""Values from environments and agents as exact arrays of the table's columns. A wrong value is refused at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive.config.casting import Normaliser, as_array
from relive.config.spec import StepSpec
from relive.errors import InvalidConfig, MissingColumn, MissingNext, ShapeMismatch, UnknownColumn

__all__ = ["FROM_ENVIRONMENT", "Flat", "Lanes", "Rows"]

Flat = dict[str, NDArray[Any]]
Lanes = NDArray[np.int64]
FROM_ENVIRONMENT = ("observation", "action", "reward")


@final
class Rows:
    """Makes arrays [M, ...] in the shape and dtype of a column.

    Every method raises a structured error that names the column, and changes nothing.
    """

    def __init__(self, spec: StepSpec, single: bool) -> None:
        """Checks that the spec can be recorded into.

        Args:
            spec: the columns of the table.
            single: whether a value is that of one environment, without the axis M.

        Raises:
            InvalidConfig: the spec has no observation of kind "state", a late column, or a further state column.
        """
        self._spec = spec
        self._single = single
        self._normalise = Normaliser(spec, single=False)
        self._paths = {top: _paths_of(spec, top) for top in FROM_ENVIRONMENT}
        self.observation = self._paths["observation"]
        self.extras = _extra_columns(spec)

    def of(self, top: str, value: Any, num_rows: int) -> Flat:
        """Returns {flat column: array} of an observation, action or reward.

        The dict is empty if the table has no such column.
        """
        paths = self._paths[top]
        if not paths:
            return {}
        if paths == (top,) and isinstance(value, np.ndarray):  # the usual case
            return {top: self._exact(top, value, num_rows)}
        given: dict[str, Any] = {}
        self._flatten(top, value, given)
        for path in given:
            if path not in paths:
                raise UnknownColumn(path, paths)
        for path in paths:
            if path not in given:
                raise MissingColumn(path, given)
        return {path: self._exact(path, part, num_rows) for path, part in given.items()}

    def of_extra(self, name: str, value: Any, num_rows: int) -> Flat:
        """Returns {flat column: array} of a column, or of a group of columns, that the environment does not give."""
        given: dict[str, Any] = {}
        self._flatten(name, value, given)
        for path in given:
            if path not in self.extras:
                raise UnknownColumn(path, self.extras)
        return {path: self._exact(path, part, num_rows) for path, part in given.items()}

    def ends(self, name: str, value: Any, num_rows: int) -> NDArray[np.bool_]:
        """Returns terminated or truncated as bool[M]."""
        if not self._single and type(value) is np.ndarray and value.dtype == bool and value.shape == (num_rows,):
            return value
        array = as_array(name, value)
        array = array[np.newaxis] if self._single else array
        if array.shape != (num_rows,):
            raise ShapeMismatch(name, (num_rows,), array.shape)
        return array.astype(np.bool_)

    def final(self, present: Lanes, over: NDArray[np.bool_], final: Any) -> Flat:
        """Returns the last observations [E, ...] of the E rows whose episode is over.

        Args:
            present: the lanes of the rows.
            over: bool[M].
            final: the environment's "final_obs": arrays [M, ...], or one object for each row.

        Raises:
            MissingNext: there is no `final`.
        """
        rows = np.flatnonzero(over)
        if not len(rows):
            return {}
        if final is None:
            raise MissingNext(int(present[rows[0]]))
        if not (isinstance(final, np.ndarray) and final.dtype == object):
            return {path: part[rows] for path, part in self.of("observation", final, len(over)).items()}
        if final.shape != over.shape:
            raise ShapeMismatch("final_obs", over.shape, final.shape)
        singles: list[dict[str, Any]] = []
        for row in rows:
            given: dict[str, Any] = {}
            self._flatten("observation", final[row], given)
            singles.append({path: as_array(path, part)[np.newaxis] for path, part in given.items()})
        missing = next((path for single in singles for path in self.observation if path not in single), None)
        if missing is not None:
            raise MissingColumn(missing)
        return {
            path: np.concatenate([self._normalise(path, single[path], (1,)) for single in singles])
            for path in self.observation
        }

    def _exact(self, path: str, value: Any, num_rows: int) -> NDArray[Any]:
        if self._single:
            value = as_array(path, value)[np.newaxis]
        elif type(value) is np.ndarray:
            column = self._spec.columns[path]
            if value.dtype == column.dtype and value.shape == (num_rows, *column.shape):
                return value
        return self._normalise(path, value, (num_rows,))

    def _flatten(self, name: str, value: Any, into: dict[str, Any]) -> None:
        if isinstance(value, Mapping):
            for key, part in value.items():
                self._flatten(f"{name}/{key}", part, into)
        elif isinstance(value, (tuple, list)) and self._spec.is_tuple(name):
            for position, part in enumerate(value):
                self._flatten(f"{name}/{position}", part, into)
        else:
            into[name] = value


def _paths_of(spec: StepSpec, top: str) -> tuple[str, ...]:
    return tuple(path for path in spec.columns if path == top or path.startswith(top + "/"))


def _extra_columns(spec: StepSpec) -> tuple[str, ...]:
    """Returns the columns that an environment does not give.

    State columns among them are refused: their last value would be missing.
    """
    observation = _paths_of(spec, "observation")
    if not observation or any(spec.columns[path].kind != "state" for path in observation):
        raise InvalidConfig(
            what="table to record into",
            expected="columns 'observation' of kind 'state', as StepSpec.from_spaces declares them",
            got=list(spec.columns),
        )
    if spec.late_columns:
        raise InvalidConfig(
            what=f"column {spec.late_columns[0]!r}",
            expected="columns that are not late: a recorder gives out no keys to complete steps by; use table.writer()",
            got="late=True",
        )
    extras = tuple(path for path in spec.columns if path.partition("/")[0] not in FROM_ENVIRONMENT)
    for path in spec.columns:
        if path not in observation and spec.columns[path].kind == "state":
            raise InvalidConfig(
                what=f"column {path!r}",
                expected="kind 'step', 'start' or 'episode': state columns come from the observation",
                got="state",
            )
    return extras
