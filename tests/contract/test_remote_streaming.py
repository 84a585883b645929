"""The contract, held by streaming writers: the same suites, with every writer opened by streaming=.

Refusals that only the server can find come at a later call, as Unacknowledged. tests/service has the tests of those
rows. Tests that expect the refusal at the call itself are left out here, by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from service.hosts import Host

import relive
from contract.changes import ChangesSuite
from contract.episodes import AbandonSuite, EpisodesSuite
from contract.explicit import ExplicitSuite
from contract.groups import GroupsSuite
from contract.items import ItemsSuite
from contract.late import LateSuite
from contract.late_items import LateItemsSuite
from contract.orders import OrdersSuite
from contract.ragged import RaggedSuite
from contract.ranks import RanksSuite
from contract.sequences import SequencesSuite
from contract.time_first import TimeFirstSuite
from contract.tools import MakeTable, Opening
from contract.writing import WritingSuite
from relive.service import Streaming, connect

pytestmark = needs_shared_memory

LATE = "the server's refusal comes at a later call of a streaming writer: tests/service"


class StreamsByDefault:
    """A remote table whose writers stream; everything else is the table's own."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def writer(self, num_lanes: int | None = None) -> Any:
        return self._table.writer(num_lanes, streaming=Streaming(max_rows=64, linger_s=0.001))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def __len__(self) -> int:
        return len(self._table)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    one = Host()
    yield one
    one.close()


class Streamed:
    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls, host: Host) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Callable[[], str]) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> Any:
                storage = relive.SharedMemory(fresh())
                address = host.serve(spec, capacity, index, storage=storage, **options)
                stack.callback(host.stop, address)
                return StreamsByDefault(stack.enter_context(connect(address, spec=spec)))

            return make

        return open_with


class TestStreamedWriting(Streamed, WritingSuite):
    def test_next_state(self, table: Any) -> None:
        pytest.skip(LATE)

    def test_end_episode(self, table: Any) -> None:
        pytest.skip(LATE)

    def test_end_episode_after_a_given_next(self, table: Any) -> None:
        pytest.skip(LATE)


class TestStreamedItems(Streamed, ItemsSuite):
    def test_a_writer_waits_for_all_limiters(self, make_table: MakeTable) -> None:
        pytest.skip(LATE)

    def test_keys_of_a_single_lane_are_scalars(self, table: Any) -> None:
        pytest.skip("a streamed key is an int once it is read")


class TestStreamedTimeFirst(Streamed, TimeFirstSuite): ...


class TestStreamedRagged(Streamed, RaggedSuite): ...


@pytest.mark.thorough  # it writes as the other suites do
class TestStreamedSequences(Streamed, SequencesSuite):
    def test_a_step_too_many_is_refused(self, make_table: MakeTable) -> None:
        pytest.skip(LATE)


class TestStreamedChanges(Streamed, ChangesSuite): ...


class TestStreamedLate(Streamed, LateSuite): ...


class TestStreamedLateItems(Streamed, LateItemsSuite): ...


class TestStreamedExplicit(Streamed, ExplicitSuite): ...


class TestStreamedEpisodes(Streamed, EpisodesSuite):
    def test_a_value_that_changes_in_an_episode(self, make_table: MakeTable) -> None:
        pytest.skip(LATE)

    def test_a_value_that_changes_within_a_block(self, make_table: MakeTable) -> None:
        pytest.skip(LATE)


class TestStreamedAbandon(Streamed, AbandonSuite): ...


@pytest.mark.thorough  # it writes as the other suites do
class TestStreamedOrders(Streamed, OrdersSuite): ...


@pytest.mark.thorough  # it writes as the other suites do
class TestStreamedRanks(Streamed, RanksSuite): ...


class TestStreamedGroups(Streamed, GroupsSuite):
    def test_limits_and_use_counts_count_groups(self, make_table: MakeTable) -> None:
        pytest.skip(LATE)

    def test_a_step_too_many(self, make_table: MakeTable) -> None:
        pytest.skip(LATE)
