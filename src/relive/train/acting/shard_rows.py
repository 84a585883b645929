"""Links an actor to the shards of a run: its rows go into one of them, and the limiter acts on the totals of all.

Rules:

  H1  An actor writes into the shard of its own node, which its process maps. An actor whose node has no shard streams
      its rows to the emptiest shard (links.py).
  H2  A step goes in when the totals over all shards leave room. One read of the totals serves an equal part of the room
      for each actor of the run, for at most 5 ms. The limiter may be overshot by one step of each actor. Before a read
      an actor that streams waits until its rows have arrived, so that the totals count them.
  H3  While the actor's shard has no owner, the actor takes no step. If the owner comes back within
      serving.max_staleness_s, acting goes on in the same lanes. Else the visit ends, and its lanes are cut.
  H4  The run says which shards are lost for good, and what these had counted. A visit opens the other shards, and adds
      these counts to the totals, so that all actors and the learner go by the same totals.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from relive.config.limiters import Limiter
from relive.config.spec import StepSpec
from relive.core.closing import Closing
from relive.core.protocol import ReplayWriter
from relive.errors import DeadlineExceeded, InvalidConfig
from relive.fleet.draws.pace import Wait
from relive.fleet.draws.placement import Root, Roots
from relive.fleet.mapped import MappedShard
from relive.fleet.opened import shard_at
from relive.fleet.shards import SILENCE_S, Shard, Shards
from relive.fleet.writing import emptiest
from relive.service import Access, RemoteTable
from relive.service.client.remote_table import connect_with
from relive.train.acting.links import StreamedLanes, StreamedTable
from relive.writing.blocks import count_steps

_KEY = "shards"  # of the facts that the run publishes
_FRESH_S = 0.005
_MOST_TIMES = 1024  # of the steps of one call, that one read serves
_LONGEST_S = 3600.0
_SETTLE_S = 1.0


class PlacedShard(NamedTuple):
    """A shard of a run: its number, Ray's name of its node, and its address."""

    number: int
    node: str
    address: str


class LostShard(NamedTuple):
    """A shard that is lost for good, and the items that it had counted."""

    number: int
    inserted: int
    sampled: int


@final
@dataclass(frozen=True)
class ShardFacts:
    """The facts about the shards of a run, which the run publishes with its parameters.

    Attributes:
        there: The shards that are not lost.
        lost: Those that are.
    """

    there: tuple[PlacedShard, ...]
    lost: tuple[LostShard, ...] = ()

    def to_about(self) -> dict[str, Any]:
        """Returns the facts as JSON can hold them."""
        return {_KEY: [[list(one) for one in self.there], [list(one) for one in self.lost]]}

    @classmethod
    def from_about(cls, about: Mapping[str, Any]) -> ShardFacts | None:
        """Reads what `to_about` returned; None: the run has one table. Raises InvalidConfig for other facts."""
        if _KEY not in about:
            return None
        try:
            there, lost = about[_KEY]
            placed = tuple(PlacedShard(int(number), str(node), str(address)) for number, node, address in there)
            return cls(placed, tuple(LostShard(int(a), int(b), int(c)) for a, b, c in lost))
        except (TypeError, ValueError) as problem:
            raise InvalidConfig("shards of the run", "those of this version", repr(problem)) from None


def opened_shard(placed: PlacedShard, node: str, timeout_s: float | None, access: Access) -> Shard:
    """Opens a shard: maps it if it is on this node, else it is reached through its owner.

    Args:
        placed: The shard.
        node: Ray's name of this node; "": it has none.
        timeout_s: The deadline of its calls in seconds; None: that of the table.
        access: Certificates and token.

    Raises:
        ServiceUnavailable: No owner answers.
        ReliveError: Also every error that relive.fleet.attach raises.
    """
    if node and placed.node == node:
        with suppress(InvalidConfig):  # the node's containers have shared memory of their own
            return shard_at(placed.address, None, timeout_s, False, "mapped", access)
    return shard_at(placed.address, None, timeout_s, False, "service", access)


