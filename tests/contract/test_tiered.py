"""The contract, held by a table whose large columns are mostly on the disk.

Every column but the scalars counts as large here, and memory has room for the fewest pages there can be.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from tiered.tools import needs_tiers, smallest_storage

import relive
from contract.bad_config import BadConfigSuite
from contract.bad_input import BadInputSuite
from contract.bad_types import BadTypesSuite
from contract.changes import ChangesSuite
from contract.episodes import ALL_ITEMS, AbandonSuite, EpisodesSuite
from contract.explicit import ExplicitSuite
from contract.exponents import ExponentsSuite
from contract.groups import GroupsSuite
from contract.hindsight import HindsightSuite, PromptGroupsSuite, goal_spec, hindsight
from contract.items import ItemsSuite
from contract.late import LateSuite
from contract.late_items import LateItemsSuite
from contract.limits import LimitsSuite
from contract.mixtures import MixturesSuite
from contract.orders import OrdersSuite
from contract.own_samplers import OwnSamplersSuite
from contract.ragged import RaggedSuite
from contract.ranks import RanksSuite
from contract.reading import ReadingSuite
from contract.sequences import SequencesSuite
from contract.steps import BatchOrderSuite, NextStepSuite, PrioritiesSuite, StepsSuite
from contract.time_first import TimeFirstSuite
from contract.tools import MakeTable, Opening, plain_spec, write_steps
from contract.where import WhereSuite
from contract.where_index import WhereIndexSuite
from contract.writing import WritingSuite
from relive import errors

pytestmark = needs_tiers


class OnDisk:
    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls, tmp_path_factory: pytest.TempPathFactory) -> Opening:
        folder = tmp_path_factory.mktemp("pages")

        def open_with(stack: contextlib.ExitStack, fresh: Any) -> MakeTable:
            stack.callback(_assert_empty, folder)

            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> relive.Table:
                more = {} if index is None else {"index": index}
                if "storage" not in options:
                    lanes = min(options.get("max_lanes", 4), 64)
                    options["storage"] = smallest_storage(folder, spec, capacity, index, lanes, **options)
                return stack.enter_context(relive.Table(spec, capacity, **more, **options))

            return make

        return open_with


def _assert_empty(folder: Path) -> None:
    assert not list(folder.iterdir()), "the page file has no name"


class TestWriting(OnDisk, WritingSuite): ...


class TestItems(OnDisk, ItemsSuite): ...


class TestExplicit(OnDisk, ExplicitSuite): ...


class TestLateItems(OnDisk, LateItemsSuite): ...


class TestOrders(OnDisk, OrdersSuite): ...


class TestOwnSamplers(OnDisk, OwnSamplersSuite): ...


class TestRanks(OnDisk, RanksSuite): ...


class TestGroups(OnDisk, GroupsSuite): ...


class TestHindsight(OnDisk, HindsightSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls, tmp_path_factory: pytest.TempPathFactory) -> Opening:
        """Goals of 8 bytes stay in memory; larger columns lie on the disk."""
        storage = relive.Tiered(tmp_path_factory.mktemp("goals"), "16MiB", min_column_bytes=8, io_threads=2)
        return lambda stack, fresh: (
            lambda spec, capacity, index=None, **options: stack.enter_context(
                relive.Table(spec, capacity, index or relive.Index(), storage=storage, **options)
            )
        )

    def test_goals_on_disk_are_refused(self, tmp_path: Path) -> None:
        storage = relive.Tiered(tmp_path, "16MiB", min_column_bytes=0, io_threads=2)
        with pytest.raises(errors.InvalidConfig, match="on disk"):
            relive.Table(goal_spec(), 1000, hindsight(), storage=storage)


class TestPromptGroups(OnDisk, PromptGroupsSuite): ...


class TestTimeFirst(OnDisk, TimeFirstSuite): ...


class TestRagged(OnDisk, RaggedSuite): ...


class TestSequences(OnDisk, SequencesSuite): ...


class TestEpisodes(OnDisk, EpisodesSuite): ...


class TestAbandon(OnDisk, AbandonSuite):
    INDEXES = {name: index for name, index in ALL_ITEMS.items() if name != "chosen"}  # no explicit items in tiers


class TestReading(OnDisk, ReadingSuite): ...


class TestBatchOrder(OnDisk, BatchOrderSuite): ...


class TestNextStep(OnDisk, NextStepSuite): ...


class TestPriorities(OnDisk, PrioritiesSuite): ...


class TestSteps(OnDisk, StepsSuite): ...


class TestWhere(OnDisk, WhereSuite): ...


class TestWhereIndex(OnDisk, WhereIndexSuite): ...


class TestLimits(OnDisk, LimitsSuite): ...


class TestExponents(OnDisk, ExponentsSuite): ...


class TestMixtures(OnDisk, MixturesSuite): ...


class TestChanges(OnDisk, ChangesSuite): ...


class TestLate(OnDisk, LateSuite): ...


class TestBadInput(OnDisk, BadInputSuite): ...


class TestBadTypes(OnDisk, BadTypesSuite): ...


class TestBadConfig(OnDisk, BadConfigSuite): ...


def test_most_pages_of_such_a_table_are_on_the_disk(tmp_path: Path) -> None:
    """Else the suite above would say nothing."""
    storage = smallest_storage(tmp_path, plain_spec(), 1000)
    with relive.Table(plain_spec(), 1000, storage=storage) as table, table.writer() as writer:
        write_steps(writer, 0, 500)
        tiers = table.stats().tiers
        assert tiers is not None and tiers.pages_on_disk > tiers.pages_in_ram > 0


def test_a_tiered_table_does_not_pickle(tmp_path: Path) -> None:
    """It has no address."""
    import pickle

    storage = relive.Tiered(tmp_path, "64MiB", min_column_bytes=0)
    with relive.Table(plain_spec(), 10, storage=storage) as table, pytest.raises(errors.NotShareable):
        pickle.dumps(table)
