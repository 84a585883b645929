"""Reads `table.toml`, the tables that a server makes and serves; docs/service.md shows a file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from relive.checks.parts import refuse_unknown
from relive.checks.values import flag, is_text
from relive.config.storage import File, SharedMemory
from relive.config.table_config import VERSION, TableConfig
from relive.errors import InvalidConfig, NoSuchTable, SpecError
from relive.saving.loading import describe
from relive.saving.named import checked_name, named_save, newest_save
from relive.service.wire.address import parse_server
from relive.service.wire.door import Door, ServerTLS
from relive.table.table import Table, attach_file, attach_path, load_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["DOOR_OPTIONS", "ServiceConfig", "door_of", "load_config", "open_table", "read_toml", "table_of"]

DOOR_OPTIONS = ("tokens", "tls", "insecure", "offers")
_TLS = ("certificate", "key", "client_ca")
DEFAULT_ADDRESS = "grpc://127.0.0.1:7070"
_FIXED = ("spec", "index", "capacity", "max_lanes", "seed")  # an existing table keeps these
_MAX_PATH_BYTES = 4096
_SHORT_STORAGES = {
    "shared": ("SharedMemory", "name"),
    "file": ("File", "path"),
}  # {key = value}: the class, and the argument that the value is
_SAVED = ("spec", "index", "seed")  # and a saved table these


@final
@dataclass(frozen=True)
class ServiceConfig:
    """The contents of a whole file.

    Attributes:
        address: the address of the server.
        tables: the tables by name.
        saves: the absolute path of the server's folder of saves; None: clients may not save.
        door: the clients that may connect.
        loads: for tables with the key `load`: the absolute path of the save that a new table starts from; None: it
            starts empty.
    """

    address: str
    tables: Mapping[str, TableConfig]
    saves: str | None = None
    loads: Mapping[str, str | None] = field(default_factory=dict)
    door: Door = Door()  # noqa: RUF009 - a frozen value

    def __post_init__(self) -> None:
        parse_server(self.address)

    def save_of(self, name: str) -> str | None:
        """The save that a new table of this name starts from now: that of its `load`, or its newest; None: none."""
        if name in self.loads:
            return self.loads[name]
        return None if self.saves is None else newest_save(self.saves, name)


def open_table(config: TableConfig, save: str | None = None) -> Table:
    """Attaches to a table that is there already, as after a kill of its server; else makes it.

    The memory of a table without a living process stays after the close, so that a caller that fails loses no content.
    A table that another handle uses stays or ends as its processes have chosen.

    Args:
        config: the table. Only one in SharedMemory, or with storage File, can exist already.
        save: the folder of the save that a new table starts from; None: it starts empty.

    Returns:
        An open table. The caller closes it. Its `loaded` says whether it came from the save.

    Raises:
        InvalidConfig: the table that is there, or the saved one, is not the configured one. A table that is there has
            the same spec, index, capacity, max_lanes and seed, a saved one the same spec, index and seed.
        NoSuchSave, DamagedSave: the save is not there, or damaged.
        ReliveError: as `relive.attach`, `relive.load` and `Table`.
    """
    with contextlib.suppress(NoSuchTable):
        if isinstance(config.storage, SharedMemory):
            table = attach_path(config.storage.path, timeout_s=config.timeout_s)
            if table.core.is_last_writer():
                table.core.set_keeps_file(True)
            return _kept_alike(config, table, f"the table in shared memory {config.storage.name!r}")
        if isinstance(config.storage, File):
            table = attach_file(config.storage, timeout_s=config.timeout_s)
            return _kept_alike(config, table, f"the table that lives in {config.storage.path}")
    if save is None:
        return Table.from_config(config)
    _check_alike(config, describe(save).config, _SAVED, f"the table saved in {save}")
    if not isinstance(config.storage, SharedMemory):
        return load_table(save, config.storage, config.capacity, config.max_lanes, config.timeout_s)
    how = {"more": {"keeps_file": False}}  # until it is loaded: a signal's handler may raise when the core is done
    table = load_table(save, config.storage, config.capacity, config.max_lanes, config.timeout_s, **how)
    table.core.set_keeps_file(config.storage.keep)
    return table


def _kept_alike(config: TableConfig, table: Table, what: str) -> Table:
    """Returns a table that was there. Closes it, and raises InvalidConfig, if it is not the configured one."""
    try:
        _check_alike(config, table.config, _FIXED, what)
    except BaseException:
        table.close()
        raise
    return table


def _check_alike(config: TableConfig, found: TableConfig, names: tuple[str, ...], what: str) -> None:
    for name in names:
        wanted, there = getattr(config, name), getattr(found, name)
        if wanted != there or (name == "index" and list(wanted) != list(there)):
            raise InvalidConfig(f"{name} of {what}", str(wanted), str(there))


def load_config(path: str | Path) -> ServiceConfig:
    """Reads a whole file.

    Args:
        path: a TOML file with a table `[tables.NAME]` for each table, an optional `address`, and an optional `saves`.
            Paths in the file are relative to the folder of the file.

    Returns:
        The address, by default grpc://127.0.0.1:7070, the tables, and where they are saved and loaded from.

    Raises:
        InvalidConfig: the file is not TOML, or a part of it is wrong. The error names the part.
        SpecError: a column is wrong. The error names the column.
        OSError: the file cannot be read.
    """
    parts = read_toml(path)
    refuse_unknown(f"option of {path}", parts, ("address", "persist", "saves", "tables", *DOOR_OPTIONS))
    described = parts.get("tables")
    if not isinstance(described, dict) or not described:
        raise InvalidConfig(str(path), "a [tables.NAME] each", "none")
    here = os.path.dirname(os.path.abspath(path))
    saves = _path_in(here, f"saves of {path}", parts["saves"]) if "saves" in parts else None
    persist = flag(f"persist of {path}", parts.get("persist", True))
    tables, loads = {}, {}
    for name, one in described.items():
        where = f"[tables.{name}]"
        if saves is not None:
            checked_name(f"name of {where}, which is saved", name)
        if isinstance(one, dict) and "load" in one:
            loads[name] = _load_of(where, here, saves, name, one["load"])
            one = {key: value for key, value in one.items() if key != "load"}
        if isinstance(one, dict) and isinstance(one.get("storage"), dict) and "file" in one["storage"]:
            folder = _path_in(here, f"{where} storage file", one["storage"]["file"])
            one = {**one, "storage": {**one["storage"], "file": folder}}
        made = table_of(where, name, one)
        if isinstance(made.storage, SharedMemory):
            made = replace(made, storage=replace(made.storage, keep=persist))
        tables[name] = made
    door = door_of(str(path), here, {name: parts[name] for name in DOOR_OPTIONS if name in parts})
    return ServiceConfig(parts.get("address", DEFAULT_ADDRESS), tables, saves, loads, door)


def door_of(where: str, folder: str, parts: Mapping[str, Any]) -> Door:
    """Reads the options that say which clients may connect: `tokens`, `[tls]`, `insecure` and `offers`.

    Args:
        where: The file, which errors name.
        folder: The folder of the file, to which its paths are relative.
        parts: The options of DOOR_OPTIONS that the file has.

    Raises:
        InvalidConfig: An option is wrong, or names a file that cannot be used.
    """
    told = parts.get("tls")
    tls = None
    if told is not None:
        if not isinstance(told, dict) or not {"certificate", "key"} <= told.keys():
            raise InvalidConfig(f"[tls] of {where}", "certificate and key, as paths", told)
        refuse_unknown(f"option of [tls] of {where}", told, _TLS)
        tls = ServerTLS(**{name: _path_in(folder, f"{name} of [tls] of {where}", told[name]) for name in told})
    tokens = _path_in(folder, f"tokens of {where}", parts["tokens"]) if "tokens" in parts else None
    return Door(tls, tokens, parts.get("insecure", False), parts.get("offers", False))


def _path_in(folder: str, what: str, value: Any) -> str:
    if not is_text(value, _MAX_PATH_BYTES):
        raise InvalidConfig(what, "a path", value)
    return os.path.normpath(os.path.join(folder, value))


def _load_of(where: str, folder: str, saves: str | None, name: str, value: Any) -> str | None:
    """The path of the save that a table starts from. A text with '/' is a path, another text the name of a save."""
    if value is False:
        return None
    if isinstance(value, str) and "/" in value:
        return _path_in(folder, f"{where} load", value)
    if not isinstance(value, str):
        raise InvalidConfig(f"{where} load", "the name of a save, a path with '/', or false", value)
    if saves is None:
        raise InvalidConfig(f"{where} load", "a path with '/', because the file has no `saves`", value)
    return named_save(saves, name, value)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The values of a TOML file. Raises InvalidConfig if the file is not TOML, and OSError if it cannot be read."""
    with open(path, "rb") as file:
        try:
            return tomllib.load(file)
        except (ValueError, RecursionError) as problem:  # TOML and UTF-8, and brackets in brackets
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
    whole["storage"] = _storage_of(name, whole.get("storage", "shared"))
    return whole


def _storage_of(name: str, storage: Any) -> Any:
    """The storage as TableConfig.from_dict reads it. Other forms than the short ones stay as they are."""
    if storage == "local":
        return {"type": "LocalMemory"}
    if storage == "shared":
        return {"type": "SharedMemory", "name": name}
    for short, (kind, argument) in _SHORT_STORAGES.items():
        if isinstance(storage, dict) and short in storage and "type" not in storage:
            others = {key: value for key, value in storage.items() if key != short}
            return {"type": kind, argument: storage[short], **others}
    return storage
