"""Triton kernels over the bytes of a region, which get addresses and numbers (words.py); no Python object."""
