"""The configuration of a fleet on a Ray cluster, and the description of a shard. Needs no Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from relive.checks.parts import refuse_unknown
from relive.checks.values import finite, integer, is_name
from relive.config.storage import MAX_NAME_BYTES, SharedMemory
from relive.config.table_config import TableConfig
from relive.errors import InvalidConfig
from relive.fleet.draws.placement import MAX_SHARDS
from relive.service.config import DOOR_OPTIONS, door_of, read_toml, table_of
from relive.service.wire.address import is_table_name
from relive.service.wire.door import Door

__all__ = ["FleetConfig", "ShardReport", "load_config"]

DEFAULT_PORT = 7170
_OF_RAY = ("CPU", "GPU", "memory", "object_store_memory")  # resources that Ray gives to no actor in this way
_LEAST = 0.0001  # of a resource that Ray counts
_OPTIONS = ("name", "num_shards", "port", "num_cpus", "resources", "table", *DOOR_OPTIONS)


@final
@dataclass(frozen=True)
class FleetConfig:
    """The configuration of a fleet: shards 0 to num_shards - 1, each on its own node.

    Args:
        name: name of the fleet. Shard n lies in SharedMemory(f"{name}-{n}") of its node, and is served under this name.
        num_shards: number of shards.
        table: the table of each shard. Its capacity is a shard's capacity; its storage is ignored.
        port: shard n is served at port + n of its node. 0: a free port, which changes after a restart, so handles of
            other hosts must attach again. Default 7170.
        num_cpus: CPUs that Ray reserves for each shard. Default 1.
        resources: further resources that Ray reserves for each shard, {name: amount}. A name is printable text, and no
            resource of every node, such as GPU or memory. An amount is 0, or at least 0.0001.
        door: the clients that may connect to the shards. Its files are paths, which every node must have. None: the
            shards are open, which nodes beyond loopback refuse.

    Raises:
        InvalidConfig: an argument is out of range.
    """

    name: str
    num_shards: int
    table: TableConfig
    port: int = DEFAULT_PORT
    num_cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    door: Door | None = None

    def __post_init__(self) -> None:
        if not is_name(self.name, MAX_NAME_BYTES - 5) or not is_table_name(f"{self.name}-0"):
            expected = (
                f"1 to {MAX_NAME_BYTES - 5} bytes of text without '/', '?', '#' and '%' before two hexadecimal digits"
            )
            raise InvalidConfig("name of a fleet", expected, self.name)
        integer("num_shards", self.num_shards, 1, MAX_SHARDS)
        if not isinstance(self.table, TableConfig):
            raise InvalidConfig("table of a fleet", "a TableConfig", self.table)
        integer("port", self.port, 0, 65_536 - self.num_shards)
        _check_amount("num_cpus", self.num_cpus)
        if not isinstance(self.resources, Mapping):
            raise InvalidConfig("resources", "{name: amount}", self.resources)
        for name, amount in self.resources.items():
            if not is_name(name, MAX_NAME_BYTES) or name in _OF_RAY:  # Ray ends the process, or the node, for some
                expected = f"1 to {MAX_NAME_BYTES} bytes of printable text, and none of {', '.join(_OF_RAY)}"
                raise InvalidConfig("name of one of the resources", expected, name)
            _check_amount(f"resources[{name!r}]", amount)
        if self.door is not None and not isinstance(self.door, Door):
            raise InvalidConfig("door of a fleet", "a Door, or None", self.door)

    def shard(self, number: int) -> TableConfig:
        """The configuration of shard `number`."""
        return replace(self.table, storage=SharedMemory(f"{self.name}-{number}"))

    @property
    def bundle(self) -> dict[str, float]:
        """The resources that Ray reserves for a shard. A bundle must not be empty."""
        return {"CPU": float(self.num_cpus) or 0.001, **self.resources}


def _check_amount(what: str, amount: float) -> None:
    """Raises InvalidConfig for an amount of a resource that Ray would refuse at the start."""
    if 0.0 < finite(what, amount, 0.0) < _LEAST:
        raise InvalidConfig(what, f"0, or at least {_LEAST}", amount)


@final
@dataclass(frozen=True)
class ShardReport:
    """A shard as its actor describes it.

    `state` is "live"; otherwise it says why the shard does not answer, and the other fields have no meaning.
    """

    number: int
    state: str
    num_shards: int = 0  # of the fleet
    node_ip: str = ""
    address: str = ""  # grpc://host:port/name
    name: str = ""  # of its shared memory, on its node
    pid: int = 0
    num_steps: int = 0
    capacity: int = 0
    is_restored: bool = False  # the actor took over the memory of an earlier actor


def load_config(path: str | Path) -> FleetConfig:
    """Reads fleet.toml, as docs/fleet.md shows it.

    Args:
        path: path of the file.

    Returns:
        The configuration.

    Raises:
        InvalidConfig, SpecError: an option is missing, unknown or out of range. The error names it.
        OSError: the file cannot be read.
    """
    parts = read_toml(path)
    refuse_unknown(f"option of {path}", parts, _OPTIONS)
    for name in ("name", "num_shards", "table"):
        if name not in parts:
            raise InvalidConfig(f"{name} in {path}", "given", "none")
    here = os.path.dirname(os.path.abspath(path))
    door = door_of(str(path), here, {name: parts.pop(name) for name in DOOR_OPTIONS if name in parts})
    return FleetConfig(**parts | {"table": table_of("[table]", parts["name"], parts["table"]), "door": door})
