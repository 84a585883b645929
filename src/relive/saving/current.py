"""The two small files of a save folder: relive-save.json and CURRENT. Each is one line of JSON and its CRC-32C."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from relive import _core
from relive.errors import DamagedSave, FormatMismatch, InvalidConfig, NoSuchSave, SystemFailure
from relive.saving.files import Files, is_no_file

__all__ = [
    *("CURRENT", "FOLDER", "FORMAT", "OF_SHARDS", "KeptCut", "id_in", "line_of", "read_current", "read_folder"),
    *("read_line", "told_by_current"),
]

FORMAT = 1  # of the folder; raised when an earlier reader would misread it
FOLDER, CURRENT = "relive-save.json", "CURRENT"
OF_SHARDS = "relive-shards.json"  # in place of FOLDER, in the folder of a save of several shards (relive.fleet)
_MOST_BYTES = 16 << 20  # 1000 kept saves that name 256 segments each need 2 MB
_MOST_NUMBER = 2**31


@final
@dataclass(frozen=True)
class KeptCut:
    """A save that the folder keeps: its number, and the segments that its images lie in."""

    number: int
    segments: tuple[int, ...]

    def to_list(self) -> list[Any]:
        """Returns the cut for JSON."""
        return [self.number, list(self.segments)]


def line_of(value: Mapping[str, Any]) -> bytes:
    """Returns the contents of a small file."""
    line = json.dumps(value).encode()
    return line + b"\n%08x\n" % _core.crc32c(line)


def read_line(files: Files, name: str, path: str) -> dict[str, Any]:
    """Returns the value of a small file. FileNotFoundError if it is missing. Raises DamagedSave."""
    try:
        handle = files.open(name)
    except SystemFailure as error:
        if not is_no_file(error):
            raise
        raise DamagedSave(path, name, "a file", "none") from error
    try:
        size = files.size(handle)
        if size > _MOST_BYTES:
            raise DamagedSave(path, f"the length of {name}", f"at most {_MOST_BYTES} bytes", size)
        data = bytearray(size)
        data = data[: files.read(handle, 0, memoryview(data))]
    finally:
        files.close_handle(handle)
    line, _, rest = bytes(data).partition(b"\n")
    if rest != b"%08x\n" % _core.crc32c(line):
        raise DamagedSave(path, name, "its checksum", "another")
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DamagedSave(path, name, "JSON", str(error)) from error
    if not isinstance(value, dict):
        raise DamagedSave(path, name, "an object", type(value).__name__)
    return value


def read_folder(files: Files, path: str) -> str:
    """Returns the id of the folder. Raises NoSuchSave, DamagedSave, FormatMismatch, InvalidConfig for one of shards."""
    try:
        told = read_line(files, FOLDER, path)
    except FileNotFoundError:
        if OF_SHARDS in files.names():
            raise InvalidConfig("save of a table", "a folder of Table.save", f"{path}, a save of shards") from None
        raise NoSuchSave(path) from None
    return id_in(told, path, FOLDER, FORMAT)


def id_in(told: Mapping[str, Any], path: str, name: str, known: int) -> str:
    """Returns the id of a folder from its file `name`.

    Args:
        told: The contents of the file.
        path: The folder.
        name: The file.
        known: The highest format that this version reads.

    Raises:
        DamagedSave: The file has no format or no id.
        FormatMismatch: The folder needs a later reader.
    """
    lowest = told.get("lowest_reader")
    if not isinstance(lowest, int) or not isinstance(told.get("folder"), str):
        raise DamagedSave(path, name, "its format and its id", told)
    if lowest > known:
        raise FormatMismatch("format of the save", known, lowest)
    return str(told["folder"])


def told_by_current(files: Files, path: str, folder: str) -> dict[str, Any]:
    """Returns the contents of CURRENT. folder: the id of the folder. Raises NoSuchSave, DamagedSave."""
    try:
        told = read_line(files, CURRENT, path)
    except FileNotFoundError:
        raise NoSuchSave(path) from None
    if told.get("folder") != folder:
        raise DamagedSave(path, CURRENT, f"a file of the folder {folder}", told.get("folder"))
    return told


def read_current(files: Files, path: str, folder: str) -> list[KeptCut]:
    """Returns the saves that a folder keeps, the newest first. Raises NoSuchSave, DamagedSave."""
    told = told_by_current(files, path, folder)
    try:
        cuts = [KeptCut(_number(number), tuple(map(_number, segments))) for number, segments in told["cuts"]]
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedSave(path, CURRENT, "a list of saves", str(error)) from error
    numbers = [cut.number for cut in cuts]
    if not cuts or numbers != sorted(set(numbers), reverse=True):
        raise DamagedSave(path, CURRENT, "at least one save, the newest first", str(numbers[:4]))
    return cuts


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST_NUMBER:
        raise ValueError(f"the number {value!r}")
    return value
