"""The writers and readers of benchmarks.rollout_host, each a process."""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np
import torch

from benchmarks.rollout_load import GROUP, ROLLOUTS, Rows, of_writer

LIMIT_S = 20.0
LOOK_S = 0.2  # a reader that waits looks this often whether all rollouts are read
PACE_S = 0.04


def write(kind: str, module: str, address: Any, number: int, barrier: Any, pipe: Any) -> None:
    """A writer. Each pass is told by the host; None ends the process."""
    torch.set_num_threads(1)
    client = importlib.import_module(module).Writer(kind, address)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        told, rows_a_call, is_paced = order
        client.begin(told)
        calls = [Rows.of(numbers) for numbers in of_writer(number, rows_a_call)]
        barrier.wait()
        if is_paced:
            write_paced(client, calls, pipe)
        else:
            write_pass(client, calls)
        pipe.send(time.monotonic())
    client.close()


def write_pass(client: Any, calls: list[Rows]) -> None:
    """Gives the rewards of each call after the next call."""
    for last, rows in zip([None, *calls], [*calls, None], strict=True):
        if rows is not None:
            client.put(rows)
        if last is not None:
            give(client, last.numbers)


def write_paced(client: Any, calls: list[Rows], pipe: Any) -> None:
    """Gives all rewards but those that complete a group. Then gives these, one every PACE_S."""
    last = []
    for rows in calls:
        client.put(rows)
        completes = rows.numbers % GROUP == GROUP - 1
        if not completes.all():
            give(client, rows.numbers[~completes])
        last += rows.numbers[completes].tolist()
    pipe.send("put")
    pipe.recv()
    for number in last:
        time.sleep(PACE_S)
        give(client, np.array([number]))


def give(client: Any, numbers: np.ndarray[Any, Any]) -> None:
    client.reward(numbers, np.ones(len(numbers), np.float32), time.monotonic())


def read(kind: str, module: str, address: Any, number: int, barrier: Any, read_rows: Any, pipe: Any) -> None:
    """A reader. Checks each batch and notes how long after its last reward it came."""
    torch.set_num_threads(1)
    client = importlib.import_module(module).Reader(kind, address)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        told, groups = order
        client.begin(told)
        numbers: list[int] = []
        waits: list[float] = []
        mixed, ended = 0, 0.0
        barrier.wait()
        ends = time.monotonic() + LIMIT_S
        while read_rows.value < ROLLOUTS and time.monotonic() < ends:
            batch = client.batch(groups, LOOK_S)
            if batch is None:
                continue
            ended = time.monotonic()
            mine = batch["row"].reshape(-1).numpy()
            with read_rows.get_lock():
                read_rows.value += len(mine)
            waits += (ended - batch["given_at"].reshape(-1, GROUP).max(1).values.numpy()).tolist()
            whole = mine.reshape(-1, GROUP) // GROUP
            mixed += int((whole != whole[:, :1]).any(1).sum())
            assert (batch["tokens"][:, 0].numpy() == mine).all() and (batch["tokens"][:, -1].numpy() > mine).all()
            assert batch["log_probs"].numel() == batch["is_answer"].numel() == batch["tokens"].numel()
            numbers += mine.tolist()
        pipe.send({"numbers": numbers, "waits": waits, "mixed": mixed, "ended": ended})
    client.close()
