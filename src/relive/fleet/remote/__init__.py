"""A shard of another host, drawn from and gathered by its owner; no read of its memory."""
