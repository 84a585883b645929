"""One table over several shards, on one host or many; no storage of steps (relive.table)."""

from relive.fleet.agreement import Alone, Exchange
from relive.fleet.errors import (
    NoLiveShard,
    NotOverShards,
    OtherShards,
    PeerUnreadable,
    RankFailed,
    RankLost,
    RanksDisagree,
    ShardNotSaved,
)
from relive.fleet.group_reader import Broadcasts, GroupReader
from relive.fleet.owner import ShardOwner, make_shard
from relive.fleet.saved import SavedShard, SavedShards, saved
from relive.fleet.saving import ShardsSaveFacts, ShardsSaving
from relive.fleet.sharded_table import ShardedTable, attach

__all__ = [
    "Alone",
    "Broadcasts",
    "Exchange",
    "GroupReader",
    "NoLiveShard",
    "NotOverShards",
    "OtherShards",
    "PeerUnreadable",
    "RankFailed",
    "RankLost",
    "RanksDisagree",
    "SavedShard",
    "SavedShards",
    "ShardNotSaved",
    "ShardOwner",
    "ShardedTable",
    "ShardsSaveFacts",
    "ShardsSaving",
    "attach",
    "make_shard",
    "saved",
]
