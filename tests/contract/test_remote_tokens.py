"""The contract, held over TLS by a server that asks for tokens.

Synchronous tables have a handle for each role, and each call is made by the handle whose token has that role alone.
Streaming tables have one handle with a token of all roles, because a handle orders its own calls after its own rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from service.certificates import Authority, needs_openssl
from service.doors import tokens_for
from service.hosts import Host

import relive
from contract import test_remote_streaming as streamed
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
from contract.tools import MakeTable, Opening
from contract.where import WhereSuite
from contract.where_index import WhereIndexSuite
from contract.writing import WritingSuite
from relive.core.roles import ROLES
from relive.service import ClientTLS, connect
from relive.service.wire.tokens import add_token

pytestmark = [needs_shared_memory, needs_openssl]
thorough = pytest.mark.thorough
ADDRESS = "grpc+tls://127.0.0.1:0"

# The calls of a handle that need another role than read.
ROLE_OF = {
    **dict.fromkeys(("writer", "create_items", "complete"), "append"),
    **dict.fromkeys(("update_priorities", "set_policy_version"), "update"),
    **dict.fromkeys(("clear", "delete", "set_limiter", "set_priority_exponent", "check"), "admin"),
}


class Door(NamedTuple):
    """A process that serves behind TLS and tokens, and the secrets of its clients."""

    host: Host
    files: tuple[str, str, str]
    tls: ClientTLS
    of_role: dict[str, str]
    everything: str

    def serve(self, spec: relive.StepSpec, capacity: Any, index: Any, options: dict[str, Any]) -> str:
        """Address of a new table."""
        address: str = self.host.serve(spec, capacity, index, ADDRESS, door=self.files, **options)
        return address


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder: Path = tmp_path_factory.mktemp("door")
    authority, path = Authority(folder), folder / "tokens.toml"
    of_role, everything = tokens_for(path, "table"), add_token(str(path), "everything", ROLES, ["table"])
    certificate, key = authority.issue("server")
    host = Host()
    yield Door(host, (certificate, key, str(path)), ClientTLS(authority.path), of_role, everything)
    host.close()


class ByRole:
    """A remote table whose calls each have a token of the one role that they need."""

    def __init__(self, handles: dict[str, Any]) -> None:
        self._handles = handles

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handles[ROLE_OF.get(name, "read")], name)

    def close(self) -> None:
        """Closes all of them."""
        for one in self._handles.values():
            one.close()

    def __len__(self) -> int:
        return len(self._handles["read"])

    def __bool__(self) -> bool:
        return bool(self._handles["read"])

    def __repr__(self) -> str:
        return repr(self._handles["read"])


class Secured:
    """make_table connects four times, with a token of each role."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls, door: Door) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Callable[[], str]) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> Any:
                address = door.serve(spec, capacity, index, {"storage": relive.SharedMemory(fresh()), **options})
                stack.callback(door.host.stop, address)
                return ByRole(
                    {
                        role: stack.enter_context(connect(address, spec=spec, tls=door.tls, token=token))
                        for role, token in door.of_role.items()
                    }
                )

            return make

        return open_with


class SecuredOnce:
    """make_table connects once, with a token of all roles."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls, door: Door) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Callable[[], str]) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> Any:
                address = door.serve(spec, capacity, index, {"storage": relive.SharedMemory(fresh()), **options})
                stack.callback(door.host.stop, address)
                return stack.enter_context(connect(address, spec=spec, tls=door.tls, token=door.everything))

            return make

        return open_with


class SecuredStreams:
    """make_table connects once, with a token of all roles. Writers stream."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls, door: Door) -> Opening:
        def open_with(stack: contextlib.ExitStack, fresh: Callable[[], str]) -> MakeTable:
            def make(spec: relive.StepSpec, capacity: Any, index: Any = None, **options: Any) -> Any:
                address = door.serve(spec, capacity, index, {"storage": relive.SharedMemory(fresh()), **options})
                stack.callback(door.host.stop, address)
                table = connect(address, spec=spec, tls=door.tls, token=door.everything)
                return streamed.StreamsByDefault(stack.enter_context(table))

            return make

        return open_with


