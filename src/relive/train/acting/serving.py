"""A run as actors of other machines see it: its table, its parameters, and what the run is, at one address.

  the learner   publishes each version here as well, and beside it what an actor has to know: FORMAT, the run's options,
                and its environment steps so far
  an actor      pulls them, streams rows into the table, and says with each pull what it has done, in sums since it
                began: nothing is counted twice where a pull is repeated, nothing is lost where one is not answered

What they did is counted in one row of the scoreboard, theirs together.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive import Table
from relive.errors import InvalidConfig
from relive.service import serve
from relive.train.config import TrainConfig, where_to_serve
from relive.train.memory.scoreboard import Scoreboard
from relive.train.parts import Part

FORMAT = 1  # of what is published beside the parameters; another one is refused by actors
RETURNS_TOLD = 64  # of the last episodes, with each pull
_MOST_REMEMBERED = 4096  # actors whose sums are remembered; beyond that those heard of longest ago are forgotten


@final
@dataclass(frozen=True)
class Deeds:
    """What an actor says with a pull: who it is, and its sums since it began.

    version: of the parameters it acts with. returns, lengths: of its last episodes.
    """

    actor: str
    num_steps: int
    num_episodes: int
    wait_s: float
    version: int
    returns: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()

    def to_note(self) -> dict[str, Any]:
        """As JSON says it."""
        return {**vars(self), "returns": list(self.returns), "lengths": list(self.lengths)}

    @classmethod
    def from_note(cls, note: Mapping[str, Any]) -> Deeds:
        """What a note says. Raises InvalidConfig where it is something else."""
        try:
            deeds = cls(
                str(note["actor"])[:64],
                int(note["num_steps"]),
                int(note["num_episodes"]),
                float(note["wait_s"]),
                int(note["version"]),
                tuple(float(value) for value in note["returns"]),
                tuple(int(value) for value in note["lengths"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as problem:
            raise InvalidConfig("note of an actor", "its sums", repr(problem)) from None
        sums = deeds.num_steps, deeds.num_episodes, deeds.wait_s, deeds.version
        fits = all(0 <= value < 2**53 for value in sums) and len(deeds.returns) == len(deeds.lengths)
        if not fits or not all(math.isfinite(value) for value in deeds.returns):
            raise InvalidConfig("note of an actor", "sums that can be", str(sums))
        return deeds


@final
class ServedRun(Part):
    """The server of a run. Owner of the listening socket; the table stays the run's."""

    def __init__(self, config: TrainConfig, table: Table, scoreboard: Scoreboard) -> None:
        """scoreboard: whose last row nobody else writes. Raises InvalidConfig, ServiceUnavailable."""
        assert config.serving.address is not None
        server_address, name = where_to_serve(config.serving.address)
        self._scoreboard, self._row = scoreboard, scoreboard.num_actors - 1
        self._tree = config.to_tree()
        self._changed = threading.Lock()
        self._closed = False
        self._connected: set[int] = set()  # streams that told something
        self._sums: OrderedDict[str, Deeds] = OrderedDict()
        self._server = serve({name: table}, server_address)
        self.address = f"{self._server.address}/{name}"
        self._store = self._server.parameters(name)
        self._store.listen(self._hear)

    @property
    def num_connected(self) -> int:
        """Actors whose link is open."""
        return len(self._connected)

    def publish(self, parameters: Mapping[str, NDArray[np.float32]], version: int) -> None:
        """The next version, for actors elsewhere. Cost: a copy and a checksum."""
        about = {"format": FORMAT, "config": self._tree, "num_steps": self._scoreboard.num_steps}
        self._store.publish(parameters, version, about)

    def finish(self) -> None:
        """Tells the actors that the run has ended, and not only its server."""
        self._store.finish()

    def stop(self) -> None:
        """Ends the server; nothing is counted after it."""
        with self._changed:
            self._closed = True
        self._server.close()

    def _hear(self, stream: int, note: dict[str, Any] | None) -> None:
        """A note of a stream, or its end; called by the threads of the streams."""
        deeds = None if note is None else Deeds.from_note(note)
        with self._changed:
            if self._closed:
                return
            if deeds is None:
                self._connected.discard(stream)
                return
            self._connected.add(stream)
            self._count(deeds)

    def _count(self, now: Deeds) -> None:
        before = self._sums.pop(now.actor, None) or Deeds(now.actor, 0, 0, 0.0, 0)
        if now.num_steps < before.num_steps or now.num_episodes < before.num_episodes:
            now = before  # overtaken on the way by a later one
        self._sums[now.actor] = now
        if len(self._sums) > _MOST_REMEMBERED:
            self._sums.popitem(last=False)
        board, row = self._scoreboard, self._row
        board.add_steps(row, now.num_steps - before.num_steps, now.version)
        if now.wait_s > before.wait_s:
            board.add_wait(row, now.wait_s - before.wait_s)
        first = max(0, len(now.returns) - (now.num_episodes - before.num_episodes))
        for episode_return, length in zip(now.returns[first:], now.lengths[first:], strict=True):
            board.add_episode(row, episode_return, length)
