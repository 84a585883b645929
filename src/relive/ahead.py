"""An iterator whose batches a thread of its own brings before they are asked for."""

from __future__ import annotations

import math
import os
import threading
import time
from abc import abstractmethod
from collections import deque
from typing import Any, TypeVar

from relive._closing import Closing
from relive.batch import Batch
from relive.errors import DeadlineExceeded, ForkedHandle, InvalidConfig

__all__ = ["Ahead"]

Self = TypeVar("Self", bound="Ahead")


class Ahead(Closing):
    """Batches that wait, and the thread that brings them: one `with` block starts and stops it.

    Owner of the thread and of the waiting batches; _changed guards both. Any number of threads may call next().
    A subclass says where batches come from and how one is counted as handed out.
    """

    def __init__(self, num_items: int, prefetch: int, device: Any, timeout_s: float) -> None:
        self._num_items = num_items
        self._prefetch = prefetch
        self._device = device
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._ready: deque[Batch] = deque()
        self._starved: DeadlineExceeded | None = None  # why the batch in the making does not come
        self._error: BaseException | None = None  # of the thread, for who asks for a batch
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._process = 0

    def __enter__(self: Self) -> Self:
        if self._thread is not None or self._stopping:
            raise InvalidConfig("batches()", "one `with` block each", "a second one")
        self._thread = threading.Thread(target=self._fill, name="relive-prefetch", daemon=True)
        self._process = os.getpid()
        self._thread.start()
        return self

    def __iter__(self: Self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self._is_a_childs and not self._stopping:
            raise ForkedHandle("an iterator of batches")  # before the lock: the thread may have held it at the fork
        start = time.monotonic()
        with self._changed:
            if self._thread is None and not self._stopping:
                raise InvalidConfig("batches()", "use in a `with` block", "next() outside of it")
            if not self._ready and not self._stopping:
                self._note_late()
            while not self._ready:
                self._raise_if_over()
                waited = time.monotonic() - start
                if waited >= self._timeout_s:
                    raise self._deadline_exceeded(waited)
                self._changed.wait(None if math.isinf(self._timeout_s) else self._timeout_s - waited)
            self._count_handed_out()
            batch = self._ready.popleft()
            self._room_came()
            return batch

    def close(self) -> None:
        """Stops the thread, gives back what was not handed out. Waits for what is under way; twice is harmless."""
        if self._is_a_childs:
            self._stopping = True  # thread and batches in flight are the parent's
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._cancel()
        if self._thread is not None:
            self._thread.join()
        with self._changed:
            unused = len(self._ready)
            self._ready.clear()
        self._give_up(unused)

    def __repr__(self) -> str:
        state = "closed" if self._stopping else "running" if self._thread is not None else "not started"
        return f"{type(self).__name__}({self._num_items} items, {len(self._ready)} of {self._prefetch} ready, {state})"

    @property
    def _is_a_childs(self) -> bool:
        """Whether this is the copy that a fork made of one that runs in the parent."""
        return self._thread is not None and self._process != os.getpid()

    def _deadline_exceeded(self, waited_s: float) -> DeadlineExceeded:
        last = self._starved
        if last is None:
            return DeadlineExceeded(self._num_items, self._at_hand(), waited_s)
        return DeadlineExceeded(last.needs, last.has, waited_s, last.holder_pid)

    def _fail(self, error: BaseException) -> None:
        """Hands what the thread met to the consumer, who raises it."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    # ---- what a subclass says --------------------------------------------------------------------------------------

    @abstractmethod
    def _fill(self) -> None:
        """The thread: appends to _ready until _stopping."""

    @abstractmethod
    def _raise_if_over(self) -> None:
        """Raises where no batch will come; _changed is held."""

    @abstractmethod
    def _count_handed_out(self) -> None:
        """A batch is about to be handed out; raises where it may not be, which loses nothing. _changed is held."""

    @abstractmethod
    def _room_came(self) -> None:
        """There is room for one more; _changed is held."""

    @abstractmethod
    def _give_up(self, num_unused: int) -> None:
        """Returns what was drawn and not handed out, so many batches that were ready among it."""

    @abstractmethod
    def _at_hand(self) -> object:
        """Items there are, for an error that says why no batch came; a text where that is not known."""

    def _note_late(self) -> None:  # noqa: B027 - nothing to note for most
        """Somebody asks for a batch that is not there; _changed is held."""

    def _cancel(self) -> None:  # noqa: B027 - what is under way may be short
        """What is under way ends soon."""
