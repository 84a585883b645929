"""Table: the local table, a handle on one region of memory, private or shared."""

from __future__ import annotations

import importlib
import os
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsFloat, final

from relive import _core
from relive.checks.names import names_arguments
from relive.checks.values import flag, integer, timeout
from relive.config.index import Index
from relive.config.spec import StepSpec
from relive.config.storage import File, SharedMemory, Storage, Tiered
from relive.config.table_config import TableConfig
from relive.core.attached import attached_pids
from relive.core.made_files import note_made
from relive.core.protocol import ReplayTable
from relive.core.request import DrawRequest
from relive.core.streams import number_on_stream
from relive.errors import InvalidConfig, NameTaken, NotShareable
from relive.reading.columns import Columns
from relive.reading.holds import BatchSource
from relive.reading.sources import LocalDraws, PlannedSource, SampledSource
from relive.table.handle import TableHandle
from relive.table.saved import Saved
from relive.writing.writer import Writer

if TYPE_CHECKING:
    from relive.saving.loading import LoadedCore
    from relive.saving.opening import KeptCore

__all__ = ["Table", "attach_file", "attach_path", "close_own", "load_table", "table_over"]

_handles: set[weakref.ref[Table]] = set()  # open handles of this process; list() of the set is one step


@names_arguments
@final
class Table(Saved):
    """A store of a bounded number of steps. Writers append steps, and samplers draw items of these steps.

    A Table object is a handle on the stored steps. Several threads may use one handle. A handle on SharedMemory can be
    pickled: the unpickled handle attaches to the same table.

    Args:
        spec: the columns of a step.
        capacity: the most steps that the table keeps, or an amount of memory such as "40GiB". A full table drops its
            oldest steps, unless the first index has another remover.
        index: an Index, or {name: Index} for several indexes over the same steps; None: one Index(). Calls that read
            take the name of an index as index=; their default is the first index.
        storage: LocalMemory() (default), SharedMemory(name), File(path) or Tiered(directory, ram_bytes). If the
            folder of File has a table, the call opens that table.
        max_lanes: lanes that may be open at once, over all writers.
        timeout_s: the default deadline of every blocking call, in seconds.
        seed: seed of every random choice. Two runs with the same seed and the same calls draw the same batches.

    Raises:
        SpecError, UnknownColumn: the spec lacks a column that an index needs.
        InvalidConfig: an argument has another type or value.
        CapacityTooSmall: the limiter of an index waits for more items than the capacity can have.
        NameTaken: another process is attached to the shared table of this name.
        StorageFull, SystemFailure: the memory or the file cannot be allocated.
        DamagedSave, NotARegion, FormatMismatch: the table that lives in the folder cannot be read.
    """

    def __init__(
        self,
        spec: StepSpec,
        capacity: int | str,
        index: Index | Mapping[str, Index] | None = None,
        *,
        storage: Storage | None = None,
        max_lanes: int = 256,
        timeout_s: float = 60.0,
        seed: int = 0,
    ) -> None:
        self._build(TableConfig(spec, capacity, index, storage, max_lanes, timeout_s, seed))

    @classmethod
    def from_config(cls, config: TableConfig) -> Table:
        """A new table of this configuration.

        Raises:
            InvalidConfig: `config` is no TableConfig.
            NameTaken, StorageFull, SystemFailure: as for Table.
        """
        if not isinstance(config, TableConfig):
            raise InvalidConfig("config", "a TableConfig", config)
        table = cls.__new__(cls)
        table._build(config)
        return table

    def _build(self, config: TableConfig) -> None:
        if isinstance(config.storage, File):
            self._take(importlib.import_module("relive.saving.opening").open_file(config))
            return
        if isinstance(config.storage, SharedMemory) and config.storage.overwrite:
            close_own(config.storage.path)
        try:
            self._local = _core.create_table(config.core_config(), config.storage.path)
        except NameTaken as error:
            raise NameTaken(error.path, attached_pids(error.path)) from None
        if isinstance(config.storage, SharedMemory) and not config.storage.keep:
            note_made(config.storage.path)
        self._local.timeout_s = config.timeout_s
        self._bind(self._local, config, config.timeout_s)
        _remember(self)

    def _take(self, kept: KeptCore) -> None:
        """Becomes a handle on a table that lives in a folder."""
        self._local, self._keeper, self._loaded = kept.core, kept.keeper, kept.loaded
        self._local.timeout_s = kept.config.timeout_s
        self._bind(self._local, kept.config, kept.config.timeout_s)
        if self._keeper is not None:
            weakref.finalize(self, self._keeper.leave).atexit = False
        self._continue_draws()
        _remember(self)

    def _continue_draws(self) -> None:
        """The handle draws the batches that the handle of its save would have drawn, if both have the same stream."""
        if self._loaded is not None and self._loaded.facts.get("stream") == self.stream:
            self.number_draws(int(self._loaded.facts.get("next_draw", 0)))

    # ---- writing ---------------------------------------------------------------------------------------------------

    @names_arguments
    def writer(self, num_lanes: int | None = None) -> Writer:
        """Opens a writer with num_lanes lanes, one for each environment.

        Args:
            num_lanes: the number of lanes L. append and extend then take arrays with a lane axis [L, ...]. None: one
                lane, and arrays without a lane axis.

        Raises:
            TooManyLanes: more lanes than max_lanes would be open.
            CapacityTooSmall: the capacity has no room for one whole window of each open lane.
            ReadOnly: the handle is read-only.
            TableClosed: the handle is closed.
        """
        repeated = self._repeated_stacks
        return Writer(self._core, self._spec, num_lanes, self._timeout_s, self._explained, self.create_items, repeated)

    def held_draws(self) -> LocalDraws:
        """Draws of this table, in flight in its region."""
        return LocalDraws(self._local)

    def _batch_source(
        self, request: DrawRequest, columns: Columns, prefetch: int, timeout_s: float
    ) -> tuple[BatchSource, int]:
        storage = self._config.storage
        if isinstance(storage, Tiered) and self._local.is_tiered:
            ready = min(prefetch, storage.gathered_batches)
            return PlannedSource(self._local, request, columns, prefetch - ready + 1), ready
        return SampledSource(self._local, request, columns), prefetch

    @property
    def core(self) -> _core.CoreTable:
        """The compiled core, for the floors that carry batches elsewhere; not for programs."""
        return self._local

    @property
    def path(self) -> str | None:
        """The file of a shared table; else None."""
        return self._core.path

    @property
    def stream(self) -> int:
        """The number of this handle's random stream.

        On equal tables, handles with different streams draw different items.

        It is 0 for the handle that made the table, the number given to attach(stream=), or else a number of its own.
        The copy of a handle in a forked child gets one of its own, too.
        """
        return self._core.stream

    @property
    def read_only(self) -> bool:
        """Whether the handle was attached with read_only=True: it draws and gathers uncounted, and changes nothing."""
        return self._core.read_only

    def reopens(self) -> Callable[[int], TableHandle] | None:
        """A function that attaches to the same region; None for a table that is not shared."""
        if self.path is None:
            return None
        if isinstance(self._config.storage, File):
            return partial(attach_file, self._config.storage, timeout_s=self._timeout_s, read_only=self.read_only)
        return partial(attach_path, self.path, timeout_s=self._timeout_s, read_only=self.read_only)

    @property
    def next_draw(self) -> int:
        """The number that the next draw takes."""
        return self._local.next_call

    def number_draws(self, number: int) -> None:
        """Gives the next draw this number, of 64 bits at most."""
        self._local.set_next_call(integer("number of the next draw", number, 0, 2**64 - 1))

    def number_draw_on(self, stream: int, number: int) -> None:
        """Gives the next draw the random numbers that the draw of this number has on a handle of that stream."""
        self.number_draws(number_on_stream(self._config.seed, self.stream, stream, number))

    # ---- the handle ------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes its writers and ends the use of this handle. The last clean close removes a shared table.

        Calls of other threads end with TableClosed. A handle that is still open when the process ends is closed then.
        Closing twice is harmless. The last close of a table with storage=File(path) saves it, and leaves it there.

        Raises:
            StorageFull, SystemFailure, SaveOutrun, DeadlineExceeded: A table that lives in a folder was closed, and
                could not be saved. Its memory stays for the next process of this boot.

        Blocks: until those calls have ended, at most timeout_s. A table that lives in a folder: also until it is on
            disk.
        """
        if self._keeper is None:
            self._core.close()
        else:
            self._keeper.close(self._timeout_s)

    def __reduce__(self) -> tuple[Any, ...]:
        path = self._core.path
        if path is None:
            raise NotShareable()
        if isinstance(self._config.storage, File):
            return attach_file, (self._config.storage, None, self._timeout_s, self._core.read_only)
        return attach_path, (path, None, self._timeout_s, self._core.read_only)  # a copy has a stream of its own

    def __repr__(self) -> str:
        where = self._core.path or ("Tiered" if self._local.is_tiered else "LocalMemory")
        state = "closed" if self.closed else f"{len(self)} of {self.capacity} steps"
        return f"Table({where}, {state}, indexes {', '.join(self._index_names)})"


if TYPE_CHECKING:

    def _has_the_interface_of_all_tables(table: Table) -> ReplayTable:
        return table


def attach_path(
    path: str, stream: int | None = None, timeout_s: SupportsFloat | None = None, read_only: bool = False
) -> Table:
    """A handle on the shared table in this file. relive.attach finds the file by its name, and lists the errors."""
    told = None if stream is None else integer("stream", stream, 0, 2**64 - 1)
    given = None if timeout_s is None else timeout(timeout_s)
    return table_over(
        _core.attach_table(path, flag("read_only", read_only), told, 60.0 if given is None else given), given
    )


def attach_file(
    storage: File, stream: int | None = None, timeout_s: SupportsFloat | None = None, read_only: bool = False
) -> Table:
    """A handle on the table that lives in a folder. relive.attach lists the errors."""
    told = None if stream is None else integer("stream", stream, 0, 2**64 - 1)
    given = None if timeout_s is None else timeout(timeout_s)
    opening = importlib.import_module("relive.saving.opening")
    return _kept(opening.attach_file(storage, told, given, flag("read_only", read_only)), given)


def _kept(kept: KeptCore, timeout_s: float | None) -> Table:
    """A handle on a table that lives in a folder."""
    table = Table.__new__(Table)
    table._take(kept if timeout_s is None else replace(kept, config=replace(kept.config, timeout_s=timeout_s)))
    return table


def load_table(
    path: str,
    storage: Storage | None,
    capacity: int | None,
    max_lanes: int | None,
    timeout_s: float | None,
    **how: Any,
) -> Table:
    """A new table from a save of a folder. relive.load lists the errors. `how`: as for load_core."""
    loading = importlib.import_module("relive.saving.loading")  # imported here: programs that load nothing lack it
    if isinstance(storage, File):
        opening = importlib.import_module("relive.saving.opening")
        return _kept(opening.load_file(path, storage, capacity, max_lanes, **how), timeout_s)
    if isinstance(storage, SharedMemory) and storage.overwrite:
        close_own(storage.path)
    try:
        return _table_of(loading.load_core(path, storage, capacity, max_lanes, **how), timeout_s)
    except NameTaken as error:
        raise NameTaken(error.path, attached_pids(error.path)) from None


def _table_of(loaded: LoadedCore, timeout_s: float | None) -> Table:
    """A handle on a core that was loaded from a save."""
    table = Table.__new__(Table)
    config, core = loaded.config, loaded.core
    if isinstance(config.storage, SharedMemory) and not config.storage.keep:
        note_made(config.storage.path)
    table._local = core
    table._bind(core, config, config.timeout_s if timeout_s is None else timeout_s)
    core.timeout_s = table.timeout_s
    table._loaded = loaded
    table._continue_draws()
    _remember(table)
    return table


def table_over(core: _core.CoreTable, timeout_s: float | None) -> Table:
    """A handle on a core that is open.

    The core's metadata has the configuration; the core is closed if it cannot be read.
    """
    table = Table.__new__(Table)
    table._local = core
    table._bind_to(core, timeout_s)
    core.timeout_s = table.timeout_s
    _remember(table)
    return table


def _remember(table: Table) -> None:
    _handles.add(weakref.ref(table, _handles.discard))


def close_own(path: str) -> None:
    """Closes this process's handles on a shared table. Raises NameTaken if another process has a handle."""
    pids = attached_pids(path)
    if set(pids) - {os.getpid()}:
        raise NameTaken(path, pids)
    for table in [known() for known in list(_handles)]:
        if table is not None and not table.closed and table.path == path:
            table.close()
