"""Actor processes, and the parameters that a learner publishes to them. For examples with more than one process.

    parameters = Parameters(network)
    with Actors(act, num=4, arguments=(settings, name, parameters)) as actors:    # def act(number, settings, ...)
        while run.goes_on(step):
            actors.watch()                      # starts a killed actor again
            parameters.publish(network, version)

- An actor that a signal ends, as of `kill PID`, is started again. An actor that raises ends the run.
- If the learner dies, its actors say so in one sentence and end. An actor that waits for a limiter ends too.
- Ctrl-C is for the learner alone: it ends its loop, and then its actors.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import zlib
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any

import numpy as np
import torch

CONTEXT = multiprocessing.get_context("spawn")


class Parameters:
    """The newest parameters of a network, in memory that actors share with the learner. Pickles into a process.

    A reader checks a checksum and reads again if a publication came in between, so it needs no lock, and a killed
    process leaves no lock behind.
    """

    def __init__(self, network: torch.nn.Module) -> None:
        self._size = sum(tensor.numel() for tensor in network.parameters())
        self._values = CONTEXT.RawArray("f", self._size)
        self._head = CONTEXT.RawArray("q", 2)  # version, checksum
        self.publish(network, 0)

    def publish(self, network: torch.nn.Module, version: int) -> None:
        """Makes the parameters visible to all actors. Only one process publishes."""
        flat = torch.nn.utils.parameters_to_vector(network.parameters()).detach().numpy().astype(np.float32)
        np.frombuffer(self._values, np.float32)[:] = flat
        self._head[1] = zlib.crc32(flat.tobytes())
        self._head[0] = version

    @property
    def version(self) -> int:
        """The version of the newest parameters."""
        return int(self._head[0])

    def pull(self, network: torch.nn.Module) -> int:
        """Copies the newest parameters into a network. Returns a version that these parameters have at least."""
        while True:
            version, checksum = self._head[0], self._head[1]
            flat = np.frombuffer(self._values, np.float32).copy()
            if zlib.crc32(flat.tobytes()) == checksum:
                torch.nn.utils.vector_to_parameters(torch.from_numpy(flat), network.parameters())
                return int(version)


class Actors:
    """Processes that act until their learner ends. Use with `with`."""

    def __init__(self, act: Callable[..., None], num: int, arguments: tuple[Any, ...]) -> None:
        self._act, self._arguments = act, arguments
        self.num_restarts = 0
        self._processes = [self._start(number) for number in range(num)]

    def _start(self, number: int) -> Any:
        process = CONTEXT.Process(target=_main, args=(self._act, number, self._arguments), daemon=True)
        resource_tracker.ensure_running()  # its start, which the first process would make, unblocks SIGINT
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the actor begins with it blocked
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return process

    @property
    def pids(self) -> list[int]:
        """The process ids of the actors."""
        return [process.pid for process in self._processes]

    def watch(self) -> None:
        """Starts an actor again that a signal ended. Its exit code is that signal, or 0 after SIGTERM.

        Raises:
            RuntimeError: an actor ended by an error, which it has printed.
        """
        for number, process in enumerate(self._processes):
            if process.exitcode is None:
                continue
            if process.exitcode > 0:
                raise RuntimeError(f"actor {number} ended with exit code {process.exitcode}; its error is above")
            self.num_restarts += 1
            self._processes[number] = self._start(number)

    def __enter__(self) -> Actors:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + 2.0  # an append to a server runs no handler of SIGTERM while it waits
        for process in self._processes:
            process.join(max(deadline - time.monotonic(), 0.0))
            if process.exitcode is None:
                process.kill()
                process.join()


class _End(BaseException):
    """Raised in an actor's main thread by SIGTERM, also while the actor waits for a limiter."""


def _main(act: Callable[..., None], number: int, arguments: tuple[Any, ...]) -> None:
    """The body of an actor process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    learner = multiprocessing.parent_process()
    assert learner is not None
    try:
        signal.signal(signal.SIGTERM, _end)  # it may raise from here on
        torch.set_num_threads(1)
        threading.Thread(target=_end_with_learner, args=(learner.sentinel,), daemon=True).start()
        act(number, *arguments)
    except _End:
        pass
    except Exception:  # without its learner, an actor finds no table, or no server
        if learner.is_alive():
            raise
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not learner.is_alive():
        print(f"Actor {number}: the learner has ended, so this actor ends too.", flush=True)


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _End


def _end_with_learner(sentinel: int) -> None:
    """Ends this process when the learner's process is gone."""
    wait([sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
