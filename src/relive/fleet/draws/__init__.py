"""The arithmetic of a draw over shards: placement, shares, order and pace, without a shard or a stream."""
