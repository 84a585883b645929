"""What a server and a streaming writer can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from relive.checks.names import names_arguments
from relive.checks.values import finite, integer, timeout

__all__ = ["ServerOptions", "Streaming"]


@names_arguments
@final
@dataclass(frozen=True)
class ServerOptions:
    """max_reply_bytes: of one batch; larger ones are refused before anything is allocated. max_streams: open at once,
    a thread each. close_timeout_s: how long close() waits for calls in progress. max_parameter_bytes: of one version of
    the parameters beside a table. Raises InvalidConfig.
    """

    max_reply_bytes: int = 1 << 30
    max_streams: int = 512
    close_timeout_s: float = 5.0
    max_parameter_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        integer("max_reply_bytes", self.max_reply_bytes, 1)
        integer("max_streams", self.max_streams, 1)
        finite("close_timeout_s", self.close_timeout_s, 0.0)
        integer("max_parameter_bytes", self.max_parameter_bytes, 1)


@names_arguments
@final
@dataclass(frozen=True)
class Streaming:
    """How a streaming writer gathers steps. A block leaves when it holds max_rows rows (or max_block_bytes), linger_s
    after its first row, or when a later call of the same table handle must see it. max_in_flight: blocks that wait to
    be acknowledged before append waits. held_s: how long the server may wait for the limiter with a step; None: as long
    as the call that brought it was to wait. Raises InvalidConfig.
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
