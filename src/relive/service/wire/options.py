"""The options of a server and of a streaming writer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import final

from relive.checks.names import names_arguments
from relive.checks.values import finite, integer, is_text, timeout
from relive.errors import InvalidConfig

__all__ = ["ServerOptions", "Streaming"]


_MAX_PATH_BYTES = 4096
_BOUNDS = (
    "max_parameter_bytes",
    "max_work_bytes",
    "max_inflight_bytes",
    "max_inflight_bytes_per_client",
    "max_streams_per_client",
    "max_connections",
)


@names_arguments
@final
@dataclass(frozen=True)
class ServerOptions:
    """Limits of a server.

    Args:
        max_reply_bytes: Largest size of one batch in bytes, default 1 GiB. A larger batch is refused before any memory
            is allocated. So is a write of more than max_reply_bytes / 8 rows, as the answer has a key for each row.
        max_streams: Number of streams that may be open at once, default 512. Each stream has a thread.
        close_timeout_s: Seconds that close() waits for calls in progress, default 5.
        max_parameter_bytes: Largest size in bytes of one version of the parameters beside a table, default 1 GiB.
        max_work_bytes: Bytes that the requests under way may allocate together, keys, masses and scratch included,
            default 4 GiB. A request waits for them in order; one that needs more alone is refused.
        max_inflight_bytes: Bytes of answers that clients have not read yet, default 4 GiB. Draws in flight may have as
            many bytes, apart from these.
        max_inflight_bytes_per_client: The same for one client, default 2 GiB. A client is a token or a certificate, and
            without these the host that it connects from.
        max_streams_per_client: Number of streams of one client, default 512.
        max_connections: Number of TCP connections, default 1024, and at most three quarters of the descriptors that the
            process may have. Beyond it the oldest connections without a stream are cut.
        idle_s: Seconds after which a connection without a stream is cut, default 10.
        reserved_streams: Streams of max_streams that only clients with the role admin may open, default 4.
        saves: Folder of this machine below which clients may save tables (remote.save), as FOLDER/TABLE/NAME. A
            relative path becomes absolute at once. None, the default: clients may not save.

    Raises:
        InvalidConfig: An option is out of range.
    """

    max_reply_bytes: int = 1 << 30
    max_streams: int = 512
    close_timeout_s: float = 5.0
    max_parameter_bytes: int = 1 << 30
    saves: str | os.PathLike[str] | None = None
    max_work_bytes: int = 4 << 30
    max_inflight_bytes: int = 4 << 30
    max_inflight_bytes_per_client: int = 2 << 30
    max_streams_per_client: int = 512
    max_connections: int = 1024
    idle_s: float = 10.0
    reserved_streams: int = 4

    def __post_init__(self) -> None:
        integer("max_reply_bytes", self.max_reply_bytes, 1)
        integer("max_streams", self.max_streams, 1)
        finite("close_timeout_s", self.close_timeout_s, 0.0)
        for name in _BOUNDS:
            integer(name, getattr(self, name), 1)
        finite("idle_s", self.idle_s, 0.1)
        integer("reserved_streams", self.reserved_streams, 0)
        if self.saves is not None:
            path = os.fspath(self.saves) if isinstance(self.saves, os.PathLike) else self.saves
            if not is_text(path, _MAX_PATH_BYTES):
                raise InvalidConfig("saves", "the path of a folder, or None", self.saves)
            object.__setattr__(self, "saves", os.path.abspath(path))


@names_arguments
@final
@dataclass(frozen=True)
class Streaming:
    """Options of a streaming writer: when its blocks of steps are sent, and how many may be unanswered.

    A block is sent in any of three cases: the block is full (max_rows or max_block_bytes); linger_s seconds have passed
    since the block's first row; a later call of the same table handle must see the block.

    Args:
        max_rows: Rows of a full block, 1 to 65,536, default 256.
        max_block_bytes: Bytes of a full block, default 1 MiB.
        linger_s: Seconds from the first row of a block until the block is sent, default 0.005.
        max_in_flight: Number of blocks that may wait for their acknowledgement, default 8. With that many, append
            waits.
        held_s: Seconds that the server may wait for the limiter with a step. None: as long as the timeout of the call
            that brought the step.

    Raises:
        InvalidConfig: An option is out of range.
    """

    max_rows: int = 256
    max_block_bytes: int = 1 << 20
    linger_s: float = 0.005
    max_in_flight: int = 8
    held_s: float | None = None

    def __post_init__(self) -> None:
        integer("max_rows", self.max_rows, 1, 1 << 16)
        integer("max_block_bytes", self.max_block_bytes, 1)
        finite("linger_s", self.linger_s, 0.0)
        integer("max_in_flight", self.max_in_flight, 1)
        if self.held_s is not None:
            timeout(self.held_s, "held_s")
