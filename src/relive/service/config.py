"""`table.toml`: the tables that a server makes and serves. docs/service.md shows one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final

from relive.errors import InvalidConfig, NoSuchTable, ReliveError
from relive.index import Index, named_indexes
from relive.service.address import parse_server
from relive.spec import ArraySpec, StepSpec
from relive.storage import LocalMemory, SharedMemory
from relive.table import Table, attach_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ServiceConfig", "TableConfig", "load_config"]

Value = TypeVar("Value")

DEFAULT_ADDRESS = "grpc://127.0.0.1:7070"
_OPTIONS = ("max_lanes", "timeout_s", "seed")


@final
@dataclass(frozen=True)
class TableConfig:
    """One table as a file describes it; open() makes it. Raises InvalidConfig, SpecError."""

    spec: StepSpec
    capacity: int | str
    indexes: Mapping[str, Index] = field(default_factory=dict)
    storage: LocalMemory | SharedMemory = LocalMemory()
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named_indexes(self.indexes or None, self.spec)

    def open(self) -> Table:
        """The table: attached to where it lies in shared memory already, as after a kill of its server, else made.

        Raises InvalidConfig where what lies there is another table, and what Table raises.
        """
        if isinstance(self.storage, SharedMemory):
            try:
                table = attach_path(self.storage.path)
            except NoSuchTable:
                pass
            else:
                try:
                    self._check(table)
                except ReliveError:
                    table.close()
                    raise
                return table
        return Table(self.spec, self.capacity, self.indexes or None, storage=self.storage, **self.options)

    def _check(self, table: Table) -> None:
        assert isinstance(self.storage, SharedMemory)
        where = f"table in shared memory {self.storage.name!r}"
        if table.spec != self.spec:
            raise InvalidConfig(f"columns of the {where}", str(self.spec), str(table.spec))
        indexes = named_indexes(self.indexes or None, self.spec)
        if table.indexes != indexes:
            raise InvalidConfig(f"indexes of the {where}", str(indexes), str(table.indexes))
        if isinstance(self.capacity, int) and table.capacity != self.capacity:
            raise InvalidConfig(f"capacity of the {where}", str(self.capacity), table.capacity)


@final
@dataclass(frozen=True)
class ServiceConfig:
    """A whole file."""

    address: str
    tables: Mapping[str, TableConfig]

    def __post_init__(self) -> None:
        parse_server(self.address)


def load_config(path: str | Path) -> ServiceConfig:
    """Reads a file. Raises InvalidConfig, which names the part that is wrong, and OSError."""
    with open(path, "rb") as file:
        try:
            parts = tomllib.load(file)
        except tomllib.TOMLDecodeError as problem:
            raise InvalidConfig(str(path), "TOML", str(problem)) from None
    _refuse_unknown(parts, ("address", "tables"), str(path))
    described = parts.get("tables")
    if not isinstance(described, dict) or not described:
        raise InvalidConfig(str(path), "a [tables.NAME] each", "none")
    tables = {name: _table(name, one) for name, one in described.items()}
    return ServiceConfig(parts.get("address", DEFAULT_ADDRESS), tables)


def _table(name: str, parts: Any) -> TableConfig:
    where = f"[tables.{name}]"
    if not isinstance(parts, dict):
        raise InvalidConfig(where, "a table of options", parts)
    known = ("capacity", "columns", "unstack", "index", "indexes", "storage", *_OPTIONS)
    _refuse_unknown(parts, known, where)
    for needed in ("capacity", "columns"):
        if needed not in parts:
            raise InvalidConfig(where, f"{needed} = ...", "none")
    spec = _built(where + " columns", lambda: StepSpec(_columns(parts["columns"]), unstack=parts.get("unstack", {})))
    described = parts.get("indexes", {"default": parts["index"]} if "index" in parts else {})
    indexes = {
        index_name: _built(f"{where} index {index_name!r}", partial(Index.from_dict, one))
        for index_name, one in described.items()
    }
    storage = parts.get("storage", "shared")
    if storage == "local":
        kept: LocalMemory | SharedMemory = LocalMemory()
    elif storage == "shared" or (isinstance(storage, dict) and set(storage) == {"shared"}):
        kept = SharedMemory(name if storage == "shared" else storage["shared"])
    else:
        raise InvalidConfig(f"{where} storage", "'shared', { shared = NAME } or 'local'", storage)
    options = {name: parts[name] for name in _OPTIONS if name in parts}
    return TableConfig(spec, parts["capacity"], indexes, kept, options)


def _columns(parts: Any) -> dict[str, Any]:
    """Columns from tables: one with a dtype is a column, any other a group of them."""
    if not isinstance(parts, dict):
        raise InvalidConfig("columns", "a table of columns", parts)
    return {
        name: ArraySpec(tuple(one.get("shape", ())), **{key: value for key, value in one.items() if key != "shape"})
        if isinstance(one, dict) and isinstance(one.get("dtype"), str)
        else _columns(one)
        for name, one in parts.items()
    }


def _built(where: str, build: Callable[[], Value]) -> Value:
    try:
        return build()
    except TypeError as problem:  # an option that the part does not have
        raise InvalidConfig(where, "options that it has", str(problem)) from None


def _refuse_unknown(parts: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(parts) - set(known))
    if unknown:
        raise InvalidConfig(where, "only " + ", ".join(known), ", ".join(unknown))
