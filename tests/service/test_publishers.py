"""Publishers that lost their seat: the server keeps none of their bytes, whatever they did when they lost it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec

import relive
from relive import errors
from relive.service import Server, serve
from relive.service.parameters.sets import Publication, publication_of
from relive.service.parameters.store import Incoming, ParameterStore
from service.gates import until
from service.publishing import Raw, begin, numbered, version_in


@pytest.fixture
def store() -> ParameterStore:
    return ParameterStore("t", 1 << 20)


@pytest.fixture
def server() -> Iterator[Server]:
    with relive.Table(plain_spec(), 100) as table, serve({"t": table}, "grpc://127.0.0.1:0") as one:
        yield one


def given(version: int) -> Publication:
    return publication_of(numbered(version, 100), version, None, 1 << 20)


def seated(store: ParameterStore, version: int, num_bytes: int | None = None) -> tuple[Incoming, Any]:
    """A publisher over the wire whose deadline is over, and the bytes of its version. It has put so many of them."""
    whole = given(version)
    incoming = store.begin(whole._replace(block=np.empty(0, np.uint8)), time.monotonic())
    assert incoming is not None
    incoming.put(whole.block[:num_bytes])
    return incoming, whole.block


def block_of(incoming: Incoming) -> weakref.ref[Any]:
    return weakref.ref(incoming._publication.block)


@pytest.mark.parametrize("num_bytes", [0, 100, None])
def test_a_publisher_that_lost_its_seat_and_says_no_more_keeps_no_block(
    store: ParameterStore, num_bytes: int | None
) -> None:
    silent, _ = seated(store, 1, num_bytes)
    block = block_of(silent)
    assert block() is not None
    store.publish(numbered(2, 100), 2)
    assert block() is None
    for call in (lambda: silent.put(b"-"), silent.commit):
        with pytest.raises(errors.DeadlineExceeded):
            call()
    silent.close()
    assert version_in(store.pull()) == 2


def test_each_of_many_silent_publishers_keeps_its_block_until_the_next_one_has_the_seat(store: ParameterStore) -> None:
    silent = [(one, block_of(one)) for one in (seated(store, version, 100)[0] for version in range(1, 10))]
    assert [block() is not None for _, block in silent] == [False] * 8 + [True]
    silent[-1][0].close()
    store.publish(numbered(10, 100), 10)
    assert version_in(store.pull()) == 10


def test_a_version_that_is_there_takes_no_seat_and_no_block(store: ParameterStore) -> None:
    store.publish(numbered(1, 100), 1)
    silent, bytes_of = seated(store, 2, 100)
    store.publish(numbered(1, 100), 1)
    silent.put(bytes_of[100:])
    silent.commit()
    silent.close()
    assert version_in(store.pull()) == 2


@pytest.mark.parametrize("is_late", [False, True])
def test_a_part_that_is_copied_while_the_seat_is_taken_harms_nothing(
    store: ParameterStore, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """The seat is taken just before, or just after, the look at it."""
    silent, bytes_of = seated(store, 1, 100)
    look, later = store.check_seat, list[Incoming]()

    def look_and_lose(incoming: Incoming) -> None:
        if is_late:
            look(incoming)
        later.append(seated(store, 2, 200)[0])
        if not is_late:
            look(incoming)

    monkeypatch.setattr(store, "check_seat", _once(look_and_lose, look))
    told: AbstractContextManager[Any] = nullcontext() if is_late else pytest.raises(errors.DeadlineExceeded)
    with told:
        silent.put(bytes_of[100:])
    with pytest.raises(errors.DeadlineExceeded):
        silent.commit()
    later[0].put(given(2).block[200:])
    later[0].commit()
    later[0].close()
    assert version_in(store.pull()) == 2


def _once(first: Any, later: Any) -> Any:
    """Calls the first function in the first call, and the other one from then on."""
    calls = iter([first])
    return lambda *arguments: next(calls, later)(*arguments)


def test_a_commit_in_which_the_seat_is_taken_is_late(store: ParameterStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum takes a while."""
    silent, _ = seated(store, 1)
    check, later = Publication.check, list[Incoming]()

    def check_and_lose(publication: Publication) -> None:
        if not later:
            later.append(seated(store, 2)[0])
        check(publication)

    monkeypatch.setattr(Publication, "check", check_and_lose)
    with pytest.raises(errors.DeadlineExceeded):
        silent.commit()
    later[0].commit()
    later[0].close()
    assert version_in(store.pull()) == 2


def test_a_publisher_of_the_serving_process_that_lost_its_seat_keeps_nothing(store: ParameterStore) -> None:
    """Its block is a copy that its call made."""
    own = store.begin(given(1), time.monotonic())
    assert own is not None
    block = block_of(own)
    store.publish(numbered(2, 100), 2)
    assert block() is None
    with pytest.raises(errors.DeadlineExceeded):
        own.commit()
    own.close()
    assert version_in(store.pull()) == 2


def test_a_silent_stream_of_a_publisher_keeps_no_block(server: Server) -> None:
    store, silent = server.parameters("t"), Raw(server)
    header, bytes_of = begin(1, timeout_s=0.0)
    assert silent.ask(header) == {"there": False}
    silent.send({"op": "part"}, bytes_of[:100])
    until(lambda: store._seat is not None and store._seat._filled == 100)
    assert store._seat is not None
    block = block_of(store._seat)
    later = Raw(server)
    header, bytes_of = begin(2)
    assert later.ask(header) == {"there": False}
    assert block() is None
    later.send({"op": "part"}, bytes_of)
    assert later.ask({"op": "commit"}) == {"version": 2}
    assert silent.ask({"op": "commit"}) == "DeadlineExceeded"
    silent.end()
    later.end()
