"""Draw: drawn items with their probabilities, before their rows are gathered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from relive.checks.names import names_arguments, unknown_attribute
from relive.config.casting import as_array, as_keys, cast
from relive.errors import InvalidConfig, NoProbabilities, ShapeMismatch
from relive.reading.columns import chosen
from relive.reading.weights import USUAL, Normalize, importance_weights

__all__ = ["Draw"]

Keys = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]


@final
class Draw:
    """Items that were drawn and are not yet gathered. Pickles.

    Attributes:
        item_keys: int64[B].
        probabilities: float64[B].
        num_live_items: N, the live items at the draw.
        index: the name of the index. None for the first index, in a draw of the caller; '' in a draw of a mixture.
        source: of a mixture int64[B], the source of each item by position in source_names; else None.
        source_names: the names of a mixture's sources; else ().
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
        """Marks this draw as one of a mixture, and returns it."""
        self.source, self.source_names = source, names
        return self

    @classmethod
    def of(cls, keys: npt.ArrayLike, probabilities: npt.ArrayLike, index: str | None = None) -> Draw:
        """The draw of a sampler of your own.

        gather(Draw.of(...)) returns the rows, and weights() uses these probabilities. Pass the draw to table.claim()
        first to count it for limiters and use counts. num_live_items is 0 until the draw meets a table.

        Args:
            keys: int64[B].
            probabilities: float64[B], each in (0, 1]: the probability with which each key was chosen.
            index: the name of the index; None: the table's first.

        Raises:
            InvalidConfig: a probability is not in (0, 1], or the index is no name.
            ShapeMismatch, DtypeMismatch: keys or probabilities have another shape or dtype.
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
        """B, the number of drawn items."""
        return len(self.item_keys)

    def __len__(self) -> int:
        """B, the number of drawn items."""
        return len(self.item_keys)

    @names_arguments
    def weights(self, beta: float, normalize: Normalize = USUAL) -> npt.NDArray[np.float32]:
        """Importance weights float32[B], as Batch.weights of the gathered batch.

            weight = (N p) ** -beta, divided by the largest weight of this draw

        Args:
            beta: exponent, >= 0.
            normalize: 'batch' divides by the maximum; None does not, for use across ranks.

        Raises:
            NoProbabilities: normalize is None, and the draw is one of Draw.of that has not met a table: N is unknown.
            InvalidConfig: beta or normalize has another type or value.

        Source: Schaul et al. 2016, section 3.4.
        """
        if normalize is None and self.num_live_items == 0:
            raise NoProbabilities()
        return importance_weights(self.probabilities, self.num_live_items, beta, normalize)

    def rows(self, which: slice | npt.NDArray[Any]) -> Draw:
        """The draw of some of its items, by a slice (a view) or an index array. Raises InvalidConfig, as Batch.rows."""
        which = chosen(which, self.num_items)
        some = Draw(self.item_keys[which], self.probabilities[which], self.num_live_items, self.index)
        return some if self.source is None else some.of_sources(self.source[which], self.source_names)

    if not TYPE_CHECKING:  # Python calls it for missing names only; a type checker must not see it

        def __getattr__(self, name: str) -> Any:
            raise unknown_attribute("Draw", name, dir(Draw))

    def __repr__(self) -> str:
        return f"Draw({self.num_items} of {self.num_live_items} live items of index {self.index!r})"
