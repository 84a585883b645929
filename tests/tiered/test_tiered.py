"""Tests for tables on disk alone: the place of their bytes, planned batches, and a disk that fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.core.request import DrawRequest
from tiered.tools import needs_tiers, pattern

pytestmark = needs_tiers

ROW_BYTES = 20_000
PAGE_BYTES = 20_480  # a page of one row


def blob_spec() -> relive.StepSpec:
    return relive.StepSpec({"number": relive.ArraySpec((), "int64"), "blob": relive.ArraySpec((ROW_BYTES,), "uint8")})


def make_table(
    directory: Path, pages: int = 32, capacity: int = 200, index: Any = None, **options: Any
) -> relive.Table:
    """A table with memory for so many rows, half of it for staging."""
    storage = relive.Tiered(directory, pages * PAGE_BYTES, **options)
    return relive.Table(blob_spec(), capacity, index, storage=storage, max_lanes=8)


def write(writer: Any, first: int, count: int) -> list[int]:
    return [writer.append(number=n, blob=pattern([n], ROW_BYTES)[0]) for n in range(first, first + count)]


def check(batch: Any) -> np.ndarray:
    """Every byte of every row; returns the numbers."""
    numbers = np.asarray(batch["number"])
    np.testing.assert_array_equal(batch["blob"], pattern(numbers, ROW_BYTES))
    return numbers


def tiers(table: relive.Table) -> relive.TierStats:
    found = table.stats().tiers
    assert found is not None
    return found


@pytest.fixture
def table(tmp_path: Path) -> Iterator[relive.Table]:
    with make_table(tmp_path) as table:
        yield table


def test_the_layout_keeps_records_in_memory(table: relive.Table) -> None:
    """Small columns lie in frames, large ones apart; a table of large rows has pages of one row."""
    areas = {column["name"]: column["area"] for column in table._core.layout}
    assert areas == {"number": "record", "blob": "bulk"}
    geometry = table._core.geometry
    assert geometry["page_len"] == 1 and geometry["frame_bytes"] == 64  # the disk has the bulk only
    assert geometry["bulk"]["frame_bytes"] == PAGE_BYTES and geometry["bulk"]["num_units"] == 1
    assert tiers(table).page_bytes == PAGE_BYTES and tiers(table).ram_bytes <= 32 * PAGE_BYTES


def test_every_row_is_read_back(table: relive.Table) -> None:
    """From memory, from the disk, by key and by draw."""
    with table.writer() as writer:
        keys = write(writer, 0, 150)
    batch = table.gather(keys)
    assert batch.present.all() and check(batch).tolist() == list(range(150))
    for _ in range(10):
        check(table.sample(32))
    stats = tiers(table)
    assert stats.pages_in_ram + stats.pages_on_disk == 150 and stats.pages_in_ram <= 32
    assert stats.bytes_written >= stats.pages_on_disk * PAGE_BYTES and stats.bytes_read > 0
    assert stats.on_demand_batches == 11 and stats.late_batches == 0
    table.check()


def test_a_column_alone_does_not_touch_the_disk(table: relive.Table) -> None:
    """Columns in the records are in memory."""
    with table.writer() as writer:
        keys = write(writer, 0, 150)
    assert table.gather(keys, columns=["number"])["number"].tolist() == list(range(150))
    assert tiers(table).bytes_read == 0


def test_equal_seeds_give_equal_batches_wherever_the_bytes_are(tmp_path: Path) -> None:
    """How much is on the disk changes nothing that is drawn."""
    batches = []
    for storage in (relive.Tiered(tmp_path, 32 * PAGE_BYTES), relive.Tiered(tmp_path, "1GiB")):
        with relive.Table(blob_spec(), 200, storage=storage, max_lanes=8, seed=5) as table, table.writer() as writer:
            write(writer, 0, 300)
            batches.append([check(table.sample(16)).tolist() for _ in range(5)])
    assert batches[0] == batches[1]


def test_planned_batches_are_there_in_time(table: relive.Table) -> None:
    """At a rate the disk can keep up with, nothing is late; reads are ahead of what is asked for."""
    with table.writer() as writer:
        write(writer, 0, 200)
        with table.batches(8, prefetch=8) as batches:
            check(next(batches))
            time.sleep(0.5)
            before = tiers(table)
            for number in range(20):
                check(next(batches))
                write(writer, 200 + number, 1)
                time.sleep(0.05)
            after = tiers(table)
    assert after.late_batches == before.late_batches
    assert after.on_demand_batches == 0 and after.bytes_read > 0
    assert table.stats().indexes["default"].in_flight == 0


def test_a_batch_asked_for_too_early_is_counted_late(table: relive.Table) -> None:
    with table.writer() as writer:
        write(writer, 0, 200)
        with table.batches(64, prefetch=2) as batches:
            for _ in range(30):
                next(batches)
    assert tiers(table).late_batches > 0


def test_no_more_than_prefetch_is_in_flight(table: relive.Table) -> None:
    """Drawn and being read, or gathered: together as many as were asked for; closing gives them back."""
    with table.writer() as writer:
        write(writer, 0, 200)
        with table.batches(4, prefetch=10) as batches:
            next(batches)
            deadline = time.monotonic() + 10
            while table.stats().indexes["default"].in_flight < 40 and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.1)
            assert table.stats().indexes["default"].in_flight == 40
    index = table.stats().indexes["default"]
    assert (index.in_flight, index.sampled) == (0, 4)


def test_items_evicted_before_their_gather_are_drawn_anew(tmp_path: Path) -> None:
    """A batch has as many items as were asked for, all of them alive when it was put together."""
    with make_table(tmp_path, capacity=40) as table, table.writer() as writer:
        write(writer, 0, 40)
        with table.batches(16, prefetch=12) as batches:
            next(batches)
            time.sleep(0.2)
            write(writer, 40, 200)  # everything that was drawn ahead has gone
            for _ in range(3):
                next(batches)  # gathered before
            for _ in range(12):
                numbers = check(next(batches))
                assert len(numbers) == 16 and (numbers >= 200).all()
        assert tiers(table).replaced_items > 0
        table.check()


@pytest.mark.parametrize("time_major", [False, True])
def test_sequences_evicted_before_their_gather_are_drawn_anew(tmp_path: Path, time_major: bool) -> None:
    """A replacement takes the place of its item in the batch. With time_major, that place is not contiguous."""
    index = relive.Index(relive.Sequences(2, time_major=time_major))
    with make_table(tmp_path, 80, 40, index) as table, table.writer() as writer:
        write(writer, 0, 40)
        with table.batches(6, prefetch=8) as batches:
            next(batches)
            time.sleep(0.2)
            write(writer, 40, 200)
            for _ in range(12):
                batch = next(batches)
                numbers = batch["number"] if not time_major else batch["number"].T
                assert (np.diff(numbers, axis=1) == 1).all()
                blobs = batch["blob"] if not time_major else batch["blob"].swapaxes(0, 1)
                np.testing.assert_array_equal(blobs.reshape(12, -1), pattern(numbers.reshape(12), ROW_BYTES))
        assert tiers(table).replaced_items > 0
        table.check()


def test_use_counts_hold_over_planned_batches(tmp_path: Path) -> None:
    """Each item is drawn exactly once: no page leaves while a planned batch still has to read it."""
    index = relive.Index(max_times_sampled=1)
    with make_table(tmp_path, capacity=200, index=index) as table, table.writer() as writer:
        write(writer, 0, 160)
        seen: list[int] = []
        with table.batches(8, prefetch=6, timeout_s=5.0) as batches:
            for _ in range(20):
                seen += check(next(batches)).tolist()
        assert sorted(seen) == list(range(160))
        assert table.num_items() == 0 and table.stats().early_freed > 0
        table.check()


def test_many_threads_and_every_byte(tmp_path: Path) -> None:
    """Writers, samplers, planned batches, spills and moves at once."""
    stop, failures = threading.Event(), []
    with make_table(tmp_path, pages=48, capacity=300) as table:

        def guarded(call: Any) -> Any:
            def run() -> None:
                try:
                    call()
                except BaseException as error:
                    failures.append(error)
                    stop.set()

            return run

        def write_on(first: int) -> None:
            with table.writer() as writer:
                number = first
                while not stop.is_set():
                    write(writer, number, 3)
                    number += 3

        def sample_on() -> None:
            while not stop.is_set():
                batch = table.sample(8)
                check(batch)
                check(table.gather(batch.item_keys).rows(table.gather(batch.item_keys).present))

        def plan_on() -> None:
            while not stop.is_set():
                with table.batches(8, prefetch=6) as batches:
                    for _ in range(10):
                        check(next(batches))

        def move_on() -> None:
            while not stop.is_set():
                table._core.move_all_pages()
                table._core.spill_all_pages()
                table.check()
                time.sleep(0.01)

        with table.writer() as writer:
            write(writer, 0, 100)
        work = [lambda: write_on(1000), lambda: write_on(40_000), sample_on, plan_on, move_on]
        threads = [threading.Thread(target=guarded(call)) for call in work]
        for thread in threads:
            thread.start()
        stop.wait(3.0)
        stop.set()
        for thread in threads:
            thread.join(30)
        assert not failures, failures[0]
        assert tiers(table).bytes_read > 0 and tiers(table).pages_on_disk > 0


# ---- a disk that fails ---------------------------------------------------------------------------------------------


def test_a_full_disk_stops_the_writer_and_loses_nothing(table: relive.Table) -> None:
    with table.writer() as writer:
        keys = write(writer, 0, 100)
        table._core.fail_disk(0, errno.ENOSPC)
        with pytest.raises(errors.StorageFull) as raised:
            for number in range(100, 200):
                keys += write(writer, number, 1)
        assert raised.value.needs_bytes > 0 and raised.value.has_bytes > 0 and Path(raised.value.path).is_dir()
        stored = len(keys)
        assert 100 <= stored < 133 and len(table) == stored
        assert check(table.gather(keys)).tolist() == list(range(stored))
        table.check()
        table._core.fail_disk(0, 0)
        write(writer, stored, 50)
        assert len(table) == stored + 50
    assert tiers(table).disk_errors > 0


def test_a_block_that_a_full_disk_stops_says_what_is_stored(table: relive.Table) -> None:
    """The rows after those go next, as if the disk had never been full."""
    with table.writer() as writer:
        write(writer, 0, 50)
        table._core.fail_disk(0, errno.ENOSPC)
        rows = {"number": np.arange(50, 150), "blob": pattern(np.arange(50, 150), ROW_BYTES)}
        with pytest.raises(errors.StorageFull) as raised:
            writer.extend(**rows)
        stored, keys = raised.value.stored, raised.value.keys
        assert 0 < stored < 100 and keys is not None and len(keys) == stored and len(table) == 50 + stored
        assert f"first {stored} of 100 rows are stored" in str(raised.value)
        assert check(table.gather(keys)).tolist() == list(range(50, 50 + stored))
        with pytest.raises(errors.StorageFull) as raised:
            writer.extend(**{name: array[stored:] for name, array in rows.items()})
        assert raised.value.stored == 0 and raised.value.keys is None
        table._core.fail_disk(0, 0)
        more = writer.extend(**{name: array[stored:] for name, array in rows.items()})
        assert check(table.gather(np.concatenate([keys, more]))).tolist() == list(range(50, 150))
        assert len(table) == 150


def test_a_really_full_file_system(tmp_path: Path) -> None:
    """The same on a file system of 2 MB, which also has no direct I/O on many kernels: stats say so."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    try:
        with make_table(tmp_path, capacity=400) as table, table.writer() as writer:
            keys: list[int] = []
            with pytest.raises(errors.StorageFull) as raised:
                for number in range(400):
                    keys += write(writer, number, 1)
            assert raised.value.path == str(tmp_path) and raised.value.has_bytes < 2**21
            assert len(table) == len(keys) > 90
            assert check(table.gather(keys)).tolist() == list(range(len(keys)))
            table.check()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_disk_that_cannot_be_read(table: relive.Table) -> None:
    """A call that needs the rows raises. Nothing stays in flight, and the table continues when the disk does."""
    with table.writer() as writer:
        keys = write(writer, 0, 150)
    table._core.fail_disk(errno.EIO, 0)
    with pytest.raises(errors.SystemFailure) as raised:
        table.gather(keys)
    assert raised.value.errno == errno.EIO and "page file" in raised.value.what
    with pytest.raises(errors.SystemFailure):
        table.sample(64)
    with table.batches(64, prefetch=3) as batches, pytest.raises(errors.SystemFailure):
        for _ in range(10):
            next(batches)
    assert table.stats().indexes["default"].in_flight == 0
    table._core.fail_disk(0, 0)
    assert check(table.gather(keys)).tolist() == list(range(150))


