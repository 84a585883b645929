"""Tables with as little memory as they can do with, and rows whose every byte tells which row it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors

IS_PORTABLE = os.environ.get("RELIVE_TEST_PORTABLE") == "1"
needs_tiers = pytest.mark.skipif(IS_PORTABLE, reason="this build has no Tiered: LocalMemory only")
FRAMES = 6  # pages in memory: enough for the lanes of these tests, few against what they write


def smallest_storage(
    directory: Path, spec: Any, capacity: Any, index: Any = None, lanes: int = 4, **options: Any
) -> relive.Tiered:
    """Tiered with room for few pages of this very table, and every column but the scalars a large one."""
    few = relive.Tiered(directory, 1, min_column_bytes=0, io_threads=2)
    more = {} if index is None else {"index": index}
    try:
        relive.Table(spec, capacity, **more, **options, storage=few).close()
    except errors.InvalidConfig as error:
        if error.what != "ram_bytes of Tiered":
            raise
        least = int(str(error.expected).split()[2])  # of four pages and two units
        pages = max(FRAMES, 2 * lanes + 3)  # an open lane holds two at most
        return relive.Tiered(directory, least * pages // 4, staging_fraction=0.0, min_column_bytes=0, io_threads=2)
    return few  # no column is large


def pattern(numbers: Any, num_bytes: int) -> np.ndarray:
    """uint8[N, num_bytes]: byte k of row n follows from (n, k), and no two rows below 2**16 are alike."""
    n = np.asarray(numbers, np.uint32)[:, None]
    k = np.arange(num_bytes, dtype=np.uint32)[None, :]
    return ((n * np.uint32(2654435761) + k * np.uint32(40503) + (n >> np.uint32(3)) * k) >> np.uint32(11)).astype(
        np.uint8
    )
