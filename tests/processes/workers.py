"""The programs of the children of these tests. Each child gets its table as a name or as a handle."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import numpy as np

import relive
from processes.tools import checked_step, checked_table, torn_rows

EVERYTHING = ["observation", "next_observation", "blob", "number", "reward", "num_steps", "episode_step"]


def write_for(pipe: Any, handle: Any, first: int, seconds: float) -> None:
    """Appends to two lanes, episodes of changing length, and says how many steps it made."""
    table = _open(handle)
    number, steps = [first, first + 500_000], 0
    deadline = time.monotonic() + seconds
    with table.writer(num_lanes=2) as writer:
        while time.monotonic() < deadline:
            rows = [checked_step(n) for n in number]
            ends = [n % 23 == 22 for n in number]
            nexts = np.stack([checked_step(n + 1)["observation"] for n in number])
            columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            if any(ends):
                writer.append(**columns, truncated=np.array(ends), next_observation=nexts)
            else:
                writer.append(**columns)
            number = [n + 1 + end for n, end in zip(number, ends, strict=True)]
            steps += 2
    table.close()
    pipe.send(steps)


def sample_for(pipe: Any, handle: Any, seconds: float) -> None:
    """Samples, verifies every row, updates priorities; says how many rows it saw and how many were torn."""
    table = _open(handle)
    seen = torn = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        batch = table.sample(32, columns=EVERYTHING, timeout_s=20.0)
        torn += torn_rows(batch)
        seen += 32
        table.update_priorities(batch.item_keys, np.random.default_rng(seen).random(32) + 1e-3)
    table.close()
    pipe.send((seen, torn))


def write_and_wait(pipe: Any, name: str, num_steps: int, gives_next: bool) -> None:
    """Writes one lane, says its keys and waits in mid-episode to be killed."""
    table = relive.attach(name)
    writer = table.writer()
    keys = []
    for number in range(num_steps):
        more = {"next_observation": checked_step(number + 1)["observation"]} if gives_next else {}
        keys.append(int(writer.append(**checked_step(number), **more)))
    pipe.send(keys)
    pipe.recv()


def create_and_wait(pipe: Any, name: str) -> None:
    """Makes a table with some steps and waits to be killed, or told to close."""
    table = checked_table(name)
    with table.writer() as writer:
        for number in range(20):
            writer.append(**checked_step(number))
    pipe.send("made")
    pipe.recv()
    table.close()
    pipe.send("closed")


def use_inherited(pipe: Any, table: relive.Table, writer: Any, keys: Any) -> None:
    """In a forked child, a handle attaches again, and a writer refuses."""
    try:
        batch = table.gather(np.asarray(keys))
        draw = table.draw(8, timeout_s=5.0)
        said: Any = (batch.present.tolist(), set(draw.item_keys.tolist()) <= set(keys))
    except relive.errors.ReliveError as error:
        said = type(error).__name__
    refused = "nothing"
    try:
        writer.append(**checked_step(10_000))
    except relive.errors.ReliveError as error:
        refused = type(error).__name__
    own = None
    if isinstance(said, tuple):
        with table.writer() as mine:
            own = [int(mine.append(**checked_step(n))) for n in range(5)]
        table.close()
    pipe.send((said, refused, own))


def insert_until_told(pipe: Any, name: str) -> None:
    """Appends with a deadline that is never reached by much; says how many it got in and its longest wait."""
    table = relive.attach(name)
    count, longest = 0, 0.0
    with table.writer() as writer:
        while not pipe.poll(0):
            start = time.monotonic()
            try:
                more = {"next_observation": checked_step(count + 1)["observation"]}
                writer.append(**checked_step(count), **more, timeout_s=0.3)
                count += 1
            except relive.errors.DeadlineExceeded:
                pass
            longest = max(longest, time.monotonic() - start)
    table.close()
    pipe.send((count, longest))


def sample_with_deadline(pipe: Any, name: str, seconds: float) -> None:
    """Draws with short deadlines; says how many were served and the longest call."""
    table = relive.attach(name)
    served, longest = 0, 0.0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        start = time.monotonic()
        try:
            table.sample(16, columns=["number"], timeout_s=0.2)
            served += 1
        except relive.errors.DeadlineExceeded:
            pass
        longest = max(longest, time.monotonic() - start)
    table.close()
    pipe.send((served, longest))


def write_for_ever(pipe: Any, name: str, first: int) -> None:
    """Until it is killed."""
    table = relive.attach(name)
    pipe.send(os.getpid())
    number = first
    with table.writer() as writer:
        while True:
            writer.append(**checked_step(number))
            number += 1


def update_for_ever(pipe: Any, name: str) -> None:
    """Samples and updates until it is killed."""
    table = relive.attach(name)
    pipe.send(os.getpid())
    while True:
        batch = table.sample(64, columns=["number"], timeout_s=30.0)
        table.update_priorities(batch.item_keys, np.random.default_rng().random(64))


def hold_batches(pipe: Any, name: str, count: int) -> None:
    """Takes some prefetched batches, says so, and waits to be killed or told to stop."""
    table = relive.attach(name)
    with table.batches(10, prefetch=4) as batches:
        for _ in range(count):
            next(batches)
        time.sleep(0.3)  # the background claims what it can
        pipe.send("taken")
        pipe.recv()
    table.close()
    pipe.send("closed")


def write_blocks_by_parts(pipe: Any, name: str) -> None:
    """Writes blocks of 16 rows for ever, and reports the first block. No death of another process makes it wait."""
    table = relive.attach(name)
    with table.writer() as writer:
        pipe.send("writes")
        for first in itertools.count(step=16):
            rows = [checked_step(number) for number in range(first, first + 16)]
            block = {column: np.stack([row[column] for row in rows]) for column in rows[0]}
            writer.extend(**block, timeout_s=60.0)


def _open(handle: Any) -> relive.Table:
    return relive.attach(handle) if isinstance(handle, str) else handle
