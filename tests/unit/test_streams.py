"""Which random numbers a handle draws with: the same calls give the same items however long they waited, and no two
copies of a handle draw alike unless they were told to."""

from __future__ import annotations

import os
import pickle
import threading
import time
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from relive import errors

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})


def made_table(**options: Any) -> relive.Table:
    return relive.Table(SPEC, 1000, seed=5, **options)


def write(table: relive.Table, count: int) -> None:
    with table.writer() as writer:
        writer.extend(number=np.arange(count))


def drawn(table: relive.Table, calls: int = 3) -> list[list[int]]:
    return [table.draw(16).item_keys.tolist() for _ in range(calls)]


# ---- the number of a call ------------------------------------------------------------------------------------------


def test_a_call_that_times_out_takes_no_number() -> None:
    with made_table() as patient, made_table() as hasty:
        for _ in range(5):
            with pytest.raises(errors.DeadlineExceeded):
                hasty.draw(16, timeout_s=0.0)
            with pytest.raises(errors.DeadlineExceeded):
                hasty.sample(16, timeout_s=0.0)
        write(patient, 100)
        write(hasty, 100)
        assert drawn(hasty) == drawn(patient)


def test_a_call_that_would_wait_for_itself_takes_no_number() -> None:
    if threading.active_count() > 1:
        pytest.skip("another thread is at work here")
    with made_table() as patient, made_table() as alone:
        with pytest.raises(errors.WaitsForItself):
            alone.draw(16, timeout_s=5.0)
        write(patient, 100)
        write(alone, 100)
        assert drawn(alone) == drawn(patient)


def test_a_draw_that_finds_too_few_unused_items_takes_no_number() -> None:
    index = relive.Index(max_times_sampled=1)
    with made_table(index=index) as patient, made_table(index=index) as hasty:
        for table in (patient, hasty):
            write(table, 10)
        with pytest.raises(errors.DeadlineExceeded):
            hasty.draw(16, timeout_s=0.0)
        assert [hasty.draw(4).item_keys.tolist() for _ in range(2)] == [
            patient.draw(4).item_keys.tolist() for _ in range(2)
        ]


def test_batches_are_the_same_however_long_they_waited() -> None:
    index = relive.Index(limiter=relive.MinSize(100))  # what is drawn from is the whole block, never a part of it
    with made_table(index=index) as patient, made_table(index=index) as waiting:
        write(patient, 100)
        with waiting.batches(16, timeout_s=60.0) as batches:
            while waiting.stats().sampler_waits < 6:  # each slice of the thread waits twice or more
                time.sleep(0.01)
            write(waiting, 100)
            got = [next(batches).item_keys.tolist() for _ in range(5)]
        assert got == [patient.sample(16).item_keys.tolist() for _ in range(5)]


# ---- copies of a handle --------------------------------------------------------------------------------------------


@needs_shared_memory
def test_copies_by_pickle_draw_streams_of_their_own(shm_name: Any) -> None:
    def said() -> tuple[list[int], list[list[list[int]]]]:
        with made_table(storage=relive.SharedMemory(shm_name())) as table:
            write(table, 500)
            copies = [pickle.loads(pickle.dumps(table)) for _ in range(3)]
            copies.append(pickle.loads(pickle.dumps(copies[0])))
            streams = [table.stream, *(copy.stream for copy in copies)]
            items = [drawn(one) for one in (table, *copies)]
            for copy in copies:
                copy.close()
            return streams, items

    streams, items = said()
    assert streams[0] == 0 and len(set(streams)) == 5
    assert len({str(one) for one in items}) == 5
    assert said() == (streams, items), "counted by attaches: equal histories draw alike"


@needs_shared_memory
def test_handles_attached_by_name_draw_streams_of_their_own_unless_told(shm_name: Any) -> None:
    name = shm_name()
    with made_table(storage=relive.SharedMemory(name)) as table:
        write(table, 500)
        with relive.attach(name) as one, relive.attach(name) as two, relive.attach(name, stream=0) as told:
            assert told.stream == 0 and len({table.stream, one.stream, two.stream}) == 3
            first = drawn(table)
            assert drawn(told) == first
            assert drawn(one) != first and drawn(two) != first


@needs_shared_memory
def test_copies_of_a_handle_with_a_stream_of_its_own_telling_do_not_draw_it(shm_name: Any) -> None:
    name = shm_name()
    with made_table(storage=relive.SharedMemory(name)) as table, relive.attach(name, stream=7) as told:
        with pickle.loads(pickle.dumps(told)) as copy:
            assert told.stream == 7 and copy.stream != 7
        del table


@needs_shared_memory
def test_read_only_copies_draw_streams_of_their_own(shm_name: Any) -> None:
    """They cannot count themselves, as they change nothing; they differ all the same."""
    name = shm_name()
    with made_table(storage=relive.SharedMemory(name)) as table:
        write(table, 500)
        with relive.attach(name, read_only=True) as reader, relive.attach(name, stream=3, read_only=True) as told:
            with pickle.loads(pickle.dumps(reader)) as copy:
                assert len({table.stream, reader.stream, copy.stream}) == 3 and told.stream == 3
                assert drawn(copy) != drawn(reader)


@needs_shared_memory
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_forked_children_draw_streams_of_their_own(shm_name: Any) -> None:
    """A loader with three workers: nine batches, nine distinct."""
    with made_table(storage=relive.SharedMemory(shm_name())) as table:
        write(table, 500)
        said = [drawn(table)]
        for _ in range(3):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    stream = table.stream
                    os.write(writer, pickle.dumps((stream, table.stream, drawn(table))))
                finally:
                    os._exit(0)
            os.close(writer)
            with os.fdopen(reader, "rb") as pipe:
                before, after, items = pickle.loads(pipe.read())
            os.waitpid(child, 0)
            assert before == after != 0
            said.append(items)
        assert len({str(one) for batches in said for one in batches}) == 12
        assert table.stream == 0
