"""Reverb's names on relive's tables, for programs whose server lives in the same process; no network and no TensorFlow.

    import relive.adapters.reverb as reverb

    table = reverb.Table("replay", reverb.selectors.Prioritized(0.6), reverb.selectors.Fifo(), max_size=100_000,
                         rate_limiter=reverb.rate_limiters.MinSize(1_000))
    server = reverb.Server([table])
    client = server.localhost_client()
    with client.trajectory_writer(num_keep_alive_refs=3) as writer: ...

docs/adapters.md lists the differences.
"""

from __future__ import annotations

from relive.adapters.reverb import errors, rate_limiters, selectors
from relive.adapters.reverb.dataset import TrajectoryDataset
from relive.adapters.reverb.samples import ReplaySample, SampleInfo
from relive.adapters.reverb.server import Client, Server
from relive.adapters.reverb.table import Table, TableInfo
from relive.adapters.reverb.trajectory_writer import TrajectoryColumn, TrajectoryWriter

__all__ = [
    "Client",
    "ReplaySample",
    "SampleInfo",
    "Server",
    "Table",
    "TableInfo",
    "TrajectoryColumn",
    "TrajectoryDataset",
    "TrajectoryWriter",
    "errors",
    "rate_limiters",
    "selectors",
]
