"""DeviceReader: draws and gathers a table's items on a device."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
import torch
import triton

from relive.checks.names import names_arguments
from relive.checks.values import integer, timeout
from relive.config.casting import as_keys
from relive.core.closing import Closing
from relive.errors import DtypeMismatch, ForeignKey, InvalidConfig, ShapeMismatch, TableClosed
from relive.gpu.batch import DeviceBatch, DeviceDraw, Gathered
from relive.gpu.draw import DeviceSampler, Wait
from relive.gpu.gather import DeviceGather
from relive.gpu.launch import INTERPRETER_BLOCKS, BlockSizes, Rounds, facts_on
from relive.gpu.layout_args import LEAF_BITS, IndexLayout, RegionLayout, check_sampler, step_items_of
from relive.gpu.outputs import OutputPlan
from relive.gpu.region_view import RegionView, registration_for
from relive.reading.columns import Selection
from relive.table.table import Table, attach_path

__all__ = ["DeviceReader"]

OWN_STREAMS = 1 << 63  # streams of device readers have this bit, those of handles do not
_MAX_ITEMS = 2**31 - 1


@names_arguments
@final
class DeviceReader(Closing):
    """Draws and gathers a table's items on a device, by kernels over the table's own memory.

    Draws of a reader do not count: limiter, min_size and use counts do not apply, and no item is claimed. A reader is
    for one thread at a time.

    Args:
        table: a Table of this process. The reader attaches to a shared table once more, so reader and table may be
            closed in any order. A LocalMemory table must stay open as long as the reader.
        device: "cuda" or "cuda:<n>": the region is registered with the device and read in place. Memory is pinned as
            far as the table has committed it (LocalMemory: all of it, at once). "cpu": for tests, only under Triton's
            interpreter (TRITON_INTERPRET=1). Default: "cuda".
        stream: random stream of the draws, in [0, 2^64). None: a stream derived from the table's.

    Raises:
        InvalidConfig: an argument is wrong, or the device cannot run kernels here.
        TableClosed: the table is closed.

    Every call of a reader raises DeviceFailure if memory cannot be registered with the device.

    Blocks: calls wait for the device, and the table's `close` waits for calls.
    """

    def __init__(self, table: Table, device: str | torch.device = "cuda", stream: int | None = None) -> None:
        if not isinstance(table, Table):
            raise InvalidConfig("table", "a relive.Table of this process (LocalMemory or SharedMemory)", table)
        self._device = _checked_device(device)
        if table.closed:
            raise TableClosed()
        path = table.path
        self._owned = None if path is None else attach_path(path, table.stream, table.timeout_s, table.read_only)
        self._table = self._owned or table
        self._stream = OWN_STREAMS | table.stream if stream is None else integer("stream", stream, 0, 2**64 - 1)
        self._calls = itertools.count()
        core = self._table.core
        self._facts = core.geometry
        self._columns = core.layout
        self._layout = RegionLayout.from_facts(self._facts)
        registration = registration_for(self._device, self._table.read_only)
        self._view = RegionView(core, self._layout, registration, self._device)
        self._plans: dict[int, tuple[Selection, OutputPlan]] = {}
        self._rounds: dict[int, Rounds] = {}
        self._closed = False

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return self._device

    @property
    def stream(self) -> int:
        """The random stream of its draws."""
        return self._stream

    @names_arguments
    def sample(
        self,
        num_items: int,
        columns: Sequence[str] | None = None,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
    ) -> DeviceBatch:
        """Draws items with replacement and gathers them. Columns and their order are those of Table.sample.

        Args:
            num_items: B.
            columns: names of columns. None: those of Table.sample.
            timeout_s: deadline in seconds. None: the table's.
            index: name of the index. None: the table's first index.

        Returns:
            A batch of B items.

        Raises:
            DeadlineExceeded: the index has no mass, or not all items could be read unchanged by the deadline.
            UnknownColumn, DtypeMismatch: a column is unknown, or torch lacks its dtype.
            InvalidConfig: an argument is wrong, or kernels cannot draw from the index.
            TableClosed: the table or the reader is closed.

        Blocks: while the index has no mass, and until all items have been read unchanged; at most `timeout_s`.
        """
        plan, outputs = self._plan(index, columns)
        drawing, arrays, num_live = self._draw(plan.number, num_items, timeout_s, outputs)
        gathered = Gathered(arrays, drawing.item_keys, None, drawing.probabilities, num_live)
        return DeviceBatch(plan.columns, gathered)

    @names_arguments
    def draw(self, num_items: int, timeout_s: float | None = None, *, index: str | None = None) -> DeviceDraw:
        """Draws items and reads no rows. `gather(draw)` reads the rows.

        Args:
            num_items: B.
            timeout_s: deadline in seconds. None: the table's.
            index: name of the index. None: the table's first index.

        Returns:
            Keys and probabilities of B items.

        Raises: the errors of `sample`, except those of columns.

        Blocks: as `sample`.
        """
        number = self._table.index_number(index)
        drawing, _, num_live = self._draw(number, num_items, timeout_s, None)
        return DeviceDraw(drawing.item_keys, drawing.probabilities, num_live, list(self._table.indexes)[number])

    @names_arguments
    def gather(
        self,
        items: DeviceDraw | torch.Tensor | Any,
        columns: Sequence[str] | None = None,
        out: Mapping[str, torch.Tensor] | None = None,
        *,
        index: str | None = None,
    ) -> DeviceBatch:
        """Gathers the columns of items. `batch.present` [B], on the device, tells which items were still there.

        Args:
            items: a DeviceDraw, a tensor of keys int64[B], or keys as Table.gather takes them. Keys from the host are
                checked. Keys on the device that are not of this table are not present.
            columns: names of columns. None: those of Table.sample.
            out: tensors on the device to fill, by flat name, as in Table.gather: with all rows of episodes. Not for
                ragged items. None: new tensors.
            index: name of the index. None: that of the draw, or the table's first index.

        Returns:
            A batch of B items.

        Raises:
            ForeignKey: a key from the host is not of this table.
            UnknownColumn, ShapeMismatch, DtypeMismatch: a column, a tensor of `out` or the keys do not fit.
            InvalidConfig: `out` with ragged items, or a tensor of `out` whose memory is not aligned.
            TableClosed: the table or the reader is closed.
        """
        drawn = items if isinstance(items, DeviceDraw) else None
        if index is None and drawn is not None:
            index = drawn.index
        plan, outputs = self._plan(index, columns)
        if out is not None and outputs.is_ragged:
            raise InvalidConfig("out of ragged items", "None: how many rows they have is known when they are read", out)
        keys = drawn.item_keys if drawn is not None else self._device_keys(items)
        kernels = DeviceGather(self._table.core, plan, outputs, self._view)
        gathered = kernels.run(self._rounds_of(plan.number), keys, out)
        if drawn is not None:
            gathered = gathered._replace(probabilities=drawn.probabilities, num_live_items=drawn.num_live_items)
        return DeviceBatch(plan.columns, gathered)

    def close(self) -> None:
        """Unregisters the memory. A second call does nothing. Tensors that the reader returned stay valid."""
        if self._closed:
            return
        self._closed = True
        self._view.close()
        if self._owned is not None:
            self._owned.close()

    def __repr__(self) -> str:
        return f"DeviceReader({self._table!r}, {str(self._device)!r})"

    # ---- parts -----------------------------------------------------------------------------------------------------

    def _draw(self, number: int, num_items: int, timeout_s: float | None, outputs: OutputPlan | None) -> Any:
        if self._closed:
            raise TableClosed()
        count = integer("num_items", num_items, 1, _MAX_ITEMS)
        wait = Wait(time.monotonic(), self._table.timeout_s if timeout_s is None else timeout(timeout_s))
        check_sampler(self._table.indexes, number)
        sampler = DeviceSampler(self._table.core, number, int(self._facts["seed"]), self._view)
        call = (self._stream, next(self._calls))
        return sampler.draw(self._rounds_of(number), count, call, wait, self._device, outputs)

    def _plan(self, index: str | None, columns: Sequence[str] | None) -> tuple[Selection, OutputPlan]:
        if self._closed:
            raise TableClosed()
        plan = self._table.select(index, columns)
        made = self._plans.get(id(plan))
        if made is None or made[0] is not plan:
            items = step_items_of(self._table.indexes, plan.number)
            stack = self._table.spec.expand_stack(items.stack)
            made = plan, OutputPlan.make(plan, self._columns, items, stack)
            self._plans[id(plan)] = made
        return made

    def _rounds_of(self, number: int) -> Rounds:
        if number not in self._rounds:
            items = step_items_of(self._table.indexes, number)
            blocks = INTERPRETER_BLOCKS if self._device.type == "cpu" else BlockSizes()
            index = IndexLayout.from_facts(self._facts, number, items)
            self._rounds[number] = Rounds(index, facts_on(self._device, self._layout, index), blocks)
        return self._rounds[number]

    def _device_keys(self, items: Any) -> torch.Tensor:
        if isinstance(items, torch.Tensor) and items.device == self._device and items.device.type != "cpu":
            if items.dtype != torch.int64:
                raise DtypeMismatch("item_keys", "int64", items.dtype)
            if items.ndim != 1:
                raise ShapeMismatch("item_keys", "(num_items,)", tuple(items.shape))
            return items.contiguous()
        keys = as_keys(items)
        slots = keys & self._layout.slot_mask
        generations = (keys & ((1 << LEAF_BITS) - 1)) >> self._layout.slot_bits
        own = (keys >= 0) & (keys >> LEAF_BITS == self._layout.shard)
        own &= (slots < self._layout.num_slots) & (generations >= 1)
        if not own.all():
            position = int(np.flatnonzero(~own)[0])
            raise ForeignKey(position, int(keys[position]))
        return torch.from_numpy(keys).to(self._device)


def _checked_device(device: str | torch.device) -> torch.device:
    """Returns a device that kernels can run on here, with its number."""
    try:
        asked = torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidConfig("device", "'cuda', 'cuda:<n>' or 'cpu'", device) from None
    interpreted = bool(triton.knobs.runtime.interpret)
    if asked.type == "cpu":
        if not interpreted:
            raise InvalidConfig("device", "'cuda' (the CPU only under Triton's interpreter: TRITON_INTERPRET=1)", "cpu")
        return asked
    if asked.type != "cuda":
        raise InvalidConfig("device", "'cuda', 'cuda:<n>' or 'cpu'", str(asked))
    if interpreted:
        raise InvalidConfig("device", "'cpu' while TRITON_INTERPRET=1 is set", str(asked))
    if not torch.cuda.is_available():
        raise InvalidConfig("device", "a CUDA device; torch sees none on this machine", str(asked))
    return torch.device("cuda", torch.cuda.current_device() if asked.index is None else asked.index)
