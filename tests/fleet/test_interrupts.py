"""A signal's handler that raises within a draw of served shards: nothing stays in flight on the owners."""

from __future__ import annotations

import gc
import random
import signal
from typing import Any

import pytest
from processes.tools import eventually

import relive
from fleet.tools import config_of, fill
from relive.fleet import ShardOwner, attach

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timer that sends signals")


class Interrupted(Exception):
    """The error that the handler raises."""


@pytest.mark.parametrize("is_mixed", [False, True])
def test_draws_that_are_lost_go_back(shm_name: Any, is_mixed: bool) -> None:
    chance, is_within, num_raised = random.Random(3), False, 0

    def handler(number: int, frame: Any) -> None:
        if is_within:
            raise Interrupted

    with (
        ShardOwner(0, config_of(shm_name())) as owner,
        attach([owner.serve("grpc://127.0.0.1:0")], path="service") as table,
    ):
        fill(table, 0, 0, 100)
        reader: Any = relive.Mixture({"only": 1.0}, {"only": table}) if is_mixed else table
        before = signal.signal(signal.SIGALRM, handler)
        try:
            for _ in range(500):
                try:
                    is_within = True
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-3))
                    reader.sample(8, timeout_s=5.0)
                except Interrupted:
                    num_raised += 1
                finally:
                    is_within = False
                    signal.setitimer(signal.ITIMER_REAL, 0.0)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert num_raised > 0
        gc.collect()
        reader.sample(8)
        assert eventually(lambda: table.stats().indexes["default"].in_flight == 0)
