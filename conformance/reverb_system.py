"""The cases' verbs in dm-reverb's words: a server in this process, called as a client on localhost calls it.

Only the environment of dm-reverb can import this (benchmarks/constraints/reverb.txt).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before tensorflow is imported

import numpy as np
import reverb
import tree

from conformance.reverb_tables import columns_looked_at, config_of, table_of
from conformance.system import DONE, REFUSED, TABLE, WAITS, System, in_order, label_of
from conformance.words import Part, Pattern, Setup

__all__ = ["ReverbSystem"]

TOLD = (ValueError, RuntimeError, TypeError, IndexError, reverb.errors.ReverbError)
FLUSH_MS = 250
STORED_MS = 3000
MOST_LOOKS = 5000


@final
class ReverbSystem(System):
    """Tables of one server. Its draws have seeds of their own; no argument sets them."""

    def __init__(self) -> None:
        super().__init__()
        self._setup = Setup(())
        self._keys: dict[int, int] = {}  # of labels, as draws told them
        self._names: dict[str, list[str]] = {}  # of the parts of a table's trajectories, in the order of flat data
        self._put: dict[str, Any] = {}
        self._taken: Any = None
        self._writer: Any = None
        self._structured: list[str] | None = None  # the columns of steps, where patterns write

    # ---- tables ----------------------------------------------------------------------------------------------------

    def open(self, setup: Setup) -> str:
        self._setup = setup
        self._server: Any = None
        self._loaded = False
        return self._told(lambda: self._serve(None))

    def _serve(self, checkpointer: Any) -> None:
        self._tables = {one.name: table_of(one) for one in self._setup.tables}
        if checkpointer is None:
            self._server = reverb.Server(list(self._tables.values()))
        else:
            self._server = reverb.Server(list(self._tables.values()), checkpointer=checkpointer)
        self._client = reverb.Client(f"localhost:{self._server.port}")
        self._labels = self._client.trajectory_writer(num_keep_alive_refs=1)

    def close(self) -> None:
        if self._server is None:
            return
        if self._writer is not None:  # one that ends after its server may wait for it for good
            self._told(lambda: self._writer.flush(timeout_ms=FLUSH_MS))
            self._writer = None
        self._server.stop()

    def size(self, table: str = TABLE) -> int:
        return int(self._client.server_info()[table].current_size)

    def counts(self, table: str = TABLE) -> list[int]:
        info = self._tables[table].info.rate_limiter_info
        return [int(info.insert_stats.completed), int(info.sample_stats.completed)]

    def reset(self, table: str = TABLE) -> str:
        self._client.reset(table)
        return DONE

    def save_and_load(self) -> str:
        path = self._client.checkpoint()
        self._labels.close()
        self._server.stop()
        self._loaded = True
        self._serve(reverb.platform.checkpointers_lib.DefaultCheckpointer(path=os.path.dirname(path)))
        return DONE

    # ---- items that are one labelled step --------------------------------------------------------------------------

    def insert(self, label: int, priority: float | None = 1.0, tables: Sequence[str] | None = None) -> str:
        names = [one.name for one in self._setup.tables] if tables is None else tables
        if any(name in self._tables and not self._tables[name].can_insert(1) for name in names):
            return WAITS

        def write() -> None:
            if priority is None:
                self._client.insert(np.int64(label), {})
                return
            self._labels.append({"label": np.int64(label)})
            for name in names:
                self._labels.create_item(name, priority, {"label": self._labels.history["label"][-1]})
            self._labels.flush(timeout_ms=STORED_MS)

        answer = self._told(write)
        if answer != DONE:  # its stream is broken
            self._labels = self._client.trajectory_writer(num_keep_alive_refs=1)
        return answer

    def contents(self, table: str = TABLE) -> list[Any]:
        found: dict[int, Any] = {}
        for _ in range(MOST_LOOKS):
            if len(found) == self.size(table):
                break
            drawn = next(self._client.sample(table, 1, emit_timesteps=False))
            found[drawn.info.key] = self._shown(drawn, table)
        return sorted(found.values(), key=in_order)

    def _shown(self, drawn: Any, table: str) -> Any:
        names = self._names.get(table)
        if names is None:
            return int(drawn.data[0])
        return {name: part.tolist() for name, part in zip(names, drawn.data, strict=True)}

    # ---- drawing ---------------------------------------------------------------------------------------------------

    def _draw(self, table: str) -> Any:
        drawn = next(self._client.sample(table, 1, emit_timesteps=False))
        if self._setup.tables[0].signature is None:
            self._keys[label_of(self._shown(drawn, table))] = drawn.info.key
        return drawn

    def _draw_or_wait(self, table: str) -> Any:
        """A draw, or None where it would wait.

        A loaded server has tables of its own, which do not answer this process. The draw is then tried, and continues
        to wait during the rest of the case.
        """
        if self._loaded:
            answer = self._begin(lambda: self._draw(table))
            return None if isinstance(answer, str) else answer
        return self._draw(table) if self._tables[table].can_sample(1) else None

    def sample(self, num_draws: int, table: str = TABLE) -> list[Any]:
        labels: list[Any] = []
        for _ in range(num_draws):
            drawn = self._draw_or_wait(table)
            if drawn is None:
                return [*labels, WAITS]
            labels.append(self._shown(drawn, table))
        return labels

    def batch(self, num_items: int, table: str = TABLE) -> Any:
        labels: list[Any] = []

        def read() -> None:
            for drawn in self._client.sample(table, num_items, emit_timesteps=False):
                labels.append(self._shown(drawn, table))

        try:
            came = self._begin(read)
        except TOLD as error:
            return self._refused(error)
        return [*labels, WAITS] if came == WAITS else labels

    def fields(self, names: Sequence[str], num_draws: int = 1, table: str = TABLE) -> Any:
        found = []
        for _ in range(num_draws):
            drawn = self._draw(table)
            values = drawn.info._asdict()
            if "label" in names:
                values["label"] = int(drawn.data[0])
            found.append([values[name] for name in names])
        return found

    def tally(self, num_draws: int, table: str = TABLE) -> Any:
        if not self._loaded and not self._tables[table].can_sample(num_draws):
            return WAITS
        counts: dict[str, int] = {}
        for drawn in self._client.sample(table, num_draws, emit_timesteps=False):
            label = str(int(drawn.data[0]))
            counts[label] = counts.get(label, 0) + 1
        return counts

    def can_insert(self, num_items: int, table: str = TABLE) -> bool:
        return bool(self._tables[table].can_insert(num_items))

    def can_sample(self, num_items: int, table: str = TABLE) -> bool:
        return bool(self._tables[table].can_sample(num_items))

    # ---- changing --------------------------------------------------------------------------------------------------

    def learn(self, labels: Sequence[int], table: str = TABLE) -> str:
        for _ in range(MOST_LOOKS):
            if all(label in self._keys for label in labels):
                return DONE
            self._draw(table)
        return WAITS

    def mutate(self, updates: Mapping[int, float], deletes: Sequence[int] = (), table: str = TABLE) -> str:
        priorities = {self._keys[label]: float(priority) for label, priority in updates.items()}
        keys = [self._keys[label] for label in deletes]
        return self._told(lambda: self._client.mutate_priorities(table, updates=priorities, deletes=keys))

    def mutate_key(self, key: int, priority: float | None) -> str:
        updates, deletes = ({}, [key]) if priority is None else ({key: priority}, [])
        return self._told(lambda: self._client.mutate_priorities(self._setup.tables[0].name, updates, deletes))

    # ---- what waits ------------------------------------------------------------------------------------------------

    def waiting_sample(self, num_draws: int) -> list[Any]:
        table = self._setup.tables[0].name
        return [self._shown(one, table) for one in self._client.sample(table, num_draws, emit_timesteps=False)]

    def waiting_insert(self, label: int) -> str:
        with self._client.trajectory_writer(num_keep_alive_refs=1) as writer:
            writer.append({"label": np.int64(label)})
            writer.create_item(self._setup.tables[0].name, 1.0, {"label": writer.history["label"][-1]})
        return DONE

    # ---- data ------------------------------------------------------------------------------------------------------

    def put(self, data: Mapping[str, Any]) -> str:
        self._put = _arrays(data)

        def write() -> None:
            writer = self._client.trajectory_writer(num_keep_alive_refs=1)
            writer.append(self._put)
            last = tree.map_structure(lambda column: column[-1], writer.history)
            writer.create_item(self._setup.tables[0].name, 1.0, last)
            writer.flush(timeout_ms=STORED_MS)

        return self._told(write)

    def take(self) -> Any:
        name = self._setup.tables[0].name
        self._taken = next(self._client.sample(name, 1, emit_timesteps=False, unpack_as_table_signature=True)).data
        return _described(self._taken)

    def change_what_was_put(self) -> str:
        return _zeroed(self._put)

    def change_what_was_taken(self) -> str:
        return _zeroed(self._taken)

    # ---- trajectories ----------------------------------------------------------------------------------------------

    def write(self, keep: int = 10) -> str:
        def make() -> None:
            self._writer = self._client.trajectory_writer(num_keep_alive_refs=keep)
            self._keep = keep

        return self._told(make)

    def step(self, partial: bool = False, **columns: Any) -> str:
        if self._structured is not None:
            columns = {name: columns.get(name) for name in columns.keys() | set(self._structured)}
        data = {name: None if value is None else np.asarray(value) for name, value in columns.items()}
        return self._told(lambda: self._writer.append(data, partial_step=partial))

    def item(self, parts: Mapping[str, Part], priority: float = 1.0, table: str = TABLE, stored: bool = True) -> str:
        self._names[table] = sorted(parts)

        def make() -> None:
            history = self._writer.history
            self._writer.create_item(
                table, priority, {name: history[part.column][part.steps] for name, part in parts.items()}
            )
            if stored:
                self._writer.flush(timeout_ms=STORED_MS)

        return self._told(make)

    def item_of_last(self, num_steps: int) -> str:
        self._names[TABLE] = ["a"]

        def make() -> None:
            with self._client.writer(max_sequence_length=3) as writer:
                for value in range(3):
                    writer.append({"a": np.int64(value)})
                writer.create_item(TABLE, num_steps, 1.0)

        return self._told(make)

    def flush(self) -> str:
        try:
            self._writer.flush(timeout_ms=FLUSH_MS)
        except reverb.errors.DeadlineExceededError:
            return WAITS
        return DONE

    def end_episode(self, keep_steps: bool = False) -> str:
        return self._told(lambda: self._writer.end_episode(clear_buffers=not keep_steps, timeout_ms=STORED_MS))

    def episode_steps(self) -> int:
        return int(self._writer.episode_steps)

    def patterns(self, patterns: Sequence[Pattern]) -> str:
        columns = sorted({part.column for one in patterns for part in one.parts.values()} | columns_looked_at(patterns))
        step_structure = dict.fromkeys(columns)

        def make() -> None:
            self._structured = columns
            for one in patterns:
                self._names[one.table] = sorted(one.parts)
            self._writer = self._client.structured_writer([config_of(one, step_structure) for one in patterns])

        return self._told(make)

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _told(self, call: Callable[[], Any]) -> str:
        try:
            call()
        except reverb.errors.DeadlineExceededError:
            return WAITS
        except TOLD as error:
            return self._refused(error)
        return DONE

    def _refused(self, error: BaseException) -> str:
        self.notes.append(f"{type(error).__name__}: {error}"[:300])
        return REFUSED


def _arrays(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _arrays(one) if isinstance(one, Mapping) else np.array(one[1], one[0]) for name, one in data.items()}


def _described(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {name: _described(one) for name, one in data.items()}
    return [str(data.dtype), list(data.shape), _plain(data)]


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
