"""Mixtures of a local table and one of another process, which may go."""

from __future__ import annotations

import gc
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from processes.tools import stop_process

import relive
from relive import errors
from relive.core.request import DrawRequest
from relive.core.turns import held
from relive.over.in_flight import lack_of
from relive.over.mixed_draws import MixedDraws
from relive.service import RemoteTable, connect
from relive.service.client.deadlines import server_wait
from relive.service.client.held_draws import RemoteDraws
from relive.service.wire import framing
from service.hosts import Host

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
ONCE = relive.Index(max_times_sampled=1)


@pytest.fixture
def local() -> Iterator[relive.Table]:
    with relive.Table(SPEC, 100, ONCE) as table:
        with table.writer() as writer:
            writer.extend(number=np.arange(20))
        yield table


def served(one: Host, name: str) -> RemoteTable:
    remote = connect(one.serve(SPEC, 100, ONCE, storage=relive.SharedMemory(name)), timeout_s=10.0)
    with remote.writer() as writer:
        writer.extend(number=np.arange(100, 120))
    return remote


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_client_that_goes_leaves_no_use(host: Host, shm_name: Any) -> None:
    with served(host, shm_name()) as remote:
        draws = remote.held_draws()
        first = draws.draw(DrawRequest(0, 8), 1.0)
        second = draws.draw(DrawRequest(0, 4, remote.select(None, None).core), 1.0)
        assert remote.num_items() == 8
        second.hold.give_back()
        second.hold.give_back()
        second.hold.commit()
        assert remote.num_items() == 12
        stream = draws._stream  # type: ignore[attr-defined]
        stream.cancel()
        until(lambda: remote.num_items() == 20)
        with pytest.raises(errors.ServiceUnavailable):
            first.hold.commit()
        third = draws.draw(DrawRequest(0, 2), 1.0)
        third.hold.commit()
        third.hold.commit()
        third.hold.give_back()
        draws.close()
        assert remote.num_items() == 18
        assert remote.stats().indexes["default"].sampled == 2


def test_one_table_here_and_one_there(host: Host, local: relive.Table, shm_name: Any) -> None:
    with served(host, shm_name()) as remote, relive.Mixture({"a": 0.5, "b": 0.5}, {"a": local, "b": remote}) as mixture:
        batch = mixture.sample(10)
        assert batch.source is not None
        assert ((batch["number"] >= 100) == (batch.source == 1)).all() and batch.source.sum() == 5
        with mixture.batches(4, prefetch=2) as batches:
            next(batches)
        assert (local.num_items(), remote.num_items()) == (13, 13)
        remote.sample(12)
        with pytest.raises(errors.DeadlineExceeded, match="'b'"):
            mixture.sample(4, timeout_s=0.3)
        assert (local.num_items(), remote.num_items()) == (13, 1)


def test_a_server_that_dies_costs_the_other_source_nothing(
    start_host: Callable[[], Host], local: relive.Table, shm_name: Any
) -> None:
    one = start_host()
    remote = served(one, shm_name())
    mixture = relive.Mixture({"a": 0.5, "b": 0.5}, {"a": local, "b": remote}, timeout_s=3.0)
    mixture.sample(4)
    one.kill()
    with pytest.raises(errors.ReliveError):
        mixture.sample(4)
    assert local.num_items() == 18 and local.stats().indexes["default"].sampled == 2
    mixture.close()
    remote.close()


@pytest.fixture
def stopped(start_host: Callable[[], Host], shm_name: Any) -> Iterator[tuple[relive.Mixture, Callable[[], None]]]:
    """A mixture of two sources of one server, and a call that stops the server until the end of the test."""
    one = start_host()
    with served(one, shm_name()) as remote:
        with relive.Mixture({"a": 0.5, "b": 0.5}, {"a": remote, "b": remote}, timeout_s=10.0) as mixture:
            try:
                yield mixture, lambda: stop_process(one.process.pid)
            finally:
                os.kill(one.process.pid, signal.SIGCONT)


