"""The calls of a handle that read the steps themselves, as they were written: gather_steps and episodes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.checks.names import names_arguments
from relive.config.casting import as_keys
from relive.config.items import Transitions
from relive.reading.batch import Batch
from relive.reading.columns import Columns, Selection
from relive.reading.episodes import Episode, EpisodeFacts, Place, StepFacts, whole_episodes
from relive.reading.own_draws import listed_with_ages
from relive.table.bound import Bound
from relive.table.columns import asked_names

__all__ = ["Stepping"]

Keys = npt.NDArray[np.int64]

_MOST_STEPS = 65_536  # of one gather
_MOST_BYTES = 16 << 20  # of one gather
_FACTS = ("lane", "episode_step", "terminated", "truncated")


class Stepping(Bound):
    """The part of a handle that reads steps, whatever the items of its indexes are."""

    @names_arguments
    def gather_steps(self, item_keys: npt.ArrayLike, columns: Sequence[str] | None = None) -> Batch:
        """The steps of these keys, as they were written: one row a key, whatever the items of the indexes are.

        The reward is that of the step, also if the index adds up n-step returns. The discount is that of the step,
        without gamma. A key of Transitions, Sequences or Episodes is the key of a step; groups and Explicit items have
        keys of their own.

        batch.present says which steps were there. A step is not there if it was deleted, or has left the table; in a
        table with state columns, before the state after it is written; if a late column is read, before
        table.complete has filled it.

        Args:
            item_keys: int64[B].
            columns: the names that sample() has for Transitions, without priority. A large column of kind 'start' has
                zeros for steps that no window starts at.

        Raises:
            ForeignKey: a key belongs to no row of this table.
            UnknownColumn, InvalidConfig: an argument has another type or value.
            TableClosed: the handle is closed.
        """
        selection = self._steps(columns)
        keys = as_keys(item_keys)
        arrays, present = self._core.gather(selection.core, keys, None)
        return Batch(selection.columns, arrays, keys, None, 0, present)

    @names_arguments
    def episodes(self, columns: Sequence[str] | None = None) -> Iterator[Episode]:
        """The whole episodes of the table in order, as they were written, the oldest first.

        This call makes the list of episodes. An episode is whole if all of its steps are there, from the first one to
        the one that ended it; an open episode is left out, and so is one that has lost a step. An episode that leaves
        the table before it is read is left out. An episode that waits for late columns is left out, unless `columns`
        names none of them. Closing a writer truncates its open episodes, so they are whole then; a last step without
        next states becomes the state after the step before it.

        Args:
            columns: names of declared columns, or of groups of them; None: all.

        Raises:
            UnknownColumn, InvalidConfig: an argument has another type or value.
            TableClosed: the handle is closed.

        Cost: a pass over all steps for the list, 40 bytes a step and a sort; then one copy of the rows.
        """
        asked = self._declared(columns)
        keys, places = whole_episodes(self._step_facts())
        return self._read(asked, keys, places)

    def to_minari(self, dataset_id: str, *, env: Any = None, **more: Any) -> Any:
        """Makes a local dataset of Minari from the whole episodes. Needs the extra `minari`.

        Args:
            dataset_id: the id, such as 'namespace/name-v0'.
            env: the environment, its id or its EnvSpec; None: the spaces are those of the columns, without bounds.
            **more: observation_space=, action_space=, and arguments of minari.create_dataset_from_buffers.

        Returns:
            The MinariDataset. relive.from_minari makes a table of it again, with the same columns and values.

        Raises:
            InvalidConfig: the table lacks observation, action or reward, or has no whole episode.
            MissingPackage: minari is not installed.
        """
        adapter = importlib.import_module("relive.adapters.minari")  # by name: an adapter stands above every table
        return adapter.to_minari(self, dataset_id, env=env, **more)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _declared(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return tuple(self._spec.columns)
        return tuple(dict.fromkeys(path for name in asked_names(columns) for path in self._spec.expand(name)))

    def _steps(self, columns: Sequence[str] | None) -> Selection:
        asked = None if columns is None else asked_names(columns)
        kind = "steps", asked
        selection = self._selections.get(kind)
        if selection is None:
            number = len(self._index_names)  # where a call takes the number of an index, this one stands for the steps
            names = _ONE_STEP.batch_names(self._spec, asked, ())
            core = self._core.select(number, list(names))
            selection = Selection(core, Columns(names, self._spec), number, None, {})
            self._remember(kind, selection)
        return selection

    def _step_facts(self) -> StepFacts:
        found, ages = listed_with_ages(self._core, len(self._index_names))
        selection = self._steps(_FACTS)
        parts: list[list[npt.NDArray[Any]]] = []
        for at in range(0, len(found), _MOST_STEPS):
            keys = found[at : at + _MOST_STEPS]
            arrays, present = self.gather_arrays(selection, keys)
            parts.append([array[present] for array in (keys, ages[at : at + _MOST_STEPS], *arrays)])
        if not parts:
            nothing = np.empty(0, np.int64)
            return StepFacts(nothing, nothing.astype(np.uint64), nothing, nothing, nothing.astype(np.bool_))
        keys, ages, lanes, steps, terminated, truncated = map(np.concatenate, zip(*parts, strict=True))
        return StepFacts(keys, ages, lanes, steps, terminated | truncated)

    def _read(self, asked: tuple[str, ...], keys: Keys, places: Sequence[Place]) -> Iterator[Episode]:
        most = max(1, min(_MOST_STEPS, _MOST_BYTES // max(1, self._spec.num_bytes)))
        some: list[Keys] = []
        num_steps = 0
        for place in places:
            some.append(keys[place.first : place.end])
            num_steps += place.end - place.first
            if num_steps >= most:
                yield from self._gathered(asked, some, most)
                some, num_steps = [], 0
        if some:
            yield from self._gathered(asked, some, most)

    def _gathered(self, asked: tuple[str, ...], some: list[Keys], most: int) -> Iterator[Episode]:
        """The episodes with these keys."""
        flat, present = self._rows((*asked, "discount", "policy_version", *_FACTS), np.concatenate(some), most)
        states = tuple(name for name in asked if self._spec.columns[name].kind == "state")
        last = np.array([keys[-1] for keys in some])
        after, has_after = self._rows(tuple(f"next_{name}" for name in states), last, most) if states else ({}, present)
        ends = np.cumsum([len(keys) for keys in some])
        for number, (keys, end) in enumerate(zip(some, ends.tolist(), strict=True)):
            rows = slice(end - len(keys), end)
            if not present[rows].all() or (states and not has_after[number]):
                continue
            columns = {name: self._column(name, flat[name][rows], after, number) for name in asked}
            facts = EpisodeFacts(
                int(flat["lane"][rows][0]),
                keys,
                bool(flat["terminated"][rows][-1]),
                bool(flat["truncated"][rows][-1]),
                flat["discount"][rows],
                flat["policy_version"][rows],
            )
            yield Episode(self._spec, columns, facts)

    def _column(self, name: str, rows: npt.NDArray[Any], after: dict[str, Any], number: int) -> npt.NDArray[Any]:
        kind = self._spec.columns[name].kind
        if kind == "state":
            return np.concatenate((rows, after[f"next_{name}"][number : number + 1]))
        return rows[0].copy() if kind == "episode" else rows

    def _rows(
        self, names: tuple[str, ...], keys: Keys, most: int
    ) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.bool_]]:
        """The columns of steps by flat name, and which steps were there. A few steps at a time."""
        parts = [self.gather_steps(keys[at : at + most], names) for at in range(0, len(keys), most)]
        if len(parts) == 1:
            return parts[0].flat(), _there(parts[0])
        flat = {name: np.concatenate([part[name] for part in parts]) for name in parts[0].flat()}
        return flat, np.concatenate([_there(part) for part in parts])


def _there(batch: Batch) -> npt.NDArray[np.bool_]:
    assert batch.present is not None  # of a gather by keys
    return batch.present


_ONE_STEP = Transitions()
