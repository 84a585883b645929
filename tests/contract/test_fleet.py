"""The contract, held by a table over two shards in shared memory, the second of which stays empty.

Left out, with reasons (a table of these parts says NotOverShards; tests that make one skip with its sentence):
- explicit items, groups of episodes, ragged batches, Queue and StalenessBudget, where= of a draw.
- Hindsight and PromptGroups: not tried over shards yet.
- configurations of Table itself (BadConfigSuite): shards are made by their owners.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from processes.shm import needs_shared_memory

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
from relive.fleet import NotOverShards, ShardedTable, ShardOwner, attach

pytestmark = needs_shared_memory


class Fleet:
    """Two shards of the capacity asked for, both owned here; writers go to the first, as on a machine of their own."""

    @pytest.fixture
    def make_table(self, shm_name: Any) -> Iterator[MakeTable]:
        with contextlib.ExitStack() as stack:

            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> ShardedTable:
                names = [shm_name(), shm_name()]
                for number, name in enumerate(names):
                    storage = relive.SharedMemory(name)
                    config = relive.TableConfig(spec, capacity, index, storage=storage, **options)
                    stack.enter_context(ShardOwner(number, config))
                try:
                    return stack.enter_context(attach(names, local=0, stream=0))
                except NotOverShards as refused:
                    pytest.skip(str(refused))

            yield make


class TestFleetWriting(Fleet, WritingSuite): ...


class TestFleetItems(Fleet, ItemsSuite): ...


class TestFleetTimeFirst(Fleet, TimeFirstSuite): ...


class TestFleetSequences(Fleet, SequencesSuite): ...


class TestFleetEpisodes(Fleet, EpisodesSuite): ...


class TestFleetOwnSamplers(Fleet, OwnSamplersSuite): ...


class TestFleetOrders(Fleet, ShardedOrdersSuite): ...


class TestFleetRanks(Fleet, ShardedRanksSuite): ...


class TestFleetAbandon(Fleet, AbandonSuite): ...


class TestFleetReading(Fleet, ReadingSuite): ...


class TestFleetWhereIndex(Fleet, ShardedWhereIndexSuite): ...


class TestFleetLimits(Fleet, ShardedLimitsSuite): ...


class TestFleetExponents(Fleet, ExponentsSuite): ...


class TestFleetMixtures(Fleet, ShardedMixturesSuite): ...


class TestFleetChanges(Fleet, ChangesSuite): ...


class TestFleetLate(Fleet, LateSuite): ...


class TestFleetLateItems(Fleet, LateItemsSuite): ...


class TestFleetLateLimits(Fleet, LateLimitsSuite): ...


class TestFleetBadInput(Fleet, BadInputSuite): ...


class TestFleetBadTypes(Fleet, BadTypesSuite): ...
