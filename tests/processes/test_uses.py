"""Use counts to the last use: four processes claim, by any way there is, and some of them die.

No item is used once too often. Uses are lost only by a kill: a killed process has at most one batch in hand.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from processes.shm import needs_shared_memory
from processes.tools import Child, children, eventually
from relive import errors

pytestmark = needs_shared_memory

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
BATCH, TIMES, ITEMS, KILLS = 6, 3, 4_000, 8
WAYS: dict[str, dict[str, Any]] = {
    "by chance": {"sampler": relive.Prioritized(1.0)},
    "without replacement": {"sampler": relive.Prioritized(1.0), "replacement": False},
    "by ranks, without replacement": {"sampler": relive.RankBased(1.0), "replacement": False},
    "the newest": {"sampler": relive.Fresh(decay=0.9), "replacement": False},
    "in order": {"sampler": relive.Fifo()},
    "in turn": {"sampler": relive.Shuffle()},
    "with a condition": {"sampler": relive.Uniform()},
    "by a choice of its own": {"sampler": relive.Uniform()},
}


def own_draw(table: relive.Table, rng: np.random.Generator) -> relive.Draw:
    if not eventually(lambda: table.num_items() > 0, 1.0):
        raise errors.DeadlineExceeded("an item", "none", 1.0)
    keys = np.concatenate([*table.keys(), np.empty(0, np.int64)])
    chosen = rng.choice(len(keys), min(BATCH, len(keys)), replace=False) if len(keys) else np.empty(0, np.int64)
    return table.claim(relive.Draw.of(keys[chosen], np.full(len(chosen), 1.0 / max(1, len(keys)))), timeout_s=1.0)


def draw_all(pipe: Any, name: str, way: str, path: str, number: int) -> None:
    """Draws until nothing comes for a while. One write reports a batch, so that no batch is reported in part."""
    rng = np.random.default_rng(number)
    asked = {"where": "number >= 0"} if way == "with a condition" else {}
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with relive.attach(name) as table:
        while True:
            try:
                draw = own_draw(table, rng) if "own" in way else table.draw(BATCH, timeout_s=1.0, **asked)
            except (errors.DeadlineExceeded, errors.RareItems):
                break
            os.write(file, draw.item_keys.tobytes())
    pipe.send("done")


@pytest.mark.forms(4)
@pytest.mark.parametrize("way", list(WAYS))
def test_uses_are_exact_whoever_dies(way: str, shm_name: Any, tmp_path: Path) -> None:
    name, number, lost = shm_name(), 0, 0
    index = relive.Index(max_times_sampled=TIMES, **WAYS[way])
    rng = np.random.default_rng(0)
    with relive.Table(SPEC, ITEMS, index, storage=relive.SharedMemory(name), max_lanes=1) as table, children() as start:

        def begin() -> Child:
            nonlocal number
            number += 1
            return start("fork", draw_all, name, way, str(tmp_path / f"{number}"), number)

        workers = [begin() for _ in range(4)]
        with table.writer() as writer:
            for first in range(0, ITEMS, ITEMS // KILLS):
                writer.extend(number=np.arange(first, first + ITEMS // KILLS))
                time.sleep(0.02 * rng.random())
                victim = int(rng.integers(4))
                workers[victim].kill()
                workers[victim] = begin()
                lost += 1
        for worker in workers:
            assert worker.answer() == "done"
        table.check()
        batches = [np.fromfile(path, np.int64) for path in tmp_path.iterdir()]
        uses = Counter(np.concatenate(batches).tolist())
        assert max(uses.values()) <= TIMES
        left = set(np.concatenate([*table.keys(), np.empty(0, np.int64)]).tolist())
        assert len(left) < BATCH or "own" in way
        used = ITEMS * TIMES - sum(uses.values())
        assert 0 <= used - sum(TIMES - uses[key] for key in left) <= lost * BATCH
        told = table.stats().indexes["default"]
        assert told.in_flight == 0 and told.num_items == len(left)
        assert told.sampled - sum(uses.values()) <= lost * BATCH
        if not WAYS[way].get("replacement", True):
            assert all(len(set(batch)) == BATCH for some in batches for batch in some.reshape(-1, BATCH).tolist())
