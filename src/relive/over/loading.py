"""Batches of a table as a torch dataset: relive.loader(), for DataLoader and for torchdata's StatefulDataLoader.

Numbers. The batches of all ranks and worker processes are numbered once:

- Batch k of rank r of W ranks has number first + k W + r.
- Worker w of n makes the batches with k = w modulo n, the order in which DataLoader asks its workers.
- A batch is the draw of that number on the stream of the loader, in whichever process and storage it is drawn.

So an equal table gives equal batches to any number of workers, and no two ranks draw alike. If W changes, the new ranks
continue after the last number of the old ones. Where draws are numbered elsewhere, by a server or by ranks that draw
slices of one draw, that numbering applies, and so do the streams there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import pickle
import re
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias, final

from relive.checks.values import finite, integer, timeout
from relive.core.ending import at_end
from relive.errors import InvalidConfig, MissingPackage, NotShareable, ReliveError
from relive.errors.extras import install_command
from relive.over.loader_state import VERSION, checked, of_whole, parts_of_workers
from relive.over.sources import stream_of
from relive.over.stateful import extend_torchdata
from relive.reading.rewards import check_reward
from relive.table.handle import TableHandle
from relive.table.table import Table

if importlib.util.find_spec("torch") is None:
    raise MissingPackage("relive.loader", "torch", install_command("train"))

import torch  # noqa: E402  (after the check above, whose error names the extra)
from torch.utils.data import IterableDataset, get_worker_info  # noqa: E402

__all__ = ["Loader", "Restored"]

Restored: TypeAlias = Literal["continued", "repartitioned", "redrawn"]

_STREAM = 2**39  # of the draws of loaders; programs use smaller ranks
_FIRST_CALL = 2**40  # of their draws, far from the draws that a program makes with the same handle
_EPOCH_BITS = 32  # numbers of batches in a pass
_CARRIED = "relive-error-"
_SENDER = "QueueFeederThread"  # multiprocessing's name of the thread that sends the objects of a queue
_SEND_S = 2.0  # a worker waits so long for what it still sends; torch kills it after 5 seconds
_MADE = ("item_keys", "probabilities", "num_live_items", "weights")


@final
class Loader(IterableDataset[dict[str, Any]]):
    """An endless dataset of whole batches of a table, made by relive.loader(), which describes the batches.

    Use it with batch_size=None: DataLoader(relive.loader(table, 256), batch_size=None, num_workers=2).

    - Each worker process opens a handle of its own, and closes it when its iteration ends.
    - state_dict() and load_state_dict() are those of torchdata's StatefulDataLoader, which calls them in its workers.
      Without workers a program may call them, too. The dataset does not know how far its workers are.
    - A table in LocalMemory, and a table whose draws are slices of a group's, is read in this process (num_workers=0)
      with the given handle. No other thread may draw with that handle meanwhile.
    """

    def __init__(
        self,
        table: TableHandle,
        num_items: int,
        rank: int = 0,
        world: int = 1,
        reading: Mapping[str, Any] | None = None,
        beta: float | None = None,
        stream: int = 0,
    ) -> None:
        if not isinstance(table, TableHandle):
            raise InvalidConfig("table", "a relive.Table, or what attach, connect and relive.fleet.attach give", table)
        self.num_items = integer("batch", num_items, 1, 2**31 - 1)
        self.world = integer("world", world, 1, 2**20)
        self.rank = integer("rank", rank, 0, self.world - 1)
        self._is_group = table.num_ranks > 1
        if self._is_group and self.world not in (1, table.num_ranks):
            raise InvalidConfig("world", f"{table.num_ranks}, as the table's exchange has", self.world)
        self._reading = dict(reading or {})
        timeout_s = self._reading.get("timeout_s")
        self._reading["timeout_s"] = table.timeout_s if timeout_s is None else timeout(timeout_s)
        selection = table.select(self._reading.get("index"), self._reading.get("columns"))
        check_reward(selection.goals, self._reading.get("reward"))
        if self._reading.get("where") is not None:
            table.condition(selection.number, self._reading["where"])
        taken = [name for name in selection.columns.tops if name in _MADE]
        if taken:
            raise InvalidConfig("columns of the table", "none with a name that the loader uses", taken[0])
        self._beta = None if beta is None else finite("beta", beta, 0.0)
        self._stream = integer("stream", stream, 0, 2**20)
        config = table.config
        index = self._reading.get("index") or next(iter(config.index))
        what = repr((config.spec, index, config.index[index], config.seed, self._stream)).encode()
        self._digest = hashlib.sha256(what).hexdigest()
        self._reopened = None if self._is_group else table.reopens()
        self._table: TableHandle | None = table
        self._is_numbered = table.next_draw is not None
        self._first = 0  # the number of batch 0
        self._batch: int | None = None  # the next batch of this rank here; None: this worker's first
        self._restored: Restored | None = None

    @property
    def restored(self) -> Restored | None:
        """The result of load_state_dict; None if it was not called.

        - "continued": the batches are those that would have come. With an exchange of ranks, over several shards of
          this host: only if each batch has items of every shard.
        - "repartitioned": the ranks or workers are others now, and share the batches after the last one of the old
          ones.
        - "redrawn": the batches are drawn as ever, and may be others than without the restart. A server numbers the
          draws; or the table has an exchange, and its handle another stream than then, or other ranks; or the state
          does not tell the stream, as in older versions.
        """
        return self._restored

    # ---- batches ---------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with _carrying():
            return _Iteration(self)

    def _handle(self) -> tuple[TableHandle, bool]:
        """The handle to draw with, and whether it belongs to the loader."""
        if self._reopened is not None:
            return self._reopened(_STREAM + self._stream), True
        if self._table is None or get_worker_info() is not None:
            expected = "0: this table is read by the process that has it (LocalMemory, Tiered, or an exchange)"
            raise InvalidConfig("num_workers", expected, _worker()[1])
        return self._table, False

    def _numbered(self, table: TableHandle, position: int, is_own: bool) -> dict[str, Any]:
        if self._is_group:  # its draws follow each other on every rank
            return self._shown(table.sample(self.num_items, **self._reading))
        before = table.next_draw
        number = _FIRST_CALL + self._first + position * self.world + self.rank
        if is_own:
            table.number_draws(number)
        else:
            table.number_draw_on(_STREAM + self._stream, number)
        try:
            return self._shown(table.sample(self.num_items, **self._reading))
        finally:
            if not is_own and before is not None and not table.closed:  # the program's own draws keep their numbers
                table.number_draws(before)

    def _agreed(self, table: TableHandle, position: int) -> int:
        """The batch that a group draws next, which all ranks count alike; else `position`."""
        number = table.next_shared_draw
        batch = -1 if number is None else number - _FIRST_CALL - self._first
        return position if batch < 0 else batch  # < 0: set_epoch was called within the pass

    def _shown(self, drawn: Any) -> dict[str, Any]:
        batch = drawn.to_torch("cpu")
        shown = {name: batch[name] for name in batch}
        shown["item_keys"] = torch.from_numpy(batch.item_keys)
        shown["probabilities"] = torch.from_numpy(batch.probabilities)
        shown["num_live_items"] = torch.tensor(batch.num_live_items)
        if self._beta is not None:
            shown["weights"] = batch.weights(self._beta)
        return shown

    def set_epoch(self, epoch: int) -> None:
        """Makes the batches from now on those of this pass, 0 to 2**20, which no other pass has.

        Call it before an iteration.

        Worker processes begin at the position of the loader that they are made from. A DataLoader with workers that is
        iterated a second time therefore makes the same draws again, unless set_epoch was called in between.
        """
        self._first, self._batch = integer("epoch", epoch, 0, 2**20) << _EPOCH_BITS, None

    # ---- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The number of the next batch with the table and stream that it belongs to, and the value of `restored`."""
        worker, num_workers = _worker()
        return {
            "version": VERSION,
            "table": self._digest,
            "num_items": self.num_items,
            "world": self._ranks,
            "num_workers": num_workers,
            "first": self._first,
            "batch": worker if self._batch is None else self._batch,
            "stream": self._stream_of_handle,
            "restored": self._restored,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from the state of a loader; `restored` says how. Call it before the iteration.

        All ranks give states of one moment, between the same two batches. If the number of ranks is another one now,
        the state of any rank will do.

        A StatefulDataLoader calls it. With another DataLoader, call it in the main process.

        Args:
            state: the result of state_dict(), of this dataset or of a StatefulDataLoader with any number of workers.

        Raises:
            InvalidConfig: the state is none, or is of another table, index or batch size. Or the number of ranks or
                workers changed, and the state is that of one of several workers, which does not know how far its rank
                was. Nothing changes.
        """
        with _carrying():
            self._go_on_from(checked(of_whole(state)))

    def is_divided_otherwise(self, state: Mapping[str, Any], num_workers: int) -> bool:
        """Whether a StatefulDataLoader had other ranks or workers than one of this dataset with num_workers has.

        Then the dataset itself takes the state, in the main process (relive.over.stateful).
        """
        parts = parts_of_workers(state)
        worlds = {part.get("world") for part in parts if isinstance(part, Mapping)}
        return len(parts) != num_workers or (num_workers > 0 and worlds != {self._ranks})

    def note_workers_state(self, state: Mapping[str, Any]) -> None:
        """Sets `restored` in the main process, where a StatefulDataLoader gives a state to its workers only."""
        expected = {"table": self._digest, "num_items": self.num_items}  # the workers refuse other ones
        parts = parts_of_workers(state)
        if all(isinstance(part, Mapping) and expected.items() <= part.items() for part in parts):
            self._restored = "continued" if all(map(self._draws_alike, parts)) else "redrawn"

    def _go_on_from(self, given: dict[str, Any]) -> None:
        for what, expected in (("table", self._digest), ("num_items", self.num_items)):
            if given[what] != expected:
                raise InvalidConfig(f"{what} in the loader's state", f"{expected!r}, as this loader has", given[what])
        worker, num_workers = _worker()
        is_same = (given["world"], given["num_workers"]) == (self._ranks, num_workers)
        if is_same and get_worker_info() is not None and (given["batch"] - worker) % num_workers == 0:
            first, batch = given["first"], given["batch"]
        elif given["num_workers"] == 1:  # also in the main process, whose DataLoader may have any number of workers
            stride = 1 if self._is_group else given["world"]
            first, batch = given["first"] + given["batch"] * stride, None
        else:
            expected = f"world {given['world']} and {given['num_workers']} workers, or a state without workers"
            got = f"world {self._ranks} and {num_workers} workers"
            raise InvalidConfig("ranks and workers of the loader that is restored", expected, got)
        self._first, self._batch = first, batch
        alike: Restored = "continued" if is_same else "repartitioned"
        self._restored = alike if self._draws_alike(given) else "redrawn"

    def _draws_alike(self, state: Mapping[str, Any]) -> bool:
        """Whether the batches are those that the loader of a state would have made, with all of its ranks."""
        is_divided_alike = not self._is_group or state.get("world") == self._ranks  # a draw has a slice for each rank
        is_on_stream = state.get("version") == VERSION and state.get("stream") == self._stream_of_handle
        return self._is_numbered and is_divided_alike and is_on_stream

    @property
    def _stream_of_handle(self) -> int | None:
        """The stream of the given handle, if the batches are drawn on it; None: on one of the loader's own."""
        if self._table is None or self._reopened is not None or isinstance(self._table, Table):
            return None
        return stream_of(self._table)

    @property
    def _ranks(self) -> int:
        """The ranks that share the batches, or slices of them."""
        return self.world if self._table is None else max(self.world, self._table.num_ranks)

    def __getstate__(self) -> dict[str, Any]:
        if self._reopened is None:
            raise NotShareable()
        return self.__dict__ | {"_table": None}  # a worker opens it itself, by its address

    def __repr__(self) -> str:
        return f"Loader({self.num_items} items, rank {self.rank} of {self.world}, {self._table!r})"


@final
class _Iteration(Iterator[dict[str, Any]]):
    """One pass over a loader's batches. After an error, such as DeadlineExceeded, the next call tries that batch again.

    Ranks that agreed on a draw never make it again. If it fails, the next call takes the batch after it.

    Owner of the handle that it opens; the handle is closed when the pass is collected, or when its process ends.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._worker, self._num_workers = _worker()
        if get_worker_info() is not None:
            _send_before_end()
        self._table, self._is_own = loader._handle()
        if self._is_own:
            weakref.finalize(self, self._table.close)
        if loader._batch is None:
            loader._batch = self._worker
        if loader._is_group:
            self._table.number_draws(_FIRST_CALL + loader._first + loader._batch)

    def __next__(self) -> dict[str, Any]:
        loader = self._loader
        position = self._worker if loader._batch is None else loader._batch
        try:
            with _carrying():
                batch = loader._numbered(self._table, position, self._is_own)
        except BaseException:
            loader._batch = loader._agreed(self._table, position)
            raise
        # before it is handed out, so that a state taken then counts it
        loader._batch = loader._agreed(self._table, position + self._num_workers)
        return batch


@final
class ErrorOfWorker(Exception):
    """An error on its way from a worker process. torch constructs it a second time, from one text.

    torch sends an exception as its class and a text, and calls the class with the text. Most errors of relive have
    other arguments, so their fields would contain the text. This class returns the error itself.
    """

    def __new__(cls, text: str) -> Any:
        """The error that the text carries, with its fields; an ErrorOfWorker if it carries none."""
        found = re.search(_CARRIED + r"([0-9a-f]+)", text)
        return super().__new__(cls, text) if found is None else pickle.loads(bytes.fromhex(found[1]))

    @classmethod
    def carrying(cls, error: ReliveError) -> ErrorOfWorker:
        """An error whose text carries another one."""
        return Exception.__new__(cls, _CARRIED + pickle.dumps(error).hex())


@contextlib.contextmanager
def _carrying() -> Iterator[None]:
    """In a worker process, errors of relive leave the block as torch carries them whole."""
    try:
        yield
    except ReliveError as error:
        if get_worker_info() is None:
            raise
        raise ErrorOfWorker.carrying(error) from None


@functools.cache
def _send_before_end() -> None:
    """Has this worker process wait, at its end, for the thread that sends its last batches.

    torch does not wait for it. A spawned worker ends its interpreter, and before Python 3.14 this unwinds each thread
    that asks for the interpreter's lock. torch asks for it where it shares a tensor, in a function that must not be
    unwound: the worker would die by SIGABRT, and the main process would report that.
    """
    at_end(_join_senders)


def _join_senders() -> None:
    ends = time.monotonic() + _SEND_S
    for thread in threading.enumerate():
        if thread.name == _SENDER:
            thread.join(max(ends - time.monotonic(), 0.0))


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


extend_torchdata(Loader)
