"""Checks of the values, names and parts of configurations, and of header fields; no check of arrays."""
