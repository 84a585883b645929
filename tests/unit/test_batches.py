"""Batches that are gathered ahead: order, deadlines, errors of the thread, giving back."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.core.protocol import ReplayBatches
from relive.reading.columns import Columns
from relive.reading.holds import Taken

SPEC = relive.StepSpec(
    {"observation": relive.ArraySpec((2,), "float32", kind="state"), "action": relive.ArraySpec((), "int64")}
)


def filled_table(num_steps: int = 100, limiter: Any = None, **options: Any) -> relive.Table:
    table = relive.Table(SPEC, 1000, relive.Index(limiter=limiter or relive.MinSize()), **options)
    write(table, num_steps)
    return table


def write(table: relive.Table, num_steps: int) -> None:
    with table.writer() as writer:
        for t in range(num_steps):
            writer.append(observation=[t, t], action=t, next_observation=[t + 1, t + 1])


def prefetchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "relive-prefetch"]


def test_batches_come_as_sample_gives_them() -> None:
    with filled_table(seed=3) as table, filled_table(seed=3) as twin, table.batches(16) as batches:
        assert isinstance(batches, ReplayBatches)
        for _ in range(20):
            batch, expected = next(batches), twin.sample(16)
            np.testing.assert_array_equal(batch.item_keys, expected.item_keys)
            np.testing.assert_array_equal(batch["observation"], expected["observation"])
            np.testing.assert_array_equal(batch.probabilities, expected.probabilities)


def test_columns_and_index() -> None:
    indexes = {"a": relive.Index(), "b": relive.Index(relive.Transitions(stack={"observation": 3}))}
    with relive.Table(SPEC, 1000, indexes) as table:
        write(table, 50)
        with table.batches(4, columns=["observation", "lane"], index="b") as batches:
            batch = next(batches)
    assert list(batch) == ["observation", "lane"] and batch["observation"].shape == (4, 3, 2)


def test_only_what_was_handed_out_counts() -> None:
    with filled_table(80, relive.SamplesPerInsert(1.0, 50, tolerance=40.0)) as table:
        for _ in range(2):
            sampled = table.stats().indexes["default"].sampled
            with table.batches(4, prefetch=3) as batches:
                for _ in range(2):
                    next(batches)
            after = table.stats().indexes["default"]
            assert (after.sampled, after.in_flight) == (sampled + 8, 0)


def test_no_more_than_prefetch_are_in_flight() -> None:
    with filled_table() as table, table.batches(8, prefetch=2) as batches:
        next(batches)
        for _ in range(200):
            assert table.stats().indexes["default"].in_flight <= 3 * 8  # two that wait, one in the making
        deadline = time.monotonic() + 10
        while len(batches._bringer.ready) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert table.stats().indexes["default"].in_flight == 2 * 8


def test_deadlines() -> None:
    with relive.Table(SPEC, 100) as table:
        with table.batches(4, timeout_s=0.05) as batches:
            for _ in range(2):
                with pytest.raises(errors.DeadlineExceeded) as caught:
                    next(batches)
                assert caught.value.waited_s >= 0.05 and "has 0" in str(caught.value)
                assert (caught.value.needs, caught.value.has) == (4, 0)  # numbers, which programs may compare
            write(table, 10)
            assert _eventually(batches).num_items == 4
        with table.batches(4, timeout_s=0) as batches:
            assert _eventually(batches).num_items == 4
        for bad in (-1.0, float("nan")):
            with pytest.raises(errors.InvalidConfig):
                table.batches(4, timeout_s=bad)


def test_a_deadline_says_what_the_limiter_waits_for() -> None:
    with filled_table(20, relive.SamplesPerInsert(1.0, 10, tolerance=10.0)) as table:
        with table.batches(15, timeout_s=0.6) as batches:
            next(batches)
            with pytest.raises(errors.DeadlineExceeded, match="sampled"):
                next(batches)


def _eventually(batches: relive.Batches) -> relive.Batch:
    deadline = time.monotonic() + 10
    while True:
        try:
            return next(batches)
        except errors.DeadlineExceeded:
            if time.monotonic() > deadline:
                raise


def test_what_cannot_ever_come_is_refused_at_once() -> None:
    with filled_table(10, relive.SamplesPerInsert(1.0, 10, tolerance=10.0)) as table:
        with pytest.raises(errors.RequestTooLarge, match=r"window \[0, 20\]"):
            table.batches(21)
        for bad in (0, -1, 1.5):
            with pytest.raises(errors.InvalidConfig):
                table.batches(bad)  # type: ignore[arg-type]
            with pytest.raises(errors.InvalidConfig):
                table.batches(4, prefetch=bad)  # type: ignore[arg-type]
        with pytest.raises(errors.UnknownColumn):
            table.batches(4, columns=["nobody"])


def test_the_with_block_is_needed_and_used_once() -> None:
    with filled_table() as table:
        batches = table.batches(4)
        with pytest.raises(errors.InvalidConfig):
            next(batches)
        with batches:
            next(batches)
            with pytest.raises(errors.InvalidConfig), batches:
                pass
        assert list(batches) == [], "it ends after close"
        with pytest.raises(errors.InvalidConfig), batches:
            pass
        batches.close()
        assert prefetchers() == []


def test_a_closed_table_surfaces() -> None:
    table = filled_table()
    with table.batches(4) as batches:
        next(batches)
        table.close()
        for _ in range(2):
            with pytest.raises(errors.TableClosed):
                next(batches)
    assert prefetchers() == []


def test_an_error_of_the_thread_surfaces_in_the_consumer_and_loses_no_credit() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    with filled_table() as table:
        with table.batches(4, device="no such device") as batches:
            for _ in range(2):
                with pytest.raises(errors.InvalidConfig):
                    next(batches)
        assert table.stats().indexes["default"].in_flight == 0


def test_tensors() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with filled_table() as table, table.batches(4, device="cpu") as batches:
        batch = next(batches)
        assert torch.is_tensor(batch["observation"]) and batch.item_keys.dtype == np.int64


def test_memory_is_used_again_but_never_under_a_living_array() -> None:
    with filled_table() as table, table.batches(8, prefetch=2) as batches:
        kept, copies = [], []
        for number, batch in zip(range(60), batches, strict=False):
            if number % 3 == 0:
                kept.append(batch["action"][1:5])
                copies.append(kept[-1].copy())
            del batch
        gc.collect()
        for view, copy in zip(kept, copies, strict=True):
            np.testing.assert_array_equal(view, copy)


def test_many_consumers_share_one_iterator() -> None:
    with filled_table() as table:
        counts: list[int] = []
        with table.batches(4) as batches:

            def take() -> None:
                counts.append(sum(next(batches).num_items for _ in range(50)))

            threads = [threading.Thread(target=take) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert counts == [200] * 4
        assert table.stats().indexes["default"].sampled == 800


def test_an_interpreter_that_ends_within_the_block_ends_well() -> None:
    program = (
        "import relive; table = relive.Table(relive.StepSpec({'a': relive.ArraySpec((), 'int64')}), 100);"
        "[table.writer().append(a=1) for _ in range(3)]; batches = table.batches(2).__enter__(); next(batches)"
    )
    for more in ("", "; table.clear()"):
        done = subprocess.run([sys.executable, "-c", program + more], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_leaves_its_parents_batches_alone() -> None:
    with filled_table() as table, table.batches(4) as batches:
        next(batches)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                next(batches)
            except errors.ForkedHandle:
                batches.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert next(batches).num_items == 4


# ---- any source will do --------------------------------------------------------------------------------------------


class Counted:
    """A source of empty batches that writes down what becomes of them; errors come as they lie in the list."""

    def __init__(self, *errors_first: BaseException) -> None:
        self.errors = list(errors_first)
        self.taken = self.committed = self.returned = self.closed = 0
        self.late: list[bool] = []
        self.most_waiting = 0

    def ask(self, num_batches: int) -> None:
        """Begins nothing."""

    def take(self) -> Taken | None:
        if self.errors:
            raise self.errors.pop(0)
        self.taken += 1
        self.most_waiting = max(self.most_waiting, self.taken - self.committed)
        return Taken(relive.Batch(Columns((), SPEC), [], np.empty(0, np.int64), None, 0), HoldOfCounted(self))

    def cancel(self) -> None: ...

    def close(self) -> None:
        self.closed += 1


class HoldOfCounted:
    refuses = False

    def __init__(self, source: Counted) -> None:
        self.source = source

    def commit(self, was_late: bool = False) -> None:
        if self.refuses:
            raise errors.TableClosed()
        self.source.late.append(was_late)
        self.source.committed += 1

    def give_back(self) -> None:
        self.source.returned += 1


def test_a_source_gives_as_many_as_may_wait_and_everything_is_accounted_for() -> None:
    source = Counted()
    with relive.Batches(source, 0, 3, None, 30.0) as batches:
        for _ in range(50):
            next(batches)
    assert source.most_waiting <= 3 and source.committed == 50 == len(source.late)
    assert source.taken == source.committed + source.returned and source.returned <= 3 and source.closed == 1


def test_close_waits_for_the_thread_although_a_handler_raised_in_an_earlier_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python takes a thread for ended if a handler raises as it is joined."""
    source, goes_on = Counted(), threading.Event()
    monkeypatch.setattr(source, "close", goes_on.wait)
    batches = relive.Batches(source, 0, 1, None, 30.0)
    with batches:
        next(batches)
        before = signal.signal(signal.SIGALRM, _raise)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(_Alarm):
                batches.close()
        finally:
            signal.signal(signal.SIGALRM, before)
        threading.Timer(0.2, goes_on.set).start()
        batches.close()
        assert goes_on.is_set() and source.taken == source.committed + source.returned


