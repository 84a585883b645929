"""`relive fleet start fleet.toml`, `status NAME`, `stop NAME`: a fleet on a Ray cluster, from the command line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from relive.fleet import ray

__all__ = ["add_fleet"]

Cluster = Annotated[str | None, typer.Option(help="Of the Ray cluster, HOST:PORT; else the one of this machine.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name in its fleet.toml.")]


def add_fleet(app: typer.Typer, **options: Any) -> None:
    """The group of commands."""
    group = typer.Typer(help="A table over shards, one a node of a Ray cluster.", **options)
    for command in (start, status, stop):
        group.command()(command)
    app.add_typer(group, name="fleet")


def start(
    config: Annotated[Path, typer.Argument(metavar="FLEET.TOML", help="The fleet; docs/fleet.md shows one.")],
    timeout_s: Annotated[float, typer.Option(help="How long nodes may take.")] = ray.START_S,
    address: Cluster = None,
) -> None:
    """Start a fleet, which goes on without this command.

    A shard takes over what an earlier one of its name left in the shared memory of its node.
    """
    _show(ray.start(ray.load_config(config), timeout_s, address))


def status(name: Name, address: Cluster = None) -> None:
    """Show the shards of a fleet."""
    _show(ray.status(name, address=address))


def stop(
    name: Name,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the shards' memory, for another start.")] = False,
    address: Cluster = None,
) -> None:
    """End a fleet; its memory goes with the last process that is attached."""
    ray.stop(name, keep, address)


def _show(reports: Iterable[ray.ShardReport]) -> None:
    console = Console()
    for one in reports:
        size = f"{one.num_steps:,} of {one.capacity:,} steps{', restored' if one.is_restored else ''}"
        said = f"{one.address}: {size}, process {one.pid}" if one.state == "live" else one.state
        console.print(f"shard {one.number}: {said}", highlight=False, soft_wrap=True)
