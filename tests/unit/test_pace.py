"""Queues, staleness budgets, limiters that change while they are in use, and threads that wait for each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
BOUND_S = 20.0


def paced(limiter: Any, times: int | None = 1, **more: Any) -> relive.Index:
    return relive.Index(limiter=limiter, max_times_sampled=times, **more)


def steps(count: int, first: int = 0) -> dict[str, Any]:
    return {"number": np.arange(first, first + count)}


def insert(table: relive.Table, count: int, timeout_s: float = 0.0) -> int:
    """So many steps, as far as they are let in; how many were."""
    with table.writer() as writer:
        try:
            writer.extend(**steps(count), timeout_s=timeout_s)
        except errors.DeadlineExceeded as error:
            return int(error.stored or 0)
    return count


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < deadline, "never came"
        time.sleep(0.002)


class InThread:
    """A call in a thread, its error kept."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as problem:
            self.error = problem

    def join(self) -> None:
        self._thread.join(BOUND_S)
        assert not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()


# ---- queues ---------------------------------------------------------------------------------------------------------


def test_a_queue_is_full_and_empty() -> None:
    with relive.Table(SPEC, 100, paced(relive.Queue(5))) as table:
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(1, timeout_s=0)
        assert insert(table, 5) == 5 and insert(table, 1) == 0
        with pytest.raises(errors.RequestTooLarge):
            table.draw(6, timeout_s=0)
        with pytest.raises(errors.RequestTooLarge, match="a queue of 5 items"):
            table.batches(6)
        assert len(set(table.sample(3).item_keys)) == 3
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(3, timeout_s=0)
        assert insert(table, 3) == 3 and insert(table, 1) == 0
        table.check()


def test_what_leaves_a_queue_unused_makes_room() -> None:
    with relive.Table(SPEC, 100, paced(relive.Queue(5))) as table, table.writer() as writer:
        keys = writer.extend(**steps(5))
        table.delete(keys[:2])
        writer.extend(**steps(2), timeout_s=0)
        with pytest.raises(errors.DeadlineExceeded):
            writer.extend(**steps(1), timeout_s=0)
        table.clear()
        writer.extend(**steps(5), timeout_s=0)
        assert table.num_items() == 5
        with pytest.raises(errors.RequestTooLarge):
            writer.extend(**steps(6), timeout_s=0)
        table.check()


def test_each_item_of_a_queue_comes_once_to_one_of_two_samplers() -> None:
    total = 3000
    with relive.Table(SPEC, 64, paced(relive.Queue(16))) as table:
        seen: list[list[int]] = [[], []]

        def take(mine: list[int], size: int) -> None:
            while len(seen[0]) + len(seen[1]) < total - 8:
                try:
                    mine.extend(table.sample(size, timeout_s=0.2)["number"].tolist())
                except errors.DeadlineExceeded:
                    continue

        samplers = [InThread(lambda i=i: take(seen[i], 3 + i)) for i in range(2)]  # type: ignore[misc]
        with table.writer() as writer:
            for first in range(0, total, 10):
                writer.extend(**steps(10, first), timeout_s=BOUND_S)
        for one in samplers:
            one.join()
            assert one.error is None
        left = table.num_items()
        rest = table.sample(left)["number"].tolist() if left else []
        numbers = [*seen[0], *seen[1], *rest]
        assert sorted(numbers) == list(range(total))
        table.check()


# ---- staleness budgets ----------------------------------------------------------------------------------------------


def test_a_budget_lets_in_what_a_version_uses() -> None:
    with relive.Table(SPEC, 100, paced(relive.StalenessBudget(1, 4))) as table:
        assert insert(table, 7) == 7 and insert(table, 3) == 1 and insert(table, 1) == 0
        table.sample(4)
        assert insert(table, 1) == 0, "what was drawn stays counted"
        table.set_policy_version(1)
        assert insert(table, 5) == 4
        table.set_policy_version(0)
        assert insert(table, 1) == 0
        table.check()


def test_what_went_unused_is_given_back_to_the_budget() -> None:
    with relive.Table(SPEC, 100, paced(relive.StalenessBudget(0, 6), times=2)) as table, table.writer() as writer:
        keys = writer.extend(**steps(6))
        drawn = table.draw(1).item_keys
        unused = [key for key in keys if key not in drawn]
        table.delete(np.array(unused[:3]))
        table.delete(drawn)
        assert insert(table, 4) == 3
        table.check()


def test_a_new_version_wakes_writers() -> None:
    with relive.Table(SPEC, 100, paced(relive.StalenessBudget(0, 2))) as table, table.writer() as writer:
        waits = InThread(lambda: writer.extend(**steps(6), timeout_s=BOUND_S))
        for version in range(3):
            asked = 2 * (version + 1)
            until(lambda asked=asked: table.stats().indexes["default"].inserted == asked)  # type: ignore[misc]
            assert waits.is_alive or version == 2
            table.sample(2)
            table.set_policy_version(version + 1)
        waits.join()
        assert waits.error is None


