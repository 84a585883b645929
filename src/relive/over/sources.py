"""The sources of a mixture, each an index of a table; and the numbers and streams of their draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from relive.config.samplers import Shuffle
from relive.errors import InvalidConfig
from relive.table.handle import TableHandle

__all__ = ["Source", "sources_of", "stream_of"]


class Source(NamedTuple):
    """One source of a mixture."""

    name: str
    table: TableHandle
    index_name: str

    @property
    def is_shuffled(self) -> bool:
        """Whether its items come in epochs."""
        return isinstance(self.table.indexes[self.index_name].sampler, Shuffle)

    @property
    def next_draw(self) -> int | None:
        """The number of the next draw of its handle; None: a server numbers its draws.

        Ranks that draw together have one number, whatever the way of each rank to the rows.
        """
        shared = self.table.next_shared_draw
        return self.table.next_draw if shared is None else shared


def stream_of(table: TableHandle) -> int | None:
    """The number of the random streams on which a handle draws; None: a server draws the items."""
    stream = getattr(table, "stream", None)
    return stream if isinstance(stream, int) else None


def sources_of(names: tuple[str, ...], given: Any) -> list[Source]:
    """The source of each name. Raises InvalidConfig."""
    if isinstance(given, TableHandle):
        for name in names:
            given.index_number(name)
        return [Source(name, given, name) for name in names]
    if not isinstance(given, Mapping):
        raise InvalidConfig("sources of a Mixture", "a table, or {name: table or (table, index)}", given)
    if set(given) != set(names):
        raise InvalidConfig(
            "names of sources", "those of shares: " + ", ".join(map(repr, names)), sorted(map(str, given))
        )
    return [_source(name, given[name]) for name in names]


def _source(name: str, given: Any) -> Source:
    table, index = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not isinstance(table, TableHandle):
        raise InvalidConfig(f"source {name!r} of a Mixture", "a table, or (table, name of an index)", given)
    number = table.index_number(index)
    return Source(name, table, tuple(table.indexes)[number])
