"""The actor that owns a shard on its node, and the task that ends a shard there, whatever its actor does.

The region of a new shard is kept only after the shard is served. Before that, the last handle that closes removes it.
An actor that is killed in its __init__ may leave the file, and the task of end_here() is then this last handle.

From then on only close() removes the region. It stays if the process of the actor ends by itself, as by SIGTERM or by
an error of its __init__: Ray starts the actor again, or another start() takes the region over.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias, final

import ray

from relive.config.storage import SharedMemory
from relive.config.table_config import TableConfig
from relive.core.attached import attached_pids
from relive.errors import CannotListen, NameTaken, NoSuchTable
from relive.fleet.draws.pace import Wait
from relive.fleet.owner import ShardOwner, outlive
from relive.fleet.ray_config import ShardReport
from relive.service.wire.door import Door
from relive.table.table import attach_path

__all__ = ["Removes", "ShardActor", "end_here"]

Removes: TypeAlias = Literal["all", "new", "none"]  # memory of an ending fleet; new: only regions that its actors made
_PORT_S = 10.0
_LOCK_S = 3.0


@final
class ShardActor:
    """Owns one shard on its node, serves it to other hosts, and reports where it is."""

    def __init__(self, number: int, num_shards: int, config: TableConfig, port: int, door: Door | None) -> None:
        self._num_shards = num_shards
        assert isinstance(config.storage, SharedMemory)
        self._owner = _owner(number, replace(config, storage=replace(config.storage, keep=True)))
        if not self._owner.is_restored:
            self._owner.set_keep(False)
            self._owner.table.core.set_keeps_file(False)  # also if this process is killed
        self._node_ip = str(ray.util.get_node_ip_address())
        host = f"[{self._node_ip}]" if ":" in self._node_ip else self._node_ip
        self._door = door
        scheme = "grpc" if door is None or door.tls is None else "grpc+tls"
        self._address = self._served(f"{scheme}://{host}", port + number if port else 0)
        self._owner.set_keep(True)  # first: SIGTERM between these lines ends the ownership
        self._owner.table.core.set_keeps_file(True)

    def _served(self, host: str, port: int) -> str:
        """Serves the shard and returns its address. Falls back to a free port if the port stays in use.

        An actor that was killed may keep the port a little longer. Handles of this host do not need the port. A handle
        that knows only the address does not find the shard at another port until it connects again.
        """
        wait = Wait(_PORT_S)
        while not wait.is_over:
            with suppress(CannotListen):
                return self._owner.serve(f"{host}:{port}", door=self._door)
            wait.pause()
        return self._owner.serve(f"{host}:0", door=self._door)

    def report(self) -> ShardReport:
        """Reports where the shard is, and how full it is."""
        table = self._owner.table
        storage = table.config.storage
        assert isinstance(storage, SharedMemory)  # ShardOwner checked it
        facts = {
            "num_shards": self._num_shards,
            "node_ip": self._node_ip,
            "address": self._address,
            "name": storage.name,
            "pid": os.getpid(),
        }
        sizes = {"num_steps": len(table), "capacity": table.capacity, "is_restored": self._owner.is_restored}
        return ShardReport(self._owner.number, "live", **facts, **sizes)  # type: ignore[arg-type]

    def close(self, removes: Removes) -> None:
        """Ends the ownership, and removes memory, which disappears with the last attached handle.

        Memory that is not removed stays, whether Ray then kills the process or asks the process to end.
        """
        if removes == "all" or (removes == "new" and not self._owner.is_restored):
            self._owner.set_keep(False)
            self._owner.close()
        else:
            self._owner.let_go()


def _owner(number: int, config: TableConfig) -> ShardOwner:
    """Makes the owner. Waits for an earlier owner that was killed: it may end a moment later than Ray hears of it.

    Raises NameTaken.
    """
    wait = Wait(_LOCK_S)
    while True:
        try:
            return ShardOwner(number, config)
        except NameTaken:
            if wait.is_over:
                raise
        wait.pause()


def end_here(name: str, removes: bool, timeout_s: float, actor: str | None = ShardActor.__name__) -> bool:
    """Ends a shard of this node. Kills an actor that does not end, because Ray cannot kill one that hangs.

    Memory of a new shard that was never served goes with its last handle in any case.

    Args:
        name: name of the shard's shared memory.
        removes: whether its memory goes with its last handle.
        timeout_s: timeout in seconds.
        actor: name of the actor's class. None: kills no process, because the shard may be of another cluster.

    Returns whether the shard has no owner any more, and its memory is gone or disappears with its last handle.
    """
    path, wait = SharedMemory(name).path, Wait(timeout_s)

    def pause() -> bool:
        if actor is not None and wait.waited_s >= _LOCK_S:
            for pid in attached_pids(path):
                with suppress(OSError):
                    if actor.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
        wait.pause()
        return not wait.is_over

    if not outlive(path, pause):
        return False
    with suppress(NoSuchTable), attach_path(path) as table:  # the last handle that closes removes what is not kept
        if removes:
            table.core.set_keeps_file(False)
    return True