def test_a_budget_against_a_naive_one() -> None:
    """Random inserts, draws, deletions and versions: as many go in as the sum says."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        eta, per, times = float(rng.choice([0, 0.5, 2])), int(rng.integers(1, 9)), int(rng.integers(1, 3))
        with relive.Table(SPEC, 200, paced(relive.StalenessBudget(eta, per), times)) as table, table.writer() as writer:
            inserted = removed_unused = version = base = 0
            live: dict[int, int] = {}  # uses of each key
            for _ in range(60):
                kind = rng.integers(4)
                if kind == 0:
                    asked = int(rng.integers(1, 12))
                    room = max(0, int((eta + version - base + 1) * per) - (inserted - removed_unused))
                    try:
                        keys = writer.extend(**steps(asked), timeout_s=0)
                    except errors.DeadlineExceeded as error:
                        keys = np.array([], np.int64) if error.keys is None else error.keys
                    assert len(keys) == min(asked, room)
                    inserted += len(keys)
                    live.update(dict.fromkeys(keys.tolist(), 0))
                elif kind == 1 and live:
                    for key in table.draw(1).item_keys.tolist():
                        live[key] += 1
                        if live[key] == times:
                            del live[key]
                elif kind == 2 and live:
                    key = int(rng.choice(list(live)))
                    assert table.delete(np.array([key])) == 1
                    removed_unused += live.pop(key) == 0
                else:
                    version += int(rng.integers(-1, 3)) if version else int(rng.integers(0, 3))
                    if not inserted or version < table.policy_version:
                        base += version - table.policy_version
                    table.set_policy_version(version)
            table.check()


# ---- bad limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: relive.Queue(0),
        lambda: relive.Queue(2.5),  # type: ignore[arg-type]
        lambda: relive.StalenessBudget(-1, 4),
        lambda: relive.StalenessBudget(float("nan"), 4),
        lambda: relive.StalenessBudget(0, 0),
        lambda: relive.StalenessBudget(0, True),
        lambda: paced(relive.Queue(5), None),
        lambda: paced(relive.StalenessBudget(0, 4), None),
        lambda: paced(relive.Queue(5), max_items=4),
    ],
)
def test_limits_that_cannot_be(make: Callable[[], Any]) -> None:
    with pytest.raises(errors.InvalidConfig):
        make()


def test_a_queue_larger_than_its_table() -> None:
    with pytest.raises(errors.CapacityTooSmall, match="max_size"):
        relive.Table(SPEC, 10, paced(relive.Queue(11)))


@pytest.mark.parametrize("limiter", [relive.Queue(7), relive.StalenessBudget(0.5, 3)])
def test_configs_are_kept(limiter: Any) -> None:
    index = paced(limiter)
    assert relive.Index.from_dict(index.to_dict()) == index
    with relive.Table(SPEC, 100, index) as table:
        assert table.limiter() == limiter == table.stats().indexes["default"].limiter


# ---- changing them --------------------------------------------------------------------------------------------------


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(SPEC, 1000, paced(relive.MinSize(10), times=100)) as made:
        yield made


def test_a_looser_limiter_lets_waiting_draws_pass(table: relive.Table) -> None:
    insert(table, 5)
    waits = InThread(lambda: table.draw(3, timeout_s=BOUND_S))
    until(lambda: table.stats().indexes["default"].waiting_samplers == 1)
    assert table.stats().indexes["default"].samplers_wait_for == "min_size"
    table.set_limiter(relive.MinSize(5))
    waits.join()
    assert waits.error is None and table.limiter() == relive.MinSize(5)
    assert table.stats().indexes["default"].waiting_samplers == 0


def test_a_looser_limiter_lets_waiting_writers_pass(table: relive.Table) -> None:
    table.set_limiter(relive.Queue(4))
    insert(table, 4)
    waits = InThread(lambda: insert(table, 3, BOUND_S))
    until(lambda: table.stats().indexes["default"].waiting_writers == 1)
    told = table.stats().indexes["default"]
    assert (told.writers_wait_for, told.samplers_wait_for, told.stuck) == ("queue", "", None)
    until(lambda: table.stats().indexes["default"].writer_waits_s > 0.15)
    table.set_limiter(relive.MinSize(1))
    waits.join()
    assert waits.error is None and table.num_items() == 7
    assert table.stats().indexes["default"].waiting_writers == 0


def test_a_corridor_begins_anew(table: relive.Table) -> None:
    """However much was inserted and drawn before: the window lies about what is there now."""
    insert(table, 500)
    for _ in range(50):
        table.draw(20)
    table.set_limiter(relive.SamplesPerInsert(2.0, 10, 8.0))
    assert insert(table, 4) == 4 and insert(table, 1) == 0  # 8 samples worth
    table.draw(15)  # the window of 16 and a row beside it
    with pytest.raises(errors.DeadlineExceeded):
        table.draw(2, timeout_s=0)
    table.draw(1)
    assert insert(table, 8) == 8
    table.set_limiter(relive.SamplesPerInsert(1.0, 10, 8.0))
    assert insert(table, 8) == 8 and insert(table, 1) == 0


def test_a_first_fill_goes_on_under_a_new_corridor(table: relive.Table) -> None:
    insert(table, 4)
    table.set_limiter(relive.SamplesPerInsert(1.0, 10, 3.0))
    with pytest.raises(errors.DeadlineExceeded):
        table.draw(1, timeout_s=0)
    assert insert(table, 6) == 6 and insert(table, 3) == 3 and insert(table, 1) == 0


def test_a_waiting_draw_that_could_never_pass_keeps_the_old_limiter(table: relive.Table) -> None:
    waits = InThread(lambda: table.draw(30, timeout_s=BOUND_S))
    until(lambda: table.stats().indexes["default"].waiting_samplers == 1)
    for limiter in (relive.Queue(29), relive.SamplesPerInsert(1.0, 10, 14.5)):
        with pytest.raises(errors.RequestTooLarge) as caught:
            table.set_limiter(limiter)
        assert caught.value.requested == 30 and "waits now" in caught.value.arithmetic
        assert table.limiter() == relive.MinSize(10)
    table.set_limiter(relive.Queue(30))
    insert(table, 30)
    waits.join()
    assert waits.error is None


def test_limiters_that_an_index_cannot_have_change_nothing(table: relive.Table) -> None:
    with relive.Table(SPEC, 20, relive.Index()) as free:
        for limiter in (relive.Queue(5), relive.StalenessBudget(0, 1), None, "Queue", relive.Uniform()):
            with pytest.raises(errors.InvalidConfig):
                free.set_limiter(limiter)  # type: ignore[arg-type]
        with pytest.raises(errors.CapacityTooSmall):
            free.set_limiter(relive.MinSize(21))
        with pytest.raises(errors.InvalidConfig):
            free.set_limiter(relive.MinSize(2), index="other")
        assert free.limiter() == relive.MinSize(1)
    with pytest.raises(errors.TableClosed):
        free.set_limiter(relive.MinSize(2))
    with pytest.raises(errors.InvalidConfig):
        table.set_limiter(relive.SamplesPerInsert(101.0, 10))  # more than max_times_sampled


def test_an_exhausted_budget_says_what_it_needs() -> None:
    with relive.Table(SPEC, 100, paced(relive.StalenessBudget(0, 2))) as table, table.writer() as writer:
        writer.extend(**steps(2))
        with pytest.raises(errors.DeadlineExceeded, match="items_per_version"):
            writer.append(number=0, timeout_s=0)


def test_a_learner_that_waits_for_unused_items_is_told() -> None:
    with relive.Table(SPEC, 100, paced(relive.StalenessBudget(0, 8))) as table, table.writer() as writer:
        writer.extend(**steps(3))
        waits = InThread(lambda: table.draw(8, timeout_s=BOUND_S))
        until(lambda: table.stats().indexes["default"].samplers_wait_for == "items")
        told = table.stats().indexes["default"]
        assert (told.waiting_samplers, told.waiting_writers) == (1, 0)
        writer.extend(**steps(5), timeout_s=BOUND_S)
        waits.join()
        assert waits.error is None and table.num_items() == 0


@pytest.mark.parametrize("seed", range(6))
def test_limits_that_change_meanwhile_leave_nobody_stuck(seed: int) -> None:
    """Random limiters, each set while a writer and a sampler run: both come to their end."""
    rng = np.random.default_rng(seed)
    index = paced(relive.MinSize(8), times=50, replacement=seed % 2 == 0)
    with relive.Table(SPEC, 2000, index) as table, table.writer() as writer:

        def write() -> None:
            for first in range(0, 1200, 6):
                writer.extend(**steps(6, first), timeout_s=BOUND_S)

        def draw() -> None:
            while writing.is_alive:
                try:
                    table.draw(8, timeout_s=0.05)
                except errors.DeadlineExceeded:
                    table.set_policy_version(table.policy_version + 1)

        writing = InThread(write)
        drawing = InThread(draw)
        while writing.is_alive:
            spi, size = float(rng.choice([0.5, 1.0, 4.0])), int(rng.integers(14, 60))
            limiters = [
                relive.MinSize(size),
                relive.SamplesPerInsert(spi, size, float(rng.integers(20, 60))),
                relive.Queue(int(rng.integers(1400, 1500))),
                relive.StalenessBudget(1, 200),
            ]
            table.set_limiter(limiters[int(rng.integers(4))])
            time.sleep(0.003)
        writing.join()
        drawing.join()
        assert writing.error is None and drawing.error is None
        table.check()
