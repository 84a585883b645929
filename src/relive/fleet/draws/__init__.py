"""The arithmetic of a draw over shards: placement, shares, order and pace; no shard and no stream."""
