"""Serves create_items as a message, in slices of the message's deadline.

{"op": "create", "index", "n": N, "named": number of rows named for each window (0: none), "given": whether priorities
are given}
body: windows int64[N, W, 2], the named rows int64[N, R] of each window, priorities float32[N], the items' own columns
-> {"made": number of items made, "stopped": the error that stopped the call, if any}, keys int64[N]

Chooses also how the message of a claim is answered: {"op": "claim", "index", "n", "some": true, if the limiter has let
the draw pass by the totals of several tables, of which this table may have too few items}. Describes a draw that a
message requests, and its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relive.config.explicit import Explicit
from relive.core.claiming import claim_there
from relive.core.request import DrawRequest
from relive.core.table_core import DrawnItems, TableCore
from relive.errors import BadMessage, ReliveError, RowGone, RowsApart
from relive.service.server.hosting import Hosted, HostedSelection
from relive.service.server.pipe import packed
from relive.service.wire import framing
from relive.service.wire.framing import Bytes
from relive.service.wire.packing import DRAWN
from relive.writing.new_items import NewItems

__all__ = [
    "SCRATCH_BYTES",
    "AskedDraw",
    "Creation",
    "claim_of",
    "draw_bytes",
    "drawn_answer",
    "items_of",
    "num_rows",
]

Keys = npt.NDArray[np.int64]
Header = dict[str, Any]

_MAX_NAMED = 4096
# Bytes that the core needs for each item of a draw, a gather or a claim besides the answer: leaves, masses and runs. A
# draw of 67 million keys had 9.8 GB at its peak, 146 bytes for each.
SCRATCH_BYTES = 160
_PER_ITEM = 16  # key and probability


class AskedDraw(NamedTuple):
    """A draw that a message requests: the request to the core, and how its columns travel (None: only keys travel)."""

    request: DrawRequest
    selection: HostedSelection | None


def draw_bytes(asked: AskedDraw) -> tuple[int, int]:
    """Returns the bytes of the answer to a draw, and those of the work besides it."""
    num_items = asked.request.num_items
    reply = num_items * (_PER_ITEM + (0 if asked.selection is None else asked.selection.item_bytes))
    return reply, num_items * SCRATCH_BYTES


def drawn_answer(asked: AskedDraw, drawn: DrawnItems, header: Header) -> tuple[Header, list[pa.Buffer]]:
    """Returns a draw as header and body of an answer: one block, as the core made it unless the layout changed."""
    arrays, keys, probabilities, num_live = drawn
    selection, told = asked.selection, {"live": num_live, **header}
    if selection is None:
        return told, packed(DRAWN, [keys, probabilities], len(keys))
    rows = num_rows(selection, arrays)
    parts = packed(selection.sampled, [*arrays, keys, probabilities], len(keys), rows)
    return ({**told, "rows": rows} if selection.gathered.is_ragged else told), parts


def num_rows(selection: HostedSelection, arrays: Any) -> int:
    """Returns the rows of all items of a batch whose items lie end to end, else 0."""
    pairs = zip(selection.gathered.outputs, arrays, strict=True)
    return next((len(array) for output, array in pairs if output.per == "row"), 0)


def claim_of(
    core: TableCore, header: Mapping[str, Any]
) -> Callable[[int, Keys, float], tuple[npt.NDArray[np.bool_], int]]:
    """Returns the call that answers a claim. With "some" it waits for no items, and claims those that are there."""
    return partial(claim_there, core) if header.get("some") is True else core.claim


def items_of(hosted: Hosted, header: Mapping[str, Any], body: Bytes) -> tuple[int, NewItems]:
    """Returns the index and the new items as views of a message's arrays.

    Raises BadMessage. Allocates no more bytes than were received.
    """
    number = framing.whole(header, "index", 0, 1 << 16)
    items = hosted.table.config.index[hosted.index_name(number)].items
    if not isinstance(items, Explicit):
        raise BadMessage("header field 'index'", "one with Explicit items", number)
    count = framing.whole(header, "n", 0, 2**31 - 1)
    named, given = framing.field(header, "named", list), framing.field(header, "given", bool)
    if len(named) != len(items.windows) or not all(type(rows) is int and 0 <= rows <= _MAX_NAMED for rows in named):
        raise BadMessage("header field 'named'", "a number of rows for each window", str(named)[:40])
    wanted: list[tuple[npt.DTypeLike, tuple[int, ...]]] = [(np.int64, (count, len(named), 2))]
    wanted += [(np.int64, (count, rows)) for rows in named if rows]
    wanted += [(np.float32, (count,))] if given else []
    wanted += [(one.dtype, (count, *one.shape)) for one in items.columns.values()]
    arrays = iter(framing.arrays_of(body, *wanted))
    windows = next(arrays)
    rows = [next(arrays) if rows else None for rows in named]
    return number, NewItems(windows, rows, next(arrays) if given else None, list(arrays))


@final
class Creation:
    """Items that are being made.

    A slice of the deadline remembers the items that it made, and the next slice continues.
    """

    def __init__(self, core: TableCore, number: int, items: NewItems) -> None:
        self._core = core
        self._number = number
        self._items = items
        self.keys = np.zeros(len(items.windows), np.int64)
        self.made = 0

    def go_on(self, timeout_s: float) -> None:
        """Makes the remaining items.

        Raises the core's errors, with item numbers that count from the call's first item.
        """
        begin, all_of = self.made, self._items
        windows, columns = all_of.windows[begin:], [one[begin:] for one in all_of.columns]
        rows = [None if one is None else one[begin:] for one in all_of.rows]
        priorities = None if all_of.priorities is None else all_of.priorities[begin:]
        try:
            keys = self._core.create_items(self._number, windows, rows, priorities, columns, timeout_s)
        except ReliveError as problem:
            if problem.keys is not None:
                self._keep(problem.keys)
            if begin and isinstance(problem, (RowGone, RowsApart)):
                raise type(problem)(begin + problem.item, problem.window, problem.key, problem.why) from None
            raise
        self._keep(keys)

    def _keep(self, keys: npt.NDArray[np.int64]) -> None:
        self.keys[self.made : self.made + len(keys)] = keys
        self.made += len(keys)
