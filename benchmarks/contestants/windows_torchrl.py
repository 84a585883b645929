"""TorchRL: a TensorDictReplayBuffer whose SliceSampler draws windows, in the memory of the rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer

from benchmarks import windows


@contextlib.contextmanager
def host(kind: str, length: int) -> Iterator[str]:
    """No process but the rank has the data."""
    yield ""


@contextlib.contextmanager
def open_windows(kind: str, place: str, length: int, rank: int) -> Iterator[dict[str, Callable[[], Any]]]:
    """{way: call}. A call returns the tensors of a batch."""
    rows = torch.from_numpy(windows.episodes())
    number = torch.arange(len(rows))[:, None].expand(rows.shape[:2]).flatten()
    flat = {name: rows[..., columns].flatten(0, 1).contiguous() for name, columns in windows.PARTS.items()}

    def buffer(**options: Any) -> Any:
        made = TensorDictReplayBuffer(
            storage=LazyTensorStorage(len(number)),
            sampler=SliceSampler(slice_len=length, traj_key="episode", cache_values=True, strict_length=True),
            batch_size=windows.BATCH * length,
            **options,
        )
        made.extend(TensorDict({**flat, "episode": number}, [len(number)]))
        return made

    def sample(made: Any) -> Any:
        batch = made.sample()
        return {name: batch[name].unflatten(0, (windows.BATCH, length)) for name in windows.PARTS}

    yield {"on request": partial(sample, buffer()), "ahead": partial(sample, buffer(prefetch=windows.AHEAD))}
