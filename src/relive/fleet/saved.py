"""The folder of a save of several shards: the one file CURRENT that commits all of them.

relive-shards.json   the format, its lowest reader version, the id of the folder
CURRENT              the kept saves, the newest first: for each shard the folder and the name of its cut; the blobs
beside/N/NAME        bytes that the caller gave with save N
shards/N             the save of shard N, unless its owner is another host's: it is then below the owner's folder
lock                 locked by the saver
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from relive.checks.names import names_arguments
from relive.checks.values import flag, folder_path, integer
from relive.core.closing import Closing
from relive.errors import DamagedSave, InvalidConfig, NoSuchSave, ReliveError, SystemFailure
from relive.fleet.draws.placement import MAX_SHARDS
from relive.saving.blobs import BESIDE, described, read_blob, remove_blobs, write_blobs
from relive.saving.copying import SaveFacts
from relive.saving.current import CURRENT, FOLDER, OF_SHARDS, id_in, line_of, read_line, told_by_current
from relive.saving.disk_files import DiskFiles
from relive.saving.files import is_no_file
from relive.saving.loading import verify_save
from relive.saving.named import is_visible_name
from relive.saving.reader import open_save

__all__ = ["MOST_KEPT", "SavedShard", "SavedShards", "ShardsFolder", "check_kept", "saved"]

FORMAT = 1  # of the folder; raised when an earlier reader would misread it
_MOST_NUMBER = 2**31
MOST_KEPT = 1000
_MOST_PREFIX = 100  # characters of a name at an owner of another host


@final
@dataclass(frozen=True)
class SavedShard:
    """The part of one shard in a save of all shards.

    Attributes:
        number: The number of the shard.
        path: The folder of its save, on the machine that wrote it.
        cut: The name of its cut, which no other cut has.
        cut_number: The number of the cut in its folder.
        num_steps: Steps in it.
        is_here: Whether the folder lies below the folder of the whole save.
    """

    number: int
    path: str
    cut: str
    cut_number: int
    num_steps: int
    is_here: bool


@final
@dataclass(frozen=True)
class SavedShards:
    """A save of all shards of a table, as `relive.fleet.saved(path)` describes it. It pickles.

    Attributes:
        path: The folder.
        number: The number of the save in the folder.
        shards: The part of each shard, by number.
        beside: Names of the blobs that were saved beside the shards; `blob` reads one.
        kept: The numbers of all saves that the folder keeps, the newest first.
    """

    path: str
    number: int
    shards: tuple[SavedShard, ...]
    kept: tuple[int, ...] = ()
    _blobs: Mapping[str, tuple[int, int]] = field(default_factory=dict, repr=False)  # lengths and CRC-32Cs

    @property
    def beside(self) -> tuple[str, ...]:
        return tuple(self._blobs)

    def blob(self, name: str) -> bytes:
        """Reads a blob.

        Raises:
            InvalidConfig: The save has no blob of this name.
            NoSuchSave: The folder keeps this save no more.
            DamagedSave: The blob is damaged.
            StorageFull: It does not fit into memory.
        """
        if not isinstance(name, str) or name not in self._blobs:
            raise InvalidConfig("name of a blob", f"one of {list(self._blobs)}", name)
        shown = f"{BESIDE}/{self.number}/{name}"
        try:
            files = DiskFiles(self.path, makes=False)
        except FileNotFoundError:
            raise NoSuchSave(self.path) from None
        try:
            handle = files.open(BESIDE, str(self.number), name)
            try:
                return read_blob(files, handle, self.path, shown, self._blobs[name])
            finally:
                files.close_handle(handle)
        except FileNotFoundError:
            check_kept(self)
            raise NoSuchSave(self.path) from None
        except SystemFailure as error:
            if not is_no_file(error):
                raise
            raise DamagedSave(self.path, shown, "a file", "none") from error
        finally:
            files.close()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the shards, ascending."""
        return tuple(shard.number for shard in self.shards)

    @property
    def num_steps(self) -> int:
        """Steps of all shards."""
        return sum(shard.num_steps for shard in self.shards)


