"""Files in shared memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHM = Path("/dev/shm")

needs_shared_memory = pytest.mark.skipif(
    os.environ.get("RELIVE_TEST_PORTABLE") == "1" or not SHM.is_dir(),
    reason="this build, or this machine, has no shared memory: LocalMemory only",
)


def shared_files(name: str) -> list[Path]:
    """The files under /dev/shm for a table of that name."""
    return sorted(path for path in SHM.iterdir() if name in path.name)
