"""Where the memory of an earlier fleet lies: a new fleet of the name starts each shard on the node that has its memory.

Ray chooses the nodes of a placement group afresh. Without a choice of our own, a shard would begin empty on one node
while its rows stay on another.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from relive.config.storage import SharedMemory
from relive.fleet.draws.pace import Wait
from relive.fleet.errors import FleetFailed, MemoryTwice
from relive.fleet.on_ray.cluster import ask
from relive.fleet.on_ray.tasks import Task, run

# cluster comes first: its error names the extra.
# isort: split
import ray
from ray.exceptions import RayError, RayTaskError

__all__ = ["Node", "kept_here", "nodes_of_kept"]

Place = tuple[str, int, int]  # a file: the boot of its kernel, its device and its number there

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_BESIDE = (
    "its memory lies on {}, like that of shard {}, and each shard needs a node of its own; run `relive rm {}` there, or"
    " start a second Ray node on that machine"
)
_OF_NODE = "node:"  # the resource node:ADDRESS of each node
_OF_HEAD = "node:__internal_head__"


class Node(NamedTuple):
    """A live node of the cluster."""

    id: str
    address: str
    resource: str  # that only this node has


def kept_here(name: str, num_shards: int) -> dict[int, Place]:
    """The shards of a fleet whose memory lies on this machine, with the place of each memory."""
    boot, found = _BOOT.read_text().strip(), {}
    for number in range(num_shards):
        with suppress(OSError):
            facts = os.stat(SharedMemory(f"{name}-{number}").path)
            found[number] = (boot, facts.st_dev, facts.st_ino)
    return found


def nodes_of_kept(name: str, num_shards: int, wait: Wait) -> dict[int, Node]:
    """The node for each shard whose memory lies on a live node. Shards of one fleet get different nodes.

    Nodes of one machine may share its memory. Nodes that cannot run relive have none.

    Args:
        name: name of the fleet.
        num_shards: number of its shards.
        wait: the wait of the call.

    Raises:
        MemoryTwice: several machines have memory of one shard.
        FleetFailed: a node has memory of two shards, and no other node of its machine is free.
        DeadlineExceeded: a node that Ray counts as live does not answer.
    """
    told = _told(name, num_shards, wait)
    chosen: dict[int, Node] = {}
    for number in range(num_shards):
        holders = {node: places[number] for node, places in told.items() if number in places}
        if len(set(holders.values())) > 1:
            raise MemoryTwice(name, number, [node.address for node in holders])
        if holders:
            node = min(holders, key=lambda one: (one in chosen.values(), one))
            for other in (one for one in chosen if chosen[one] == node):
                raise FleetFailed(name, number, _BESIDE.format(node.address, other, f"{name}-{number}"))
            chosen[number] = node
    return chosen


def _told(name: str, num_shards: int, wait: Wait) -> dict[Node, Mapping[int, Place]]:
    """The answer of each live node. A task that fails on a node that lives on is run again."""
    told: dict[Node, Mapping[int, Place]] = {}
    while silent := [node for node in _live(wait) if node not in told]:
        tasks = {node: Task(node.id, kept_here, (name, num_shards)) for node in silent}
        answers = run(tasks, wait)
        for node, answer in answers.items():
            if isinstance(answer, RayTaskError):  # the node cannot run relive
                told[node] = {}
            elif not isinstance(answer, RayError):
                told[node] = answer
        if wait.is_over:
            left = " ".join(node.address for node in silent if node not in told)
            if left:
                raise wait.exceeded("all nodes, to look for memory of the fleet", f"no answer of {left}")
        elif len(told) < len(answers):
            wait.pause()
    return told


def _live(wait: Wait) -> list[Node]:
    return [_node(one) for one in ask(wait, ray.nodes) if one["Alive"]]


def _node(told: Mapping[str, Any]) -> Node:
    own = [one for one in told["Resources"] if one.startswith(_OF_NODE) and one != _OF_HEAD]
    return Node(told["NodeID"], told["NodeManagerAddress"], own[0] if own else "")
