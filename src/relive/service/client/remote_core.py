"""Answers a table's calls to its core by a server. The class above this core is the same as for a local table."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive.config.table_config import TableConfig
from relive.core.request import DrawRequest
from relive.core.table_core import DrawnItems, Normalise, SimpleCalls, TableCore
from relive.errors import TableClosed, Unacknowledged
from relive.service.client.asking import Answer, Asking
from relive.service.client.connection import Connection
from relive.service.client.deadlines import cutoff, server_wait
from relive.service.client.forms import Outputs, outputs_of
from relive.service.client.remote_writer import CLOSE_S, LANES_S, RemoteWriterCore, SyncWriterCore
from relive.service.wire import framing
from relive.service.wire.encoding import RowEncoder
from relive.service.wire.packing import CREATED, DRAWN, LISTED, PRESENT, PackedArray, Packing, gathered, sampled
from relive.service.wire.verbs import VERBS, Verb, answered_by_messages, asking

__all__ = ["RemoteCore", "RemoteSelection", "Started", "remote_core"]

Keys = npt.NDArray[np.int64]
Arrays = list[npt.NDArray[Any]]

_MAX_MESSAGES = 16  # most encoded messages that a selection remembers
_NO_WAIT_S = 0.05  # a call whose steps were found in less time keeps its timeout, and with it its encoded message


class RemoteSelection(NamedTuple):
    """Columns of an index, and how answers lie in bytes.

    `messages`: encoded draws, by request (without its columns) and timeout_s.
    """

    number: int
    names: list[str]
    outputs: Outputs
    sampled: Packing
    gathered: Packing
    messages: dict[tuple[tuple[Any, ...], float], bytes]


@final
class Started:
    """A call whose message was sent. Its answer is due until take() or drop()."""

    def __init__(self, asking: Asking, reads: Callable[[Answer], Any]) -> None:
        asking.rest()
        self._asking = asking
        self._reads = reads

    def take(self) -> Any:
        """Waits for the answer, and raises as the call does."""
        return self._reads(self._asking.take())

    def drop(self) -> None:
        """Gives up on the answer."""
        self._asking.drop()


@answered_by_messages
class RemoteCore(SimpleCalls):
    """A TableCore in which each call is one message and its answer. Any number of threads; made by remote_core().

    A call without a timeout_s waits for its answer for at most the handle's default timeout.
    """

    def __init__(self, connection: Connection, hello: dict[str, Any], timeout_s: float | None) -> None:
        self.connection = connection
        self.metadata = framing.field(hello, "metadata", str).encode()
        self._config = config = TableConfig.from_metadata(self.metadata)
        self.spec = config.spec
        self.stream: int = framing.field(hello, "stream", int)
        self.read_only: bool = framing.field(hello, "read_only", bool)
        self.timeout_s = config.timeout_s if timeout_s is None else timeout_s
        # Those that are open. Each call reads them; each change is one step of the interpreter.
        self._writers: dict[weakref.ref[RemoteWriterCore], None] = {}

    # ---- reading ---------------------------------------------------------------------------------------------------

    def _asked_outputs(self, index: int, names: list[str]) -> Outputs:
        """Asks the server for the outputs of columns. Raises UnknownColumn, and ServiceUnavailable."""
        header, _ = self._call({"op": "select", "index": index, "names": names})
        return [
            (str(name), str(dtype), tuple(shape), int(axis), str(per))
            for name, dtype, shape, axis, per in header["outputs"]
        ]

    def select(self, index: int, names: list[str]) -> RemoteSelection:
        """Resolves columns, without a message where this process can. Raises UnknownColumn, and TableClosed."""
        if self.connection.closed:
            raise TableClosed()
        outputs = outputs_of(self._config, index, names)
        if outputs is None:
            outputs = self._asked_outputs(index, names)
        typed = [PackedArray(name, np.dtype(dtype), shape, axis, per) for name, dtype, shape, axis, per in outputs]
        return RemoteSelection(index, names, outputs, sampled(typed), gathered(typed), {})

    def where(self, index: int, text: str, operations: list[Any]) -> str:
        """Returns the text of a condition; the server makes its own program of the text."""
        return text

    def draw(self, request: DrawRequest, timeout_s: float) -> DrawnItems:
        """Draws one batch, or keys and probabilities alone."""
        selection: RemoteSelection | None = request.selection
        op, packing = ("draw", DRAWN) if selection is None else ("sample", selection.sampled)
        after, timeout_s = self._after(timeout_s)
        message = self._draw_message(op, request, timeout_s, after)
        asking = Asking(self.connection, op, message, cutoff(timeout_s), packing, request.num_items)
        told, block = asking.take(at_once=True)
        assert block is not None
        *arrays, keys, probabilities = packing.arrays(block, request.num_items, packing.num_rows(told))
        return arrays, keys, probabilities, told["live"]

    def _draw_message(self, op: str, request: DrawRequest, timeout_s: float, after: list[tuple[int, int]]) -> bytes:
        known = None if after or request.selection is None else request.selection.messages
        asked = request.all_but_columns, timeout_s
        message = None if known is None else known.get(asked)
        if message is None:
            message = self._encode({"op": op} | request.to_header(), (), timeout_s, after)
            if known is not None and len(known) < _MAX_MESSAGES:
                known[asked] = message
        return message

    def claim(self, index: int, keys: Keys, timeout_s: float) -> tuple[npt.NDArray[np.bool_], int]:
        """Returns a bool for each key that says whether the key was claimed, and the number of live items."""
        count = len(keys)
        header = {"op": "claim", "index": index, "n": count}
        told, block = self._call(header, (np.ascontiguousarray(keys),), timeout_s, PRESENT, count)
        assert block is not None
        return PRESENT.arrays(block, count)[0], told["live"]

    def start_claim(self, index: int, keys: Keys, left_s: float) -> Started:
        """Sends the message of a claim of the items that are there: which keys were claimed.

        The server waits for no items, and this side waits left_s for the answer.
        """
        count = len(keys)
        header = {"op": "claim", "index": index, "n": count, "timeout_s": 0.0, "some": True}
        asking = self._start(header, (np.ascontiguousarray(keys),), left_s, PRESENT, count)
        return Started(asking, lambda answer: PRESENT.arrays(_block(answer), count)[0])

    def list_items(
        self, index: int, first: int, count: int, where: str | None = None
    ) -> tuple[Keys, npt.NDArray[np.uint64], npt.NDArray[np.float64], int]:
        """Returns the items of some leaves. The server may look at fewer leaves than requested."""
        found: tuple[Keys, npt.NDArray[np.uint64], npt.NDArray[np.float64], int] = self.start_list(
            index, first, count, where
        ).take()
        return found

    def start_list(self, index: int, first: int, count: int, where: str | None) -> Started:
        """Sends the message of list_items."""
        header = {"op": "list", "index": index, "first": first, "n": count}
        header |= {} if where is None else {"where": where}

        def read(answer: Answer) -> Any:
            keys, ages, ranks = LISTED.arrays(_block(answer), 0, LISTED.num_rows(answer.header))
            return keys, ages, ranks, framing.whole(answer.header, "next", 0, 1 << 48)

        return Started(self._start(header, (), None, LISTED, 0), read)

    def gather(
        self, selection: RemoteSelection, keys: Keys, out: Sequence[npt.NDArray[Any]] | None
    ) -> tuple[Arrays, npt.NDArray[np.bool_]]:
        """Gathers columns by key, into `out` if given."""
        gathered: tuple[Arrays, npt.NDArray[np.bool_]] = self.start_gather(selection, keys, out).take()
        return gathered

    def gather_within(
        self, selection: RemoteSelection, keys: Keys, timeout_s: float
    ) -> tuple[Arrays, npt.NDArray[np.bool_]]:
        """As gather, with a deadline of its own: raises ServiceUnavailable after timeout_s, at least a second."""
        gathered: tuple[Arrays, npt.NDArray[np.bool_]] = self.start_gather(selection, keys, None, timeout_s).take()
        return gathered

    def start_gather(
        self,
        selection: RemoteSelection,
        keys: Keys,
        out: Sequence[npt.NDArray[Any]] | None,
        timeout_s: float | None = None,
    ) -> Started:
        """Sends the message of a gather. timeout_s: None: the handle's."""
        count, packing = len(keys), selection.gathered
        header = {"op": "gather", "index": selection.number, "names": selection.names, "n": count}

        def read(answer: Answer) -> tuple[Arrays, npt.NDArray[np.bool_]]:
            *arrays, present = packing.arrays(_block(answer), count, packing.num_rows(answer.header))
            if out is None:
                return arrays, present
            for target, array in zip(out, arrays, strict=True):
                np.copyto(target, array)
            return list(out), present

        return Started(self._start(header, (np.ascontiguousarray(keys),), timeout_s, packing, count), read)

    # ---- items -----------------------------------------------------------------------------------------------------

    def create_items(
        self,
        index: int,
        windows: Keys,
        rows: Sequence[Keys | None],
        priorities: npt.NDArray[np.float32] | None,
        columns: Sequence[npt.NDArray[Any]],
        timeout_s: float,
    ) -> Keys:
        """Creates explicit items and returns their keys.

        After ServiceUnavailable the error's `unanswered` items may or may not have been made.
        """
        count = len(windows)
        named = [0 if one is None else one.shape[1] for one in rows]
        header = {"op": "create", "index": index, "n": count, "named": named, "given": priorities is not None}
        parts = (windows, *(one for one in rows if one is not None), *(() if priorities is None else (priorities,)))
        told, block = self._call(header, (*parts, *columns), timeout_s, CREATED, count)
        assert block is not None
        keys: Keys = CREATED.arrays(block, count)[0]
        if "stopped" in told:
            made = framing.whole(told, "made", 0, count)
            more = {"stored": made, "num_items": count, "keys": keys[:made]} if made else {}
            raise framing.error_from(told["stopped"], **more)
        return keys

    # ---- writing and the handle ------------------------------------------------------------------------------------

    def open_writer(self, num_lanes: int, single: bool, normalise: Normalise) -> SyncWriterCore:
        """Opens lanes on the server. Each call of the writer is answered before it returns."""
        writer = SyncWriterCore(self.connection, RowEncoder(self.spec, num_lanes, single, normalise), self.timeout_s)
        self.add_writer(writer)
        return writer

    def add_writer(self, writer: RemoteWriterCore) -> None:
        """Remembers a writer. The writer closes with the table, and other calls see the steps that it sent before."""
        self._writers[weakref.ref(writer)] = None

    @property
    def path(self) -> str:
        """The address of the table."""
        return self.connection.address

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self.connection.closed

    def close(self) -> None:
        """Closes the writers, then every stream. However many writers there are, it waits for the server once.

        Ctrl-C ends the wait: the server then cuts the lanes. If a streaming writer raised Unacknowledged, raises that
        error at the end.
        """
        failure: Unacknowledged | None = None
        if not self.connection.closed:
            ends = cutoff(min(self.timeout_s, CLOSE_S))
            self.connection.is_closing = True
            try:
                for reference in list(self._writers):
                    try:
                        if (writer := reference()) is not None:
                            writer.close_by(ends)
                    except Unacknowledged as problem:
                        failure = failure or problem
            finally:
                self.connection.close()
        if failure is not None:
            raise failure

    def after(self, timeout_s: float) -> list[tuple[int, int]]:
        """Returns the messages that the server must apply before a call of this handle.

        The call then sees the steps that the handle wrote before. Waits for the lanes that a streaming writer opens
        again after a failure: at most timeout_s and at most a second, once for each lost stream.
        """
        pairs = []
        ends = time.monotonic() + min(LANES_S, timeout_s)
        for reference in list(self._writers):
            writer = reference()
            if writer is None or writer.closed:
                self._writers.pop(reference, None)
            elif (pair := writer.unseen(ends)) is not None:
                pairs.append(pair)
        return pairs

    def start(self, call: str, *values: Any) -> Started:
        """Sends the message of a simple call (relive.core.table_core.SimpleCalls)."""
        header, arrays = asking(VERBS[call], values)
        return Started(self._start(header, tuple(arrays)), lambda answer: answer.header["value"])

    def tell(
        self, header: dict[str, Any], timeout_s: float, parts: tuple[Any, ...] = (), waits_for_steps: bool = False
    ) -> dict[str, Any]:
        """Sends a message about the table as a whole, and returns the header of the answer.

        waits_for_steps: the server answers after it has applied the steps that this handle sent before.
        """
        after, timeout_s = self._after(timeout_s) if waits_for_steps else ([], timeout_s)
        message = self._encode(header, parts, timeout_s, after)
        return Asking(self.connection, header["op"], message, cutoff(timeout_s), None, 0).take(at_once=True).header

    def _ask(self, verb: Verb, header: dict[str, Any], arrays: list[Any]) -> Any:
        return self._call(header, tuple(arrays)).header["value"]

    def _call(
        self,
        header: dict[str, Any],
        parts: tuple[Any, ...] = (),
        timeout_s: float | None = None,
        packing: Packing | None = None,
        count: int = 0,
    ) -> Answer:
        return self._start(header, parts, timeout_s, packing, count).take()

    def _start(
        self,
        header: dict[str, Any],
        parts: tuple[Any, ...] = (),
        timeout_s: float | None = None,
        packing: Packing | None = None,
        count: int = 0,
    ) -> Asking:
        after, seconds = self._after(self.timeout_s if timeout_s is None else timeout_s)
        message = self._encode(header, parts, seconds, after)
        return Asking(self.connection, header["op"], message, cutoff(seconds), packing, count)

    def _after(self, timeout_s: float) -> tuple[list[tuple[int, int]], float]:
        """Returns after(), and the seconds that the call has left."""
        if self.connection.closed:
            raise TableClosed()
        if not self._writers:
            return [], timeout_s
        began = time.monotonic()
        after = self.after(timeout_s)
        waited_s = time.monotonic() - began
        return after, timeout_s if waited_s < _NO_WAIT_S else max(timeout_s - waited_s, 0.0)

    @staticmethod
    def _encode(
        header: dict[str, Any], parts: tuple[Any, ...], timeout_s: float, after: list[tuple[int, int]]
    ) -> bytes:
        header.setdefault("timeout_s", server_wait(timeout_s))
        if after:
            header["after"] = after
        return framing.encode(header, *parts)


def _block(answer: Answer) -> framing.Bytes:
    assert answer.block is not None  # the call has a packing
    return answer.block


def remote_core(connection: Connection, hello: dict[str, Any], timeout_s: float | None) -> RemoteCore:
    """Makes the core of the table that answered with this hello."""
    return RemoteCore(connection, hello, timeout_s)  # type: ignore[abstract]  # answered_by_messages adds the simple calls


if TYPE_CHECKING:

    def _is_a_core_of_a_table(core: RemoteCore) -> TableCore:
        return core
