"""How long this thread waited for a core: what Linux counts of it, so that a busy machine is told from slow work."""

from __future__ import annotations

import time
from pathlib import Path

_FILE = "/proc/thread-self/schedstat"  # nanoseconds on a core, nanoseconds ready to run and waiting for one, turns


def waited_for_core_s(pid: int | None = None) -> float:
    """Seconds, since it began, that this thread was ready to run and had no core: of another process its main thread.

    0.0 where the system does not tell. A sleep, a lock or a device is not waiting for a core. Cost: about 15 us.
    """
    try:
        fields = Path(_FILE if pid is None else f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
        return int(fields[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def working_clock() -> float:
    """Seconds by the wall without those that this thread waited for a core: differences of it are what work takes."""
    return time.perf_counter() - waited_for_core_s()
