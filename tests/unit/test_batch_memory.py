"""Memory of batches: used again while a handle is open, given back with the last one.

Each check runs in a process of its own: handles of other tests would keep the memory that this one counts.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import relive
from relive import _core

ROW_BYTES, NUM_ITEMS = 256 << 10, 256
SPEC = relive.StepSpec({"blob": relive.ArraySpec((ROW_BYTES,), "uint8")})


def made_table() -> relive.Table:
    table = relive.Table(SPEC, 16)
    with table.writer() as writer:
        for number in range(4):
            writer.append(blob=np.full(ROW_BYTES, number, np.uint8))
    return table


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def it_is_kept_while_a_handle_is_open_and_given_back_with_the_last() -> None:
    one, other = made_table(), made_table()
    one.sample(NUM_ITEMS)
    kept = _core.kept_batch_bytes()
    assert kept >= NUM_ITEMS * ROW_BYTES
    one.close()
    one.close()
    assert _core.kept_batch_bytes() == kept, "the other one is open"
    other.sample(NUM_ITEMS)
    assert _core.kept_batch_bytes() == kept, "the same memory again"
    other.close()
    assert _core.kept_batch_bytes() == 0


def a_handle_that_is_dropped_counts_as_closed() -> None:
    table = made_table()
    table.sample(NUM_ITEMS)
    assert _core.kept_batch_bytes() > 0
    del table
    gc.collect()
    assert _core.kept_batch_bytes() == 0


def a_batch_that_outlives_the_last_handle_keeps_its_own_memory_and_no_more() -> None:
    with made_table() as table:
        batch = table.sample(NUM_ITEMS)
    values = batch["blob"][:, 0].copy()
    assert _core.kept_batch_bytes() == 0
    np.testing.assert_array_equal(batch["blob"][:, -1], values)
    del batch
    gc.collect()
    assert _core.kept_batch_bytes() == 0
    with made_table() as table:
        table.sample(NUM_ITEMS)
        assert _core.kept_batch_bytes() > 0, "and a new handle keeps memory again"


def it_is_freed_on_request_and_kept_again_afterwards() -> None:
    with made_table() as table:
        batch = table.sample(NUM_ITEMS)
        table.sample(NUM_ITEMS)
        kept = _core.kept_batch_bytes()
        assert kept >= NUM_ITEMS * ROW_BYTES and _core.free_batch_memory() == kept
        assert _core.kept_batch_bytes() == _core.free_batch_memory() == 0
        assert (batch["blob"][:, 0] == batch["blob"][:, -1]).all(), "a batch that is used keeps its memory"
        del batch
        gc.collect()
        assert _core.kept_batch_bytes() > 0


def the_process_gets_it_back() -> None:
    if not Path("/proc/self/statm").exists():
        return  # a system that does not tell
    before = resident_bytes()
    with made_table() as table:
        for _ in range(3):
            table.sample(NUM_ITEMS)
        assert resident_bytes() - before > NUM_ITEMS * ROW_BYTES // 2
    gc.collect()
    assert resident_bytes() - before < NUM_ITEMS * ROW_BYTES // 2


def test_a_connection_is_a_handle(shm_name: object) -> None:
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    from relive.service import serve

    table = made_table()
    server = serve({"t": table}, "grpc://127.0.0.1:0")
    remote = relive.connect(server.address + "/t")
    remote.sample(NUM_ITEMS)
    server.close()
    table.close()
    assert _core.kept_batch_bytes() > 0
    remote.close()
    gc.collect()
    assert _core.kept_batch_bytes() == 0


CHECKS = (
    it_is_kept_while_a_handle_is_open_and_given_back_with_the_last,
    a_handle_that_is_dropped_counts_as_closed,
    it_is_freed_on_request_and_kept_again_afterwards,
    a_batch_that_outlives_the_last_handle_keeps_its_own_memory_and_no_more,
    the_process_gets_it_back,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.__name__))
def test_in_a_process_of_its_own(check: Callable[[], None]) -> None:
    done = subprocess.run([sys.executable, __file__, check.__name__], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    globals()[sys.argv[1]]()
