"""Limiters at work: pairs that shared no window, parts of a block, draws beside rows, and a min_size's last item."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.core import ending

SPEC = relive.StepSpec(
    {"state": relive.ArraySpec((), "float32", kind="state"), "number": relive.ArraySpec((), "int64")}
)
BOUND_S = 20.0  # of every wait: a pair that cannot move is told by DeadlineExceeded, not by a test that hangs


def paced(spi: float, min_size: int, tolerance: float | None = None, **more: Any) -> relive.Index:
    return relive.Index(limiter=relive.SamplesPerInsert(spi, min_size, tolerance), **more)


def block(num_steps: int, num_lanes: int | None = None, first: int = 0) -> dict[str, Any]:
    """Steps whose state and number count on, the state after the last one too."""
    shape = (num_steps,) if num_lanes is None else (num_steps, num_lanes)
    numbers = np.arange(first, first + num_steps * (num_lanes or 1)).reshape(shape)
    last = numbers[-1:] + (num_lanes or 1)
    return {"state": np.concatenate([numbers, last]).astype(np.float32), "number": numbers}


class Pair:
    """A writer and a sampler, each a thread that needs the other to come to its end; there may be more of both."""

    def __init__(self, table: relive.Table, num_steps: int, num_lanes: int, steps_version: bool = False) -> None:
        self._table = table
        self._steps_version = steps_version  # after each draw, as a learner does
        self._lanes = num_lanes
        self._rows = {name: np.zeros_like(array) for name, array in block(num_steps, num_lanes).items()}
        self._problems: list[BaseException] = []

    def _write(self) -> None:
        with self._table.writer(self._lanes) as writer:
            while True:
                writer.extend(**self._rows, timeout_s=BOUND_S)

    def _sample(self, index: str, num_items: int, num_draws: int | None) -> None:
        for _ in itertools.count() if num_draws is None else range(num_draws):
            self._table.draw(num_items, timeout_s=BOUND_S, index=index)
            if self._steps_version:
                self._table.set_policy_version(self._table.policy_version + 1)

    def _told(self, work: Callable[..., None], is_endless: bool, *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as problem:
            if not (is_endless and isinstance(problem, errors.TableClosed)):
                self._problems.append(problem)
                self._table.close()

    def run(self, draws: list[tuple[str, int, int | None]], num_writers: int = 1) -> None:
        """Raises what one of them raised. draws: of each sampler the index, items a draw, how many (None: endless)."""
        endless = [threading.Thread(target=self._told, args=(self._write, True)) for _ in range(num_writers)]
        endless += [threading.Thread(target=self._told, args=(self._sample, True, *d)) for d in draws if d[2] is None]
        counted = [threading.Thread(target=self._told, args=(self._sample, False, *d)) for d in draws if d[2]]
        for thread in (*endless, *counted):
            thread.start()
        for thread in counted:
            thread.join()
        self._table.close()
        for thread in endless:
            thread.join()
        for problem in self._problems:
            raise problem


@pytest.mark.parametrize(
    "spi, min_size, steps, lanes, batch", [(8.0, 1000, 32, 8, 256), (4.0, 500, 32, 16, 128), (1.0, 100, 1, 2000, 500)]
)
def test_ordinary_limits_let_both_sides_go_on(spi: float, min_size: int, steps: int, lanes: int, batch: int) -> None:
    """Each side fits the window alone, not both together: the block goes in by parts."""
    table = relive.Table(SPEC, 50_000, paced(spi, min_size), max_lanes=lanes)
    Pair(table, steps, lanes).run([("default", batch, 60)])


def largest_draw(table: relive.Table, index: str, wanted: int, window: float) -> int:
    """As many items as wanted, or as the window lets in beside a row."""
    for num_items in range(min(wanted, int(window)), 1, -1):
        try:
            table.draw(num_items, timeout_s=0.0, index=index)
        except errors.RequestTooLarge:
            continue
        except errors.DeadlineExceeded:
            pass
        return num_items
    return 1


@pytest.mark.core_alone
@pytest.mark.parametrize("seed", range(20))
def test_no_pair_waits_for_itself(seed: int) -> None:
    """Random limits, blocks, lanes, batches, writers, indexes: every call that a limiter accepts can finish."""
    rng = np.random.default_rng(seed)
    for _ in range(15):
        spi = float(rng.choice([0.25, 0.7, 1.0, 1.5, 3.0, 8.0]))
        tolerance = float(max((spi + 1) / 2, rng.integers(1, 60)))
        window = 2 * tolerance
        most = max(1, int(window / spi))  # rows of a block
        lanes = int(rng.integers(1, 1 + min(8, most)))
        steps = int(rng.integers(1, 1 + max(1, most // lanes)))
        names = ["one", "two"][: int(rng.integers(1, 3))]
        limits = {
            name: paced(spi, int(rng.integers(1, 60)), tolerance, replacement=bool(rng.integers(2))) for name in names
        }
        table = relive.Table(SPEC, 3000, limits, max_lanes=16)
        draws: list[tuple[str, int, int | None]] = []
        for name in names:
            batch = largest_draw(table, name, int(rng.integers(1, 1 + max(1, int(window)))), window)
            draws.append((name, batch, None if draws else 8 + int(4 * window / batch)))
        Pair(table, steps, lanes).run(draws, num_writers=int(rng.integers(1, 3)))


@pytest.mark.core_alone
@pytest.mark.parametrize("seed", range(10))
def test_no_pair_beside_a_queue_or_a_budget_waits_for_itself(seed: int) -> None:
    """The same of queues, with the largest draws that they let in, and of budgets whose learner steps its version."""
    rng = np.random.default_rng(seed)
    for _ in range(12):
        size, eta = int(rng.integers(1, 40)), float(rng.choice([0.0, 0.5, 1.0, 2.0]))
        is_queue = bool(rng.integers(2))
        index = relive.Index(
            sampler=(relive.Uniform(), relive.Prioritized(1.0), relive.TopK(0.5))[int(rng.integers(3))],
            limiter=relive.Queue(size) if is_queue else relive.StalenessBudget(eta, size),
            max_times_sampled=int(rng.integers(1, 4)),
            replacement=bool(rng.integers(2)),
        )
        batch = int(rng.integers(1, size + 1))
        if isinstance(index.sampler, relive.TopK) and not index.replacement:
            batch = 1  # of the better half there may be fewer
        lanes = int(rng.integers(1, 1 + min(8, size)))
        table = relive.Table(SPEC, 3000, index, max_lanes=16)
        pair = Pair(table, int(rng.integers(1, 1 + size // lanes)), lanes, steps_version=not is_queue)
        pair.run([("default", batch, 30)], num_writers=int(rng.integers(1, 3)))


def test_a_block_that_fits_beside_the_draws_goes_in_whole_or_not_at_all() -> None:
    """Window 20; a draw of 5 was refused: 15 rows fit beside it, so they wait for all their room."""
    with relive.Table(SPEC, 100, paced(1.0, 10, 10.0)) as table, table.writer() as writer:
        writer.extend(**block(10))
        table.draw(10)
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(5, timeout_s=0.0)
        writer.extend(**block(10, first=10))
        with pytest.raises(errors.DeadlineExceeded) as caught:
            writer.extend(**block(15, first=20), timeout_s=0.0)
        assert caught.value.stored == 0 and caught.value.keys is None and len(table) == 20


@contextlib.contextmanager
def room_for_10() -> Iterator[tuple[relive.Table, relive.Writer]]:
    """20 of at most 30 rows are in: of the next ones 10 fit, the others wait for a draw."""
    with relive.Table(SPEC, 100, paced(1.0, 10, 10.0)) as table, table.writer() as writer:
        writer.extend(**block(10))
        table.draw(10)
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(15, timeout_s=0.0)
        writer.extend(**block(10, first=10))
        yield table, writer


def test_a_block_that_stops_in_the_middle_says_what_is_stored() -> None:
    """Window 20, a draw of 15 was refused: of a block of 12 goes in what fits, and the rest after it."""
    with room_for_10() as (table, writer):
        rows = block(12, first=20)
        with pytest.raises(errors.DeadlineExceeded) as caught:
            writer.extend(**rows, timeout_s=0.0)
        error = caught.value
        assert error.stored == 10 and error.keys is not None and "first 10 of 12 rows are stored" in str(error)
        assert len(table) == 30
        table.draw(15)
        more = writer.extend(**{name: array[error.stored :] for name, array in rows.items()}, timeout_s=0.0)
        batch = table.gather(np.concatenate([error.keys, more]), columns=["number", "state", "next_state"])
        assert batch.present.all() and batch["number"].tolist() == list(range(20, 32))
        assert batch["next_state"].tolist() == list(range(21, 33))


class HeardError(Exception):
    """An error that a signal's handler may raise."""


