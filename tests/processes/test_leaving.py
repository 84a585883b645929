"""The last process that leaves a shared table: writers and readers, in sequence and at once, and after a kill."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import relive
from processes.shm import needs_shared_memory, shared_files
from processes.tools import checked_step, checked_table, children, torn_rows
from processes.workers import EVERYTHING, create_and_wait
from relive.table.open import remove

pytestmark = needs_shared_memory


def test_a_reader_that_leaves_last_removes_the_table(shm_name: Any) -> None:
    name = shm_name()
    with checked_table(name) as table:
        readers = [relive.attach(name, read_only=True) for _ in range(3)]
        with table.writer() as writer:
            for number in range(20):
                writer.append(**checked_step(number))
    assert shared_files(name), "somebody is attached"
    assert torn_rows(readers[0].sample(8, columns=EVERYTHING)) == 0
    for reader in readers:
        assert shared_files(name)
        reader.close()
    assert not shared_files(name)


def test_a_reader_leaves_what_a_kill_left(shm_name: Any) -> None:
    """A reader cleans up after no process: the steps stay until the name is opened again, or removed."""
    name = shm_name()
    with children() as start:
        child = start("fork", create_and_wait, name)
        child.answer()
        reader = relive.attach(name, read_only=True)
        child.kill()
    assert len(reader) == 19
    reader.close()
    assert shared_files(name)
    with relive.attach(name, read_only=True) as again:
        assert len(again) == 19
    with relive.attach(name) as opened:  # sweeps: after that no killed process is left
        assert len(opened) == 19
        last = relive.attach(name, read_only=True)
    assert shared_files(name)
    last.close()
    assert not shared_files(name)


def test_a_reader_that_was_killed_leaves_nothing_behind(shm_name: Any) -> None:
    name = shm_name()
    with checked_table(name), children() as start:
        child = start("fork", read_and_wait, name)
        child.answer()
        child.kill()
    assert not shared_files(name)


def read_and_wait(pipe: Any, name: str) -> None:
    relive.attach(name, read_only=True)
    table = relive.attach(name, read_only=True)
    pipe.send(len(table))
    pipe.recv()


@pytest.mark.parametrize("read_only", [False, True], ids=["writers", "readers"])
def test_handles_that_leave_at_once(shm_name: Any, read_only: bool) -> None:
    """One of them is the last: none goes away in the belief that another one is still there."""
    for _ in range(100):
        name = shm_name()
        table = checked_table(name)
        handles = [table, *(relive.attach(name, read_only=read_only) for _ in range(3))]
        gate = threading.Barrier(len(handles))

        def leave(handle: relive.Table, gate: threading.Barrier = gate) -> None:
            gate.wait()
            handle.close()

        threads = [threading.Thread(target=leave, args=(handle,)) for handle in handles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not shared_files(name)


def test_a_forked_copy_of_a_reader_holds_nothing(shm_name: Any) -> None:
    name = shm_name()
    with children() as start:
        with checked_table(name), relive.attach(name, read_only=True) as reader:
            child = start("fork", hold_a_reader, reader)
            assert child.answer() == 0
        assert shared_files(name), "the child has attached its copy"
        child.tell("end")
        child.join()
    assert not shared_files(name)
    with pytest.raises(relive.errors.NoSuchTable):
        remove(name)


def hold_a_reader(pipe: Any, reader: relive.Table) -> None:
    pipe.send(len(reader))
    pipe.recv()
    reader.close()
