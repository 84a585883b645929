"""A shard of another host whose rows are read from its memory, through NIXL; no draw and no write."""
