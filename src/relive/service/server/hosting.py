"""One table as a server holds it: what is said of it at a handshake, and who is writing to it."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from relive._core import CoreSelection
from relive.errors import BadMessage, DeadlineExceeded, FormatMismatch, InvalidConfig, ServiceUnavailable
from relive.service.parameters.store import ParameterStore
from relive.service.wire.framing import VERSION, field
from relive.service.wire.packing import PackedArray, Packing, sampled
from relive.table.table import Table

__all__ = ["Applied", "Hosted", "HostedSelection", "Offer"]

Value = TypeVar("Value")
Offer = Callable[[], tuple[dict[str, Any], bytes]]  # fields of JSON and bytes, made when they are asked for

SLICE_S = 0.5  # how long a call waits in the core before the server looks whether anybody still wants its answer
_MAX_AFTER = 64
_MAX_SELECTIONS = 256


class HostedSelection(NamedTuple):
    """Columns of an index, and how they lie in a reply: alone, and of a sample with its keys and probabilities.

    item_bytes: of one item, at most.
    """

    core: CoreSelection
    gathered: Packing
    sampled: Packing
    item_bytes: int


@final
class Applied:
    """How far the messages of one writing client are applied; other calls of that client wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._applied = 0  # number of the last message that is done with
        self._waiting = False  # the writer waits for the limiter: who waits for the writer must not
        self._ended = False

    def advance(self, sequence: int) -> None:
        """Messages up to this one are done with."""
        with self._changed:
            self._applied = max(self._applied, sequence)
            self._waiting = False
            self._changed.notify_all()

    def begin_wait(self) -> None:
        """The message in hand waits for the limiter."""
        with self._changed:
            self._waiting = True
            self._changed.notify_all()

    def end(self) -> None:
        """No message comes any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, sequence: int, timeout_s: float) -> bool:
        """Blocks until the message is done with, or will not be soon; False at the deadline."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._applied >= sequence or self._waiting or self._ended,
                None if timeout_s == float("inf") else timeout_s,
            )


@final
class Hosted:
    """A table that is served, with the parameters beside it, shared by all sessions on it. Any number of threads."""

    def __init__(self, name: str, table: Table, closing: threading.Event, max_parameter_bytes: int) -> None:
        self.name = name
        self.table = table
        self.closing = closing
        self.parameters = ParameterStore(name, max_parameter_bytes)
        geometry = table.core.geometry
        self._identity = {"uuid": geometry["uuid"].hex(), "layout_hash": str(geometry["layout_hash"])}
        self._metadata = table.core.metadata.decode()
        self.offers: dict[str, Offer] = {}  # what else is told of the table to who asks for it by name
        self._numbers = itertools.count(1)
        self._applied_by: dict[int, Applied] = {}
        self._selections: dict[tuple[Any, ...], HostedSelection] = {}

    # ---- handshake -------------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """What a client learns of the table when it connects."""
        return {
            "relive": VERSION,
            "byte_order": sys.byteorder,
            **self._identity,
            "metadata": self._metadata,
            "stream": self.table.stream,
            "read_only": self.table.read_only,
        }

    def check(self, request: dict[str, Any]) -> None:
        """Refuses a client that expects another table. Raises FormatMismatch, InvalidConfig, BadMessage."""
        expected = {"relive": VERSION, "byte_order": sys.byteorder}
        for name, own in expected.items():
            if request.get(name) != own:
                raise FormatMismatch(f"service {name}", own, request.get(name))
        for name, mine in self._identity.items():
            told = field(request, name, (str, type(None)))
            if told is not None and told != mine:
                raise FormatMismatch(f"table {self.name!r} {name}", told, mine)
        spec = field(request, "spec", (str, type(None)))
        if spec is not None and spec != self.table.spec.to_json():
            raise InvalidConfig(f"spec of table {self.name!r}", spec, self.table.spec.to_json())

    def next_number(self) -> int:
        """For a stream that others speak of."""
        return next(self._numbers)

    # ---- order among the calls of one client -----------------------------------------------------------------------

    def open_writing(self) -> tuple[int, Applied]:
        """A number for a new writing session, and its progress."""
        number, applied = self.next_number(), Applied()
        self._applied_by[number] = applied
        return number, applied

    def end_writing(self, number: int) -> None:
        """The session is over."""
        self._applied_by.pop(number).end()

    def wait_for(self, after: Any, timeout_s: float) -> None:
        """Blocks until the messages [[session, sequence], ...] of this client are done with. Raises DeadlineExceeded.

        A session that is over, or that waits for the limiter, is not waited for.
        """
        if not isinstance(after, list) or len(after) > _MAX_AFTER:
            raise BadMessage("header field 'after'", f"at most {_MAX_AFTER} pairs", type(after).__name__)
        start = time.monotonic()
        for pair in after:
            if not (isinstance(pair, list) and len(pair) == 2 and all(type(part) is int for part in pair)):
                raise BadMessage("header field 'after'", "pairs of integers", str(pair)[:40])
            applied = self._applied_by.get(pair[0])
            left = max(timeout_s - (time.monotonic() - start), 0.1)
            if applied is not None and not applied.wait_for(pair[1], left):
                raise DeadlineExceeded("the steps that this client sent before", "", time.monotonic() - start)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, call: Callable[[float], Value], timeout_s: float, gone: Callable[[], bool]) -> Value:
        """call(slice_s) again and again until it does not exceed its slice, or the deadline is there.

        Between slices it looks whether the client is gone or the server closes; then ServiceUnavailable. A slice that
        did a part of the work (rows of a block) is the caller's to remember: its next one does the rest. A wait for the
        table's lock is not repeated.
        """
        start = time.monotonic()
        while True:
            left = timeout_s - (time.monotonic() - start)
            try:
                return call(max(min(left, SLICE_S), 0.0))
            except DeadlineExceeded as problem:
                waited_s = time.monotonic() - start
                if problem.holder_pid is not None or waited_s >= timeout_s:
                    raise type(problem)(problem.needs, problem.has, waited_s, problem.holder_pid) from None
                if gone() or self.closing.is_set():
                    raise ServiceUnavailable(self.name, waited_s, "the server closes") from None

    # ---- columns ---------------------------------------------------------------------------------------------------

    def index_name(self, number: int) -> str:
        """The name of an index. Raises BadMessage."""
        names = tuple(self.table.indexes)
        if not 0 <= number < len(names):
            raise BadMessage("header field 'index'", f"0 to {len(names) - 1}", number)
        return names[number]

    def select(self, number: int, names: Any) -> HostedSelection:
        """The selection of an index and column names. Raises BadMessage, and what the core says of the names."""
        if not (isinstance(names, list) and 0 < len(names) <= 4096 and all(isinstance(name, str) for name in names)):
            raise BadMessage("header field 'names'", "1 to 4096 names of columns", type(names).__name__)
        key = (number, *names)
        selection = self._selections.get(key)
        if selection is None:
            items = self.table.indexes[self.index_name(number)].items
            core = self.table.core.select(number, names)
            outputs = [
                PackedArray(name, np.dtype(dtype), tuple(shape), axis, per)
                for name, dtype, shape, axis, per in core.outputs
            ]
            packing = Packing(outputs)
            item_bytes = packing.item_bytes(items.num_rows)
            selection = HostedSelection(core, packing, sampled(outputs), item_bytes)
            if len(self._selections) < _MAX_SELECTIONS:
                self._selections[key] = selection
        return selection
