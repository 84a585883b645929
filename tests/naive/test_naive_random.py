"""Episodes(too_long="random") against a twin: one window of each long episode, each start as likely."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from relive import _core

STATES = relive.StepSpec(
    {"number": relive.ArraySpec((), "int64"), "state": relive.ArraySpec((), "int64", kind="state")}
)
PLAIN = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
MASK, GOLDEN = 2**64 - 1, _core.random_format()["golden"]


def start_of(seed: int, lane: int, before: int, count: int, length: int) -> int:
    """Where the window of an episode of `count` steps begins: at the last start that is drawn in its turn, start s with
    probability 1 / (s + 1). lane: its uid; before: the steps that the lane had before the episode.
    """
    starts = range(max(1, count - length + 1))
    return max(s for s in starts if is_drawn(seed, lane, before, s))


def is_drawn(seed: int, lane: int, before: int, start: int) -> bool:
    base = _core.random_base(seed, lane, before, 2**32)
    return ((_core.splitmix64((base + start * GOLDEN) & MASK) >> 32) * (start + 1)) >> 32 == 0


@dataclass
class Episode:
    """An episode that was written, and its place."""

    first: int  # number of its first step
    keys: np.ndarray
    lane: int  # the uid of its lane
    before: int  # steps that its lane had before it

    def start(self, seed: int, length: int) -> int:
        return start_of(seed, self.lane, self.before, len(self.keys), length)


def made(spec: relive.StepSpec, capacity: int, length: int, seed: int = 3) -> relive.Table:
    index = {"steps": relive.Index(), "parts": relive.Index(relive.Episodes(length, too_long="random"))}
    return relive.Table(spec, capacity, index, max_lanes=4, seed=seed, timeout_s=0.0)


def write(
    writer: relive.Writer, spec: relive.StepSpec, first: int, count: int, by: int, ends: bool = True
) -> np.ndarray:
    """Steps of an episode in blocks of `by`."""
    keys = []
    for begin in range(0, count, by):
        rows = np.arange(first + begin, first + min(begin + by, count))
        more = {"state": np.append(rows, rows[-1] + 1)} if "state" in spec.columns else {}
        keys.append(writer.extend(number=rows, truncated=ends and begin + by >= count, **more))
    return np.concatenate(keys)


@pytest.mark.parametrize("spec", [STATES, PLAIN], ids=["states", "plain"])
@pytest.mark.parametrize("length", [1, 5, 40])
def test_which_windows_there_are_is_the_twins_say(spec: relive.StepSpec, length: int) -> None:
    """Two lanes in turn, episodes of many lengths, in blocks and alone; rows go meanwhile."""
    rng = random.Random(length)
    table = made(spec, 3000, length)
    with table.writer() as one, table.writer() as other:
        writers, lanes, written = (one, other), [0, 0], []
        number = 0
        for episode in range(120):
            which = rng.randrange(2)
            count = rng.choice((1, 2, length, length + 1, rng.randint(1, 300)))
            before = table.num_items("parts")
            keys = write(writers[which], spec, number, count, rng.choice((1, 7, 500)))
            uid = int(table.gather(keys[-1:], ["lane"], index="steps")["lane"][0])
            written.append(Episode(number, keys, uid, lanes[which]))
            number += count
            lanes[which] += count
            assert table.num_items("parts") <= before + 1
            if episode % 20 == 19:
                check(table, written, length)
        assert len({one.lane for one in written}) == 2
    check(table, written, length)
    table.close()


def check(table: relive.Table, written: list[Episode], length: int) -> None:
    table.check()
    num_items = 0
    for episode in written:
        keys = episode.keys
        steps = table.gather(keys, ["lane"], index="steps")
        if not steps.present.any():
            continue
        start = episode.start(table.config.seed, length)
        got = table.gather(keys, ["number", "mask"], index="parts")
        expected = [s == start and bool(steps.present[s]) for s in range(len(keys))]
        assert got.present.tolist() == expected
        num_items += sum(expected)
        if steps.present[start]:
            first = episode.first + start
            numbers = got["number"][start][got.mask[start]]
            assert numbers.tolist() == list(range(first, first + min(len(keys), length)))
    assert table.num_items("parts") == num_items


def test_each_start_is_as_likely() -> None:
    counts: Counter[int] = Counter()
    with (
        made(PLAIN, 200, 4) as table,
        table.writer() as writer,
    ):  # its pages go again and again
        for _ in range(3000):
            keys = write(writer, PLAIN, 0, 9, 9)
            present = table.gather(keys, ["lane"], index="parts").present
            assert present.sum() == 1
            counts[int(present.argmax())] += 1
    assert sorted(counts) == [0, 1, 2, 3, 4, 5]
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 25.7  # chi-squared, p = 0.0001


@pytest.mark.parametrize("by", [1, 3])
def test_each_start_is_as_likely_in_lanes_of_one_episode(by: int) -> None:
    counts: Counter[int] = Counter()
    with made(STATES, 200, 4) as table:
        for _ in range(1200):
            with table.writer() as writer:
                keys = write(writer, STATES, 0, 9, by)
            counts[int(table.gather(keys, ["lane"], index="parts").present.argmax())] += 1
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 25.7 and len(counts) == 6


def test_another_seed_gives_other_windows_and_the_same_seed_the_same() -> None:
    found = []
    for seed in (1, 1, 2):
        with made(PLAIN, 10_000, 4, seed) as table, table.writer() as writer:
            keys = [write(writer, PLAIN, 0, 50, 50) for _ in range(20)]
            found.append(table.gather(np.concatenate(keys), ["lane"], index="parts").present.tolist())
    assert found[0] == found[1] != found[2]


def test_nothing_is_decided_before_the_end_and_a_cut_episode_is_dropped() -> None:
    with made(STATES, 1000, 4) as table:
        with table.writer() as writer:
            write(writer, STATES, 0, 60, 13, ends=False)
            assert table.num_items("parts") == 0
            writer.end_episode(truncated=True)
            assert table.num_items("parts") == 1
            write(writer, STATES, 60, 30, 7, ends=False)
        assert table.num_items("parts") == 1
        table.check()


@pytest.mark.parametrize("gone", [slice(0, 200), slice(100, 300), slice(100, 101)])
def test_steps_deleted_before_the_end_give_at_most_one_item(gone: slice) -> None:
    for seed in range(8):
        with made(PLAIN, 5000, 20, seed) as table, table.writer() as writer:
            keys = write(writer, PLAIN, 0, 400, 50, ends=False)
            table.delete(keys[gone])
            write(writer, PLAIN, 400, 1, 1)
            assert table.num_items("parts") <= 1
            table.check()


@pytest.mark.parametrize("spec", [STATES, PLAIN], ids=["states", "plain"])
def test_episodes_longer_than_the_table(spec: relive.StepSpec) -> None:
    """The rows of the window may be gone when it is decided: then there is no item, and what there is is whole."""
    table, number, items = made(spec, 300, 20), 0, 0
    lanes, starts = [0, 0], set()
    with table.writer() as one, table.writer() as other:
        for episode in range(30):
            writer = (one, other)[episode % 2]
            keys = write(writer, spec, number, 700, 50)
            uid = int(table.gather(keys[-1:], ["lane"], index="steps")["lane"][0])
            got = table.gather(keys, ["number", "mask"], index="parts")
            items += int(got.present.sum())
            assert got.present.sum() <= 1 and got.mask[got.present].all()
            for start in np.flatnonzero(got.present):
                assert got["number"][start].tolist() == [*range(number + start, number + start + 20)]
            expected = start_of(3, uid, lanes[episode % 2], 700, 20)
            starts.add(expected)
            steps = table.gather(keys, ["lane"], index="steps").present
            assert got.present.tolist() == [s == expected and there for s, there in enumerate(steps)]
            number += 700
            lanes[episode % 2] += 700
            table.check()
    assert 0 < items < 30 and len(starts) > 20, "one start for all"
    table.close()


def test_drawn_batches_of_windows_at_random() -> None:
    for more in ({}, {"time_major": True}, {"layout": "ragged"}):
        items = relive.Episodes(6, too_long="random", bootstrap=1, **more)
        with relive.Table(STATES, 2000, relive.Index(items), timeout_s=0.0) as table, table.writer() as writer:
            for episode in range(40):
                write(writer, STATES, 40 * episode, 30, 11)
            batch = table.sample(64)
            states = batch["state"]
            numbers = states.T if "time_major" in more else states.reshape(64, 7)
            assert numbers.shape == (64, 7) and (np.diff(numbers, axis=1) == 1).all()


KILLED = """
import os, signal, sys, threading, numpy as np, relive
table = relive.attach(sys.argv[1])
with table.writer() as writer:
    print("writing", flush=True)
    for episode in range(10**9):
        count = 1 + episode * 7 % 61
        numbers = np.arange(count) + 1000 * episode
        for begin in range(0, count, 5):
            rows = numbers[begin : begin + 5]
            writer.extend(number=rows, truncated=begin + 5 >= count)
