"""`relive fleet start FLEET.TOML`, `status NAME`, `stop NAME`: a fleet on a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from relive.cli.commands import Commands, add_command, add_commands, extra_named, named_path, new_parser_of, say

if TYPE_CHECKING:
    from relive.fleet.ray import ShardReport

__all__ = ["add"]

_START_S = 120.0  # relive.fleet.ray.START_S, which cannot be read where Ray is not installed


def add(commands: Commands) -> None:
    """Declares `fleet` and its commands."""
    text = "Start, show and stop a table over shards, with one shard on each node of a Ray cluster."
    fleet = add_commands(new_parser_of(commands, "fleet", text, ("ray",)))
    parser = add_command(fleet, "start", _start)
    parser.add_argument(
        "config", type=named_path, metavar="FLEET.TOML", help="File of the fleet; docs/fleet.md shows one."
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=_START_S,
        metavar="SECONDS",
        help="Time that the nodes may take to start their shards (default: %(default)g).",
    )
    _add_cluster(parser)
    parser = add_command(fleet, "status", _status)
    _add_name(parser)
    _add_cluster(parser)
    parser = add_command(fleet, "stop", _stop)
    _add_name(parser)
    parser.add_argument("--keep", action="store_true", help="Keep the memory of the shards for another start.")
    _add_cluster(parser)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Name of the fleet, as in its fleet.toml.")


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address", metavar="HOST:PORT", help="Address of the Ray cluster (default: the cluster of this machine)."
    )


def _start(config: Path, timeout_s: float, address: str | None) -> None:
    """Start a fleet, which continues after this command ends.

    Each shard runs on the node where an earlier shard of its name left memory, and takes this memory over.
    """
    with extra_named("fleet", "ray"):
        from relive.fleet import ray
    _show(ray.start(ray.load_config(config), timeout_s, address))


def _status(name: str, address: str | None) -> int:
    """Show the shards of a fleet. The exit status is 1 if one of them does not run or does not answer."""
    with extra_named("fleet", "ray"):
        from relive.fleet import ray
    reports = ray.status(name, address=address)
    _show(reports)
    return 0 if all(one.state == "live" for one in reports) else 1


def _stop(name: str, keep: bool, address: str | None) -> None:
    """Stop a fleet. Its memory is removed when the last attached process ends."""
    with extra_named("fleet", "ray"):
        from relive.fleet import ray
    ray.stop(name, keep, address)


def _show(reports: Iterable[ShardReport]) -> None:
    for one in reports:
        size = f"{one.num_steps:,} of {one.capacity:,} steps{', restored' if one.is_restored else ''}"
        said = f"{one.address}: {size}, process {one.pid}" if one.state == "live" else one.state
        say(f"shard {one.number}: {said}")
