"""Rollouts in TransferQueue, with its own storage or with relive's."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict

import relive
import relive.adapters.transferqueue  # noqa: F401  (the backend "relive")
from benchmarks.rollout_load import GROUP, ROLLOUTS, Rows
from benchmarks.rollout_sampler import WholeGroups
from relive.config.storage import SharedMemory

BACKENDS = {"TransferQueue, its SimpleStorage": "SimpleStorage", "TransferQueue, relive's storage": "relive"}
POLL_S = 0.001
FIELDS = ["row", "tokens", "log_probs", "is_answer", "reward", "given_at"]


class System:
    """The controller and the storage, in the host. Ray places them."""

    def __init__(self, kind: str) -> None:
        ray.init(num_cpus=3, include_dashboard=False, logging_level="ERROR", log_to_driver=False,
                 object_store_memory=200_000_000)  # fmt: skip
        self._backend = BACKENDS[kind]
        settings = {
            "backend": {"storage_backend": self._backend, "relive": {"capacity": "256MiB"}},
            "controller": {"polling_mode": True, "sampler": WholeGroups()},
        }
        self._conf = tq.init(OmegaConf.create(settings, flags={"allow_objects": True}))
        self._client = tq.get_client()
        self.address = (self._conf, self._backend)
        self.versions = {"transfer_queue": tq.__version__, "ray": ray.__version__, "relive": relive.__version__}

    def begin(self, number: int) -> Any:
        """Registers the rollouts in the order of their prompts. Returns the metadata that writers put by."""
        rows = TensorDict({"row": torch.arange(ROLLOUTS)}, [ROLLOUTS])
        meta = self._client.put(rows, partition_id=f"pass{number}")
        meta.update_custom_meta([{"prompt": row // GROUP} for row in range(ROLLOUTS)])
        self._client.set_custom_meta(meta)
        return f"pass{number}", meta

    def clear(self, number: int) -> None:
        self._client.clear_partition(f"pass{number}")

    def store_bytes(self) -> int:
        if self._backend == "relive":
            return os.stat(SharedMemory(self._conf.backend.relive.name).path).st_blocks * 512
        return 0  # in the units' processes

    def close(self) -> None:
        tq.close()
        ray.shutdown()


class _Client:
    def __init__(self, kind: str, address: Any) -> None:
        conf, backend = address
        self._client = tq.TransferQueueClient(f"bench{os.getpid()}", conf.controller.zmq_info)
        self._client.initialize_storage_manager(backend, conf.backend[backend])

    def begin(self, told: Any) -> None:
        self._partition, self._meta = told

    def close(self) -> None:
        self._client.close()


class Writer(_Client):
    """A process that writes rollouts, and their rewards later."""

    def put(self, rows: Rows) -> None:
        columns = {"tokens": rows.tokens, "log_probs": rows.log_probs, "is_answer": rows.mask}
        data = TensorDict({name: torch.from_numpy(column) for name, column in columns.items()}, [len(rows.numbers)])
        self._client.put(data, metadata=self._meta.select_samples(rows.numbers.tolist()))

    def reward(self, numbers: np.ndarray[Any, Any], values: Any, given_at: float) -> None:
        size = len(numbers)
        times = torch.full((size,), given_at, dtype=torch.float64)
        data = TensorDict({"reward": torch.from_numpy(values), "given_at": times}, [size])
        self._client.put(data, metadata=self._meta.select_samples(numbers.tolist()))


class Reader(_Client):
    """A process that reads whole groups. TransferQueue has no call that waits: the reader asks every millisecond."""

    def batch(self, groups: int, timeout_s: float) -> dict[str, Any] | None:
        """Columns [rows, ...] as torch tensors, or None."""
        ends = time.monotonic() + timeout_s
        while True:
            meta = self._client.get_meta(
                data_fields=FIELDS, batch_size=groups * GROUP, partition_id=self._partition, task_name="learn"
            )
            if meta.size:
                break
            if time.monotonic() > ends:
                return None
            time.sleep(POLL_S)
        data = self._client.get_data(meta)
        found = {name: data[name] for name in FIELDS}
        return {name: one.values().reshape(meta.size, -1) if one.is_nested else one for name, one in found.items()}
