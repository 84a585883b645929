"""Modules that compose whole tables: mixtures, patterns of items and data loaders; no knowledge of a core."""
