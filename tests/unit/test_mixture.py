"""Shares that are exact, and mixtures of items of every kind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes.shm import needs_shared_memory

import relive
from relive import errors
from relive.over import mixed_draws, mixed_source
from relive.over.shares import Shares
from relive.reading.batches import SLICE_S

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 10_000), min_size=1, max_size=8),
    st.lists(st.one_of(st.integers(1, 8), st.integers(1, 700)), min_size=1, max_size=40),
)
def test_no_source_is_ever_a_whole_item_off(weights: list[int], sizes: list[int]) -> None:
    shares = Shares({str(number): weight / sum(weights) for number, weight in enumerate(weights)})
    exact = [Fraction(weight, shares.period) for weight in shares.weights]
    assert sum(exact) == 1
    totals, drawn, at = [0] * len(weights), 0, shares.begun
    for size in sizes:
        parts, at = shares.parts(at, size)
        assert sum(parts) == size and min(parts) >= 0
        drawn += size
        totals = [total + part for total, part in zip(totals, parts, strict=True)]
        assert all(abs(total - drawn * share) < 1 for total, share in zip(totals, exact, strict=True))


def test_shares_are_what_is_written() -> None:
    shares = Shares({"a": 0.1, "b": 0.2, "c": 0.7})
    assert shares.weights == (1, 2, 7) and shares.period == 10
    assert shares.parts(shares.begun, 10**9)[0] == (10**8, 2 * 10**8, 7 * 10**8)
    thirds = Shares({"a": 1 / 3, "b": 2 / 3})
    assert thirds.weights == (1, 2)
    tiny = Shares({"a": 1e-9, "b": 1.0 - 1e-9})
    assert tiny.parts(tiny.begun, 256)[0] in ((0, 256), (1, 255))


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


def table_of(first: int, count: int, **index: Any) -> relive.Table:
    table = relive.Table(SPEC, 1_000, relive.Index(**index))
    with table.writer() as writer:
        writer.extend(number=np.arange(first, first + count))
    return table


@pytest.mark.parametrize("time_major", [False, True])
def test_sequences_and_episodes(time_major: bool) -> None:
    for items in (
        relive.Sequences(length=3, period=1, time_major=time_major),
        relive.Episodes(max_length=4, time_major=time_major),
        relive.Episodes(max_length=4, layout="ragged"),
    ):
        tables = {}
        for name, first in (("a", 0), ("b", 100)):
            tables[name] = relive.Table(SPEC, 200, relive.Index(items))
            with tables[name].writer() as writer:
                for length in (2, 3):
                    for k in range(length):
                        writer.append(number=first, terminated=k == length - 1)
                        first += 1
        with relive.Mixture({"a": 0.5, "b": 0.5}, tables) as mixture:
            batch = mixture.sample(12)
            assert batch.source is not None
            for i in range(12):
                one = batch.rows(slice(i, i + 1))
                values = np.asarray(one["number"])[np.asarray(one.mask)]
                assert len(values) and ((values >= 100) == (batch.source[i] == 1)).all()
            gathered = mixture.gather(batch.item_keys, source=batch.source)
            assert gathered.present.all() and (gathered["number"] == batch["number"]).all()
            gone = batch.item_keys[3]
            assert tables[mixture.names[batch.source[3]]].delete([gone]) == 1
            lacks = (batch.item_keys == gone) & (batch.source == batch.source[3])
            gathered = mixture.gather(batch.item_keys, source=batch.source)
            assert (gathered.present == ~lacks).all()
            for i in np.flatnonzero(~lacks):
                one, other = gathered.rows(slice(i, i + 1)), batch.rows(slice(i, i + 1))
                assert (np.asarray(one["number"]) == np.asarray(other["number"])).all()
            assert mixture.gather(batch.item_keys[:0], source=batch.source[:0])["number"].size == 0


def test_sources_of_other_columns_are_refused() -> None:
    plain = table_of(0, 4)
    other = relive.Table(relive.StepSpec({"number": relive.ArraySpec((2,), "int64")}), 100)
    with pytest.raises(errors.InvalidConfig, match="number"):
        relive.Mixture({"a": 0.5, "b": 0.5}, {"a": plain, "b": other})
    longer = relive.Table(SPEC, 100, {"x": relive.Index(relive.Sequences(3)), "y": relive.Index(relive.Sequences(4))})
    with pytest.raises(errors.InvalidConfig):
        relive.Mixture({"x": 0.5, "y": 0.5}, longer)


@pytest.mark.parametrize("columns", [1, 0.5, ..., [1], {"number": 1}, object()])
def test_columns_that_are_no_names_are_refused_as_by_a_table(columns: Any) -> None:
    table = table_of(0, 4)
    told = []
    with relive.Mixture({"a": 1.0}, {"a": table}) as mixture:
        for source in (table, mixture):
            try:
                told.append(sorted(source.sample(2, columns=columns)))
            except errors.InvalidConfig as error:
                told.append([str(error)])
    assert told[0] == told[1]


def test_it_waits_for_the_source_that_lacks_and_holds_nothing_meanwhile() -> None:
    queue, plain = table_of(0, 0, limiter=relive.Queue(10), max_times_sampled=1), table_of(0, 8, max_times_sampled=1)
    with relive.Mixture({"plain": 0.5, "queue": 0.5}, {"plain": plain, "queue": queue}) as mixture:
        done: list[Any] = []
        thread = threading.Thread(target=lambda: done.append(mixture.sample(8, timeout_s=20.0)))
        thread.start()
        time.sleep(0.2)
        assert plain.sample(4, timeout_s=0.0).num_items == 4, "nobody holds what was there"
        with queue.writer() as writer:
            writer.extend(number=np.arange(4))
        thread.join()
        assert np.bincount(done[0].source).tolist() == [4, 4]
    assert plain.num_items() == queue.num_items() == 0


def test_a_sample_that_waits_draws_the_items_of_one_that_does_not() -> None:
    """Both sources are indexes of one table, whose draws have numbers in the order of the sources."""
    indexes = {"plain": relive.Index(), "late": relive.Index(limiter=relive.MinSize(100))}
    drawn = list[relive.Batch]()
    for num_before in (100, 99):
        with relive.Table(SPEC, 1_000, indexes) as table, table.writer() as writer:
            writer.extend(number=np.arange(num_before), truncated=True)
            with relive.Mixture({"plain": 0.5, "late": 0.5}, table, timeout_s=60.0) as mixture:
                thread = threading.Thread(target=lambda mixture=mixture: drawn.append(mixture.sample(8)))
                thread.start()
                if num_before < 100:
                    until(lambda table=table: table.stats().indexes["late"].waiting_samplers == 1)
                    writer.append(number=num_before, truncated=True)
                thread.join()
                assert table.next_draw == 2
    assert drawn[0]["number"].tolist() == drawn[1]["number"].tolist()


def test_threads_take_turns() -> None:
    mixture = relive.Mixture({"a": 0.7, "b": 0.3}, {"a": table_of(0, 50), "b": table_of(100, 50)})
    counts: list[np.ndarray] = []

    def draw() -> None:
        for _ in range(50):
            counts.append(np.bincount(mixture.sample(7).source, minlength=2))  # type: ignore[arg-type]

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts).tolist() == [980, 420]  # type: ignore[attr-defined]


def _learn(names: list[str], counts: Any, number: int, is_stubborn: bool) -> None:
    tables = [relive.attach(name) for name in names]
    mixture = relive.Mixture({"a": 0.75, "b": 0.25}, {"a": tables[0], "b": tables[1]})
    for size in np.random.default_rng(number).integers(1, 20, 10_000 if is_stubborn else 300).tolist():
        source = mixture.sample(size, timeout_s=30.0).source
        counts[2 * number] += int((source == 0).sum())  # type: ignore[union-attr]
        counts[2 * number + 1] += int((source == 1).sum())  # type: ignore[union-attr]


@needs_shared_memory
def test_four_processes_that_draw_and_die(shm_name: Any) -> None:
    """Survivors' shares stay exact, tables sound, and what is used up was used as often as it may be."""
    names = [shm_name(), shm_name()]
    many = relive.Index(max_times_sampled=60_000)
    tables = [relive.Table(SPEC, 1_000, many, storage=relive.SharedMemory(name)) for name in names]
    for table in tables:
        with table.writer() as writer:
            writer.extend(number=np.arange(500))
    context = multiprocessing.get_context("spawn")
    counts = context.Array("q", 8, lock=False)  # each writes its own; a lock could die with its holder
    workers = [context.Process(target=_learn, args=(names, counts, k, k < 2)) for k in range(4)]
    for worker in workers:
        worker.start()
    for k in (0, 1):
        deadline = time.monotonic() + 60.0
        while counts[2 * k] < 200 * (k + 1):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(workers[k].pid or 0, signal.SIGKILL)
    for worker in workers:
        worker.join(60.0)
    assert [worker.exitcode for worker in workers[2:]] == [0, 0]
    for k in (2, 3):
        total = counts[2 * k] + counts[2 * k + 1]
        assert abs(counts[2 * k] - 0.75 * total) < 1.0
    for table in tables:
        table.sample(1)
        table.check()
        table.close()


