"""TableHandle: the base of every handle on a table, wherever its core is."""

from __future__ import annotations

from abc import abstractmethod

from relive.checks.names import refuses_attributes
from relive.table.changing import Changing
from relive.table.looking import Looking
from relive.table.reading import Reading
from relive.table.stepping import Stepping

__all__ = ["TableHandle"]


@refuses_attributes("Table")
class TableHandle(Reading, Stepping, Changing, Looking):
    """Reads and changes a table through its core: a region of this machine's memory, or messages to another machine.

    A subclass says where the core comes from, how writers are opened, and how batches are drawn ahead. Any number of
    threads may use a handle.
    """

    @abstractmethod
    def close(self) -> None:
        """Ends the use of this handle. Closing twice is harmless."""
