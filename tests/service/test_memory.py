"""What a process of the service tells malloc, and when it leaves that to the user."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")
ASK = "from relive.service.wire.memory import keep_freed_memory as keep; print(keep(), keep())"


def answer(**environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, env=environment, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc's malloc")
def test_freed_memory_is_kept() -> None:
    assert answer() == "True True"


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"])
def test_what_the_user_says_of_malloc_holds(name: str) -> None:
    assert answer(**{name: "1000000"}) == "False False"