@names_arguments
def saved(path: str | os.PathLike[str], number: int | None = None, verify: bool = False) -> SavedShards:
    """Describes a save of all shards in a folder (ShardedTable.save).

    Args:
        path: The folder.
        number: The number of the save, one of the `kept` of the newest; None: the newest.
        verify: Read every byte of the blobs and of the parts below this folder, and compare the checksums. Parts at
            owners of other hosts are not read: relive.saved(part.path, part.cut_number, verify=True) does it there.

    Raises:
        NoSuchSave: The folder has no save, or none of this number.
        InvalidConfig: The folder has saves of one table.
        DamagedSave: A file of the folder is damaged or missing.
        FormatMismatch: A later version of relive wrote it.
        StorageFull: This machine has less memory than the state of a shard needs (verify).
    """
    where = folder_path("path of a save", path)
    chosen = None if number is None else integer("number", number, 1)
    reads_all = flag("verify", verify)
    try:
        files = DiskFiles(where, makes=False)
    except FileNotFoundError:
        raise NoSuchSave(where) from None
    try:
        found = _kept(files, where, _id_of(files, where))
    finally:
        files.close()
    kept = tuple(one.number for one in found)
    if chosen is not None and chosen not in kept:
        raise NoSuchSave(where, chosen, kept)
    one = replace(found[0 if chosen is None else kept.index(chosen)], kept=kept)
    if reads_all:
        _verify(one)
    return one


def check_kept(save: SavedShards) -> None:
    """Raises NoSuchSave if the folder keeps other saves and not this one."""
    kept: tuple[int, ...] = ()
    with contextlib.suppress(ReliveError):  # the folder may be on another machine
        kept = saved(save.path).kept
    if kept and save.number not in kept:
        raise NoSuchSave(save.path, save.number, kept)


def _verify(save: SavedShards) -> None:
    for name in save.beside:
        save.blob(name)
    for part in save.shards:
        if part.is_here:
            with open_save(part.path, cut=part.cut) as reader:
                verify_save(reader)


@final
class ShardsFolder(Closing):
    """The folder of a save of all shards while it is written, locked for one saver. Made if it is not there.

    Raises:
        InvalidConfig: The folder has other files and no save of shards.
        SaveInUse: Another save goes on.
        DamagedSave, FormatMismatch: The folder's own files cannot be read.
        StorageFull, SystemFailure: The folder cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._files = DiskFiles(self.path, makes=True)
        self._committing: SavedShards | None = None  # CURRENT may name it
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        files = self._files
        names = set(files.names())
        if OF_SHARDS not in names and not names <= {"lock", f"{OF_SHARDS}.new"}:
            other = sorted(names - {"lock"})[0]
            expected = "an empty folder, or one with saves of shards"
            raise InvalidConfig("folder of a save of shards", expected, f"{self.path} with {other!r}")
        files.lock()
        if OF_SHARDS not in set(files.names()):
            told = {"format": FORMAT, "lowest_reader": FORMAT, "folder": secrets.token_hex(16)}
            self._put(OF_SHARDS, told)
        self._id = _id_of(files, self.path)
        files.make_folder("shards")
        files.make_folder(BESIDE)
        files.remove(f"{CURRENT}.new")
        files.sync_folder()  # a saver that died may have renamed CURRENT and not synced the name
        try:
            self._kept = _kept(files, self.path, self._id)
        except NoSuchSave:
            self._kept = []
        self._remove_blobs()

    def _remove_blobs(self) -> None:
        """Removes the blobs of saves that are not kept: also those of a saver that died."""
        remove_blobs(self._files, {save.number for save in self._kept})

    def _put(self, name: str, value: Mapping[str, Any]) -> None:
        """Writes a small file, syncs it, and puts it in the place of the one before."""
        files, data = self._files, memoryview(line_of(value))
        files.remove(f"{name}.new")
        handle = files.create(f"{name}.new")
        try:
            files.append(handle, data, 0)
            files.sync(handle)
        finally:
            files.close_handle(handle)
        files.rename(f"{name}.new", name)
        files.sync_folder()

    def place_of(self, shard: int) -> str:
        """The folder of the save of a shard that this process writes."""
        return os.path.join(self.path, "shards", str(shard))

    @property
    def name(self) -> str:
        """The name of the save at the owners of other hosts. No other folder has it: it ends with the folder's id."""
        base = os.path.basename(self.path)[:_MOST_PREFIX]
        whole = f"{base}-{self._id[:16]}"
        return whole if is_visible_name(whole) else f"shards-{self._id[:16]}"

    def staying(self, shard: int) -> frozenset[int]:
        """The numbers of the cuts of a shard that the kept saves name, and a save whose commit was interrupted."""
        saves = [*self._kept, *([] if self._committing is None else [self._committing])]
        return frozenset(one.cut_number for save in saves for one in save.shards if one.number == shard)

    def commit(self, facts: Mapping[int, SaveFacts], beside: Mapping[str, bytes], keep: int) -> SavedShards:
        """Makes these cuts the newest save of all shards, by one rename.

        Args:
            facts: The facts of each shard's save, by number.
            beside: Blobs by name.
            keep: The number of saves that stay.
        """
        number = max((save.number for save in self._kept), default=0) + 1
        shards = tuple(
            SavedShard(at, one.path, one.cut, one.number, one.num_steps, one.path == self.place_of(at))
            for at, one in sorted(facts.items())
        )
        try:
            write_blobs(self._files, number, beside)
            self._files.sync_folder(BESIDE)
            self._files.sync_folder("shards")
        except BaseException:
            with contextlib.suppress(ReliveError):  # the next save removes them
                self._remove_blobs()
            raise
        told = {name: (length, sum_) for name, (length, sum_) in described(beside).items()}
        kept = [SavedShards(self.path, number, shards, _blobs=told), *self._kept][:keep]
        self._committing = kept[0]
        self._put(CURRENT, {"folder": self._id, "saves": [_to_list(save) for save in kept]})
        self._kept, self._committing = kept, None
        with contextlib.suppress(SystemFailure):  # the next save removes them
            self._remove_blobs()
        return kept[0]

    def close(self) -> None:
        """Unlocks the folder. A second call has no effect."""
        self._files.close()