@contextlib.contextmanager
def sigint_raises(kind: type[BaseException]) -> Iterator[None]:
    def raise_it(*_: Any) -> None:
        raise kind

    before = signal.signal(signal.SIGINT, raise_it)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, HeardError])
def test_a_block_that_ctrl_c_stops_says_what_is_stored(kind: type[BaseException]) -> None:
    """10 of 12 rows are in, the others wait for a draw; then the signal comes. Told as any other error tells it."""
    with sigint_raises(kind), room_for_10() as (table, writer):

        def interrupt() -> None:
            while len(table) < 30:
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)

        other = threading.Thread(target=interrupt)
        other.start()
        rows = block(12, first=20)
        with pytest.raises(kind) as caught:
            writer.extend(**rows, timeout_s=BOUND_S)
        other.join()
        stored, keys = caught.value.stored, caught.value.keys  # type: ignore[attr-defined]
        assert stored == 10 and len(table) == 30
        assert table.gather(keys, columns=["number"])["number"].tolist() == list(range(20, 30))
        table.draw(15)
        writer.extend(**{name: array[stored:] for name, array in rows.items()}, timeout_s=0.0)
        table.check()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, HeardError])
def test_a_signal_that_comes_while_threads_are_counted_is_told_like_any_other(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait first asks how many threads there are, in Python: a handler may run in there, with half a block stored."""
    with sigint_raises(kind), room_for_10() as (table, writer):
        monkeypatch.setattr(ending, "num_threads", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(kind) as caught:
            writer.extend(**block(12, first=20), timeout_s=BOUND_S)
        assert caught.value.stored == 10 and len(table) == 30  # type: ignore[attr-defined]
        table.draw(15)
        with pytest.raises(kind) as caught:
            table.draw(15, timeout_s=BOUND_S)
        assert not hasattr(caught.value, "stored")
        monkeypatch.undo()
        assert table.draw(5, timeout_s=0.0).num_items == 5  # the other draw holds nothing of it back
        writer.extend(**block(2, first=30), timeout_s=0.0)  # what the call had been admitted with is given back
        table.check()


def test_an_error_thrown_into_a_thread_that_counts_threads_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on the main thread alone: PyThreadState_SetAsyncExc reaches any one that runs Python, here in that count."""

    def count() -> int:
        raise HeardError

    def block_of_12() -> None:
        try:
            writer.extend(**block(12, first=20), timeout_s=BOUND_S)
        except BaseException as error:
            raised.append(error)

    raised: list[Any] = []
    with room_for_10() as (table, writer):
        monkeypatch.setattr(ending, "num_threads", count)
        other = threading.Thread(target=block_of_12)
        other.start()
        other.join()
        assert [type(error) for error in raised] == [HeardError] and raised[0].stored == 10
        monkeypatch.undo()
        table.draw(15)
        writer.extend(**block(2, first=30), timeout_s=0.0)
        table.check()


def test_a_step_of_many_lanes_goes_in_lane_by_lane() -> None:
    """Window 20: a step of 12 lanes does not fit together with a draw of 15. The first lanes of the step are stored."""
    with relive.Table(SPEC, 200, paced(1.0, 10, 10.0), max_lanes=12) as table, table.writer(12) as writer:
        step = {"state": np.zeros(12, np.float32), "number": np.arange(12), "next_state": np.zeros(12, np.float32)}
        writer.append(**step)
        table.draw(12)
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(15, timeout_s=0.0)
        writer.append(**step)
        with pytest.raises(errors.DeadlineExceeded) as caught:
            writer.append(**step, timeout_s=0.0)
        stored, keys = caught.value.stored, caught.value.keys
        assert stored == 8 and keys is not None and len(table) == 32
        table.draw(15)
        rest = np.arange(stored, 12)
        more = writer.append(**{name: array[stored:] for name, array in step.items()}, lanes=rest, timeout_s=0.0)
        batch = table.gather(np.concatenate([keys, more]), columns=["number", "lane"])
        assert batch["number"].tolist() == list(range(12)) and len(set(batch["lane"].tolist())) == 12


def test_a_draw_that_no_row_fits_beside_is_refused() -> None:
    """Both would wait while hi - spi < d < lo + n. Where spi is whole, d is: then n + spi <= window + 1 is enough."""
    with relive.Table(SPEC, 100, paced(4.0, 10, 10.0)) as table:
        with pytest.raises(errors.RequestTooLarge) as caught:
            table.draw(18, timeout_s=0.0)
        assert caught.value.requested == 18 and caught.value.window == 20 and "has to share" in str(caught.value)
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(17, timeout_s=0.0)
    with relive.Table(SPEC, 100, paced(2.5, 10, 10.0)) as table:
        with pytest.raises(errors.RequestTooLarge):
            table.draw(18, timeout_s=0.0)
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(17, timeout_s=0.0)


def test_who_waits_for_an_index_without_mass_is_told_so() -> None:
    """No draw takes the limiter down while every priority is 0, so the writer goes on, up to its min_size."""
    index = relive.Index(sampler=relive.Prioritized(), limiter=relive.SamplesPerInsert(1.0, 10, 10.0))
    with relive.Table(SPEC, 100, {"paced": index}) as table, table.writer() as writer:
        keys = [writer.extend(**block(20))]
        for key in keys:
            table.update_priorities(key, np.zeros(len(key)))
        with pytest.raises(errors.DeadlineExceeded) as caught:
            table.sample(4, timeout_s=0.0)
        assert "mass" in str(caught.value.needs) and "20 live items" in str(caught.value.has)
        writer.extend(**block(10, first=20), timeout_s=0.0)
        with pytest.raises(errors.DeadlineExceeded):
            writer.extend(**block(1, first=30), timeout_s=0.0)
        assert table.sample(4)["number"].min() >= 20


@pytest.mark.parametrize("ratio", [2.0, 2.5])
def test_more_samples_of_an_item_than_its_uses_are_refused(ratio: float) -> None:
    """inserted x 2.5 - sampled grows by half a sample an item at least, until writers wait for ever."""
    if ratio > 2:
        with pytest.raises(errors.InvalidConfig) as caught:
            paced(ratio, 10, 10.0, max_times_sampled=2)
        assert caught.value.what == "samples_per_insert" and caught.value.got == ratio
        assert "max_times_sampled = 2" in str(caught.value) and "0.5" in str(caught.value)
        return
    with relive.Table(SPEC, 100, paced(ratio, 10, 20.0, max_times_sampled=2)) as table, table.writer() as writer:
        for first in range(0, 500, 5):  # equal: all of every item's uses are drawn, and both go on
            writer.extend(**block(5, first=first), timeout_s=0.0)
            if first >= 10:
                table.sample(10, timeout_s=0.0)


def test_who_is_alone_is_told_at_once_in_the_middle_of_a_block() -> None:
    with relive.Table(SPEC, 1000, paced(8.0, 100, 64.0)) as table, table.writer() as writer:
        writer.extend(**block(100))
        with pytest.raises(errors.WaitsForItself):
            while True:
                table.sample(100)
        with pytest.raises(errors.WaitsForItself) as caught:
            for first in range(100, 1000, 16):
                writer.extend(**block(16, first=first))
        assert caught.value.waited_s < 5.0


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("stack", [1, 4])
def test_the_largest_min_size_is_reached_and_a_larger_one_refused(n_step: int, stack: int) -> None:
    """One lane, one long episode, far beyond the capacity: the accepted min_size is there again after every step."""
    capacity = 200
    kept = (stack - 1) + (n_step - 1)
    items = relive.Transitions(n_step=n_step, stack={"state": stack})
    spec = relive.StepSpec({**SPEC.columns, "reward": relive.ArraySpec((), "float32")})
    with pytest.raises(errors.CapacityTooSmall) as caught:
        relive.Table(spec, capacity, relive.Index(items, limiter=relive.MinSize(capacity - kept + 1)))
    assert caught.value.needed == capacity + 1 and f"'state': {stack}}}" in caught.value.arithmetic
    with relive.Table(spec, capacity, relive.Index(items, limiter=relive.MinSize(capacity - kept))) as table:
        writer = table.writer()
        for t in range(4 * capacity):
            writer.append(state=t, number=t, reward=0.0, next_state=t + 1)
            if t >= capacity:
                assert len(table.draw(1, timeout_s=0.0).item_keys) == 1
        assert table.num_items() == capacity - kept


def test_stacks_of_other_indexes_cost_an_index_nothing() -> None:
    """Rows that the stacks of an index reach back over reduce the items of that index alone."""

    def indexes(min_size: int) -> dict[str, relive.Index]:
        stacked = relive.Transitions(stack={"state": 4})
        return {"plain": relive.Index(limiter=relive.MinSize(min_size)), "stacked": relive.Index(stacked)}

    with pytest.raises(errors.CapacityTooSmall, match="plain"):
        relive.Table(SPEC, 100, indexes(101))
    with relive.Table(SPEC, 100, indexes(100)) as table, table.writer() as writer:
        writer.extend(**block(500))
        assert (table.num_items(index="plain"), table.num_items(index="stacked")) == (100, 97)


def test_a_block_asks_for_the_items_that_it_can_begin_and_not_for_its_rows() -> None:
    """256 steps of which 7 begin a sequence: 28 samples' worth, where the window holds 40."""
    items = relive.Sequences(40, at_end="drop")
    index = relive.Index(items, limiter=relive.SamplesPerInsert(4.0, min_size=1, tolerance=20))
    spec = relive.StepSpec({"reward": relive.ArraySpec((), "float32")})
    with relive.Table(spec, 10_000, index) as table, table.writer() as writer:
        block = np.zeros(256, np.float32)
        assert len(writer.extend(reward=block, timeout_s=0.0)) == 256
        with pytest.raises(errors.DeadlineExceeded) as caught:
            writer.extend(reward=block, timeout_s=0.0)
        assert caught.value.has == (6 + 6) * 4.0, "six are published, six more could begin"
        assert len(writer.extend(reward=np.zeros(24, np.float32), timeout_s=0.0)) == 24, "no item begins in these"
        for _ in range(2):
            table.sample(20, timeout_s=0.0)
        assert len(writer.extend(reward=block, timeout_s=0.0)) == 256
