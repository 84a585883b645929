"""Measures how long a thread waited for a core, as Linux counts it: a busy machine does not look like slow work."""

from __future__ import annotations

import time
from pathlib import Path

_FILE = "/proc/thread-self/schedstat"  # nanoseconds on a core, nanoseconds ready and without a core, time slices


def waited_for_core_s(pid: int | None = None) -> float:
    """Returns the seconds, since its start, that a thread was ready to run and had no core.

    A sleep, a wait for a lock and a wait for a device do not count.

    Args:
        pid: A process, whose main thread is meant; None: the calling thread.

    Returns:
        Seconds; 0.0 if the system does not tell.

    Cost:
        About 15 us.
    """
    try:
        fields = Path(_FILE if pid is None else f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()
        return int(fields[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def working_clock() -> float:
    """Returns wall-clock seconds without the seconds that this thread waited for a core. Differences are work.

    The clock never goes back. Both of its parts are read at one moment: if the thread waited for a core between the two
    readings, one part would count the wait and the other part would not.
    """
    waited_s = waited_for_core_s()
    while True:
        now_s, before_s = time.perf_counter(), waited_s
        waited_s = waited_for_core_s()
        if waited_s == before_s:
            return now_s - waited_s
