"""A shard of another host. Its owner draws and gathers; its memory is not read."""
