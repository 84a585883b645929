"""A draw as one value: a handle makes it, every core and every held draw takes it, and a message carries it.

A new option of a draw is a field here, and a line of each of the two functions below. The code between the public
method, which sets the option, and the compiled core, which applies it, passes the request on as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from relive.checks.header import field, whole

__all__ = ["DrawRequest"]

_MAX_ITEMS = 2**31 - 1


class DrawRequest(NamedTuple):
    """The items that a draw asks for. The deadline of a draw, and the way it is counted, belong to the call.

    A request belongs to one core: `selection` and `condition` are values that this core made. The compiled core reads
    the fields by their order (cpp/bindings/table_binding.cpp).
    """

    index_number: int  # position of the index among the table's indexes
    num_items: int
    selection: Any = None  # TableCore.select(...): the columns that are gathered; None: keys alone
    condition: Any = None  # TableCore.where(...): each item passes it; None: every item does

    @property
    def keys_only(self) -> DrawRequest:
        """The same draw without its columns."""
        return self if self.selection is None else self._replace(selection=None)

    @property
    def all_but_columns(self) -> tuple[Any, ...]:
        """The fields other than `selection`: the key of a draw among draws of the same columns."""
        return self[:_SELECTION] + self[_SELECTION + 1 :]

    def to_header(self) -> dict[str, Any]:
        """The request as fields of a message's header, for a server that makes its own selection and condition."""
        header = {"index": self.index_number, "n": self.num_items}
        if self.selection is not None:
            header["names"] = self.selection.names
        if self.condition is not None:
            header["where"] = self.condition
        return header

    @classmethod
    def from_header(
        cls,
        header: Mapping[str, Any],
        num_indexes: int,
        select: Callable[[int, Any], Any] | None,
        condition: Callable[[int, str], Any],
    ) -> DrawRequest:
        """The request that to_header wrote, every field checked.

        Args:
            header: the header of the message.
            num_indexes: indexes of the table.
            select: makes the selection of an index and the names of columns; None: the draw is of keys alone.
            condition: makes the condition of an index and its text.

        Raises:
            BadMessage: a field is missing, of another type or out of range.
            ReliveError: anything that `select` and `condition` raise.
        """
        number = whole(header, "index", 0, num_indexes - 1)
        selection = None if select is None else select(number, header.get("names"))
        num_items = whole(header, "n", 1, _MAX_ITEMS)
        return cls(
            number, num_items, selection, condition(number, field(header, "where", str)) if "where" in header else None
        )


_SELECTION = DrawRequest._fields.index("selection")
