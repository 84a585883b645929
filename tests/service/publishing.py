"""Parameters to publish, and a publisher as a program of strangers would write it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow.flight as flight

from relive.service import Server
from relive.service.parameters.sets import publication_of
from relive.service.wire import framing
from relive.service.wire.access import OPEN
from relive.service.wire.transport import leave_to_parent


def numbered(version: int, size: int = 50_000) -> dict[str, Any]:
    """Two arrays full of the version: a mixture of two versions is seen."""
    return {"w": np.full(size, version, np.float32), "b": np.full((3, 5), version, np.int64)}


def version_in(published: Any) -> int:
    """The one number that all values are."""
    (number,) = {*np.unique(published.arrays["w"]).tolist(), *np.unique(published.arrays["b"]).tolist()}
    return int(number)


class Raw:
    """A stream of parameters as a program of strangers would write it."""

    def __init__(self, server: Server, **changed: Any) -> None:
        request = {
            "relive": framing.VERSION, "byte_order": "little", "table": "t", "kind": "parameters", "spec": None,
            "uuid": None, "layout_hash": None, **changed,
        }  # fmt: skip
        self._client = OPEN.client(server.address, [])
        descriptor = flight.FlightDescriptor.for_command(json.dumps(request).encode())
        self._writer, self._reader = self._client.do_exchange(descriptor)
        leave_to_parent(self._writer, self._reader)
        self.hello = self.receive()

    def send(self, header: dict[str, Any], *parts: Any) -> None:
        self._writer.write_metadata(framing.encode(header, *parts))

    def receive(self) -> dict[str, Any]:
        return framing.decode(self._reader.read_chunk().app_metadata)[0]

    def ask(self, header: dict[str, Any], *parts: Any) -> Any:
        """The answer; of an error its type."""
        self.send(header, *parts)
        told = self.receive()
        return told["error"]["type"] if "error" in told else told

    def end(self) -> None:
        self._reader.cancel()
        try:
            self._writer.close()
        except (flight.FlightError, OSError):
            pass


def begin(version: int, timeout_s: float = 20.0) -> tuple[dict[str, Any], Any]:
    publication = publication_of(numbered(version, 100), version, None, 1 << 20)
    return {"op": "begin", **publication.header(), "timeout_s": timeout_s}, publication.block
