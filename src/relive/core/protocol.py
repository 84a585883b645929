"""The interface that every table has, wherever its bytes are.

Programs and adapters type against these protocols; relive.Table is the local implementation.

- Shapes have named axes: B items, L lanes of a writer, M lanes of one call, T time, k stacked values.
- Every blocking call ends at its deadline with DeadlineExceeded. timeout_s None is the table's default, 0 tries once,
  inf waits for ever.
- Any number of threads may call the methods of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from relive.config.spec import StepSpec

__all__ = ["ReplayBatch", "ReplayBatches", "ReplayDraw", "ReplayTable", "ReplayWriter"]

Keys = npt.NDArray[np.int64]


@runtime_checkable
class ReplayDraw(Protocol):
    """Items that were drawn and are not yet gathered."""

    item_keys: Keys  # [B]
    num_live_items: int  # N: the items that could have been drawn

    @property
    def num_items(self) -> int:
        """B."""
        ...

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """float64[B]: the probability of each item in the draw."""
        ...

    def weights(self, beta: float, normalize: Literal["batch"] | None = "batch") -> Any:
        """Importance weights float32[B]: (N p) ** -beta, over their maximum in the draw unless normalize is None."""
        ...


@runtime_checkable
class ReplayBatch(Protocol):
    """A mapping of column name -> array [B, ...]; nested columns are dicts and tuples, or have names such as 'a/b'."""

    @property
    def item_keys(self) -> Keys:
        """int64[B]."""
        ...

    @property
    def num_items(self) -> int:
        """B."""
        ...

    @property
    def num_live_items(self) -> int:
        """N: the items that could have been drawn."""
        ...

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """float64[B]: the probability of each item in the draw."""
        ...

    def __getitem__(self, name: str) -> Any: ...

    def __contains__(self, name: object) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int:
        """B."""
        ...

    def weights(self, beta: float, normalize: Literal["batch"] | None = "batch") -> Any:
        """Importance weights float32[B]: (N p) ** -beta, over their maximum in the batch unless normalize is None."""
        ...

    def to_torch(self, device: Any = None) -> ReplayBatch:
        """The same batch with torch tensors as columns."""
        ...


@runtime_checkable
class ReplayWriter(Protocol):
    """The lanes of one writer, used by one thread at a time.

    Closing cuts its lanes, which publish the items they have.
    """

    def append(self, *, lanes: Any = None, priority: Any = None, timeout_s: float | None = None, **columns: Any) -> Any:
        """Writes one step of every lane, or of the named lanes.

        Returns keys int64[M], or an int for a writer of one lane.
        """
        ...

    def extend(
        self, *, lanes: Any = None, priority: Any = None, timeout_s: float | None = None, **columns: Any
    ) -> Keys:
        """Writes T steps of every lane, or of the named lanes.

        Returns keys int64[T, M], or [T] for a writer of one lane.
        """
        ...

    def end_episode(
        self,
        *,
        lanes: Any = None,
        terminated: bool = False,
        truncated: bool | None = None,
        timeout_s: float | None = None,
        **next_columns: Any,
    ) -> None:
        """Ends the episode of every lane, or of the named lanes, after its last appended step."""
        ...

    def abandon(self, lanes: Any = None, *, timeout_s: float | None = None) -> None:
        """Drops the open episode of every lane, or of the named lanes, and every item that shows one of its steps."""
        ...

    def create_item(
        self,
        windows: Any,
        *,
        index: str | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **columns: Any,
    ) -> int:
        """Makes one item of an index with Explicit items, from rows that are named by their keys; returns its key."""
        ...

    def set_policy_version(self, version: int | None) -> None:
        """Stamps the rows from now on with this version; None: with the table's version."""
        ...

    def close(self) -> None:
        """Cuts the lanes and gives them back. Closing twice is harmless."""
        ...

    def __enter__(self) -> ReplayWriter: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class ReplayBatches(Protocol):
    """Batches that are gathered ahead in the background: an iterator, used inside its `with` block."""

    def __enter__(self) -> ReplayBatches: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __iter__(self) -> Iterator[ReplayBatch]: ...

    def __next__(self) -> ReplayBatch: ...

    def close(self) -> None:
        """Stops, and gives back the batches that were not handed out."""
        ...


