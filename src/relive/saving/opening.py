"""Opens tables that live in folders: makes them, attaches to them, and builds them from their saves if need be."""

from __future__ import annotations

import contextlib
import math
import os
import time
from dataclasses import dataclass, replace
from typing import Any, final

from relive import _core
from relive.config.storage import File
from relive.config.table_config import TableConfig
from relive.core.attached import attached_pids
from relive.errors import (
    DamagedSave,
    InUse,
    InvalidConfig,
    NameTaken,
    NoSuchSave,
    NoSuchTable,
    ReliveError,
    SystemFailure,
)
from relive.saving.folder import DOOR, remove_all
from relive.saving.keeping import Keeper
from relive.saving.loading import LoadedCore, describe, load_core
from relive.saving.place import Place
from relive.saving.reader import open_save

__all__ = ["KeptCore", "attach_file", "load_file", "open_file", "remove_file", "rows_of"]


@final
@dataclass(frozen=True)
class KeptCore:
    """A core of a table that lives in a folder.

    Attributes:
        core: The core.
        config: The configuration of the table, with the storage that the caller gave.
        keeper: Saves and closes it; None: the handle is read-only.
        loaded: How it was loaded; None: it was not, or by another process.
    """

    core: _core.CoreTable
    config: TableConfig
    keeper: Keeper | None
    loaded: LoadedCore | None


def open_file(config: TableConfig) -> KeptCore:
    """Opens the table that lives in the folder of config.storage, or makes it. Raises the errors of File."""
    storage = _file_of(config)
    ends_s = time.monotonic() + config.timeout_s
    place = Place.made(str(storage.path), ends_s)
    with place.door(ends_s):
        if _is_there(place):
            return _attached(place, storage, None, ends_s, config)
        if _newest_region(place) is not None:
            _refuse_another(describe(place.folder).config, config)
            loaded = load_core(place.folder, storage, None, None, region=place.region)
            return _new(loaded.core, config, place, loaded)
        return _new(_core.create_table(config.core_config(), place.region), config, place, None)


def attach_file(storage: File, stream: int | None, timeout_s: float | None, read_only: bool) -> KeptCore:
    """Opens the table that lives in a folder. A table whose memory the machine has lost is built from its last save.

    Raises:
        NoSuchTable: No table lives in the folder; or it must be built from its save, which a read-only handle
            does not do.
        DamagedSave, NotARegion, FormatMismatch: It cannot be read.
        DeadlineExceeded: Other processes open or close it all the time.
        InUse: Another host uses it.
    """
    ends_s = time.monotonic() + (60.0 if timeout_s is None else timeout_s)
    folder = str(storage.path)
    try:
        place = Place.of(folder)
    except NoSuchSave:
        raise NoSuchTable(folder) from None
    if not os.path.lexists(os.path.join(folder, DOOR)):  # a folder of saves
        raise NoSuchTable(folder)
    with place.door(ends_s):
        if _is_there(place):
            return _attached(place, storage, stream, ends_s, None, read_only=read_only)
        if read_only or _newest_region(place) is None:
            raise NoSuchTable(folder)
        loaded = load_core(folder, storage, None, None, region=place.region)
        loaded = replace(loaded, core=_of_stream(loaded.core, stream, place))
        return _new(loaded.core, loaded.config, place, loaded)


def load_file(path: str, storage: File, capacity: int | None, max_lanes: int | None, **how: Any) -> KeptCore:
    """Loads a save of a folder into another folder, where the table then lives. `how`: as for load_core.

    Raises:
        NameTaken: A table lives there, or the folder has saves.
        ReliveError: Those of relive.load.
    """
    ends_s = time.monotonic() + 60.0
    place = Place.made(str(storage.path), ends_s)
    with place.door(ends_s):
        if _is_there(place) or _newest_region(place) is not None:
            raise NameTaken(place.folder, attached_pids(place.region))
        loaded = load_core(path, storage, capacity, max_lanes, region=place.region, **how)
        return replace(_new(loaded.core, loaded.config, place, None), loaded=loaded)


def remove_file(folder: str, *, force: bool) -> None:
    """Removes a table that lives in a folder, with its saves. Files that relive has not made stay.

    Args:
        folder: The folder.
        force: Also while processes are attached to the table, and also if its region is damaged.

    Raises:
        NoSuchTable: None lives there.
        InUse: A process is attached.
    """
    if not os.path.lexists(os.path.join(folder, DOOR)):
        raise NoSuchTable(folder)
    place = Place.of(folder)
    with place.door(time.monotonic() + 60.0):
        hosts = place.among_hosts(alone=not force)
        try:
            if not force:
                with contextlib.suppress(NoSuchTable):
                    _remove_region(place)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place.region)
        finally:
            if hosts is not None:
                hosts.close()
        remove_all(folder)


