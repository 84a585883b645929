"""One served table: its description for the handshake, and the progress of the clients that write to it."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from relive._core import CoreSelection
from relive.errors import BadMessage, DeadlineExceeded, FormatMismatch, InvalidConfig, ServiceUnavailable
from relive.service.parameters.store import ParameterStore
from relive.service.server.budget import Budget
from relive.service.server.saves import Saves
from relive.service.wire.framing import VERSION, field
from relive.service.wire.options import ServerOptions
from relive.service.wire.packing import PackedArray, Packing, sampled
from relive.table.table import Table

__all__ = ["SLICE_S", "Applied", "Counts", "Hosted", "HostedSelection", "Memory", "Offer", "check_version"]

Value = TypeVar("Value")
Offer = Callable[[], tuple[dict[str, Any], bytes]]  # fields of JSON and bytes, made at each request

SLICE_S = 0.5  # how long a call waits in the core before the server checks whether the client still waits
_MAX_AFTER = 1 << 16  # pairs of one message, one for each streaming writer of the handle
_MAX_SELECTIONS = 256
_NUMBER_BITS = 48  # of the number of a server's first stream


class HostedSelection(NamedTuple):
    """Columns of an index, and how the columns lie in a reply: alone, or in a sample with keys and probabilities.

    `item_bytes`: the most bytes of one item.
    """

    core: CoreSelection
    gathered: Packing
    sampled: Packing
    item_bytes: int


@final
class Applied:
    """Counts the applied messages of one writing client. Other calls of that client wait for the count."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._applied = 0  # number of the last finished message
        self._waiting = False  # the writer waits for the limiter: no call may wait for the writer then
        self._ended = False

    def advance(self, sequence: int) -> None:
        """Marks the messages up to this number as finished."""
        with self._changed:
            self._applied = max(self._applied, sequence)
            self._waiting = False
            self._changed.notify_all()

    def begin_wait(self) -> None:
        """Marks the current message as waiting for the limiter."""
        with self._changed:
            self._waiting = True
            self._changed.notify_all()

    def end(self) -> None:
        """Says that no further message will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wait_for(self, sequence: int, timeout_s: float) -> None:
        """Blocks until the message is finished, or is known not to finish soon. Raises DeadlineExceeded."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._applied >= sequence or self._waiting or self._ended, timeout_s):
                raise DeadlineExceeded("the steps that this client sent before", "", timeout_s)


@final
class Counts:
    """Counts of open and busy streams, and whether the server takes new ones.

    The counts are not part of the server: an object that keeps a stream alive must not keep the server alive.
    """

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self.num_streams = 0
        self.num_busy = 0
        self.drains = False

    def streams(self, change: int) -> None:
        """Adds `change` to the number of open streams."""
        with self._changed:
            self.num_streams += change

    def busy(self, change: int) -> None:
        """Adds `change` to the number of streams that work on a message."""
        with self._changed:
            self.num_busy += change


@final
class Memory:
    """The budgets of a server: of the work of requests, of the answers that are not read yet, and of draws in flight.

    Answers and draws have a budget each, so that a client that settles no draw delays no answer.
    """

    def __init__(self, options: ServerOptions) -> None:
        self.work = Budget("max_work_bytes", options.max_work_bytes, options.max_work_bytes)
        per_client = options.max_inflight_bytes_per_client
        self.inflight = Budget("max_inflight_bytes", options.max_inflight_bytes, per_client)
        self.draws = Budget("max_inflight_bytes", options.max_inflight_bytes, per_client, "draws in flight")


def check_version(request: dict[str, Any]) -> None:
    """Refuses a client of another version or byte order. Raises FormatMismatch."""
    expected = {"relive": VERSION, "byte_order": sys.byteorder}
    for name, own in expected.items():
        if request.get(name) != own:
            raise FormatMismatch(f"service {name}", own, request.get(name))


