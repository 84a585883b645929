"""Finding tables: attach to one by name, connect to one elsewhere, list those of this machine, remove one of them."""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, final

from relive import _core
from relive.checks.names import names_arguments
from relive.checks.values import is_text
from relive.config.spec import StepSpec
from relive.config.storage import MAX_NAME_BYTES, SHARED_MEMORY_FOLDER, SHARED_MEMORY_PREFIX, SharedMemory
from relive.core.holders import holders
from relive.core.protocol import ReplayTable
from relive.errors import InUse, NoSuchTable, ReliveError, SystemFailure
from relive.table.table import Table, attach_path

if TYPE_CHECKING:
    from relive.over.loading import Loader
    from relive.service import RemoteTable

__all__ = ["TableRow", "attach", "connect", "list_tables", "loader", "remove"]


@names_arguments
def attach(name: str, stream: int | None = None, timeout_s: float | None = None, read_only: bool = False) -> Table:
    """A handle on the table SharedMemory(name), made here or by another process.

    stream: the random stream of this handle, exactly; a program whose draws shall be the same in every run gives each
    sampling process its own (its rank). None: one of its own, counted by attaches, so that no two handles draw the same
    items; the same in the next run where handles attach in the same order (never for read_only, which counts nowhere).
    Copies of a handle, pickled or in a forked child, get streams of their own in the same way.
    timeout_s: the default of this handle's calls, None: the table's. read_only: draw and gather without being counted,
    change nothing.
    Returns at once, except that an attach by others that is under way is waited for. Raises NoSuchTable, NotARegion,
    FormatMismatch, TooManyParticipants, DeadlineExceeded, InvalidConfig.
    """
    return attach_path(SharedMemory(name).path, stream, timeout_s, read_only)


@names_arguments
def connect(address: str, timeout_s: float | None = None, spec: StepSpec | None = None) -> RemoteTable:
    """A handle on a table that a server has: grpc://host:port/name. Needs the extra `service`.

    timeout_s: the default of this handle's calls, None: the table's. spec: what a step is expected to hold.
    Waits for the server at most timeout_s, or 10 s. Raises ServiceUnavailable, NoSuchTable, FormatMismatch (a server of
    another version), InvalidConfig (no such address, another spec), MissingPackage without the extra.
    """
    service = importlib.import_module("relive.service")  # here and not above: the library itself needs numpy only
    return cast("RemoteTable", service.connect(address, timeout_s, spec))


@names_arguments
def loader(
    table: ReplayTable,
    batch: int,
    rank: int = 0,
    world: int = 1,
    *,
    columns: Sequence[str] | None = None,
    index: str | None = None,
    where: str | None = None,
    beta: float | None = None,
    timeout_s: float | None = None,
    stream: int = 0,
) -> Loader:
    """The table's batches as a torch IterableDataset, for DataLoader(..., batch_size=None). Needs torch.

    Endless. Each batch is a dict of tensors: the columns, nested as declared, item_keys int64[B], probabilities
    float64[B], num_live_items int64[], and with beta= weights float32[B], (N p) ** -beta over the maximum in the batch.
    rank, world: of the processes that train together, no two of which draw alike. columns, index, where, timeout_s: as
    of sample; a batch waits at most timeout_s for the limiter, then DeadlineExceeded. stream: loaders of other streams
    draw other items. Has the state_dict of torchdata's StatefulDataLoader (docs/loader.md).
    Raises InvalidConfig, UnknownColumn, MissingPackage without torch.
    """
    loading = importlib.import_module("relive.over.loading")  # here and not above: the library itself needs numpy only
    reading = {"columns": columns, "index": index, "where": where, "timeout_s": timeout_s}
    return cast("Loader", loading.Loader(table, batch, rank, world, reading, beta, stream))


@final
@dataclass(frozen=True)
class TableRow:
    """One shared table of this machine."""

    name: str
    path: str
    num_bytes: int  # of memory in use
    num_steps: int
    capacity: int
    num_attached: int  # handles; of processes that were killed too, until somebody attaches
    alive: bool  # somebody is attached
    problem: str = ""  # why it cannot be read, if it cannot: num_steps and capacity are 0 then


def list_tables() -> list[TableRow]:
    """The shared tables of this machine, by name. A file that is no table is listed with its problem."""
    rows = []
    prefix = f"{SHARED_MEMORY_FOLDER}/{SHARED_MEMORY_PREFIX}"
    for path in sorted(glob.glob(glob.escape(prefix) + "*")):
        name = path[len(prefix) :]
        if not is_text(name, MAX_NAME_BYTES):
            name, printable = (part.encode(errors="backslashreplace").decode() for part in (name, path))
            rows.append(TableRow(name, printable, _used_bytes(path), 0, 0, 0, False, "its name is no name of a table"))
            continue
        try:
            facts = _core.probe(path)
        except NoSuchTable:
            continue  # removed meanwhile
        except ReliveError as error:
            rows.append(TableRow(name, path, _used_bytes(path), 0, 0, 0, False, str(error)))
            continue
        alive = bool(facts["attached"])
        rows.append(
            TableRow(
                name,
                path,
                int(facts["num_bytes"]),
                int(facts["num_steps"]),
                int(facts["capacity"]),
                int(facts.get("num_attached", alive)),
                alive,
            )
        )
    return rows


@names_arguments
def remove(name: str, force: bool = False) -> None:
    """Removes the shared table of this name from the machine.

    force: also where somebody is attached (they keep what they have mapped, nobody else finds it) and where the file
    is no table. Raises NoSuchTable, InUse, NotARegion, InvalidConfig.
    """
    path = SharedMemory(name).path
    if force:
        try:
            os.unlink(path)
        except FileNotFoundError:
            raise NoSuchTable(path) from None
        except OSError as error:  # another user's, or a folder
            raise SystemFailure(f"removing {path}", error.errno or 0) from None
        return
    _core.probe(path)  # refuses what is no table
    try:
        _core.remove(path)
    except InUse as error:
        raise InUse(error.path, holders(error.path)) from None


def _used_bytes(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0
