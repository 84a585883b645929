"""The server's side of a writer: lanes that live as long as the stream, and messages of rows, applied in order."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from relive.core.roles import Needed
from relive.errors import BadMessage, DeadlineExceeded, ReliveError, ServiceUnavailable
from relive.service.server.budget import FREE_BYTES
from relive.service.server.guard import Permit
from relive.service.server.hosting import Hosted
from relive.service.server.pipe import SMALL_BYTES, Pipe
from relive.service.server.room import Room, Within
from relive.service.server.sessions import Header, Session
from relive.service.wire import framing
from relive.service.wire.encoding import check_num_keys
from relive.service.wire.framing import Bytes
from relive.service.wire.options import ServerOptions
from relive.service.wire.rows import RowLayout
from relive.writing.writer import Writer

__all__ = ["WriteSession"]

_KEY_BYTES = 8
_MAX_OPS = 4096
_ROWS_AT_ONCE = 256  # as many rows as the core writes in one critical section of the table's lock


@final
class _Rows:
    """Rows of a block that are not stored yet. A write that is refused in the middle leaves the remaining rows here."""

    def __init__(self, columns: dict[str, Any], num_steps: int, layout: RowLayout) -> None:
        self._layout = layout
        self._blocks = deque([(columns, num_steps)])

    def write(self, writer: Writer, timeout_s: float, keys: list[npt.NDArray[np.int64]]) -> None:
        """Writes the rows. The keys of all stored rows go to `keys`. After an error the other rows remain."""
        while self._blocks:
            columns, num_steps = self._blocks[0]
            try:
                keys.append(writer.extend(**columns, timeout_s=timeout_s))
            except ReliveError as problem:
                if problem.keys is not None:
                    keys.append(problem.keys)
                    self._blocks.popleft()
                    self._blocks.extendleft(reversed(self._after(columns, num_steps, problem.stored)))
                raise
            self._blocks.popleft()

    def one_by_one(self) -> Iterator[_Rows]:
        """Yields each step alone."""
        for columns, num_steps in self._blocks:
            for step in range(num_steps):
                yield _Rows(self._steps(columns, num_steps, step, step + 1), 1, self._layout)

    def _after(self, columns: dict[str, Any], num_steps: int, stored: int) -> list[tuple[dict[str, Any], int]]:
        """Returns the rest of a block: the other lanes of a step that some lanes have stored, then the steps after that
        step.
        """
        lanes = columns.get("lanes")
        ids = np.arange(self._layout.width, dtype=np.int32) if lanes is None else lanes
        step, lane = divmod(stored, max(len(ids), 1))
        left = []
        if lane:
            one = self._steps(columns, num_steps, step, step + 1)
            left.append(({name: array[:, lane:] for name, array in one.items() if name != "lanes"}, 1))
            left[0][0]["lanes"] = ids[lane:]
            step += 1
        if step < num_steps:
            left.append((self._steps(columns, num_steps, step, num_steps), num_steps - step))
        return left

    def _steps(self, columns: dict[str, Any], num_steps: int, begin: int, end: int) -> dict[str, Any]:
        """Returns those steps of a block.

        The last step of the block includes the state after it, if the block has that state.
        """
        last = end + 1 if end == num_steps else end
        cut = {name: array[begin : last if name in self._layout.states else end] for name, array in columns.items()}
        return cut if "lanes" not in columns else {**cut, "lanes": columns["lanes"]}


@final
class WriteSession(Session):
    """Applies messages of numbered operations: rows appended one by one or as a block, ends of episodes, versions.

    The session applies the operations in order, and answers with the keys of the stored rows. After an error the
    session drops the rest of the message and every later message of the same epoch. The client learns of the error and
    begins a new epoch. Rows that were sent after a failed step therefore never overtake that step.
    """

    ROLES = {"append": "append", "extend": "append", "end": "append", "abandon": "append", "version": "append"}

    def __init__(self, pipe: Pipe, hosted: Hosted, options: ServerOptions, permit: Permit, request: Header) -> None:
        super().__init__(pipe, hosted, options, permit)
        num_lanes = framing.field(request, "num_lanes", (int, type(None)))
        self._writer: Writer = hosted.table.writer(num_lanes)
        self._layout = RowLayout(hosted.table.spec, num_lanes)
        self._max_keys = max(options.max_reply_bytes // _KEY_BYTES, 1)
        self._number, self._applied = hosted.open_writing()
        self._failed_epoch = -1
        self._keys: list[npt.NDArray[np.int64]] = []
        self._rooms = ExitStack()  # has the memory of a message until its keys are sent
        self._within: Within = _at_once  # makes a call within the budget of the message's bytes

    def begin(self) -> Header:
        """Returns the session's number, which the client's other calls refer to, and the most keys of an answer."""
        return {"session": self._number, "max_keys": self._max_keys}

    def role_of(self, header: Header) -> Needed:
        """Returns the role of every message: each lists several ops."""
        return "append"

    def label_of(self, header: Header) -> str:
        """Returns the name of every message in the metrics. An "op" of the header itself has no meaning."""
        return "write"

    def end(self) -> None:
        """Cuts the client's lanes: the client is gone or done."""
        try:
            self._writer.close()
        finally:
            self.hosted.end_writing(self._number)

    def refuse(self, header: Header, problem: Exception) -> None:
        """Answers a message with an error and the message's number, if the message had a number."""
        self.pipe.send({"error": framing.error_to(problem), "seq": header.get("seq", -1)})

    def handle(self, header: Header, body: Bytes) -> None:
        """Applies one message and answers it."""
        sequence = framing.whole(header, "seq", 0, 2**62)
        epoch = framing.whole(header, "epoch", 0, 2**62)
        self._keys = []
        try:
            if epoch == self._failed_epoch:
                self.pipe.send({"seq": sequence, "dropped": True})
                return
            with self._rooms:
                answer: Header = {"seq": sequence}
                try:
                    if self.hosted.closing.is_set():
                        # A client takes this error as the end of its lanes: no row may follow in those lanes.
                        raise ServiceUnavailable(self.hosted.name, 0.0, "the server closes")
                    self._apply(header, body)
                except Exception as problem:  # sent to the client, with the keys of the stored rows
                    self._failed_epoch = epoch
                    answer["error"] = framing.error_to(problem)
                self._answer(answer)
        finally:
            self._keys, self._within = [], _at_once
            self._applied.advance(sequence)

    def _answer(self, answer: Header) -> None:
        if sum(keys.nbytes for keys in self._keys) <= SMALL_BYTES:
            self.pipe.send(answer, *self._keys)
        else:
            self.pipe.gives_up = math.inf  # as in HoldSession: a streaming writer may read the keys later
            self.pipe.send_buffers(answer, [pa.py_buffer(keys) for keys in self._keys])

    def _apply(self, header: Header, body: Bytes) -> None:
        ops = framing.field(header, "ops", list)
        if len(ops) > _MAX_OPS or not all(isinstance(op, dict) for op in ops):
            raise BadMessage("header field 'ops'", f"at most {_MAX_OPS} operations", len(ops))
        timeout_s = framing.seconds(header)
        self.pipe.patience_s = max(timeout_s, 1.0)
        sizes = [self._layout.num_bytes(op) for op in ops]
        if sum(sizes) != len(body):
            raise BadMessage("body", f"{sum(sizes)} bytes"[:60], len(body))
        num_keys = sum(self._layout.num_keys(op) for op in ops)
        check_num_keys(num_keys, self._max_keys)
        needed = num_keys * _KEY_BYTES, len(body)
        if sum(needed) >= FREE_BYTES:
            memory, client = self.hosted.memory, self.permit.client
            room = Room(memory, client, self.pipe, needed, timeout_s, has_stored=lambda: bool(self._keys))
            self._within = self._rooms.enter_context(room)
        self._apply_all(ops, sizes, body, timeout_s)

    def _apply_all(self, ops: list[Header], sizes: list[int], body: Bytes, timeout_s: float) -> None:
        at = 0
        for op, size in zip(ops, sizes, strict=True):
            self._apply_one(op, body[at : at + size], timeout_s)
            at += size

    def _apply_one(self, op: Header, body: Bytes, timeout_s: float) -> None:
        what = framing.field(op, "op", str)
        if what == "version":
            self._writer.set_policy_version(framing.field(op, "version", (int, type(None))))
            return
        columns = self._layout.columns(op, body)
        if what == "end":
            columns["terminated"] = framing.field(op, "terminated", bool)
            self._waited(lambda slice_s: self._writer.end_episode(**columns, timeout_s=slice_s), timeout_s)
        elif what == "abandon":
            self._waited(lambda slice_s: self._writer.abandon(**columns, timeout_s=slice_s), timeout_s)
        elif what == "extend":
            self._extend(_Rows(columns, framing.whole(op, "rows", 0, 2**31 - 1), self._layout), timeout_s)
        else:
            self._append(columns, framing.whole(op, "rows", 1, 2**31 - 1), timeout_s)

    # ---- rows ------------------------------------------------------------------------------------------------------

    def _extend(self, rows: _Rows, timeout_s: float) -> None:
        self._waited(lambda slice_s: rows.write(self._writer, slice_s, self._keys), timeout_s)

    def _append(self, columns: dict[str, Any], num_rows: int, timeout_s: float) -> None:
        """Writes rows that were appended one by one: together if all rows pass at once, else row by row."""
        lanes = columns.pop("lanes", None)
        width = self._layout.width if lanes is None else max(len(lanes), 1)
        at_once = max(_ROWS_AT_ONCE // width, 1)
        for first in range(0, num_rows, at_once):
            count = min(at_once, num_rows - first)
            some = {name: array[first : first + count] for name, array in columns.items()}
            rows = _Rows(some if lanes is None else {**some, "lanes": lanes}, count, self._layout)
            try:
                self._within(partial(rows.write, self._writer, 0.0, self._keys))
                continue
            except DeadlineExceeded as problem:
                if problem.holder_pid is not None:
                    raise
            except ReliveError:
                pass  # writing row by row finds the refused row
            begin = len(self._keys)
            for row in rows.one_by_one():
                if self.pipe.gone():
                    raise ServiceUnavailable(self.hosted.name, 0.0, "the client has given up the stream")
                self._extend(row, timeout_s)
            if len(self._keys) > begin:  # an array costs more than its key
                self._keys[begin:] = [np.concatenate(self._keys[begin:], axis=None)]

    def _waited(self, write: Any, timeout_s: float) -> Any:
        """Tries the write at once, then waits for the limiter. The first try may wait for memory until the deadline.

        Calls that wait for this writer's rows are told to stop waiting.
        """
        began = time.monotonic()
        try:
            return self._within(partial(write, 0.0))
        except DeadlineExceeded as problem:
            left_s = timeout_s - (time.monotonic() - began)
            if left_s <= 0.0 or problem.holder_pid is not None:
                raise
        self._applied.begin_wait()
        return self.hosted.wait(lambda slice_s: self._within(partial(write, slice_s)), left_s, self.pipe.gone)


def _at_once(call: Callable[[], Any]) -> Any:
    return call()
