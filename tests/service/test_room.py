"""Memory of requests: a limiter's wait keeps no share, large work leaves no memory, and bodies count as well."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, prioritized, write_steps

import relive
from relive import _core, errors
from relive.reading.own_draws import listed_with_ages
from relive.service import ServerOptions, connect, serve
from relive.service.server import keeper
from relive.service.server.hosting import Memory
from relive.service.server.keeper import give_memory_back, private_bytes
from relive.service.server.room import Room, on_own_thread

LOOPBACK = "grpc://127.0.0.1:0"
MIB = 1 << 20
needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc to read memory")
OPTIONS = ServerOptions(max_work_bytes=64 * MIB)


def eventually(holds: Any, seconds: float = 20.0) -> bool:
    """Whether it holds before the time is over."""
    ends = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def table() -> Iterator[relive.Table]:
    with relive.Table(plain_spec(), 200, prioritized(), max_lanes=50) as one:
        with one.writer() as writer:
            write_steps(writer, 0, 20)
        yield one


def test_the_answer_stays_counted_and_a_refused_slice_keeps_nothing() -> None:
    memory = Memory(OPTIONS)
    pipe: Any = SimpleNamespace(gone=lambda: False, gives_up=0.0)
    used: list[tuple[int, int]] = []

    def call() -> str:
        used.append((memory.inflight.used, memory.work.used))
        if len(used) == 1:
            raise errors.DeadlineExceeded("the limiter", "", 0.5)
        return "drawn"

    with Room(memory, "a", pipe, (2 * MIB, 3 * MIB), 9.0) as within:
        with pytest.raises(errors.DeadlineExceeded):
            within(call)
        assert (memory.inflight.used, memory.work.used) == (0, 0)
        assert within(call) == "drawn"
        assert (memory.inflight.used, memory.work.used) == (2 * MIB, 0)
    assert used == [(2 * MIB, 5 * MIB)] * 2 and memory.inflight.used == 0
    assert pipe.gives_up > time.monotonic()


def test_large_work_has_a_thread_of_its_own_and_raises_its_error() -> None:
    memory = Memory(OPTIONS)
    pipe: Any = SimpleNamespace(gone=lambda: False, gives_up=0.0)
    own = threading.current_thread()
    for sizes, keeps, is_own in (((0, MIB - 1), False, True), ((0, MIB), False, False), ((0, MIB), True, True)):
        with Room(memory, "a", pipe, sizes, 9.0, has_stored=(lambda: True) if keeps else None) as within:
            assert (within(threading.current_thread) is own) == is_own
    with pytest.raises(ZeroDivisionError):
        on_own_thread(lambda: 1 // 0)


@needs_proc
def test_a_large_draw_leaves_no_memory_while_its_stream_goes_on(table: relive.Table) -> None:
    with serve({"t": table}, LOOPBACK) as server, connect(f"{server.address}/t", timeout_s=60.0) as remote:
        remote.draw(16)
        give_memory_back()
        before = private_bytes()
        assert len(remote.draw(1 << 20).item_keys) == 1 << 20
        assert eventually(lambda: private_bytes() < before + 80 * MIB, 5.0), "the draw's scratch of 160 MB stayed"
        assert server.num_streams > 0


@needs_proc
def test_what_threads_free_goes_back_also_at_the_end_of_their_heaps() -> None:
    """malloc keeps it otherwise: it raises its thresholds when blocks of up to 32 MiB are freed."""
    program = """if True:
        import threading, numpy as np, relive
        from relive.service import serve
        from relive.service.server.keeper import give_memory_back, private_bytes
        spec = relive.StepSpec({"value": relive.ArraySpec((), "float32")})
        freed, ends = threading.Semaphore(0), threading.Event()

        def work():
            for size, count in ((30, 1), (12, 4)):
                blocks = [np.ones(size << 20, np.uint8) for _ in range(count)]
                del blocks
            freed.release()
            ends.wait(60.0)

        with relive.Table(spec, 10) as table, serve({"t": table}, "grpc://127.0.0.1:0"):
            give_memory_back()
            before = private_bytes()
            threads = [threading.Thread(target=work) for _ in range(6)]
            for thread in threads:
                thread.start()
            for _ in threads:
                freed.acquire()
            give_memory_back()
            print(private_bytes() - before >> 20)
            ends.set()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 40, f"{done.stdout} MiB of 288 stayed {done.stderr}"


