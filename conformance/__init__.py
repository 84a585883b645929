"""Conformance with Reverb's semantics: cases that run on dm-reverb and on relive, and the result of each case."""
