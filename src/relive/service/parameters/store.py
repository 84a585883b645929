"""Stores the newest parameters beside a served table: published as a whole, pulled as a whole, in rising versions.

The protocol of a store. Readers and publishers, in any number, are threads of this process or streams of the service:

  S1  One version is the newest. It is replaced in one step, when all bytes of the next version are there and their
      checksum is the publisher's. A reader gets the newest version as a whole, or none.
  S2  A new version is above the newest version, else StaleVersion. The newest version again, with the same bytes, is
      harmless.
  S3  At most one publisher at a time has the seat and fills a block. The other publishers wait for the seat, so
      publications are ordered. A publisher gives the seat back in one of four ways: by its last byte, by giving up, by
      the end of its stream, or at its own deadline. A publisher that hangs blocks the other publishers until its own
      deadline. The next publisher then takes the seat. The bytes of the hanging publisher are dropped, and its later
      bytes are refused.
  S4  A version that is being sent to readers stays until those readers have it. At most MOST_SENT versions are being
      sent at once: a reader of a further version waits, until its deadline. The store therefore keeps at most
      MOST_SENT + 2 versions, and two if the readers keep up. A reader that is still receiving after its own deadline
      hangs, or its machine is gone: it no longer counts, and its version stays until its stream ends. A publisher
      never waits for readers.

This module does not use Arrow.
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
LEASE_S = 60.0  # deadline of a reader that gives none, and the latest deadline that counts
SLICE_S = 0.5  # how long a publisher waits before the store checks whether the publisher is still there
PUBLISH_S = 10.0

Heard = Callable[[int, "dict[str, Any] | None"], None]


@final
class Incoming:
    """A version that is being received, and the publisher's seat (rule S3).

    Used by one thread, but for drop(). close() gives the seat back, also after commit().
    """

    def __init__(self, store: ParameterStore, publication: Publication, ends: float) -> None:
        self._store = store
        self._publication = publication
        self._filled = len(publication.block)  # the whole block if the publisher is in this process
        self._comes = self._filled != size_of(publication.layout)
        if self._comes:
            self._publication = publication._replace(block=np.empty(size_of(publication.layout), np.uint8))
        self.ends = ends

    def put(self, part: Bytes) -> None:
        """Stores the next bytes.

        Raises BadMessage if there are more bytes than announced, and DeadlineExceeded if the seat was lost.
        """
        block, end = self._publication.block, self._filled + len(part)
        self._store.check_seat(self)  # after the line above: a block that was dropped is never looked at
        if end > len(block):
            raise BadMessage("bytes of parameters", f"{len(block)}", end)
        block[self._filled : end] = part
        self._filled = end

    def commit(self) -> None:
        """Makes the received version the newest version.

        Raises BadMessage, StaleVersion, and DeadlineExceeded if the seat was lost.
        """
        publication = self._publication
        self._store.check_seat(self)  # after the line above, as in put()
        if self._filled != len(publication.block):
            raise BadMessage("bytes of parameters", f"{len(publication.block)}", self._filled)
        if self._comes:
            publication.check()
        self._store.replace(self, publication)

    def drop(self) -> None:
        """Drops the bytes: the seat was lost. Called by the thread that took the seat, maybe during put() or commit().

        That call keeps the bytes until it returns.
        """
        self._publication = self._publication._replace(block=np.empty(0, np.uint8))

    def close(self) -> None:
        """Gives the seat back."""
        self._store.leave(self)


@final
class ParameterStore:
    """The parameters beside one table of a server in this process.

    The server makes the store and closes it. See Parameters for the interface, and the protocol at the top of this
    module. After the server has closed, calls raise ServiceUnavailable. A pull of a finished store still works.

    Args:
        name: The table's name, for errors.
        max_bytes: Largest size of one version in bytes.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        self._name = name
        self.max_bytes = max_bytes
        self._changed = threading.Condition()
        self._newest: Publication | None = None
        self._sent: list[tuple[int, float]] = []  # for each reader that is receiving: version, deadline
        self._seat: Incoming | None = None
        self._finished = self._closed = False
        self._heard: Heard | None = None

    # ---- the interface ----------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The newest version; 0 if no version is published."""
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
        """Makes a copy of these arrays the newest version, and wakes the readers that wait for a newer version.

        After an error the store is unchanged.

        Args:
            parameters: Named arrays of numbers, of any shape. Every version contains all arrays.
            version: Number of the version, above the newest version. The newest version again, with the same arrays, is
                harmless.
            about: A dict that JSON can represent, at most 256 KiB; None: an empty dict.
            timeout_s: Seconds to wait for another publisher that is in the middle of a publication; None: 10.

        Raises:
            InvalidConfig: An argument is not as described, the set is too large, or finish() was called.
            StaleVersion: The version is not above the newest version.
            DeadlineExceeded: Another publisher was not done by the deadline.
            ServiceUnavailable: The server closes.

        Cost: one copy and one checksum (each at about 1 GB/s).
        """
        publication = publication_of(parameters, version, about, self.max_bytes)
        incoming = self.begin(publication, time.monotonic() + (PUBLISH_S if timeout_s is None else timeout(timeout_s)))
        if incoming is not None:
            try:
                incoming.commit()
            finally:
                incoming.close()

    @names_arguments
    def pull(self, newer_than: int = 0, timeout_s: float = 0.0) -> Published | None:
        """Returns the newest version if it is above `newer_than`. The arrays are views of the store's bytes.

        Args:
            newer_than: The highest version that the caller does not need, default 0.
            timeout_s: Seconds to wait for a newer version, default 0.

        Returns:
            The newest version; None if no newer version came by the deadline, or if finish() was called.

        Raises:
            InvalidConfig: An argument is out of range.
            ServiceUnavailable: The server closes, and finish() was not called.

        Blocks: until a newer version comes, at most until the deadline or until finish().
        """
        above, seconds = integer("newer_than", newer_than, 0, MAX_VERSION), timeout(timeout_s)
        with self._changed:
            self._wait(lambda: self._newer(above) is not None or self._is_over(above), seconds)
            found = self._newer(above)
        return None if found is None else found.published()

    def finish(self) -> None:
        """Says that no newer version will come.

        A reader that waits for a newer version gets None at once. `finished` tells the reader why.
        """
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def listen(self, heard: Heard | None) -> None:
        """Calls heard(stream, note) for each note that a pull brings over the wire, from now on.

        The thread of the note's stream makes the call. When a stream that brought a note ends, the call is
        heard(stream, None). An exception of `heard` is sent as the answer to the client.

        Args:
            heard: The function; None: no function is called from now on.
        """
        self._heard = heard

    def close(self) -> None:
        """Ends every wait. The server calls close() when it closes."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- readers; for streams of the service -----------------------------------------------------------------------

    @contextmanager
    def sending(self, newer_than: int, timeout_s: float, lease_s: float = LEASE_S) -> Iterator[Publication | None]:
        """Gives a version that stays while the `with` block lasts, and counts for lease_s seconds (rule S4).

        Gives None if no version can be sent by the deadline.
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
        """Passes on a note of a stream, or None when the stream ends."""
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
        """Gives the seat to a publisher with the deadline `ends`; None if this very version is there already (rule S2).

        Blocks while another publisher has the seat, until the deadline or until the publisher is gone. Raises
        StaleVersion, DeadlineExceeded, ServiceUnavailable, and InvalidConfig after finish().
        """
        start = now = time.monotonic()
        with self._changed:
            while not self._is_there(publication):
                if self._closed or gone():
                    raise ServiceUnavailable(self._name, now - start, "the server closes" if self._closed else "gone")
                if self._finished:
                    raise InvalidConfig("version", "none after finish()", publication.version)
                if self._seat is None or now >= self._seat.ends:
                    late, self._seat = self._seat, Incoming(self, publication, ends)
                    if late is not None:
                        late.drop()  # its publisher may never say a word again
                    return self._seat
                if now >= ends:
                    raise DeadlineExceeded("the end of another publication", "", now - start)
                self._changed.wait(min(ends - now, self._seat.ends - now, SLICE_S))
                now = time.monotonic()
        return None

    def replace(self, incoming: Incoming, publication: Publication) -> None:
        """Replaces the newest version. Called for the publisher that has the seat."""
        with self._changed:
            self.check_seat(incoming)
            if self._closed:
                raise ServiceUnavailable(self._name, 0.0, "the server closes")
            if not self._is_there(publication):
                self._newest = publication
                self._changed.notify_all()

    def check_seat(self, incoming: Incoming) -> None:
        """Raises DeadlineExceeded if another publisher has the seat."""
        if self._seat is not incoming:
            raise DeadlineExceeded("all bytes of the parameters by the publisher's deadline", "", 0.0)

    def leave(self, incoming: Incoming) -> None:
        """Frees the seat if this publication has the seat."""
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

    # ---- waiting; in the critical section of _changed ---------------------------------------------------------------

    def _wait(self, done: Callable[[], bool], timeout_s: float) -> None:
        self._changed.wait_for(lambda: self._closed or done(), None if math.isinf(timeout_s) else timeout_s)
        if self._closed and not self._finished:  # a reader that waits on a finished store gets None
            raise ServiceUnavailable(self._name, 0.0, "the server closes")