@final
class Hosted:
    """A served table with the parameters beside the table, and its saves.

    All sessions of the table share it, from any number of threads.
    """

    def __init__(self, name: str, table: Table, closing: threading.Event, options: ServerOptions) -> None:
        self.name = name
        self.table = table
        self.closing = closing
        self.parameters = ParameterStore(name, options.max_parameter_bytes)
        self.saves = Saves(name, table, None if options.saves is None else os.fspath(options.saves))
        geometry = table.core.geometry
        self._identity = {"uuid": geometry["uuid"].hex(), "layout_hash": str(geometry["layout_hash"])}
        self._metadata = table.core.metadata.decode()
        loaded = table.loaded
        self._saved_uuid = loaded.facts.get("region") if loaded is not None and loaded.keeps_keys else None
        self.memory: Memory = Memory(options)  # the server replaces it by the one of all its tables
        self.observe: Callable[[str, str, str, float], None] | None = None  # notes how long a call took
        self.life: Any = None  # relive.service.server.life.Life: removes tables, and drains the server
        self.offers: dict[str, Offer] = {}  # further facts about the table, which clients request by name
        # A message may name a stream of the server before this one. That number must not be of another stream here.
        self._numbers = itertools.count(secrets.randbits(_NUMBER_BITS))
        self.lending: dict[int, Any] = {}  # sessions of shards that have draws in flight, by their number
        self._applied_by: dict[int, Applied] = {}
        self._selections: dict[tuple[Any, ...], HostedSelection] = {}

    # ---- handshake -------------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        """Returns the facts that a client receives when it connects."""
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
        for name, mine in self._identity.items():
            told = field(request, name, (str, type(None)))
            if name == "uuid" and told is not None and told == self._saved_uuid:
                continue  # its keys name the same rows here, and no key that it got after the save comes again
            if told is not None and told != mine:
                raise FormatMismatch(f"{name} of table {self.name!r}", told, mine, replaced=True)
        spec = field(request, "spec", (str, type(None)))
        if spec is not None and spec != self.table.spec.to_json():
            raise InvalidConfig(f"spec of table {self.name!r}", spec, self.table.spec.to_json())

    def next_number(self) -> int:
        """Returns a number for a stream that other streams refer to."""
        return next(self._numbers)

    # ---- order among the calls of one client -----------------------------------------------------------------------

    def open_writing(self) -> tuple[int, Applied]:
        """Returns a number for a new writing session, and the session's progress."""
        number, applied = self.next_number(), Applied()
        self._applied_by[number] = applied
        return number, applied

    def end_writing(self, number: int) -> None:
        """Marks the writing session as ended."""
        self._applied_by.pop(number).end()

    def wait_for(self, after: Any, timeout_s: float, gone: Callable[[], bool]) -> None:
        """Blocks until the messages [[session, sequence], ...] of this client are finished.

        The call does not wait for a session that has ended or that waits for the limiter. Raises BadMessage,
        DeadlineExceeded, and ServiceUnavailable if the client is gone or the server closes.
        """
        if not isinstance(after, list) or len(after) > _MAX_AFTER:
            raise BadMessage("header field 'after'", f"at most {_MAX_AFTER} pairs", type(after).__name__)
        start = time.monotonic()
        for pair in after:
            if not (isinstance(pair, list) and len(pair) == 2 and all(type(part) is int for part in pair)):
                raise BadMessage("header field 'after'", "pairs of integers", str(pair)[:40])
            applied = self._applied_by.get(pair[0])
            left = max(timeout_s - (time.monotonic() - start), 0.1)
            if applied is not None:
                self.wait(partial(applied.wait_for, pair[1]), left, gone)

    # ---- waiting ---------------------------------------------------------------------------------------------------

    def wait(self, call: Callable[[float], Value], timeout_s: float, gone: Callable[[], bool]) -> Value:
        """Repeats call(slice_s) until a call does not exceed its slice, or until the deadline.

        Between slices, the method checks whether the client is gone or the server closes, and then raises
        ServiceUnavailable. If a slice did a part of the work (rows of a block), `call` must remember that part: its
        next slice does the rest. A wait for the table's lock is not repeated.
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
        """Returns the name of an index. Raises BadMessage."""
        names = tuple(self.table.indexes)
        if not 0 <= number < len(names):
            raise BadMessage("header field 'index'", f"0 to {len(names) - 1}", number)
        return names[number]

    def counts_uses(self, number: int) -> bool:
        """Returns whether the items of an index have a number of uses."""
        return list(self.table.config.index.values())[number].max_times_sampled is not None

    def select(self, number: int, names: Any) -> HostedSelection:
        """Returns the selection of an index and column names; after the last index comes the number of the steps.

        Raises BadMessage, and the core's errors about the names.
        """
        if not (isinstance(names, list) and len(names) <= 4096 and all(isinstance(name, str) for name in names)):
            raise BadMessage("header field 'names'", "up to 4096 names of columns", type(names).__name__)
        key = (number, *names)
        selection = self._selections.get(key)
        if selection is None:
            are_steps = number == len(self.table.indexes)
            num_rows = 1 if are_steps else self.table.indexes[self.index_name(number)].items.num_rows
            core = self.table.core.select(number, names)
            outputs = [
                PackedArray(name, np.dtype(dtype), tuple(shape), axis, per)
                for name, dtype, shape, axis, per in core.outputs
            ]
            packing = Packing(outputs)
            item_bytes = packing.item_bytes(num_rows)
            selection = HostedSelection(core, packing, sampled(outputs), item_bytes)
            if len(self._selections) < _MAX_SELECTIONS:
                self._selections[key] = selection
        return selection
