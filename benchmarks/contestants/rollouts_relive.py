"""Rollouts in a table of relive: a step is a rollout, a group is an item, and the reward is a late column."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

import relive
from benchmarks.rollout_load import GROUP, GROUPS, ROLLOUTS, TOKENS, Rows
from relive.config.storage import SharedMemory


class System:
    """The table, in the host."""

    def __init__(self, kind: str) -> None:
        spec = relive.StepSpec(
            {
                "row": relive.ArraySpec((), "int64"),
                "tokens": relive.ArraySpec((TOKENS,), "int64"),
                "log_probs": relive.ArraySpec((TOKENS,), "float32"),
                "is_answer": relive.ArraySpec((TOKENS,), "bool"),
                "prompt": relive.ArraySpec((), "int64", kind="episode"),
                "reward": relive.ArraySpec((), "float32", late=True),
                "given_at": relive.ArraySpec((), "float64", late=True),
            }
        )
        groups = relive.Episodes(max_length=1, group_by="prompt", group_size=GROUP, max_groups=2 * GROUPS)
        index = relive.Index(groups, relive.Fifo(), relive.Queue(2 * GROUPS), max_times_sampled=1)
        self.address = f"bench-rollouts-{os.getpid()}"
        storage = SharedMemory(self.address, overwrite=True)
        self._table = relive.Table(spec, 2 * ROLLOUTS, index, storage=storage, max_lanes=32)
        self.versions = {"relive": relive.__version__}

    def begin(self, number: int) -> Any:
        """Nothing to tell: a group has its prompt's number."""
        return number

    def clear(self, number: int) -> None:
        """Nothing to do: groups that were drawn have left."""

    def store_bytes(self) -> int:
        return os.stat(SharedMemory(self.address).path).st_blocks * 512

    def close(self) -> None:
        self._table.close()


class Writer:
    """A process that writes rollouts, and their rewards later."""

    def __init__(self, kind: str, address: Any) -> None:
        self._table = relive.attach(address)
        self._writer = self._table.writer()

    def begin(self, told: Any) -> None:
        self._pass = told
        self._keys: dict[int, int] = {}

    def put(self, rows: Rows) -> None:
        prompts = self._pass * GROUPS + rows.numbers // GROUP
        keys = self._writer.extend(
            row=rows.numbers, tokens=rows.tokens, log_probs=rows.log_probs, is_answer=rows.mask, prompt=prompts,
            terminated=np.ones(len(rows.numbers), np.bool_),
        )  # fmt: skip
        self._keys.update(zip(rows.numbers.tolist(), keys.tolist(), strict=True))

    def reward(self, numbers: np.ndarray[Any, Any], values: Any, given_at: float) -> None:
        keys = np.array([self._keys[number] for number in numbers.tolist()])
        self._table.complete(keys, reward=values, given_at=np.full(len(keys), given_at))

    def close(self) -> None:
        self._writer.close()
        self._table.close()


class Reader:
    """A process that reads whole groups."""

    def __init__(self, kind: str, address: Any) -> None:
        self._table = relive.attach(address)

    def begin(self, told: Any) -> None:
        pass

    def batch(self, groups: int, timeout_s: float) -> dict[str, Any] | None:
        """Columns [rows, ...] as torch tensors, or None."""
        try:
            batch = self._table.sample(groups, timeout_s=timeout_s).to_torch()
        except relive.DeadlineExceeded:
            return None
        names = ("row", "tokens", "log_probs", "is_answer", "reward", "given_at")
        return {name: batch[name].flatten(0, 2) for name in names}

    def close(self) -> None:
        self._table.close()
