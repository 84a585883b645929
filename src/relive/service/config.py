"""Reads `table.toml`, the tables that a server makes and serves; docs/service.md shows a file."""

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
_FIXED = ("spec", "index", "capacity", "max_lanes", "seed")  # an existing table keeps these


@final
@dataclass(frozen=True)
class ServiceConfig:
    """The contents of a whole file: the address of the server, and {name: table}."""

    address: str
    tables: Mapping[str, TableConfig]

    def __post_init__(self) -> None:
        parse_server(self.address)


def open_table(config: TableConfig) -> Table:
    """Attaches to a table that is already in shared memory, as after a kill of its server; else makes the table.

    Args:
        config: the table. Only one in SharedMemory can exist already.

    Returns:
        An open table. The caller closes it.

    Raises:
        InvalidConfig: the table in shared memory differs in spec, index, capacity, max_lanes or seed.
        ReliveError: as `relive.attach` and `Table`.
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
    """Reads a whole file.

    Args:
        path: a TOML file with a table `[tables.NAME]` for each table, and an optional `address`.

    Returns:
        The address, by default grpc://127.0.0.1:7070, and the tables.

    Raises:
        InvalidConfig: the file is not TOML, or a part of it is wrong. The error names the part.
        SpecError: a column is wrong. The error names the column.
        OSError: the file cannot be read.
    """
    parts = read_toml(path)
    refuse_unknown(f"option of {path}", parts, ("address", "tables"))
    described = parts.get("tables")
    if not isinstance(described, dict) or not described:
        raise InvalidConfig(str(path), "a [tables.NAME] each", "none")
    tables = {name: table_of(f"[tables.{name}]", name, one) for name, one in described.items()}
    return ServiceConfig(parts.get("address", DEFAULT_ADDRESS), tables)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The values of a TOML file. Raises InvalidConfig if the file is not TOML, and OSError if it cannot be read."""
    with open(path, "rb") as file:
        try:
            return tomllib.load(file)
        except tomllib.TOMLDecodeError as problem:
            raise InvalidConfig(str(path), "TOML", str(problem)) from None


def table_of(where: str, name: str, parts: Any) -> TableConfig:
    """Reads one table of a file.

    Args:
        where: the place in the file, which errors name.
        name: of the shared memory, if the table has no `storage`.
        parts: the options: those of `TableConfig.from_dict`, and the shorter forms that docs/service.md shows.

    Returns:
        The configuration of the table.

    Raises:
        InvalidConfig: an option is wrong.
        SpecError: a column is wrong.
    """
    if not isinstance(parts, dict):
        raise InvalidConfig(where, "a table of options", parts)
    try:
        return TableConfig.from_dict({"version": VERSION, **_spelled_out(name, parts)})
    except (InvalidConfig, SpecError) as problem:
        raise type(problem)(f"{where} {problem.what}", problem.expected, problem.got) from None


def _spelled_out(name: str, parts: dict[str, Any]) -> dict[str, Any]:
    """Replaces the shorter forms.

    `columns` and `unstack` stand for `spec`, a single index for a dict of indexes, and 'shared', 'local' or
    {shared = NAME} for a storage.
    """
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
