"""A process that is killed while its draw is in flight: the queue has the places of the used items again (rule P7)."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import relive
from processes.shm import needs_shared_memory
from relive import errors
from relive.core.request import DrawRequest

pytestmark = needs_shared_memory


def test_a_killed_draw_frees_its_places(shm_name: Any) -> None:
    name, spec = shm_name(), relive.StepSpec({"number": relive.ArraySpec((), "int64")})
    index = relive.Index(limiter=relive.Queue(4), max_times_sampled=1)
    with relive.Table(spec, 100, index, storage=relive.SharedMemory(name)) as table, table.writer() as writer:
        writer.extend(number=np.arange(4))
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            drawn = relive.attach(name).held_draws().draw(DrawRequest(0, 4), 10.0)
            os.write(writes, b"1" if len(drawn.item_keys) == 4 else b"0")
            signal.pause()
        assert os.read(reads, 1) == b"1"
        assert table.num_items() == 0
        with pytest.raises(errors.DeadlineExceeded):
            writer.append(number=4, timeout_s=0.0)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reads)
        os.close(writes)
        writer.extend(number=np.arange(4, 8), timeout_s=20.0)
        assert sorted(table.sample(4)["number"].tolist()) == [4, 5, 6, 7]
        table.check()
