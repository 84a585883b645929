"""Lets the ranks of a torch.distributed group draw together, or share one rank's batches, by the group's collectives.

A draw sends 88 bytes if each rank has one shard (agreement.py). These bytes go over gloo even if gradients go over
NCCL: the default group of a machine with GPUs has both ("cpu:gloo,cuda:nccl").

Protocol:

- Every rank makes the calls of an exchange in the same order.
- A call is one all_gather of equal blocks. A block is the length, the bytes, and padding up to the longest block of
  any call so far. If one rank has more bytes, all ranks see its length, make room, and gather once more.
- A rank that waits longer than a moment writes the number of its call into the group's store. A rank that gives up
  names the ranks that did not write it.
- A call that is given up stays posted, with its memory. The next all_gather of that rank over the group is the retry:
  it waits for the posted call, with the bytes that the rank gave then, because the late rank may have these bytes
  already. So calls always match. A broadcast has no retry, because the source may have another batch by then: later
  calls over the group raise RankLost.
- gloo tells only the neighbours of a rank that it ended. They write that into the store, and every rank that waits
  longer than a moment reads it.
- The store is in one process, of the launcher or of rank 0. While that process is stopped or hangs, a call of the store
  does not return, and no timeout of torch ends it. A thread of its own makes each call (`_Notes`), so no rank waits for
  the store longer than until its deadline.
- gloo's destructor of a group waits for every posted call. While a call is given up, `_Calls` keeps a reference that no
  interpreter drops, so the process can end: its kernel closes the connections, and the other ranks hear it.
- All exchanges of a process over one group make one sequence of calls (`_Calls`), because the group has one.
"""

from __future__ import annotations

import ctypes
import importlib.util
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast, final
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt

from relive.checks.values import timeout
from relive.errors import DeadlineExceeded, InvalidConfig, MissingPackage
from relive.errors.extras import install_command
from relive.fleet.errors import RankLost

if importlib.util.find_spec("torch") is None:
    raise MissingPackage("relive.fleet.torch", "torch", install_command("train"))

import torch  # noqa: E402  (after the check above, whose error names the extra)
from torch import distributed  # noqa: E402

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["TorchExchange"]

_SLICE_S = 0.2  # between two checks for signals and the deadline
_HEADER = 4
_LOST = "relive/lost"  # key of the store: why no call is possible any more

Bytes: TypeAlias = npt.NDArray[np.uint8]
Value = TypeVar("Value")


@final
class TorchExchange:
    """The exchange among the ranks of a process group, for relive.fleet.attach(exchange=).

    Ranks outside of the group read the table with a handle of their own, or get batches from a rank of the group. Every
    rank makes its exchanges in the same order. One thread at a time.

    Args:
        group: the ranks that draw together, such as mesh["data"].get_group(). None: all ranks.

    Raises:
        InvalidConfig: torch.distributed is not initialised, this rank is not in the group, or the group cannot carry
            tensors of host memory.
    """

    def __init__(self, group: ProcessGroup | None = None) -> None:
        if not distributed.is_initialized():
            expected = "torch.distributed.init_process_group() before, as torchrun's programmes do"
            raise InvalidConfig("torch.distributed", expected, "not initialised")
        outside: Any = distributed.GroupMember.NON_GROUP_MEMBER
        if group is not None and group is not outside and not isinstance(group, distributed.ProcessGroup):
            raise InvalidConfig("group", "a ProcessGroup of torch.distributed, or None", group)
        if distributed.get_rank(group) < 0:
            raise InvalidConfig("group", "one that this rank is in", f"rank {distributed.get_rank()}, which is not")
        backend = distributed.get_backend_config(group)
        if "gloo" not in str(backend) and "mpi" not in str(backend):
            expected = "one with gloo: backend='cpu:gloo,cuda:nccl', or new_group(backend='gloo') beside it"
            raise InvalidConfig("backend of the group", expected, str(backend))
        self._group: Any = distributed.group.WORLD if group is None else group
        self.calls = _calls_of(self._group)  # of this process over the group; all its exchanges share them
        self.rank, self.world = self.calls.rank, self.calls.world

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        """Exchanges bytes among all ranks of the group.

        Args:
            mine: the bytes of this rank. Their number may differ between ranks.
            timeout_s: timeout in seconds.

        Returns:
            [world] the bytes that each rank gave to its call of the same count, by rank. After a call that ended in
            DeadlineExceeded or by Ctrl-C this is the retry of that call: this rank's bytes are those that it gave then.

        Raises:
            DeadlineExceeded: a rank did not call in time. The error names the ranks that are missing. Call again.
            RankLost: a rank ended, or a broadcast was given up earlier. torchrun starts the group again.

        Blocks:
            At most timeout_s. Ctrl-C ends the wait.
        """
        if not isinstance(mine, bytes):
            raise InvalidConfig("bytes of this rank", "bytes", mine)
        return self.calls.all_gather(mine, timeout(timeout_s))

    def broadcast(self, given: npt.NDArray[np.uint8] | None, num_bytes: int, source: int, timeout_s: float) -> Bytes:
        """Sends bytes of rank `source` to all ranks of the group.

        Args:
            given: uint8 [num_bytes], the bytes to send, on rank `source`. None on the other ranks.
            num_bytes: number of bytes. Every rank must know it.
            source: the rank that sends.
            timeout_s: timeout in seconds.

        Returns:
            uint8 [num_bytes], the bytes that rank `source` gave.

        Raises:
            DeadlineExceeded, RankLost: as in all_gather.

        Blocks:
            At most timeout_s. Ctrl-C ends the wait. The source may return before the other ranks have all bytes.
        """
        return self.calls.broadcast(given, num_bytes, source, timeout(timeout_s))


