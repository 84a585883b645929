"""The ledger of a store of rollouts: samples, their fields, their tags, and which task has claimed which sample."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from relive.adapters.errors import NotRegistered
from relive.config.storage import SharedMemory
from relive.errors import DeadlineExceeded, InvalidConfig

__all__ = ["Claim", "Ledger", "ledger_path"]

_LOOK_S = 0.0005  # a claim that waits looks this often whether the ledger has changed

# A watch is a task with the fields that its claims need. A want is a sample that the task has not claimed, with the
# number of these fields that it lacks, so that neither a put nor a claim looks at all samples of a partition.
_SCHEMA = """
CREATE TABLE partitions (name TEXT PRIMARY KEY, expected INTEGER, group_size INTEGER) WITHOUT ROWID;
CREATE TABLE tasks (partition TEXT, task TEXT, PRIMARY KEY (partition, task)) WITHOUT ROWID;
CREATE TABLE samples (
    row INTEGER PRIMARY KEY AUTOINCREMENT, partition TEXT, sample TEXT, member_of TEXT, version INTEGER, tags TEXT,
    UNIQUE (partition, sample)
);
CREATE TABLE fields (row INTEGER, field TEXT, entry TEXT, PRIMARY KEY (row, field)) WITHOUT ROWID;
CREATE TABLE claims (partition TEXT, task TEXT, row INTEGER, PRIMARY KEY (partition, task, row)) WITHOUT ROWID;
CREATE TABLE watches (
    watch INTEGER PRIMARY KEY, partition TEXT, task TEXT, fields TEXT, UNIQUE (partition, task, fields)
);
CREATE TABLE wants (row INTEGER, watch INTEGER, lacks INTEGER, PRIMARY KEY (row, watch)) WITHOUT ROWID;
CREATE INDEX wants_of_watch ON wants (watch, lacks, row);
CREATE TABLE facts (name TEXT PRIMARY KEY, value INTEGER) WITHOUT ROWID;
"""


def ledger_path(name: str) -> str:
    """The file of the ledger that belongs to the table SharedMemory(name)."""
    folder, _, file = SharedMemory(name).path.rpartition("/")
    return f"{folder}/ledger.{file}"


@dataclass
class Claim:
    """Samples that a task has claimed, in the order of their first put, and the tags of each."""

    samples: list[str] = field(default_factory=list)
    tags: list[dict[str, Any]] = field(default_factory=list)


class Ledger:
    """A SQLite file in shared memory, which all processes of a machine use.

    A call is one transaction. If a process is killed, its open transaction never happened. The class owns a connection
    and a file lock. A thread lock protects both within the process, and the file lock orders the processes, so that no
    transaction finds the database busy.

    Args:
        path: of the file.
        make: make the file, in place of an older one.
    """

    def __init__(self, path: str, make: bool = False) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._changes = 0
        if make:
            self.remove()
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
        self._file_lock = os.open(path + ".lock", flags, 0o600)
        if make:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        self._database = sqlite3.connect(
            f"file:{path}?mode=rw", uri=True, isolation_level=None, check_same_thread=False, timeout=60.0
        )
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=OFF")
        if make:
            self._database.executescript(_SCHEMA)

    def remove(self) -> None:
        """Removes the files of the ledger. Processes that have it open keep their view."""
        for ending in ("", "-wal", "-shm", ".lock"):
            with suppress(FileNotFoundError):
                os.unlink(self.path + ending)

    def close(self) -> None:
        """Closes the connection. A second call does nothing."""
        with self._lock:
            if self._file_lock >= 0:
                self._database.close()
                os.close(self._file_lock)
                self._file_lock = -1

    @contextmanager
    def _transaction(self, changes: bool = True) -> Iterator[sqlite3.Connection]:
        """changes: False for a transaction that makes no sample ready."""
        with self._lock:
            fcntl.flock(self._file_lock, fcntl.LOCK_EX)
            try:
                self._database.execute("BEGIN IMMEDIATE")
                try:
                    yield self._database
                except BaseException:
                    self._database.execute("ROLLBACK")
                    raise
                self._database.execute("COMMIT")
                self._changes += changes
            finally:
                fcntl.flock(self._file_lock, fcntl.LOCK_UN)

    def register(self, partition: str, expected: int, tasks: Sequence[str], group_size: int | None) -> None:
        """Makes a partition, or changes its tasks and sizes. The samples of a partition that exists stay."""
        with self._transaction() as database:
            database.execute("REPLACE INTO partitions VALUES (?, ?, ?)", (partition, expected, group_size or 1))
            database.executemany("INSERT OR IGNORE INTO tasks VALUES (?, ?)", [(partition, task) for task in tasks])

    def put(
        self,
        partition: str,
        samples: Sequence[str],
        groups: Sequence[str],
        entries: Mapping[str, Sequence[str]],
        tags: Sequence[Mapping[str, Any]] | None,
    ) -> list[str]:
        """Adds fields and tags to samples, and makes the samples that are new.

        Returns:
            The entries that were replaced.

        Raises:
            NotRegistered: the partition is not registered.
        """
        with self._transaction() as database:
            self._partition(database, partition)
            numbers = self._made(database, partition, samples, groups)
            watches = self._watches(database, partition)
            replaced: list[str] = []
            for name, column in entries.items():
                olds = self._entries(database, numbers, name)
                replaced += [old for old in olds if old is not None]
                put = [(row, name, entry) for row, entry in zip(numbers, column, strict=True)]
                database.executemany("REPLACE INTO fields VALUES (?, ?, ?)", put)
                new = [row for row, old in zip(numbers, olds, strict=True) if old is None]
                for watch in (watch for watch, fields in watches if name in fields):
                    text = "UPDATE wants SET lacks = lacks - 1 WHERE row = ? AND watch = ?"
                    database.executemany(text, [(row, watch) for row in new])
            if tags is not None:
                self._tag(database, numbers, tags)
            return replaced

    def _made(
        self, database: sqlite3.Connection, partition: str, samples: Sequence[str], groups: Sequence[str]
    ) -> list[int]:
        """The rows of samples. Makes those that are new, which every watch wants."""
        rows = []
        for sample, group in zip(samples, groups, strict=True):
            (row,) = self._numbers(database, partition, [sample])
            if row is None:
                text = "INSERT INTO samples (partition, sample, member_of, tags) VALUES (?, ?, ?, '{}')"
                row = int(database.execute(text, (partition, sample, group)).lastrowid or 0)
                for watch, fields in self._watches(database, partition):
                    database.execute("INSERT INTO wants VALUES (?, ?, ?)", (row, watch, len(fields)))
            rows.append(row)
        return rows

    @staticmethod
    def _watches(database: sqlite3.Connection, partition: str) -> list[tuple[int, list[str]]]:
        found = database.execute("SELECT watch, fields FROM watches WHERE partition = ?", (partition,))
        return [(int(watch), json.loads(fields)) for watch, fields in found.fetchall()]

    @staticmethod
    def _watch(database: sqlite3.Connection, partition: str, task: str, fields: Sequence[str]) -> int:
        """The watch of a task for these fields. Makes it, with all samples that the task has not claimed."""
        needed = sorted(set(fields))
        key = (partition, task, json.dumps(needed))
        text = "SELECT watch FROM watches WHERE partition = ? AND task = ? AND fields = ?"
        found = database.execute(text, key).fetchone()
        if found is not None:
            return int(found[0])
        made = int(
            database.execute("INSERT INTO watches (partition, task, fields) VALUES (?, ?, ?)", key).lastrowid or 0
        )
        known = ", ".join("?" * len(needed))
        database.execute(
            f"INSERT INTO wants SELECT s.row, ?, ? - (SELECT count(*) FROM fields f WHERE f.row = s.row AND f.field IN"
            f" ({known})) FROM samples s WHERE s.partition = ? AND NOT EXISTS"
            " (SELECT 1 FROM claims c WHERE c.partition = s.partition AND c.task = ? AND c.row = s.row)",
            (made, len(needed), *needed, partition, task),
        )
        return made

    @staticmethod
    def _tag(database: sqlite3.Connection, numbers: Sequence[int | None], tags: Sequence[Mapping[str, Any]]) -> None:
        for row, told in zip(numbers, tags, strict=True):
            (old,) = database.execute("SELECT tags FROM samples WHERE row = ?", (row,)).fetchone()
            merged = {**json.loads(old), **told}
            version = merged.get("weight_version")
            database.execute(
                "UPDATE samples SET tags = ?, version = ? WHERE row = ?",
                (json.dumps(merged), None if version is None else int(version), row),
            )

    def entries(self, partition: str, samples: Sequence[str], fields: Sequence[str]) -> list[list[str | None]]:
        """The entries of fields of samples, field by field. None: the field, or the sample, is not there."""
        with self._transaction(changes=False) as database:
            self._partition(database, partition)
            numbers = self._numbers(database, partition, samples)
            found = [self._entries(database, numbers, name) for name in fields]
        return found

    def clear(self, partition: str, samples: Sequence[str] | None) -> list[str]:
        """Removes samples with their fields, tags and claims; None: all of the partition. Returns their entries."""
        with self._transaction() as database:
            if samples is None:
                found = database.execute("SELECT row FROM samples WHERE partition = ?", (partition,)).fetchall()
                rows = [(row,) for (row,) in found]
            else:
                rows = [(row,) for row in self._numbers(database, partition, samples) if row is not None]
            gone = []
            for row in rows:
                gone += database.execute("SELECT entry FROM fields WHERE row = ?", row).fetchall()
            database.executemany("DELETE FROM fields WHERE row = ?", rows)
            database.executemany("DELETE FROM wants WHERE row = ?", rows)
            claims = [(partition, *row) for row in rows]
            database.executemany("DELETE FROM claims WHERE partition = ? AND row = ?", claims)
            database.executemany("DELETE FROM samples WHERE row = ?", rows)
        return [entry for (entry,) in gone]

    def set_version(self, version: int) -> None:
        """Sets the version of the learner's weights."""
        with self._transaction() as database:
            database.execute("REPLACE INTO facts VALUES ('version', ?)", (version,))

    def consumed(self, partition: str, tasks: Sequence[str]) -> bool:
        """Whether the partition has samples, and each of the tasks has claimed all of them."""
        with self._transaction(changes=False) as database:
            self._partition(database, partition)
            (samples,) = database.execute("SELECT count(*) FROM samples WHERE partition = ?", (partition,)).fetchone()
            return samples > 0 and all(self._claimed(database, partition, task) == samples for task in tasks)

    def claim(
        self,
        partition: str,
        task: str,
        fields: Sequence[str],
        number: int,
        timeout_s: float,
        max_staleness: int | None = None,
        whole: bool = True,
    ) -> Claim:
        """Claims samples that have all fields, the oldest first, in whole groups. A task claims a sample once.

        Args:
            partition, task: registered names.
            fields: that a sample must have.
            number: the most samples.
            timeout_s: the longest wait.
            max_staleness: of a sample whose tags have a weight_version; None: any.
            whole: wait for `number` samples, or for the rest of the partition's expected samples if that is less.
                False: take the samples that are there.

        Raises:
            NotRegistered: the partition, or the task, is not registered.
            DeadlineExceeded: fewer samples were ready when the time was up. No sample is claimed.
            InvalidConfig: `number` is smaller than a group.
        """
        began, seen = time.monotonic(), None
        while True:
            with self._lock:
                now = (self._changes, self._database.execute("PRAGMA data_version").fetchone()[0])
            if now != seen:  # looked at before the transaction, so that the next look sees a change meanwhile
                seen = now
                claim, ready, wanted = self._take(partition, task, fields, number, whole, max_staleness)
                if claim is not None:
                    return claim
            waited = time.monotonic() - began
            if waited >= timeout_s:
                raise DeadlineExceeded(f"{wanted} samples with {', '.join(fields)}", ready, waited)
            time.sleep(min(_LOOK_S, timeout_s - waited))

    def _take(
        self, partition: str, task: str, fields: Sequence[str], number: int, whole: bool, max_staleness: int | None
    ) -> tuple[Claim | None, int, int]:
        """A claim, or None; the number of samples that are ready; the number that is wanted."""
        with self._transaction(changes=False) as database:
            expected, group_size = self._partition(database, partition)
            if number < group_size:
                raise InvalidConfig("batch_size", f"at least {group_size}, the samples of a group", number)
            known = [one for (one,) in database.execute("SELECT task FROM tasks WHERE partition = ?", (partition,))]
            if task not in known:
                raise NotRegistered("task", task, known)
            left = expected - self._claimed(database, partition, task)
            wanted = min(number - number % group_size, left) if left > 0 else number
            ready = self._ready(database, self._watch(database, partition, task, fields), max_staleness)
            if group_size > 1:
                members: dict[str, list[tuple[int, str, str]]] = {}
                for row, sample, tags, group in ready:
                    members.setdefault(group, []).append((row, sample, tags))
                whole_groups = [one[:group_size] for one in members.values() if len(one) >= group_size]
                taken = [one for group in whole_groups[: number // group_size] for one in group]
            else:
                taken = [(row, sample, tags) for row, sample, tags, _ in ready[:number]]
            if whole and len(taken) < wanted:
                return None, len(taken), wanted
            claims = [(partition, task, row) for row, _, _ in taken]
            database.executemany("INSERT INTO claims VALUES (?, ?, ?)", claims)
            watches = "SELECT watch FROM watches WHERE partition = ? AND task = ?"
            database.executemany(f"DELETE FROM wants WHERE watch IN ({watches}) AND row = ?", claims)
        return Claim([one[1] for one in taken], [json.loads(one[2]) for one in taken]), len(taken), wanted

    @staticmethod
    def _ready(database: sqlite3.Connection, watch: int, max_staleness: int | None) -> list[tuple[int, str, str, str]]:
        """Rows, names, tags and groups of the samples that lack no field of a watch."""
        text = (
            "SELECT s.row, s.sample, s.tags, s.member_of FROM wants w JOIN samples s ON s.row = w.row"
            " WHERE w.watch = ? AND w.lacks = 0"
        )
        values = [watch]
        if max_staleness is not None:
            text += " AND coalesce(s.version >= (SELECT value FROM facts WHERE name = 'version') - ?, 1)"
            values.append(max_staleness)
        return database.execute(text + " ORDER BY w.row", values).fetchall()

    @staticmethod
    def _partition(database: sqlite3.Connection, partition: str) -> tuple[int, int]:
        """The expected samples and the group size. Raises NotRegistered."""
        found = database.execute("SELECT expected, group_size FROM partitions WHERE name = ?", (partition,)).fetchone()
        if found is None:
            known = [name for (name,) in database.execute("SELECT name FROM partitions")]
            raise NotRegistered("partition", partition, known)
        return int(found[0]), int(found[1])

    @staticmethod
    def _numbers(database: sqlite3.Connection, partition: str, samples: Sequence[str]) -> list[int | None]:
        text = "SELECT row FROM samples WHERE partition = ? AND sample = ?"
        found = [database.execute(text, (partition, sample)).fetchone() for sample in samples]
        return [None if one is None else int(one[0]) for one in found]

    @staticmethod
    def _entries(database: sqlite3.Connection, numbers: Sequence[int | None], name: str) -> list[str | None]:
        text = "SELECT entry FROM fields WHERE row = ? AND field = ?"
        found = [database.execute(text, (row, name)).fetchone() for row in numbers]
        return [None if one is None else str(one[0]) for one in found]

    @staticmethod
    def _claimed(database: sqlite3.Connection, partition: str, task: str) -> int:
        text = "SELECT count(*) FROM claims WHERE partition = ? AND task = ?"
        return int(database.execute(text, (partition, task)).fetchone()[0])
