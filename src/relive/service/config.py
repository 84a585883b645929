"""Reads `table.toml`: the tables that a server makes and serves. docs/service.md shows an example."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from relive.checks.parts import refuse_unknown
from relive.config.storage import SharedMemory
from relive.config.table_config import VERSION, TableConfig
from relive.errors import InvalidConfig, NoSuchTable, ReliveError, SpecError
from relive.service.wire.address import parse_server
from relive.table.table import Table, attach_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ServiceConfig", "load_config", "open_table", "read_toml", "table_of"]

DEFAULT_ADDRESS = "grpc://127.0.0.1:7070"
_FIXED = ("spec", "index", "capacity", "max_lanes", "seed")  # options that an existing table cannot change


@final
@dataclass(frozen=True)
class ServiceConfig:
    """The content of a whole `table.toml`.

    Args:
        address: Address that the server listens on, grpc://host:port.
        tables: Configuration of each table, by name.

    Raises:
        InvalidConfig: The address is not grpc://host:port.
    """

    address: str
    tables: Mapping[str, TableConfig]

    def __post_init__(self) -> None:
        parse_server(self.address)


def open_table(config: TableConfig) -> Table:
    """Attaches to the table if it already lies in shared memory, else makes the table.

    A table lies in shared memory already if, for example, its server was killed. A table without shared memory is
    always made.

    Args:
        config: The table's configuration.

    Returns:
        The table.

    Raises:
        InvalidConfig: Another table lies in that shared memory: its spec, index, capacity, max_lanes or seed differs.
        ReliveError: The errors that Table raises.
    """
    if not isinstance(config.storage, SharedMemory):
        return Table.from_config(config)
    try:
        table = attach_path(config.storage.path, timeout_s=config.timeout_s)
    except NoSuchTable:
        return Table.from_config(config)
    try:
        for name in _FIXED:
            wanted, there = getattr(config, name), getattr(table.config, name)
            if wanted != there or (name == "index" and list(wanted) != list(there)):
                what = f"{name} of the table in shared memory {config.storage.name!r}"
                raise InvalidConfig(what, str(wanted), str(there))
    except ReliveError:
        table.close()
        raise
    return table


def load_config(path: str | Path) -> ServiceConfig:
    """Reads a `table.toml`.

    Args:
        path: Path of the file.

    Returns:
        The server's address (default: grpc://127.0.0.1:7070) and the tables' configurations.

    Raises:
        InvalidConfig: An option is wrong, or no table is described. The error names the wrong part.
        SpecError: A spec is wrong. The error names the wrong part.
        OSError: The file cannot be read.
    """
    parts = read_toml(path)
    refuse_unknown(f"option of {path}", parts, ("address", "tables"))
    described = parts.get("tables")
    if not isinstance(described, dict) or not described:
        raise InvalidConfig(str(path), "a [tables.NAME] each", "none")
    tables = {name: table_of(f"[tables.{name}]", name, one) for name, one in described.items()}
    return ServiceConfig(parts.get("address", DEFAULT_ADDRESS), tables)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Reads a TOML file as a dict.

    Args:
        path: Path of the file.

    Returns:
        The file's options by name.

    Raises:
        InvalidConfig: The file is not TOML.
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        try:
            return tomllib.load(file)
        except tomllib.TOMLDecodeError as problem:
            raise InvalidConfig(str(path), "TOML", str(problem)) from None


def table_of(where: str, name: str, parts: Any) -> TableConfig:
    """Reads one table's options: those of TableConfig.from_dict, with shorter spellings for common cases.

    Args:
        where: The part of the file, for errors.
        name: Name of the shared memory, if the options give no other name.
        parts: The table's options.

    Returns:
        The table's configuration.

    Raises:
        InvalidConfig: An option is wrong.
        SpecError: The spec is wrong.
    """
    if not isinstance(parts, dict):
        raise InvalidConfig(where, "a table of options", parts)
    try:
        return TableConfig.from_dict({"version": VERSION, **_spelled_out(name, parts)})
    except (InvalidConfig, SpecError) as problem:
        raise type(problem)(f"{where} {problem.what}", problem.expected, problem.got) from None


def _spelled_out(name: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Spells out columns and unstack as a spec, one index as a dict, and 'shared' or 'local' as a storage."""
    whole = dict(parts)
    for long, short in (("spec", "columns"), ("index", "indexes")):
        if long in whole and short in whole:
            raise InvalidConfig(f"{long} and {short}", "one of the two", "both")
    if "columns" in whole:
        whole["spec"] = {key: whole.pop(key) for key in ("columns", "unstack") if key in whole}
    index = whole.get("index")
    if "indexes" in whole:
        whole["index"] = whole.pop("indexes")
    elif isinstance(index, dict):
        whole["index"] = {"default": index}
    storage = whole.get("storage", "shared")
    if storage == "local":
        whole["storage"] = {"type": "LocalMemory"}
    elif storage == "shared":
        whole["storage"] = {"type": "SharedMemory", "name": name}
    elif isinstance(storage, dict) and set(storage) == {"shared"}:
        whole["storage"] = {"type": "SharedMemory", "name": storage["shared"]}
    return whole
