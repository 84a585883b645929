"""Merges the statistics of several shards into those of one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from relive.fleet.draws.pace import Pace
from relive.fleet.shards import Shard

__all__ = ["totals"]

_LIVE_ONLY = ("num_steps", "num_items", "pending", "total_mass", "num_lanes", "in_flight")
_LARGEST = ("max_priority", "sampler_waits_s", "writer_waits_s", "draw_size", "insert_size", "page_len", "is_stuck")


def totals(told: Sequence[tuple[Shard, dict[str, Any]]], paces: Sequence[Pace]) -> dict[str, Any]:
    """The statistics of one table, from those of each shard's core.

    Counters sum over all shards, so that no counter falls when a shard dies. Present amounts sum over live shards only.
    """
    live = [shard.is_live for shard, _ in told]
    raws = [raw for _, raw in told]
    plain = [{name: value for name, value in raw.items() if name not in ("indexes", "tiers")} for raw in raws]
    whole = _merged(plain, live)
    versions = [raw["policy_version"] for raw, is_live in zip(raws, live, strict=True) if is_live or not any(live)]
    whole["policy_version"] = min(versions)
    whole["indexes"] = [
        _merged([raw["indexes"][number] for raw in raws], live) | {"limiter": list(pace.core_numbers())}
        for number, pace in enumerate(paces)
    ]
    whole["tiers"] = None
    whole["shards"] = [
        {"shard": shard.number, "state": shard.state, "path": shard.path, "progress": shard.progress}
        | {name: raw[name] for name in ("num_steps", "capacity", "policy_version")}
        for shard, raw in told
    ]
    return whole


def _merged(raws: Sequence[dict[str, Any]], live: Sequence[bool]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for name, first in raws[0].items():
        values = [raw[name] for raw, is_live in zip(raws, live, strict=True) if is_live or name not in _LIVE_ONLY]
        if isinstance(first, (str, list)):
            merged[name] = next((value for value in values if value), first)
        else:
            merged[name] = max(values) if name in _LARGEST else sum(values)
    return merged