def test_a_lack_of_memory_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts are drawn, and there is no room for the batch."""

    def refuse(*arguments: Any) -> Any:
        raise MemoryError

    with table_of(0, 40, max_times_sampled=1) as table, relive.Mixture({"default": 1.0}, table) as mixture:
        expected = mixture.sample(8)["number"].tolist()
        position = mixture._draws.at
        monkeypatch.setattr("relive.over.mixed_draws.join", refuse)
        with pytest.raises(MemoryError):
            mixture.sample(8)
        stats = table.stats().indexes["default"]
        assert (stats.sampled, stats.in_flight, stats.num_items) == (8, 0, 32) and mixture._draws.at == position
        monkeypatch.undo()
        assert len({*expected, *mixture.sample(32)["number"].tolist()}) == 40


@pytest.mark.parametrize("names", [("b", "a"), ("a", "c"), ("a",)])
def test_a_draw_of_other_sources_is_refused(names: tuple[str, ...]) -> None:
    """A source is a position in the names: those of another mixture, or in another order, are other tables."""
    with table_of(0, 40) as first, table_of(100, 40) as second:
        tables = {"a": first, "b": second, "c": second}
        draw = relive.Mixture({"a": 0.5, "b": 0.5}, {"a": first, "b": second}).draw(6)
        other = relive.Mixture({name: 1 / len(names) for name in names}, {name: tables[name] for name in names})
        with pytest.raises(errors.InvalidConfig, match="source_names"):
            other.gather(draw)
        assert other.gather(draw.item_keys, source=np.zeros(6, np.int64)).num_items == 6


@needs_shared_memory
def test_a_child_draws_whatever_a_thread_of_its_parent_did(shm_name: Any) -> None:
    """The lock of the generator that places items is copied as it is."""
    with (
        relive.Table(SPEC, 100, storage=relive.SharedMemory(shm_name())) as table,
        relive.Mixture({"default": 1.0}, table) as mixture,
        table.writer() as writer,
    ):
        writer.extend(number=np.arange(40))
        with mixture._draws._rng.bit_generator.lock:
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                os._exit(0 if mixture.sample(8, timeout_s=5.0).num_items == 8 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_queue_keeps_the_places_of_parts_that_go_back() -> None:
    """The other source has nothing, so each part is drawn and given back while a writer waits for room."""
    full = relive.Index(sampler=relive.Fifo(), limiter=relive.Queue(8), max_times_sampled=1, max_items=8)
    with relive.Table(SPEC, 1_000, full) as table, table_of(0, 0) as empty, table.writer() as writer:
        stopped = threading.Event()

        def write() -> None:
            number = 0
            while not stopped.is_set():
                try:
                    writer.append(number=number, timeout_s=0.05)
                    number += 1
                except errors.DeadlineExceeded:
                    continue

        thread = threading.Thread(target=write)
        thread.start()
        with relive.Mixture({"a": 0.5, "b": 0.5}, {"a": table, "b": empty}) as mixture:
            rounds = 0
            while rounds < 300 or table.stats().indexes["default"].inserted < 8:  # the writer has filled it
                with pytest.raises(errors.DeadlineExceeded):
                    mixture.sample(14, timeout_s=0.0)
                rounds += 1
        stopped.set()
        thread.join()
        assert table.stats().indexes["default"].inserted == 8
        assert table.sample(8)["number"].tolist() == list(range(8))


def epoch_of(count: int) -> relive.Table:
    return table_of(0, count, sampler=relive.Shuffle())


@pytest.mark.parametrize("order", [("epoch", "queue"), ("queue", "epoch")])
@pytest.mark.parametrize("call", ["sample", "batches"])
def test_an_epoch_loses_no_item_while_another_source_lacks_its_part(order: tuple[str, str], call: str) -> None:
    queue = table_of(0, 0, sampler=relive.Fifo(), limiter=relive.Queue(4), max_times_sampled=1)
    tables = {"epoch": epoch_of(40), "queue": queue}

    def write() -> None:
        with queue.writer() as writer:
            for number in range(40):
                writer.append(number=number, timeout_s=60.0)

    thread = threading.Thread(target=write)
    with relive.Mixture({name: 0.5 for name in order}, tables, timeout_s=60.0) as mixture:
        for _ in range(20):  # each draws the part of the epoch, or might
            with pytest.raises(errors.DeadlineExceeded, match="'queue'"):
                mixture.sample(8, timeout_s=0.0)
        with mixture.batches(8, prefetch=2) as batches:
            if call == "batches":
                until(lambda: batches._bringer.starved is not None)
            else:
                batches.close()
            thread.start()
            drawn = [next(batches) if call == "batches" else mixture.sample(8) for _ in range(10)]
        thread.join()
    seen = [number for batch in drawn for number in batch["number"][batch.source == order.index("epoch")].tolist()]
    assert sorted(seen) == list(range(40))


def test_next_waits_for_a_draw_of_a_whole_slice_however_short_its_deadline_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread of batches() waits so long for a source that lacks its part, and then lets next() pass."""
    waits: list[float] = []
    as_it_is = mixed_source.held

    def noted(turn: Any, purpose: str, timeout_s: float) -> Any:
        if threading.current_thread() is threading.main_thread():
            waits.append(timeout_s)
        return as_it_is(turn, purpose, timeout_s)

    with relive.Mixture({"a": 0.5, "b": 0.5}, {"a": table_of(0, 8), "b": table_of(0, 8)}) as mixture:
        with mixture.batches(4, prefetch=1, timeout_s=0.0) as batches:
            until(lambda: len(batches._bringer.ready) == 1)
            monkeypatch.setattr(mixed_source, "held", noted)
            next(batches)
            monkeypatch.undo()
    assert min(waits) >= 2 * SLICE_S


def test_a_batch_ahead_that_is_handed_out_ends_no_sample_of_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample has its parts in flight, and then fails: the shares go back."""
    as_it_is = mixed_draws.MixedDraws.batch
    with relive.Mixture({"a": 0.7, "b": 0.3}, {"a": table_of(0, 8), "b": table_of(0, 8)}) as mixture:
        with mixture.batches(4, prefetch=1) as batches:

            def batch(*arguments: Any) -> relive.Batch:
                if threading.current_thread() is not threading.main_thread():
                    return as_it_is(*arguments)
                next(batches)
                raise MemoryError

            until(lambda: len(batches._bringer.ready) == 1)
            monkeypatch.setattr(mixed_draws.MixedDraws, "batch", batch)
            with pytest.raises(MemoryError):
                mixture.sample(4)
        assert mixture._draws._num_batches == 1
        assert mixture._draws.at == mixture._draws.shares.parts(mixture._draws.shares.begun, 4)[1]
