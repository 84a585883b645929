"""The contract, held by a shared table: by the handle that made it, and by one that was attached afterwards."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory, shared_files

import relive
from contract.bad_input import BadInputSuite
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

pytestmark = needs_shared_memory


@pytest.mark.thorough
class Shared:
    """The handle that made the table."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Callable[[], str]) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> relive.Table:
                more = {} if index is None else {"index": index}
                name = fresh()
                stack.callback(lambda: _assert_nothing_left(name))
                storage = relive.SharedMemory(name)
                return stack.enter_context(relive.Table(spec, capacity, storage=storage, **more, **options))

            return make

        return open_with


class Attached:
    """The same table through a second handle, which is all that another process has."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Callable[[], str]) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> relive.Table:
                more = {} if index is None else {"index": index}
                name = fresh()
                stack.callback(lambda: _assert_nothing_left(name))
                storage = relive.SharedMemory(name)
                timeout_s = {"timeout_s": options["timeout_s"]} if "timeout_s" in options else {}
                stack.enter_context(relive.Table(spec, capacity, storage=storage, **more, **options))
                return stack.enter_context(relive.attach(name, **timeout_s))

            return make

        return open_with


def _assert_nothing_left(name: str) -> None:
    assert not shared_files(name)


class TestAttachedWriting(Attached, WritingSuite): ...


class TestAttachedItems(Attached, ItemsSuite): ...


class TestAttachedExplicit(Attached, ExplicitSuite): ...


class TestAttachedBadExplicit(Attached, BadExplicitSuite): ...


class TestAttachedTimeFirst(Attached, TimeFirstSuite): ...


class TestAttachedRagged(Attached, RaggedSuite): ...


class TestAttachedSequences(Attached, SequencesSuite): ...


class TestAttachedReading(Attached, ReadingSuite):
    def test_determinism(self, make_table: MakeTable) -> None:
        """An attached handle draws its own stream: equal for equal handles of equal tables."""
        super().test_determinism(make_table)


class TestAttachedWhere(Attached, WhereSuite): ...


class TestAttachedWhereIndex(Attached, WhereIndexSuite): ...


class TestAttachedLimits(Attached, LimitsSuite): ...


class TestAttachedExponents(Attached, ExponentsSuite): ...


class TestAttachedMixtures(Attached, MixturesSuite): ...


class TestAttachedChanges(Attached, ChangesSuite): ...


class TestAttachedLate(Attached, LateSuite): ...


class TestAttachedLateItems(Attached, LateItemsSuite): ...


class TestAttachedLateLimits(Attached, LateLimitsSuite): ...


class TestAttachedBadInput(Attached, BadInputSuite): ...


class TestAttachedEpisodes(Attached, EpisodesSuite): ...


class TestAttachedOrders(Attached, OrdersSuite): ...


class TestAttachedOwnSamplers(Attached, OwnSamplersSuite): ...


class TestAttachedRanks(Attached, RanksSuite): ...


class TestAttachedGroups(Attached, GroupsSuite): ...


class TestAttachedHindsight(Attached, HindsightSuite): ...


class TestAttachedPromptGroups(Attached, PromptGroupsSuite): ...


class TestAttachedAbandon(Attached, AbandonSuite): ...


# The same suites through the handle that made the table: before a release (`make test-all`).


class TestWriting(Shared, WritingSuite): ...


class TestItems(Shared, ItemsSuite): ...


class TestExplicit(Shared, ExplicitSuite): ...


class TestBadExplicit(Shared, BadExplicitSuite): ...


class TestTimeFirst(Shared, TimeFirstSuite): ...


class TestRagged(Shared, RaggedSuite): ...


class TestSequences(Shared, SequencesSuite): ...


class TestReading(Shared, ReadingSuite): ...


class TestBatchOrder(Shared, BatchOrderSuite): ...


class TestNextStep(Shared, NextStepSuite): ...


class TestPriorities(Shared, PrioritiesSuite): ...


class TestSteps(Shared, StepsSuite): ...


class TestWhere(Shared, WhereSuite): ...


class TestWhereIndex(Shared, WhereIndexSuite): ...


class TestLimits(Shared, LimitsSuite): ...


class TestExponents(Shared, ExponentsSuite): ...


class TestMixtures(Shared, MixturesSuite): ...


class TestChanges(Shared, ChangesSuite): ...


class TestLate(Shared, LateSuite): ...


class TestLateItems(Shared, LateItemsSuite): ...


class TestLateLimits(Shared, LateLimitsSuite): ...


class TestBadInput(Shared, BadInputSuite): ...


class TestEpisodes(Shared, EpisodesSuite): ...


class TestOrders(Shared, OrdersSuite): ...


class TestOwnSamplers(Shared, OwnSamplersSuite): ...


class TestRanks(Shared, RanksSuite): ...


class TestGroups(Shared, GroupsSuite): ...


class TestHindsight(Shared, HindsightSuite): ...


class TestPromptGroups(Shared, PromptGroupsSuite): ...


class TestAbandon(Shared, AbandonSuite): ...


def fill(name: str, **options: Any) -> tuple[relive.Table, np.ndarray]:
    table = relive.Table(plain_spec(), 200, storage=relive.SharedMemory(name), **options)
    with table.writer() as writer:
        keys = write_steps(writer, 0, 100)
    return table, keys


def test_a_name_that_is_taken(shm_name: Any) -> None:
    name = shm_name()
    table, keys = fill(name)
    with table:
        with pytest.raises(errors.NameTaken) as caught:
            relive.Table(plain_spec(), 50, storage=relive.SharedMemory(name))
        assert name in caught.value.path
        assert len(table) == 100 and table.gather(keys).present.all()
        table.check()
    assert not shared_files(name)


def test_a_name_given_again(shm_name: Any) -> None:
    """overwrite=True replaces a table that only this process has open, and closes the handles on that table."""
    name = shm_name()
    table, _ = fill(name)
    storage = relive.SharedMemory(name, overwrite=True)
    with relive.Table(plain_spec(), 50, storage=storage) as again:
        assert table.closed and len(again) == 0 and again.capacity == 50
        again.check()
    assert not shared_files(name)


def test_a_name_that_nobody_has(shm_name: Any) -> None:
    with pytest.raises(errors.NoSuchTable):
        relive.attach(shm_name())


def test_the_last_close_removes_the_file(shm_name: Any) -> None:
    name = shm_name()
    table, keys = fill(name)
    second = relive.attach(name)
    table.close()
    assert shared_files(name) and second.gather(keys).present.all()
    second.close()
    assert not shared_files(name)
    with pytest.raises(errors.NoSuchTable):
        relive.attach(name)
    with relive.Table(plain_spec(), 50, storage=relive.SharedMemory(name)) as again:
        assert len(again) == 0


def test_streams_draw_differently_and_again_alike(shm_name: Any) -> None:
    def keys_of(stream: int) -> list[list[int]]:
        name = shm_name()
        table, _ = fill(name, seed=11)
        with table, relive.attach(name, stream=stream) as reader:
            return [reader.draw(16).item_keys.tolist() for _ in range(4)]

    assert keys_of(1) == keys_of(1) and keys_of(1) != keys_of(2)


def test_a_handle_pickles_as_an_address(shm_name: Any) -> None:
    table, keys = fill(shm_name())
    with table:
        packed = pickle.dumps(table)
        assert len(packed) < 4096
        with pickle.loads(packed) as second:
            assert second.gather(keys).present.all()
            with second.writer() as writer:
                more = write_steps(writer, 100, 3)
        assert table.gather(more).present.all()


@pytest.mark.parametrize("flag", ["no", 0, None, [], np.zeros(3)], ids=repr)
def test_read_only_is_a_flag(shm_name: Any, flag: Any) -> None:
    name = shm_name()
    with relive.Table(plain_spec(), 10, storage=relive.SharedMemory(name)):
        with pytest.raises(errors.InvalidConfig, match="read_only"):
            relive.attach(name, read_only=flag)


def test_read_only(shm_name: Any) -> None:
    """Draws and gathers; changes nothing and counts nothing."""
    name = shm_name()
    table, keys = fill(name)
    with table:
        before = table.stats()
        with relive.attach(name, read_only=True) as reader:
            assert len(reader) == 100
            batch = reader.sample(32)
            assert set(batch.item_keys.tolist()) <= set(keys.tolist())
            assert reader.gather(keys)["reward"].tolist() == list(range(100))
            for call in (
                lambda: reader.writer(),
                lambda: reader.update_priorities(keys, np.ones(100)),
                lambda: reader.delete(keys),
                lambda: reader.clear(),
                lambda: reader.set_policy_version(3),
            ):
                with pytest.raises(errors.ReadOnly):
                    call()
        assert table.gather(keys).present.all()
        assert str(before) == str(table.stats())
        table.check()
