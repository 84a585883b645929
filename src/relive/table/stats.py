"""The statistics that table.stats() returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, final

from relive.checks.html import html_table
from relive.config.limiters import Limiter, limiter_of

__all__ = ["FileStats", "IndexStats", "ShardStats", "TableStats", "TierStats", "table_stats"]

_NESTED = ("indexes", "tiers", "shards", "file")


@final
@dataclass(frozen=True)
class IndexStats:
    """One index at one moment. Counters run from the creation of the table."""

    num_items: int  # live items
    pending: int  # items that wait for late columns, or for their priority with initial='given'; limiters count them
    timed_out: int  # items that were dropped because they waited longer than max_wait_s
    crowded_out: int  # first index, remover other than Fifo: items that left because every page of steps had items
    expired: int  # items that left because they were staler than max_staleness
    filtered: int  # steps whose items did not pass the index's where=
    inserted: int  # items published
    sampled: int  # items handed out or in flight
    in_flight: int  # items drawn ahead and not yet handed out
    total_mass: float  # sum of the masses of live items; with an order or ranks, the value of the best item of all
    # shards, and an infinity without items
    max_priority: float  # largest priority ever given
    limiter: Limiter  # the present one
    waiting_samplers: int  # threads that wait for this index now, of handles that are not read-only
    waiting_writers: int  # threads that wait for its limiter now
    sampler_waits_s: float  # the longest of these waits so far; of a remote call, since its server last looked
    writer_waits_s: float
    samplers_wait_for: str  # "min_size", "low" (the corridor, or items in a queue), "items" (unused ones), or ""
    writers_wait_for: str  # "high" (the corridor), "queue", "budget", or ""
    stuck: tuple[int, int] | None  # (items of an insert, of a draw): both wait, and do not fit the limiter together

    @property
    def samples_per_insert(self) -> float:
        """Items sampled for each item inserted so far; 0 before the first insert."""
        return self.sampled / self.inserted if self.inserted else 0.0


@final
@dataclass(frozen=True)
class TierStats:
    """Memory and disk of a Tiered table at one moment. Counters run from the creation of the table.

    A unit is the smallest piece of a page that is read: a row of a large column, or a block of small ones.
    """

    ram_bytes: int  # memory for large columns: bulk frames and staging
    staging_bytes: int  # of these, for rows that are read ahead
    staged_bytes: int  # of these, in use
    page_bytes: int  # of the large columns of one page
    pages_in_ram: int
    pages_on_disk: int
    free_frames: int  # places for pages in memory
    late_batches: int  # batches of batches() that the program had to wait for
    on_demand_batches: int  # batches of sample() and gather(), for which nothing could be read ahead
    replaced_items: int  # items that were evicted between draw and gather; others were drawn instead
    frame_waits: int  # times a writer waited for a page to be spilled
    bytes_read: int
    bytes_written: int
    reads: int
    writes: int
    disk_errors: int  # writes that failed; the pages stayed in memory
    rows_from_ram: int  # rows copied from pages in memory
    units_wanted: int  # pieces of spilled pages that batches needed
    staging_hits: int  # of these, already read when the batch was put together
    units_read: int
    planned_evicted: int  # staged units that made room although they will be wanted again
    direct_io: bool  # reads and writes bypass the page cache; False if the file system refuses

    def as_dict(self) -> dict[str, Any]:
        """The same as a plain dict."""
        return asdict(self)


@final
@dataclass(frozen=True)
class ShardStats:
    """One shard of a table over several shards, at one moment."""

    shard: int  # its number
    state: str  # "live"; "dead": no owner, or no answer; "stalled": a process that does not go on owns its lock;
    # "replaced": another region is at its address
    path: str  # how its rows are read here: "mapped", "service" (messages) or "nixl" (one-sided)
    progress: str  # how the bytes of a shard of another host move, and why no faster path exists; "" if mapped
    num_steps: int  # steps in its memory; those of a shard that is not live count as gone
    capacity: int
    policy_version: int


@final
@dataclass(frozen=True)
class FileStats:
    """Where a table with storage=File(path) lives, and its saves by this process."""

    folder: str
    region: str  # the file of the table's memory: in the folder, or in /dev/shm
    reason: str  # why it is in /dev/shm; "" if it is in the folder
    saver: bool  # whether this process saves every sync_s seconds; one of the attached processes does
    saved_s: float | None  # seconds since this process saved; None: it has not
    problem: str  # why the last save of this process failed; ""


@final
@dataclass(frozen=True)
class TableStats:
    """A table at one moment. Counters run from the creation of the table, over all processes."""

    num_steps: int  # live steps
    capacity: int  # steps
    num_bytes: int  # committed memory; of a Tiered table the size of its pages, including the page file
    num_lanes: int  # open lanes
    num_participants: int  # attached handles
    page_len: int  # steps a page
    num_pages: int
    num_free_pages: int
    frames_committed: int  # places for pages that have memory
    frames_used: int
    policy_version: int
    appended: int  # steps
    evicted: int  # steps that left to make room
    deleted: int  # steps, and explicit items, removed by delete()
    pool_pressure: int  # pages evicted early because no page was free
    early_freed: int  # pages freed early because nothing in them was live
    cut_lanes: int  # lanes cut by a close, a death or writer.abandon
    skipped_items: int  # items whose first steps were gone before their window was complete
    updates_applied: int
    updates_stale: int  # updates of items that were gone
    redraws_generation: int  # items evicted while they were read
    redraws_empty: int
    redraws_claimed: int
    slow_draws: int  # batches for whose last items all pages were pinned
    completed: int  # steps whose late columns complete() filled
    completions_stale: int  # steps that were gone when complete() came
    incomplete_items: int  # items that left with late columns missing, other than by delete() or abandon()
    dropped_groups: int  # groups of episodes that left before they had all members
    recoveries: int  # processes that died while they owned the lock
    swept: int  # dead participants
    sampler_waits: int
    writer_waits: int
    sampler_wait_s: float
    writer_wait_s: float
    indexes: Mapping[str, IndexStats]
    tiers: TierStats | None = None  # of a Tiered table with large columns
    shards: tuple[ShardStats, ...] | None = None  # of a table over several shards, in order of their numbers
    file: FileStats | None = None  # of a table that lives in a folder, and a handle that is not read-only

    def as_dict(self) -> dict[str, Any]:
        """The same as plain dicts and numbers."""
        return asdict(self)

    def _repr_html_(self) -> str:
        own = [(field.name, getattr(self, field.name)) for field in fields(self) if field.name not in _NESTED]
        parts: dict[str, Any] = {f"index {name}": one for name, one in self.indexes.items()}
        parts |= {"tiers": self.tiers, "file": self.file}
        parts |= {f"shard {one.shard}": one for one in self.shards or ()}
        tables = [html_table("Table", ("", ""), own)]
        tables += [html_table(name, ("", ""), _values(one)) for name, one in parts.items() if one is not None]
        return "".join(tables)


def _values(stats: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(stats, field.name)) for field in fields(stats)]


def _index_stats(raw: Mapping[str, Any]) -> IndexStats:
    plain = {field.name: raw[field.name] for field in fields(IndexStats) if field.name not in ("limiter", "stuck")}
    stuck = (raw["insert_size"], raw["draw_size"]) if raw["is_stuck"] else None
    return IndexStats(**plain, limiter=limiter_of(raw["limiter"]), stuck=stuck)


def table_stats(raw: Mapping[str, Any], index_names: Sequence[str]) -> TableStats:
    """TableStats from the core's dict, in which waits are in nanoseconds and indexes are a list."""
    values = {**raw, "sampler_wait_s": raw["sampler_wait_ns"] / 1e9, "writer_wait_s": raw["writer_wait_ns"] / 1e9}
    indexes = {name: _index_stats(one) for name, one in zip(index_names, raw["indexes"], strict=True)}
    plain = {field.name: values[field.name] for field in fields(TableStats) if field.name not in _NESTED}
    tiers, shards = raw.get("tiers"), raw.get("shards")
    return TableStats(
        **plain,
        indexes=indexes,
        tiers=None if tiers is None else TierStats(**tiers),
        shards=None if shards is None else tuple(ShardStats(**one) for one in shards),
    )
