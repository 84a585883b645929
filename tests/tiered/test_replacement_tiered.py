"""Draws without replacement of a tiered table, which draws its batches ahead."""

from __future__ import annotations

from typing import Any

import numpy as np

import relive
from tiered.tools import needs_tiers

pytestmark = needs_tiers


def test_what_goes_between_draw_and_gather_is_drawn_beside_the_rest(tmp_path: Any) -> None:
    """A tiered table draws batches ahead. Steps that leave before the read are replaced, and no step comes twice."""
    spec = relive.StepSpec({"observation": relive.ArraySpec((300,), "float32")})
    storage = relive.Tiered(str(tmp_path), ram_bytes=1 << 19)
    table = relive.Table(spec, 400, relive.Index(replacement=False), storage=storage)
    with table, table.writer() as writer:
        writer.extend(observation=np.zeros((480, 300)))
        with table.batches(200, prefetch=2) as batches:
            for _ in range(30):
                writer.extend(observation=np.zeros((20, 300)))
                assert len(set(next(batches).item_keys.tolist())) == 200
