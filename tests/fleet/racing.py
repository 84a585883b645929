"""Rows read one-sidedly from a shard while a writer replaces them as fast as it can; each row carries its checksum.

usage: python -m fleet.racing [ROWS] [nixl | service] [SECONDS] [large]    in tests/

prints what was read, torn and refused. large: rows of 100 kB, 32 at once, whose reads two threads share; else of 1 kB.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

__all__ = ["LARGE", "Raced", "Racing", "race"]


@dataclass(frozen=True)
class Racing:
    """num_rows are read in batches; the shard holds capacity steps, all of which are replaced again and again."""

    num_rows: int
    batch: int
    capacity: int = 8192
    num_shards: int = 1
    seconds: float = 600.0  # at most
    words: int = 250  # of a row, 4 bytes each


LARGE = Racing(num_rows=2_000, batch=32, capacity=1024, words=25_000)


class Raced(NamedTuple):
    """num_refused: rows that changed while they were read, as the words told; they were read anew."""

    num_rows: int
    num_torn: int
    num_refused: int
    num_written: int


def rows_of(numbers: np.ndarray, words: int) -> np.ndarray:
    """uint32[n, words]: the number, words that follow from it, and the checksum of them all."""
    rows = (numbers[:, None] * 2_654_435_761 + np.arange(words) * 40_503).astype(np.uint32)
    rows[:, 0] = numbers
    rows[:, -1] = checksums(rows)
    return rows


def checksums(rows: np.ndarray) -> np.ndarray:
    """uint32[n]: of all words but the last; each place has a weight of its own."""
    return (rows[:, :-1].astype(np.uint64) * np.arange(1, rows.shape[1], dtype=np.uint64)).sum(axis=1).astype(np.uint32)


def torn_of(rows: np.ndarray) -> int:
    """How many rows are not what somebody wrote."""
    return int((checksums(rows) != rows[:, -1]).sum())


def own(pipe: Any, number: int, name: str, capacity: int, words: int) -> None:
    """Owns a shard, serves it, and writes to it until it is told to end."""
    import relive
    from relive.fleet import ShardOwner
    from relive.service import Door

    spec = relive.StepSpec(
        {"row": relive.ArraySpec((words,), "uint32", kind="state"), "few": relive.ArraySpec((2,), "uint32")}
    )
    index = relive.Index(relive.Transitions(n_step=2), relive.Prioritized(priority_exponent=0.6))
    config = relive.TableConfig(spec, capacity, index, relive.SharedMemory(name), max_lanes=4)
    first, written = 0, 0
    blocks = []
    num_blocks = 64 if words < 1000 else 4
    for block in range(num_blocks):
        numbers = np.arange(block * 64, block * 64 + 65, dtype=np.int64)
        blocks.append((rows_of(numbers, words), np.stack([numbers[:-1], numbers[:-1] ^ 0x5A5A], 1)))
    with ShardOwner(number, config) as owner:
        with owner.table.writer() as writer:
            for block in range(capacity // 64):
                rows, few = blocks[block % num_blocks]
                writer.extend(row=rows, few=few, truncated=np.arange(64) == 63)
            pipe.send(owner.serve(door=Door(offers=True)))
            while not pipe.poll():
                rows, few = blocks[first % num_blocks]
                writer.extend(row=rows, few=few, truncated=np.arange(64) == 63)
                if first % 16 == 0:
                    owner.table.core.move_all_pages()
                first, written = first + 1, written + 64
        pipe.send(written)
        pipe.recv()


def race(racing: Racing, name: str, path: str) -> Raced:
    """Reads until enough rows were read."""
    from relive.fleet import attach

    context = multiprocessing.get_context("spawn")
    processes, pipes, addresses = [], [], []
    for number in range(racing.num_shards):
        pipe, theirs = context.Pipe()
        arguments = (theirs, number, f"{name}-{number}", racing.capacity, racing.words)
        process = context.Process(target=own, args=arguments, daemon=True)
        process.start()
        assert pipe.poll(60.0)
        addresses.append(pipe.recv())
        processes.append(process)
        pipes.append(pipe)
    read = torn = refused = written = 0
    try:
        with attach(addresses, path=path, timeout_s=30.0) as table:
            ends = time.monotonic() + racing.seconds
            while read < racing.num_rows and time.monotonic() < ends:
                batch = table.sample(racing.batch)
                few = batch["few"]
                torn += torn_of(batch["row"]) + torn_of(batch["next_row"])
                torn += int((few[:, 1] != few[:, 0] ^ 0x5A5A).sum() + (batch["row"][:, 0] != few[:, 0]).sum())
                read += 2 * racing.batch
            refused = sum(getattr(shard, "torn", 0) for shard in table._fleet.shards)
            assert all(one.path == path for one in table.stats().shards)
    finally:
        for process, pipe in zip(processes, pipes, strict=True):
            pipe.send(None)
            written += pipe.recv() if pipe.poll(30.0) else 0
            pipe.send(None)
            process.join(30.0)
            if process.is_alive():
                process.kill()
    return Raced(read, torn, refused, written)


if __name__ == "__main__":
    given = dict(enumerate(sys.argv[1:]))
    num_rows, seconds = int(given.get(0, 1_000_000)), float(given.get(2, 600.0))
    asked = Racing(num_rows, batch=256, seconds=seconds)
    if given.get(3) == "large":
        asked = replace(LARGE, num_rows=num_rows, seconds=seconds)
    os.environ.setdefault("UCX_TLS", "sm,tcp,self")
    print(race(asked, f"race-{os.getpid()}", given.get(1, "nixl")))
