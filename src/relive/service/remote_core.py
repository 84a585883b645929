"""What a table asks of its core, answered by a server: the face above is the same class as for a local table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from relive.config import TableConfig
from relive.errors import TableClosed, Unacknowledged
from relive.service import wire
from relive.service.connection import Answer, Connection, cutoff, server_wait
from relive.service.encoding import Normalise, RowEncoder
from relive.service.packing import DRAWN, Output, Packing, gathered, sampled
from relive.service.remote_writer import SyncWriterCore, WriterCore

__all__ = ["RemoteCore", "RemotePlan"]

Keys = npt.NDArray[np.int64]
Arrays = list[npt.NDArray[Any]]

_MAX_REQUESTS = 16  # of a plan, remembered as they are sent


class RemotePlan(NamedTuple):
    """What to gather from which index, and how answers lie. requests: messages by number of items and timeout_s."""

    number: int
    names: list[str]
    outputs: list[tuple[str, str, tuple[int, ...]]]
    sampled: Packing
    gathered: Packing
    requests: dict[tuple[int, float], bytes]


@final
class RemoteCore:
    """The calls of a core, each one message and its answer. Any number of threads.

    A call that has no timeout_s of its own waits for its answer at most the handle's default.
    """

    def __init__(self, connection: Connection, hello: dict[str, Any], timeout_s: float | None) -> None:
        self.connection = connection
        self.metadata = wire.field(hello, "metadata", str).encode()
        config = TableConfig.from_metadata(self.metadata)
        self.spec = config.spec
        self.stream: int = wire.field(hello, "stream", int)
        self.read_only: bool = wire.field(hello, "read_only", bool)
        self.timeout_s = config.timeout_s if timeout_s is None else timeout_s
        self._writers: set[WriterCore] = set()  # those that are not closed; lanes last until their writer is

    # ---- reading ---------------------------------------------------------------------------------------------------

    def plan(self, index: int, names: list[str]) -> RemotePlan:
        """Asks the server what these columns look like. Raises UnknownColumn and the like."""
        header, _ = self._call({"op": "plan", "index": index, "names": names})
        outputs = [(str(name), str(dtype), tuple(shape)) for name, dtype, shape in header["outputs"]]
        typed = [Output(name, np.dtype(dtype), shape) for name, dtype, shape in outputs]
        return RemotePlan(index, names, outputs, sampled(typed), gathered(typed), {})

    def sample(
        self, plan: RemotePlan, num_items: int, timeout_s: float, hold: bool
    ) -> tuple[Arrays, Keys, npt.NDArray[np.float64], int]:
        """One batch. hold is what a stream of batches does; see RemoteBatches."""
        after = self._after()
        message = None if after else plan.requests.get((num_items, timeout_s))
        if message is None:
            header = {"op": "sample", "index": plan.number, "names": plan.names, "n": num_items}
            message = self._encode(header, (), timeout_s, after)
            if not after and len(plan.requests) < _MAX_REQUESTS:
                plan.requests[num_items, timeout_s] = message
        told, block = self.connection.call("sample", message, cutoff(timeout_s), plan.sampled, num_items)
        assert block is not None and not hold
        *arrays, keys, probabilities = plan.sampled.arrays(block, num_items)
        return arrays, keys, probabilities, told["live"]

    def draw(self, index: int, num_items: int, timeout_s: float) -> tuple[Keys, npt.NDArray[np.float64], int]:
        """Keys and probabilities."""
        told, block = self._call({"op": "draw", "index": index, "n": num_items}, (), timeout_s, DRAWN, num_items)
        assert block is not None
        keys, probabilities = DRAWN.arrays(block, num_items)
        return keys, probabilities, told["live"]

    def gather(
        self, plan: RemotePlan, keys: Keys, out: Sequence[npt.NDArray[Any]] | None
    ) -> tuple[Arrays, npt.NDArray[np.bool_]]:
        """Columns by key; into `out` where that is given."""
        count = len(keys)
        header = {"op": "gather", "index": plan.number, "names": plan.names, "n": count}
        _, block = self._call(header, (np.ascontiguousarray(keys),), None, plan.gathered, count)
        assert block is not None
        *arrays, present = plan.gathered.arrays(block, count)
        if out is None:
            return arrays, present
        for target, array in zip(out, arrays, strict=True):
            np.copyto(target, array)
        return list(out), present

    # ---- changing --------------------------------------------------------------------------------------------------

    def update_priorities(self, index: int, keys: Keys, priorities: npt.NDArray[Any]) -> int:
        """float32 priorities travel as they are, all others as float64."""
        single = priorities.dtype == np.float32
        values = np.ascontiguousarray(priorities, np.float32 if single else np.float64)
        header = {"op": "update", "index": index, "n": len(keys), "single": single}
        return int(self._call(header, (np.ascontiguousarray(keys), values)).header["value"])

    def delete(self, keys: Keys) -> int:
        """Removes steps by key."""
        return int(self._call({"op": "delete", "n": len(keys)}, (keys,)).header["value"])

    def clear(self) -> None:
        """Removes all steps."""
        self._call({"op": "clear"})

    def set_policy_version(self, version: int) -> None:
        """The table's version."""
        self._call({"op": "set_policy_version", "version": version})

    # ---- looking ---------------------------------------------------------------------------------------------------

    def num_steps(self) -> int:
        """Live steps."""
        return int(self._call({"op": "get", "what": "num_steps"}).header["value"])

    def num_items(self, index: int) -> int:
        """Live items."""
        return int(self._call({"op": "get", "what": "num_items", "index": index}).header["value"])

    @property
    def policy_version(self) -> int:
        """The table's version."""
        return int(self._call({"op": "get", "what": "policy_version"}).header["value"])

    def stats(self) -> dict[str, Any]:
        """As the core counts."""
        counted: dict[str, Any] = self._call({"op": "get", "what": "stats"}).header["value"]
        return counted

    def check(self) -> None:
        """Checks the invariants over there."""
        self._call({"op": "check"})

    # ---- writing and the handle ------------------------------------------------------------------------------------

    def open_writer(self, num_lanes: int, single: bool, normalise: Normalise) -> SyncWriterCore:
        """Lanes over there, whose every call is answered before it returns."""
        writer = SyncWriterCore(self.connection, RowEncoder(self.spec, num_lanes, single, normalise), self.timeout_s)
        self.add_writer(writer)
        return writer

    def add_writer(self, writer: WriterCore) -> None:
        """Remembers a writer: it closes with the table, and other calls see what it sent before."""
        self._writers.add(writer)

    @property
    def path(self) -> str:
        """The address of the table."""
        return self.connection.address

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self.connection.closed

    def close(self) -> None:
        """Closes the writers, then every stream. Raises Unacknowledged after that, where a streaming writer did."""
        failure: Unacknowledged | None = None
        if not self.connection.closed:
            for writer in list(self._writers):
                try:
                    writer.close()
                except Unacknowledged as problem:
                    failure = failure or problem
            self.connection.close()
        if failure is not None:
            raise failure

    def after(self) -> list[tuple[int, int]]:
        """What has to be applied before a call of this handle, so that it sees what the handle wrote before."""
        self._writers = {writer for writer in self._writers if not writer.closed}
        return [pair for writer in self._writers if (pair := writer.unseen()) is not None]

    def _call(
        self,
        header: dict[str, Any],
        parts: tuple[Any, ...] = (),
        timeout_s: float | None = None,
        packing: Packing | None = None,
        count: int = 0,
    ) -> Answer:
        after = self._after()
        seconds = self.timeout_s if timeout_s is None else timeout_s
        message = self._encode(header, parts, seconds, after)
        return self.connection.call(header["op"], message, cutoff(seconds), packing, count)

    def _after(self) -> list[tuple[int, int]]:
        if self.connection.closed:
            raise TableClosed()
        return self.after() if self._writers else []

    @staticmethod
    def _encode(
        header: dict[str, Any], parts: tuple[Any, ...], timeout_s: float, after: list[tuple[int, int]]
    ) -> bytes:
        header["timeout_s"] = server_wait(timeout_s)
        if after:
            header["after"] = after
        return wire.encode(header, *parts)
