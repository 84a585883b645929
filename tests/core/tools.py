"""A table of the compiled core, without the face above it."""

from __future__ import annotations

from typing import Any

import numpy as np

from relive import _core

COLUMNS = [
    ("observation", "<f4", (3,), "state"),
    ("frame", "|u1", (20, 20), "state"),
    ("action", "<i8", (), "step"),
    ("reward", "<f4", (), "step"),
]
SMALL_COLUMNS = [COLUMNS[0], *COLUMNS[2:]]
NAMES = ["observation", "frame", "action", "reward", "next_observation", "next_frame", "discount", "episode_step"]


def make_index(name: str = "default", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "items": "transitions",
        "n_step": 1,
        "gamma": 1.0,
        "stack": {},
        "stack_pad": "repeat",
        "sampler": "prioritized",
        "priority_exponent": 1.0,
        "initial": ("max", 0.0),
        "limiter": "min_size",
        "min_size": 1,
        "samples_per_insert": 0.0,
        "tolerance": 0.0,
        "remover": "fifo",
        "max_times_sampled": 0,
        **more,
    }


def make_config(**more: Any) -> dict[str, Any]:
    return {
        "columns": COLUMNS,
        "indexes": [make_index()],
        "capacity": 1000,
        "max_lanes": 8,
        "max_participants": 16,
        "seed": 1,
        "shard": 0,
        "epoch": 0,
        "metadata": b"{}",
        **more,
    }


def make_core(path: str | None = None, **more: Any) -> Any:
    return _core.create_table(make_config(**more), path)


def refuse(name: str, value: object, leading: tuple[int, ...]) -> Any:
    """These tests give exact arrays only: nothing needs to be normalised but what has no choice."""
    dtypes = {"terminated": "?", "truncated": "?", "discount": "<f4", "priority": "<f8"}
    dtypes |= {column[0]: column[1] for column in COLUMNS}
    shapes = {column[0]: column[2] for column in COLUMNS}
    base = name.removeprefix("next_")
    return np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtypes[base]), leading + shapes.get(base, ())))


def rows(first: int, count: int, columns: list[Any] = COLUMNS) -> dict[str, np.ndarray]:
    """Steps first, first + 1, ... of one lane, T + 1 states."""
    numbers = np.arange(first, first + count + 1)
    values = {
        "observation": np.repeat(numbers[:, None], 3, axis=1).astype(np.float32),
        "frame": np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None], (count + 1, 20, 20)).copy(),
        "action": numbers[:-1].astype(np.int64),
        "reward": numbers[:-1].astype(np.float32),
    }
    return {column[0]: values[column[0]] for column in columns}


def last_of(count: int) -> np.ndarray:
    return np.arange(count) == count - 1


def write_rows(table: Any, first: int, count: int, columns: list[Any] = COLUMNS) -> np.ndarray:
    """One lane, one episode, which ends truncated; the writer is closed."""
    writer = table.open_writer(1, True, refuse)
    keys = writer.extend({**rows(first, count, columns), "truncated": last_of(count)}, None, None, 10.0)
    writer.close()
    return np.asarray(keys)


def gather(table: Any, keys: np.ndarray, names: list[str] | None = None, index: int = 0) -> dict[str, np.ndarray]:
    names = names or NAMES
    arrays, present = table.gather(table.select(index, names), np.ascontiguousarray(keys, np.int64), None)
    return dict(zip(names, arrays, strict=True)) | {"present": present}


def assert_rows(said: dict[str, np.ndarray], numbers: np.ndarray) -> None:
    """The gathered rows are the steps of those numbers, wherever present."""
    there = said["present"]
    np.testing.assert_array_equal(said["action"][there], numbers[there])
    np.testing.assert_array_equal(said["observation"][there][:, 1], numbers[there].astype(np.float32))
    np.testing.assert_array_equal(said["frame"][there][:, 7, 9], numbers[there] % 251)
    np.testing.assert_array_equal(said["next_observation"][there][:, 2], numbers[there] + 1)
    np.testing.assert_array_equal(said["next_frame"][there][:, 19, 19], (numbers[there] + 1) % 251)
