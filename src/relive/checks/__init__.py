"""Checks of the values, names and parts of a configuration that callers give; no check of arrays."""