def test_memory_that_open_pages_fill_ends_at_the_deadline(tmp_path: Path) -> None:
    """Lanes hold their pages in memory: more of them than fit wait, and are told what for."""
    storage = relive.Tiered(tmp_path, 16 * PAGE_BYTES, min_column_bytes=0)
    spec = relive.StepSpec({"o": relive.ArraySpec((2_000,), "uint8", kind="state")})
    with relive.Table(spec, 4000, storage=storage, max_lanes=64) as table, table.writer(num_lanes=64) as writer:
        begin = time.monotonic()
        with pytest.raises(errors.DeadlineExceeded) as raised:
            writer.append(o=np.zeros((64, 2_000), np.uint8), timeout_s=0.3)
        assert time.monotonic() - begin < 5 and "bulk frame" in str(raised.value.needs)
        assert len(table) == 0
        table.check()


# ---- files, forks, configurations ----------------------------------------------------------------------------------


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import sys, numpy, relive; spec = relive.StepSpec({'blob': relive.ArraySpec((20000,), 'uint8')});"
        "table = relive.Table(spec, 200, storage=relive.Tiered(sys.argv[1], 700000), max_lanes=1); w = table.writer();"
        "[w.append(blob=numpy.zeros(20000, numpy.uint8)) for _ in range(100)]; print('written', flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "written\n"
    assert not list(tmp_path.iterdir())
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=30)
    assert not list(tmp_path.iterdir())


