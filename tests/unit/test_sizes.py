"""Sizes whose product is beyond the address space are no memory, and nothing is written past the end."""

from __future__ import annotations

import numpy as np
import pytest

import relive


def test_a_batch_of_2_to_the_64_bytes_is_refused() -> None:
    """2^25 items of 2^39 bytes: their product wraps round to 0. The table itself has under 1 GB."""
    spec = relive.StepSpec({"o": relive.ArraySpec((2**17,), "uint8", kind="state"), "a": relive.ArraySpec((), "uint8")})
    index = relive.Index(relive.Sequences(2048, stack={"o": 2048}))
    with relive.Table(spec, 5_000, index, max_lanes=1) as table, table.writer() as writer:
        writer.extend(o=np.zeros((2, 2**17), np.uint8), a=np.zeros(1, np.uint8), truncated=True)
        keys = next(table.keys())
        with pytest.raises(MemoryError):
            table.gather(np.full(2**25, keys[0]), columns=["o"])
        with pytest.raises(MemoryError):
            table.sample(2**25, columns=["o"])
        assert table.stats().indexes["default"].in_flight == 0
        assert table.sample(1, columns=["a"])["a"].shape == (1, 2048)