@final
@dataclass(frozen=True)
class _Posted:
    """A collective that this rank has posted, and the memory that it reads and writes.

    mine: the bytes of an all_gather; None: the collective is a broadcast.
    """

    mine: bytes | None
    work: Any
    tensors: list[torch.Tensor]


@final
class _Silent(Exception):
    """The store of a group does not answer."""


@final
class _Notes:
    """Makes calls of the store of a group, for one thread at a time, and waits for each no longer than it is told.

    A call that does not return keeps its thread. Later calls then get no thread, until it returns.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._busy: threading.Thread | None = None

    def ask(self, call: Callable[[Any], Value], seconds: float) -> Value:
        """Returns call(store), or raises its error. Raises _Silent if it does not return in time."""
        ends = time.monotonic() + seconds
        if self._busy is not None:
            self._busy.join(seconds)
            if self._busy.is_alive():
                raise _Silent
        answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
        self._busy = threading.Thread(target=_answer, args=(call, self._store, answers), daemon=True)
        self._busy.start()
        try:
            told, error = answers.get(timeout=max(0.001, ends - time.monotonic()))
        except queue.Empty:
            raise _Silent from None
        if error is not None:
            raise error
        return cast("Value", told)


def _answer(call: Callable[[Any], Any], store: Any, answers: queue.SimpleQueue[tuple[Any, Exception | None]]) -> None:
    try:
        answers.put((call(store), None))
    except Exception as error:
        answers.put((None, error))


@final
class _Calls:
    """The calls of this process over one group, one after another."""

    def __init__(self, group: Any) -> None:
        self.rank: int = distributed.get_rank(group)
        self.world: int = distributed.get_world_size(group)
        self._ref = ref(group)  # an exchange keeps the group
        self._notes = _Notes(group.get_group_store())
        self._room = 64
        self._num_calls = 0
        self._unfinished: _Posted | None = None
        self._is_kept = False  # whether the group has a reference more, because a call is given up
        self._lost = ""  # why no call is possible any more

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        """See TorchExchange."""
        self._check()
        ends = time.monotonic() + timeout_s
        posted = self._unfinished or self._post(mine)
        while True:
            assert posted.mine is not None  # _check refused the others
            self._wait(posted, ends, timeout_s)
            blocks = [tensor.numpy().tobytes() for tensor in posted.tensors[1:]]
            lengths = [int.from_bytes(block[:_HEADER], "little") for block in blocks]
            if max(lengths) <= self._room - _HEADER:
                self._unfinished = None
                return [block[_HEADER : _HEADER + length] for block, length in zip(blocks, lengths, strict=True)]
            self._room = max(lengths) + _HEADER  # the same on every rank
            posted = self._post(posted.mine)

    def broadcast(self, given: npt.NDArray[np.uint8] | None, num_bytes: int, source: int, timeout_s: float) -> Bytes:
        """See TorchExchange."""
        self._check()
        if self._unfinished is not None:
            raise RankLost("an earlier call was given up, and ranks may be out of step")
        self._num_calls += 1
        carried = torch.empty(num_bytes, dtype=torch.uint8) if given is None else torch.from_numpy(given)
        whose = distributed.get_global_rank(self._group, source)
        work = distributed.broadcast(carried, whose, group=self._group, async_op=True)
        self._unfinished = _Posted(None, work, [carried])
        self._wait(self._unfinished, time.monotonic() + timeout_s, timeout_s)
        self._unfinished = None
        return carried.numpy()

    def _check(self) -> None:
        if self._unfinished is not None and self._unfinished.mine is None:
            self._lost = self._lost or "an earlier broadcast was given up, and ranks may be out of step"
        if self._lost:
            raise RankLost(self._lost)

    def _post(self, mine: bytes) -> _Posted:
        self._num_calls += 1
        block = (len(mine).to_bytes(_HEADER, "little") + mine)[: self._room].ljust(self._room, b"\0")
        given = torch.frombuffer(bytearray(block), dtype=torch.uint8)
        heard = [torch.empty_like(given) for _ in range(self.world)]
        work = distributed.all_gather(heard, given, group=self._group, async_op=True)
        self._unfinished = _Posted(mine, work, [given, *heard])
        return self._unfinished

    def _wait(self, posted: _Posted, ends: float, timeout_s: float) -> None:
        try:
            self._wait_until(posted, ends, timeout_s)
        except BaseException:
            self._keep_group(True)
            raise
        self._keep_group(False)

    def _keep_group(self, keeps: bool) -> None:
        """Takes a reference to the group, or gives it back."""
        if keeps != self._is_kept:
            change = ctypes.pythonapi.Py_IncRef if keeps else ctypes.pythonapi.Py_DecRef
            change(ctypes.py_object(self._group))
            self._is_kept = keeps

    def _wait_until(self, posted: _Posted, ends: float, timeout_s: float) -> None:
        try:
            self._wait_in_slices(posted.work, ends, timeout_s)
        except RuntimeError as error:  # a connection has ended, or the store
            self._lost = lost = str(error)
            with suppress(RuntimeError, _Silent):
                self._notes.ask(lambda store: store.set(_LOST, lost), _SLICE_S)
            raise RankLost(self._lost) from error

    def _wait_in_slices(self, work: Any, ends: float, timeout_s: float) -> None:
        has_said = False
        while True:
            left_s = max(0.001, min(_SLICE_S, ends - time.monotonic()))
            try:
                work.wait(timedelta(seconds=left_s))
                return
            except RuntimeError:
                if work.is_completed():
                    work.wait()  # it failed, or it was done a moment after the slice
                    return
            with suppress(_Silent):
                self._notes.ask(partial(self._look, has_said), max(0.001, min(_SLICE_S, ends - time.monotonic())))
                has_said = True
            if time.monotonic() >= ends:
                needs = f"all {self.world} ranks of the group in call {self._num_calls} of the exchange"
                raise DeadlineExceeded(needs, self._has(), timeout_s)

    def _look(self, has_said: bool, store: Any) -> None:
        """Raises the error of a rank that was lost, as the store has it. Notes that this rank waits."""
        if store.check([_LOST]):
            raise RuntimeError(store.get(_LOST).decode(errors="replace"))
        if not has_said:
            store.set(self._key(self.rank), str(self._num_calls))

    def _has(self) -> str:
        """The ranks that are missing, in words."""
        try:
            absent = self._notes.ask(self._absent, _SLICE_S)
        except _Silent:
            return "no answer of the group's store: the process that has it is stopped, or hangs"
        return f"none of rank {', '.join(map(str, absent)) or '(which is on its way)'}"

    def _absent(self, store: Any) -> list[int]:
        """Ranks that have not written that they wait in this call or in a later one."""
        absent = []
        for rank in range(self.world):
            key = self._key(rank)
            if not store.check([key]) or int(store.get(key)) < self._num_calls:
                absent.append(rank)
        return absent

    @property
    def _group(self) -> Any:
        return self._ref()

    def _key(self, rank: int) -> str:
        return f"relive/{rank}"


_calls: WeakKeyDictionary[Any, _Calls] = WeakKeyDictionary()


def _calls_of(group: Any) -> _Calls:
    if group not in _calls:
        _calls[group] = _Calls(group)
    return _calls[group]
