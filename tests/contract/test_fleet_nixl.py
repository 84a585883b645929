"""The contract, held by a table over two shards of another process, whose rows are read one-sidedly by NIXL.

As test_fleet_remote.py, whose owners send rows; what the reader does not read (use counts, kind start) its owner sends.
Left out, with reasons:
- what a table over mapped shards leaves out too (test_fleet.py).
- "told at once" (WaitsForItself): as for every remote table, nobody here knows that nobody else is connected.
- the same draws in every run: items are drawn with the random numbers of the shards' owners.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from fleet.owning import Owners
from fleet.tools import TRANSPORTS, needs_nixl

import relive
from contract.bad_input import BadInputSuite
from contract.bad_types import BadTypesSuite
from contract.changes import ChangesSuite
from contract.episodes import AbandonSuite, EpisodesSuite
from contract.exponents import ExponentsSuite
from contract.items import ItemsSuite
from contract.late import LateSuite
from contract.late_items import LateItemsSuite, LateLimitsSuite
from contract.over_shards import (
    ShardedLimitsSuite,
    ShardedMixturesSuite,
    ShardedOrdersSuite,
    ShardedRanksSuite,
    ShardedWhereIndexSuite,
)
from contract.own_samplers import OwnSamplersSuite
from contract.reading import ReadingSuite
from contract.sequences import SequencesSuite
from contract.time_first import TimeFirstSuite
from contract.tools import MakeTable
from contract.writing import WritingSuite
from relive.fleet import NotOverShards, ShardedTable, attach
from relive.fleet.nixl_agent import hold_agent

pytestmark = [needs_shared_memory, needs_nixl]


@pytest.fixture(scope="module")
def owners() -> Iterator[Owners]:
    """With an agent on both sides that outlasts a test: to begin one takes longer than most of them."""
    one = Owners(**TRANSPORTS)
    one.ask("hold_agent")
    agent = hold_agent()
    yield one
    agent.let_go()
    one.close()


class Fleet:
    """Two shards of the capacity asked for, owned over there; writers go to the first."""

    path = "nixl"

    @pytest.fixture
    def make_table(self, owners: Owners, shm_name: Any) -> Iterator[MakeTable]:
        with contextlib.ExitStack() as stack:

            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> ShardedTable:
                addresses = []
                for number in range(2):
                    storage = relive.SharedMemory(shm_name())
                    config = relive.TableConfig(spec, capacity, index, storage=storage, **options)
                    addresses.append(owners.own(number, config))
                    stack.callback(owners.ask, "close", addresses[-1])
                try:
                    return stack.enter_context(attach(addresses, local=0, stream=0, path=self.path))
                except NotOverShards as refused:
                    pytest.skip(str(refused))

            yield make


class TestNixlFleetWriting(Fleet, WritingSuite): ...


class TestNixlFleetItems(Fleet, ItemsSuite): ...


class TestNixlFleetTimeFirst(Fleet, TimeFirstSuite): ...


class TestNixlFleetSequences(Fleet, SequencesSuite): ...


class TestNixlFleetEpisodes(Fleet, EpisodesSuite): ...


class TestNixlFleetOwnSamplers(Fleet, OwnSamplersSuite): ...


class TestNixlFleetOrders(Fleet, ShardedOrdersSuite): ...


class TestNixlFleetRanks(Fleet, ShardedRanksSuite): ...


class TestNixlFleetAbandon(Fleet, AbandonSuite): ...


class TestNixlFleetReading(Fleet, ReadingSuite): ...


class TestNixlFleetWhereIndex(Fleet, ShardedWhereIndexSuite): ...


class TestNixlFleetLimits(Fleet, ShardedLimitsSuite): ...


class TestNixlFleetExponents(Fleet, ExponentsSuite): ...


class TestNixlFleetMixtures(Fleet, ShardedMixturesSuite): ...


class TestNixlFleetChanges(Fleet, ChangesSuite): ...


class TestNixlFleetLate(Fleet, LateSuite): ...


class TestNixlFleetLateItems(Fleet, LateItemsSuite): ...


class TestNixlFleetLateLimits(Fleet, LateLimitsSuite): ...


class TestNixlFleetBadInput(Fleet, BadInputSuite): ...


class TestNixlFleetBadTypes(Fleet, BadTypesSuite): ...
