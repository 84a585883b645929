"""The keys that a streaming writer returns: how long a read of them waits, and their use as ints and as arrays."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from contract.tools import plain_spec, prioritized, step

import relive
from relive import errors
from relive.service import RemoteTable, Streaming, connect, serve
from service.gates import Gate

SLOW = Streaming(linger_s=30.0)  # nothing leaves unless it must


@pytest.fixture
def remote() -> Iterator[RemoteTable]:
    table = relive.Table(plain_spec(), 1000, prioritized(), max_lanes=16)
    with table, serve({"t": table}, "grpc://127.0.0.1:0") as server, connect(server.address + "/t") as one:
        yield one


def test_keys_are_used_by_their_value(remote: RemoteTable) -> None:
    """A key as the int that another writer returns, keys as its array: also where they are kept and sent."""
    with remote.writer(streaming=SLOW) as writer, remote.writer(num_lanes=2, streaming=SLOW) as of_lanes:
        key, value = (one := writer.append(**step(0, 1))), int(one)
        assert {key: "a"}[value] == {value: "a"}[key] == "a" and {key, value} == {value}
        assert f"{key}" == f"{value}" and f"{key:08d}" == f"{value:08d}" and bool(key) == bool(value)
        for made in (pickle.loads(pickle.dumps(key)), copy.deepcopy({"key": key})["key"], copy.copy(key)):
            assert made == value and {made: "a"}[value] == "a" and int(made) == value
        rows = {"observation": np.zeros((2, 2)), "action": np.arange(2), "reward": np.zeros(2)}
        keys, values = (some := of_lanes.append(**rows, terminated=True)), np.asarray(some)
        for made in (pickle.loads(pickle.dumps(keys)), copy.deepcopy(keys), copy.copy(keys)):
            assert np.asarray(made).tolist() == values.tolist() and made.shape == (2,) and made.dtype == np.int64
        assert keys and len(keys) == 2 and f"{keys}" == repr(keys)
        with pytest.raises(TypeError):
            hash(keys)
        with pytest.raises(TypeError):
            f"{keys:d}"


def test_copies_of_keys_that_were_not_stored_raise_as_the_keys_do(remote: RemoteTable) -> None:
    writer = remote.writer(streaming=SLOW)
    writer.append(**step(0, 1))
    key = writer.append(**step(7, 8))  # no continuation of 1
    with pytest.raises(errors.Unacknowledged):
        writer.flush()
    for use in (pickle.dumps, copy.deepcopy, hash, bool, format):
        with pytest.raises(errors.Unacknowledged):
            use(key)
    writer.close()


def test_a_read_of_keys_waits_for_its_own_deadline() -> None:
    """The server holds the step longer, and the handle's deadline is later."""
    with Gate() as gate, connect(gate.address, timeout_s=60.0) as remote:
        with remote.writer(streaming=Streaming(held_s=60.0)) as writer:
            for number in range(2):
                keys = writer.append(**step(number, number + 1))
            with pytest.raises(errors.DeadlineExceeded) as caught:
                keys.read(0.0)
            assert caught.value.waited_s < 30.0
            with pytest.raises(errors.InvalidConfig):
                keys.read(-1.0)
            gate.let_in()
            assert keys.read(60.0).shape == () and len(gate.table) == 2


def test_patterns_wait_for_the_keys_of_a_streamed_step_until_the_deadline_of_their_call() -> None:
    """The server holds the step longer, and the handle's deadline is later."""
    index = {
        "steps": relive.Index(limiter=relive.Queue(1), max_times_sampled=1),
        "items": relive.Index(relive.Explicit(1)),
    }
    with relive.Table(plain_spec(), 500, index) as table, serve({"table": table}, "grpc://127.0.0.1:0") as server:
        with connect(f"{server.address}/table", timeout_s=60.0) as remote:
            streamed = remote.writer(streaming=Streaming(held_s=60.0))
            writer = relive.PatternWriter(remote, streamed, relive.Pattern(1, index="items", every=2))
            writer.append(**step(0, 1))
            with pytest.raises(errors.DeadlineExceeded) as caught:
                writer.append(**step(1, 2), timeout_s=0.5)
            assert caught.value.waited_s < 30.0
            assert (caught.value.stored, len(caught.value.keys), caught.value.unanswered) == (0, 0, 1)
            for _ in range(2):
                table.draw(1, index="steps")  # the second step is stored meanwhile
            writer.append(**step(2, 3))
            made = np.concatenate(list(table.keys(index="items")))
            assert table.gather(made, index="items")["action"].ravel().tolist() == [0, 2]
            writer.close()
