"""An actor's links to a run on another machine: lanes that outlive a broken stream, and the newest parameters.

What holds while a link is lost:

  L1  Rows that the server has not confirmed are lost, and counted; none is sent twice.
  L2  The row after them goes into a new lane. The old ones were cut when their stream ended, so that their episodes end
      as truncated, and no transition joins states that did not follow each other.
  L3  Meanwhile steps wait in blocks of a bounded number; when these are full no step is taken.
  L4  `heard_s` is when the run last said which parameters are the newest. Nothing else makes parameters fresh: a link
      over which rows still pass, but no answer comes, is lost as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from relive.config.spec import StepSpec
from relive.core.closing import Closing
from relive.core.protocol import ReplayWriter
from relive.errors import DeadlineExceeded, ReliveError, ServiceUnavailable, TableClosed, Unacknowledged
from relive.service import Published, RemoteParameters, RemoteTable, Streaming, StreamingWriter

HELD_S = 3600.0  # the limiter may hold a block back for so long: evaluations take minutes
STREAMING = Streaming(max_rows=64, max_in_flight=8, held_s=HELD_S)


@final
class StreamedLanes:
    """A writer for a recorder: rows are streamed, and a broken stream is a cut (L1 to L3). One thread."""

    def __init__(self, writer: StreamingWriter, num_lanes: int) -> None:
        self._writer = writer
        self._num_lanes = num_lanes
        self.num_cuts = 0  # times that a stream broke
        self.num_lost = 0  # steps that nobody confirmed
        self._version: int | None = None  # of the rows that come
        self._said: int | None = None  # the last one that was sent: each ends a block

    def append(
        self, *, lanes: Any = None, priority: Any = None, timeout_s: float | None = None, **columns: Any
    ) -> NDArray[np.int64]:
        """One step of each lane. Its keys, which come later, are all -1: not stored yet.

        Raises DeadlineExceeded where there is no room for timeout_s, and Unacknowledged for whatever is not a break.
        """
        self._say_version()
        self._over_breaks(lambda: self._writer.append(lanes=lanes, priority=priority, timeout_s=timeout_s, **columns))
        return np.full(self._num_lanes if lanes is None else len(lanes), -1, np.int64)

    def extend(self, *, lanes: Any = None, priority: Any = None, timeout_s: float | None = None, **columns: Any) -> Any:
        """See ReplayWriter; its keys are waited for."""
        self._say_version()
        return self._over_breaks(
            lambda: self._writer.extend(lanes=lanes, priority=priority, timeout_s=timeout_s, **columns)
        )

    def end_episode(
        self,
        *,
        lanes: Any = None,
        terminated: bool = False,
        truncated: bool | None = None,
        timeout_s: float | None = None,
        **next_columns: Any,
    ) -> None:
        """Of lanes that were cut meanwhile nothing is left to end, and nothing is done."""
        self._over_breaks(
            lambda: self._writer.end_episode(
                lanes=lanes, terminated=terminated, truncated=truncated, timeout_s=timeout_s, **next_columns
            )
        )

    def abandon(self, lanes: Any = None, *, timeout_s: float | None = None) -> None:
        """See ReplayWriter."""
        self._over_breaks(lambda: self._writer.abandon(lanes, timeout_s=timeout_s))

    def create_item(self, windows: Any, **named: Any) -> int:
        """See ReplayWriter."""
        return self._writer.create_item(windows, **named)

    def set_policy_version(self, version: int | None) -> None:
        """Stamps the rows from now on, in new lanes too. Sent with the next of them, which may find no room for it."""
        self._version = version

    def _say_version(self) -> None:
        if self._version != self._said:
            self._over_breaks(lambda: self._writer.set_policy_version(self._version))
            self._said = self._version

    def close(self) -> None:
        """Waits for what was sent, a little, and cuts the lanes. What was not confirmed by then is counted as lost."""
        try:
            self._writer.close()
        except Unacknowledged as problem:
            self.num_lost += problem.num_steps

    def __enter__(self) -> StreamedLanes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _over_breaks(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except Unacknowledged as problem:
                if not isinstance(problem.__cause__, ServiceUnavailable):
                    raise
                # Its lanes are gone with the stream, whatever broke it: the call begins new ones.
                self.num_cuts += 1
                self.num_lost += problem.num_steps


@final
class LanesOf:
    """A table as a recorder sees it. writer: the one that it opened."""

    def __init__(self, table: RemoteTable) -> None:
        self._table = table
        self.opened: StreamedLanes | None = None

    @property
    def spec(self) -> StepSpec:
        """What a step holds."""
        return self._table.spec

    def writer(self, num_lanes: int | None = None) -> StreamedLanes:
        """Lanes over there. Raises TooManyLanes, ServiceUnavailable and the like."""
        self.opened = StreamedLanes(self._table.writer(num_lanes, streaming=STREAMING), num_lanes or 1)
        return self.opened


@final
class Feed(Closing):
    """Pulls newer parameters in a thread of its own, and tells the run what was done meanwhile. Owner of the thread.

    An actor polls it (relive.train.memory.parameters.NewerParameters).
    """

    def __init__(
        self,
        parameters: RemoteParameters,
        first: Published,
        poll_s: float,
        tell: Callable[[int], dict[str, Any]],
        heard: Callable[[Published], None],
    ) -> None:
        """poll_s: how long a pull waits; so often is heard of the run where nothing is published. tell(version): the
        note of a pull. heard: called with each version that comes, by the thread.
        """
        self._parameters = parameters
        self._poll_s = poll_s
        self._tell, self._heard = tell, heard
        self._newest = first
        self.version = 0  # of what was polled
        self.heard_s = time.monotonic()
        self.finished = parameters.finished
        self.problem: ReliveError | None = None  # what no later pull would get over
        self._stopped = threading.Event()
        heard(first)
        self._thread = threading.Thread(target=self._pull_all, name="relive-parameters", daemon=True)
        self._thread.start()

    def reader(self) -> Feed:
        """Itself: it has one reader."""
        return self

    def poll(self) -> dict[str, NDArray[np.float32]] | None:
        """The newest parameters where they are others than those of the last poll."""
        newest = self._newest
        if newest.version == self.version:
            return None
        self.version = newest.version
        return dict(newest.arrays)

    def silent_s(self) -> float:
        """Seconds since it was last heard which parameters are the newest (L4)."""
        return time.monotonic() - self.heard_s

    def close(self) -> None:
        """Ends the thread: at once after the table's handle was closed, else when its pull is over."""
        self._stopped.set()
        self._thread.join(2 * self._poll_s + 5.0)

    def _pull_all(self) -> None:
        while not self._stopped.is_set():
            try:
                found = self._parameters.pull(self._newest.version, self._poll_s, note=self._tell(self.version))
            except TableClosed:
                return
            except (ServiceUnavailable, DeadlineExceeded):
                self._stopped.wait(0.1)  # opening a stream again has its own pauses
                continue
            except ReliveError as problem:
                self.problem = problem
                return
            if found is not None:
                self._newest = found
                self._heard(found)
            self.heard_s = time.monotonic()
            self.finished = self._parameters.finished
            if self.finished and found is None:
                return


if TYPE_CHECKING:

    def _is_a_writer(lanes: StreamedLanes) -> ReplayWriter:
        return lanes