def test_a_forked_child_is_refused(table: relive.Table) -> None:
    with table.writer() as writer:
        write(writer, 0, 100)
    child = os.fork()
    if child == 0:
        try:
            table.sample(4)
        except errors.ForkedHandle:
            os._exit(7)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    check(table.sample(4))


def test_close_ends_planned_batches(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    with table.writer() as writer:
        write(writer, 0, 150)
    with table.batches(16, prefetch=8) as batches:
        next(batches)
        begin = time.monotonic()
        table.close()
        assert time.monotonic() - begin < 5
        with pytest.raises(errors.TableClosed):
            next(batches)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("", 10**9), "directory of Tiered"),
        ((7, 10**9), "directory of Tiered"),
        (("/tmp", 0), "ram_bytes of Tiered"),
        (("/tmp", "much"), "ram_bytes of Tiered"),
        (("/tmp", 10**9, 1.5), "staging_fraction"),
        (("/tmp", 10**9, 0.5, -1), "min_column_bytes"),
        (("/tmp", 10**9, 0.5, 256, 0), "io_threads"),
        (("/tmp", 10**9, 0.5, 256, 8, 0), "gathered_batches"),
    ],
)
def test_bad_configurations(arguments: tuple[Any, ...], what: str) -> None:
    with pytest.raises(errors.InvalidConfig) as raised:
        relive.Tiered(*arguments)
    assert raised.value.what == what


