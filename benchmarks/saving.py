"""Saves and loads: rates beside those of the disk and of memory, in one run. Writes benchmarks/results/saving.json.

usage: python -m benchmarks.saving [--folder DIR] [--gigabytes 2.0] [--only PART ...]

The folder's file system is the one that is measured: `dd oflag=direct bs=8M` and a save write to it, in turns. The page
cache is dropped before each reading if this process may do so; the output says whether it did.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import relive
from benchmarks import saving_training
from benchmarks.file_appends import file_appends
from benchmarks.machine import describe

RESULTS = Path(__file__).parent / "results"
ROUNDS = 3
APPENDS_PER_S = 10_000  # 70 MB/s: a writer without a pace outruns every save
ROWS = {"7 kB rows": ((84, 84), "uint8"), "64 B rows": ((10,), "float32")}


def spec_of(shape: tuple[int, ...], dtype: str) -> relive.StepSpec:
    return relive.StepSpec(
        {"observation": relive.ArraySpec(shape, dtype, kind="state"), "reward": relive.ArraySpec((), "float32")}
    )


def filled(rows: str, num_bytes: float, storage: Any = None) -> relive.Table:
    """A full table of about so many bytes."""
    shape, dtype = ROWS[rows]
    row = int(np.prod(shape)) * np.dtype(dtype).itemsize
    capacity = int(num_bytes / (row + 24))
    table = relive.Table(
        spec_of(shape, dtype), capacity, relive.Index(sampler=relive.Prioritized(0.6)), storage=storage
    )
    add_steps(table, rows, capacity)
    return table


def add_steps(table: relive.Table, rows: str, count: int) -> None:
    shape, dtype = ROWS[rows]
    rng = np.random.default_rng(0)
    block = rng.integers(0, 255, (4_096, *shape)).astype(dtype)
    with table.writer() as writer:
        for begin in range(0, count, 4_096):
            part = block[: min(4_096, count - begin)]
            writer.extend(observation=part, reward=np.zeros(len(part), np.float32))


def drop_caches() -> bool:
    subprocess.run(["sync"], check=False)
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    except OSError:
        return False
    return True


def gigabytes_a_second(num_bytes: float, seconds: float) -> float:
    return round(num_bytes / seconds / 1e9, 3)


def dd(folder: Path, num_bytes: int, *, reads: bool) -> float:
    """The rate of dd in GB/s: direct writes of 8 MiB, or reads."""
    path, count = folder / "dd.bin", max(1, num_bytes >> 23)
    ends = [f"if={path}", "of=/dev/null"] if reads else ["if=/dev/zero", f"of={path}", "oflag=direct", "conv=fsync"]
    began = time.perf_counter()
    subprocess.run(["dd", "bs=8M", f"count={count}", *ends], check=True, stderr=subprocess.DEVNULL)
    return gigabytes_a_second(count << 23, time.perf_counter() - began)


def fill_rate(num_bytes: int) -> float:
    """The rate in GB/s at which fresh shared memory is filled."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    view = np.frombuffer(memory, np.uint8)
    began = time.perf_counter()
    view.fill(1)
    return gigabytes_a_second(num_bytes, time.perf_counter() - began)


def rates(folder: Path, num_bytes: float) -> dict[str, Any]:
    """Save and load of a table of large rows, beside the disk and memory."""
    table = filled("7 kB rows", num_bytes)
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)

    size = 0
    for _ in range(ROUNDS):
        note("dd write", dd(folder, int(num_bytes), reads=False))
        shutil.rmtree(folder / "save", ignore_errors=True)
        began = time.perf_counter()
        facts = table.save(folder / "save")
        size = facts.num_bytes
        note("save", gigabytes_a_second(size, time.perf_counter() - began))
        note("locked_ms", facts.locked_s * 1e3)
        drop_caches()
        note("dd read", dd(folder, int(num_bytes), reads=True))
        note("fill", fill_rate(int(num_bytes)))
        drop_caches()
        began = time.perf_counter()
        copy = relive.load(folder / "save", relive.SharedMemory("bench-saving"))
        note("load", gigabytes_a_second(size, time.perf_counter() - began))
        copy.close()
    table.close()
    found: dict[str, Any] = {name: round(median(values), 3) for name, values in rows.items()}
    found["spread"] = {name: [round(min(values), 3), round(max(values), 3)] for name, values in rows.items()}
    found["save_to_dd"] = round(found["save"] / found["dd write"], 3)
    found["load_to_slower"] = round(found["load"] / min(found["dd read"], found["fill"]), 3)
    found["gigabytes"] = round(size / 1e9, 2)
    return found