@needs_proc
def test_batches_that_are_kept_go_back_although_no_request_is_large(
    table: relive.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of many sizes."""
    monkeypatch.setattr(keeper, "_TRIM_EVERY_S", 0.0)
    monkeypatch.setattr(keeper, "_LARGE_PEAK", 2 * MIB)
    with serve({"t": table}, LOOPBACK, ServerOptions(max_streams=9)) as server:
        with connect(f"{server.address}/t") as remote:
            assert eventually(lambda: _core.kept_batch_bytes() < MIB, 5.0)
            for number in range(3_600, 4_000, 10):
                remote.sample(number)
            assert next(iter(server._hosted.values())).memory.work.peak == 0, "no request is counted"
            assert eventually(lambda: _core.kept_batch_bytes() < MIB, 10.0), "the keeper looks once a second"


def test_a_draw_that_waits_for_its_limiter_delays_no_other_request() -> None:
    index = relive.Index(sampler=relive.Prioritized(0.6), limiter=relive.MinSize(50))
    options = ServerOptions(max_inflight_bytes=3 * MIB)
    with relive.Table(plain_spec(), 200, index) as table, serve({"t": table}, LOOPBACK, options) as server:
        memory = server._hosted["t"].memory
        found: list[int] = []
        with connect(f"{server.address}/t", timeout_s=30.0) as one, one.writer() as writer:
            keys = write_steps(writer, 0, 20)
            waits = threading.Thread(target=lambda: found.append(len(one.draw(1 << 17).item_keys)))
            waits.start()
            assert eventually(lambda: memory.inflight.used > 0)
            assert one.gather(np.full(400_000, keys[0]), ["reward"]).present.all()
            assert waits.is_alive()
            write_steps(writer, 20, 60)
            waits.join(30.0)
        assert found == [1 << 17] and memory.inflight.used == memory.work.used == 0


def test_rows_count_against_the_budget() -> None:
    spec = relive.StepSpec({"frame": relive.ArraySpec((MIB,), "uint8")})
    options = ServerOptions(max_work_bytes=8 * MIB)
    with relive.Table(spec, 64) as table, serve({"t": table}, LOOPBACK, options) as server:
        memory = server._hosted["t"].memory
        with connect(f"{server.address}/t") as remote, remote.writer() as writer:
            with pytest.raises(errors.InvalidConfig, match="max_work_bytes"):
                writer.extend(frame=np.zeros((10, MIB), np.uint8))
            writer.extend(frame=np.zeros((5, MIB), np.uint8))
            writer.append(frame=np.zeros(MIB, np.uint8))
            assert memory.work.forget_peak() == 5 * (MIB + 8) and memory.work.used == 0, "rows and keys"
            assert len(remote) == 6


def test_created_items_count_against_the_budget() -> None:
    index = relive.Index(relive.Explicit(windows={"pair": 1}, max_items=100_000))
    with relive.Table(plain_spec(), 200, index) as table:
        with table.writer() as writer:
            key = int(write_steps(writer, 0, 20)[3])
        options = ServerOptions(max_work_bytes=8 * MIB)
        with serve({"t": table}, LOOPBACK, options) as server, connect(f"{server.address}/t") as remote:
            memory = server._hosted["t"].memory
            with pytest.raises(errors.InvalidConfig, match="max_work_bytes"):
                remote.create_items({"pair": np.full(300_000, key)})
            assert len(remote.create_items({"pair": np.full(50_000, key)})) == 50_000
            assert memory.work.forget_peak() >= 50_000 * 16 and memory.work.used == memory.inflight.used == 0


@pytest.mark.parametrize("option", ["max_work_bytes", "max_inflight_bytes", "max_inflight_bytes_per_client"])
@pytest.mark.parametrize("num_bytes", [1, 2 * MIB])
def test_items_are_listed_in_parts_that_fit_every_budget(option: str, num_bytes: int) -> None:
    """A part has as many leaves as the budgets allow. The client asks for the rest."""
    spec = relive.StepSpec({"value": relive.ArraySpec((), "float32")})
    options = ServerOptions(**{option: num_bytes})
    with relive.Table(spec, 100_000) as table, serve({"t": table}, LOOPBACK, options) as server:
        with table.writer() as writer:
            for start in range(0, 1000, 100):
                writer.extend(value=np.arange(start, start + 100, dtype=np.float32), truncated=True)
        with connect(f"{server.address}/t", timeout_s=60.0) as remote:
            assert [int(one["value"][0]) for one in remote.episodes()] == list(range(0, 1000, 100))
            with table.writer() as writer:
                writer.extend(value=np.arange(99_000, dtype=np.float32), truncated=True)
            assert len(listed_with_ages(remote.core, 0)[0]) == 100_000
