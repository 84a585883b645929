"""TransferQueue's storage on a shared table: one setting of its configuration.

    import transfer_queue as tq
    from relive.adapters.transferqueue import BACKEND

    tq.init(OmegaConf.create({"backend": {"storage_backend": BACKEND}}))

TransferQueue's controller keeps its work: metadata, groups, claims and the status of each field. The fields of the
samples lie in a table in the shared memory of the machine. A put copies them there once, and a get copies them out
once; no process stands in between. The configuration names the table, so that other processes need no import.

This module imports transfer_queue. `import relive` alone does not import this module.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np

from relive.adapters.errors import GoneValues, NotOffered
from relive.adapters.rollouts.blocks import BLOCK_BYTES, Blocks
from relive.adapters.rollouts.entries import describe, entries_of, place_of
from relive.checks.names import names_arguments
from relive.core.forks import renewed_in_children
from relive.errors import InvalidConfig, MissingPackage
from relive.errors.extras import install_command

try:
    from tensordict import TensorDict
    from transfer_queue.metadata import BatchMeta, extract_field_schema
    from transfer_queue.storage import StorageKeyNotFoundError, StorageManager, StorageManagerFactory
    from transfer_queue.storage.bootstrap import StorageBootstrapProvider
except ImportError as _problem:
    _package = _problem.name or "TransferQueue"
    raise MissingPackage("relive.adapters.transferqueue", _package, install_command("transferqueue")) from _problem

from relive.adapters.rollouts.tensors import column_of, values_of

__all__ = ["BACKEND", "FieldGone", "ReliveStorageManager", "StorageOptions", "StoreAddress"]

BACKEND = "relive"  # the value of backend.storage_backend in TransferQueue's configuration
_ADDRESS = "address"  # the entry that the bootstrap adds to backend.relive
_INLINE_BYTES = 1 << 20  # larger puts leave the event loop


@names_arguments
@dataclass(frozen=True)
class StorageOptions:
    """The entries of backend.relive in TransferQueue's configuration.

    Args:
        capacity: the most blocks, or an amount of memory such as "4GiB". A full store drops its oldest fields, and a
            get of a dropped field raises FieldGone.
        name: of the shared memory; None: a new name.
        block_bytes: a field of a sample takes whole blocks.
        max_processes: the most processes that put samples at the same time.
    """

    capacity: int | str = "4GiB"
    name: str | None = None
    block_bytes: int = BLOCK_BYTES
    max_processes: int = 64


class StoreAddress:
    """The name of the table. A process that unpickles it imports this module, and so registers the backend there.

    The class is no dataclass, because OmegaConf would keep a dataclass as a mapping.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"StoreAddress({self.name!r})"


class FieldGone(GoneValues, StorageKeyNotFoundError):
    """A field of a sample was read that was cleared, dropped or never put. TransferQueue's error is its base, too."""


@StorageBootstrapProvider.register_provider(BACKEND)
def make_store(conf: Any) -> dict[str, Any]:
    """Makes the table of a TransferQueue system, when tq.init() begins the system.

    Raises:
        InvalidConfig, UnknownArgument: an entry of backend.relive has another type, value or name.
        and the errors of relive.Table.
    """
    given = conf.backend.get(BACKEND)
    if given is not None and not isinstance(given, Mapping):
        raise InvalidConfig("backend.relive", "a mapping with capacity, name, block_bytes, max_processes", given)
    options = StorageOptions(**{str(name): value for name, value in (given or {}).items() if name != _ADDRESS})
    name = options.name or f"transferqueue-{uuid4().hex[:12]}"
    _Stores.make(name, options)
    conf.backend[BACKEND] = {**vars(options), "name": name, _ADDRESS: StoreAddress(name)}
    return {"name": name}


class _Stores:
    """The stores of this process, one for each name, with the number of managers that use each."""

    _lock: threading.Lock
    _open: dict[str, Blocks] = {}
    _users: dict[str, int] = {}

    @classmethod
    def make(cls, name: str, options: StorageOptions) -> None:
        with cls._lock:
            cls._open[name] = Blocks.make(name, options.capacity, options.block_bytes, options.max_processes)
            cls._users[name] = 0

    @classmethod
    def take(cls, name: str) -> Blocks:
        with cls._lock:
            if name not in cls._open:
                cls._open[name] = Blocks.attach(name)
            cls._users[name] = cls._users.get(name, 0) + 1
            return cls._open[name]

    @classmethod
    def release(cls, name: str) -> None:
        with cls._lock:
            cls._users[name] -= 1
            if cls._users[name] == 0:
                cls._open.pop(name).close()


_Stores._lock = renewed_in_children(_Stores, "_lock", threading.Lock)


