"""Triton kernels over the bytes of a region; no Python objects: kernels take addresses and numbers (words.py)."""
