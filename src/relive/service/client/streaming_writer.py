"""A writer whose calls return before the server has answered them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import numpy as np
import numpy.typing as npt

from relive.checks.names import columns_by_name, refuses_attributes
from relive.checks.values import integer, timeout
from relive.config.spec import StepSpec
from relive.core.closing import Closing
from relive.core.protocol import ReplayWriter
from relive.core.table_core import Normalise
from relive.service.client.blocks import StreamedKeys
from relive.service.client.remote_core import RemoteCore
from relive.service.client.streamed_core import StreamedWriterCore
from relive.service.wire.encoding import RowEncoder
from relive.service.wire.options import Streaming
from relive.writing.writer import Writer

__all__ = ["StreamingWriter"]


@refuses_attributes("Writer")
@final
class StreamingWriter(Closing):
    """Lanes over there; made by table.writer(num_lanes, streaming=Streaming()). Used by one thread at a time.

    append, extend and end_episode check and copy what they are given, and return at once; what is wrong with shapes,
    dtypes or priorities raises at the call, as ever. What only the server can tell (SeamMismatch, MissingNext, a full
    table, a deadline of the limiter, a server that is gone) is raised by a later call as Unacknowledged: the steps
    before the failed one are stored, neither it nor any sent after it are, and none is sent again. Then the writer goes
    on; where the stream broke, on new lanes, as the old ones were cut.
    Acknowledged means: the server has stored it. flush() waits for that, as does reading a call's keys. Other calls of
    the same table handle see everything appended before them, unless this writer waits for the limiter.
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
        self._writer = Writer(opener, spec, num_lanes, core.timeout_s, lambda error: error, create_items)
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
            """As Writer.append, but waits only while max_in_flight blocks are unanswered; returns StreamedKeys.

            timeout_s: how long the server may wait for the limiter with each of these steps, and this call for room.
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
        """As Writer.extend; returns StreamedKeys at once."""
        return self._writer.extend(lanes=lanes, priority=priority, timeout_s=timeout_s, **columns)

    def end_episode(
        self,
        *,
        lanes: npt.ArrayLike | None = None,
        terminated: bool = False,
        truncated: bool | None = None,
        timeout_s: float | None = None,
        **next_columns: Any,
    ) -> None:
        """As Writer.end_episode; sent after what was appended before."""
        self._writer.end_episode(
            lanes=lanes, terminated=terminated, truncated=truncated, timeout_s=timeout_s, **next_columns
        )

    def abandon(self, lanes: npt.ArrayLike | None = None, *, timeout_s: float | None = None) -> None:
        """As Writer.abandon; sent after what was appended before."""
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
        """As Writer.create_item: answered before it returns, after what was appended before."""
        return self._writer.create_item(windows, index=index, priority=priority, timeout_s=timeout_s, **columns)

    def set_policy_version(self, version: int | None) -> None:
        """As Writer.set_policy_version, in order with the steps."""
        self._writer.set_policy_version(version)

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when the server has stored everything. Raises Unacknowledged, DeadlineExceeded, WriterClosed."""
        self._core.flush(self._core.timeout_s if timeout_s is None else timeout(timeout_s))

    @property
    def num_lanes(self) -> int | None:
        """Lanes of this writer; None: one lane, arrays without a lane axis."""
        return self._writer.num_lanes

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._core.closed

    def close(self) -> None:
        """Waits until everything is stored, at most 10 s, then cuts the lanes. Raises Unacknowledged; once."""
        self._writer.close()

    def __repr__(self) -> str:
        return f"StreamingWriter(num_lanes={self.num_lanes}, {'closed' if self.closed else 'open'})"


@final
class _Opener:
    """Gives a Writer a streaming core, where a table would give it its own."""

    def __init__(self, core: RemoteCore, spec: StepSpec, streaming: Streaming) -> None:
        self._core = core
        self._spec = spec
        self._streaming = streaming

    def open_writer(self, num_lanes: int, single: bool, normalise: Normalise) -> StreamedWriterCore:
        """The core, remembered by the table."""
        encoder = RowEncoder(self._spec, integer("num_lanes", num_lanes, 1), single, normalise)
        self.opened = StreamedWriterCore(self._core.connection, encoder, self._core.timeout_s, self._streaming)
        self._core.add_writer(self.opened)
        return self.opened


if TYPE_CHECKING:

    def _has_the_interface_of_all_writers(writer: StreamingWriter) -> ReplayWriter:
        return writer
