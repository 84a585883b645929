"""A stand-in of NeMo-RL's data plane, whose package is on no index: the names and signatures of its eight calls.

The source is nemo_rl/data_plane/interfaces.py in the repository NVIDIA-NeMo/RL, as of commit 0a52fe5f.
"""

from __future__ import annotations

import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any


@dataclass
class KVBatchMeta:
    """Samples of a partition, named by their ids."""

    partition_id: str
    task_name: str | None
    sample_ids: list[str]
    fields: list[str] | None = None
    sequence_lengths: list[int] | None = None
    extra_info: dict[str, Any] = field(default_factory=dict)
    tags: list[dict[str, Any]] | None = None


class DataPlaneClient(ABC):
    """The eight calls, all abstract."""

    @abstractmethod
    def register_partition(
        self,
        partition_id: str,
        fields: list[str],
        num_samples: int,
        consumer_tasks: list[str],
        grpo_group_size: int | None = None,
        enums: dict[str, list[str]] | None = None,
    ) -> None: ...

    @abstractmethod
    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: list[str],
        batch_size: int,
        dp_rank: int | None = None,
        blocking: bool = True,
        timeout_s: float = 60.0,
    ) -> KVBatchMeta: ...

    @abstractmethod
    def get_data(self, meta: KVBatchMeta, select_fields: list[str] | None = None) -> Any: ...

    @abstractmethod
    def check_consumption_status(self, partition_id: str, task_names: list[str]) -> bool: ...

    @abstractmethod
    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: Any = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> KVBatchMeta: ...

    @abstractmethod
    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> Any: ...

    @abstractmethod
    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


def stand_in() -> bool:
    """Makes nemo_rl.data_plane.interfaces importable. Returns whether the stand-in is used, not the library."""
    try:
        import nemo_rl.data_plane.interfaces  # noqa: F401
    except ImportError:
        for name in ("nemo_rl", "nemo_rl.data_plane", "nemo_rl.data_plane.interfaces"):
            sys.modules[name] = types.ModuleType(name)
        module = sys.modules["nemo_rl.data_plane.interfaces"]
        module.KVBatchMeta = KVBatchMeta  # type: ignore[attr-defined]
        module.DataPlaneClient = DataPlaneClient  # type: ignore[attr-defined]
        return True
    return False
