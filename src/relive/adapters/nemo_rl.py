"""NeMo-RL's DataPlaneClient on a shared table: its eight calls.

    from relive.adapters.nemo_rl import ReliveDataPlaneClient

    driver = ReliveDataPlaneClient({"relive": {"capacity": "8GiB"}})
    worker = ReliveDataPlaneClient({}, bootstrap=False)  # in each other process of the machine

The fields of the samples lie in a table in the shared memory of the machine, and a ledger in shared memory has the
rest: partitions, samples, tags and claims. No process serves the others. A claim waits for fields that come later, such
as rewards.

This module imports nemo_rl. `import relive` alone does not import this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from relive.adapters.errors import NotOffered, NotProduced
from relive.adapters.rollouts.blocks import BLOCK_BYTES, Blocks
from relive.adapters.rollouts.entries import describe, entries_of, place_of
from relive.adapters.rollouts.ledger import Ledger, ledger_path
from relive.checks.names import names_arguments
from relive.checks.values import integer
from relive.errors import InvalidConfig, MissingPackage

try:
    from nemo_rl.data_plane.interfaces import DataPlaneClient, KVBatchMeta
    from tensordict import TensorDict
except ImportError as _problem:
    _package = _problem.name or "nemo_rl"
    raise MissingPackage(
        "relive.adapters.nemo_rl", _package, "install NeMo-RL from its repository, with its data plane"
    ) from _problem

from relive.adapters.rollouts.tensors import column_of, values_of

__all__ = ["ReliveDataPlaneClient", "StoreOptions"]


@names_arguments
@dataclass(frozen=True)
class StoreOptions:
    """The entries of cfg["relive"].

    Args:
        name: of the shared memory. Every process of a run gives the same name.
        capacity: the most blocks, or an amount of memory such as "4GiB". A full store drops its oldest fields.
        block_bytes: a field of a sample takes whole blocks.
        max_processes: the most processes that put samples at the same time.
        max_staleness: `claim_meta` leaves out samples whose tag "weight_version" is more versions behind
            `set_weight_version`; None: none.
    """

    name: str = "nemo-rl"
    capacity: int | str = "4GiB"
    block_bytes: int = BLOCK_BYTES
    max_processes: int = 64
    max_staleness: int | None = None


class ReliveDataPlaneClient(DataPlaneClient):  # type: ignore[misc,unused-ignore]
    """A data plane for the processes of one machine.

    Args:
        cfg: NeMo-RL's data plane configuration. Its entry "relive" has the fields of StoreOptions.
        bootstrap: True in the driver: make the store. False: use the store of the driver.

    Raises:
        InvalidConfig, UnknownArgument: an entry of cfg["relive"] has another type, value or name.
        NoSuchTable: no driver of this machine has made the store.
        TableExists: another driver uses a store of this name.
    """

    def __init__(self, cfg: Mapping[str, Any], *, bootstrap: bool = True) -> None:
        given = cfg.get("relive") or {}
        if not isinstance(given, Mapping):
            raise InvalidConfig('cfg["relive"]', "a mapping with the fields of StoreOptions", given)
        self.options = StoreOptions(**given)
        if self.options.max_staleness is not None:
            integer("max_staleness", self.options.max_staleness, 0)
        made = self.options
        self._bootstrap = bootstrap
        self._closed = False
        if bootstrap:
            self._store = Blocks.make(made.name, made.capacity, made.block_bytes, made.max_processes, overwrite=True)
        else:
            self._store = Blocks.attach(made.name)
        try:
            self._ledger = Ledger(ledger_path(made.name), make=bootstrap)
        except BaseException:
            self._store.close()
            raise

    def register_partition(
        self,
        partition_id: str,
        fields: list[str],
        num_samples: int,
        consumer_tasks: list[str],
        grpo_group_size: int | None = None,
        enums: dict[str, list[str]] | None = None,
    ) -> None:
        """Declares a partition and its tasks. A second call changes the declaration and keeps the samples.

        Args:
            partition_id: its name.
            fields: not needed: each field has the type of its first put.
            num_samples: the samples that are expected. The last claim of a task may be smaller than its batch.
            consumer_tasks: each task claims each sample once.
            grpo_group_size: claims take whole groups of this size: samples whose ids are equal up to the last "_g".
            enums: not offered.
        """
        if enums:
            raise NotOffered("relive's data plane", "enums", "put the texts, or their numbers, as fields")
        group = None if grpo_group_size is None else integer("grpo_group_size", grpo_group_size, 1)
        self._ledger.register(partition_id, integer("num_samples", num_samples, 0), consumer_tasks, group)

    def claim_meta(
        self,
        partition_id: str,
        task_name: str,
        required_fields: list[str],
        batch_size: int,
        dp_rank: int | None = None,
        blocking: bool = True,
        timeout_s: float = 60.0,
    ) -> Any:
        """Claims the oldest samples that have all required fields and that the task has not claimed.

        Args:
            partition_id, task_name: of register_partition.
            required_fields: that each sample must have.
            batch_size: the most samples.
            dp_rank: not used.
            blocking: wait for batch_size samples, or for the rest of num_samples. False: take the samples that are
                ready, at most batch_size, possibly none.
            timeout_s: the longest wait.

        Returns:
            KVBatchMeta with sample ids, required fields, tags, and the tags "input_lengths" as sequence lengths.

        Raises:
            NotRegistered: the partition or the task.
            DeadlineExceeded: fewer samples were ready when the time was up.
            InvalidConfig: batch_size is smaller than a group.
        """
        wait = timeout_s if blocking else 0.0
        claim = self._ledger.claim(
            partition_id,
            task_name,
            required_fields,
            integer("batch_size", batch_size, 1),
            wait,
            self.options.max_staleness,
            whole=blocking,
        )
        lengths = [int(tags.get("input_lengths", 0)) for tags in claim.tags]
        return KVBatchMeta(
            partition_id=partition_id,
            task_name=task_name,
            sample_ids=claim.samples,
            fields=list(required_fields),
            sequence_lengths=lengths if any("input_lengths" in tags for tags in claim.tags) else None,
            tags=claim.tags,
        )

    def get_data(self, meta: Any, select_fields: list[str] | None = None) -> TensorDict:
        """The fields of the samples of a meta: select_fields, or else the meta's own.

        Raises:
            InvalidConfig: neither names fields.
            and the errors of get_samples.
        """
        fields = select_fields if select_fields is not None else meta.fields
        if fields is None:
            raise InvalidConfig("select_fields", "names of fields, or a meta that has names of fields", None)
        return self.get_samples(meta.sample_ids, meta.partition_id, list(fields))

    def check_consumption_status(self, partition_id: str, task_names: list[str]) -> bool:
        """Whether the partition has samples and each of the tasks has claimed all of them.

        Raises:
            NotRegistered: the partition.
        """
        return self._ledger.consumed(partition_id, task_names)

    def put_samples(
        self,
        sample_ids: list[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> Any:
        """Adds fields and tags to samples. A field that is there already is replaced.

        Args:
            sample_ids: B names. A name that is new makes a sample.
            partition_id: of register_partition.
            fields: tensors [B, ...], nested tensors, or stacks of objects. Objects that are no tensors are pickled.
            tags: B mappings of plain values.

        Raises:
            NotRegistered: the partition.
            InvalidConfig: fields or tags are not B, or two names are equal.
            and the errors of Blocks.put.
        """
        if tags is not None and len(tags) != len(sample_ids):
            raise InvalidConfig("tags", f"{len(sample_ids)} mappings, one for each sample", len(tags))
        if len(set(sample_ids)) < len(sample_ids):
            raise InvalidConfig("sample_ids", "names that differ", sample_ids)
        entries = {} if fields is None else self._stored(sample_ids, fields)
        groups = [sample.rpartition("_g")[0] or sample for sample in sample_ids]
        try:
            replaced = self._ledger.put(partition_id, sample_ids, groups, entries, tags)
        except BaseException:
            self._store.delete(place_of(entry) for column in entries.values() for entry in column)
            raise
        self._store.delete(place_of(entry) for entry in replaced)
        return KVBatchMeta(
            partition_id=partition_id,
            task_name=None,
            sample_ids=list(sample_ids),
            fields=None if fields is None else list(entries),
            tags=None if tags is None else [dict(one) for one in tags],
        )

    def _stored(self, sample_ids: Sequence[str], fields: TensorDict) -> dict[str, list[str]]:
        """Stores fields. Returns the entries of each: descriptions and places."""
        names, size = [str(name) for name in fields.keys()], len(sample_ids)
        values, descriptions = [], []
        for name in names:
            rows, described = values_of(fields.get(name))
            if len(rows) != size:
                raise InvalidConfig(f"field {name!r}", f"{size} rows, one for each sample", len(rows))
            values += rows
            descriptions += described
        places = self._store.put(values)
        entries = entries_of(descriptions, places)
        return {name: entries[at * size : (at + 1) * size] for at, name in enumerate(names)}

    def get_samples(self, sample_ids: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        """The fields of samples. Claims nothing.

        Returns:
            A TensorDict [B]. Rows of one shape are stacked; other tensors are a nested tensor.

        Raises:
            NotRegistered: the partition.
            NotProduced: a sample, or a field of a sample, is not there.
            GoneValues: the store was full and dropped a field.
        """
        size = len(sample_ids)
        if not size:
            return TensorDict({}, batch_size=[0])
        found = self._ledger.entries(partition_id, sample_ids, select_fields)
        for name, column in zip(select_fields, found, strict=True):
            for sample, entry in zip(sample_ids, column, strict=True):
                if entry is None:
                    raise NotProduced(sample, name, partition_id)
        entries = [entry for column in found for entry in column if entry is not None]
        flat, begins = self._store.get([place_of(entry) for entry in entries])
        columns = {}
        for at, name in enumerate(select_fields):
            rows = slice(at * size, (at + 1) * size)
            described = [describe(entry) for entry in entries[rows]]
            columns[name] = column_of(flat, np.asarray(begins[rows]), described, dense=True)
        return TensorDict(columns, batch_size=[size])

    def clear_samples(self, sample_ids: list[str] | None, partition_id: str) -> None:
        """Removes samples with their fields, tags and claims; None: all samples of the partition, of every process."""
        self._store.delete(place_of(entry) for entry in self._ledger.clear(partition_id, sample_ids))

    def set_weight_version(self, version: int) -> None:
        """Sets the version of the learner's weights, for max_staleness. This call is relive's own."""
        self._ledger.set_version(integer("version", version, 0))

    def close(self) -> None:
        """Closes the client. The driver's call removes the store. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._bootstrap:
            self._ledger.remove()
        self._ledger.close()
        self._store.close()