"""


@pytest.mark.forms(2)
@needs_shared_memory
@pytest.mark.parametrize("attempt", range(4))
def test_what_a_killed_writer_left_is_decided_as_it_would_have(attempt: int, shm_name: Any) -> None:
    """The next process chooses the same windows, lane after lane, of the episodes that are still there."""
    name = shm_name()
    index = {"parts": relive.Index(relive.Episodes(20, too_long="random"))}
    with relive.Table(PLAIN, 3000, index, storage=relive.SharedMemory(name), max_lanes=2, seed=attempt) as table:
        seen = set()
        for _ in range(3):
            with subprocess.Popen([sys.executable, "-c", KILLED, name], stdout=subprocess.PIPE) as child:
                assert child.stdout is not None and child.stdout.readline() == b"writing\n"
                appended = table.stats().appended
                while table.stats().appended < appended + 3000 + 17 * attempt:
                    time.sleep(0.001)
                child.kill()
            table.writer().close()  # sweeps what the dead one had
            table.check()
            batch = table.sample(200, columns=["number", "lane", "mask"])
            for numbers, lane, mask in zip(batch["number"], batch["lane"], batch.mask, strict=True):
                episode, start = divmod(int(numbers[0]), 1000)
                before = sum(1 + one * 7 % 61 for one in range(episode))
                assert start == start_of(attempt, int(lane), before, 1 + episode * 7 % 61, 20)
                assert mask.sum() == min(20, 1 + episode * 7 % 61)
                seen.add((int(lane), episode))
        assert len({lane for lane, _ in seen}) > 1 and len(seen) > 50
