"""Every core has what a handle asks for, and the simple calls are one list that client and server share."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import relive
from relive import _core
from relive.core.table_core import SimpleCalls, TableCore, WriterCore

flight = pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from relive.service.client.remote_core import RemoteCore  # noqa: E402
from relive.service.client.remote_writer import SyncWriterCore  # noqa: E402
from relive.service.client.streamed_core import StreamedWriterCore  # noqa: E402
from relive.service.wire import verbs  # noqa: E402


def members(protocol: type) -> Iterator[tuple[str, Any]]:
    for base in protocol.__mro__:
        if getattr(base, "_is_protocol", False):
            yield from ((name, one) for name, one in vars(base).items() if not name.startswith("_"))


@pytest.mark.parametrize(
    "protocol, core",
    [
        (TableCore, _core.CoreTable),
        (TableCore, RemoteCore),
        (WriterCore, _core.CoreWriter),
        (WriterCore, SyncWriterCore),
        (WriterCore, StreamedWriterCore),
    ],
)
def test_every_core_answers_what_a_handle_asks(protocol: type, core: type) -> None:
    named = dict(members(protocol))
    assert len(named) > 6
    for name, member in named.items():
        if isinstance(member, property):  # RemoteCore keeps some as attributes
            assert hasattr(core, name) or f"self.{name}" in inspect.getsource(core.__init__), name
        else:
            own = getattr(core, name)
            assert callable(own) and own is not member, f"{core.__name__}.{name} is the protocol's own"


def test_the_simple_calls_are_verbs() -> None:
    assert list(verbs.VERBS) == [name for name in vars(SimpleCalls) if not name.startswith("_")]
    looks = {name for name, verb in verbs.VERBS.items() if verb.looks}
    asked = {"num_steps", "num_items", "policy_version", "limiter", "priority_exponent", "stats", "check"}
    assert looks == asked, "what may be sent twice"
    assert list(verbs.VERBS["update_priorities"].parameters) == ["index", "keys", "priorities"]


def test_a_handle_works_over_anything_that_answers() -> None:
    """Not a CoreTable, and not made to look like one: a core that writes down what it is asked."""
    asked: list[str] = []

    class Told:
        def __init__(self, core: Any) -> None:
            self._core = core

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(self._core, name)

    spec = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
    with relive.Table(spec, 100) as table:
        table._bind_to(Told(table._core), None)  # type: ignore[arg-type]
        with table.writer() as writer:
            keys = writer.extend(number=range(10))
        table.sample(4)
        table.gather(table.draw(4))
        table.delete(keys[:1])
        table.set_policy_version(3)
        assert (len(table), table.num_items(), table.policy_version) == (9, 9, 3)
        table.stats()
        table.check()
        table.clear()
    assert set(asked) <= {name for name, _ in members(TableCore)}
