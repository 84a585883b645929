"""Links an actor to a run on another machine: lanes that survive a broken stream, and the newest parameters.

Rules for a broken link:

  L1  Rows that the server has not confirmed are lost, and counted. No row is sent twice.
  L2  The next row goes into a new lane. The server cut the old lanes when their stream ended: their episodes end as
      truncated, and no transition joins states that did not follow each other.
  L3  While the link is broken, steps wait in a bounded number of blocks. When these are full no step is taken.
  L4  `heard_s` is the time at which the run last said which parameters are the newest. Nothing else makes parameters
      fresh: a link that still takes rows but gives no answers counts as broken. An actor that gets its parameters from
      another process of its node asks the run for news, too (node_parameters.py).
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
from relive.core.ending import start_thread
from relive.core.protocol import ReplayWriter
from relive.errors import DeadlineExceeded, ReliveError, ServiceUnavailable, TableClosed, Unacknowledged
from relive.service import Published, RemoteParameters, RemoteTable, Streaming, StreamingWriter
from relive.service.parameters.sets import MAX_VERSION
from relive.train.acting.node_parameters import NodeParameters

HELD_S = 3600.0  # the longest delay of a block by the limiter: evaluations take minutes
STREAMING = Streaming(max_rows=64, max_in_flight=8, held_s=HELD_S)
_REPORT_S = 1.0  # for a follower's pull; the server answers after half of it


@final
class StreamedLanes:
    """A writer for a recorder. It streams rows; a broken stream cuts the lanes (rules L1 to L3). One thread uses it.

    Attributes:
        num_cuts: Times that a stream broke.
        num_lost: Steps that were not confirmed.
    """

    def __init__(self, writer: StreamingWriter, num_lanes: int) -> None:
        self._writer = writer
        self._num_lanes = num_lanes
        self.num_cuts = 0
        self.num_lost = 0
        self._version: int | None = None  # policy version of the next rows
        self._sent_version: int | None = None  # the last one that was sent: each one ends a block

    def append(
        self, *, lanes: Any = None, priority: Any = None, timeout_s: float | None = None, **columns: Any
    ) -> NDArray[np.int64]:
        """Appends one step of each lane. The keys that it returns are all -1: the rows are not stored yet.

        Raises:
            DeadlineExceeded: There was no room for timeout_s.
            Unacknowledged: The server refused rows; the lanes are new. A broken stream, or a server that closes, raises
                nothing.
        """
        self._send_version()
        self._over_breaks(lambda: self._writer.append(lanes=lanes, priority=priority, timeout_s=timeout_s, **columns))
        return np.full(self._num_lanes if lanes is None else len(lanes), -1, np.int64)

    def extend(self, *, lanes: Any = None, priority: Any = None, timeout_s: float | None = None, **columns: Any) -> Any:
        """See ReplayWriter. It waits for the keys."""
        self._send_version()
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
        """See ReplayWriter. For lanes that a broken stream has cut it does nothing: their episodes have ended."""
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
        """Stamps the rows from now on, in new lanes too. It is sent with the next rows, which may wait for room."""
        self._version = version

    def _send_version(self) -> None:
        if self._version != self._sent_version:
            self._over_breaks(lambda: self._writer.set_policy_version(self._version))
            self._sent_version = self._version

    def settle(self, timeout_s: float) -> None:
        """Waits until the server has confirmed all rows, or the stream has broken. Raises as append."""
        self._over_breaks(lambda: self._writer.flush(timeout_s))

    def close(self) -> None:
        """Waits a little for confirmations and cuts the lanes. Rows that are not confirmed by then count as lost."""
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
        """Makes the call, again after each break of the stream, and after each server that closes."""
        while True:
            try:
                return call()
            except Unacknowledged as problem:
                if not isinstance(problem.__cause__, ServiceUnavailable):
                    raise
                # The lanes ended with the stream, whatever broke it: the next call begins new ones.
                self.num_cuts += 1
                self.num_lost += problem.num_steps


@final
class StreamedTable:
    """A table of another machine, as a recorder needs it.

    Attributes:
        opened: The writer that the recorder opened; None before.
    """

    def __init__(self, table: RemoteTable) -> None:
        self._table = table
        self.opened: StreamedLanes | None = None

    @property
    def spec(self) -> StepSpec:
        """The columns of a step."""
        return self._table.spec

    def writer(self, num_lanes: int | None = None) -> StreamedLanes:
        """Opens lanes of the table. Raises TooManyLanes, ServiceUnavailable and other errors of a remote writer."""
        self.opened = StreamedLanes(self._table.writer(num_lanes, streaming=STREAMING), num_lanes or 1)
        return self.opened


@final
class Feed(Closing):
    """Pulls newer parameters in a thread, which it owns, and reports to the run what the actor has done.

    An actor polls it (relive.train.memory.parameters.NewerParameters).

    Attributes:
        version: Version of the parameters of the last poll; 0 before.
        heard_s: Time of the last news from the run, on time.monotonic() (rule L4).
        finished: Whether the run has ended.
        problem: An error that no later pull would get over; None: there is none.
    """

    def __init__(
        self,
        parameters: RemoteParameters,
        first: Published,
        poll_s: float,
        tell: Callable[[int], dict[str, Any]],
        heard: Callable[[Published], None],
        node: NodeParameters | None = None,
    ) -> None:
        """Starts the thread.

        Args:
            parameters: The parameters of the run.
            first: The first parameters, pulled before.
            poll_s: Seconds for a pull, the transfer included. With no new version, the run answers as often as that.
                A follower's pull has at most 1 s, so that the run hears a report every 0.5 s.
            tell: tell(version) returns the note of the next pull; the thread calls it.
            heard: Called with each version that comes.
            node: The parameters that the actors of this node share, which the feed closes; None: it shares none.
        """
        self._parameters = parameters
        self._poll_s = poll_s
        self._tell, self._heard, self._node = tell, heard, node
        self._newest = first
        self.version = 0
        self.heard_s = time.monotonic()
        self.finished = parameters.finished
        self.problem: ReliveError | None = None
        self._stopped = threading.Event()
        heard(first)
        self._thread = start_thread(self._pull_all, "relive-parameters")

    def reader(self) -> Feed:
        """Returns itself: it has one reader."""
        return self

    def poll(self) -> dict[str, NDArray[np.float32]] | None:
        """Returns the newest parameters; None if they are those of the last poll."""
        shared = None if self._node is None else self._node.poll()
        if shared is not None and shared.version > self._newest.version:
            self._newest = shared
            self._heard(shared)
        newest = self._newest
        if newest.version == self.version:
            return None
        self.version = newest.version
        return dict(newest.arrays)

    def silent_s(self) -> float:
        """Returns the seconds since the last news of the newest parameters (rule L4)."""
        return time.monotonic() - self.heard_s

    def close(self) -> None:
        """Ends the thread: at once if the handle of the table is closed, else when its pull is over."""
        self._stopped.set()
        self._thread.join(2 * self._poll_s + 5.0)
        if self._node is not None:
            self._node.close()

    def _pull_all(self) -> None:
        while not self._stopped.is_set():
            # A follower pulls news and reports alone: its leader gets the parameters.
            follows = self._node is not None and self._node.follows()
            above = MAX_VERSION if follows else self._newest.version
            # No version ends the wait of a follower's pull, and its next report goes with its next pull.
            most_s = min(self._poll_s, _REPORT_S) if follows else self._poll_s
            try:
                found = self._parameters.pull(above, most_s, note=self._tell(self.version))
            except TableClosed:
                return
            except (ServiceUnavailable, DeadlineExceeded):
                self._stopped.wait(0.1)  # besides the pauses before a stream is opened again
                continue
            except ReliveError as problem:
                self.problem = problem
                return
            if found is not None:
                self._newest = found
                self._heard(found)
            if self._node is not None:
                self._node.heard(found)
            self.heard_s = time.monotonic()
            self.finished = self._parameters.finished
            if self.finished and found is None:
                return


if TYPE_CHECKING:

    def _is_a_writer(lanes: StreamedLanes) -> ReplayWriter:
        return lanes
