"""The contract that a table over several shards holds on every path, the same suites.

If such a table refuses a case (docs/fleet.md), the refusal is tested in the place of the case. Left out, with reasons
(a table of these parts says NotOverShards; tests that make one skip with its sentence):
- explicit items, where= of a draw.
- Hindsight: not tried over shards yet.
- configurations of Table itself (BadConfigSuite): shards are made by their owners.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import relive
from contract.bad_input import BadInputSuite
from contract.bad_types import BadTypesSuite
from contract.changes import ChangesSuite
from contract.episodes import AbandonSuite, EpisodesSuite
from contract.exponents import ExponentsSuite
from contract.groups import GroupsSuite
from contract.hindsight import PromptGroupsSuite
from contract.items import ItemsSuite
from contract.late import LateSuite
from contract.late_items import LateItemsSuite, LateLimitsSuite
from contract.limits import LimitsSuite
from contract.mixtures import MixturesSuite
from contract.orders import ORDERS, OrdersSuite
from contract.own_samplers import OwnSamplersSuite
from contract.ragged import RaggedSuite
from contract.ranks import RanksSuite
from contract.reading import ReadingSuite
from contract.sequences import SequencesSuite
from contract.steps import BatchOrderSuite, NextStepSuite, PrioritiesSuite, StepsSuite
from contract.time_first import TimeFirstSuite
from contract.tools import MakeTable, plain_spec, prioritized, write_steps
from contract.where_index import WhereIndexSuite
from contract.writing import WritingSuite
from relive.fleet import NotOverShards, ShardedTable, attach


class ShardedWhereIndexSuite(WhereIndexSuite):
    def test_a_draw_with_a_condition_from_an_index_with_one(self, make_table: MakeTable) -> None:
        """The share that passes is not known over all shards; the index's own condition goes on."""
        table = make_table(plain_spec(), 100, prioritized(where="action < 20"))
        with table.writer() as writer:
            write_steps(writer, 0, 40)
            with pytest.raises(NotOverShards, match="where="):
                table.sample(100, where="action > 10")
            assert max(table.sample(100)["action"].tolist()) < 20


class ShardedLimitsSuite(LimitsSuite):
    def test_changing_limiters_and_who_waits(self, make_table: MakeTable) -> None:
        """It would have to reach every handle; the limiter that the shards were made with stays."""
        table = make_table(plain_spec(), 100, relive.Index(limiter=relive.MinSize(50)), max_lanes=4)
        with pytest.raises(NotOverShards, match="set_limiter"):
            table.set_limiter(relive.MinSize(10))
        assert table.limiter() == relive.MinSize(50)


def _refuses_conditions(make_table: MakeTable, sampler: Any) -> None:
    table = make_table(plain_spec(), 100, relive.Index(sampler=sampler))
    with table.writer() as writer:
        write_steps(writer, 0, 5)
        with pytest.raises(NotOverShards, match="where="):
            table.sample(3, where="action >= 2")
        assert table.sample(3, timeout_s=0.0).num_items == 3


class ShardedOrdersSuite(OrdersSuite):
    @pytest.mark.parametrize("sampler", ORDERS, ids=repr)
    @pytest.mark.parametrize("max_times", [None])
    def test_a_condition_goes_through_the_order(self, make_table: MakeTable, sampler: Any, max_times: None) -> None:
        """The share that passes is not known over all shards."""
        _refuses_conditions(make_table, sampler)

    test_a_condition_hands_each_item_out_once = None  # type: ignore[assignment]  # there are none


class ShardedRanksSuite(RanksSuite):
    def test_a_condition_of_a_draw(self, make_table: MakeTable) -> None:
        """The same."""
        _refuses_conditions(make_table, relive.RankBased(1.0))


class ShardedMixturesSuite(MixturesSuite):
    def test_conditions_of_all_sources_and_of_some(self, make_table: MakeTable) -> None:
        """A source over shards refuses a condition. Nothing is then drawn from the other source."""
        table, other = (make_table(plain_spec(), 100, relive.Index()) for _ in range(2))
        for one in (table, other):
            with one.writer() as writer:
                write_steps(writer, 0, 40)
        with relive.Mixture({"a": 0.5, "b": 0.5}, {"a": table, "b": other}) as mixture:
            with pytest.raises(NotOverShards, match="where="):
                mixture.sample(20, where={"b": "action < 5"})
            assert mixture.sample(20).num_items == 20


SUITES: tuple[type, ...] = (
    WritingSuite,
    ItemsSuite,
    TimeFirstSuite,
    RaggedSuite,
    GroupsSuite,
    PromptGroupsSuite,
    SequencesSuite,
    EpisodesSuite,
    OwnSamplersSuite,
    ShardedOrdersSuite,
    ShardedRanksSuite,
    AbandonSuite,
    ReadingSuite,
    ShardedWhereIndexSuite,
    ShardedLimitsSuite,
    ExponentsSuite,
    ShardedMixturesSuite,
    ChangesSuite,
    LateSuite,
    LateItemsSuite,
    LateLimitsSuite,
    BatchOrderSuite,
    NextStepSuite,
    PrioritiesSuite,
    StepsSuite,
    BadInputSuite,
    BadTypesSuite,
)


def classes_of(fleet: type, prefix: str) -> dict[str, type]:
    """A test class for each suite, for the globals of its module. fleet: has the fixture make_table."""
    names = {suite: prefix + suite.__name__.removeprefix("Sharded").removesuffix("Suite") for suite in SUITES}
    module = {"__module__": fleet.__module__}
    return {name: type(name, (fleet, suite), module) for suite, name in names.items()}


def making(
    stack: contextlib.ExitStack, shm_name: Callable[[], str], own: Callable[[int, Any, str], str], **attached: Any
) -> MakeTable:
    """A make_table for tables over two shards. Each shard has the requested capacity. Writers write to the first shard.

    own(number, config, shm name) owns a shard until the stack ends, and returns its address. attached: for attach().
    """

    def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> ShardedTable:
        places = []
        for number in range(2):
            name = shm_name()
            config = relive.TableConfig(spec, capacity, index, storage=relive.SharedMemory(name), **options)
            places.append(own(number, config, name))
        try:
            return stack.enter_context(attach(places, local=0, stream=0, **attached))
        except NotOverShards as refused:
            pytest.skip(str(refused))

    return make
