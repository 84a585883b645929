"""The messages between client and server as bytes, and the options of both; no stream and no table."""
