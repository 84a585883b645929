"""The thread that makes half of a copy: what it is handed, what it raises, who gave up on it meanwhile."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from fleet.fake_nixl import Pair
from relive import errors
from relive.fleet.onesided import nixl_agent
from relive.fleet.onesided.copy_thread import SecondHand
from relive.fleet.onesided.nixl import _HALVED_BYTES
from relive.fleet.onesided.rows import OneSidedReader

VALUES = 25_000  # 100 kB a row: 20 of them are halved

# ---- the thread ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hand() -> Iterator[SecondHand]:
    made = SecondHand("relive-test-hand")
    yield made
    made.end()


def test_does_what_it_is_handed_in_order_in_a_thread_of_its_own(hand: SecondHand) -> None:
    done: list[Any] = []
    jobs = [hand.hand(lambda at=at: done.append((at, threading.current_thread().name))) for at in range(50)]
    assert all(job.wait(10.0) for job in reversed(jobs)) and all(job.is_over for job in jobs)
    assert done == [(at, "relive-test-hand") for at in range(50)]
    assert jobs[0].wait(0.0), "once more"


def test_what_a_job_raises_is_whose_who_waits_and_the_next_is_done(hand: SecondHand) -> None:
    def fails() -> None:
        raise KeyError("of the job")

    first, second = hand.hand(fails), hand.hand(lambda: None)
    assert second.wait(10.0) and first.is_over
    for _ in range(2):
        with pytest.raises(KeyError, match="of the job"):
            first.wait(0.0)


def test_who_does_not_wait_any_longer_is_told_so(hand: SecondHand) -> None:
    go_on = threading.Event()
    slow = hand.hand(lambda: go_on.wait(10.0))
    assert not slow.wait(0.01) and not slow.is_over
    go_on.set()
    assert slow.wait(10.0)


@pytest.mark.parametrize("is_queued", [False, True])
def test_what_is_noted_is_done_once_where_a_signal_cuts_the_handing_over_short(
    hand: SecondHand, is_queued: bool
) -> None:
    jobs, done, noted = hand._jobs, [], []

    class Interrupted:
        def put(self, job: Any) -> None:
            hand._jobs = jobs
            if is_queued:
                jobs.put(job)
            raise KeyboardInterrupt

    hand._jobs = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        hand.hand(lambda: done.append(1), noted)
    assert noted[0].wait(10.0) and hand.hand(lambda: None).wait(10.0) and done == [1]


def test_a_signal_in_a_wait_leaves_a_job_that_is_over(hand: SecondHand) -> None:
    """Ctrl-C between taking the lock and giving it back: who keeps memory for the job must hear of its end."""
    go_on = threading.Event()
    job = hand.hand(lambda: go_on.wait(10.0))
    lock = job._is_running

    class Interrupted:
        def acquire(self, timeout: float) -> bool:
            go_on.set()
            assert lock.acquire(timeout=timeout)
            job._is_running = lock
            raise KeyboardInterrupt

        def release(self) -> None:
            lock.release()

    job._is_running = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        job.wait(10.0)
    assert job.is_over and job.wait(0.0)


def test_ends_when_it_has_done_what_it_was_handed() -> None:
    hand = SecondHand("relive-test-ending")
    done: list[int] = []
    for at in range(20):
        hand.hand(lambda at=at: done.append(at))
    hand.end()
    assert done == list(range(20))
    assert not any(thread.name == "relive-test-ending" for thread in threading.enumerate())


# ---- halves of a read ----------------------------------------------------------------------------------------------


@pytest.fixture
def large(shm_name: Any) -> Iterator[Pair]:
    made = Pair(shm_name(), VALUES)
    yield made
    made.close()


def reads(pair: Pair, timeout_s: float = 10.0) -> Any:
    got = pair.reader.gather(0, ["large"], pair.keys[::3], timeout_s)
    assert got.present.all() and (got.arrays[0] == np.arange(0, 60, 3)[:, None]).all()
    return got


def rows_by_thread(pair: Pair) -> dict[str, int]:
    """Rows that each thread asked for, of the requests since the last look that are of more than one of them."""
    taken: dict[str, int] = {}
    for number, thread in pair.fake.made_by.items():
        if 4 < pair.fake.num_cells[number] <= 20:  # the directories' are of all pages at once
            taken[thread] = taken.get(thread, 0) + pair.fake.num_cells[number]
    pair.fake.made_by.clear()
    return taken


def reads_anew(pair: Pair) -> None:
    """By another reader, a second after the first one failed."""
    nixl_agent._ended.clear()
    pair.reader, pair.memory = pair.open()
    reads(pair)


def given_up(pair: Pair) -> OneSidedReader:
    """The reader that is closed while bytes may come: all of its memory is kept for them."""
    before, reader = dict(pair.fake.registered), pair.reader
    pair.memory.close(reader.close)
    gc.collect()
    assert pair.agent.sweep() == 1 and pair.fake.registered == before and reader.mirror.base
    return reader


def is_freed(pair: Pair, reader: OneSidedReader) -> None:
    """When the second hand is done, all of it is."""
    pair.agent.end_second_hand()
    assert pair.agent.sweep() == 0 and not pair.fake.requests and not reader.mirror.base
    reads_anew(pair)


def others(pair: Pair) -> Any:
    """Whether a request is the second hand's."""
    return lambda request: pair.fake.made_by.get(request) == "relive-nixl"


