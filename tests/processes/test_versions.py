"""If a process dies during a version step, the next process that takes the lock removes items that are too old."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

import relive
from processes.shm import needs_shared_memory

LEARNER = """
import sys, relive
table = relive.attach(sys.argv[1])
print("attached", flush=True)
sys.stdin.readline()
table.set_policy_version(int(sys.argv[2]))
"""


@needs_shared_memory
def test_a_learner_killed_between_two_holds(shm_name: Callable[[], str]) -> None:
    spec = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
    indexes = {
        "bounded": relive.Index(sampler=relive.Fresh(decay=0.9), max_staleness=0),
        "last": relive.Index(sampler=relive.Fresh(last=50), max_staleness=5),
    }
    name, in_the_middle = shm_name(), 0
    with relive.Table(spec, 40_000, indexes, storage=relive.SharedMemory(name)) as table, table.writer() as writer:
        for version in range(1, 8):
            writer.extend(number=np.arange(20_000))
            before = table.stats().indexes["bounded"].num_items
            command = [sys.executable, "-c", LEARNER, name, str(version)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as learner:
                assert learner.stdout is not None and learner.stdin is not None
                learner.stdout.readline()
                learner.stdin.write("\n")
                learner.stdin.flush()
                time.sleep(0.001 * (version % 5))
                learner.kill()
            in_the_middle += 0 < table.stats().indexes["bounded"].num_items < before
            table.check()
            is_set = table.stats().policy_version == version
            for _ in range(before // 256 + 2):  # each hold lets some of them go
                writer.append(number=0)
            table.set_policy_version(version)
            stats = table.stats().indexes["bounded"]
            assert stats.num_items == (before // 256 + 2 if is_set else 0)
            assert stats.inserted - stats.expired == stats.num_items  # each is counted once
            assert len(table.sample(100, index="last").item_keys) == 100
            table.check()
    assert in_the_middle > 0
