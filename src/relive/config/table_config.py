"""TableConfig: everything that a table is built from, as one frozen value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, final

from relive.checks.names import names_arguments
from relive.checks.parts import from_parts, refuse_unknown, to_parts
from relive.checks.values import integer, timeout
from relive.config.capacity import num_steps
from relive.config.index import Index, check_min_sizes, named_indexes
from relive.config.spec import StepSpec
from relive.config.storage import STORAGES, LocalMemory, Storage
from relive.errors import FormatMismatch, InvalidConfig

__all__ = ["TableConfig"]

VERSION = 2  # of to_dict; raised when another version would misread the dict
_SHARDS = "saved_shards"  # in metadata, beside the configuration
MAX_PARTICIPANTS = 256
_STORAGES = "LocalMemory(), SharedMemory(name), File(path) or Tiered(directory, ram_bytes)"
MAX_LANES = 2**20  # as in the core


@names_arguments
@final
@dataclass(frozen=True, init=False, eq=False, repr=False)
class TableConfig:
    """Everything that a table is built from (Table.from_config), as a frozen value.

    A table stores its configuration, a server sends it, and tables are compared by it. The arguments are those of
    relive.Table. They are kept as plain values: `capacity` in steps, also if it was given as memory; `index` as {name:
    Index}, also if one Index was given. The first index is the default. A configuration prints, compares, hashes and
    pickles, and dataclasses.replace makes a changed one.

    Raises:
        SpecError, UnknownColumn: the spec lacks a column that an index needs.
        InvalidConfig: an argument has another type or value.
        CapacityTooSmall: the limiter of an index waits for more items than the capacity can have.
    """

    spec: StepSpec
    capacity: int
    index: Mapping[str, Index]
    storage: Storage
    max_lanes: int
    timeout_s: float
    seed: int

    def __init__(
        self,
        spec: StepSpec,
        capacity: int | str,
        index: Index | Mapping[str, Index] | None = None,
        storage: Storage | None = None,
        max_lanes: int = 256,
        timeout_s: float = 60.0,
        seed: int = 0,
    ) -> None:
        if not isinstance(spec, StepSpec):
            raise InvalidConfig(
                "spec", "a StepSpec, such as StepSpec.from_spaces(observation_space, action_space)", spec
            )
        if storage is not None and not isinstance(storage, STORAGES):
            raise InvalidConfig("storage", _STORAGES, storage)
        indexes = named_indexes(index, spec)
        steps = num_steps(capacity, spec, len(indexes))
        check_min_sizes(steps, indexes)
        put = object.__setattr__
        put(self, "spec", spec)
        put(self, "capacity", steps)
        put(self, "index", MappingProxyType(indexes))
        put(self, "storage", storage or LocalMemory())
        put(self, "max_lanes", integer("max_lanes", max_lanes, 1, MAX_LANES))
        put(self, "timeout_s", timeout(timeout_s))
        put(self, "seed", integer("seed", seed, 0, 2**64 - 1))

    # ---- as plain values -------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold, with a version; from_dict gives an equal configuration back."""
        return {
            "version": VERSION,
            "spec": self.spec.to_dict(),
            "capacity": self.capacity,
            "index": {name: one.to_dict() for name, one in self.index.items()},
            "storage": to_parts(self.storage),
            "max_lanes": self.max_lanes,
            "timeout_s": None if math.isinf(self.timeout_s) else self.timeout_s,  # JSON has no infinity
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, parts: Mapping[str, Any]) -> TableConfig:
        """The configuration that to_dict wrote. Options that are left out get their defaults.

        version, spec and capacity are needed. Raises FormatMismatch for another version, and the errors of TableConfig.
        """
        if not isinstance(parts, Mapping):
            raise InvalidConfig("configuration of a table", "a dict", parts)
        if parts.get("version") != VERSION:
            raise FormatMismatch("version of the table's configuration", VERSION, parts.get("version"))
        known = ("version", "spec", "capacity", "index", "storage", "max_lanes", "timeout_s", "seed")
        refuse_unknown("option of a table", parts, known)
        for needed in ("spec", "capacity"):
            if needed not in parts:
                raise InvalidConfig(f"{needed} of a table", "a value", "none")
        options = {name: parts[name] for name in ("max_lanes", "seed") if name in parts}
        if "timeout_s" in parts:
            options["timeout_s"] = math.inf if parts["timeout_s"] is None else parts["timeout_s"]
        if "storage" in parts:
            options["storage"] = from_parts("storage of a table", parts["storage"], STORAGES)
        if "index" in parts:
            if not isinstance(parts["index"], Mapping):
                raise InvalidConfig("index of a table", "a dict {name: parts of an Index}", parts["index"])
            options["index"] = {name: Index.from_dict(one) for name, one in parts["index"].items()}
        return cls(StepSpec.from_dict(parts["spec"]), parts["capacity"], **options)

    def to_metadata(self, shards: Sequence[int] = ()) -> bytes:
        """to_dict as the bytes that are stored in a table's region and that a server sends.

        shards: the numbers of all shards of the save that this shard was loaded from.
        """
        return json.dumps({**self.to_dict(), **({_SHARDS: list(shards)} if shards else {})}).encode()

    @classmethod
    def from_metadata(cls, metadata: bytes) -> TableConfig:
        """The configuration of a table that exists. Raises FormatMismatch if this version cannot read it."""
        try:
            parts = json.loads(metadata)
        except ValueError:
            parts = {}
        told = parts if isinstance(parts, dict) else {}
        return cls.from_dict({name: value for name, value in told.items() if name != _SHARDS})

    @staticmethod
    def shards_in(metadata: bytes) -> tuple[int, ...]:
        """The numbers of all shards of the save that a shard was loaded from; none if it was not."""
        parts = json.loads(metadata)
        told = parts.get(_SHARDS) if isinstance(parts, dict) else None
        return tuple(told) if isinstance(told, list) and all(type(one) is int for one in told) else ()

    def core_config(self) -> dict[str, Any]:
        """The table as the core reads it: the parts that spec, indexes and storage give, and the options."""
        return {
            **self.spec.core_config(),
            "indexes": [one.core_config(name, self.spec) for name, one in self.index.items()],
            **self.storage.core_config(),
            "capacity": self.capacity,
            "max_lanes": self.max_lanes,
            "max_participants": MAX_PARTICIPANTS,
            "seed": self.seed,
            "shard": 0,
            "epoch": 0,
            "metadata": self.to_metadata(),
        }

    # ---- value semantics -------------------------------------------------------------------------------------------

    def _values(self) -> tuple[Any, ...]:
        indexes = tuple(self.index.items())  # their order counts: the first is the default
        return self.spec, self.capacity, indexes, self.storage, self.max_lanes, self.timeout_s, self.seed

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, TableConfig) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __reduce__(self) -> tuple[Any, ...]:
        return TableConfig.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        return (
            f"TableConfig({self.spec!r}, {self.capacity}, {dict(self.index)!r}, storage={self.storage!r},"
            f" max_lanes={self.max_lanes}, timeout_s={self.timeout_s!r}, seed={self.seed})"
        )
