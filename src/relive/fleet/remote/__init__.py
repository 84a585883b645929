"""A shard of another host, drawn from and gathered through its owner; no read of its memory."""
