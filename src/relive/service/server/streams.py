"""Opens the streams of a server: finds the client, its table and its session, and runs the session."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import pyarrow.flight as flight

from relive.errors import BadMessage, Draining, InvalidConfig, NoSuchTable, ServiceUnavailable
from relive.service.server.calls import ANSWERED, HEALTH, Call, Calls
from relive.service.server.guard import Caller, Guard, Permit
from relive.service.server.hosting import Counts, Hosted, check_version
from relive.service.server.life import Life
from relive.service.server.parameter_session import ParameterSession
from relive.service.server.pipe import Pipe, StreamBroken
from relive.service.server.pulses import Pulses
from relive.service.server.sessions import CallSession, HoldSession, Session
from relive.service.server.shard_session import ShardSession
from relive.service.server.write_session import WriteSession
from relive.service.wire import framing
from relive.service.wire.door import Door
from relive.service.wire.options import ServerOptions
from relive.service.wire.transport import leave_to_parent

__all__ = ["KINDS", "FlightServer", "Serving"]

# Kinds of streams. The roles of a session's ops say which clients may open a stream of its kind.
KINDS: Mapping[str, type[Session]] = {
    "call": CallSession,
    "write": WriteSession,
    "hold": HoldSession,
    "shard": ShardSession,
    "parameters": ParameterSession,
}


class Serving(NamedTuple):
    """The parts of a server that all its streams share."""

    hosted: dict[str, Hosted]
    closing: threading.Event
    options: ServerOptions
    counts: Counts
    pulses: Pulses
    guard: Guard
    life: Life
    calls: Calls


@final
class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Makes the session that a stream's descriptor asks for, and runs the session on the stream's own thread."""

    def __init__(self, location: str, serving: Serving, door: Door) -> None:
        self._serving = serving
        more = {} if door.tls is None else door.tls.arguments()
        super().__init__(location, **more, middleware={Calls.NAME: serving.calls})
        leave_to_parent(self)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Serves one stream, from its handshake to its end."""
        serving, call = self._serving, _call(context)
        pipe = Pipe(context, reader, writer, serving.counts.busy)
        call.opened(context.peer(), pipe)
        serving.counts.streams(1)
        permit: Permit | None = None
        try:
            request, kind = self._asked(descriptor)
            name = framing.field(request, "table", str)
            most = serving.options.max_streams_per_client
            permit = serving.guard.enter(_caller(context, call), name, kind.roles(), most)
            self._check_reserve(permit)
            session = self._session(pipe, request, kind, permit)
        except Exception as problem:  # any error of the handshake is sent to the client, if the client is still there
            with contextlib.suppress(*StreamBroken):
                pipe.send({"error": framing.error_to(problem)})
            return
        else:
            session.run()
        finally:
            if permit is not None:
                serving.guard.leave(permit)
            serving.pulses.remove(pipe)
            pipe.end()
            serving.counts.streams(-1)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """Tells any client how the server is."""
        if action.type != HEALTH:
            raise flight.FlightServerError(ANSWERED)
        told = json.dumps(self._serving.life.health()).encode()
        _call(context).answered(context.peer())
        return [told]

    def _asked(self, descriptor: Any) -> tuple[dict[str, Any], type[Session]]:
        """Returns the request of a stream, and its kind. Tells a client of another version before anything else."""
        counts, options = self._serving.counts, self._serving.options
        request = _request(descriptor)
        check_version(request)
        if counts.drains:
            raise Draining("this server")
        if self._serving.closing.is_set():
            raise ServiceUnavailable("this server", 0.0, "it closes")
        if counts.num_streams > options.max_streams:
            raise InvalidConfig("streams", f"at most {options.max_streams} at once", counts.num_streams)
        kind = framing.field(request, "kind", str)
        if kind not in KINDS:
            raise BadMessage("kind of stream", " or ".join(KINDS), kind[:40])
        return request, KINDS[kind]

    def _check_reserve(self, permit: Permit) -> None:
        """Raises InvalidConfig if only streams for admins are left."""
        counts, options = self._serving.counts, self._serving.options
        most = max(options.max_streams - options.reserved_streams, 1)
        if counts.num_streams > most and "admin" not in permit.roles():
            raise InvalidConfig("streams", f"at most {most} at once, and the rest for admins", counts.num_streams)

    def _session(self, pipe: Pipe, request: dict[str, Any], kind: type[Session], permit: Permit) -> Session:
        serving = self._serving
        hosted = serving.hosted.get(permit.table)
        if hosted is None:
            raise NoSuchTable(permit.table[:200])
        hosted.check(request)
        if request.get("pulses") is True:
            serving.pulses.add(pipe, None if kind is WriteSession else hosted.table.core)
        if kind is WriteSession:
            return WriteSession(pipe, hosted, serving.options, permit, request)
        return kind(pipe, hosted, serving.options, permit)


def _call(context: Any) -> Call:
    call: Call = context.get_middleware(Calls.NAME)
    return call


def _caller(context: Any, call: Call) -> Caller:
    return Caller(call.digest, context.peer_identity().decode("utf-8", "replace"), context.peer())


def _request(descriptor: Any) -> dict[str, Any]:
    command = descriptor.command
    if descriptor.descriptor_type != flight.DescriptorType.CMD or len(command) > framing.MAX_HEADER_BYTES:
        raise BadMessage("descriptor", "a command of at most 1 MiB", str(descriptor.descriptor_type))
    try:
        request = json.loads(command)
    except (ValueError, RecursionError) as problem:
        raise BadMessage("descriptor", "JSON", str(problem)[:100]) from None
    if not isinstance(request, dict):
        raise BadMessage("descriptor", "a JSON object", type(request).__name__)
    return request