@final
class _Room:
    """Tells whether the limiter lets steps in, by the totals over all shards (rules H2 and H4). One thread uses it."""

    def __init__(self, shards: Shards, lost: tuple[LostShard, ...], num_actors: int) -> None:
        self._shards, self._num_actors = shards, max(1, num_actors)
        self._lost = [
            Root(one.number, 0.0, 0, inserted=one.inserted, sampled=one.sampled, is_dead=True) for one in lost
        ]
        indexes = list(shards[0].table.config.index.values())
        self._paced = [(number, one) for number, one in enumerate(indexes) if one.limiter.stops_inserts]
        self._fresh_until_s = 0.0
        self._num_granted = 0  # steps that may go in without another read
        for number, _ in self._paced:
            self._roots(number)  # a shard that stops answering later keeps the counters that it told here

    def _roots(self, number: int) -> Roots:
        return Roots.of([*self._shards.roots(number, SILENCE_S), *self._lost])

    def is_granted(self, num_steps: int) -> bool:
        """Whether so many steps may go in by the last read of the totals."""
        if num_steps > self._num_granted or time.monotonic() > self._fresh_until_s:
            return False
        self._num_granted -= num_steps
        return True

    def is_there(self, num_steps: int, num_ends: int) -> bool:
        """Reads the totals. Returns whether so many steps, with so many ends of episodes, may go in now.

        Raises RequestTooLarge.
        """
        asked = []
        for number, index in self._paced:
            num_items = num_ends if index.items.end_with_episodes else num_steps
            asked.append((index.limiter, self._roots(number), num_items))

        def fits(times: int) -> bool:
            return all(_fits(limiter, roots, times * num_items) for limiter, roots, num_items in asked)

        refusing = [one for one in asked if not one[0].can_insert(one[1], one[2])]
        for limiter, _, num_items in refusing:
            limiter.check_insert(num_items)
        if refusing:
            return False
        times = 1
        while times < _MOST_TIMES and fits(2 * times):
            times *= 2
        self._num_granted = max(0, times * num_steps // self._num_actors - num_steps)
        self._fresh_until_s = time.monotonic() + _FRESH_S
        return True


def _fits(limiter: Limiter, roots: Roots, num_items: int) -> bool:
    """Whether so many items may go in. The first fill lets in all items until it is over: here it ends exactly."""
    live = roots.num_items + roots.pending
    if live < limiter.num_items < live + num_items:
        return False
    return limiter.can_insert(roots, num_items)


@final
class PacedLanes:
    """A writer for a recorder: a step goes in when the limiter over all shards leaves room. One thread uses it."""

    def __init__(self, writer: ReplayWriter, num_lanes: int | None, rows: ShardRows) -> None:
        self._writer, self._rows = writer, rows
        self._num_lanes = num_lanes or 1
        self.end_episode = writer.end_episode
        self.abandon = writer.abandon
        self.create_item = writer.create_item
        self.set_policy_version = writer.set_policy_version
        self.close = writer.close

    def append(self, *, lanes: Any = None, priority: Any = None, timeout_s: float | None = None, **columns: Any) -> Any:
        """Appends one step of each lane. Raises DeadlineExceeded if there was no room; then nothing is stored."""
        left_s = self._admitted(1, lanes, columns, timeout_s)
        return self._writer.append(lanes=lanes, priority=priority, timeout_s=left_s, **columns)

    def extend(self, *, lanes: Any = None, priority: Any = None, timeout_s: float | None = None, **columns: Any) -> Any:
        """Appends a block of steps. Raises DeadlineExceeded if there was no room; then nothing is stored."""
        steps, states = self._rows.columns
        left_s = self._admitted(count_steps(columns, steps, states), lanes, columns, timeout_s)
        return self._writer.extend(lanes=lanes, priority=priority, timeout_s=left_s, **columns)

    def _admitted(
        self, num_steps: int, lanes: Any, columns: Mapping[str, Any], timeout_s: float | None
    ) -> float | None:
        """Waits until a block may go in. Returns the seconds that are left of the deadline."""
        wait = Wait(_LONGEST_S if timeout_s is None else timeout_s)
        num_rows = num_steps * (self._num_lanes if lanes is None else len(lanes))
        ends = [int(np.count_nonzero(columns[name])) for name in ("terminated", "truncated") if name in columns]
        self._rows.admit(num_rows, min(num_rows, sum(ends)), wait)
        return None if timeout_s is None else wait.left_s

    def __enter__(self) -> PacedLanes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@final
class ShardRows(Closing):
    """The shards of a run, as a recorder needs them. Owns handles on all of them. One thread uses it.

    Attributes:
        opened: The lanes of the recorder if they are streamed; None: they are mapped, or not opened yet.
        number: The shard that the rows go to.
        columns: The names of the columns that have a value for each step, and those of the states.
    """

    def __init__(self, facts: ShardFacts, node: str, access: Access, timeout_s: float, num_actors: int) -> None:
        """Opens the shards that are not lost.

        Args:
            facts: The facts about the shards.
            node: Ray's name of this node; "": it has none.
            access: Certificates and token.
            timeout_s: The deadline of calls to other nodes, in seconds.
            num_actors: Number of the actors of the run.

        Raises:
            ServiceUnavailable: The owner of a shard does not answer.
            ReliveError: Also the other errors of opened_shard.
        """
        self.opened: StreamedLanes | None = None
        self._table: RemoteTable | None = None
        self._live_s = time.monotonic()
        with ExitStack() as undo:
            opened = []
            for one in facts.there:
                opened.append(opened_shard(one, node, timeout_s, access))
                undo.callback(opened[-1].close)
            if not opened:
                raise InvalidConfig("shards of the run", "one that is not lost", "none")
            shards = Shards(opened)
            for shard in shards:
                shard.set_patience(timeout_s, len(shards))
            self._room = _Room(shards, facts.lost, num_actors)
            self._near = next((one for one in opened if isinstance(one, MappedShard)), None)
            self._shard = self._near or emptiest([(one, one.ask_stats().take()) for one in opened])
            self.number = self._shard.number
            if self._near is None:
                (address,) = (one.address for one in facts.there if one.number == self.number)
                self._table = connect_with(address, access, timeout_s)
            undo.pop_all()
        self._shards = shards
        spec = self._shard.table.config.spec
        states = {name for name, column in spec.columns.items() if column.kind == "state"}
        self.columns = set(spec.columns) - states, states

    @property
    def spec(self) -> StepSpec:
        """The columns of a step."""
        return self._shard.table.config.spec

    def writer(self, num_lanes: int | None = None) -> PacedLanes:
        """Opens lanes in the shard of this actor. Raises TooManyLanes, ServiceUnavailable and the errors of writers."""
        lanes: ReplayWriter
        if self._near is not None:
            lanes = self._near.table.writer(num_lanes)
        else:
            assert self._table is not None
            streamed = StreamedTable(self._table)
            lanes = self.opened = streamed.writer(num_lanes)
        return PacedLanes(lanes, num_lanes, self)

    def admit(self, num_steps: int, num_ends: int, wait: Wait) -> None:
        """Waits until the actor's shard has an owner and the limiter leaves room (rules H2 and H3).

        Raises DeadlineExceeded.
        """
        if self._is_live() and self._room.is_granted(num_steps):
            return
        if self.opened is not None:
            self.opened.settle(max(wait.left_s, _SETTLE_S))
        while not (self._is_live() and self._room.is_there(num_steps, num_ends)):
            if wait.is_over:
                raise DeadlineExceeded("room in the limiter's window over all shards", "none", wait.waited_s)
            wait.pause()

    def _is_live(self) -> bool:
        if self._shard.state == "dead" or self._shard.state == "replaced":
            return False
        self._live_s = time.monotonic()
        return True

    def silent_s(self) -> float:
        """Returns the seconds since the actor's shard last had an owner. Asks for it now."""
        self._is_live()
        return time.monotonic() - self._live_s

    def close(self) -> None:
        """Closes the handles. Close the recorder before."""
        try:
            if self._table is not None:
                self._table.close()
        finally:
            self._shards.close()


if TYPE_CHECKING:

    def _is_a_writer(lanes: PacedLanes) -> ReplayWriter:
        return lanes
