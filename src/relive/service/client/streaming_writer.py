"""A writer whose calls return before the server has answered them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, final

import numpy as np
import numpy.typing as npt

from relive.checks.names import columns_by_name, refuses_attributes
from relive.checks.values import integer, timeout
from relive.config.spec import StepSpec
from relive.core.closing import Closing
from relive.core.protocol import ReplayWriter
from relive.core.table_core import Normalise
from relive.errors import NotShareable
from relive.service.client.blocks import StreamedKeys
from relive.service.client.collected import end_when_collected
from relive.service.client.remote_core import RemoteCore
from relive.service.client.streamed_core import StreamedWriterCore
from relive.service.wire.encoding import RowEncoder
from relive.service.wire.options import Streaming
from relive.writing.writer import Writer

__all__ = ["StreamingWriter"]


@refuses_attributes("Writer")
@final
class StreamingWriter(Closing):
    """A writer on a remote table whose calls return at once. Used by one thread at a time.

    Made by `table.writer(num_lanes, streaming=Streaming())`. append, extend and end_episode check and copy their
    arguments. An error of shapes, dtypes or priorities is raised at the call.

    - Some errors are known only to the server: SeamMismatch, MissingNext, a full table, a deadline of the limiter, a
      server that is gone. A later call raises such an error as Unacknowledged.
    - After Unacknowledged, the steps before the failed step are stored. The failed step and all steps after it are not
      sent again. They are not stored if the server refused the step. If the link broke, or the server was silent, the
      server may store those that were sent. The call that raises it stores nothing of its own: call again.
    - The writer is then usable again, on new lanes, also if the server refused a step of one lane alone: the lost steps
      would be a hole in the episodes. The server cuts all old lanes before the writer's next step is stored, if the old
      link works or has ended. It notices a link that is lost without an end within about 20 s, and then cuts the old
      lanes. The next step of each lane begins an episode. An end_episode or abandon before that step has no effect. The
      policy version stays.
    - A step is acknowledged when the server has stored it. flush() waits for the acknowledgement, and so does a read of
      a call's keys.
    - If a signal's handler calls the writer or the handle in the middle of an append, the call raises WaitsForItself.
    - Other calls of the same table handle see every step appended before them, unless this writer waits for the
      limiter or for new lanes. A call waits for new lanes at most one second, and never longer than its timeout.

    Close the writer. The close waits for the sent steps and cuts the lanes. A writer that is collected is closed, too,
    but nothing reports steps that were not stored.

    Args:
        core: Core of the remote table.
        spec: Spec of the table.
        num_lanes: Number of lanes; None: one lane, and arrays have no lane axis.
        streaming: When blocks are sent, and how many may be unanswered.
        create_items: The table's create_items, for create_item.
    """

    def __init__(
        self,
        core: RemoteCore,
        spec: StepSpec,
        num_lanes: int | None,
        streaming: Streaming,
        create_items: Callable[..., npt.NDArray[np.int64]],
    ) -> None:
        opener = _Opener(core, spec, streaming)
        end_when_collected(self, opener.end)  # first: Ctrl-C may come at any moment of the opening
        self._writer = Writer(opener, spec, num_lanes, core.timeout_s, lambda error: error, create_items)
        assert opener.opened is not None
        self._core = opener.opened
        self._spec = spec

    if TYPE_CHECKING:

        def append(
            self,
            *,
            lanes: npt.ArrayLike | None = None,
            priority: Any = None,
            timeout_s: float | None = None,
            **columns: Any,
        ) -> StreamedKeys: ...

    else:

        def append(self, *values, **columns):
            """As Writer.append, but waits only while max_in_flight blocks are unanswered.

            Args:
                lanes: Mask bool[L] or ids int[M] of the lanes; None: every lane.
                priority: Initial priority of the items, if the index needs one.
                timeout_s: Seconds that this call may wait for room, and that the server may wait for the limiter with
                    each of these steps (unless Streaming.held_s says otherwise); None: the handle's default.
                **columns: The step's columns, as for Writer.append.

            Returns:
                The StreamedKeys of the step, of shape [M], or [] for a writer of one lane.

            Raises:
                ReliveError: The errors of Writer.append that the client can detect.
                Unacknowledged: Steps of earlier calls were not stored, or the stream broke. This step is not stored
                    either. The lanes are new.
                DeadlineExceeded: There was no room by the deadline.
                WriterClosed: The writer is closed.
            """
            if values:
                return self._writer.append(*values)
            keys = self._core.append_alike(columns, self._core.timeout_s)
            return self._writer.append(**columns) if keys is None else keys

    @columns_by_name
    def extend(
        self, *, lanes: npt.ArrayLike | None = None, priority: Any = None, timeout_s: float | None = None,
        **columns: Any
    ) -> Any:  # fmt: skip
        """As Writer.extend, but returns StreamedKeys at once.

        Args:
            lanes: Mask bool[L] or ids int[M] of the lanes; None: every lane.
            priority: Initial priorities of the items, if the index needs them.
            timeout_s: As for append.
            **columns: The block's columns, as for Writer.extend.

        Returns:
            The StreamedKeys of the steps, of shape [T, M], or [T] for a writer of one lane.

        Raises:
            ReliveError: The errors of append.
        """
        return self._writer.extend(lanes=lanes, priority=priority, timeout_s=timeout_s, **columns)

    def __reduce__(self) -> NoReturn:
        raise NotShareable("writer")

    def end_episode(
        self,
        *,
        lanes: npt.ArrayLike | None = None,
        terminated: bool = False,
        truncated: bool | None = None,
        timeout_s: float | None = None,
        **next_columns: Any,
    ) -> None:
        """As Writer.end_episode. Sent after the steps that were appended before.

        Args:
            lanes: Mask bool[L] or ids int[M] of the lanes; None: every lane.
            terminated: Whether the episode ended in a terminal state, default False.
            truncated: Whether the episode was truncated; None: as for Writer.end_episode.
            timeout_s: As for append.
            **next_columns: The next states, as for Writer.end_episode.

        Raises:
            ReliveError: The errors of append.
        """
        self._writer.end_episode(
            lanes=lanes, terminated=terminated, truncated=truncated, timeout_s=timeout_s, **next_columns
        )

    def abandon(self, lanes: npt.ArrayLike | None = None, *, timeout_s: float | None = None) -> None:
        """As Writer.abandon. Sent after the steps that were appended before.

        Args:
            lanes: Mask bool[L] or ids int[M] of the lanes; None: every lane.
            timeout_s: As for append.

        Raises:
            ReliveError: The errors of append.
        """
        self._writer.abandon(lanes, timeout_s=timeout_s)

    def create_item(
        self,
        windows: Any,
        *,
        index: str | None = None,
        priority: Any = None,
        timeout_s: float | None = None,
        **columns: Any,
    ) -> int:
        """As Writer.create_item.

        Applied after the steps that were appended before, and answered before the call returns.

        Args:
            windows: The item's windows of rows, by key, as for Writer.create_item.
            index: Name of the index; None: as for Writer.create_item.
            priority: Priority of the item.
            timeout_s: Deadline in seconds; None: the handle's default.
            **columns: The item's own columns.

        Returns:
            The item's key.

        Raises:
            ReliveError: The errors of Writer.create_item.
        """
        return self._writer.create_item(windows, index=index, priority=priority, timeout_s=timeout_s, **columns)

    def set_policy_version(self, version: int | None) -> None:
        """Sets the version of the rows from now on, in order with the steps.

        Args:
            version: Version of the policy; None: the table's version.
        """
        self._writer.set_policy_version(version)

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until the server has stored every step.

        Args:
            timeout_s: Deadline in seconds; None: the handle's default.

        Raises:
            Unacknowledged: Steps were not stored. The lanes are new.
            DeadlineExceeded: The server did not acknowledge every step by the deadline.
            WriterClosed: The writer is closed.

        Blocks: until every step is acknowledged, at most until the deadline.
        """
        self._core.flush(self._core.timeout_s if timeout_s is None else timeout(timeout_s))

    @property
    def num_lanes(self) -> int | None:
        """Number of lanes of this writer; None: one lane, and arrays have no lane axis."""
        return self._writer.num_lanes

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._core.closed

    def close(self) -> None:
        """Waits until every step is stored, for at most 10 s, then cuts the lanes.

        Raises:
            Unacknowledged: Steps were not stored. Raised once.

        Blocks: until every step is acknowledged, for at most 10 s.
        """
        self._writer.close()

    def __repr__(self) -> str:
        return f"StreamingWriter(num_lanes={self.num_lanes}, {'closed' if self.closed else 'open'})"


@final
class _Opener:
    """Gives a Writer a streaming core in place of the table's usual core."""

    def __init__(self, core: RemoteCore, spec: StepSpec, streaming: Streaming) -> None:
        self._core = core
        self._spec = spec
        self._streaming = streaming
        self.opened: StreamedWriterCore | None = None

    def end(self) -> None:
        """Closes the core that was opened, if there is one."""
        if self.opened is not None:
            self.opened.close()

    def open_writer(self, num_lanes: int, single: bool, normalise: Normalise) -> StreamedWriterCore:
        """Makes the core, and starts its threads. The table remembers it."""
        encoder = RowEncoder(self._spec, integer("num_lanes", num_lanes, 1), single, normalise)
        self.opened = StreamedWriterCore(self._core.connection, encoder, self._core.timeout_s, self._streaming)
        self.opened.start()
        self._core.add_writer(self.opened)
        return self.opened


if TYPE_CHECKING:

    def _has_the_interface_of_all_writers(writer: StreamingWriter) -> ReplayWriter:
        return writer