@needs_shared_memory
def test_where_a_post_copies_the_second_hand_has_half_of_the_next_read(large: Pair) -> None:
    own = threading.current_thread().name
    reads(large)
    assert rows_by_thread(large) == {own: 20}, "who copies is known when a large read has come back"
    for _ in range(3):
        reads(large)
        taken = rows_by_thread(large)
        assert sum(taken.values()) == 20 and 10 <= taken[own] <= 12, "the caller begins before the other one does"
    assert not large.fake.requests
    few = large.reader.gather(0, ["large"], large.keys[: _HALVED_BYTES // 4 // VALUES], 10.0)
    assert few.present.all() and set(rows_by_thread(large)) == {own}, "small reads are not worth it"


@needs_shared_memory
def test_each_hand_posts_its_own_request(large: Pair) -> None:
    """Whichever of both was noted last."""
    reads(large)
    theirs, own = threading.Event(), threading.Event()

    class Meeting(list[int]):
        def append(self, request: int) -> None:
            super().append(request)
            if large.fake.made_by[request] == "relive-nixl":
                theirs.set()
                assert own.wait(10.0)
            elif theirs.is_set():
                own.set()

    large.memory._pending = Meeting()
    large.fake.makes = lambda num_cells: theirs.wait(10.0) if 10 <= num_cells <= 12 else None
    reads(large)
    assert own.is_set() and not large.fake.requests


@needs_shared_memory
def test_where_posts_do_not_copy_reads_are_whole(large: Pair) -> None:
    reads(large)
    looked_at: set[int] = set()

    def is_under_way(request: int) -> bool:  # when it is posted; it is here when it is looked at
        is_first = request not in looked_at
        looked_at.add(request)
        return is_first

    large.fake.hangs = is_under_way
    reads(large)
    rows_by_thread(large)
    for _ in range(2):
        reads(large)
        assert set(rows_by_thread(large)) == {threading.current_thread().name}


@needs_shared_memory
def test_a_half_that_does_not_come_is_quarantined_with_its_memory(large: Pair) -> None:
    reads(large)
    large.fake.hangs = others(large)
    with pytest.raises(errors.DeadlineExceeded):
        reads(large, 0.05)
    assert large.reader.is_spoiled and large.memory.num_pending
    reader = given_up(large)
    large.fake.hangs = lambda request: False
    assert large.agent.sweep() == 0 and not reader.mirror.base
    reads_anew(large)


@needs_shared_memory
def test_a_half_that_is_not_even_posted_is_waited_for_before_memory_is_freed(large: Pair) -> None:
    """The caller's deadline comes while the second hand is about to post: bytes may come after it."""
    reads(large)
    go_on, is_there = threading.Event(), threading.Event()

    def waits(request: int) -> bool:
        if large.fake.made_by.get(request) == "relive-nixl" and not go_on.is_set():
            is_there.set()
            go_on.wait(10.0)
        elif 10 <= large.fake.num_cells[request] <= 12 and not go_on.is_set():  # the caller's own half
            is_there.wait(10.0)
        return False

    large.fake.hangs = waits
    with pytest.raises(errors.DeadlineExceeded):
        reads(large, 0.05)
    assert is_there.is_set()
    reader = given_up(large)
    go_on.set()
    is_freed(large, reader)


@needs_shared_memory
def test_a_half_that_fails_fails_the_read_and_leaves_nothing(large: Pair) -> None:
    reads(large)
    large.fake.fails = others(large)
    with pytest.raises(errors.ServiceUnavailable, match="NIXL_ERR_REMOTE_DISCONNECT"):
        reads(large)
    large.fake.fails = lambda request: False
    large.memory.close(large.reader.close)
    assert large.agent.sweep() == 0 and not large.fake.requests and not large.fake.peers
    reads_anew(large)


@needs_shared_memory
def test_the_other_half_is_not_lost_where_the_callers_own_is_cut_short(large: Pair) -> None:
    """Ctrl-C while the caller posts: the second hand's bytes find their memory."""
    reads(large)
    go_on = threading.Event()

    def hangs(request: int) -> bool:
        if large.fake.made_by.get(request) == "relive-nixl":
            go_on.wait(10.0)
        elif 10 <= large.fake.num_cells[request] <= 12 and not go_on.is_set():  # its own half
            raise KeyboardInterrupt
        return False

    large.fake.hangs = hangs
    with pytest.raises(KeyboardInterrupt):
        reads(large)
    reader = given_up(large)
    go_on.set()
    is_freed(large, reader)


@needs_shared_memory
def test_a_half_that_nobody_has_begun_is_waited_for_too(large: Pair) -> None:
    """Ctrl-C before the caller has anything under way, while the second hand is still at another reader's half."""
    reads(large)
    go_on = threading.Event()

    def interrupts(num_cells: int) -> None:
        if 10 <= num_cells <= 12:
            raise KeyboardInterrupt

    reads(large)  # the second hand is there
    assert large.agent._second_hand is not None
    large.agent._second_hand.hand(lambda: go_on.wait(10.0))
    large.fake.makes = interrupts
    with pytest.raises(KeyboardInterrupt):
        reads(large)
    assert large.memory.num_pending == 0
    large.fake.makes = lambda num_cells: None
    reader = given_up(large)
    go_on.set()
    is_freed(large, reader)
