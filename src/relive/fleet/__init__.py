"""One table over several shards, on one host or many; no storage of steps (relive.table)."""

from relive.fleet.agreement import Alone, Exchange
from relive.fleet.errors import NoLiveShard, NotOverShards, PeerUnreadable, RankFailed, RankLost, RanksDisagree
from relive.fleet.group_reader import Broadcasts, GroupReader
from relive.fleet.owner import ShardOwner, make_shard
from relive.fleet.sharded_table import ShardedTable, attach

__all__ = [
    "Alone",
    "Broadcasts",
    "Exchange",
    "GroupReader",
    "NoLiveShard",
    "NotOverShards",
    "PeerUnreadable",
    "RankFailed",
    "RankLost",
    "RanksDisagree",
    "ShardOwner",
    "ShardedTable",
    "attach",
    "make_shard",
]
