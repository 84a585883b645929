"""The newest parameters beside a served table: published whole, pulled whole, versions that never go back.

The protocol of a store. Any number of readers and publishers, here and on streams of the service:

  S1  One version is the newest. It is replaced in one step, when all bytes of the next one are there and their checksum
      is the publisher's. A reader gets the newest one, whole, or none.
  S2  A version is above the newest one, else StaleVersion; the newest one again, with the same bytes, is harmless.
  S3  One publisher at a time has the seat and fills a block. The others wait for it, so they are ordered. It gives the
      seat back by its last byte, by giving up, by the end of its stream, or at its own deadline: then the next takes it
      from who hangs, whose later bytes are refused.
  S4  A version that is being sent to readers stays until they have it. At most MOST_SENT versions are on their way at
      once: a reader of yet another waits, until its deadline. So no more than MOST_SENT + 2 versions are held, and two
      where readers keep up. A reader that is still being sent to after its own deadline hangs, or its machine is gone:
      it counts no more, and keeps its version until its stream ends. A publisher never waits for readers.

Knows nothing of Arrow.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import numpy.typing as npt

from relive.checks.names import names_arguments
from relive.checks.values import integer, timeout
from relive.errors import BadMessage, DeadlineExceeded, InvalidConfig, ServiceUnavailable, StaleVersion
from relive.service.parameters.sets import MAX_VERSION, Publication, Published, publication_of, size_of
from relive.service.wire.framing import Bytes

__all__ = ["Heard", "Incoming", "ParameterStore"]

MOST_SENT = 2
LEASE_S = 60.0  # a reader that says no deadline, or a later one
SLICE_S = 0.5  # how long a publisher waits before it is asked whether it is still there
PUBLISH_S = 10.0

Heard = Callable[[int, "dict[str, Any] | None"], None]


@final
class Incoming:
    """A version on its way in, and the seat (S3). One thread; close() gives the seat back, also after commit()."""

    def __init__(self, store: ParameterStore, publication: Publication, ends: float) -> None:
        self._store = store
        self._publication = publication
        self._filled = len(publication.block)  # all of it, where the publisher is of this process
        self._comes = self._filled != size_of(publication.layout)
        if self._comes:
            self._publication = publication._replace(block=np.empty(size_of(publication.layout), np.uint8))
        self.ends = ends

    def put(self, part: Bytes) -> None:
        """The next bytes. Raises BadMessage where there are more than were announced."""
        block, end = self._publication.block, self._filled + len(part)
        if end > len(block):
            raise BadMessage("bytes of parameters", f"{len(block)}", end)
        block[self._filled : end] = part
        self._filled = end

    def commit(self) -> None:
        """Makes it the newest version. Raises BadMessage, StaleVersion, DeadlineExceeded where the seat was lost."""
        if self._filled != len(self._publication.block):
            raise BadMessage("bytes of parameters", f"{len(self._publication.block)}", self._filled)
        if self._comes:
            self._publication.check()
        self._store.replace(self, self._publication)

    def close(self) -> None:
        """Gives the seat back."""
        self._store.leave(self)


@final
class ParameterStore:
    """The parameters beside one table of a server in this process; made by the server, which closes it.

    See Parameters, and the protocol above. After the server closed, calls raise ServiceUnavailable, but pulls of a
    finished one.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        self._name = name
        self.max_bytes = max_bytes
        self._changed = threading.Condition()
        self._newest: Publication | None = None
        self._sent: list[tuple[int, float]] = []  # of each reader that is being sent to: the version, until when
        self._seat: Incoming | None = None
        self._finished = self._closed = False
        self._heard: Heard | None = None

    # ---- the face --------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The newest version; 0 where nothing is published."""
        newest = self._newest
        return 0 if newest is None else newest.version

    @property
    def finished(self) -> bool:
        """Whether finish() was called."""
        return self._finished

    @names_arguments
    def publish(
        self,
        parameters: Mapping[str, npt.ArrayLike],
        version: int,
        about: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Makes a copy of these arrays the newest version; wakes who waits for one.

        parameters: named arrays of numbers, of any shape, all of them every time. version: above the newest. about: a
        dict that JSON can say. timeout_s: for another publisher that is in the middle of one, None: 10 s.
        Cost: one copy, and a checksum (1 GB/s or so each). Raises InvalidConfig, StaleVersion, DeadlineExceeded,
        ServiceUnavailable; then nothing changed.
        """
        publication = publication_of(parameters, version, about, self.max_bytes)
        incoming = self.begin(publication, time.monotonic() + (PUBLISH_S if timeout_s is None else timeout(timeout_s)))
        if incoming is not None:
            incoming.commit()
            incoming.close()

    @names_arguments
    def pull(self, newer_than: int = 0, timeout_s: float = 0.0) -> Published | None:
        """The newest version if it is above newer_than, as views of the store's bytes. Blocks until one comes, at most
        until the deadline, or until finish(): None. Raises InvalidConfig, ServiceUnavailable.
        """
        above, seconds = integer("newer_than", newer_than, 0, MAX_VERSION), timeout(timeout_s)
        with self._changed:
            self._wait(lambda: self._newer(above) is not None or self._is_over(above), seconds)
            found = self._newer(above)
        return None if found is None else found.published()

    def finish(self) -> None:
        """Says that no newer version will come: who waits for one gets None at once, and reads it in `finished`."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def listen(self, heard: Heard | None) -> None:
        """From now on heard(stream, note) is called with each note that comes with a pull over the wire, by the thread
        of its stream; heard(stream, None) when a stream ends that brought one. What it raises is told to who asked.
        """
        self._heard = heard

    def close(self) -> None:
        """The server's, as it closes: nobody waits any longer."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- readers; for streams of the service -----------------------------------------------------------------------

    @contextmanager
    def sending(self, newer_than: int, timeout_s: float, lease_s: float = LEASE_S) -> Iterator[Publication | None]:
        """A version that stays while the block lasts, and counts for lease_s (S4); None where there is none to be sent
        by the deadline.
        """
        with self._changed:
            self._wait(lambda: self._sendable(newer_than) is not None or self._is_over(newer_than), timeout_s)
            found = self._sendable(newer_than)
            if found is not None:
                lease = (found.version, time.monotonic() + lease_s)
                self._sent.append(lease)
        try:
            yield found
        finally:
            if found is not None:
                with self._changed:
                    self._sent.remove(lease)
                    self._changed.notify_all()

    def hear(self, stream: int, note: dict[str, Any] | None) -> None:
        """A note of a stream, or its end."""
        if self._heard is not None:
            self._heard(stream, note)

    def _newer(self, newer_than: int) -> Publication | None:
        newest = self._newest
        return newest if newest is not None and newest.version > newer_than else None

    def _is_over(self, newer_than: int) -> bool:
        return self._finished and self._newer(newer_than) is None

    def _sendable(self, newer_than: int) -> Publication | None:
        newest, now = self._newer(newer_than), time.monotonic()
        on_their_way = {version for version, ends in self._sent if now < ends}
        if newest is None or (newest.version not in on_their_way and len(on_their_way) >= MOST_SENT):
            return None
        return newest

    # ---- publishers ------------------------------------------------------------------------------------------------

    def begin(self, publication: Publication, ends: float, gone: Callable[[], bool] = lambda: False) -> Incoming | None:
        """The seat, for a publisher whose deadline is `ends`; None where this very version is there already (S2).

        Blocks while another one has it, until then, or until the publisher is gone. Raises StaleVersion,
        DeadlineExceeded, ServiceUnavailable, and InvalidConfig after finish().
        """
        start = now = time.monotonic()
        with self._changed:
            while not self._is_there(publication):
                if self._closed or gone():
                    raise ServiceUnavailable(self._name, now - start, "the server closes" if self._closed else "gone")
                if self._finished:
                    raise InvalidConfig("version", "none after finish()", publication.version)
                if self._seat is None or now >= self._seat.ends:
                    self._seat = Incoming(self, publication, ends)
                    return self._seat
                if now >= ends:
                    raise DeadlineExceeded("the end of another publication", "", now - start)
                self._changed.wait(min(ends - now, self._seat.ends - now, SLICE_S))
                now = time.monotonic()
        return None

    def replace(self, incoming: Incoming, publication: Publication) -> None:
        """The newest version is another one from now on; the call of who has the seat."""
        with self._changed:
            if self._seat is not incoming:
                raise DeadlineExceeded("all bytes of the parameters by the publisher's deadline", "", 0.0)
            if self._closed:
                raise ServiceUnavailable(self._name, 0.0, "the server closes")
            if not self._is_there(publication):
                self._newest = publication
                self._changed.notify_all()

    def leave(self, incoming: Incoming) -> None:
        """The seat is free, if it was theirs."""
        with self._changed:
            if self._seat is incoming:
                self._seat = None
                self._changed.notify_all()

    def _is_there(self, publication: Publication) -> bool:
        newest = self._newest
        if newest is None or publication.version > newest.version:
            return False
        if publication.version == newest.version and publication.checksum == newest.checksum:
            return True
        raise StaleVersion(publication.version, newest.version)

    # ---- waiting; _changed is held ---------------------------------------------------------------------------------

    def _wait(self, done: Callable[[], bool], timeout_s: float) -> None:
        self._changed.wait_for(lambda: self._closed or done(), None if math.isinf(timeout_s) else timeout_s)
        if self._closed and not self._finished:  # the last word of a finished one is for who was waiting, too
            raise ServiceUnavailable(self._name, 0.0, "the server closes")