@runtime_checkable
class ReplayTable(Protocol):
    """Steps go in, items come out. len() is the number of live steps."""

    @property
    def spec(self) -> StepSpec:
        """The columns of a step."""
        ...

    def writer(self, num_lanes: int | None = None) -> ReplayWriter:
        """A writer with num_lanes lanes; None: one lane, whose arrays have no lane axis."""
        ...

    def sample(
        self,
        num_items: int,
        columns: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
        where: str | None = None,
        reward: Any = None,
        order: Literal["age", "priority"] | None = None,
    ) -> ReplayBatch:
        """Draws num_items items with replacement and gathers them at permuted positions: any slice is a fair batch.

        Args:
            num_items: items of the batch.
            columns: names of columns; None: the usual ones.
            timeout_s: how long to wait; None: the table's default.
            index: the name of an index; None: the first.
            where: a condition that every item of the batch passes.
            reward: with Hindsight: a function that computes the rewards of replaced goals.
            order: of the items in the batch: the oldest first, or the highest priority first. None: random.
        """
        ...

    def draw(
        self,
        num_items: int,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
        where: str | None = None,
        order: Literal["age", "priority"] | None = None,
    ) -> ReplayDraw:
        """Draws without gathering. Counts for the limiter."""
        ...

    def claim(self, own: Any, timeout_s: float | None = None) -> ReplayDraw:
        """Counts a draw that the caller chose, Draw.of(...), as draw() would; returns the items that were there."""
        ...

    def keys(
        self,
        index: str | None = None,
        order: Literal["age", "priority"] = "age",
        where: str | None = None,
        page_size: int = 65_536,
        *,
        priorities: Any = False,
    ) -> Iterator[Any]:
        """The keys of an index in order, in pages of int64[page_size]; of (keys, priorities) if priorities is True."""
        ...

    def gather(
        self,
        items: Any,
        columns: Sequence[str] | None = None,
        out: Mapping[str, npt.NDArray[Any]] | None = None,
        *,
        index: str | None = None,
    ) -> ReplayBatch:
        """The columns of a draw, or of keys int64[B]. present[B] says which keys were still there."""
        ...

    def gather_steps(self, item_keys: Any, columns: Sequence[str] | None = None) -> ReplayBatch:
        """The steps of keys int64[B], as they were written. present[B] says which of them were still there."""
        ...

    def episodes(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The whole episodes of the table, as they were written, the oldest first."""
        ...

    def batches(
        self,
        num_items: int,
        prefetch: int = 4,
        columns: Sequence[str] | None = None,
        device: Any = None,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
        where: str | None = None,
        reward: Any = None,
        order: Literal["age", "priority"] | None = None,
    ) -> ReplayBatches:
        """An iterator of batches that are gathered ahead in the background."""
        ...

    def update_priorities(self, item_keys: Any, priorities: Any, *, index: str | None = None) -> int:
        """Sets the priorities [B] of items [B]; returns how many items were still there."""
        ...

    def complete(self, item_keys: Any, /, **columns: Any) -> int:
        """Fills the late columns of steps; returns how many steps were still there."""
        ...

    def create_items(
        self,
        windows: Any,
        *,
        index: str | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **columns: Any,
    ) -> Keys:
        """Makes items of an index with Explicit items, from rows named by their keys; returns keys int64[N]."""
        ...

    def delete(self, item_keys: Any) -> int:
        """Removes steps, or Explicit items, by key; returns how many were still there."""
        ...

    def clear(self) -> None:
        """Removes all steps."""
        ...

    def set_policy_version(self, version: int) -> None:
        """Sets the version that rows are stamped with from now on."""
        ...

    def set_limiter(self, limiter: Any, *, index: str | None = None) -> None:
        """Replaces the limiter of an index."""
        ...

    def set_priority_exponent(self, exponent: float, *, index: str | None = None) -> None:
        """Changes the exponent of an index with a Prioritized sampler."""
        ...

    def priority_exponent(self, index: str | None = None) -> float:
        """The present exponent of an index with a Prioritized sampler."""
        ...

    def limiter(self, index: str | None = None) -> Any:
        """The present limiter of an index."""
        ...

    def stats(self) -> Any:
        """Counters and sizes at this moment."""
        ...

    def check(self) -> None:
        """Raises CheckFailed if an invariant is broken. Cost: a pass over the table."""
        ...

    def __len__(self) -> int: ...

    def close(self) -> None:
        """Ends the use of this handle. Closing twice is harmless."""
        ...
