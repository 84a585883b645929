"""The errors of a table over several shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from relive.errors import ReliveError

__all__ = [
    "ClusterFailed",
    "FleetExists",
    "FleetFailed",
    "FleetLeft",
    "MemoryTwice",
    "NoLiveShard",
    "NoSuchFleet",
    "NotOverShards",
    "OtherShards",
    "PeerUnreadable",
    "RankFailed",
    "RankLost",
    "RanksDisagree",
    "ShardNotSaved",
]


@final
class NotOverShards(ReliveError, NotImplementedError):
    """A table over several shards does not have this call or index (yet).

    Attributes:
        what: the call or the index.
        reason: why it does not work over several shards.
        instead: what to use instead.
    """

    def __init__(self, what: str, reason: str, instead: str) -> None:
        self.what = what
        self.reason = reason
        self.instead = instead
        super().__init__(f"{what} does not work over several shards: {reason}; {instead}")


@final
class RanksDisagree(ReliveError, ValueError):
    """A rank of the group has another spec, other indexes or other shards than this rank, or makes another call.

    Nothing was drawn, on any rank.

    Attributes:
        rank: the other rank.
        what: the part that differs.
        expected: the value on this rank; None if it has no short form.
        got: the value on the other rank; None if it has no short form.
    """

    def __init__(self, rank: int, what: str, expected: object = None, got: object = None) -> None:
        self.rank = rank
        self.what = what
        self.expected = expected
        self.got = got
        values = "" if expected is None else f": expected {expected!r}, got {got!r}"
        super().__init__(
            f"rank {rank} has {what} other than this rank's{values}; open the same shards, with the same specs and"
            " indexes, and make the same calls on every rank"
        )


@final
class RankFailed(ReliveError, RuntimeError):
    """A rank of the group could not do its part of a call for all ranks.

    Attributes:
        rank: the rank that failed.
        reason: the error of that rank, as text.
    """

    def __init__(self, rank: int, reason: str) -> None:
        self.rank = rank
        self.reason = reason
        super().__init__(f"rank {rank} has no batch for the group: {reason}; the group may go on")


@final
class RankLost(ReliveError, ConnectionError):
    """A rank of the group ended, or cannot be reached.

    Attributes:
        reason: the error of the transport, as text.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"a rank of the group is gone ({reason}); the others cannot draw together without it: end them, too, and"
            " start the group again (torchrun does); shards live on in their owners"
        )


@final
class OtherShards(ReliveError, ValueError):
    """A save of several shards is loaded into another number of shards.

    Attributes:
        saved: the numbers of the shards of the save.
        got: the numbers of the shards here.
    """

    def __init__(self, saved: Sequence[int], got: Sequence[int]) -> None:
        self.saved, self.got = tuple(saved), tuple(got)
        super().__init__(
            f"the save has {_counted(self.saved)}, here {'is' if len(self.got) == 1 else 'are'} {_counted(self.got)};"
            " start and attach all shards of the save and no others, because shards are not divided or joined"
        )


def _counted(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"{len(numbers)} shard{'' if len(numbers) == 1 else 's'} ({shown})"


@final
class ShardNotSaved(ReliveError, RuntimeError):
    """A shard cannot take part in a save of all shards.

    Attributes:
        shard: the number of the shard.
        state: its state, as stats().shards shows it.
    """

    def __init__(self, shard: int, state: str) -> None:
        self.shard = shard
        self.state = state
        super().__init__(
            f"shard {shard} is {state}, and a save has all shards: nothing is saved, and the save before stays whole;"
            " start the owner of the shard again, then call again"
        )


@final
class NoLiveShard(ReliveError, ConnectionError):
    """No shard of the table has a live owner.

    Attributes:
        num_shards: number of shards of the table.
    """

    def __init__(self, num_shards: int) -> None:
        self.num_shards = num_shards
        super().__init__(
            f"none of the {num_shards} shards has an owner that lives; start their owners again (they take over what"
            " their memory holds), then call again"
        )


@final
class NoSuchFleet(ReliveError, LookupError):
    """No fleet of this name runs on the cluster.

    Attributes:
        name: name of the fleet.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"no fleet {name!r} runs on this Ray cluster; `relive fleet start fleet.toml` starts one")


@final
class FleetExists(ReliveError, ValueError):
    """A fleet of this name, or a part of one, already runs on the cluster.

    Attributes:
        name: name of the fleet.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"a fleet {name!r} runs on this Ray cluster already; `relive fleet stop {name}` ends it")


@final
class FleetFailed(ReliveError, RuntimeError):
    """The actor of a shard has ended for good: it could not take over its memory, or it was ended.

    Attributes:
        name: name of the fleet.
        number: number of the shard.
        reason: Ray's explanation.
    """

    def __init__(self, name: str, number: int, reason: str) -> None:
        self.name = name
        self.number = number
        self.reason = reason
        super().__init__(f"shard {number} of fleet {name!r} does not run: {reason}")


@final
class FleetLeft(ReliveError, RuntimeError):
    """A fleet was stopped, and some of its shards have still an owner, or memory that was to be removed.

    Attributes:
        name: name of the fleet.
        numbers: numbers of the shards.
        waited_s: seconds that stop() waited.
    """

    def __init__(self, name: str, numbers: Sequence[int], waited_s: float) -> None:
        self.name = name
        self.numbers = tuple(numbers)
        self.waited_s = waited_s
        listed = " ".join(f"{name}-{number}" for number in numbers)
        super().__init__(
            f"fleet {name!r} was stopped, but within {waited_s:.0f} s the owners of its shards {listed} did not end or"
            f" their memory was not removed; end their processes, then run `relive rm {listed}` on their nodes"
        )


@final
class MemoryTwice(ReliveError, RuntimeError):
    """Several machines have memory of one shard, and a new fleet of the name could take over only one of them.

    Attributes:
        name: name of the fleet.
        number: number of the shard.
        nodes: addresses of the nodes that have the memory.
    """

    def __init__(self, name: str, number: int, nodes: Sequence[str]) -> None:
        self.name = name
        self.number = number
        self.nodes = tuple(nodes)
        super().__init__(
            f"memory of shard {number} of fleet {name!r} lies on several machines: {' '.join(nodes)}; run `relive rm"
            f" {name}-{number}` on all of them, or on all but the one whose rows the fleet is to take over"
        )


@final
class ClusterFailed(ReliveError, RuntimeError):
    """Ray refused a call for a fleet, or could not complete it.

    Attributes:
        call: the call.
        reason: Ray's explanation, in a line.
    """

    def __init__(self, call: str, reason: str) -> None:
        self.call = call
        self.reason = reason
        super().__init__(f"the Ray cluster could not do {call}: {reason}; `ray status` shows its nodes")


@final
class PeerUnreadable(ReliveError, ConnectionError):
    """The memory of a shard cannot be read one-sidedly.

    Attributes:
        address: address of the shard.
        reason: why the memory cannot be read.
    """

    def __init__(self, address: str, reason: str) -> None:
        self.address = address
        self.reason = reason
        super().__init__(
            f"the memory of the shard at {address} cannot be read one-sidedly: {reason}; attach with path=None or"
            " path='service' to have its owner send rows"
        )
