"""relive: windows from one table, from two shards that are mapped, or from two shards that their owner serves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import relive
import relive.fleet
from benchmarks import windows


def _config(name: str, length: int) -> relive.TableConfig:
    spec = {
        part: relive.ArraySpec((columns.stop - columns.start,), "float32") for part, columns in windows.PARTS.items()
    }
    index = relive.Index(relive.Sequences(length, period=1, at_end="drop"))
    storage = relive.SharedMemory(name, overwrite=True)
    capacity = windows.EPISODE * windows.NUM_EPISODES
    return relive.TableConfig(relive.StepSpec(spec), capacity, index, storage, max_lanes=2)


def _fill(table: relive.ReplayTable, part: int, parts: int) -> None:
    with table.writer() as writer:
        for episode in windows.episodes()[part::parts]:
            columns = {name: episode[:, columns] for name, columns in windows.PARTS.items()}
            writer.extend(**columns, truncated=True)


@contextlib.contextmanager
def host(kind: str, length: int) -> Iterator[str]:
    """Makes and fills the table. Yields its names or addresses as JSON."""
    with contextlib.ExitStack() as stack:
        if kind == "relive, one table":
            table = stack.enter_context(relive.Table.from_config(_config("bench-windows", length)))
            _fill(table, 0, 1)
            yield json.dumps("bench-windows")
            return
        places = []
        for number in (0, 1):
            config = _config(f"bench-windows-{number}", length)
            owner = stack.enter_context(relive.fleet.ShardOwner(number, config))
            _fill(owner.table, number, 2)
            served = kind == "relive, two shards, service"
            places.append(owner.serve("grpc://127.0.0.1:0") if served else config.storage.name)
        yield json.dumps(places)


@contextlib.contextmanager
def open_windows(kind: str, place: str, length: int, rank: int) -> Iterator[dict[str, Callable[[], Any]]]:
    """{way: call}. A call returns the tensors of a batch."""
    found = json.loads(place)
    path = "service" if kind == "relive, two shards, service" else None
    table = relive.attach(found) if isinstance(found, str) else relive.fleet.attach(found, path=path, root_age=8)
    columns = list(windows.PARTS)
    with table, table.batches(windows.BATCH, prefetch=windows.AHEAD, columns=columns) as ahead:
        yield {
            "on request": lambda: table.sample(windows.BATCH, columns=columns).to_torch(),
            "ahead": lambda: next(ahead).to_torch(),
        }
