"""The contract, held by a table that lives in a folder."""

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


class InFolder:
    """A table that lives in a folder, and was closed and opened again before its first step."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Callable[[], str]) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> relive.Table:
                more = {} if index is None else {"index": index}
                storage = relive.File(stack.enter_context(tempfile.TemporaryDirectory()), None)
                relive.Table(spec, capacity, **more, storage=storage, **options).close()
                return stack.enter_context(relive.Table(spec, capacity, **more, storage=storage, **options))

            return make

        return open_with


class TestFileWriting(InFolder, WritingSuite): ...


class TestFileItems(InFolder, ItemsSuite): ...


class TestFileExplicit(InFolder, ExplicitSuite): ...


class TestFileBadExplicit(InFolder, BadExplicitSuite): ...


class TestFileTimeFirst(InFolder, TimeFirstSuite): ...


class TestFileRagged(InFolder, RaggedSuite): ...


class TestFileSequences(InFolder, SequencesSuite): ...


class TestFileReading(InFolder, ReadingSuite): ...


class TestFileWhere(InFolder, WhereSuite): ...


class TestFileWhereIndex(InFolder, WhereIndexSuite): ...


class TestFileLimits(InFolder, LimitsSuite): ...


class TestFileExponents(InFolder, ExponentsSuite): ...


class TestFileMixtures(InFolder, MixturesSuite): ...


class TestFileChanges(InFolder, ChangesSuite): ...


class TestFileLate(InFolder, LateSuite): ...


class TestFileLateItems(InFolder, LateItemsSuite): ...


class TestFileLateLimits(InFolder, LateLimitsSuite): ...


class TestFileBadInput(InFolder, BadInputSuite): ...


class TestFileEpisodes(InFolder, EpisodesSuite): ...


class TestFileAbandon(InFolder, AbandonSuite): ...


class TestFileOrders(InFolder, OrdersSuite): ...


class TestFileOwnSamplers(InFolder, OwnSamplersSuite): ...


class TestFileRanks(InFolder, RanksSuite): ...


class TestFileGroups(InFolder, GroupsSuite): ...


class TestFileHindsight(InFolder, HindsightSuite): ...


class TestFilePromptGroups(InFolder, PromptGroupsSuite): ...
