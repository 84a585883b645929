"""The arithmetic of a draw over shards: placement, shares, order and pace. It uses no shard and no stream."""
