"""Handles across fork and spawn, and limits that hold over processes."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import relive
from processes.shm import needs_shared_memory, shared_files
from processes.tools import checked_spec, checked_step, checked_table, children
from processes.workers import insert_until_told, use_inherited
from relive import errors

pytestmark = needs_shared_memory


def test_a_forked_child_attaches_its_handle_anew(shm_name: Any) -> None:
    """And its writers refuse: the lanes belong to the parent."""
    name = shm_name()
    with checked_table(name) as table, children() as start:
        with table.writer() as writer:
            keys = [int(writer.append(**checked_step(n))) for n in range(20)][:17]
            child = start("fork", use_inherited, table, writer, keys)
            said, refused, own = child.answer()
            child.join()
            assert said == ([True] * 17, True)
            assert refused == "ForkedHandle"
            assert table.gather(np.asarray(own)).present.tolist() == [True] * 4 + [False]
            more = [int(writer.append(**checked_step(n))) for n in range(20, 30)]
            assert table.gather(np.asarray(more[:7])).present.all(), "the parent's writer goes on"
        table.check()
    assert not shared_files(name)


def test_a_local_table_in_a_forked_child_says_so() -> None:
    with relive.Table(checked_spec(), 100) as table, table.writer() as writer, children() as start:
        keys = [int(writer.append(**checked_step(n))) for n in range(5)]
        child = start("fork", use_inherited, table, writer, keys[:4])
        said, refused, _ = child.answer()
        assert said == "ForkedHandle" and refused == "ForkedHandle"
        child.join()
        writer.append(**checked_step(5))
        assert table.gather(np.asarray(keys)).present.all()


def test_a_fork_while_threads_are_at_work(shm_name: Any) -> None:
    """If another thread is inside the table during a fork, the child does not inherit a lock without an owner."""
    name = shm_name()
    stop = threading.Event()
    with checked_table(name) as table, children() as start, table.writer() as writer:
        keys = [int(writer.append(**checked_step(n))) for n in range(20)][:17]

        def churn() -> None:
            while not stop.is_set():
                batch = table.sample(32, columns=["number"])
                table.update_priorities(batch.item_keys, np.ones(32))

        threads = [threading.Thread(target=churn) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(6):
                child = start("fork", use_inherited, table, writer, keys)
                said, refused, _ = child.answer()
                assert said[0] == [True] * 17 and refused == "ForkedHandle"
                child.join()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        table.check()


def test_the_limiter_holds_over_processes(shm_name: Any) -> None:
    """hi = 40: a writer elsewhere gets 40 items in, and as many more as are sampled here."""
    index = relive.Index(limiter=relive.SamplesPerInsert(1.0, min_size=20, tolerance=20.0))
    name = shm_name()
    with checked_table(name, index=index) as table, children() as start:
        child = start("spawn", insert_until_told, name)
        deadline = time.monotonic() + 60
        while len(table) < 40 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        assert len(table) == 40
        with pytest.raises(errors.RequestTooLarge):
            table.draw(41, timeout_s=0.0)
        table.draw(7, timeout_s=1.0)
        table.sample(8, timeout_s=1.0)
        deadline = time.monotonic() + 30
        while len(table) < 55 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)
        assert len(table) == 55
        child.tell("stop")
        count, longest = child.answer()
        assert count == 55 and longest < 5.0
        child.join()


def test_many_handles_in_one_process(shm_name: Any) -> None:
    name = shm_name()
    with checked_table(name) as table:
        with table.writer() as writer:
            for number in range(50):
                writer.append(**checked_step(number))
        handles = [relive.attach(name) for _ in range(60)]
        assert all(handle.sample(4)["number"].max() < 50 for handle in handles)
        for handle in handles:
            handle.close()
        assert len(table) == 49
    assert not shared_files(name)
