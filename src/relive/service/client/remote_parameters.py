"""The parameters beside a table of another machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy.typing as npt

from relive.checks.names import names_arguments
from relive.checks.values import integer, timeout
from relive.errors import ReliveError
from relive.service.client.connection import Connection, cutoff
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


@final
class RemoteParameters:
    """The newest parameters beside a remote table (`remote.parameters`). Any number of threads; a stream of its own for
    each call that is under way. They live in the server's process: where that is killed they are gone until somebody
    publishes again, and a server that is asked for what is not there waits for it.
    """

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._finished = False

    @property
    def version(self) -> int:
        """The newest version over there; 0 where nothing is published. Asks the server."""
        message = _pull_message(MAX_VERSION, 0.0, None)
        told = self._call(cutoff(self._timeout_s), lambda stream: _answer(stream, message)[0])
        return framing.whole(told, "version", 0, MAX_VERSION)

    @property
    def finished(self) -> bool:
        """Whether the last answer of a pull said that no newer version will come."""
        return self._finished

    @names_arguments
    def pull(
        self, newer_than: int = 0, timeout_s: float = 0.0, note: Mapping[str, Any] | None = None
    ) -> Published | None:
        """The newest version if it is above newer_than; waits for one until the deadline, None where none came by then,
        and at once where none will (`finished`).

        The server waits for a second less, or for half of a short deadline. The deadline holds for the bytes on their
        way, too, but an answer is waited for at least 1 s. note: a dict that JSON can say, of at most 64 KiB, for the
        serving process, which may listen; told again where the link breaks, so that it had better say sums. Whole or
        not at all: a checksum is compared. Where the server is gone it is waited for until the deadline, then
        ServiceUnavailable. Raises InvalidConfig, TableClosed, ForkedHandle, FormatMismatch (another table is served
        there now).
        """
        above, seconds = integer("newer_than", newer_than, 0, MAX_VERSION), timeout(timeout_s)
        said = None if note is None else checked_json("note", note, MAX_NOTE_BYTES)
        ends = cutoff(seconds)
        # Half of a short deadline, a second of a long one, is for the way back: most answers of a poll come at its end.
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
        """Makes a copy of these arrays the newest version, for all readers at once, when all bytes are over there.

        parameters: named arrays of numbers, of any shape, all of them every time. version: above the newest; the newest
        again, with the same arrays, is harmless. about: a dict that JSON can say. timeout_s: for all of it, None: the
        table's. Another publisher that is in the middle of one is waited for. Sent again by itself where the link
        breaks, until the deadline. Raises InvalidConfig, StaleVersion, DeadlineExceeded, ServiceUnavailable (whether it
        was done is unknown: publish it again).
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
        """ask(stream), again where its stream broke: neither pulling nor publishing the same twice does any harm."""
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
                connection.give(stream, _KIND)
                raise refused.error from None
            except StreamBroken as problem:
                error = connection.broken(stream, problem, start)
                if not stream.expired and not connection.closed:
                    continue  # opening a stream again is what ends this, at `ends`
                raise error from None
            except BaseException:
                connection.drop(stream)  # between a call and its answer: nobody could use it again
                raise
            connection.give(stream, _KIND)
            return answer


@final
class _Refused(Exception):
    """What the server says in place of an answer; its stream goes on. Some errors it carries are OSErrors, as those of
    a broken stream are.
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
    """timeout_s: for a newer one. lease_s: for all of it, after which nobody waits here any more."""
    header: dict[str, Any] = {"op": "pull", "newer_than": newer_than, "timeout_s": timeout_s, "lease_s": lease_s}
    return framing.encode(header if note is None else {**header, "note": note})


def _left(ends: float) -> float | None:
    """Seconds until then; None: for ever."""
    return None if math.isinf(ends) else max(ends - time.monotonic(), 0.0)


if TYPE_CHECKING:

    def _has_the_face(parameters: RemoteParameters, store: ParameterStore) -> tuple[Parameters, Parameters]:
        return parameters, store
