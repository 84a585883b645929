"""The contract, held by a table in this process's memory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from processes.shm import needs_shared_memory

import relive
from contract.bad_config import BadConfigSuite
from contract.bad_input import BadInputSuite
from contract.bad_types import BadTypesSuite
from contract.changes import ChangesSuite
from contract.episodes import AbandonSuite, EpisodesSuite
from contract.explicit import BadExplicitSuite, ExplicitSuite
from contract.exponents import ExponentsSuite
from contract.groups import GroupsSuite
from contract.hindsight import HindsightSuite, PromptGroupsSuite
from contract.items import ItemsSuite
from contract.late import LateSuite
from contract.late_items import LateItemsSuite, LateLimitsSuite
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


class Local:
    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Any) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> relive.Table:
                more = {} if index is None else {"index": index}
                return stack.enter_context(relive.Table(spec, capacity, **more, **options))

            return make

        return open_with


class TestWriting(Local, WritingSuite): ...


class TestItems(Local, ItemsSuite): ...


class TestExplicit(Local, ExplicitSuite): ...


class TestBadExplicit(Local, BadExplicitSuite): ...


class TestTimeFirst(Local, TimeFirstSuite): ...


class TestRagged(Local, RaggedSuite): ...


class TestSequences(Local, SequencesSuite): ...


class TestEpisodes(Local, EpisodesSuite): ...


class TestOrders(Local, OrdersSuite): ...


class TestOwnSamplers(Local, OwnSamplersSuite): ...


class TestRanks(Local, RanksSuite): ...


class TestGroups(Local, GroupsSuite): ...


class TestHindsight(Local, HindsightSuite): ...


class TestPromptGroups(Local, PromptGroupsSuite): ...


class TestAbandon(Local, AbandonSuite): ...


class TestReading(Local, ReadingSuite): ...


class TestBatchOrder(Local, BatchOrderSuite): ...


class TestNextStep(Local, NextStepSuite): ...


class TestPriorities(Local, PrioritiesSuite): ...


class TestSteps(Local, StepsSuite): ...


class TestWhere(Local, WhereSuite): ...


class TestWhereIndex(Local, WhereIndexSuite): ...


class TestLimits(Local, LimitsSuite): ...


class TestExponents(Local, ExponentsSuite): ...


class TestMixtures(Local, MixturesSuite): ...


class TestChanges(Local, ChangesSuite): ...


class TestLate(Local, LateSuite): ...


class TestLateItems(Local, LateItemsSuite): ...


class TestLateLimits(Local, LateLimitsSuite): ...


class TestBadInput(Local, BadInputSuite): ...


class TestBadTypes(Local, BadTypesSuite): ...


class TestBadConfig(Local, BadConfigSuite): ...


def test_who_waits_for_itself_is_told_at_once() -> None:
    """The only thread there is, with a limiter that only it could move."""
    index = relive.Index(limiter=relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0))
    with relive.Table(plain_spec(), 100, index) as table, table.writer() as writer:
        with pytest.raises(errors.WaitsForItself):
            write_steps(writer, 0, 30)
        assert len(table) == 20
        assert issubclass(errors.WaitsForItself, errors.DeadlineExceeded)


def test_a_writer_does_not_pickle() -> None:
    import pickle

    with relive.Table(plain_spec(), 10) as table, table.writer() as writer:
        with pytest.raises(errors.NotShareable, match="writer"):
            pickle.dumps(writer)


@needs_shared_memory
def test_a_local_table_does_not_pickle(tmp_path: Path, shm_name: Any) -> None:
    """It has no address. Each way out that the error names leads to a pickle, or a folder, that can be loaded."""
    import pickle

    with relive.Table(plain_spec(), 10) as table:
        with pytest.raises(errors.NotShareable) as caught:
            pickle.dumps(table)
        for way_out in ("storage=File(folder)", "table.save(folder)", "relive.load(folder)", "SharedMemory(name)"):
            assert way_out in str(caught.value)
        with table.writer() as writer:
            write_steps(writer, 0, 3)
        table.save(tmp_path / "saved")
    with relive.load(tmp_path / "saved") as loaded:
        assert len(loaded) == 3
    with relive.Table(plain_spec(), 10, storage=relive.File(tmp_path / "kept")) as kept, kept.writer() as writer:
        write_steps(writer, 0, 4)
        packed = pickle.dumps(kept)
    with pickle.loads(packed) as again:
        assert len(again) == 4, "after the end of every handle"
    with relive.Table(plain_spec(), 10, storage=relive.SharedMemory(shm_name())) as shared:
        with pickle.loads(pickle.dumps(shared)) as other:
            assert len(other) == 0 and "while a process has it open" in str(caught.value)
