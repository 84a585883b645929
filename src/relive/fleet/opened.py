"""Opens the shards of a table: maps those of this host, and connects to those at addresses."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any, cast

from relive.checks.values import timeout
from relive.errors import InvalidConfig, ReliveError
from relive.fleet.mapped import MappedShard
from relive.fleet.owner import OwnerWatch
from relive.fleet.shards import Shard
from relive.table.table import attach_path

if TYPE_CHECKING:
    from relive.service import Access

__all__ = ["checked_path", "is_address", "mapped_shard", "shard_at"]


def is_address(name: object) -> bool:
    """Whether the name is an address of a shard. Names of shared memory contain no slash."""
    return isinstance(name, str) and "://" in name


def checked_path(path: str | None) -> str | None:
    """Returns how shards at addresses are read. Raises InvalidConfig."""
    if path is not None and not (isinstance(path, str) and path in ("mapped", "service", "nixl")):
        raise InvalidConfig("path", "None, 'mapped', 'service' or 'nixl'", path)
    return path


def check_access(access: object) -> None:
    """Refuses what is no Access of the service, which may be not installed. Raises InvalidConfig."""
    if access is not None and not (hasattr(access, "tls") and hasattr(access, "token")):
        raise InvalidConfig("access", "relive.service.Access(tls, token), or None", access)


def mapped_shard(path: str, stream: int | None, timeout_s: float | None, read_only: bool) -> MappedShard:
    """Maps the region at a path. Raises the errors of relive.attach."""
    table = attach_path(path, stream, timeout_s, read_only)
    try:
        return MappedShard(table, OwnerWatch(path))
    except BaseException:
        table.close()
        raise


def shard_at(
    address: str,
    stream: int | None,
    timeout_s: float | None,
    read_only: bool,
    asked: str | None,
    access: Access | None = None,
) -> Shard:
    """Opens the shard at an address, to be read as `asked` says (relive.fleet.attach, path=)."""
    if read_only and asked != "mapped":
        raise InvalidConfig("read_only", "False, where shards are at addresses: their owners count draws", True)
    seconds = None if timeout_s is None else timeout(timeout_s)
    # Imported here: a table over mapped shards needs no pyarrow, and a shard read through its owner needs no NIXL.
    if asked == "nixl":
        return _peer(address, stream, seconds, True, access)
    shard: Any = importlib.import_module("relive.fleet.remote.shard").RemoteShard(address, stream, seconds, access)
    if asked == "service":
        return cast(Shard, shard)
    with contextlib.closing(shard):
        here = _on_this_host(shard, stream, timeout_s, read_only)
        if here is None and asked == "mapped":
            raise InvalidConfig(f"path of the shard at {address}", "one of this host", "mapped")
    return here or _peer(address, stream, seconds, False, access)


def _peer(address: str, stream: int | None, seconds: float | None, must: bool, access: Access | None) -> Shard:
    peer = importlib.import_module("relive.fleet.onesided.peer")
    return cast(Shard, peer.PeerShard(address, stream, seconds, must, access=access))


def _on_this_host(shard: Any, stream: int | None, timeout_s: float | None, read_only: bool) -> MappedShard | None:
    """Maps the same region in this process. Returns None if the region is not on this host."""
    path = shard.hello.get("path")
    if not isinstance(path, str):
        return None
    try:
        mapped = mapped_shard(path, stream, timeout_s, read_only)
    except ReliveError:
        return None
    if mapped.uuid == shard.uuid and mapped.is_live:
        return mapped
    mapped.close()
    return None
