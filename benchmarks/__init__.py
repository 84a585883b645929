"""Measurements of relive beside other replay buffers: `python -m benchmarks.run --help`."""
