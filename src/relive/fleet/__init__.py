"""One table over several shards: keys carry the shard, roots say how much of a draw falls in each."""

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