@thorough
class TestSecuredWriting(Secured, WritingSuite): ...


@thorough
class TestSecuredItems(Secured, ItemsSuite): ...


@thorough
class TestSecuredExplicit(Secured, ExplicitSuite): ...


@thorough
class TestSecuredBadExplicit(Secured, BadExplicitSuite): ...


@thorough
class TestSecuredTimeFirst(Secured, TimeFirstSuite): ...


@thorough
class TestSecuredRagged(Secured, RaggedSuite): ...


@thorough
class TestSecuredSequences(Secured, SequencesSuite): ...


@thorough
class TestSecuredEpisodes(Secured, EpisodesSuite): ...


@thorough
class TestSecuredOrders(Secured, OrdersSuite): ...


@thorough
class TestSecuredOwnSamplers(Secured, OwnSamplersSuite): ...


@thorough
class TestSecuredRanks(Secured, RanksSuite): ...


@thorough
class TestSecuredGroups(Secured, GroupsSuite): ...


@thorough
class TestSecuredHindsight(SecuredOnce, HindsightSuite): ...


@thorough
class TestSecuredPromptGroups(Secured, PromptGroupsSuite): ...


@thorough
class TestSecuredAbandon(Secured, AbandonSuite): ...


@thorough
class TestSecuredReading(Secured, ReadingSuite): ...


@thorough
class TestSecuredBatchOrder(Secured, BatchOrderSuite): ...


@thorough
class TestSecuredNextStep(Secured, NextStepSuite): ...


class TestSecuredPriorities(Secured, PrioritiesSuite): ...


@thorough
class TestSecuredSteps(Secured, StepsSuite): ...


@thorough
class TestSecuredWhere(Secured, WhereSuite): ...


@thorough
class TestSecuredWhereIndex(Secured, WhereIndexSuite): ...


@thorough
class TestSecuredLimits(Secured, LimitsSuite): ...


@thorough
class TestSecuredExponents(Secured, ExponentsSuite): ...


@thorough
class TestSecuredMixtures(SecuredOnce, MixturesSuite): ...  # a mixture takes handles, not what stands for several


@thorough
class TestSecuredChanges(Secured, ChangesSuite): ...


@thorough
class TestSecuredLate(Secured, LateSuite): ...


@thorough
class TestSecuredLateItems(Secured, LateItemsSuite): ...


@thorough
class TestSecuredLateLimits(Secured, LateLimitsSuite): ...


@thorough
class TestSecuredBadInput(Secured, BadInputSuite): ...


@thorough
class TestSecuredBadTypes(Secured, BadTypesSuite): ...


@thorough
class TestSecuredStreamsWriting(SecuredStreams, streamed.TestStreamedWriting): ...


@thorough
class TestSecuredStreamsItems(SecuredStreams, streamed.TestStreamedItems): ...


@thorough
class TestSecuredStreamsTimeFirst(SecuredStreams, TimeFirstSuite): ...


@thorough
class TestSecuredStreamsRagged(SecuredStreams, RaggedSuite): ...


@thorough
class TestSecuredStreamsSequences(SecuredStreams, streamed.TestStreamedSequences): ...


@thorough
class TestSecuredStreamsChanges(SecuredStreams, ChangesSuite): ...


@thorough
class TestSecuredStreamsLate(SecuredStreams, LateSuite): ...


@thorough
class TestSecuredStreamsLateItems(SecuredStreams, LateItemsSuite): ...


@thorough
class TestSecuredStreamsExplicit(SecuredStreams, ExplicitSuite): ...


@thorough
class TestSecuredStreamsEpisodes(SecuredStreams, streamed.TestStreamedEpisodes): ...


@thorough
class TestSecuredStreamsAbandon(SecuredStreams, AbandonSuite): ...


@thorough
class TestSecuredStreamsOrders(SecuredStreams, OrdersSuite): ...


@thorough
class TestSecuredStreamsRanks(SecuredStreams, RanksSuite): ...


@thorough
class TestSecuredStreamsGroups(SecuredStreams, streamed.TestStreamedGroups): ...
