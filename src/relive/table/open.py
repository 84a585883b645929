"""Finds tables: attaches to one by name, connects to one elsewhere, lists those of this machine, and removes one."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast, final

from relive import _core
from relive.checks.names import names_arguments
from relive.checks.secrets import Secret, hides_token
from relive.checks.values import flag, folder_path, integer, is_name, timeout
from relive.config.spec import StepSpec
from relive.config.storage import (
    MAX_NAME_BYTES,
    SHARED_MEMORY_FOLDER,
    SHARED_MEMORY_PREFIX,
    File,
    SharedMemory,
    Storage,
)
from relive.core.attached import attached_pids
from relive.core.protocol import ReplayTable
from relive.errors import InUse, NoSuchTable, ReliveError, SystemFailure
from relive.table.table import Table, attach_file, attach_path, load_table

if TYPE_CHECKING:
    from relive.over.loading import Loader
    from relive.reading.rewards import RewardFunction
    from relive.saving.loading import SavedTable
    from relive.service import ClientTLS, RemoteTable

__all__ = ["TableRow", "attach", "connect", "list_tables", "load", "loader", "remove", "saved"]


@names_arguments
def attach(
    name: str | File, stream: int | None = None, timeout_s: float | None = None, read_only: bool = False
) -> Table:
    """A handle on the table SharedMemory(name), or on the table that lives in the folder of a File.

    Args:
        name: the name of the shared memory, or File(path). A table whose memory the machine has lost by a restart is
            built from its last save.
        stream: the number of this handle's random stream. Give each sampling process its own (its rank) if draws must
            be the same in every run. None: a number of its own, counted by attaches, so that no two handles draw the
            same items. It is the same in the next run if handles attach in the same order (never for read_only, which
            counts nowhere).
        timeout_s: the default deadline of this handle's calls, in seconds; None: the table's.
        read_only: draw and gather uncounted, and change nothing.

    Copies of a handle, pickled or in a forked child, get streams of their own in the same way.

    Raises:
        NoSuchTable: no table has this name.
        NotARegion, FormatMismatch: the file is no table, or one of another version.
        TooManyParticipants: too many handles are attached.
        DeadlineExceeded: another process did not finish its attach in time.
        DamagedSave, InUse: the table in the folder cannot be built from its save, or another host uses it.
        InvalidConfig: an argument has another type or value.

    Blocks: only while another process attaches, or while the table is built from its save.
    """
    if isinstance(name, File):
        return attach_file(name, stream, timeout_s, read_only)
    return attach_path(SharedMemory(name).path, stream, timeout_s, read_only)


@hides_token
@names_arguments
def connect(
    address: str,
    timeout_s: float | None = None,
    spec: StepSpec | None = None,
    *,
    tls: ClientTLS | None = None,
    token: Secret | str | os.PathLike[str] | None = None,
) -> RemoteTable:
    """A handle on a table of a server. Needs the extra `service`.

    Args:
        address: grpc://host:port/name; of a server with TLS, grpc+tls://host:port/name.
        timeout_s: the default deadline of this handle's calls, in seconds; None: the table's.
        spec: the spec that the table must have; None: any.
        tls: relive.service.ClientTLS, the authorities to trust and the client's certificate; None: the authorities of
            the system.
        token: the token, or the Path of a file with the token. None: that of RELIVE_TOKEN, else of the file
            RELIVE_TOKEN_FILE, else none.

    Raises:
        ServiceUnavailable: no server answers at the address.
        AccessDenied: the server does not allow this client to use a table of this name.
        HandshakeFailed: the certificates of client and server do not fit.
        NoSuchTable: the server has no table of this name.
        FormatMismatch: the server has another version.
        InvalidConfig: the address is none, or the table has another spec.
        MissingPackage: the extra is not installed.

    Blocks: for the server, at most timeout_s, or 10 s.
    """
    service = importlib.import_module("relive.service")  # imported here, because the library itself needs numpy only
    return cast("RemoteTable", service.connect(address, timeout_s, spec, tls=tls, token=token))


@names_arguments
def load(
    path: str | os.PathLike[str],
    storage: Storage | None = None,
    capacity: int | None = None,
    max_lanes: int | None = None,
    timeout_s: float | None = None,
    number: int | None = None,
) -> Table:
    """Makes a new table from a save that Table.save wrote into a folder.

    The lanes that were open at the save are closed. Items that were drawn ahead and not handed out are in the index
    again. If the capacity is 1 to 8 times that of the save, the old keys stay valid (`table.loaded.keeps_keys`), and
    keys that were given out after the save are never given out again. A smaller capacity keeps the youngest steps,
    under new keys.

    Args:
        path: The folder.
        storage: Where the table's bytes are; None: LocalMemory(), also if the saved table had another storage.
        capacity: In steps; None: the saved one.
        max_lanes: At least that of the saved table; None: the saved one.
        timeout_s: The default deadline of this handle's calls, in seconds; None: the saved table's.
        number: The number of the save, one of `saved(path).kept`; None: the newest.

    Raises:
        NoSuchSave: The folder has no save, or none of this number.
        DamagedSave: A file of the save is damaged, or missing.
        FormatMismatch: A later version of relive wrote the save.
        NameTaken, StorageFull, SystemFailure, CapacityTooSmall: as for Table.
        InvalidConfig: An argument has a type or value that is not allowed.

    Cost: reads the save once, and then recovers and checks the whole table.
    """
    given = None if timeout_s is None else timeout(timeout_s)
    chosen = None if number is None else integer("number", number, 1)
    return load_table(folder_path("path of a save", path), storage, capacity, max_lanes, given, cut=chosen)


@names_arguments
def saved(path: str | os.PathLike[str], number: int | None = None, verify: bool = False) -> SavedTable:
    """Describes a save of a folder without loading it.

    Args:
        path: The folder.
        number: The number of the save, one of the `kept` of the newest; None: the newest.
        verify: Read every byte of the save, too, and compare the checksums. A save trusts the pages that its folder has
            already, so this call or a load finds a disk that changed them.

    Raises:
        NoSuchSave, DamagedSave, FormatMismatch: as for `load`.
        StorageFull: This machine has less memory than the save's list of pages needs; with verify, than the state of
            its table needs.

    Cost: the list of pages is read; with verify the whole save, once.
    """
    loading = importlib.import_module("relive.saving.loading")
    chosen = None if number is None else integer("number", number, 1)
    where, reads_all = folder_path("path of a save", path), flag("verify", verify)
    return cast("SavedTable", loading.describe(where, number=chosen, verify=reads_all))


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
    reward: RewardFunction | None = None,
    beta: float | None = None,
    timeout_s: float | None = None,
    stream: int = 0,
) -> Loader:
    """The table's batches as a torch IterableDataset, for DataLoader(..., batch_size=None). Needs torch.

    The dataset is endless. Each batch is a dict of tensors: the columns, nested as declared, item_keys int64[B],
    probabilities float64[B], num_live_items int64[], and with beta= also weights float32[B]:

        weight = (N p) ** -beta, divided by the largest weight of the batch

    It has the state_dict of torchdata's StatefulDataLoader (docs/loader.md).

    Args:
        table: a table.
        batch: items of a batch, B.
        rank: the number of this process among those that train together. No two of them draw alike.
        world: the number of those processes.
        columns: as for sample.
        index: as for sample.
        where: as for sample.
        reward: as for sample. Worker processes call it, so it is a function of a module, which pickles.
        beta: exponent of the weights; None: no weights.
        timeout_s: how long a batch waits for the limiter, in seconds, before DeadlineExceeded.
        stream: loaders with different streams draw different items. No effect on a remote table, or on one with an
            exchange of ranks.

    Raises:
        InvalidConfig, UnknownColumn: an argument has another type or value.
        MissingPackage: torch is not installed.
    """
    loading = importlib.import_module("relive.over.loading")  # imported here, because it needs torch
    reading = {"columns": columns, "index": index, "where": where, "reward": reward, "timeout_s": timeout_s}
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
    num_attached: int  # handles; those of killed processes count until the next attach
    alive: bool  # a process is attached
    problem: str = ""  # the reason why it cannot be read; then num_steps and capacity are 0


def _files_that_begin(prefix: str) -> list[str]:
    """The paths of a folder that begin with a prefix, sorted; none if there is no such folder."""
    folder, begin = os.path.split(prefix)
    with contextlib.suppress(OSError):
        return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(begin))
    return []


def list_tables(folder: str | os.PathLike[str] | None = None) -> list[TableRow]:
    """The shared tables of this machine, by name, or the tables that live in folders.

    A file that is no table is listed with its problem.

    Args:
        folder: The folder of a table with storage=File(path), or one with such folders in it; None: shared memory.
    """
    if folder is not None:
        opening = importlib.import_module("relive.saving.opening")
        return [TableRow(**told) for told in opening.rows_of(os.fspath(folder))]
    rows = []
    prefix = f"{SHARED_MEMORY_FOLDER}/{SHARED_MEMORY_PREFIX}"
    for path in _files_that_begin(prefix):
        name = path[len(prefix) :]
        if not is_name(name, MAX_NAME_BYTES):
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
def remove(name: str | File, force: bool = False) -> None:
    """Removes the shared table of this name from the machine, or the table that lives in a folder, with its saves.

    Args:
        name: the name of the shared memory, or File(path).
        force: remove it also if processes are attached, and if the file is no table. Attached processes keep their
            mapping; no other process finds the table.

    Raises:
        NoSuchTable: no table has this name.
        InUse: a process is attached.
        NotARegion, InvalidConfig: the file is no table, or the name is none.
        SystemFailure: the file cannot be removed: another user owns it, or it is a folder.
    """
    if isinstance(name, File):
        importlib.import_module("relive.saving.opening").remove_file(name.path, force=flag("force", force))
        return
    path = SharedMemory(name).path
    if force:
        try:
            os.unlink(path)
        except FileNotFoundError:
            raise NoSuchTable(path) from None
        except OSError as error:  # another user's, or a folder
            raise SystemFailure(f"removing {path}", error.errno or 0) from None
        return
    _core.probe(path)  # raises NotARegion if the file is no table
    try:
        _core.remove(path)
    except InUse as error:
        raise InUse(error.path, attached_pids(error.path)) from None


def _used_bytes(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0
