"""The client: connections, and the remote table, writers and parameters on top of them; no server."""
