"""attach, list_tables and remove: the tables of this machine."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import threading
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from relive import errors

pytestmark = needs_shared_memory

SPEC = relive.StepSpec(
    {
        "observation": {
            "pos": relive.ArraySpec((2,), "float32", kind="state"),
            "arms": (relive.ArraySpec((), "int8", kind="state"), relive.ArraySpec((), "int8", kind="state")),
        },
        "reward": relive.ArraySpec((), "float64"),
    },
    unstack={"observation/pos": 2},
)
INDEXES = {
    "fast": relive.Index(relive.Transitions(stack={"observation": 2}), max_times_sampled=7),
    "slow": relive.Index(
        relive.Transitions(n_step=3, gamma=0.9), relive.Prioritized(0.7, "given"), relive.SamplesPerInsert(2.0, 10)
    ),
}


def rows_of(name: str) -> list[relive.table.open.TableRow]:
    return [row for row in relive.list_tables() if row.name == name]


def test_attach_brings_the_whole_configuration(shm_name: Any) -> None:
    name = shm_name()
    with relive.Table(SPEC, 500, INDEXES, storage=relive.SharedMemory(name), timeout_s=7.5, seed=5) as table:
        with relive.attach(name, stream=2) as handle:
            assert handle.spec == table.spec == SPEC
            assert handle.indexes == table.indexes == INDEXES and list(handle.indexes) == ["fast", "slow"]
            assert (handle.capacity, handle.timeout_s, handle.stream, handle.read_only) == (500, 7.5, 2, False)
            assert handle.path == table.path == f"/dev/shm/relive-{name}"
        with relive.attach(name, timeout_s=float("inf"), read_only=True) as handle:
            assert handle.timeout_s == float("inf") and handle.read_only
            again = pickle.loads(pickle.dumps(handle))
            assert again.read_only and again.timeout_s == float("inf")
            again.close()


def test_a_read_only_handle_that_waits_hears_signals(shm_name: Any) -> None:
    """At once and not when items come, which they do ten seconds later."""
    name = shm_name()
    were_there: list[bool] = []

    def raise_it(*_: Any) -> None:
        were_there.append(fed.is_set())
        raise KeyboardInterrupt

    fed = threading.Event()
    spec = relive.StepSpec({"reward": relive.ArraySpec((), "float32")})
    before = signal.signal(signal.SIGINT, raise_it)
    try:
        with (
            relive.Table(spec, 100, storage=relive.SharedMemory(name)) as table,
            table.writer() as writer,
            relive.attach(name, timeout_s=60.0, read_only=True) as reader,
        ):

            def feed() -> None:
                fed.set()
                writer.append(reward=1.0)

            interrupt = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
            feeder = threading.Timer(10.0, feed)
            for timer in (interrupt, feeder):
                timer.start()
            with pytest.raises(KeyboardInterrupt):
                reader.sample(4)
            feeder.cancel()
            for timer in (interrupt, feeder):
                timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert were_there == [False]


def test_an_infinite_default_deadline_survives(shm_name: Any) -> None:
    name = shm_name()
    with (
        relive.Table(SPEC, 500, storage=relive.SharedMemory(name), timeout_s=float("inf")),
        relive.attach(name) as handle,
    ):
        assert handle.timeout_s == float("inf")


def test_what_one_handle_writes_the_other_reads(shm_name: Any) -> None:
    name = shm_name()
    with relive.Table(SPEC, 500, storage=relive.SharedMemory(name)) as table, relive.attach(name) as handle:
        with handle.writer() as writer:
            for t in range(4):
                writer.append(observation={"pos": np.full((2, 2), t), "arms": (t, -t)}, reward=t)
        batch = table.sample(8)
        arms = batch["next_observation"]["arms"]
        np.testing.assert_array_equal(arms[0], batch["reward"] + 1)
        np.testing.assert_array_equal(arms[1], -batch["reward"] - 1)
        np.testing.assert_array_equal(batch["observation"]["pos"][:, 0], batch["reward"])


def test_attach_refuses(shm_name: Any) -> None:
    with pytest.raises(errors.NoSuchTable):
        relive.attach(shm_name())
    for bad in ({"name": "a/b"}, {"name": ""}, {"name": "x", "stream": -1}, {"name": "x", "timeout_s": -1.0}):
        with pytest.raises(errors.InvalidConfig):
            relive.attach(**bad)  # type: ignore[arg-type]


def test_list_and_remove(shm_name: Any) -> None:
    name = shm_name()
    assert rows_of(name) == []
    table = relive.Table(SPEC, 500, storage=relive.SharedMemory(name))
    with table.writer() as writer:
        for t in range(3):
            writer.append(observation={"pos": [0, 0], "arms": (0, 0)}, reward=t)
    (row,) = rows_of(name)
    assert row.path == table.path and row.capacity == 500 and row.num_attached >= 1 and row.alive
    assert 0 <= row.num_steps <= 3 and row.num_bytes > 4096 and row.problem == ""
    with pytest.raises(errors.InUse):
        relive.remove(name)
    relive.remove(name, force=True)
    assert rows_of(name) == []
    assert table.sample(4).num_items == 4, "who has it mapped keeps it"
    table.close()
    for force in (False, True):
        with pytest.raises(errors.NoSuchTable):
            relive.remove(name, force)
    with pytest.raises(errors.InvalidConfig):
        relive.remove("a/b")


def test_a_file_that_is_no_table(shm_name: Any) -> None:
    name = shm_name()
    path = relive.SharedMemory(name).path
    with open(path, "wb") as file:
        file.write(b"something else" * 1000)
    with pytest.raises(errors.NotARegion):
        relive.attach(name)
    (row,) = rows_of(name)
    assert not row.alive and row.num_steps == 0 and "no relive table" in row.problem and row.num_bytes > 0
    with pytest.raises(errors.NotARegion):
        relive.remove(name)
    assert os.path.exists(path)
    relive.remove(name, force=True)
    assert not os.path.exists(path)


def test_what_the_system_does_not_let_go_is_told_with_its_number(
    shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as another user's table in /dev/shm, whose sticky bit keeps it."""

    def refuse(path: str) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    monkeypatch.setattr(os, "unlink", refuse)
    name = shm_name()
    with pytest.raises(errors.SystemFailure) as caught:
        relive.remove(name, force=True)
    assert caught.value.errno == errno.EPERM and name in caught.value.what


def test_a_folder_in_the_place_of_a_table(shm_name: Any) -> None:
    name = shm_name()
    path = relive.SharedMemory(name).path
    os.mkdir(path)
    try:
        with pytest.raises(errors.SystemFailure):
            relive.remove(name, force=True)
        for call in (relive.remove, relive.attach):
            with pytest.raises(errors.NotARegion):
                call(name)
    finally:
        os.rmdir(path)


def test_a_file_whose_name_is_no_text_is_listed(shm_name: Any) -> None:
    name = shm_name()
    path = relive.SharedMemory(name).path.encode() + b"\xff"
    with open(path, "wb"):
        pass
    try:
        (row,) = (row for row in relive.table.open.list_tables() if row.name.startswith(name))
        row.name.encode()
        assert "no name of a table" in row.problem and not row.alive
    finally:
        os.unlink(path)
