"""Errors of handles: closed, forked, read-only, too many."""

from __future__ import annotations

from typing import final

from relive.errors.base import ReliveError, plain

__all__ = [
    "CheckFailed",
    "ForkedHandle",
    "NotShareable",
    "ReadOnly",
    "TableClosed",
    "TooManyLanes",
    "TooManyParticipants",
    "WriterClosed",
]


@final
class TooManyLanes(ReliveError, ValueError):
    """More lanes were asked for than the table has free."""

    def __init__(self, asked: int, free: int) -> None:
        self.asked = asked
        self.free = free
        super().__init__(
            f"asked for {asked} lane{'s' if asked != 1 else ''}, {free} are free; close writers that are done, or make"
            " the table with a larger max_lanes"
        )


@final
class TooManyParticipants(ReliveError, ValueError):
    """More handles are attached than the table has slots for."""

    def __init__(self, max: int) -> None:
        self.max = max
        super().__init__(
            f"all {max} participant slots are taken; one handle serves any number of threads, so attach once a process,"
            " and read_only=True takes no slot"
        )


@final
class TableClosed(ReliveError, ValueError):
    """The table handle is closed."""

    def __init__(self) -> None:
        super().__init__("this table handle is closed; attach again by name, or make a new table")


@final
class WriterClosed(ReliveError, ValueError):
    """The writer is closed."""

    def __init__(self) -> None:
        super().__init__("this writer is closed; open another with table.writer()")


@final
class ForkedHandle(ReliveError, RuntimeError):
    """The handle, or the library below it, cannot be used in a forked child.

    Attributes:
        what: the handle.
        remedy: the reason and the way out, as text; '': those of a table of this machine.
    """

    def __init__(self, what: str = "this handle", remedy: str = "") -> None:
        self.what = what
        self.remedy = remedy
        super().__init__(
            f"{what} came over a fork: "
            + (
                remedy
                or "a writer's lanes, prefetched batches and LocalMemory tables belong to the process that opened them;"
                " open a writer in the child, and use SharedMemory(name) for a table of several processes"
            )
        )


@final
class NotShareable(ReliveError, TypeError):
    """A table of one process, LocalMemory or Tiered, a writer or a save under way cannot be pickled."""

    def __init__(self, what: str = "table") -> None:
        self.what = what
        super().__init__(_WHY_NOT_SHAREABLE.get(what, _WHY_NOT_SHAREABLE["table"]))


_WHY_NOT_SHAREABLE = {
    "table": (
        "a table in LocalMemory or Tiered lives in one process and cannot be pickled; to keep it after the program,"
        " make it with storage=File(folder), whose handle pickles as that folder, or call table.save(folder), and"
        " relive.load(folder) later; to pass it to processes of this program, make it with storage=SharedMemory(name),"
        " whose handle pickles as an address that works while a process has it open"
    ),
    "writer": (
        "a writer belongs to the process that opened it and cannot be pickled; pickle its table, and open a writer"
        " there with table.writer()"
    ),
    "save": (
        "a save under way belongs to the process that began it and cannot be pickled; wait for it there, and pickle the"
        " facts that saving.wait() returns, or the path of its folder"
    ),
}


@final
class ReadOnly(ReliveError, PermissionError):
    """A call that changes the table was made on a handle that was attached with read_only=True."""

    def __init__(self) -> None:
        super().__init__("this table was attached with read_only=True; attach without it to write")


@final
class CheckFailed(ReliveError, AssertionError):
    """check() found a broken invariant: a defect of the library, or damaged memory."""

    def __init__(self, invariant: str = "", detail: object = "") -> None:
        self.invariant = invariant
        self.detail = plain(detail)
        super().__init__(
            f"invariant broken: {invariant}"
            + (f" ({self.detail})" if self.detail != "" else "")
            + "; please report it with the output of table.stats()"
        )
