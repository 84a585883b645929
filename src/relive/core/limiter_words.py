"""Reads numbers of limiters from a table's memory, without the lock. The places are those of docs/format.md."""

from __future__ import annotations

import struct
from typing import NamedTuple

from relive import _core

__all__ = ["NO_WORDS", "LimiterWords", "limiter_words"]

_INT64 = struct.Struct("<q")
_BASE_VERSION_AT = 29_568  # of the header
_INDEX_STATE_AT, _INDEX_STATE_BYTES, _MASSLESS_AT = 29_632, 256, 240


class LimiterWords(NamedTuple):
    """Numbers of an index that a limiter over several tables needs, and no statistics contain."""

    num_massless: int  # live items that no draw finds, because their mass is 0
    base_version: int  # the version from which a StalenessBudget counts


NO_WORDS = LimiterWords(0, 0)


def limiter_words(core: _core.CoreTable, index: int) -> LimiterWords:
    """The numbers of this index at this moment. Raises TableClosed."""
    with core.region_bytes() as region:
        (base,) = _INT64.unpack_from(region, _BASE_VERSION_AT)
        (massless,) = _INT64.unpack_from(region, _INDEX_STATE_AT + index * _INDEX_STATE_BYTES + _MASSLESS_AT)
    return LimiterWords(massless, base)
