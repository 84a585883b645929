"""Ranks of torch.distributed on this machine: start them, keep them in step, and end all of them with the first."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any

import frame
import torch
from torch import distributed

import relive

UPDATE, STATE, END = range(3)  # the next thing that all ranks do, as rank 0 decides


def run_ranks(world: int, work: Callable[..., None], *arguments: Any, run: frame.Run) -> None:
    """Begins a run: `work(rank, *arguments)` in `world` processes that are one gloo group. Returns when all have ended.

    If a rank ends with an error or is killed, the others are ended, and the program ends with a sentence. Ctrl-C is
    for rank 0, which decides when the run ends. While rank 0 starts, Ctrl-C waits for the course of its run.
    """
    run.begin()
    run.folder.mkdir(parents=True, exist_ok=True)
    meeting = run.folder / "ranks"
    meeting.unlink(missing_ok=True)
    context = multiprocessing.get_context("spawn")
    told = (world, str(meeting.absolute()), work, arguments)
    ranks = [context.Process(target=_rank, args=(rank, *told), daemon=True) for rank in range(world)]
    running: dict[int, int] = {}

    def tell_rank_0(number: int, _: object) -> None:
        if 0 in running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(ranks[0].pid, number)

    resource_tracker.ensure_running()  # its start, which the first process would make, unblocks SIGINT
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the ranks begin with it blocked
    before = signal.signal(signal.SIGINT, tell_rank_0)
    try:
        for process in ranks:
            process.start()
        running |= {process.sentinel: rank for rank, process in enumerate(ranks)}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        while running:
            for sentinel in wait(list(running)):
                rank = running.pop(sentinel)
                ranks[rank].join()
                if ranks[rank].exitcode != 0:
                    raise SystemExit(f"Rank {rank} ended with {ranks[rank].exitcode}. Continue with --resume.")
    finally:
        running.clear()
        for process in ranks:
            if process.is_alive():
                process.kill()
            process.join()
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _rank(rank: int, world: int, meeting: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.setpgrp()  # Ctrl-C of the terminal comes by the main process alone, so that it counts once
    signal.signal(signal.SIGINT, lambda *_: None)  # blocked; the course of rank 0 sets its handler, and unblocks it
    threading.Thread(target=_end_with_owner, args=(rank,), daemon=True).start()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    problem = ""
    try:
        work(rank, *arguments)
    except relive.ReliveError as error:
        problem = f"Rank {rank}: {error}"
    distributed.destroy_process_group()
    gc.collect()  # a model in a cycle is the last owner of its group; Python aborts if torch ends it as Python ends
    if problem:
        sys.exit(problem)


def _end_with_owner(rank: int) -> None:
    """Ends this process when the process with the shards is gone."""
    owner = multiprocessing.parent_process()
    assert owner is not None
    wait([owner.sentinel])
    try:
        print(f"Rank {rank}: the process with the shards has ended, so this rank ends too.", flush=True)
    finally:
        os._exit(1)  # also if the output is closed


def same_order(order: int) -> int:
    """The order of rank 0, on all ranks. Every rank calls it; the other ranks' values do not count."""
    value = torch.tensor(order)
    distributed.broadcast(value, 0)
    return int(value)
