"""Streaming writers whose steps the server refuses: a table for one, and the error that tells of the steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from contract.tools import plain_spec

import relive
from relive import errors
from relive.service import RemoteTable, Streaming, connect, serve
from relive.service.client import deadlines, remote_core, streamed_core

LOOPBACK = "grpc://127.0.0.1:0"
NOT_HELD = Streaming(linger_s=30.0, held_s=0.0)  # a step that the limiter does not let in at once is refused


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second may be too short for an answer, or for new lanes, on a machine that is very busy."""
    for module in (deadlines, streamed_core):
        monkeypatch.setattr(module, "MIN_REPLY_S", 60.0)
    for module in (remote_core, streamed_core):
        monkeypatch.setattr(module, "LANES_S", 60.0)


@contextlib.contextmanager
def served(index: relive.Index | None = None, max_lanes: int = 1) -> Iterator[RemoteTable]:
    """A table with room for the lanes of one writer and no more."""
    table = relive.Table(plain_spec(), 1000, index or relive.Index(), max_lanes=max_lanes)
    with table, serve({"t": table}, LOOPBACK) as server, connect(server.address + "/t") as remote:
        yield remote


def fails(call: Callable[[], Any], cause: type[errors.ReliveError]) -> errors.Unacknowledged:
    with pytest.raises(errors.Unacknowledged) as caught:
        call()
    assert isinstance(caught.value.__cause__, cause)
    return caught.value
