"""The parameters beside a table of another machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy.typing as npt

from relive.checks.names import names_arguments
from relive.checks.values import integer, timeout
from relive.errors import ReliveError, ServiceUnavailable
from relive.service.client.connection import Connection
from relive.service.client.deadlines import cutoff
from relive.service.client.exchange import Exchange, StreamBroken
from relive.service.parameters.sets import (
    MAX_NOTE_BYTES,
    MAX_VERSION,
    Parameters,
    Publication,
    Published,
    checked_json,
    publication_of,
    read_publication,
    size_of,
)
from relive.service.parameters.store import ParameterStore
from relive.service.wire import framing

__all__ = ["RemoteParameters"]

Answer = TypeVar("Answer")

_KIND = "parameters"
_PART_BYTES = 512 << 10
_MAX_BYTES = 1 << 40
_PAUSE_S = 0.1  # before another try at a server that closes


@final
class RemoteParameters:
    """The newest parameters beside a remote table, as `remote.parameters`. Any number of threads.

    Each call in progress uses its own stream. The parameters live in the server's process. If that process is killed,
    the parameters are gone until a publisher publishes again, and a pull from the restarted server waits for that.

    Args:
        connection: Connection to the table.
        timeout_s: Default timeout in seconds of publish() and `version`.
    """

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._finished = False

    @property
    def version(self) -> int:
        """The newest version on the server; 0 if no version is published. Each read asks the server."""
        message = _pull_message(MAX_VERSION, 0.0, None)
        told = self._call(cutoff(self._timeout_s), lambda stream: _answer(stream, message)[0])
        return framing.whole(told, "version", 0, MAX_VERSION)

    @property
    def finished(self) -> bool:
        """Whether the answer to the last pull said that no newer version will come."""
        return self._finished

    @names_arguments
    def pull(
        self, newer_than: int = 0, timeout_s: float = 0.0, note: Mapping[str, Any] | None = None
    ) -> Published | None:
        """Returns the newest version if it is above `newer_than`. The version is received as a whole, or not at all.

        A checksum is compared. The server waits for a newer version for 1 s less than `timeout_s`, or for half of a
        short `timeout_s`. The deadline also applies to the transfer, but the client waits for an answer for at least
        1 s. If the server is gone or closes, the client retries until the deadline.

        Args:
            newer_than: The highest version that the caller does not need, default 0.
            timeout_s: Seconds to wait for a newer version, default 0.
            note: A dict that JSON can represent, at most 64 KiB, for the serving process, which may listen; None: no
                note. A note needs the role append. The note is sent again if the link breaks. A note should therefore
                contain sums, not increments.

        Returns:
            The version; None if no newer version came by the deadline. None at once if none will come (`finished`).

        Raises:
            InvalidConfig: An argument is not as described.
            AccessDenied: The client does not have the role read, or has a note and not the role append.
            TableClosed: The handle is closed.
            ForkedHandle: The handle was opened by a parent of this process.
            FormatMismatch: The server now serves another table under this address.
            ServiceUnavailable: The server did not answer by the deadline.

        Blocks: until a newer version comes, at most until the deadline.
        """
        above, seconds = integer("newer_than", newer_than, 0, MAX_VERSION), timeout(timeout_s)
        said = None if note is None else checked_json("note", note, MAX_NOTE_BYTES)
        ends = cutoff(seconds)
        # Half of a short timeout, or 1 s of a long timeout, is for the way back: most polls are answered at their end.
        waits_until = time.monotonic() + seconds - min(0.5 * seconds, 1.0)

        def ask(stream: Exchange) -> Publication | None:
            told, body = _answer(stream, _pull_message(above, _left(waits_until), said, _left(ends)))
            self._finished = framing.field(told, "finished", bool)
            if "arrays" not in told:
                return None
            publication = read_publication(told, _MAX_BYTES)
            num_bytes = size_of(publication.layout)
            return publication._replace(block=stream.receive_block(told, body, num_bytes)[:num_bytes])

        publication = self._call(ends, ask)
        if publication is None:
            return None
        publication.check()
        return publication.published()

    @names_arguments
    def publish(
        self,
        parameters: Mapping[str, npt.ArrayLike],
        version: int,
        about: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Makes a copy of these arrays the newest version, for all readers at once, when all bytes are on the server.

        If the link breaks, the client sends the version again, until the deadline. The client waits for another
        publisher that is in the middle of a publication.

        Args:
            parameters: Named arrays of numbers, of any shape. Every version contains all arrays.
            version: Number of the version, above the newest version. The newest version again, with the same arrays, is
                harmless.
            about: A dict that JSON can represent, at most 256 KiB; None: an empty dict.
            timeout_s: Deadline in seconds for the whole call; None: the table's default.

        Raises:
            InvalidConfig: An argument is not as described, or the set is larger than the server accepts.
            StaleVersion: The version is not above the newest version.
            DeadlineExceeded: Another publisher was not done by the deadline.
            ServiceUnavailable: The server did not answer by the deadline. The version may or may not be published:
                publish it again.

        Blocks: until the server has the version, at most until the deadline.
        """
        seconds = self._timeout_s if timeout_s is None else timeout(timeout_s)
        publication = publication_of(parameters, version, about, _MAX_BYTES)
        ends = cutoff(seconds)

        def send(stream: Exchange) -> None:
            header = {"op": "begin", **publication.header(), "timeout_s": _left(ends)}
            told, _ = _answer(stream, framing.encode(header))
            if framing.field(told, "there", bool):
                return
            for start in range(0, len(publication.block), _PART_BYTES):
                stream.send(framing.encode({"op": "part"}, publication.block[start : start + _PART_BYTES]))
            _answer(stream, framing.encode({"op": "commit"}))

        self._call(ends, send)

    # ---- streams ---------------------------------------------------------------------------------------------------

    def _call(self, ends: float, ask: Callable[[Exchange], Answer]) -> Answer:
        """Calls ask(stream), again if the stream broke or the server closes.

        A pull or a publication that is sent twice is harmless.
        """
        connection = self._connection
        while True:
            start = time.monotonic()
            stream = connection.take(ends, _KIND)
            try:
                stream.begin(ends)
                answer = ask(stream)
                stream.end()
            except _Refused as refused:
                stream.end()
                if _closes(refused.error) and time.monotonic() + _PAUSE_S < ends:  # the next server answers
                    connection.broken(stream, refused, start)
                    time.sleep(_PAUSE_S)
                    continue  # as below
                connection.give(stream, _KIND)
                raise refused.error from None
            except StreamBroken as problem:
                error = connection.broken(stream, problem, start)
                if not stream.expired and not connection.closed:
                    continue  # take() raises at `ends`, and so ends the loop
                raise error from None
            except BaseException:
                connection.drop(stream)  # a stream between a call and its answer is of no further use
                raise
            connection.give(stream, _KIND)
            return answer


