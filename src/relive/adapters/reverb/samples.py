"""The values that Reverb's calls return."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["ReplaySample", "SampleInfo"]


class SampleInfo(NamedTuple):
    """The facts of a sampled item."""

    key: Any
    probability: Any
    table_size: Any
    priority: Any
    times_sampled: Any


class ReplaySample(NamedTuple):
    """A sampled item: its facts, and its data."""

    info: SampleInfo
    data: Any
