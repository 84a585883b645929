"""A process of its own that owns shards and serves them, as told over a pipe."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, final

from processes.asked import Asked, answer_until_closed

import relive
from relive.fleet import ShardOwner
from relive.service import Door

__all__ = ["Owners"]

LOOPBACK = "grpc://127.0.0.1:0"
EPOCH = 123_456_789_876_543_210  # any: keys of equal tables are compared


def run(pipe: Connection, environment: dict[str, str]) -> None:
    """Owns until the pipe closes."""
    os.environ.update(environment)
    owners: dict[str, ShardOwner] = {}
    answer_until_closed(pipe, partial(_answer, owners))
    for owner in owners.values():
        owner.close()


def _answer(owners: dict[str, ShardOwner], what: str, *arguments: Any) -> Any:
    if what == "own":
        number, config, address, saves, load = arguments
        owner = ShardOwner(number, config, epoch=EPOCH, load=load)
        try:
            served = owner.serve(address, saves=saves, door=Door(offers=True))
        except BaseException:
            owner.close()
            raise
        owners[served] = owner
        return served
    if what == "restored":
        return owners[arguments[0]].is_restored
    if what == "close":
        return owners.pop(arguments[0]).close()
    if what == "shared_agent":  # or it would begin and end with every shard
        importlib.import_module("relive.fleet.onesided.nixl_agent").shared_agent()
        return None
    table = owners[arguments[0]].table
    if what == "move_all_pages":
        return table.core.move_all_pages()
    if what == "in_flight":
        return table.stats().indexes["default"].in_flight
    raise ValueError(what)


@final
class Owners(Asked):
    """The process, from outside."""

    def __init__(self, **environment: str) -> None:
        super().__init__(run, environment)

    def own(
        self,
        number: int,
        config: relive.TableConfig,
        address: str = LOOPBACK,
        saves: Any = None,
        load: Any = None,
    ) -> str:
        """The address of a shard, made, taken over, or loaded."""
        return str(self.ask("own", number, config, address, saves, load))

    def owning(self, stack: ExitStack) -> Callable[[int, relive.TableConfig, str], str]:
        """The same, whatever its name in shared memory, of shards that are closed when the stack ends."""

        def own(number: int, config: relive.TableConfig, name: str) -> str:
            address = self.own(number, config)
            stack.callback(self.ask, "close", address)
            return address

        return own
