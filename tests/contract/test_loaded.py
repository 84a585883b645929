"""The contract, held by a table that was saved and loaded, twice over, before its first step."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from typing import Any

import pytest

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
from contract.time_first import TimeFirstSuite
from contract.tools import MakeTable, Opening
from contract.where import WhereSuite
from contract.where_index import WhereIndexSuite
from contract.writing import WritingSuite
from relive.saving import loading


class Loaded:
    """A table in this process's memory, loaded from a save of a table that was loaded from a save."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Callable[[], str]) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> relive.Table:
                more = {} if index is None else {"index": index}
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                table = relive.Table(spec, capacity, **more, **options)
                for _ in range(2):
                    table.save(folder)
                    table.close()
                    with pytest.MonkeyPatch.context() as patch:  # else equal tables have keys of their own
                        patch.setattr(loading, "entropy", lambda: 7)
                        table = relive.load(folder)
                return stack.enter_context(table)

            return make

        return open_with


class TestLoadedWriting(Loaded, WritingSuite): ...


class TestLoadedItems(Loaded, ItemsSuite): ...


class TestLoadedExplicit(Loaded, ExplicitSuite): ...


class TestLoadedBadExplicit(Loaded, BadExplicitSuite): ...


class TestLoadedTimeFirst(Loaded, TimeFirstSuite): ...


class TestLoadedRagged(Loaded, RaggedSuite): ...


class TestLoadedSequences(Loaded, SequencesSuite): ...


class TestLoadedReading(Loaded, ReadingSuite): ...


class TestLoadedWhere(Loaded, WhereSuite): ...


class TestLoadedWhereIndex(Loaded, WhereIndexSuite): ...


class TestLoadedLimits(Loaded, LimitsSuite): ...


class TestLoadedExponents(Loaded, ExponentsSuite): ...


class TestLoadedMixtures(Loaded, MixturesSuite): ...


class TestLoadedChanges(Loaded, ChangesSuite): ...


class TestLoadedLate(Loaded, LateSuite): ...


class TestLoadedLateItems(Loaded, LateItemsSuite): ...


class TestLoadedLateLimits(Loaded, LateLimitsSuite): ...


class TestLoadedBadInput(Loaded, BadInputSuite): ...


class TestLoadedEpisodes(Loaded, EpisodesSuite): ...


class TestLoadedAbandon(Loaded, AbandonSuite): ...


class TestLoadedOrders(Loaded, OrdersSuite): ...


class TestLoadedOwnSamplers(Loaded, OwnSamplersSuite): ...


class TestLoadedRanks(Loaded, RanksSuite): ...


class TestLoadedGroups(Loaded, GroupsSuite): ...


class TestLoadedHindsight(Loaded, HindsightSuite): ...


class TestLoadedPromptGroups(Loaded, PromptGroupsSuite): ...