def _id_of(files: DiskFiles, path: str) -> str:
    try:
        told = read_line(files, OF_SHARDS, path)
    except FileNotFoundError:
        if FOLDER in files.names():
            expected = "a folder of ShardedTable.save"
            raise InvalidConfig("save of shards", expected, f"{path}, a save of one table") from None
        raise NoSuchSave(path) from None
    return id_in(told, path, OF_SHARDS, FORMAT)


def _kept(files: DiskFiles, path: str, folder: str) -> list[SavedShards]:
    """Returns the saves that the folder keeps, the newest first. Raises NoSuchSave, DamagedSave."""
    told = told_by_current(files, path, folder)
    try:
        saves = [_from_list(path, one) for one in told["saves"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DamagedSave(path, CURRENT, "a list of saves", str(error)) from error
    if not 1 <= len(saves) <= MOST_KEPT:
        raise DamagedSave(path, CURRENT, f"1 to {MOST_KEPT} saves", len(saves))
    return saves


def _to_list(save: SavedShards) -> list[Any]:
    shards = [
        [one.number, None if one.is_here else one.path, one.cut, one.cut_number, one.num_steps] for one in save.shards
    ]
    return [save.number, shards, {name: list(told) for name, told in save._blobs.items()}]


def _from_list(path: str, value: Any) -> SavedShards:
    """Returns a save. A folder that lies below the folder of all shards is found where that folder is now."""
    number, told, *more = value
    shards = []
    for at, place, cut, cut_number, num_steps in told:
        _check_whole(at, MAX_SHARDS)
        _check_whole(cut_number, _MOST_NUMBER)
        _check_whole(num_steps, 2**62)
        if not isinstance(cut, str) or not (place is None or isinstance(place, str)):
            raise ValueError(f"the cut {cut!r} in {place!r}")
        here = os.path.join(os.path.abspath(path), "shards", str(at))
        shards.append(SavedShard(at, here if place is None else place, cut, cut_number, num_steps, place is None))
    numbers = [one.number for one in shards]
    if not numbers or numbers != sorted(set(numbers)):
        raise ValueError(f"the shards {_shown(numbers)}")
    blobs = {
        str(name): (_check_whole(length, 2**62), _check_whole(sum_, 2**32))
        for name, (length, sum_) in (more[0] if more else {}).items()
    }
    return SavedShards(path, _check_whole(number, _MOST_NUMBER), tuple(shards), _blobs=blobs)


def _shown(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8]))


def _check_whole(value: Any, end: int) -> int:
    if type(value) is not int or not 0 <= value < end:
        raise ValueError(f"the number {value!r}")
    return value
