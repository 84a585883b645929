"""Forked children whose first calls come from several threads, that fork again, or close in between."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from typing import Any

import pytest

import relive
from processes.shm import needs_shared_memory, shared_files
from processes.tools import checked_step, checked_table, children

pytestmark = needs_shared_memory


def filled(table: relive.Table, num_steps: int = 50) -> None:
    with table.writer() as writer:
        for number in range(num_steps):
            writer.append(**checked_step(number))


def together(*calls: Any) -> list[str]:
    """Runs the calls in a thread each, all starting at once; says how each ended."""
    gate = threading.Barrier(len(calls))
    said = ["did not come back"] * len(calls)

    def run(position: int, call: Any) -> None:
        gate.wait()
        try:
            call()
        except relive.errors.ReliveError as error:
            said[position] = type(error).__name__
        else:
            said[position] = "ok"

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return said


def first_calls_with_batches(pipe: Any, table: relive.Table) -> None:
    with table.batches(16) as batches:
        table.stats()
        next(batches)
    table.close()
    pipe.send("done")


def first_calls_of_many(pipe: Any, table: relive.Table) -> None:
    calls = [table.stats, lambda: table.sample(8), lambda: len(table), table.check, lambda: table.draw(4)]
    said = together(*calls, *calls)
    mine = [child for child in range(table.stats().num_participants)]
    table.close()
    pipe.send((said, len(mine)))


def close_beside_first_calls(pipe: Any, table: relive.Table) -> None:
    calls = [lambda: table.sample(8), table.close, lambda: table.stats(), table.close]
    said = together(*calls)
    pipe.send((said, table.closed))


def first_calls_of_a_grandchild(pipe: Any, table: relive.Table) -> None:
    """Forks again while its own threads are just attaching."""
    gate = threading.Barrier(3)

    def attach() -> None:
        gate.wait()
        table.stats()

    threads = [threading.Thread(target=attach) for _ in range(2)]
    for thread in threads:
        thread.start()
    gate.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if together(table.stats, lambda: table.sample(8), table.check) == ["ok"] * 3 else 1)
    for thread in threads:
        thread.join()
    _, status = os.waitpid(child, 0)
    said = together(table.stats, lambda: table.sample(8))
    table.close()
    pipe.send((os.waitstatus_to_exitcode(status), said))


def first_calls_without_a_table(pipe: Any, table: relive.Table) -> None:
    pipe.recv()
    pipe.send((together(*[lambda: table.sample(4)] * 4), table.closed))
    table.close()
    pipe.send(table.closed)


@pytest.mark.parametrize("attempt", range(8))
def test_first_calls_of_a_child_come_from_two_threads(shm_name: Any, attempt: int) -> None:
    name = shm_name()
    with checked_table(name) as table, children() as start:
        filled(table)
        forked = [start("fork", first_calls_with_batches, table) for _ in range(4)]
        for child in forked:
            assert child.answer() == "done"
            child.join()
        table.check()
        assert table.stats().num_participants == 1
    assert not shared_files(name)


def test_first_calls_of_a_child_come_from_ten_threads(shm_name: Any) -> None:
    """One of them attaches, once."""
    name = shm_name()
    with checked_table(name) as table, children() as start:
        filled(table)
        for _ in range(5):
            child = start("fork", first_calls_of_many, table)
            assert child.answer() == (["ok"] * 10, 2)
            child.join()
        table.check()
    assert not shared_files(name)


def test_a_child_closes_while_its_other_threads_attach(shm_name: Any) -> None:
    name = shm_name()
    with checked_table(name) as table, children() as start:
        filled(table)
        for _ in range(10):
            child = start("fork", close_beside_first_calls, table)
            said, closed = child.answer()
            child.join()
            assert closed and said[1] == said[3] == "ok" and {said[0], said[2]} <= {"ok", "TableClosed"}
        assert table.stats().num_participants == 1
        table.check()
    assert not shared_files(name)


def test_a_fork_of_a_fork_that_is_just_attaching(shm_name: Any) -> None:
    name = shm_name()
    with checked_table(name) as table, children() as start:
        filled(table)
        for _ in range(10):
            child = start("fork", first_calls_of_a_grandchild, table)
            assert child.answer() == (0, ["ok", "ok"])
            child.join()
        relive.attach(name).close()  # what the grandchild left is swept
        assert table.stats().num_participants == 1
        table.check()
    assert not shared_files(name)


def test_a_table_that_is_gone_is_told_to_every_thread_of_a_child(shm_name: Any) -> None:
    name = shm_name()
    with children() as start:
        with checked_table(name) as table:
            filled(table)
            child = start("fork", first_calls_without_a_table, table)
        assert not shared_files(name)
        child.tell("go")
        assert child.answer() == (["NoSuchTable"] * 4, False)
        assert child.answer() is True
        child.join()


def test_forks_beside_threads_that_wait_for_what_never_comes(shm_name: Any) -> None:
    """Calls of the parent's threads do not count in the child: a close in the child does not wait."""
    name = shm_name()
    with checked_table(name, index=relive.Index(limiter=relive.MinSize(200))) as table, children() as start:
        filled(table)
        waiting = [threading.Thread(target=lambda: together(lambda: table.sample(8))) for _ in range(3)]
        for thread in waiting:
            thread.start()
        for _ in range(5):
            child = start("fork", close_beside_first_calls, table)
            said, closed = child.answer(4.0)
            child.join()
            assert closed and said[1] == said[3] == "ok"
        table.close()
        for thread in waiting:
            thread.join()
    assert not shared_files(name)


def test_a_child_that_a_handler_forks_within_a_wait_is_told_that_the_call_is_its_parents(shm_name: Any) -> None:
    """No KeyboardInterrupt, which no user has sent. The parent waits on, and the child's next call attaches."""
    name = shm_name()
    index = relive.Index(limiter=relive.MinSize(60))
    with checked_table(name, index=index) as table, relive.attach(name) as other:
        filled(table)
        parent, child = os.getpid(), 0

        def fork(number: int, frame: Any) -> None:
            nonlocal child
            child = os.fork()
            if child:
                threading.Timer(0.2, filled, (other, 20)).start()

        before = signal.signal(signal.SIGALRM, fork)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            batch = table.sample(8, timeout_s=60.0)
        except BaseException as error:
            if os.getpid() == parent:
                raise
            os._exit(0 if _is_right(error, table) else 1)
        finally:
            if os.getpid() != parent:
                os._exit(2)
            signal.signal(signal.SIGALRM, before)
        assert len(batch["number"]) == 8
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _is_right(error: BaseException, table: relive.Table) -> bool:
    try:
        assert isinstance(error, relive.errors.ForkedHandle) and "handler" in error.what, error
        assert len(table) > 0 and table.draw(1, timeout_s=60.0).num_items == 1
    except BaseException:
        traceback.print_exc()
        return False
    return True