def rows_of(folder: str) -> list[dict[str, Any]]:
    """Describes the table that lives in a folder, or else those in the folders of the folder, by path."""
    if os.path.lexists(os.path.join(folder, DOOR)):
        return [_row_of(folder)]
    try:
        with os.scandir(folder) as entries:
            inside = sorted(entry.path for entry in entries if entry.is_dir())
    except OSError as error:
        raise SystemFailure(f"listing {folder}", error.errno or 0) from None
    return [_row_of(one) for one in inside if os.path.lexists(os.path.join(one, DOOR))]


def _row_of(folder: str) -> dict[str, Any]:
    """Returns the fields of a TableRow. A table without a region is described by its newest save."""
    row: dict[str, Any] = {"name": folder, "path": folder, "alive": False}
    row |= dict.fromkeys(("num_bytes", "num_steps", "capacity", "num_attached"), 0)
    try:
        place = Place.of(folder)
        row["path"] = place.region
        try:
            facts = _core.probe(place.region)
        except NoSuchTable:
            saved = describe(folder)
            return row | {"num_bytes": saved.num_bytes, "num_steps": saved.num_steps, "capacity": saved.config.capacity}
        numbers = {name: int(facts[name]) for name in ("num_bytes", "num_steps", "capacity", "num_attached")}
        return row | numbers | {"alive": bool(facts["attached"])}
    except (ReliveError, OSError) as error:
        return row | {"problem": str(error)}


def _file_of(config: TableConfig) -> File:
    assert isinstance(config.storage, File)
    return config.storage


def _newest_region(place: Place) -> str | None:
    """Returns the region that the newest save is of; None: there is no save."""
    try:
        with open_save(place.folder) as reader:
            return str(reader.facts.get("region"))
    except NoSuchSave:
        return None


def _is_there(place: Place) -> bool:
    """Whether the region is there and its bytes are whole. A region that is not is removed.

    A region is also outdated if the newest save is of another one: another host has built the table from its save
    meanwhile. Each new region is saved before a process has a handle on it.
    """
    try:
        facts = _core.probe(place.region)
    except NoSuchTable:
        return False
    if facts["attached"]:
        return True
    is_lost = bool(facts["is_lost"])
    try:
        newest = _newest_region(place)
    except DamagedSave:
        if is_lost:
            raise
        return True
    if is_lost or newest not in (None, facts["uuid"]):
        _remove_region(place)
        return False
    return True


def _remove_region(place: Place) -> None:
    try:
        _core.remove(place.region)
    except InUse as error:
        raise InUse(error.path, attached_pids(error.path)) from None


def _attached(
    place: Place,
    storage: File,
    stream: int | None,
    ends_s: float,
    asked: TableConfig | None,
    *,
    read_only: bool = False,
) -> KeptCore:
    left_s = max(ends_s - time.monotonic(), 0.0)
    core = _core.attach_table(place.region, read_only, stream, left_s if math.isfinite(left_s) else 60.0)
    try:
        config = replace(TableConfig.from_metadata(core.metadata), storage=storage)
        if asked is not None:
            _refuse_another(config, asked)
            config = asked
        if read_only:
            return KeptCore(core, config, None, None)
        hosts = place.among_hosts(alone=False)
        core.set_keeps_file(True)  # the one that closed last may have left that to us
        keeper = Keeper(core, config, place, hosts)
        keeper.begin(None, is_new=False)
    except BaseException:
        core.close()
        raise
    return KeptCore(core, config, keeper, None)


def _of_stream(made: _core.CoreTable, stream: int | None, place: Place) -> _core.CoreTable:
    """Returns a handle of this stream on a region that was just made, in place of the handle that made it."""
    if stream is None or stream == made.stream:
        return made
    try:
        return _core.attach_table(place.region, False, stream, 60.0)
    except BaseException:
        made.set_keeps_file(False)
        raise
    finally:
        made.close()


def _new(core: _core.CoreTable, config: TableConfig, place: Place, loaded: LoadedCore | None) -> KeptCore:
    """Keeps a region that was just made. A region that cannot be saved once is removed again."""
    try:
        keeper = Keeper(core, config, place, place.among_hosts(alone=True))
        keeper.begin(loaded.own_cut if loaded is not None else None, is_new=True)
    except BaseException:
        core.set_keeps_file(False)
        core.close()
        raise
    return KeptCore(core, config, keeper, loaded)


def _refuse_another(found: TableConfig, asked: TableConfig) -> None:
    """Raises InvalidConfig if the table that is there is another one than the one that was asked for."""
    for name in ("spec", "capacity", "index", "max_lanes", "seed"):
        is_, wanted = getattr(found, name), getattr(asked, name)
        if name == "index":
            is_, wanted = dict(is_), dict(wanted)
        if is_ != wanted or (name == "index" and list(is_) != list(wanted)):
            raise InvalidConfig(f"{name} of the table that lives in {found.storage}", is_, wanted)
