"""Saves below one folder, by the name of their table and their own name: ROOT/TABLE/NAME is the folder of one save.

The names come from other machines. No name leaves ROOT: a name is one component of a path, and links are refused.
"""

from __future__ import annotations

import os

from relive.checks.values import is_name
from relive.errors import InvalidConfig
from relive.saving.current import CURRENT
from relive.saving.saving import MAX_NAME_BYTES

__all__ = ["checked_name", "is_visible_name", "named_save", "newest_save"]


def is_visible_name(name: object) -> bool:
    """Whether the value is a visible name of one folder."""
    return is_name(name, MAX_NAME_BYTES) and "/" not in str(name) and not str(name).startswith(".")


def checked_name(what: str, name: object) -> str:
    """Returns the name of a save. Raises InvalidConfig if it is no visible name of one folder."""
    if not is_visible_name(name):
        expected = f"1 to {MAX_NAME_BYTES} bytes of text without '/', and without '.' in front"
        raise InvalidConfig(what, expected, name if isinstance(name, str) else type(name).__name__)
    return str(name)


def named_save(root: str, table: str, name: object) -> str:
    """Returns the path of a save, which need not be there.

    Raises InvalidConfig if a name is none, or if a link lies at its place.
    """
    path = root
    for what, one in (("name of a table that is saved", table), ("name of a save", name)):
        path = os.path.join(path, checked_name(what, one))
        if os.path.islink(path):
            raise InvalidConfig(what, "the name of a folder, or of nothing yet", f"{path}, a link")
    return path


def newest_save(root: str, table: str) -> str | None:
    """Returns the path of the save of a table that was committed last, by the times of the files. None: it has none.

    Folders without a finished save are passed over, and so are links.
    """
    newest: tuple[int, str] | None = None
    folder = os.path.join(root, checked_name("name of a table that is saved", table))
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    for name in names:
        path = os.path.join(folder, name)
        if name.startswith(".") or os.path.islink(path):
            continue
        try:
            committed = os.stat(os.path.join(path, CURRENT), follow_symlinks=False).st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            continue
        newest = max(newest, (committed, path)) if newest is not None else (committed, path)
    return None if newest is None else newest[1]
