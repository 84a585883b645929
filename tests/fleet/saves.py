"""Helpers of the tests of saves of all shards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import relive.fleet
from fleet.tools import config_of
from relive.fleet import ShardOwner

__all__ = ["cuts", "num_saved", "owning"]


def owning(stack: ExitStack, names: Any, load: Any, index: Any = None, **more: Any) -> list[ShardOwner]:
    """An owner of each shard, from a save."""
    return [
        stack.enter_context(ShardOwner(number, config_of(name, index, **more), load=load))
        for number, name in enumerate(names)
    ]


def num_saved(path: Path, shm_name: Callable[[], str]) -> tuple[int, ...]:
    """The steps of each shard of the newest save, which is loaded, checked and closed again."""
    described = relive.fleet.saved(path)
    with ExitStack() as stack:
        owners = owning(stack, [shm_name() for _ in described.shards], path)
        for owner, part in zip(owners, described.shards, strict=True):
            owner.table.check()
            assert len(owner.table) == part.num_steps
        return tuple(len(owner.table) for owner in owners)


def cuts(path: Path, shard: int) -> list[int]:
    return sorted(int(one.name.removesuffix(".cut")) for one in (path / "shards" / str(shard) / "cuts").iterdir())
