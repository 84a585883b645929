"""Adapters to other libraries, one file each; importing this package imports none of them."""
