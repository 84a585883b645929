"""The local table: a handle over one region of memory, private or shared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat, final

from relive import _core
from relive._checks import integer, timeout
from relive.batch import Plan
from relive.capacity import steps_in_bytes
from relive.errors import InvalidConfig, NotShareable
from relive.handle import METADATA_VERSION, TableHandle
from relive.index import Index, check_min_sizes, named_indexes
from relive.planned import Planned
from relive.prefetch import Batches, Sampled
from relive.protocol import ReplayTable
from relive.spec import StepSpec
from relive.storage import LocalMemory, SharedMemory, Tiered
from relive.writer import Writer

__all__ = ["Table", "attach_path"]

MAX_PARTICIPANTS = 256
_STORAGES = "LocalMemory(), SharedMemory(name) or Tiered(directory, ram_bytes)"


@final
class Table(TableHandle):
    """Steps in, items out: a bounded store of experience with one or more ways to sample it.

    spec: what a step holds. capacity: steps that are kept (then the oldest go), or memory such as "40GiB". index: an
    Index, or {name: Index} for several over the same steps; reading calls name one by index=, None is the first.
    storage: LocalMemory(), SharedMemory(name) or Tiered(directory, ram_bytes). max_lanes: lanes that may be open at
    once, over all writers. timeout_s: the default of every blocking call. seed: of every random choice; equal states
    give equal batches. A handle serves any number of threads. It pickles as an address where it is SharedMemory.
    Raises SpecError, InvalidConfig, CapacityTooSmall, UnknownColumn, NameTaken, StorageFull, SystemFailure.
    """

    _gathered_batches = 1  # of a Tiered table, its storage's

    def __init__(
        self,
        spec: StepSpec,
        capacity: int | str,
        index: Index | Mapping[str, Index] | None = None,
        *,
        storage: LocalMemory | SharedMemory | Tiered | None = None,
        max_lanes: int = 256,
        timeout_s: float = 60.0,
        seed: int = 0,
    ) -> None:
        if not isinstance(spec, StepSpec):
            raise InvalidConfig("spec", "a StepSpec", spec)
        if storage is not None and not isinstance(storage, (LocalMemory, SharedMemory, Tiered)):
            raise InvalidConfig("storage", _STORAGES, storage)
        indexes = named_indexes(index, spec)
        if isinstance(capacity, str):
            num_steps = steps_in_bytes(capacity, spec, len(indexes))
        else:
            num_steps = integer("capacity", capacity, 1)
        check_min_sizes(num_steps, indexes)
        default_timeout_s = timeout(timeout_s)
        metadata = {
            "version": METADATA_VERSION,
            "spec": spec.to_json(),
            "indexes": {name: one.to_dict() for name, one in indexes.items()},
            "capacity": num_steps,
            "max_lanes": integer("max_lanes", max_lanes, 1),
            "timeout_s": default_timeout_s,
            "seed": integer("seed", seed, 0, 2**64 - 1),
        }
        config = {
            "columns": [(name, c.dtype.str, c.shape, c.kind) for name, c in spec.columns.items()],
            "indexes": [one.core_config(name, spec) for name, one in indexes.items()],
            "capacity": num_steps,
            "max_lanes": metadata["max_lanes"],
            "max_participants": MAX_PARTICIPANTS,
            "seed": metadata["seed"],
            "shard": 0,
            "metadata": json.dumps(metadata).encode(),
        }
        path = storage.path if isinstance(storage, SharedMemory) else None
        if isinstance(storage, Tiered):
            config["tier"] = storage.core_config()
            self._gathered_batches = storage.gathered_batches
        self._bind(_core.create_table(config, path), spec, indexes, num_steps, default_timeout_s, stream=0)

    # ---- writing ---------------------------------------------------------------------------------------------------

    def writer(self, num_lanes: int | None = None) -> Writer:
        """Opens num_lanes lanes, one an environment; None: one lane, whose arrays have no lane axis.

        Raises TooManyLanes, CapacityTooSmall (every open lane must hold a whole window), ReadOnly, TableClosed.
        """
        return Writer(self._core, self._spec, num_lanes, self._timeout_s, self._explained)

    def batches(
        self,
        num_items: int,
        prefetch: int = 4,
        columns: Sequence[str] | None = None,
        device: Any = None,
        timeout_s: float | None = None,
        *,
        index: str | None = None,
    ) -> Batches:
        """An iterator of batches that a background thread draws and gathers ahead, to be used in a `with` block.

        prefetch: batches that may wait (at least 1). device: e.g. "cuda"; batches come as torch tensors there; "cpu" as
        tensors here; None as numpy arrays. timeout_s: how long next() waits. Else as sample.
        Of a Tiered table prefetch counts those whose rows are being read, too: the more are drawn ahead, the more of
        their rows are read once for several batches, and the older the table is that they were drawn from.
        """
        plan, count, ahead, seconds = self._ahead(num_items, prefetch, columns, timeout_s, index)
        if self._core.is_tiered:
            gathered = min(ahead, self._gathered_batches)
            source = Planned(self._core, plan, count, ahead - gathered + 1)
            return Batches(self._core, source, gathered, device, seconds)
        return Batches(self._core, Sampled(self._core, plan, count), ahead, device, seconds)

    def plan(self, index: str | None, columns: Sequence[str] | None) -> Plan:
        """What to gather, resolved once; for the same floors. Raises UnknownColumn, InvalidConfig."""
        return self._plan(index, columns)

    @property
    def core(self) -> _core.CoreTable:
        """The core below, for the floors that carry batches elsewhere; not for programs."""
        return self._core

    @property
    def path(self) -> str | None:
        """The file of a shared table; None for LocalMemory."""
        return self._core.path

    @property
    def stream(self) -> int:
        """The random stream of this handle: handles of other streams draw other items from an equal table."""
        return self._stream

    @property
    def read_only(self) -> bool:
        """Whether it was attached with read_only=True: it draws and gathers, uncounted, and changes nothing."""
        return self._core.read_only

    # ---- the handle ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes its writers and ends the use of this handle; the last clean close removes a shared table.

        Calls of other threads end with TableClosed. Closing twice is harmless.
        """
        self._core.close()

    def __reduce__(self) -> tuple[Any, ...]:
        path = self._core.path
        if path is None:
            raise NotShareable()
        return attach_path, (path, self._stream, self._timeout_s, self._core.read_only)

    def __repr__(self) -> str:
        where = self._core.path or ("Tiered" if self._core.is_tiered else "LocalMemory")
        state = "closed" if self.closed else f"{len(self)} of {self._capacity} steps"
        return f"Table({where}, {state}, indexes {', '.join(self._index_names)})"


if TYPE_CHECKING:

    def _has_the_interface_of_all_tables(table: Table) -> ReplayTable:
        return table


def attach_path(path: str, stream: int = 0, timeout_s: SupportsFloat | None = None, read_only: bool = False) -> Table:
    """A handle on the shared table in this file; relive.attach finds the file by name and says what it raises."""
    stream = integer("stream", stream, 0, 2**64 - 1)
    given = None if timeout_s is None else timeout(timeout_s)
    table = Table.__new__(Table)
    core = _core.attach_table(path, bool(read_only), stream, 60.0 if given is None else given)
    table._bind_to(core, stream, given)
    return table
