"""A shard of another host whose rows are read from its memory, through NIXL. Its owner draws and writes."""
