"""Finds the processes that use a shared table, for messages. The core itself relies on the file's locks alone."""

from __future__ import annotations

import glob
import os

__all__ = ["attached_pids"]


def attached_pids(path: str) -> tuple[int, ...]:
    """The numbers of the processes that have a lock on this file: every process with a handle on it, readers too.

    Processes of other users, or of another namespace of process numbers, cannot be seen.

    Cost: one pass over /proc (milliseconds).
    """
    try:
        wanted = os.stat(path)
    except OSError:
        return ()
    folder = os.path.dirname(path) + "/"
    found = set()
    for descriptor in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            # Compared by inode, because a file without a name still shows one here.
            if os.readlink(descriptor).startswith(folder) and os.path.samestat(os.stat(descriptor), wanted):
                with open(descriptor.replace("/fd/", "/fdinfo/")) as file:
                    if any(line.startswith("lock:") for line in file):
                        found.add(int(descriptor.split("/")[2]))
        except OSError:  # the process has ended, or belongs to another user
            continue
    return tuple(sorted(found))
