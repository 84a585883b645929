"""The contract, held by a table over two shards in shared memory, the second of which stays empty (over_shards.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from processes.shm import needs_shared_memory

from contract.over_shards import classes_of, making
from contract.tools import MakeTable, Opening
from relive.fleet import ShardOwner

pytestmark = needs_shared_memory

EPOCH = 987_654_321_012_345_678  # any: keys of equal tables are compared


class Fleet:
    """Both owned here; writers go to the first, as on a machine of their own."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Callable[[], str]) -> MakeTable:
            def own(number: int, config: Any, name: str) -> str:
                stack.enter_context(ShardOwner(number, config, epoch=EPOCH))
                return name

            return making(stack, fresh, own)

        return open_with


globals().update(classes_of(Fleet, "TestFleet"))
