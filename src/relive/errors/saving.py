"""Errors of saves: folders without one, damaged files, a second saver, saves that did not end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from relive.errors.base import ReliveError, bytes_text, plain, shown

__all__ = ["DamagedSave", "NoSuchSave", "SaveCancelled", "SaveInUse", "SaveOutrun", "SavesNotAllowed"]

_MAX_TEXT = 200


def _short(value: object) -> object:
    """Returns a value that was found in a file, at a length that a sentence can show."""
    known = plain(value)
    return f"{known[:_MAX_TEXT]}..." if isinstance(known, str) and len(known) > _MAX_TEXT else known


@final
class NoSuchSave(ReliveError, FileNotFoundError):
    """The folder has no finished save, or none of this number. kept: the numbers of those that it has."""

    def __init__(self, path: str, number: int | None = None, kept: Sequence[int] = ()) -> None:
        self.path = path
        self.number = number
        self.kept = tuple(kept)
        if number is None:
            super().__init__(f"{path} has no save: no Table.save has ended there")
        else:
            super().__init__(f"{path} has no save {number}; it keeps {', '.join(map(str, self.kept))}")


@final
class DamagedSave(ReliveError, ValueError):
    """A file of a save is missing, cut short or changed, or its contents cannot be true."""

    def __init__(self, path: str = "", what: str = "", expected: object = None, got: object = None) -> None:
        self.path = path
        self.what = what
        self.expected = _short(expected)
        self.got = _short(got)
        told = f": expected {shown(self.expected)}, got {shown(self.got)}" if expected is not None else ""
        super().__init__(
            f"the save in {path} is damaged: {what}{told}; load another save, or one of the copies that keep= left"
        )


@final
class SaveInUse(ReliveError, BlockingIOError):
    """Another process, or another thread of this one, saves into the folder. pids: the processes that are visible."""

    def __init__(self, path: str, pids: Sequence[int] = ()) -> None:
        self.path = path
        self.pids = tuple(pids)
        by = f" (process {', '.join(map(str, self.pids[:4]))})" if self.pids else ""
        super().__init__(f"another save into {path} goes on{by}; wait for it, or save into another folder")


@final
class SaveOutrun(ReliveError, RuntimeError):
    """Writers filled pages faster than the save copied them."""

    def __init__(self, path: str, left_bytes: int, capacity_bytes: int) -> None:
        self.path = path
        self.left_bytes = left_bytes
        self.capacity_bytes = capacity_bytes
        super().__init__(
            f"writers are faster than the save into {path}: after eight rounds {bytes_text(left_bytes)} of"
            f" {bytes_text(capacity_bytes)} are not copied; save to a faster disk, or slow the writers meanwhile"
        )


@final
class SaveCancelled(ReliveError, RuntimeError):
    """Saving.cancel() ended the save. The save before it stays."""

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__(f"the save into {path} was cancelled; the save before it stays whole")


@final
class SavesNotAllowed(ReliveError, PermissionError):
    """The server has no folder for saves, so clients cannot save its tables."""

    def __init__(self, table: str) -> None:
        self.table = table
        super().__init__(
            f'the server of table {table!r} has no folder for saves; start it with saves = "FOLDER" in the file of'
            " relive serve, with serve(..., options=ServerOptions(saves=FOLDER)), or ShardOwner.serve(saves=FOLDER)"
        )
