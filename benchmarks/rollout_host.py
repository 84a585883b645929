"""One contestant of benchmarks.rollouts in processes of its own: 16 writers and 2 readers. Prints one line of JSON.

usage: python -m benchmarks.rollout_host KIND MODULE PASSES
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rollout_load import GROUPS_A_BATCH, READERS, WRITERS
from benchmarks.rollout_worker import read, write

BOTH = (8, 1)  # rollouts a call


class Workers:
    """The writers and readers of a contestant."""

    def __init__(self, kind: str, module: str, address: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmarks.rollout_worker", module])
        self.barrier = context.Barrier(WRITERS + READERS + 1)
        self.read_rows = context.Value("q", 0)
        self.writers, self.readers, self.processes = [], [], []
        for number in range(WRITERS + READERS):
            ours, theirs = context.Pipe()
            is_reader = number >= WRITERS
            further = (self.read_rows, theirs) if is_reader else (theirs,)
            target = read if is_reader else write
            process = context.Process(target=target, args=(kind, module, address, number, self.barrier, *further))
            process.start()
            self.processes.append(process)
            (self.readers if is_reader else self.writers).append(ours)
        for pipe in (*self.writers, *self.readers):
            pipe.recv()

    def run(self, told: Any, rows_a_call: int, is_paced: bool) -> dict[str, Any]:
        """One pass: all rollouts written and read."""
        self.read_rows.value = 0
        for pipe in self.writers:
            pipe.send((told, rows_a_call, is_paced))
        for pipe in self.readers:
            pipe.send((told, 1 if is_paced else GROUPS_A_BATCH))
        self.barrier.wait()
        began = time.monotonic()
        if is_paced:
            for pipe in self.writers:
                pipe.recv()
            for pipe in self.writers:
                pipe.send("go")
        for pipe in self.writers:
            pipe.recv()
        found = [pipe.recv() for pipe in self.readers]
        numbers = [number for one in found for number in one["numbers"]]
        assert len(numbers) == len(set(numbers)), "a rollout was read twice"
        waits = sorted(wait for one in found for wait in one["waits"])
        return {
            "rows": len(numbers),
            "seconds": max(one["ended"] for one in found) - began,
            "mixed": sum(one["mixed"] for one in found),
            "groups": len(waits),
            "p50_ms": 1e3 * float(np.quantile(waits, 0.5)) if waits else None,
            "p99_ms": 1e3 * float(np.quantile(waits, 0.99)) if waits else None,
        }

    def close(self) -> None:
        for pipe in (*self.writers, *self.readers):
            pipe.send(None)
        for process in self.processes:
            process.join(20.0)
            if process.is_alive():
                process.kill()


def memory_mb() -> dict[str, float]:
    """Proportional memory of the host and all processes below it, and the part that is the storage units'."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                told = (path / "stat").read_text()
                names[int(path.name)] = (path / "cmdline").read_text().split("\0")[0]
                parents[int(path.name)] = int(told.rpartition(")")[2].split()[1])
            except OSError:
                continue
    inside = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in inside} - inside:
        inside |= more
    sizes = {pid: pss_mb(pid) for pid in inside}
    units = sum(size for pid, size in sizes.items() if "StorageUnit" in names.get(pid, ""))
    return {"all": sum(sizes.values()), "storage_units": units}


def pss_mb(pid: int) -> float:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("Pss:")), 0.0)


def main() -> None:
    """Runs the passes of a contestant: a first one that is not counted, then PASSES of each kind."""
    kind, module, passes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    system = importlib.import_module(module).System(kind)
    workers = Workers(kind, module, system.address)
    found: dict[str, Any] = {"versions": {**system.versions, "torch": torch.__version__}, "passes": {}}
    number = 0

    def one(rows_a_call: int, is_paced: bool = False) -> dict[str, Any]:
        nonlocal number
        number += 1
        result = workers.run(system.begin(number), rows_a_call, is_paced)
        result["store_mb"] = system.store_bytes() / 2**20
        result["memory_mb"] = memory_mb()
        print(f"  {rows_a_call} a call{', paced' * is_paced}: {json.dumps(result)}", file=sys.stderr, flush=True)
        system.clear(number)
        return result

    found["before_mb"] = memory_mb()
    for rows_a_call in BOTH:
        one(rows_a_call)
        found["passes"][f"{rows_a_call} a call"] = [one(rows_a_call) for _ in range(passes)]
    found["passes"]["paced"] = [one(8, is_paced=True) for _ in range(max(1, passes // 2))]
    workers.close()
    system.close()
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