@StorageManagerFactory.register(BACKEND)
class ReliveStorageManager(StorageManager):
    """Puts, gets and clears the fields of samples in a table.

    The place of each field travels with TransferQueue's metadata of the sample, so that a get asks no other process.
    The manager that closes in the process of the first tq.init() removes the table.

    Args:
        controller_info: TransferQueue's, of its controller.
        config: backend.relive of the configuration that tq.init() made.
        zmq_context: TransferQueue's.

    Raises:
        InvalidConfig: the configuration does not come from tq.init().
        NoSuchTable: the table is on another machine, or the system was closed.
    """

    def __init__(self, controller_info: Any, config: Any, zmq_context: Any = None) -> None:
        address = config.get(_ADDRESS) if config is not None else None
        if not isinstance(address, StoreAddress):
            expected = "the configuration that tq.init() completed, with the address of the table"
            raise InvalidConfig("config of the backend relive", expected, address)
        self._address = address
        self._store: Blocks | None = _Stores.take(address.name)
        try:
            super().__init__(controller_info, config, zmq_context=zmq_context)
        except BaseException:
            self._release()
            raise

    @property
    def store(self) -> Blocks:
        """The store of this process."""
        if self._store is None:
            raise NotOffered("a closed storage manager", "reads and writes", "call tq.init() again")
        return self._store

    async def put_data(
        self, data: TensorDict, metadata: BatchMeta, data_parser: Callable[[Any], Any] | None = None
    ) -> None:
        """Stores the fields of samples, and tells the controller.

        A field that the metadata says is stored already is replaced.

        Args:
            data: fields [B, ...], nested tensors, or stacks of objects. Objects that are no tensors are pickled.
            metadata: of the B samples.
            data_parser: not offered.

        Raises:
            NotOffered: a data_parser is given.
            InvalidConfig: data and metadata have different numbers of samples.
            and the errors of Blocks.put.
        """
        if data_parser is not None:
            raise NotOffered("the backend relive", "data_parser", "parse the data before put")
        size = data.batch_size[0]
        if size != metadata.size:
            raise InvalidConfig("data of put", f"{metadata.size} samples, as its metadata", size)
        if not size:
            return
        names = sorted(data.keys())
        values, descriptions = [], []
        for name in names:
            rows, described = values_of(data.get(name))
            if len(rows) != size:
                raise InvalidConfig(f"field {name!r} of put", f"{size} samples", len(rows))
            values += rows
            descriptions += described
        if sum(value.size for value in values) > _INLINE_BYTES:
            places = await asyncio.get_running_loop().run_in_executor(None, self.store.put, values)
        else:
            places = self.store.put(values)
        entries = entries_of(descriptions, places)
        told: dict[int, dict[str, Any]] = {sample: {} for sample in metadata.global_indexes}
        for column, name in enumerate(names):
            for sample, entry in zip(metadata.global_indexes, entries[column * size :], strict=False):
                told[sample][name] = entry
        await self.notify_data_update(
            metadata.partition_ids[0], metadata.global_indexes, extract_field_schema(data), told
        )
        replaced = []
        for sample, known in zip(metadata.global_indexes, metadata._custom_backend_meta, strict=True):
            replaced += [place_of(known[name]) for name in names if known.get(name)]
            known.update(told[sample])
        self.store.delete(replaced)

    async def get_data(self, metadata: BatchMeta) -> TensorDict:
        """The fields that the metadata names, of its samples.

        Raises:
            FieldGone: a field of a sample was cleared, dropped or never put.
        """
        names, size = metadata.field_names, metadata.size
        entries = [known.get(name) for name in names for known in metadata._custom_backend_meta]
        store = self.store
        limit = store.table.capacity * store.block_bytes
        if not all(entries):
            raise FieldGone(next(at for at, entry in enumerate(entries) if not entry), None, limit)
        places = [place_of(entry) for entry in entries if entry]
        try:
            flat, begins = store.get(places)
        except GoneValues as error:
            raise FieldGone(error.position, error.key, error.num_bytes) from None
        columns = {}
        for at, name in enumerate(names):
            rows = slice(at * size, (at + 1) * size)
            columns[name] = column_of(
                flat, np.asarray(begins[rows]), [describe(entry) for entry in entries[rows] if entry]
            )
        return TensorDict(columns, batch_size=[size])

    async def clear_data(self, metadata: BatchMeta) -> None:
        """Deletes all fields of the samples that the metadata knows."""
        known = metadata._custom_backend_meta
        self.store.delete(place_of(entry) for fields in known for entry in fields.values() if entry)

    def close(self) -> None:
        """Closes the manager, and the table if no other manager of this process uses it."""
        self._release()
        super().close()

    def _release(self) -> None:
        if getattr(self, "_store", None) is not None:
            self._store = None
            _Stores.release(self._address.name)
