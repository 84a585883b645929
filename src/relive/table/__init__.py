"""The handle that all tables share, the local table, its statistics and the search for tables; no remote table."""