def test_a_forked_child_ends_although_its_parent_has_an_iterator() -> None:
    """The thread runs in the parent only: the end of the child's interpreter does not wait for it."""
    program = """
import os, sys, time, numpy as np, relive
table = relive.Table(relive.StepSpec({"a": relive.ArraySpec((2,), "float32")}), 100)
with table.writer() as writer:
    writer.extend(a=np.zeros((50, 2)))
with table.batches(4, prefetch=2) as batches:
    next(batches)
    child = os.fork()
    if child == 0:
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(next(batches)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "7 4\n", done.stderr


class _Alarm(Exception):
    pass


def _raise(*_: Any) -> None:
    raise _Alarm


def test_an_error_is_told_once_and_then_the_thread_goes_on() -> None:
    source = Counted(errors.ServiceUnavailable("there", 1.0, "gone"), ValueError("odd"), errors.TableClosed())
    with relive.Batches(source, 0, 2, None, 30.0) as batches:
        for error in (errors.ServiceUnavailable, ValueError, errors.TableClosed):
            with pytest.raises(error):
                next(batches)
        for _ in range(5):
            next(batches)
    assert source.committed == 5 and source.taken == 5 + source.returned


def test_a_batch_that_may_not_be_handed_out_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Counted()
    monkeypatch.setattr(HoldOfCounted, "refuses", True)
    with relive.Batches(source, 0, 1, None, 30.0) as batches:
        for _ in range(3):
            with pytest.raises(errors.TableClosed):
                next(batches)
        monkeypatch.setattr(HoldOfCounted, "refuses", False)
        next(batches)
    assert source.taken == 1 + source.returned
