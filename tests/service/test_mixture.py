"""Mixtures of a local table and one of another process, which may go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import relive
from relive import errors
from relive.core.request import DrawRequest
from relive.service import RemoteTable, connect
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
