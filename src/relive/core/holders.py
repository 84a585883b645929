"""Which processes of this machine hold a shared table, for messages: the core itself goes by the file's locks alone."""

from __future__ import annotations

import glob
import os

__all__ = ["holders"]


def holders(path: str) -> tuple[int, ...]:
    """The processes that have a lock on this file, by number: those with a handle on it, readers too.

    Those of other users, or of another namespace of process numbers, cannot be seen. Reads /proc once (milliseconds).
    """
    try:
        wanted = os.stat(path)
    except OSError:
        return ()
    folder = os.path.dirname(path) + "/"
    found = set()
    for descriptor in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            # By its inode: a file that was made nameless keeps that for its name here.
            if os.readlink(descriptor).startswith(folder) and os.path.samestat(os.stat(descriptor), wanted):
                with open(descriptor.replace("/fd/", "/fdinfo/")) as file:
                    if any(line.startswith("lock:") for line in file):
                        found.add(int(descriptor.split("/")[2]))
        except OSError:  # it ended meanwhile, or is somebody else's
            continue
    return tuple(sorted(found))
