"""Reverb's semantics as a measure: cases that run on dm-reverb and on relive, and what each of them does."""