@contextlib.contextmanager
def saving_behind(table: relive.Table, folder: Path) -> Iterator[Callable[[], bool]]:
    """Saves again and again, each time from the start, on a thread."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(relive.errors.SaveOutrun):
                table.save(folder)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread.is_alive
    finally:
        stop.set()
        thread.join()


def beside(folder: Path, num_bytes: float) -> dict[str, Any]:
    """Samples a second and the latency of appends, without and with saves."""
    table = filled("7 kB rows", num_bytes)
    found: dict[str, Any] = {}
    observation = np.zeros((84, 84), np.uint8)
    for name in ("without", "with", "without again"):
        with contextlib.ExitStack() as stack:
            if name == "with":
                stack.enter_context(saving_behind(table, folder / "beside"))
                time.sleep(0.3)
            began, batches = time.perf_counter(), 0
            while time.perf_counter() - began < 4.0:
                table.sample(256)
                batches += 1
            found[f"samples_per_s {name}"] = round(batches / (time.perf_counter() - began), 1)
            waits = []
            with table.writer() as writer:
                began = time.perf_counter()
                while (start := time.perf_counter()) - began < 4.0:
                    writer.append(observation=observation, reward=0.0)
                    waits.append(time.perf_counter() - start)
                    while time.perf_counter() - start < 1 / APPENDS_PER_S:
                        time.sleep(0)
            found[f"append_p999_ms {name}"] = round(float(np.quantile(waits, 0.999)) * 1e3, 3)
    table.close()
    plain = (found["samples_per_s without"] + found["samples_per_s without again"]) / 2
    found["samples_with_to_without"] = round(found["samples_per_s with"] / plain, 3)
    return found


def locked(num_steps: int = 1_000_000) -> dict[str, Any]:
    """The critical section of a save of a million small steps."""
    with tempfile.TemporaryDirectory() as folder, filled("64 B rows", num_steps * 64) as table:
        readings = [table.save(folder).locked_s * 1e3 for _ in range(5)]
        slots = table.core.geometry["num_slots"] / 1e6
        return {
            "num_slots": table.core.geometry["num_slots"],
            "locked_ms": round(median(readings), 3),
            "ms_per_million_slots": round(median(readings) / slots, 3),
        }


def increments(folder: Path, num_bytes: float) -> dict[str, Any]:
    """Bytes of a second save after 5% new steps, as a part of the first save's."""
    found = {}
    for rows in ROWS:
        table = filled(rows, num_bytes / 4)
        target = folder / "increment"
        shutil.rmtree(target, ignore_errors=True)
        first = table.save(target).num_bytes
        add_steps(table, rows, table.capacity // 20)
        found[rows] = round(table.save(target).num_bytes / first, 4)
        table.close()
    return found


PARTS: dict[str, Callable[[Path, float], Any]] = {
    "rates_gb_s": rates,
    "beside": lambda folder, num_bytes: beside(folder, num_bytes / 4),
    "locked": lambda folder, num_bytes: locked(),
    "increments": increments,
    "file_appends": lambda folder, num_bytes: file_appends(folder),
    "training": lambda folder, num_bytes: {
        "save every 5 s": saving_training.with_saves(folder),
        "resumed": saving_training.resumed(folder),
    },
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=None, help="where to write (default: a temporary folder)")
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, help="measure these parts, and keep the figures of the others"
    )
    given = parser.parse_args()
    machine = describe()
    found = {"part": "saving"} if given.only is None else json.loads((RESULTS / "saving.json").read_text())
    if given.only is None or "rates_gb_s" in given.only:
        found |= {"machine": machine, "dropped_caches": drop_caches()}
    with tempfile.TemporaryDirectory(dir=given.folder) as made:
        for name in given.only or PARTS:
            found[name] = {"machine": machine, **PARTS[name](Path(made), given.gigabytes * 1e9)}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "saving.json").write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found, indent=1) + f"\nsaved in {RESULTS / 'saving.json'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
