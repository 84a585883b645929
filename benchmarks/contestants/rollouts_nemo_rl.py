"""Rollouts behind NeMo-RL's eight calls, which relive implements. The abstract class is a stand-in."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from adapters.data_plane import stand_in
from tensordict import TensorDict

import relive
from benchmarks.rollout_load import GROUP, ROLLOUTS, Rows
from relive.adapters.rollouts.ledger import ledger_path
from relive.config.storage import SharedMemory

stand_in()
from relive.adapters.nemo_rl import ReliveDataPlaneClient  # noqa: E402

FIELDS = ["row", "tokens", "log_probs", "is_answer", "reward", "given_at"]


def names(numbers: Any) -> list[str]:
    return [f"p{number // GROUP}_g{number % GROUP}" for number in numbers.tolist()]


class System:
    """The store, made by the driver."""

    def __init__(self, kind: str) -> None:
        self.address = f"bench-rollouts-{os.getpid()}"
        self._client = ReliveDataPlaneClient({"relive": {"name": self.address, "capacity": "256MiB"}})
        self.versions = {"relive": relive.__version__}

    def begin(self, number: int) -> Any:
        self._client.register_partition(f"pass{number}", FIELDS, ROLLOUTS, ["learn"], grpo_group_size=GROUP)
        numbers = torch.arange(ROLLOUTS)
        self._client.put_samples(names(numbers), f"pass{number}", TensorDict({"row": numbers}, [ROLLOUTS]))
        return f"pass{number}"

    def clear(self, number: int) -> None:
        self._client.clear_samples(None, f"pass{number}")

    def store_bytes(self) -> int:
        ledger = ledger_path(self.address)
        return sum(os.stat(path).st_blocks * 512 for path in (SharedMemory(self.address).path, ledger, f"{ledger}-wal"))

    def close(self) -> None:
        self._client.close()


class _Client:
    def __init__(self, kind: str, address: Any) -> None:
        self._client = ReliveDataPlaneClient({"relive": {"name": address}}, bootstrap=False)

    def begin(self, told: Any) -> None:
        self._partition = told

    def close(self) -> None:
        self._client.close()


class Writer(_Client):
    """A process that writes rollouts, and their rewards later."""

    def put(self, rows: Rows) -> None:
        columns = {"tokens": rows.tokens, "log_probs": rows.log_probs, "is_answer": rows.mask}
        data = TensorDict({name: torch.from_numpy(column) for name, column in columns.items()}, [len(rows.numbers)])
        self._client.put_samples(names(rows.numbers), self._partition, data)

    def reward(self, numbers: np.ndarray[Any, Any], values: Any, given_at: float) -> None:
        size = len(numbers)
        times = torch.full((size,), given_at, dtype=torch.float64)
        data = TensorDict({"reward": torch.from_numpy(values), "given_at": times}, [size])
        self._client.put_samples(names(numbers), self._partition, data)


class Reader(_Client):
    """A process that claims whole groups."""

    def batch(self, groups: int, timeout_s: float) -> dict[str, Any] | None:
        """Columns [rows, ...] as torch tensors, or None."""
        try:
            meta = self._client.claim_meta(self._partition, "learn", FIELDS, groups * GROUP, timeout_s=timeout_s)
        except relive.DeadlineExceeded:
            return None
        return {name: one for name, one in self._client.get_data(meta).items()}
