"""Lets torchdata's StatefulDataLoader continue a dataset of relive with another number of workers or ranks.

torchdata compares the number of workers before it gives a state to the dataset, and has no hook for a dataset that can
be divided otherwise. Therefore relive wraps StatefulDataLoader.load_state_dict. Loaders of other datasets do not
change.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["Divisible", "extend_torchdata"]


class Divisible(Protocol):
    """A dataset that continues from a loader's state, whatever number of workers that loader had."""

    def is_divided_otherwise(self, state: Mapping[str, Any], num_workers: int) -> bool:
        """Whether a loader of this dataset, with this number of workers, shares the batches otherwise than the state.

        Args:
            state: the state of a StatefulDataLoader.
            num_workers: number of worker processes of the loader that is restored, 0 or more.
        """
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from the state of a loader."""
        ...

    def note_workers_state(self, state: Mapping[str, Any]) -> None:
        """Notes, in the main process, that the worker processes continue from this state."""
        ...


def extend_torchdata(divisible: type[Divisible]) -> None:
    """Wraps StatefulDataLoader.load_state_dict for datasets of this class. No effect if torchdata is not installed."""
    if importlib.util.find_spec("torchdata") is None:
        return
    loader_type: Any = importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader
    given_to_workers = loader_type.load_state_dict

    @functools.wraps(given_to_workers)
    def load_state_dict(loader: Any, state_dict: Any) -> None:
        dataset = loader.dataset
        if isinstance(dataset, divisible) and isinstance(state_dict, Mapping) and state_dict:
            if dataset.is_divided_otherwise(state_dict, loader.num_workers):
                dataset.load_state_dict(state_dict)
                loader.next_iter_state = None  # of an earlier call
                state_dict = {}  # torchdata begins at the position of the dataset
        given_to_workers(loader, state_dict)
        if isinstance(dataset, divisible) and state_dict and loader.num_workers:
            dataset.note_workers_state(state_dict)

    loader_type.load_state_dict = load_state_dict
