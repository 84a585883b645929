"""The contract, held by a table of another process over loopback.

Left out, with reasons:
- configurations of Table itself (BadConfigSuite): a remote table is connected to, never made, through the wire.
- "told at once" (WaitsForItself): a client cannot know that no other client is connected, so it waits to its deadline.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from service.hosts import Host

import relive
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
from relive.service import RemoteTable, connect

pytestmark = needs_shared_memory


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    one = Host()
    yield one
    one.close()


class Remote:
    """make_table makes the table in shared memory of the serving process and connects to it."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls, host: Host) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Callable[[], str]) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> RemoteTable:
                storage = relive.SharedMemory(fresh())
                address = host.serve(spec, capacity, index, storage=storage, **options)
                stack.callback(host.stop, address)
                return stack.enter_context(connect(address, spec=spec))

            return make

        return open_with


class TestRemoteWriting(Remote, WritingSuite): ...


class TestRemoteItems(Remote, ItemsSuite): ...


class TestRemoteExplicit(Remote, ExplicitSuite): ...


class TestRemoteBadExplicit(Remote, BadExplicitSuite): ...


class TestRemoteTimeFirst(Remote, TimeFirstSuite): ...


class TestRemoteRagged(Remote, RaggedSuite): ...


class TestRemoteSequences(Remote, SequencesSuite): ...


class TestRemoteEpisodes(Remote, EpisodesSuite): ...


class TestRemoteOrders(Remote, OrdersSuite): ...


class TestRemoteOwnSamplers(Remote, OwnSamplersSuite): ...


class TestRemoteRanks(Remote, RanksSuite): ...


class TestRemoteGroups(Remote, GroupsSuite): ...


class TestRemoteHindsight(Remote, HindsightSuite): ...


class TestRemotePromptGroups(Remote, PromptGroupsSuite): ...


class TestRemoteAbandon(Remote, AbandonSuite): ...


class TestRemoteReading(Remote, ReadingSuite): ...


class TestRemoteBatchOrder(Remote, BatchOrderSuite): ...


class TestRemoteNextStep(Remote, NextStepSuite): ...


class TestRemotePriorities(Remote, PrioritiesSuite): ...


class TestRemoteSteps(Remote, StepsSuite): ...


class TestRemoteWhere(Remote, WhereSuite): ...


class TestRemoteWhereIndex(Remote, WhereIndexSuite): ...


class TestRemoteLimits(Remote, LimitsSuite): ...


class TestRemoteExponents(Remote, ExponentsSuite): ...


class TestRemoteMixtures(Remote, MixturesSuite): ...


class TestRemoteChanges(Remote, ChangesSuite): ...


class TestRemoteLate(Remote, LateSuite): ...


class TestRemoteLateItems(Remote, LateItemsSuite): ...


class TestRemoteLateLimits(Remote, LateLimitsSuite): ...


class TestRemoteBadInput(Remote, BadInputSuite): ...


class TestRemoteBadTypes(Remote, BadTypesSuite): ...


def test_a_remote_handle_pickles_as_an_address(host: Host, shm_name: Any) -> None:
    address = host.serve(plain_spec(), 200, storage=relive.SharedMemory(shm_name()))
    with connect(address, timeout_s=30.0) as table:
        with table.writer() as writer:
            keys = write_steps(writer, 0, 20)
        packed = pickle.dumps(table)
        assert len(packed) < 4096
        with pickle.loads(packed) as second:
            assert second.gather(keys).present.all() and second.timeout_s == 30.0
    host.stop(address)


def test_who_waits_for_itself_waits_to_its_deadline(host: Host, shm_name: Any) -> None:
    """Another client could end the wait, so the server cannot tell at once."""
    index = relive.Index(limiter=relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0))
    address = host.serve(plain_spec(), 100, index, storage=relive.SharedMemory(shm_name()))
    with connect(address) as table, table.writer() as writer:
        write_steps(writer, 0, 20)
        with pytest.raises(errors.DeadlineExceeded) as caught:
            writer.append(**{"observation": [20.0, 20.0], "action": 0, "reward": 0.0}, timeout_s=0.3)
        assert type(caught.value) is errors.DeadlineExceeded and caught.value.waited_s >= 0.25
        assert len(table) == 20
    host.stop(address)
