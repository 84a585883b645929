"""The server: the hosted tables, and one session for each stream; no client."""
