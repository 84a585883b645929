"""Queues, budgets and changing limiters between processes, some of which are killed while they wait or change."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

import relive
from processes.shm import needs_shared_memory
from processes.tools import children, eventually
from relive import errors

pytestmark = needs_shared_memory

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
BOUND_S = 20.0


def shared(name: str, limiter: Any, times: int | None = 1, capacity: int = 1000) -> relive.Table:
    index = relive.Index(limiter=limiter, max_times_sampled=times)
    return relive.Table(SPEC, capacity, index, storage=relive.SharedMemory(name), max_lanes=16)


def told(table: relive.Table) -> relive.IndexStats:
    return table.stats().indexes["default"]


def draw_once(pipe: Any, name: str, num_items: int) -> None:
    with relive.attach(name) as table:
        pipe.send("waits")
        pipe.send(len(table.draw(num_items, timeout_s=BOUND_S).item_keys))


def write_numbers(pipe: Any, name: str, first: int, count: int, block: int) -> None:
    with relive.attach(name) as table, table.writer() as writer:
        for number in range(first, first + count, block):
            writer.extend(number=np.arange(number, number + block), timeout_s=BOUND_S)
    pipe.send("written")


def take_numbers(pipe: Any, name: str, size: int) -> None:
    """Until nothing comes for a while."""
    numbers: list[int] = []
    with relive.attach(name) as table:
        while True:
            try:
                numbers.extend(table.sample(size, timeout_s=1.0)["number"].tolist())
            except errors.DeadlineExceeded:
                break
    pipe.send(numbers)


def change_for_ever(pipe: Any, name: str, seed: int) -> None:
    """Two numbers that belong together, until it is killed."""
    rng = random.Random(seed)
    with relive.attach(name) as table:
        pipe.send("changes")
        while True:
            size = rng.randint(1, 100)
            table.set_limiter(relive.SamplesPerInsert(float(size), size, 100.0 + size))


def test_another_process_that_waits_is_told_and_woken(shm_name: Any) -> None:
    name = shm_name()
    with shared(name, relive.MinSize(50)) as table, children() as start:
        child = start("fork", draw_once, name, 20)
        assert child.answer() == "waits"
        assert eventually(lambda: told(table).waiting_samplers == 1 and told(table).sampler_waits_s > 0.3)
        assert told(table).samplers_wait_for == "min_size"
        with pytest.raises(errors.RequestTooLarge):
            table.set_limiter(relive.Queue(10))
        with table.writer() as writer:
            writer.extend(number=np.arange(30))
        table.set_limiter(relive.Queue(30))
        begun = time.monotonic()
        assert child.answer() == 20 and time.monotonic() - begun < 5.0
        assert told(table).waiting_samplers == 0 and table.num_items() == 10


def test_who_is_killed_while_it_waits_waits_no_more(shm_name: Any) -> None:
    """Nor does its draw stand in the way of another limiter, once the dead are swept."""
    name = shm_name()
    with shared(name, relive.MinSize(50)) as table, children() as start:
        child = start("fork", draw_once, name, 20)
        assert child.answer() == "waits"
        assert eventually(lambda: told(table).waiting_samplers == 1)
        child.kill()
        relive.attach(name).close()
        assert told(table).waiting_samplers == 0
        table.set_limiter(relive.Queue(10))
        assert table.limiter() == relive.Queue(10)


def test_a_version_that_another_process_sets_wakes_writers(shm_name: Any) -> None:
    name = shm_name()
    with shared(name, relive.StalenessBudget(0, 5)) as table, children() as start:
        child = start("fork", write_numbers, name, 0, 20, 10)
        for version in range(4):
            assert eventually(lambda full=5 * (version + 1): told(table).inserted == full)  # type: ignore[misc]
            if version < 3:
                assert eventually(lambda: told(table).writers_wait_for == "budget")
            assert table.sample(5)["number"].size == 5
            table.set_policy_version(version + 1)
        assert child.answer() == "written"
        assert told(table).inserted == 20
        table.check()


def test_a_queue_between_processes_hands_out_each_number_once(shm_name: Any) -> None:
    name, each = shm_name(), 600
    with shared(name, relive.Queue(16)) as table, children() as start:
        writers = [start("fork", write_numbers, name, k * each, each, 3) for k in range(2)]
        samplers = [start("fork", take_numbers, name, 1 + k) for k in range(2)]
        most = 0
        for _ in range(100):
            most = max(most, table.num_items())
            time.sleep(0.002)
        assert [one.answer() for one in writers] == ["written"] * 2
        numbers = [number for one in samplers for number in one.answer()]
        if left := table.num_items():
            numbers.extend(table.sample(left)["number"].tolist())
        assert sorted(numbers) == list(range(2 * each)) and most <= 16
        table.check()


def test_processes_killed_while_they_change_a_limiter(shm_name: Any) -> None:
    """Whichever process dies, and when: the limiter that is left is one of the requested limiters, whole."""
    name = shm_name()
    with shared(name, relive.MinSize(1), times=None) as table, children() as start:
        for seed in range(12):
            changers = [start("fork", change_for_ever, name, 2 * seed + k) for k in range(2)]
            assert [one.answer() for one in changers] == ["changes"] * 2
            end = time.monotonic() + random.Random(seed).uniform(0.02, 0.1)
            while time.monotonic() < end:
                limiter = table.limiter()
                if isinstance(limiter, relive.SamplesPerInsert):
                    assert limiter.samples_per_insert == limiter.min_size == limiter.half_window - 100.0
            for one in changers:
                one.kill()
            limiter = table.limiter()
            if isinstance(limiter, relive.SamplesPerInsert):
                assert limiter.samples_per_insert == limiter.min_size == limiter.half_window - 100.0
            table.set_limiter(relive.MinSize(1))
            table.check()


@pytest.mark.parametrize("killed", ["sampler", "writer"])
def test_a_budget_goes_on_beyond_a_kill(shm_name: Any, killed: str) -> None:
    """After any kill, each version still admits the items that it uses, and the learner is never starved."""
    name = shm_name()
    with shared(name, relive.StalenessBudget(0, 8)) as table, children() as start:
        version = 0
        for round_ in range(6):
            if killed == "sampler":
                child = start("fork", take_numbers, name, 1)
            else:
                child = start("fork", write_numbers, name, 0, 10_000, 4)
            time.sleep(0.03 + 0.01 * round_)
            child.kill()
            relive.attach(name).close()
            version += 2  # what the killed one took, or left, is used up
            table.set_policy_version(version)
            with table.writer() as writer:
                writer.extend(number=np.arange(8), timeout_s=1.0)
            assert told(table).inserted <= (version + 1) * 8 + 8 * (round_ + 1)
            left = table.num_items()
            table.sample(left, timeout_s=1.0)
            table.check()
