"""The states of a loader: those of its dataset, and those of a StatefulDataLoader around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relive.errors import InvalidConfig

__all__ = ["VERSION", "checked", "of_whole", "parts_of_workers"]

VERSION = 2  # of a state. One of version 1 does not say on which stream a LocalMemory table was drawn
_NUMBERS = {"version": 1, "num_items": 1, "world": 1, "num_workers": 1, "first": 0, "batch": 0}  # of a state, at least


def of_whole(state: Any) -> Any:
    """The state of the dataset in that of a StatefulDataLoader, after the last batch that was handed out.

    The workers of a StatefulDataLoader make the batches in turn, so the next batch is the first of those that they
    would make next. The steps since the snapshot were handed out after it.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("_snapshot", state), Mapping):
        return state
    if "_snapshot" not in state:
        return state.get("dataset_state", state)
    parts = parts_of_workers(state)
    steps = state.get("_steps_since_snapshot")
    if not parts or type(steps) is not int:
        return state
    following = min((checked(part) for part in parts), key=lambda part: int(part["batch"]))
    return following | {"batch": following["batch"] + steps, "num_workers": 1}


def parts_of_workers(state: Mapping[str, Any]) -> list[Any]:
    """The states of the dataset in the workers of a StatefulDataLoader; none if it had no workers."""
    snapshot = state.get("_snapshot")
    workers = snapshot.get("_worker_snapshots") if isinstance(snapshot, Mapping) else None
    found = workers.values() if isinstance(workers, Mapping) else ()
    return [part.get("dataset_state") if isinstance(part, Mapping) else None for part in found]


def checked(state: Any) -> dict[str, Any]:
    """The parts of a state. Raises InvalidConfig if it is none."""
    if not isinstance(state, Mapping):
        raise InvalidConfig("state of a loader", "what its state_dict() returned", state)
    if not isinstance(state.get("table"), str):
        raise InvalidConfig("'table' in the state of a loader", "as its state_dict() returned: str", state.get("table"))
    for name, least in _NUMBERS.items():
        value = state.get(name)
        if type(value) is not int or value < least:
            raise InvalidConfig(f"{name!r} in the state of a loader", f"an integer >= {least}", value)
    if state["version"] > VERSION:
        raise InvalidConfig("version of the loader's state", f"at most {VERSION}", state["version"])
    return dict(state)
