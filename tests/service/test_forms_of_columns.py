"""A client knows the form of columns from the table's configuration: columns that no call has named cost no message."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import relive
from relive import errors
from relive.service import connect, serve
from relive.service.client import forms
from relive.service.client.asking import Asking

pytestmark = needs_shared_memory
SPEC = relive.StepSpec(
    {
        "seen": relive.ArraySpec((3,), "float32", kind="state"),
        "goal": relive.ArraySpec((2,), "float32", kind="state"),
        "met": relive.ArraySpec((2,), "float32", kind="state"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
        "group": relive.ArraySpec((), "int64", kind="episode"),
    }
)
INDEXES: dict[str, relive.Index] = {
    "steps": relive.Index(relive.Transitions(n_step=3, stack={"seen": 4})),
    "best": relive.Index(sampler=relive.TopK(10_000), max_items=50_000),
    "given": relive.Index(sampler=relive.Prioritized(0.6, initial="given"), max_times_sampled=2, max_wait_s=9.0),
    "goals": relive.Index(sampler=relive.Hindsight("goal", "met")),
    "windows": relive.Index(relive.Sequences(8, burn_in=2, bootstrap=1, period=4)),
    "time first": relive.Index(relive.Sequences(8, time_major=True)),
    "whole": relive.Index(relive.Episodes(1000)),
    "ragged": relive.Index(relive.Episodes(1000, layout="ragged")),
    "groups": relive.Index(relive.Episodes(50, group_by="group", group_size=4, max_groups=4096)),
    "explicit": relive.Index(relive.Explicit({"w": relive.Window(length=4)}, max_items=1_000_000)),
    "full": relive.Index(limiter=relive.MinSize(90_000)),
}


@pytest.fixture
def open_pair(shm_name: Any) -> Iterator[Any]:
    """Opens a local table with this index, and a client of its server."""
    with contextlib.ExitStack() as stack:

        def opened(index: relive.Index) -> Any:
            storage = relive.SharedMemory(name := shm_name())
            table = stack.enter_context(relive.Table(SPEC, 100_000, index=index, storage=storage))
            server = stack.enter_context(serve({name: table}, "grpc://127.0.0.1:0"))
            return table, stack.enter_context(connect(f"{server.address}/{name}"))

        yield opened


def columns_of(name: str) -> list[str]:
    more = {"ragged": ["offsets"], "goals": ["relabelled"], "explicit": ["w/action", "w/mask"]}.get(name, [])
    return more if name == "explicit" else ["action", "seen", "num_steps", *more]


@pytest.mark.parametrize("name", INDEXES)
def test_the_form_of_columns_is_that_of_the_server(open_pair: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    table, client = open_pair(INDEXES[name])
    asked: list[str] = []
    send = Asking.__init__

    def sends(asking: Any, connection: Any, op: str, *more: Any) -> None:
        asked.append(op)
        send(asking, connection, op, *more)

    monkeypatch.setattr(Asking, "__init__", sends)
    for names in (None, columns_of(name)):
        assert client.select(None, names).core.outputs == table.select(None, names).core.outputs
    with pytest.raises(errors.UnknownColumn):
        client.select(None, ["none"])
    steps = 1, ["action", "seen"]  # the number after the last index is that of the steps
    assert client.core.select(*steps).outputs == table.core.select(*steps).outputs
    assert asked == []


@pytest.mark.parametrize("name", INDEXES)
def test_a_process_without_addresses_asks_the_server(
    open_pair: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    table, client = open_pair(INDEXES[name])

    def refuses(*_: Any) -> Any:
        raise errors.SystemFailure("reserving addresses", 12)

    wanted = table.select(None, columns_of(name)).core.outputs
    monkeypatch.setattr(forms._core, "create_table", refuses)
    assert client.select(None, columns_of(name)).core.outputs == wanted
    with pytest.raises(errors.UnknownColumn):
        client.select(None, ["none"])


def test_a_closed_handle_resolves_no_columns(open_pair: Any) -> None:
    client = open_pair(INDEXES["steps"])[1]
    client.close()
    with pytest.raises(errors.TableClosed):
        client.sample(4, ["action"])
