"""Asks a server how it is, without a token."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, final

import pyarrow.flight as flight

from relive.checks.names import names_arguments
from relive.checks.values import timeout
from relive.core.ending import start_thread
from relive.errors import BadMessage, ServiceUnavailable
from relive.service.client.exchange import StreamBroken
from relive.service.client.handshakes import handshake_problem, short_reason
from relive.service.wire.access import Access, ClientTLS
from relive.service.wire.address import parse_server
from relive.service.wire.transport import check_process, with_few_wakeups

__all__ = ["Health", "health"]

_ACTION = "relive.health"


@final
@dataclass(frozen=True)
class Health:
    """How a server is.

    Attributes:
        state: "serving", or "draining" if it takes no new streams.
        stuck: For each table that could not be locked within a second: the process that has its lock; None: not known.
    """

    state: Literal["serving", "draining"]
    stuck: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def is_well(self) -> bool:
        """Whether the server takes clients, and none of its tables is stuck."""
        return self.state == "serving" and not self.stuck

    def __str__(self) -> str:
        stuck = (f"; table {name!r} is locked by process {pid or '?'}" for name, pid in self.stuck.items())
        return self.state + "".join(stuck)


@names_arguments
def health(address: str, *, tls: ClientTLS | None = None, timeout_s: float = 5.0) -> Health:
    """Asks a server how it is.

    Args:
        address: Address of the server, grpc://host:port.
        tls: As for connect.
        timeout_s: Longest wait in seconds.

    Raises:
        ServiceUnavailable: The server did not answer in time.
        HandshakeFailed: The certificates of client and server do not fit.
        InvalidConfig: The address is none.
    """
    check_process("this process")
    seconds = max(timeout(timeout_s), 0.1)
    location = "{}://{}:{}".format(*parse_server(address))
    access = Access.of(tls, None)
    access.check(location)
    start = time.monotonic()
    try:
        answers = _answers(access, location, seconds)
    except StreamBroken as problem:
        failed = handshake_problem(address, str(problem))
        reason = short_reason(problem, location)
        raise failed or ServiceUnavailable(address, time.monotonic() - start, reason) from None
    try:
        told = json.loads(answers[0].body.to_pybytes())
        return Health(told["state"], {str(name): pid for name, pid in told["stuck"].items()})
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as problem:
        raise BadMessage("answer of a server", "its health", repr(problem)[:100]) from None


def _answers(access: Access, location: str, seconds: float) -> list[flight.Result]:
    """Asks in a thread of its own: the calling thread then hears Ctrl-C, which gRPC does not hear."""
    told: queue.SimpleQueue[list[flight.Result] | BaseException] = queue.SimpleQueue()

    def ask() -> None:
        try:
            with with_few_wakeups(lambda: access.client(location, [("grpc.use_local_subchannel_pool", 1)])) as client:
                options = flight.FlightCallOptions(timeout=seconds)
                told.put(list(client.do_action(flight.Action(_ACTION, b""), options)))
        except BaseException as problem:
            told.put(problem)

    start_thread(ask, "relive-health", never_writes=True)
    answer = told.get()
    if isinstance(answer, BaseException):
        raise answer
    return answer
