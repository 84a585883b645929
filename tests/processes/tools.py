"""Rows that carry a checksum of themselves, and processes that are started, asked and ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import relive

FRAME = 512  # bytes of a checksummed state
BLOB = 200  # bytes of a checksummed step cell
JOIN_S = 60.0


def checked_bytes(size: int, number: int) -> np.ndarray:
    """Bytes that begin with the checksum of the rest; no two numbers give the same."""
    rest = np.random.default_rng(number).integers(0, 256, size - 4, dtype=np.uint8)
    rest[:8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
    head = np.frombuffer(np.uint32(zlib.crc32(rest.tobytes())).tobytes(), np.uint8)
    return np.concatenate([head, rest])


def is_whole(row: np.ndarray) -> bool:
    return int(np.frombuffer(row[:4].tobytes(), np.uint32)[0]) == zlib.crc32(row[4:].tobytes())


def number_of(row: np.ndarray) -> int:
    return int(np.frombuffer(row[4:12].tobytes(), np.int64)[0])


def checked_spec() -> relive.StepSpec:
    return relive.StepSpec(
        {
            "observation": relive.ArraySpec((FRAME,), "uint8", kind="state"),
            "blob": relive.ArraySpec((BLOB,), "uint8"),
            "number": relive.ArraySpec((), "int64"),
            "reward": relive.ArraySpec((), "float32"),
        }
    )


def checked_index(**more: Any) -> relive.Index:
    items = relive.Transitions(n_step=3, gamma=1.0, stack={"observation": 3})
    return relive.Index(items, relive.Prioritized(), **more)


def checked_table(name: str, capacity: int = 300, index: Any = None, **options: Any) -> relive.Table:
    options.setdefault("max_lanes", 16)
    return relive.Table(
        checked_spec(), capacity, index or checked_index(), storage=relive.SharedMemory(name), **options
    )


def checked_step(number: int) -> dict[str, Any]:
    """Step number `number` of a lane whose steps count up by one."""
    return {
        "observation": checked_bytes(FRAME, number),
        "blob": checked_bytes(BLOB, number),
        "number": number,
        "reward": 1.0,
    }


def torn_rows(batch: Any) -> int:
    """Rows of a batch that are torn or belong together wrongly: frames of a stack and the next count up by one."""
    torn = 0
    for position, number in enumerate(batch["number"].tolist()):
        frames = [*batch["observation"][position], *batch["next_observation"][position]]
        whole = all(is_whole(frame) for frame in frames) and is_whole(batch["blob"][position])
        if whole:
            numbers = [number_of(frame) for frame in frames]
            steps = int(batch["num_steps"][position])
            oldest = number - int(batch["episode_step"][position])
            whole = number_of(batch["blob"][position]) == number
            whole &= numbers[:3] == [max(oldest, number - 2), max(oldest, number - 1), number]
            whole &= numbers[5] == number + steps and batch["reward"][position] == steps
        torn += not whole
    return torn


class Child:
    """A process that runs target(pipe, *arguments); it is killed at the end if it is still there."""

    def __init__(self, method: str, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context(method)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def answer(self, timeout_s: float = JOIN_S) -> Any:
        """The next thing the child sends; its death, or silence, is an error here."""
        if not self.pipe.poll(timeout_s):
            raise AssertionError(f"the child said nothing for {timeout_s} s")
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join(5)
            raise AssertionError(f"the child ended with {self.process.exitcode} and said nothing") from None

    def tell(self, what: Any) -> None:
        self.pipe.send(what)

    def kill(self) -> None:
        """Kills the child. On a busy machine it may have ended by itself, and its number may be another process's."""
        self.process.kill()
        self.process.join(JOIN_S)

    def join(self) -> None:
        self.process.join(JOIN_S)
        assert self.process.exitcode == 0, f"the child ended with {self.process.exitcode}"

    def end(self) -> None:
        if self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
            self.process.kill()
        self.process.join(JOIN_S)


@contextlib.contextmanager
def children() -> Iterator[Callable[..., Child]]:
    """start(method, target, *arguments) -> Child; none outlives the block."""
    started: list[Child] = []

    def start(method: str, target: Callable[..., None], *arguments: Any) -> Child:
        started.append(Child(method, target, *arguments))
        return started[-1]

    try:
        yield start
    finally:
        for child in started:
            child.end()


def answers(group: list[Child]) -> list[Any]:
    """The next message of each child of a group. Then all children are told that they may end."""
    told = [child.answer() for child in group]
    for child in group:
        child.pipe.send(None)
    return told


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether it comes true before the deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def stop_process(pid: int) -> None:
    """Stops a process, and waits until all its threads stand still: the signal alone lets them run for a moment."""
    os.kill(pid, signal.SIGSTOP)
    threads = list(Path(f"/proc/{pid}/task").iterdir())
    while any((one / "stat").read_text().rpartition(")")[2].split()[0] != "T" for one in threads):
        time.sleep(0.001)
