"""Publication of parameters: never half-written, whatever the publisher does or suffers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relive.errors import InvalidConfig
from relive.train.memory.parameters import ParameterBoard, ParameterLayout, checksum

SHAPES = {"hidden.weight": (64, 129), "hidden.bias": (129,), "scalar": ()}


def values_of(version: int) -> dict[str, np.ndarray]:
    return {
        name: np.full(shape, version * 8 + number, np.float32) for number, (name, shape) in enumerate(SHAPES.items())
    }


def make_board(**options: Any) -> ParameterBoard:
    return ParameterBoard(ParameterLayout.of(values_of(0)), **options)


def assert_whole(parameters: dict[str, np.ndarray], version: int) -> None:
    expected = values_of(version)
    assert list(parameters) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(parameters[name], value)


def test_a_reader_gets_each_version_once() -> None:
    board = make_board(first_version=6)
    reader = board.reader()
    assert reader.poll() is None
    assert board.publish(values_of(7)) == 7
    first = reader.poll()
    assert first is not None and reader.version == 7
    assert_whole(first, 7)
    assert reader.poll() is None
    board.publish(values_of(8))
    assert_whole(first, 7)  # what a reader got is its own
    second = reader.poll()
    assert second is not None
    assert_whole(second, 8)


def test_wrong_shapes_are_refused() -> None:
    board = make_board()
    with pytest.raises(InvalidConfig):
        board.publish({**values_of(1), "hidden.bias": np.zeros(3, np.float32)})


class Died(Exception):
    pass


class DyingHeader:
    """A slot's header that lets its publisher die before its n-th store."""

    def __init__(self, header: np.ndarray, stores: int) -> None:
        self.header, self.stores = header, stores

    def __setitem__(self, at: int, value: int) -> None:
        if self.stores == 0:
            raise Died
        self.stores -= 1
        self.header[at] = value

    def __getitem__(self, at: int) -> Any:
        return self.header[at]


@pytest.mark.parametrize("stores", [0, 1, 2])
def test_a_publisher_that_dies_half_way_leaves_the_last_version(stores: int) -> None:
    board = make_board()
    board.publish(values_of(1))
    board.publish(values_of(2))
    slots: Any = board._slots
    slots.headers[1] = DyingHeader(slots.headers[1], stores)
    with pytest.raises(Died):
        board.publish(values_of(3))
    parameters = board.reader().poll()
    assert parameters is not None
    assert_whole(parameters, 2)


def test_a_slot_with_foreign_bytes_is_not_taken() -> None:
    board = make_board()
    board.publish(values_of(1))
    slots: Any = board._slots
    slots.values[1][17] += 1.0
    reader = board.reader()
    assert reader.poll() is None and reader.num_retries > 0 and reader.version == 0


def test_the_checksum_covers_the_version() -> None:
    values = np.ones(8, np.float32)
    assert checksum(values, 1) != checksum(values, 2)


def _read_many(board: ParameterBoard, num_wanted: int, pipe: Any) -> None:
    reader, seen, deadline_s = board.reader(), 0, time.monotonic() + 30
    while seen < num_wanted and time.monotonic() < deadline_s:
        parameters = reader.poll()
        if parameters is not None:
            assert_whole(parameters, reader.version)
            seen += 1
    pipe.send(seen)


def test_readers_in_other_processes_never_see_a_mixture() -> None:
    context = multiprocessing.get_context("spawn")
    board = make_board()
    num_wanted = 300
    pipes, readers = [], []
    for _ in range(2):
        ours, theirs = context.Pipe(duplex=False)
        reader = context.Process(target=_read_many, args=(board, num_wanted, theirs))
        reader.start()
        theirs.close()
        pipes.append(ours)
        readers.append(reader)
    while any(reader.is_alive() for reader in readers):  # as fast as it goes: readers are overtaken
        board.publish(values_of(board.version + 1))
    for pipe, reader in zip(pipes, readers, strict=True):
        reader.join(10)
        assert reader.exitcode == 0, "a reader saw a mixture and died"
        assert pipe.recv() == num_wanted


def _publish_on_fork(board: ParameterBoard) -> None:
    while True:
        board.publish(values_of(board.version + 1))


def test_readers_go_on_when_the_publisher_is_killed() -> None:
    """A forked child publishes and is killed at any moment; what the parent reads is whole every time."""
    context = multiprocessing.get_context("fork")
    rng = np.random.default_rng(0)
    board = make_board()
    board.publish(values_of(1))
    for _ in range(15):
        child = context.Process(target=_publish_on_fork, args=(board,))
        child.start()
        time.sleep(0.02 + 0.01 * rng.random())
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join(10)
        reader = board.reader()
        parameters = reader.poll()
        assert parameters is not None, "the last complete version is readable at once"
        assert_whole(parameters, reader.version)
        board.version = reader.version


def test_nothing_of_it_has_a_name() -> None:
    """Of what is mapped here: other processes come and go in the same folder."""

    def named() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[-1] for line in lines if "/dev/shm/" in line}

    before = named()
    board = make_board()
    board.publish(values_of(1))
    assert named() <= before
    board.close()
    board.close()
    with pytest.raises(InvalidConfig):
        board.publish(values_of(2))
