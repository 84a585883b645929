"""A disk in memory that loses unsynced bytes and names at a power cut, behind the interface of saves to files."""

from __future__ import annotations

import errno
import itertools
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias

from relive.errors import SaveInUse, SystemFailure
from relive.saving.files import Files

BLOCK = 4096


@dataclass
class File:
    """A file: the bytes that processes see, and those that are on the platter."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    is_lost: bool = False  # a sync failed: the system takes the pages for clean, and no later sync writes them

    def sync(self) -> None:
        if not self.is_lost:
            self.synced = bytes(self.data)

    def cut(self, rng: Random) -> None:
        """Leaves any subset of the unsynced blocks. A lost block is as before, or zeros, or other bytes."""
        if bytes(self.data) == self.synced:
            return
        sizes = {len(self.synced), len(self.data), *range(0, len(self.data), BLOCK)}
        size = rng.choice(sorted(size for size in sizes if size >= min(len(self.synced), len(self.data))))
        left = bytearray()
        for at in range(0, size, BLOCK):
            old, new = self.synced[at : at + BLOCK], bytes(self.data[at : at + BLOCK])
            kept = rng.choice([new, old, bytes(len(new)), rng.randbytes(len(new))]) if old != new else new
            left += kept.ljust(min(BLOCK, size - at), b"\0")
        self.data, self.synced, self.is_lost = left[:size], bytes(left[:size]), False


@dataclass
class Folder:
    """A folder: the names that processes see, and for each name the nodes that it had since the last sync."""

    nodes: dict[str, Node] = field(default_factory=dict)
    unsynced: dict[str, list[Node | None]] = field(default_factory=dict)

    def put(self, name: str, node: Node | None) -> None:
        self.unsynced.setdefault(name, [self.nodes.get(name)]).append(node)
        if node is None:
            del self.nodes[name]
        else:
            self.nodes[name] = node

    def sync(self) -> None:
        self.unsynced.clear()

    def cut(self, rng: Random) -> None:
        """Leaves each unsynced name as it was at any moment since the last sync."""
        for name, versions in self.unsynced.items():
            node = rng.choice(versions)
            if node is None:
                self.nodes.pop(name, None)
            else:
                self.nodes[name] = node
        self.unsynced.clear()
        for node in self.nodes.values():
            node.cut(rng)


Node: TypeAlias = "File | Folder"


class Disk:
    """The folder of a save on a disk that can lose its power."""

    def __init__(self) -> None:
        self.root = Folder()
        self.locked_by: MemoryFiles | None = None

    def cut_power(self, seed: int) -> None:
        """Loses any subset of the unsynced blocks and names; every process ends."""
        self.locked_by = None
        self.root.cut(Random(seed))

    def paths(self) -> set[str]:
        """The files that processes see."""

        def below(folder: Folder, before: str) -> set[str]:
            found = set()
            for name, node in folder.nodes.items():
                found |= below(node, f"{before}{name}/") if isinstance(node, Folder) else {before + name}
            return found

        return below(self.root, "")


class MemoryFiles(Files):
    """The files of one process on such a disk."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.handles: dict[int, File] = {}
        self._numbers = itertools.count(100)

    def _folder(self, names: tuple[str, ...]) -> Folder:
        at: Any = self.disk.root
        for name in names:
            at = at.nodes.get(name) if isinstance(at, Folder) else None
        if not isinstance(at, Folder):
            raise FileNotFoundError(errno.ENOENT, "no such folder", "/".join(names))
        return at

    def _handle(self, file: File) -> int:
        number = next(self._numbers)
        self.handles[number] = file
        return number

    def make_folder(self, *names: str) -> None:
        parent = self._folder(names[:-1])
        if names[-1] not in parent.nodes:
            parent.put(names[-1], Folder())

    def names(self, *folder: str) -> list[str]:
        try:
            return sorted(self._folder(folder).nodes)
        except FileNotFoundError:
            return []

    def create(self, *names: str) -> int:
        parent = self._folder(names[:-1])
        if names[-1] in parent.nodes:
            raise SystemFailure("making " + "/".join(names), errno.EEXIST)
        file = File()
        parent.put(names[-1], file)
        return self._handle(file)

    def append(self, handle: int, data: memoryview, at: int) -> None:
        file = self.handles[handle]
        assert at == len(file.data), "files are only appended to"
        assert not file.is_lost, "a file whose sync failed is never appended to"
        file.data += data

    def open(self, *names: str) -> int:
        node = self._folder(names[:-1]).nodes.get(names[-1])
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", "/".join(names))
        if isinstance(node, Folder):
            raise SystemFailure("reading " + "/".join(names), errno.EISDIR)
        return self._handle(node)

    def size(self, handle: int) -> int:
        return len(self.handles[handle].data)

    def read(self, handle: int, at: int, into: memoryview) -> int:
        data = self.handles[handle].data[at : at + len(into)]
        into[: len(data)] = data
        return len(data)

    def sync(self, handle: int) -> None:
        self.handles[handle].sync()

    def sync_folder(self, *names: str) -> None:
        self._folder(names).sync()

    def close_handle(self, handle: int) -> None:
        del self.handles[handle]

    def rename(self, old: str, new: str) -> None:
        root = self.disk.root
        node = root.nodes[old]
        root.put(old, None)
        root.put(new, node)

    def remove(self, *names: str) -> None:
        parent = self._folder(names[:-1])
        if isinstance(parent.nodes.get(names[-1]), Folder):
            raise SystemFailure("removing " + "/".join(names), errno.EISDIR)
        if names[-1] in parent.nodes:
            parent.put(names[-1], None)

    def remove_folder(self, *names: str) -> None:
        parent = self._folder(names[:-1])
        node = parent.nodes.get(names[-1])
        if isinstance(node, Folder) and not node.nodes:
            parent.put(names[-1], None)

    def lock(self) -> None:
        if self.disk.locked_by is not None:
            raise SaveInUse("memory")
        self.disk.locked_by = self

    def close(self) -> None:
        if self.disk.locked_by is self:
            self.disk.locked_by = None
