"""Checksummed rows raced round a small table by several processes: every row is whole, or is not given out."""

from __future__ import annotations

from typing import Any

import pytest

from processes.shm import needs_shared_memory, shared_files
from processes.tools import checked_table, children
from processes.workers import sample_for, write_for

pytestmark = needs_shared_memory
SECONDS = 2.0


# Each way to start and each way to reach the table once; all pairs run before a release.
PAIRS = [
    ("fork", "name"),
    ("spawn", "handle"),
    pytest.param("fork", "handle", marks=pytest.mark.thorough),
    pytest.param("spawn", "name", marks=pytest.mark.thorough),
]


@pytest.mark.forms(1)
@pytest.mark.parametrize(("method", "by"), PAIRS)
def test_no_row_is_torn(method: str, by: str, shm_name: Any, profile_scale: int) -> None:
    name = shm_name()
    table = checked_table(name, seed=5)
    handle = name if by == "name" else table
    seconds = SECONDS * profile_scale
    with table, children() as start:
        writers = [start(method, write_for, handle, 1_000_000 * (i + 1), seconds) for i in range(2)]
        samplers = [start(method, sample_for, handle, seconds) for _ in range(2)]
        steps = [child.answer(seconds + 60) for child in writers]
        said = [child.answer(seconds + 60) for child in samplers]
        for child in writers + samplers:
            child.join()
        table.check()
        assert len(table) <= 300 and min(steps) > 300
        assert min(seen for seen, _ in said) > 500, "the samplers hardly ran"
        assert [torn for _, torn in said] == [0, 0]
    assert not shared_files(name)
