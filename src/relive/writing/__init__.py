"""The way from a caller's rows to a core: writers, late columns and explicit items; no table and no reader."""