def _closes(error: ReliveError) -> bool:
    """Whether a server refused the call because it closes."""
    return isinstance(error, ServiceUnavailable) and error.reason == "the server closes"


@final
class _Refused(Exception):
    """An error that the server sent in place of an answer. The stream is still usable.

    The error is wrapped because some errors of the library are OSErrors, as the errors of a broken stream are.
    """

    def __init__(self, error: ReliveError) -> None:
        super().__init__(error)
        self.error = error


def _answer(stream: Exchange, message: bytes) -> tuple[dict[str, Any], framing.Bytes]:
    stream.send(message)
    told, body = stream.receive()
    if "error" in told:
        raise _Refused(framing.error_from(told["error"]))
    return told, body


def _pull_message(
    newer_than: int, timeout_s: float | None, note: Mapping[str, Any] | None, lease_s: float | None = 0.0
) -> bytes:
    """Encodes a pull.

    `timeout_s`: for a newer version. `lease_s`: for the whole pull; the client stops waiting after that.
    """
    header: dict[str, Any] = {"op": "pull", "newer_than": newer_than, "timeout_s": timeout_s, "lease_s": lease_s}
    return framing.encode(header if note is None else {**header, "note": note})


def _left(ends: float) -> float | None:
    """Returns the seconds until then; None: no limit."""
    return None if math.isinf(ends) else max(ends - time.monotonic(), 0.0)


if TYPE_CHECKING:

    def _has_the_face(parameters: RemoteParameters, store: ParameterStore) -> tuple[Parameters, Parameters]:
        return parameters, store
