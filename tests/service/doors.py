"""Servers with tokens for these tests: a file with one token for each role, and clients of the plain protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import pyarrow.flight as flight

from relive import errors
from relive.core.roles import ROLES
from relive.service.wire import framing
from relive.service.wire.access import OPEN
from relive.service.wire.tokens import add_token
from relive.service.wire.transport import leave_to_parent

__all__ = ["Stream", "tokens_for"]


def tokens_for(path: Path, *tables: str) -> dict[str, str]:
    """Makes the file. Returns a token for each role, which has this role alone, for these tables."""
    return {role: add_token(str(path), role, [role], tables) for role in ROLES}


@final
class Stream:
    """A stream of the plain protocol, with any token and any message."""

    def __init__(self, address: str, kind: str, token: str | None, **more: Any) -> None:
        location, _, table = address.rpartition("/")
        request = {
            "relive": framing.VERSION,
            "byte_order": sys.byteorder,
            "table": table,
            "kind": kind,
            "spec": None,
            "uuid": None,
            "layout_hash": None,
            "num_lanes": None,
            **more,
        }
        headers = [] if token is None else [(b"authorization", b"Bearer " + token.encode("latin-1"))]
        self._client = OPEN.client(location, [("grpc.use_local_subchannel_pool", 1)])
        descriptor = flight.FlightDescriptor.for_command(json.dumps(request).encode())
        options = flight.FlightCallOptions(headers=headers, timeout=30.0)
        self._writer, self._reader = self._client.do_exchange(descriptor, options)
        leave_to_parent(self._writer, self._reader)

    def hears(self) -> Mapping[str, Any]:
        """The header of the next message. Raises the error that it has."""
        told, _ = framing.decode(self._reader.read_chunk().app_metadata)
        if "error" in told:
            raise framing.error_from(told["error"])
        return told

    def say(self, **header: Any) -> None:
        """Sends a message without a body."""
        self._writer.write_metadata(framing.encode(header))

    def is_denied(self, **header: Any) -> bool:
        """Whether the server denies this message. Another error, and any answer, is none."""
        self.say(**header)
        try:
            self.hears()
        except errors.AccessDenied:
            return True
        except errors.ReliveError:
            return False
        return False

    def ends(self) -> bool:
        """Waits for the end of the stream. False if the server says something instead."""
        try:
            self._reader.read_chunk()
        except (flight.FlightError, StopIteration, OSError):
            return True
        return False

    def close(self) -> None:
        """Gives the stream up."""
        self._reader.cancel()
        try:
            self._writer.close()
        except (flight.FlightError, OSError):
            pass
