"""The client: connections, and the table, writers and parameters behind them; no server."""
