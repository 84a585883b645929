"""The cases' verbs in relive's words: one table, its indexes named as Reverb's tables, an item a row."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

import relive
from conformance.relive_patterns import STEP_INDEX, patterns_of
from conformance.relive_tables import NoWord, has_priorities, index_of, spec_of
from conformance.relive_trajectories import MAX_ROWS, Trajectories
from conformance.system import (
    DONE,
    NO_WORD,
    PATIENCE_S,
    REFUSED,
    TABLE,
    WAITS,
    System,
    in_order,
    label_of,
)
from conformance.words import Call, Part, Pattern, Setup

__all__ = ["ReliveSystem"]

LABEL = {"label": ("int64", ())}


@final
class ReliveSystem(System):
    """A table in this process's memory. Every call that could wait is tried once, with timeout_s=0."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._seed = seed
        self._setup = Setup(())
        self._table: relive.Table | None = None
        self._trajectories: Trajectories | None = None
        self._keys: dict[int, int] = {}  # of labels, the newest item's
        self._all_keys: list[int] = []
        self._done: list[tuple[str, tuple[Any, ...]]] = []  # what changed the table, to do again on another one
        self._put: dict[str, Any] = {}
        self._taken: Any = None
        self._step_index: int | None = None  # of the next step, where a case has patterns

    # ---- tables ----------------------------------------------------------------------------------------------------

    def read(self, calls: Sequence[Call]) -> None:
        if any(call.verb in ("write", "item_of_last", "patterns") for call in calls):
            self._trajectories = Trajectories(calls)

    def open(self, setup: Setup) -> str:
        self._setup, trajectories = setup, self._trajectories
        try:
            if trajectories is None:
                columns: Mapping[str, Any] = setup.tables[0].signature or LABEL if setup.tables else LABEL
                capacity = max((one.max_size for one in setup.tables), default=1)
                if any(one.remover != "fifo" for one in setup.tables):
                    capacity = MAX_ROWS  # rows go in the order of time: what another remover keeps needs more of them
                indexes = {
                    one.name: index_of(one, relive.Transitions(), one.max_size if one.max_size < capacity else None)
                    for one in setup.tables
                }
            else:
                indexes = {
                    one.name: index_of(one, trajectories.explicit(one.name, one.max_size, one.signature))
                    for one in setup.tables
                }
                columns, capacity = trajectories.columns or LABEL, MAX_ROWS
            spec = relive.StepSpec(spec_of(columns, trajectories.late if trajectories else set()))
            self._table = relive.Table(spec, capacity, indexes, seed=self._seed, timeout_s=PATIENCE_S)
            self._writer: relive.Writer | relive.PatternWriter = self._table.writer()
        except NoWord as absent:
            return self._no_word(str(absent))
        except relive.ReliveError as error:
            return self._refused(error)
        return DONE

    def close(self) -> None:
        if self._table is not None:
            self._table.close()

    def size(self, table: str = TABLE) -> int:
        return self._live.num_items(table)

    def counts(self, table: str = TABLE) -> list[int]:
        index = self._live.stats().indexes[table]
        return [index.inserted, index.sampled]

    def reset(self, table: str = TABLE) -> str:
        self._done.append(("reset", (table,)))
        self._live.clear()
        return DONE

    def save_and_load(self) -> str:
        with tempfile.TemporaryDirectory() as folder:
            self._live.save(folder)
            self._writer.close()
            self._live.close()
            self._table = relive.load(folder, timeout_s=PATIENCE_S)
        self._writer = self._table.writer()
        self._done.append(("save_and_load", ()))
        return DONE

    # ---- items that are one labelled step --------------------------------------------------------------------------

    def insert(self, label: int, priority: float | None = 1.0, tables: Sequence[str] | None = None) -> str:
        if tables is not None and set(tables) != {one.name for one in self._setup.tables}:
            return self._no_word("a step is an item of every index")
        answer = self._append(label, priority, 0.0)
        if answer == DONE:
            self._done.append(("insert", (label, priority)))
        return answer

    def _append(self, label: int, priority: float | None, timeout_s: float) -> str:
        prioritized = any(has_priorities(one) for one in self._setup.tables)
        try:
            key = self._writer.append(label=label, priority=priority if prioritized else None, timeout_s=timeout_s)
        except relive.DeadlineExceeded:
            return WAITS
        except relive.ReliveError as error:
            return self._refused(error)
        self._keys[label] = int(key)
        self._all_keys.append(int(key))
        return DONE

    def contents(self, table: str = TABLE) -> list[Any]:
        if self._trajectories is not None and self._step_index is not None:
            return sorted(self._written_items(table), key=in_order)
        if self._trajectories is not None:
            batch = self._live.gather(np.array(self._trajectories.items.get(table, []), np.int64), index=table)
            assert batch.present is not None
            found = [self._trajectories.shown(batch, int(row), table) for row in np.flatnonzero(batch.present)]
            return sorted(found, key=in_order)
        if not self._all_keys:
            return []
        batch = self._live.gather(np.array(self._all_keys, np.int64), index=table)
        assert batch.present is not None
        return sorted(int(label) for label in batch["label"][batch.present])

    def _written_items(self, table: str) -> list[Any]:
        """Items that patterns made. A draw returns their keys."""
        found: dict[int, Any] = {}
        while len(found) < self.size(table):
            batch = self._live.sample(16, timeout_s=0.0, index=table)
            found |= {int(key): self._windowed.shown(batch, row, table) for row, key in enumerate(batch.item_keys)}
        return list(found.values())

    # ---- drawing ---------------------------------------------------------------------------------------------------

    def sample(self, num_draws: int, table: str = TABLE) -> list[Any]:
        labels: list[Any] = []
        for _ in range(num_draws):
            answer = self.batch(1, table)
            if not isinstance(answer, list):
                return [*labels, answer]
            labels += answer
        return labels

    def batch(self, num_items: int, table: str = TABLE) -> Any:
        return self._drawn(num_items, table, 0.0)

    def _drawn(self, num_items: int, table: str, timeout_s: float) -> Any:
        try:
            batch = self._live.sample(num_items, timeout_s=timeout_s, index=table)
        except relive.DeadlineExceeded:
            return WAITS
        except relive.ReliveError as error:
            return self._refused(error)
        self._done.append(("batch", (num_items, table)))
        if self._trajectories is not None:
            return [self._trajectories.shown(batch, row, table) for row in range(num_items)]
        return [int(label) for label in batch["label"]]

    def fields(self, names: Sequence[str], num_draws: int = 1, table: str = TABLE) -> Any:
        if not set(names) <= {"label", "probability", "table_size"}:
            return self._no_word("a batch has probabilities, the number of live items, keys and columns")
        found = []
        for _ in range(num_draws):
            batch = self._live.sample(1, timeout_s=0.0, index=table)
            values = {
                "label": int(batch["label"][0]),
                "probability": float(batch.probabilities[0]),
                "table_size": batch.num_live_items,
            }
            found.append([values[name] for name in names])
        return found

    def tally(self, num_draws: int, table: str = TABLE) -> Any:
        try:
            batch = self._live.sample(num_draws, timeout_s=0.0, index=table)
        except relive.DeadlineExceeded:
            return WAITS
        labels, counts = np.unique(batch["label"], return_counts=True)
        return {str(label): int(count) for label, count in zip(labels, counts, strict=True)}

    def can_insert(self, num_items: int, table: str = TABLE) -> bool:
        twin = self._twin()
        try:
            twin._writer.extend(label=np.zeros(num_items, np.int64), priority=1.0 if twin._given else None, timeout_s=0)
        except (relive.DeadlineExceeded, relive.errors.RequestTooLarge):
            return False
        finally:
            twin.close()
        return True

    def can_sample(self, num_items: int, table: str = TABLE) -> bool:
        twin = self._twin()
        try:
            twin._live.draw(num_items, timeout_s=0, index=table)
        except (relive.DeadlineExceeded, relive.errors.RequestTooLarge):
            return False
        finally:
            twin.close()
        return True

    def _twin(self) -> ReliveSystem:
        """Another table to which the same was done: trying something there changes nothing here."""
        twin = ReliveSystem(self._seed)
        twin.open(self._setup)
        for name, arguments in self._done:
            getattr(twin, name)(*arguments)
        return twin

    # ---- changing --------------------------------------------------------------------------------------------------

    def learn(self, labels: Sequence[int], table: str = TABLE) -> str:
        return DONE if all(label in self._keys for label in labels) else WAITS  # keys came with the inserts

    def mutate(self, updates: Mapping[int, float], deletes: Sequence[int] = (), table: str = TABLE) -> str:
        keys = [self._keys[label] for label in updates]
        try:
            if updates:
                self._live.update_priorities(np.array(keys, np.int64), list(updates.values()), index=table)
            if deletes:
                self._live.delete(np.array([self._keys[label] for label in deletes], np.int64))
        except relive.ReliveError as error:
            return self._refused(error)
        self._done.append(("mutate", (dict(updates), tuple(deletes), table)))
        return DONE

    def mutate_key(self, key: int, priority: float | None) -> str:
        try:
            if priority is None:
                self._live.delete(np.array([key], np.int64))
            else:
                self._live.update_priorities(np.array([key], np.int64), [priority])
        except relive.ReliveError as error:
            return self._refused(error)
        return DONE

    # ---- what waits ------------------------------------------------------------------------------------------------

    def waiting_sample(self, num_draws: int) -> list[Any]:
        labels: list[Any] = []
        for _ in range(num_draws):
            labels += self._drawn(1, self._setup.tables[0].name, PATIENCE_S)
        return labels

    def waiting_insert(self, label: int) -> str:
        return self._append(label, 1.0, PATIENCE_S)

    # ---- data ------------------------------------------------------------------------------------------------------

    def put(self, data: Mapping[str, Any]) -> str:
        self._put = _arrays(data)
        try:
            self._writer.append(**self._put, timeout_s=0.0)
        except relive.ReliveError as error:
            return self._refused(error)
        return DONE

    def take(self) -> Any:
        batch = self._live.sample(1, timeout_s=0.0)
        self._taken = {name: batch[name] for name in batch if name != "discount"}
        return _described(self._taken)

    def change_what_was_put(self) -> str:
        return _zeroed(self._put)

    def change_what_was_taken(self) -> str:
        return _zeroed(self._taken)

    # ---- trajectories ----------------------------------------------------------------------------------------------

    def write(self, keep: int = 10) -> str:
        return DONE if keep > 0 else self._no_word("rows are kept by the table, not by a writer")

    def step(self, partial: bool = False, **columns: Any) -> str:
        late = {name: value for name, value in columns.items() if name in self._windowed.late}
        try:
            if late.keys() < columns.keys():
                self._append_step({name: value for name, value in columns.items() if name not in late})
            if late:
                self._live.complete(self._windowed.keys[-1], **late)
        except relive.ReliveError as error:
            return self._refused(error)
        return DONE

    def _append_step(self, columns: dict[str, Any]) -> None:
        if self._step_index is not None:
            columns[STEP_INDEX] = self._step_index
        self._windowed.keys.append(int(self._writer.append(**columns, timeout_s=0.0)))
        if self._step_index is not None:
            self._step_index += 1

    def item(self, parts: Mapping[str, Part], priority: float = 1.0, table: str = TABLE, stored: bool = True) -> str:
        given = priority if any(one.name == table and has_priorities(one) for one in self._setup.tables) else None
        try:
            rows = self._windowed.rows(parts)
            keys = self._live.create_items(rows, index=table, priority=given, timeout_s=0.0)
        except relive.DeadlineExceeded:
            return WAITS
        except (relive.ReliveError, IndexError) as error:  # an index beyond the list of keys is Python's to refuse
            return self._refused(error)
        self._windowed.items.setdefault(table, []).extend(keys.tolist())
        batch = self._live.gather(keys, index=table)
        if batch.present[0]:  # else it waits for late columns of its steps
            self._keys[label_of(self._windowed.shown(batch, 0, table))] = int(keys[0])
        return DONE

    def item_of_last(self, num_steps: int) -> str:
        for value in range(3):
            self.step(a=value)
        keys = np.array(self._windowed.keys[-1:], np.int64)
        try:
            made = self._live.create_items({"a": (keys, -num_steps)}, timeout_s=0.0)
        except relive.ReliveError as error:
            return self._refused(error)
        self._windowed.items[TABLE] = made.tolist()
        return DONE

    def flush(self) -> str:
        return DONE  # create_items comes back when its items are there, or makes none

    def end_episode(self, keep_steps: bool = False) -> str:
        self._writer.end_episode(truncated=True)
        if self._step_index is not None:
            self._step_index = 0
        return DONE

    def episode_steps(self) -> Any:
        return self._no_word("rows know their episode_step, which comes with a batch")

    def patterns(self, patterns: Sequence[Pattern]) -> str:
        self._step_index = 0
        try:
            self._writer = relive.PatternWriter(self._live, self._writer, patterns_of(patterns))
        except NoWord as absent:
            return self._no_word(str(absent))
        except relive.ReliveError as error:
            return self._refused(error)
        return DONE

    # ---- parts -----------------------------------------------------------------------------------------------------

    @property
    def _live(self) -> relive.Table:
        assert self._table is not None, "open() refused"
        return self._table

    @property
    def _windowed(self) -> Trajectories:
        assert self._trajectories is not None, "the case writes no trajectories"
        return self._trajectories

    @property
    def _given(self) -> bool:
        return any(has_priorities(one) for one in self._setup.tables)

    def _refused(self, error: Exception) -> str:
        self.notes.append(f"{type(error).__name__}: {error}")
        return REFUSED

    def _no_word(self, why: str) -> str:
        self.notes.append(why)
        return NO_WORD


def _arrays(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _arrays(one) if isinstance(one, Mapping) else np.array(one[1], one[0]) for name, one in data.items()}


def _described(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: _described(one) for name, one in data.items()}
    return [str(data.dtype), list(data.shape[1:]), _plain(data[0])]


def _plain(array: Any) -> Any:
    """Lists of Python's numbers; a complex one as its two parts."""
    if np.iscomplexobj(array):
        return np.stack([np.real(array), np.imag(array)], -1).tolist()
    return array.tolist()


def _zeroed(data: Any) -> str:
    for one in data.values():
        if isinstance(one, dict):
            _zeroed(one)
        else:
            one[...] = 0
    return DONE
