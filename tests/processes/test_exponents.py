"""Exponents that change while others draw, update and are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relive
from processes.shm import needs_shared_memory

pytestmark = needs_shared_memory

NUM_ITEMS = 20_000
PRIORITIES = (np.arange(NUM_ITEMS) % 17 + 1).astype(np.float32)
EXPONENTS = (0.3, 0.5, 0.6, 1.0, 1.7)
SUMS = {exponent: (PRIORITIES.astype(np.float64) ** exponent).sum() for exponent in EXPONENTS}


def make_table(name: str) -> tuple[relive.Table, np.ndarray]:
    spec = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
    index = relive.Index(sampler=relive.Prioritized(0.6))
    table = relive.Table(spec, NUM_ITEMS, index, storage=relive.SharedMemory(name))
    with table.writer() as writer:
        keys = writer.extend(number=np.arange(NUM_ITEMS), priority=PRIORITIES)
    return table, keys


def is_of(exponent: float, batch: relive.Batch) -> bool:
    expected = PRIORITIES[batch["number"]].astype(np.float64) ** exponent / SUMS[exponent]
    return bool(np.allclose(batch.probabilities, expected, rtol=1e-7, atol=0.0))


def change(name: str) -> None:
    table = relive.attach(name)
    for turn in range(1_000_000):
        table.set_priority_exponent(EXPONENTS[turn % len(EXPONENTS)])


def update(name: str, keys: np.ndarray) -> None:
    table = relive.attach(name)
    rng = np.random.default_rng(3)
    while True:
        some = rng.integers(NUM_ITEMS, size=2_000)
        table.update_priorities(keys[some], PRIORITIES[some])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("batches_a_death", [50, pytest.param(300, marks=pytest.mark.thorough)])
def test_every_batch_is_of_one_exponent_whoever_is_killed(shm_name: Callable[[], str], batches_a_death: int) -> None:
    name = shm_name()
    table, keys = make_table(name)
    context = multiprocessing.get_context("spawn")
    updater = context.Process(target=update, args=(name, keys), daemon=True)
    updater.start()
    seen = set()
    for _ in range(6):
        changer: Any = context.Process(target=change, args=(name,), daemon=True)
        changer.start()
        until = time.monotonic() + 30.0
        num_batches = 0
        while num_batches < batches_a_death and time.monotonic() < until:
            batch = table.sample(64)
            of = [exponent for exponent in EXPONENTS if is_of(exponent, batch)]
            assert len(of) == 1, "masses of more than one exponent in a batch"
            seen.add(of[0])
            num_batches += len(seen) > 1 or changer.exitcode is not None
        os.kill(changer.pid, signal.SIGKILL)
        changer.join()
        batch = table.sample(64)
        assert is_of(table.priority_exponent(), batch)
        table.check()
    assert len(seen) > 1
    os.kill(updater.pid or 0, signal.SIGKILL)
    updater.join()
    total = SUMS[table.priority_exponent()]
    for begin in range(0, 20):
        assert is_of(table.priority_exponent(), table.sample(1_000)), begin
    assert table.core.total(0) == pytest.approx(total, rel=1e-8)  # type: ignore[attr-defined]
    table.check()
    table.close()


@pytest.mark.parametrize("more", [{}, {"max_times_sampled": 60_000}], ids=["plain", "with use counts"])
def test_batches_that_take_several_rounds_are_of_one_exponent(more: dict[str, Any]) -> None:
    """Without replacement points find the heavy item, and a race the others. The exponent changes in between."""
    priorities = np.array([1e6, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    spec = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
    table = relive.Table(spec, 40_000, relive.Index(sampler=relive.Prioritized(1.0), replacement=False, **more))
    with table.writer() as writer:
        writer.extend(number=np.arange(8), priority=priorities.astype(np.float32))
    sums = {exponent: (priorities**exponent).sum() for exponent in (0.5, 1.0)}
    is_over = threading.Event()

    def change_for_ever() -> None:
        while not is_over.is_set():
            for exponent in sums:
                table.set_priority_exponent(exponent)

    changer = threading.Thread(target=change_for_ever)
    changer.start()
    try:
        for _ in range(500):
            batch = table.sample(7)
            masses = priorities[batch["number"]]
            close = [np.allclose(batch.probabilities, masses**one / total, rtol=1e-6) for one, total in sums.items()]
            assert sum(close) == 1, "masses of more than one exponent in a batch"
    finally:
        is_over.set()
        changer.join()
    table.check()
    table.close()


def change_once_a_draw(name: str, draws: Any) -> None:
    """Makes one change for each draw that begins. Changes without rest would starve a read-only handle."""
    table = relive.attach(name)
    for turn in range(1_000_000):
        draws.acquire()
        table.set_priority_exponent(EXPONENTS[turn % len(EXPONENTS)])


@pytest.mark.timeout(120)
def test_a_handle_that_is_read_only_outwaits_a_change(shm_name: Callable[[], str]) -> None:
    name = shm_name()
    table, _ = make_table(name)
    context = multiprocessing.get_context("spawn")
    draws = context.Semaphore(0)
    changer: Any = context.Process(target=change_once_a_draw, args=(name, draws), daemon=True)
    with relive.attach(name, read_only=True) as reader:
        with pytest.raises(relive.errors.ReadOnly):
            reader.set_priority_exponent(1.0)
        changer.start()
        seen = set()
        while len(seen) < 3:
            if draws.get_value() == 0:  # none ahead
                draws.release()
            batch = reader.sample(64, timeout_s=60.0)
            of = [exponent for exponent in EXPONENTS if is_of(exponent, batch)]
            assert len(of) == 1
            seen.add(of[0])
        os.kill(changer.pid, signal.SIGKILL)
        changer.join()
    table.close()