def test_next_of_batches_keeps_its_deadline_while_a_server_hangs(stopped: Any) -> None:
    mixture, stop = stopped
    with mixture.batches(2, prefetch=3, timeout_s=1.0) as batches:
        next(batches)
        until(lambda: len(batches._bringer.ready) == 3)
        stop()
        began = time.monotonic()
        with pytest.raises((errors.DeadlineExceeded, errors.ServiceUnavailable)):
            next(batches)
        assert time.monotonic() - began < 6.0, "a second for each source, and not the ten of the handle"


def test_a_first_draw_keeps_its_deadline_while_a_server_hangs(stopped: Any) -> None:
    mixture, stop = stopped
    stop()
    began = time.monotonic()
    with pytest.raises(errors.ServiceUnavailable):
        mixture.sample(2, timeout_s=0.5)
    assert time.monotonic() - began < 6.0, "a second for the stream, and not the ten of the handle"


def test_the_opening_of_a_stream_takes_its_time_from_that_of_the_draw(
    host: Host, shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens, sends, sent = RemoteDraws._open, RemoteDraws._exchange, list[Any]()

    def open_later(*arguments: Any) -> Any:
        stream = opens(*arguments)
        threading.Event().wait(0.2)
        return stream

    def exchange(draws: Any, stream: Any, message: bytes, *rest: Any) -> Any:
        sent.append(framing.decode(message)[0])
        return sends(draws, stream, message, *rest)

    monkeypatch.setattr(RemoteDraws, "_open", open_later)
    monkeypatch.setattr(RemoteDraws, "_exchange", exchange)
    with served(host, shm_name()) as remote, relive.Mixture({"a": 1.0}, {"a": remote}) as mixture:
        mixture.sample(2, timeout_s=20.0)
    assert sent[0]["timeout_s"] <= server_wait(19.8)


def test_a_mixture_that_is_dropped_ends_its_stream(host: Host, shm_name: Any) -> None:
    with served(host, shm_name()) as remote:
        address = remote.address.removesuffix("/table")
        remote.sample(1)
        before = host.ask("num_streams", address)
        mixture = relive.Mixture({"a": 1.0}, {"a": remote})
        mixture.sample(2)
        assert host.ask("num_streams", address) == before + 1
        del mixture
        gc.collect()
        until(lambda: host.ask("num_streams", address) == before)
        assert remote.num_items() == 17


def test_next_of_batches_does_not_wait_longer_for_a_draw_that_is_under_way(stopped: Any) -> None:
    """The thread of batches() waits for the server meanwhile, with the draws of the mixture."""
    mixture, stop = stopped
    with mixture.batches(2, prefetch=3, timeout_s=1.0) as batches:
        next(batches)
        until(lambda: len(batches._bringer.ready) == 3)
        alone = batches._bringer._source._alone
        taken, release = threading.Event(), threading.Event()

        def draw() -> None:
            with held(alone, "a draw", 60.0):
                taken.set()
                release.wait(60.0)

        drawing = threading.Thread(target=draw)
        drawing.start()
        taken.wait(60.0)
        began = time.monotonic()
        with pytest.raises(errors.DeadlineExceeded):
            next(batches)
        assert time.monotonic() - began < 6.0
        release.set()
        drawing.join(60.0)
        assert next(batches).num_items == 2


def test_a_sample_keeps_its_deadline_while_a_server_hangs(stopped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server stops after the draws, and before they are counted."""
    mixture, stop = stopped
    mixture.sample(2)
    as_it_is = MixedDraws.batch

    def batch(*arguments: Any) -> Any:
        made = as_it_is(*arguments)
        stop()
        return made

    monkeypatch.setattr(MixedDraws, "batch", batch)
    began = time.monotonic()
    with pytest.raises(errors.ServiceUnavailable):
        mixture.sample(2, timeout_s=0.5)
    assert time.monotonic() - began < 6.0


def test_a_draw_that_only_finds_out_whether_a_part_is_there_goes_back_within_a_second(stopped: Any) -> None:
    """The server hangs as soon as the part has come."""
    mixture, stop = stopped
    draws = mixture._draws._draws[0]

    class Stopping:
        """The draws of a source, which stop the server after each draw."""

        def draw(self, *arguments: Any) -> Any:
            drawn = draws.draw(*arguments)
            stop()
            return drawn

    began = time.monotonic()
    lack_of(Stopping(), DrawRequest(0, 0), 1, 0.5)  # type: ignore[arg-type]
    assert time.monotonic() - began < 6.0, "a second, and not the ten of the handle"


@pytest.fixture
def rare(start_host: Callable[[], Host]) -> Iterator[tuple[relive.Mixture, Callable[[], None]]]:
    """A mixture whose source on a server has no part in small batches; and a call that stops the server."""
    one = start_host()
    with relive.Table(SPEC, 100) as table, connect(one.serve(SPEC, 100, ONCE), timeout_s=10.0) as remote:
        for source in (table, remote):
            with source.writer() as writer:
                writer.extend(number=np.arange(20))
        with relive.Mixture({"here": 0.99, "there": 0.01}, {"here": table, "there": remote}) as mixture:
            try:
                yield mixture, lambda: stop_process(one.process.pid)
            finally:
                os.kill(one.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("call", ["sample", "draw", "batches"])
@pytest.mark.parametrize("first", [5, 60])
def test_a_source_without_a_part_in_the_batch_is_not_asked(rare: Any, call: str, first: int) -> None:
    """Its number of live items is that of its last draw, or that which it told before its first draw."""
    mixture, stop = rare
    assert mixture.sample(first).source.sum() == first // 60
    stop()
    if call == "batches":
        with mixture.batches(5, prefetch=1, timeout_s=20.0) as batches:
            batch = next(batches)
    else:
        batch = getattr(mixture, call)(5, timeout_s=0.5)
    assert not batch.source.any() and batch.num_live_items == 40


def test_the_question_before_the_first_draw_of_a_source_keeps_the_deadline(rare: Any) -> None:
    mixture, stop = rare
    stop()
    began = time.monotonic()
    with pytest.raises(errors.ServiceUnavailable):
        mixture.sample(5, timeout_s=0.5)
    assert time.monotonic() - began < 6.0, "a second for the answer, and not the ten of the handle"


@pytest.mark.parametrize("call", ["sample", "batches"])
def test_an_interrupt_of_the_count_goes_on_as_it_is(stopped: Any, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other parts are counted if their servers answer within a second."""
    mixture, stop = stopped
    as_it_is, told = RemoteDraws._exchange, []

    def exchange(draws: Any, stream: Any, message: bytes, *rest: Any) -> Any:
        if b'"op":"count"' in message and not told:
            told.append(message)
            stop()
            draws._stream = None
            draws._core.connection.drop(stream)
            raise KeyboardInterrupt
        return as_it_is(draws, stream, message, *rest)

    mixture.sample(2)
    with mixture.batches(2, prefetch=3, timeout_s=10.0) as batches:
        if call == "batches":
            until(lambda: len(batches._bringer.ready) == 3)
        else:
            batches.close()
        monkeypatch.setattr(RemoteDraws, "_exchange", exchange)
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            mixture.sample(2) if call == "sample" else next(batches)
        assert time.monotonic() - began < 6.0
        assert told


ORDERED = relive.Index(sampler=relive.Fifo(), max_times_sampled=1)


@pytest.fixture
def three(start_host: Callable[[], Host]) -> Iterator[relive.Mixture]:
    """A mixture of two servers and a local table, of 20 items each, which come in order and once."""
    tables: dict[str, Any] = {"local": relive.Table(SPEC, 100, ORDERED)}
    for name in ("first", "second"):
        tables[name] = connect(start_host().serve(SPEC, 100, ORDERED), timeout_s=10.0)
    for table in tables.values():
        with table.writer() as writer:
            writer.extend(number=np.arange(20))
    shares = {"first": 0.4, "local": 0.3, "second": 0.3}
    with relive.Mixture(shares, tables, timeout_s=10.0) as mixture:
        yield mixture
    for table in tables.values():
        table.close()


def taken_and_errors(batches: Any, count: int) -> tuple[list[relive.Batch], int]:
    taken, num_errors = list[relive.Batch](), 0
    while len(taken) < count:
        lent = list(batches._bringer._source._lent)
        try:
            taken.append(next(batches))
        except errors.ServiceUnavailable:
            num_errors += 1
            assert num_errors < 10
            until(lambda lent=lent: all(one.is_over for one in lent))  # given back before next() sees them
    return taken, num_errors


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("found_by", ["the consumer", "the thread"])
def test_a_stream_that_ends_costs_one_error_and_no_item(three: relive.Mixture, number: int, found_by: str) -> None:
    """All batches ahead go back in all sources, the newest first, and their items come again in their order."""
    with three.batches(4, prefetch=4) as batches:
        bringer = batches._bringer
        taken = [next(batches)]
        until(lambda: len(bringer.ready) == 4)
        bringer._source._draws[number]._stream.interrupt()
        if found_by == "the thread":
            bringer._prefetch = 5
            bringer.wanted.ring()
            until(lambda: bringer.error is not None)
        more, num_errors = taken_and_errors(batches, 9)
    taken += more
    assert num_errors == 1
    for source in range(3):
        numbers = [number for batch in taken for number in batch["number"][batch.source == source].tolist()]
        assert len(numbers) == [16, 12, 12][source] and numbers == sorted(set(numbers))
        num_lost = numbers[-1] + 1 - len(numbers)
        if source == 0 and number == 2 and found_by == "the consumer":  # its server counted its part before the error
            assert num_lost in (1, 2)
        else:
            assert num_lost == 0


def test_a_draw_that_is_not_the_newest_goes_back_itself(host: Host) -> None:
    """The server knows the newest draw only, so the stream ends, and every draw of it goes back."""
    with connect(host.serve(SPEC, 100, ORDERED), timeout_s=10.0) as remote:
        with remote.writer() as writer:
            writer.extend(number=np.arange(20))
        draws = remote.held_draws()
        older, newer = (draws.draw(DrawRequest(0, 4), 1.0).hold for _ in range(2))
        older.give_back()
        with pytest.raises(errors.ServiceUnavailable):
            newer.commit()
        assert remote.num_items() == 20
        draws.close()


@pytest.mark.parametrize("call", ["sample", "batches"])
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_rows_of_each_source_have_the_time_of_the_call(
    host: Host, local: relive.Table, shm_name: Any, call: str, order: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limiters of all sources but the first are asked once. Rows on a slow link take longer."""
    waits: list[float] = []
    as_it_is = RemoteDraws._exchange

    def exchange(draws: Any, stream: Any, message: bytes, ends: float, receive: Any) -> Any:
        if b'"op":"sample"' in message:
            waits.append(ends - time.monotonic())
        return as_it_is(draws, stream, message, ends, receive)

    monkeypatch.setattr(RemoteDraws, "_exchange", exchange)
    with served(host, shm_name()) as remote:
        with relive.Mixture({name: 0.5 for name in order}, {"a": local, "b": remote}, timeout_s=60.0) as mixture:
            if call == "sample":
                mixture.sample(4)
            else:
                with mixture.batches(4, prefetch=1) as batches:
                    next(batches)
    assert waits and min(waits) > 40.0


@pytest.mark.parametrize("is_drawing", [False, True])
def test_the_close_of_batches_waits_shortly_for_a_server_that_hangs(stopped: Any, is_drawing: bool) -> None:
    """A second for each source, and not the ten of the handle."""
    mixture, stop = stopped
    with mixture.batches(2, prefetch=3, timeout_s=60.0) as batches:
        bringer = batches._bringer
        until(lambda: len(bringer.ready) == 3)
        stop()
        if is_drawing:
            stream = bringer._source._draws[0]._stream
            bringer._prefetch = 4
            bringer.wanted.ring()
            until(lambda: stream.deadline < math.inf)
        began = time.monotonic()
        batches.close()
        assert time.monotonic() - began < 6.0
