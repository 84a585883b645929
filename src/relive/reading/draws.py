"""Draw: which items were chosen, with which probabilities, before their rows are gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from relive.checks.names import unknown_attribute
from relive.config.casting import as_array, as_keys, cast
from relive.errors import InvalidConfig, ShapeMismatch

__all__ = ["Draw"]

Keys = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]


@final
class Draw:
    """Items that were drawn, not yet gathered: item_keys int64[B], probabilities float64[B], num_live_items.

    index is the name of the index they were drawn from; of one's own None, the table's first; of a mixture '', and
    source int64[B] says of each item by position in source_names which source it is of (None, and no names, of a
    table's). Pickles.
    """

    __slots__ = ("index", "item_keys", "num_live_items", "probabilities", "source", "source_names")

    def __init__(self, item_keys: Keys, probabilities: Probabilities, num_live_items: int, index: str | None) -> None:
        self.item_keys = item_keys
        self.probabilities = probabilities
        self.num_live_items = num_live_items
        self.index = index
        self.source: Keys | None = None
        self.source_names: tuple[str, ...] = ()

    def of_sources(self, source: Keys, names: tuple[str, ...]) -> Draw:
        """The same draw, of a mixture of sources of these names."""
        self.source, self.source_names = source, names
        return self

    @classmethod
    def of(cls, keys: npt.ArrayLike, probabilities: npt.ArrayLike, index: str | None = None) -> Draw:
        """The draw of one's own sampler: keys int64[B], each with the probability it was chosen with, float64[B].

        index: the name of the index they are of; None: the table's first. gather(Draw.of(...)) brings the rows, and
        weights() uses these probabilities; table.claim(Draw.of(...)) counts it first, for limiters and use counts.
        num_live_items is 0 until the draw meets a table. Raises InvalidConfig where a probability is not in (0, 1],
        ShapeMismatch, DtypeMismatch.
        """
        if index is not None and not isinstance(index, str):
            raise InvalidConfig("index", "a name, or None for the first", index)
        item_keys = as_keys(keys)
        given = as_array("probabilities", probabilities)
        if given.shape != item_keys.shape:
            raise ShapeMismatch("probabilities", item_keys.shape, given.shape)
        values = np.array(cast("probabilities", given, np.dtype(np.float64)) if given.size else given, np.float64)
        wrong = np.flatnonzero(~((values > 0.0) & (values <= 1.0)))
        if wrong.size:
            expected = f"numbers above 0 and at most 1; that of item {wrong[0]} is not"
            raise InvalidConfig("probabilities", expected, float(values[wrong[0]]))
        return cls(item_keys.copy(), values, 0, index)

    @property
    def num_items(self) -> int:
        """B, the number of items drawn."""
        return len(self.item_keys)

    def rows(self, which: slice | npt.NDArray[Any]) -> Draw:
        """The draw of some of its items: a slice (a view) or an index array."""
        some = Draw(self.item_keys[which], self.probabilities[which], self.num_live_items, self.index)
        return some if self.source is None else some.of_sources(self.source[which], self.source_names)

    if not TYPE_CHECKING:  # called for what is not there only; to a checker it is not there

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute("Draw", name, dir(Draw))

    def __repr__(self) -> str:
        return f"Draw({self.num_items} of {self.num_live_items} live items of index {self.index!r})"
