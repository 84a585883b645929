"""The server's side of a stream of parameters: sends versions to waiting clients, and receives versions in parts."""

from __future__ import annotations

import time
from typing import final

import pyarrow as pa

from relive.errors import BadMessage, ServiceUnavailable
from relive.service.parameters.sets import MAX_NOTE_BYTES, MAX_VERSION, Publication, checked_json, read_publication
from relive.service.parameters.store import LEASE_S, Incoming
from relive.service.server.guard import Permit
from relive.service.server.hosting import SLICE_S, Hosted
from relive.service.server.pipe import Pipe
from relive.service.server.sessions import Header, Session
from relive.service.wire import framing
from relive.service.wire.framing import Bytes
from relive.service.wire.options import ServerOptions
from relive.service.wire.packing import address_of

__all__ = ["ParameterSession"]

_GRACE_S = 1.0  # time for a client to report that it gives up


@final
class ParameterSession(Session):
    """Serves `pull`, and `begin`, `part`, ..., `part`, `commit`.

    A part has no answer: its error is the commit's answer.

    A pull with a note also needs the role append: the listener may count what the note says.

    A publisher loses the seat at the end of its stream, at its deadline, and at any error.
    """

    ROLES = {"pull": "read", "begin": "update", "part": "update", "commit": "update"}

    def __init__(self, pipe: Pipe, hosted: Hosted, options: ServerOptions, permit: Permit) -> None:
        super().__init__(pipe, hosted, options, permit)
        self._store = hosted.parameters
        self._number = hosted.next_number()
        self._incoming: Incoming | None = None
        self._problem: Exception | None = None
        self._has_told = False

    def end(self) -> None:
        """Drops the version that the client was publishing: the client is gone or done."""
        self._drop()
        if self._has_told:
            self._store.hear(self._number, None)

    def handle(self, header: Header, body: Bytes) -> None:
        """Answers one message. A part has no answer."""
        op = header["op"]
        if op == "part":
            self._take(body)
        elif op == "pull":
            self._pull(header)
        elif op == "begin":
            self._begin(header)
        else:  # "commit"
            self._commit()

    def refuse(self, header: Header, problem: Exception) -> None:
        """Answers with an error. A part has no answer: the commit reports its error."""
        if header.get("op") == "part":
            self._drop()
            self._problem = problem
        else:
            super().refuse(header, problem)

    # ---- out -------------------------------------------------------------------------------------------------------

    def _pull(self, header: Header) -> None:
        newer_than = framing.whole(header, "newer_than", 0, MAX_VERSION)
        ends = time.monotonic() + framing.seconds(header)
        gives_up = time.monotonic() + min(
            framing.seconds(header, "lease_s") if "lease_s" in header else LEASE_S, LEASE_S
        )
        if "note" in header:
            self.permit.check("append")
            self._hear(framing.field(header, "note", dict))
        while True:
            left = ends - time.monotonic()
            slice_s, lease_s = max(min(left, SLICE_S), 0.0), gives_up + _GRACE_S - time.monotonic()
            with self._store.sending(newer_than, slice_s, lease_s) as publication:
                if publication is not None:
                    self._send(publication)
                    return
            if self._store.finished or left <= SLICE_S:
                self.pipe.send({"version": self._store.version, "finished": self._store.finished})
                return
            if self.pipe.gone():
                raise ServiceUnavailable(self.hosted.name, 0.0, "the client is gone")

    def _send(self, publication: Publication) -> None:
        block = publication.block
        buffers = [pa.foreign_buffer(address_of(block), len(block), block)] if len(block) else []
        self.pipe.send_buffers({**publication.header(), "finished": self._store.finished}, buffers)

    def _hear(self, note: Header) -> None:
        said = checked_json("note", note, MAX_NOTE_BYTES)
        self._has_told = True
        self._store.hear(self._number, said)

    # ---- in --------------------------------------------------------------------------------------------------------

    def _begin(self, header: Header) -> None:
        self._drop()
        publication = read_publication(header, self._store.max_bytes)
        ends = time.monotonic() + framing.seconds(header)
        self._incoming = self._store.begin(publication, ends, self.pipe.gone)
        self.pipe.send({"there": self._incoming is None})

    def _take(self, part: Bytes) -> None:
        if self._problem is not None:
            return
        try:
            if self._incoming is None:
                raise BadMessage("part", "a begin before it", "none")
            self._incoming.put(part)
        except BadMessage as problem:
            self._drop()
            self._problem = problem

    def _commit(self) -> None:
        incoming, problem = self._incoming, self._problem
        try:
            if problem is not None:
                raise problem
            if incoming is None:
                raise BadMessage("commit", "a begin before it", "none")
            incoming.commit()
        finally:
            self._drop()
        self.pipe.send({"version": self._store.version})

    def _drop(self) -> None:
        incoming, self._incoming, self._problem = self._incoming, None, None
        if incoming is not None:
            incoming.close()
