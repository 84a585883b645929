"""The head of a message of ranks that draw together, and its bytes. No exchange, and no table."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import final

__all__ = ["ATTACH", "CLOSE", "DRAW", "HEAD_BYTES", "NUMBER", "Head"]

_HEAD = struct.Struct("<4sBBHIQ8s")
HEAD_BYTES = _HEAD.size  # sent before the roots of a draw
_MAGIC = b"rlv1"
ATTACH, NUMBER, DRAW, CLOSE = range(4)  # kinds of calls


@final
@dataclass(frozen=True)
class Head:
    """The call that a rank is in."""

    call: int
    is_over: bool = False  # the rank's deadline has passed
    index: int = 0
    num_items: int = 0
    number: int = 0  # of the rank's next draw
    table: bytes = bytes(8)  # digest of spec, indexes and shards; zeros in attach(), which compares them in full

    def pack(self) -> bytes:
        """The bytes of the head."""
        return _HEAD.pack(_MAGIC, self.call, self.is_over, self.index, self.num_items, self.number, self.table)

    @classmethod
    def unpack(cls, told: bytes) -> Head | None:
        """The head of a message; None if the message is of another kind."""
        if len(told) < HEAD_BYTES:
            return None
        magic, call, is_over, index, num_items, number, table = _HEAD.unpack_from(told)
        if magic != _MAGIC or call > CLOSE:
            return None
        return cls(call, bool(is_over), index, num_items, number, table)

    @property
    def asked(self) -> tuple[int, bytes, int, int]:
        """The part that must be alike on all ranks."""
        return self.call, self.table, self.index, self.num_items
