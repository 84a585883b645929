"""Draws in flight: held for the limiter from the draw until they are counted or given back."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from relive.core.request import DrawRequest
from relive.errors import ServiceUnavailable
from relive.reading.batch import Batch

__all__ = [
    "AnsweredSource",
    "BatchSource",
    "HeldDraw",
    "HeldDraws",
    "Hold",
    "LentHold",
    "Returned",
    "Taken",
    "TimedDraws",
    "TimedHold",
]


class Returned(Exception):
    """A batch that was drawn ahead went back with its stream. take() of its source raises the reason."""


class Hold(Protocol):
    """One draw in flight. The first call of commit or give_back ends it; later calls of both do nothing.

    A signal's handler may therefore raise between any two steps of a caller: the caller, or the end of its `with`
    block, calls again.
    """

    def commit(self) -> None:
        """Counts the draw as sampled. Raises TableClosed: closing the table gave back all draws."""
        ...

    def give_back(self) -> None:
        """Gives back the items to the limiter, their uses if the draw kept them, and the number of the draw.

        The numbers are given back only if the newest draw is given back first.
        """
        ...


@runtime_checkable
class TimedHold(Protocol):
    """A hold whose end is a message to a server, which may not answer."""

    def commit_within(self, timeout_s: float) -> None:
        """As Hold.commit. Raises ServiceUnavailable after timeout_s, at least a second; the draw then goes back."""
        ...

    def give_back_within(self, timeout_s: float) -> None:
        """As Hold.give_back, with a deadline like that of commit_within."""
        ...


@runtime_checkable
class LentHold(Protocol):
    """A hold of a draw that another process keeps in flight. The draw may go back without a call of this hold."""

    def is_gone(self) -> bool:
        """Whether the draw went back, as far as this process knows: its stream is over. Waits for no answer."""
        ...


class HeldDraw(NamedTuple):
    """The result of a draw in flight. arrays: those of the selection; empty without one."""

    arrays: list[npt.NDArray[Any]]
    item_keys: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    num_live_items: int
    hold: Hold


class HeldDraws(Protocol):
    """Draws of a table that are counted when they are handed out. One thread at a time."""

    def draw(self, request: DrawRequest, timeout_s: float, arrives_s: float = 0.0) -> HeldDraw:
        """Draws items, and gathers them if the request has a selection. Any uses go back with a draw.

        Blocks and raises as sample does; 0 tries once. arrives_s: how long to wait for rows that are on their way, if
        that is longer than timeout_s.
        """
        ...

    def hurry(self) -> None:
        """Lets a draw that is under way end soon, and every later call. Any thread may call it before close()."""
        ...

    def close(self) -> None:
        """Gives back all draws in flight. Closing twice is harmless."""
        ...


@runtime_checkable
class TimedDraws(Protocol):
    """Held draws of a table on a server, which may not answer."""

    def num_live_within(self, index: int, timeout_s: float) -> int:
        """The live items of an index. Raises ServiceUnavailable after timeout_s, at least a second."""
        ...


class Taken(NamedTuple):
    """A batch of a source, in flight."""

    batch: Batch
    hold: BatchHold


class BatchHold(Protocol):
    """The hold of a batch that was drawn ahead."""

    def commit(self, was_late: bool = False) -> None:
        """As Hold.commit. was_late: the program waited for the batch. Any thread may call it; it does not wait.

        Raises Returned, too: the batch must not be handed out.
        """
        ...

    def give_back(self) -> None:
        """As Hold.give_back; the uses of the items stay counted. On the thread of take()."""
        ...


class BatchSource(Protocol):
    """A source of batches, each in flight until its hold ends. One thread calls ask, take and close."""

    def ask(self, num_batches: int) -> None:
        """Tells that the caller has room for so many batches. The source may begin them, and waits for none.

        0: the caller waits now, until a batch is handed out.

        May be called again after any error. Raises the errors of take(), except DeadlineExceeded.
        """
        ...

    def take(self) -> Taken | None:
        """The next batch. None: the batch was given up, because cancel() was called.

        Waits for the limiter for a slice of time, then raises DeadlineExceeded. May be called again after any error.
        """
        ...

    def cancel(self) -> None:
        """Lets a take() that is under way end soon. Any thread may call it, and no take() follows."""
        ...

    def close(self) -> None:
        """Gives back everything that was drawn and not taken. The caller then gives back the older batches it took."""
        ...


@runtime_checkable
class AnsweredSource(Protocol):
    """A source of batches that a server answers."""

    def silence(self) -> ServiceUnavailable | None:
        """The error of a server that owes an answer and is silent; None: no answer is due, or the server is not silent.

        Any thread may call it. It does not wait.
        """
        ...
