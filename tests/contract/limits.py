"""Rows of the table of meanings that speak of limits and of waiting."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, is_empty, plain_spec, present, step, write_steps
from relive import errors


def bound(spi: float = 1.0, min_size: int = 10, tolerance: float = 10.0, **more: object) -> relive.Index:
    limiter = relive.SamplesPerInsert(spi, min_size=min_size, tolerance=tolerance)
    return relive.Index(limiter=limiter, **more)


@contextlib.contextmanager
def another_thread() -> Iterator[None]:
    """A second thread that could change the table. A thread that is alone would be told that it waits for itself."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class LimitsSuite(Suite):
    def test_limiter_units(self, make_table: MakeTable) -> None:
        """Items published against items sampled: lo = 0 and hi = 20 here. A draw counts, a gather never does."""
        table = make_table(plain_spec(), 100, bound(), max_lanes=4)
        with table.writer() as writer:
            write_steps(writer, 0, 9)
            assert is_empty(table), "under min_size"
            keys = write_steps(writer, 9, 1)
            table.draw(4)
            for _ in range(30):
                table.gather(keys)
            table.sample(6)
            with pytest.raises(errors.DeadlineExceeded):
                table.draw(1, timeout_s=0.0)
            write_steps(writer, 10, 20)
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(30, 31), timeout_s=0.0)
            assert len(table) == 30
            table.draw(1)
            writer.append(**step(30, 31), timeout_s=0.0)

    def test_items_that_went_unused_count_no_more(self, make_table: MakeTable) -> None:
        """Where uses are counted: no draw will ever balance them."""
        limiter = relive.SamplesPerInsert(1.0, 4, tolerance=4.0)
        table = make_table(plain_spec(), 100, relive.Index(limiter=limiter, max_times_sampled=1), max_lanes=4)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 8)
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(8, 9), timeout_s=0.0)
            assert table.delete(keys[:4]) == 4
            write_steps(writer, 8, 4)
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(12, 13), timeout_s=0.0)

    def test_queue(self, make_table: MakeTable) -> None:
        """At most 4 items live; each is drawn once; what is deleted makes room."""
        table = make_table(plain_spec(), 100, relive.Index(limiter=relive.Queue(4), max_times_sampled=1), max_lanes=4)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 4)
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(4, 5), timeout_s=0.0)
            drawn = set(table.draw(3).item_keys.tolist())
            assert len(drawn) == 3
            with pytest.raises(errors.DeadlineExceeded):
                table.draw(2, timeout_s=0.0)
            table.delete(np.array([key for key in keys if key not in drawn]))
            write_steps(writer, 4, 4)
            with pytest.raises(errors.RequestTooLarge):
                table.draw(5, timeout_s=0.0)
            assert len(set(table.sample(4).item_keys.tolist())) == 4

    def test_staleness_budget(self, make_table: MakeTable) -> None:
        """(1 + version + 1) x 3 items, less those that went without being drawn."""
        budget = relive.StalenessBudget(1, 3)
        table = make_table(plain_spec(), 100, relive.Index(limiter=budget, max_times_sampled=1), max_lanes=4)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 6)
            drawn = table.draw(3).item_keys
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(6, 7), timeout_s=0.0)
            table.set_policy_version(1)
            write_steps(writer, 6, 3)
            table.delete(np.array([key for key in keys if key not in drawn])[:2])
            write_steps(writer, 9, 2)
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(11, 12), timeout_s=0.0)
            assert table.num_items() == 6

    def test_changing_limiters_and_who_waits(self, make_table: MakeTable) -> None:
        """A draw that waits passes under another limiter; one that it could never pass under is refused."""
        table = make_table(plain_spec(), 100, relive.Index(limiter=relive.MinSize(50)), max_lanes=4)
        told = table.stats().indexes["default"]
        assert told.limiter == table.limiter() == relive.MinSize(50)
        assert (told.waiting_samplers, told.waiting_writers, told.stuck) == (0, 0, None)
        problems: list[BaseException] = []

        def draw() -> None:
            try:
                table.draw(30, timeout_s=20.0)
            except BaseException as problem:
                problems.append(problem)

        with table.writer() as writer:
            write_steps(writer, 0, 20)
            waits = threading.Thread(target=draw)
            waits.start()
            begun = time.monotonic()
            while table.stats().indexes["default"].samplers_wait_for != "min_size" and time.monotonic() < begun + 20.0:
                time.sleep(0.002)
            with pytest.raises(errors.RequestTooLarge):
                table.set_limiter(relive.SamplesPerInsert(1.0, 10, 10.0))
            with pytest.raises(errors.InvalidConfig):
                table.set_limiter(relive.Queue(10))
            assert table.limiter() == relive.MinSize(50)
            table.set_limiter(relive.SamplesPerInsert(2.0, 10, 100.0), index="default")
            waits.join(20.0)
            assert not waits.is_alive() and not problems
            assert table.limiter() == relive.SamplesPerInsert(2.0, 10, 100.0)
            assert table.indexes["default"].limiter == relive.MinSize(50), "what the table was made from"

    def test_max_items(self, make_table: MakeTable) -> None:
        """The item that was published first goes; its step stays, for the other index."""
        indexes = {
            "all": relive.Index(sampler=relive.Prioritized(1.0)),
            "few": relive.Index(relive.Transitions(n_step=2), relive.Prioritized(1.0), max_items=4),
        }
        table = make_table(plain_spec(), 100, indexes, max_lanes=4)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 20)
        assert table.num_items("all") == 20 and len(table) == 20
        assert table.num_items("few") == 4
        assert present(table, keys, "few") == [False] * 16 + [True] * 4
        assert table.update_priorities(keys, np.ones(20, np.float32), index="few") == 4
        assert table.update_priorities(keys, np.ones(20, np.float32), index="all") == 20
        drawn = table.sample(64, index="few")
        assert set(drawn.item_keys.tolist()) == set(keys[16:].tolist())
        assert table.delete(keys[:17]) == 17
        assert table.num_items("few") == 3
        with pytest.raises(errors.InvalidConfig, match="min_size"):
            relive.Index(limiter=relive.MinSize(5), max_items=4)

    def test_limiter_units_are_items_not_steps(self, make_table: MakeTable) -> None:
        """A step that completes no window is free."""
        table = make_table(
            plain_spec(),
            100,
            relive.Index(relive.Transitions(n_step=3), limiter=relive.MinSize(4)),
        )
        with table.writer() as writer:
            write_steps(writer, 0, 5)
            assert is_empty(table)
            write_steps(writer, 5, 1)
            assert not is_empty(table)

    def test_a_refused_append_wrote_nothing(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, bound(), max_lanes=4)
        with table.writer() as writer:
            write_steps(writer, 0, 20)
            for _ in range(3):
                with pytest.raises(errors.DeadlineExceeded):
                    writer.append(**step(20, 21), timeout_s=0.0)
            table.draw(2)
            keys = write_steps(writer, 20, 2)
        assert table.gather(keys, columns=["episode_step"])["episode_step"].tolist() == [20, 21]

    def test_an_extend_is_admitted_whole(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, bound(), max_lanes=4)
        rows = {"observation": np.zeros((16, 2)), "action": np.zeros(15, int), "reward": np.zeros(15)}
        with table.writer() as writer:
            writer.extend(**rows)
            with pytest.raises(errors.DeadlineExceeded):
                writer.extend(**rows, timeout_s=0.0)
            assert len(table) == 15

    def test_default_tolerance(self, make_table: MakeTable) -> None:
        """The larger of 0.1 x spi x min_size and 1024: lo = 10 - 1024 here."""
        table = make_table(
            plain_spec(), 100, relive.Index(limiter=relive.SamplesPerInsert(1.0, min_size=10)), max_lanes=4
        )
        with table.writer() as writer:
            write_steps(writer, 0, 10)
            table.draw(1024)
            with pytest.raises(errors.DeadlineExceeded):
                table.draw(1, timeout_s=0.0)

    def test_min_size_counts_live_items(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, relive.Index(limiter=relive.MinSize(10)))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 10)
            assert not is_empty(table)
            table.delete(keys[:1])
            assert is_empty(table)

    def test_requests_larger_than_the_window(self, make_table: MakeTable) -> None:
        """hi - lo is 20: no wait could ever make room for 21."""
        table = make_table(plain_spec(), 100, bound(), max_lanes=4)
        with table.writer() as writer:
            write_steps(writer, 0, 15)
            with pytest.raises(errors.RequestTooLarge) as caught:
                table.draw(21, timeout_s=0.0)
            assert caught.value.requested == 21 and caught.value.window == 20 and caught.value.arithmetic
            rows = {"observation": np.full((32, 2), 15.0), "action": np.zeros(31, int), "reward": np.zeros(31)}
            with pytest.raises(errors.RequestTooLarge):
                writer.extend(**rows, timeout_s=0.0)
            assert len(table) == 15

    def test_limits_under_which_no_side_can_move(self, make_table: MakeTable) -> None:
        for index in (relive.Index(limiter=relive.MinSize(101)), bound(min_size=200)):
            with pytest.raises(errors.ReliveError):
                make_table(plain_spec(), 100, index)
        with pytest.raises(errors.ReliveError):
            make_table(plain_spec(), 100, bound(tolerance=0.25))

    def test_deadlines(self, table: relive.Table) -> None:
        """0 tries once; a number waits as long; the error says for what."""
        with pytest.raises(errors.DeadlineExceeded) as caught:
            table.sample(4, timeout_s=0.0)
        assert isinstance(caught.value, TimeoutError)
        assert float(caught.value.has) == 0 and caught.value.needs and caught.value.waited_s < 1
        with another_thread():
            for call in (table.sample, table.draw):
                start = time.monotonic()
                with pytest.raises(errors.DeadlineExceeded) as caught:
                    call(4, timeout_s=0.2)
                assert 0.15 <= time.monotonic() - start < 5
                assert caught.value.waited_s >= 0.15

    def test_the_tables_own_deadline(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, timeout_s=0.1)
        with pytest.raises(errors.DeadlineExceeded):
            table.sample(4)
        with pytest.raises(errors.DeadlineExceeded):
            table.sample(4, timeout_s=None)

    def test_a_waiter_is_woken(self, table: relive.Table) -> None:
        got = []
        thread = threading.Thread(target=lambda: got.append(table.sample(4, timeout_s=30.0)["reward"].tolist()))
        thread.start()
        time.sleep(0.05)
        with table.writer() as writer:
            writer.append(**step(6, 7))
            thread.join(20)
        assert got == [[6.0] * 4]

    def test_a_waiting_writer_is_woken(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, bound(), max_lanes=4)
        got = []
        with table.writer() as writer:
            write_steps(writer, 0, 20)

            def draw_later() -> None:
                time.sleep(0.2)
                got.append(len(table.draw(5).item_keys))

            thread = threading.Thread(target=draw_later)
            thread.start()
            try:
                writer.append(**step(20, 21), timeout_s=30.0)
            except errors.WaitsForItself:
                pass  # if no other process is attached, the only writer may be told at once
            thread.join()
        assert got == [5]

    def test_a_negative_or_unordered_deadline_is_refused(self, table: relive.Table) -> None:
        for timeout_s in (-1.0, float("nan")):
            with pytest.raises((errors.ReliveError, ValueError)):
                table.sample(4, timeout_s=timeout_s)

    def test_inf_waits_for_what_comes(self, table: relive.Table) -> None:
        with table.writer() as writer:
            write_steps(writer, 0, 1)
            assert table.sample(2, timeout_s=float("inf")).item_keys.shape == (2,)