def test_sizes_may_be_texts(tmp_path: Path) -> None:
    assert relive.Tiered(tmp_path, "2GiB").ram_bytes == 2**31
    assert relive.Tiered(tmp_path, "500 MB").ram_bytes == 500_000_000


def test_too_little_memory_names_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidConfig) as raised:
        make_table(tmp_path, pages=3)
    assert raised.value.what == "ram_bytes of Tiered" and "at least 122880 bytes" in str(raised.value.expected)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.SystemFailure) as raised:
        make_table(tmp_path / "nowhere")
    assert raised.value.errno == errno.ENOENT and "nowhere" in raised.value.what


def test_a_spec_without_large_columns_stays_in_memory(tmp_path: Path) -> None:
    """It says so by having no tiers."""
    spec = relive.StepSpec({"o": relive.ArraySpec((4,), "float32")})
    with relive.Table(spec, 100, storage=relive.Tiered(tmp_path, "1MB")) as table, table.writer() as writer:
        writer.append(o=np.ones(4))
        assert table.stats().tiers is None and table.sample(2)["o"].tolist() == [[1.0] * 4] * 2


def test_parked_pages_give_their_memory_to_who_writes(tmp_path: Path) -> None:
    """Four lanes closed with a page each in memory, which has room for four: a fifth one needs two at a time."""
    spec = relive.StepSpec({"blob": relive.ArraySpec((5000,), "uint8", kind="state")})
    with pytest.raises(errors.InvalidConfig) as caught:
        relive.Table(spec, 200, storage=relive.Tiered(tmp_path, 1, min_column_bytes=0), max_lanes=8)
    least = int(str(caught.value.expected).split()[2])
    storage = relive.Tiered(tmp_path, least, staging_fraction=0.0, min_column_bytes=0)
    blobs = pattern(range(101), 5000)
    with relive.Table(spec, 200, storage=storage, max_lanes=8, timeout_s=5.0) as table:
        writers = [table.writer() for _ in range(4)]
        for writer in writers:
            writer.append(blob=blobs[0], next_blob=blobs[1])
        for writer in writers:
            writer.close()
        with table.writer() as writer:
            keys = np.asarray([writer.append(blob=blobs[t], next_blob=blobs[t + 1]) for t in range(100)])
        np.testing.assert_array_equal(table.gather(keys)["next_blob"], blobs[1:])
        assert len(table) == 104
        table.check()


