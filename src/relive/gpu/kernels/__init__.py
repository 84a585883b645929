"""Triton kernels over the bytes of a region. Every argument is an address or a number, see words.py."""
