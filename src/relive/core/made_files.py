"""Shared files that this process made: their names go when it ends, if no process uses them.

The last clean close of a table removes its name. A process that is killed closes nothing. So the name would stay if the
last user is a child that its parent ends by a signal, as multiprocessing does with daemon processes at the very end.
"""

from __future__ import annotations

import os
import sys

from relive import _core
from relive.errors import ReliveError

__all__ = ["note_made", "remove_made"]

_made: dict[str, tuple[int, int, int]] = {}  # path: process, device and inode of the file


def note_made(path: str) -> None:
    """Notes that this process made the file. Does nothing if another process removed its name at once."""
    try:
        told = os.stat(path)
    except FileNotFoundError:
        return
    _made[path] = (os.getpid(), told.st_dev, told.st_ino)


def remove_made() -> None:
    """Removes the files that this process made and no process uses, after its own handles were closed.

    A file that a child still uses is looked at once more after multiprocessing has ended its daemon processes.
    """
    if _remove_unused():
        return
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _remove_unused, exitpriority=-100)


def _remove_unused() -> bool:
    """Whether nothing is left."""
    for path, (pid, device, inode) in list(_made.items()):
        try:
            told = os.stat(path)
            if pid == os.getpid() and (told.st_dev, told.st_ino) == (device, inode):
                _core.remove(path)
        except (OSError, ReliveError):
            if os.path.exists(path):
                continue  # in use
        del _made[path]
    return not _made