def test_a_page_parked_while_a_writer_waits_gives_its_memory(tmp_path: Path) -> None:
    spec = relive.StepSpec(
        {"x": relive.ArraySpec((5,), "int64"), "observation": relive.ArraySpec((2,), "int64", kind="state")}
    )
    row = {"x": np.zeros(5, np.int64), "observation": np.zeros(2, np.int64)}
    storage = relive.Tiered(tmp_path, 2**16, min_column_bytes=0)
    with relive.Table(spec, 400, storage=storage, max_lanes=16, timeout_s=20.0) as table:
        frames = table.stats().tiers.free_frames
        writers = [table.writer() for _ in range(frames)]  # an open page each: all the memory there is
        for writer in writers:
            for _ in range(2):
                writer.append(**row)
        failed: list[BaseException] = []

        def write() -> None:
            try:
                with table.writer() as late:
                    late.append(**row)
            except errors.ReliveError as error:
                failed.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        while thread.is_alive() and not table.stats().tiers.frame_waits:
            time.sleep(0.001)
        writers[0].close()  # its page is parked now, and the writer that waits has looked before
        thread.join()
        assert not failed
        assert table.stats().tiers.pages_on_disk == 1
        table.check()


def test_what_is_drawn_keeps_the_pages_that_its_window_runs_into(tmp_path: Path) -> None:
    """The last uses of all items are planned; they are read from the last one back, each with the row behind it."""
    spec = relive.StepSpec({"picture": relive.ArraySpec((600,), "uint8", kind="state")})
    index = relive.Index(relive.Transitions(n_step=3), relive.Fifo(), max_times_sampled=1)
    storage = relive.Tiered(tmp_path, 512 * 8_192)
    with relive.Table(spec, 200, index, storage=storage, max_lanes=1) as table, table.writer() as writer:
        writer.extend(picture=np.broadcast_to(np.arange(101, dtype=np.uint8)[:, None], (101, 600)))
        assert table.core.is_tiered
        selection = table.select(None, None).core
        planned = [table.core.plan_batch(DrawRequest(0, 1, selection), 0.0) for _ in range(98)]
        for batch in reversed(planned):
            table.core.gather_planned(batch, selection)
        assert tiers(table).replaced_items == 0
        table.check()
