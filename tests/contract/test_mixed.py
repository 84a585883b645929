"""The contract of reading, held by a mixture of one source: sample, draw, gather and batches go through it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import relive
from contract.episodes import EpisodesSuite
from contract.explicit import ExplicitSuite
from contract.exponents import ExponentsSuite
from contract.groups import GroupsSuite
from contract.hindsight import HindsightSuite, PromptGroupsSuite
from contract.items import ItemsSuite
from contract.late import LateSuite
from contract.late_items import LateItemsSuite, LateLimitsSuite
from contract.limits import LimitsSuite
from contract.orders import OrdersSuite
from contract.ragged import RaggedSuite
from contract.ranks import RanksSuite
from contract.reading import ReadingSuite
from contract.sequences import SequencesSuite
from contract.time_first import TimeFirstSuite
from contract.tools import MakeTable, Opening
from contract.where import WhereSuite
from contract.where_index import WhereIndexSuite


class MixedTable:
    """A local table that is read by mixtures, each of one of its indexes. All other calls go to the table."""

    def __init__(self, table: relive.Table) -> None:
        self._table = table
        self._mixtures: dict[str, relive.Mixture] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def __len__(self) -> int:
        return len(self._table)

    def __enter__(self) -> MixedTable:
        return self

    def __exit__(self, *problem: object) -> None:
        self._table.close()

    def sample(self, num_items: int, *arguments: Any, index: str | None = None, **more: Any) -> relive.Batch:
        return self._mixture(index).sample(num_items, *arguments, **more)

    def batches(self, num_items: int, *arguments: Any, index: str | None = None, **more: Any) -> Any:
        return self._mixture(index).batches(num_items, *arguments, **more)

    def draw(self, num_items: int, *arguments: Any, index: str | None = None, **more: Any) -> relive.Draw:
        mixture = self._mixture(index)
        drawn = mixture.draw(num_items, *arguments, **more)
        assert drawn.source is not None
        made = relive.Draw(drawn.item_keys, drawn.probabilities, drawn.num_live_items, self._name(index))
        return made.of_sources(drawn.source, mixture.names)

    def gather(self, items: Any, columns: Any = None, out: Any = None, *, index: str | None = None) -> relive.Batch:
        if isinstance(items, relive.Draw) and items.source is not None and out is None and index is None:
            return self._mixture(items.index).gather(items, columns)
        return self._table.gather(items, columns, out, index=index)

    def _name(self, index: str | None) -> str:
        return next(iter(self._table.indexes)) if index is None else index

    def _mixture(self, index: str | None) -> relive.Mixture:
        name = self._name(index)
        if name not in self._mixtures:
            self._mixtures[name] = relive.Mixture({"only": 1.0}, {"only": (self._table, name)})
        return self._mixtures[name]


class Mixed:
    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Any) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> Any:
                more = {} if index is None else {"index": index}
                return MixedTable(stack.enter_context(relive.Table(spec, capacity, **more, **options)))

            return make

        return open_with


class TestItems(Mixed, ItemsSuite): ...


class TestExplicit(Mixed, ExplicitSuite): ...


class TestTimeFirst(Mixed, TimeFirstSuite): ...


class TestRagged(Mixed, RaggedSuite): ...


class TestSequences(Mixed, SequencesSuite): ...


class TestEpisodes(Mixed, EpisodesSuite): ...


class TestGroups(Mixed, GroupsSuite): ...


class TestHindsight(Mixed, HindsightSuite):
    test_goals_of_a_mixture_have_their_rewards = None  # these two make mixtures of tables, which a MixedTable is not
    test_a_function_that_is_false_is_a_function = None  # type: ignore[assignment]


class TestPromptGroups(Mixed, PromptGroupsSuite): ...


class TestOrders(Mixed, OrdersSuite): ...


class TestRanks(Mixed, RanksSuite): ...


class TestReading(Mixed, ReadingSuite): ...


class TestWhere(Mixed, WhereSuite): ...


class TestWhereIndex(Mixed, WhereIndexSuite): ...


class TestLimits(Mixed, LimitsSuite): ...


class TestExponents(Mixed, ExponentsSuite): ...


class TestLate(Mixed, LateSuite): ...


class TestLateItems(Mixed, LateItemsSuite): ...


class TestLateLimits(Mixed, LateLimitsSuite): ...
