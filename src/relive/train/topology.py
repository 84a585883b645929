"""Topologies: which processes a run consists of. One value of the configuration; an agent does not know which it is.

  Inline()          one process: the actors take a step in turn, then learning goes as far as the limiter lets it
  Actors(n)         n actor processes beside one learner; as many as acting.num_actors says where n is left out
  Learners(n)       the same, and n learners that share every update, a slice of the batch each (learner_group.py)
  Learners(n, "async")   the same, and n learners with batches of their own, whose gradients the process that calls
                    `train` applies one after another (parameter_server.py)
  Hosts(n)          n hosts, each with actors, a table and a learner, which share every update (host_group.py)
  CentralInference(max_batch, max_wait_us)   actors have environments only; one process infers for all (inference.py)
  DoubleBuffered(n)  the same, and each actor has two groups of environments: one steps while the other is inferred

What a run draws at random belongs to its environments, its actors and its agent, each with a seed of its own: actor k
plays the same stream of environments under each of them, and the state of a checkpoint has no trace of which it was.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar, final

from relive.agents.config import require
from relive.errors import InvalidConfig
from relive.train.settings import Written

_EXPECTED = (
    "'inline', 'actors', 'actors(4)', 'learners(2, sync)', 'learners(2, async)', 'hosts(2)', 'central(16, 500)' or"
    " 'double(4)'"
)
_FORM = re.compile(r"\s*([a-z]+)\s*(?:\(\s*([0-9]{1,9})?\s*(?:,\s*([a-z]+|[0-9]{1,9})\s*)?\))?\s*")
_MOST = 1024
_MOST_ROWS = 2**20
_LONGEST_US = 10_000_000


@final
@dataclass(frozen=True)
class Closing:
    """A batch of observations closes at max_batch of them, or max_wait_us after its first, whichever comes first."""

    max_batch: int
    max_wait_us: int


ActingT_co = TypeVar("ActingT_co", covariant=True)
LearningT_co = TypeVar("LearningT_co", covariant=True)
A = TypeVar("A")
L = TypeVar("L")


class PartMaker(Protocol[ActingT_co, LearningT_co]):
    """Makes the parts that topologies choose from (relive.train.assembly)."""

    def actors(self) -> ActingT_co:
        """Actor processes that infer for themselves; actors of this process where acting.inline asks for them."""
        ...

    def asking_actors(self) -> ActingT_co:
        """Actor processes, and the process that they ask for actions."""
        ...

    def inline_actors(self) -> ActingT_co:
        """Actors that this process steps between updates."""
        ...

    def learner(self) -> LearningT_co:
        """One learner, in this process."""
        ...

    def learners_together(self) -> LearningT_co:
        """Learners that share every update, each with a slice of the batch."""
        ...

    def learners_apart(self) -> LearningT_co:
        """Learners with batches of their own, and the server of their parameters."""
        ...

    def learners_on_hosts(self) -> LearningT_co:
        """One learner here and one on each other host, which share every update."""
        ...


class Topology(Written):
    """One of the values below. str() of it is what `--set topology=...` and files take."""

    def acting(self, make: PartMaker[A, L]) -> A:
        """The part of a run that acts, under this topology."""
        return make.actors()

    def learning(self, make: PartMaker[A, L]) -> L:
        """The part of a run that learns, under this topology."""
        return make.learner()

    def crowding(self, cores: int) -> str | None:
        """A line for people where there are more learners than cores; None where they fit."""
        return None

    @property
    def acts_inline(self) -> bool:
        """Whether the actors step in the process that calls `train`."""
        return False

    @property
    def learns_alone(self) -> bool:
        """Whether there is one learner, and it needs no other for an update."""
        return True

    @property
    def learns_apart(self) -> bool:
        """Whether all learners are processes beside the one that calls `train`."""
        return False

    @property
    @abstractmethod
    def num_learners(self) -> int:
        """Processes that compute gradients."""

    @property
    def num_slices(self) -> int:
        """Equal slices that each batch is cut into."""
        return 1

    @property
    def num_hosts(self) -> int:
        """Hosts, each of which draws its slice of a batch from a table of its own."""
        return 1

    @property
    def num_groups(self) -> int:
        """Groups of each actor's environments, of which one steps at a time."""
        return 1

    @property
    def closing(self) -> Closing | None:
        """When a batch of observations closes, where one process infers for all actors; None where each does it."""
        return None

    @property
    def asks_for_actors(self) -> int | None:
        """Actor processes, where the topology says how many; None: acting.num_actors."""
        return None

    @classmethod
    def parse(cls, text: str) -> Topology:
        """The value that `text` is. InvalidConfig for another text, and for numbers out of range."""
        found = _FORM.fullmatch(text)
        name, number, mode = found.groups() if found else ("", None, None)
        if name == "inline" and "(" not in text:
            return Inline()
        if name == "actors" and mode is None and ("(" not in text or number):
            return Actors(int(number) if number else None)
        if name == "learners" and number and not (mode or "").isdigit():
            return Learners(int(number), mode or "sync")  # type: ignore[arg-type]
        if name == "hosts" and number and mode is None:
            return Hosts(int(number))
        if name == "central" and "(" not in text:
            return CentralInference()
        if name == "central" and number and mode and mode.isdigit():
            return CentralInference(int(number), int(mode))
        if name == "double" and mode is None and ("(" not in text or number):
            return DoubleBuffered(int(number) if number else None)
        raise InvalidConfig("topology", _EXPECTED, text)


@final
@dataclass(frozen=True)
class Inline(Topology):
    """No process but the one that calls `train`: acting.num_actors actors step in turn, between updates."""

    num_learners = 1
    acts_inline = True

    def acting(self, make: PartMaker[A, L]) -> A:
        """See Topology."""
        return make.inline_actors()

    def __str__(self) -> str:
        return "inline"


@final
@dataclass(frozen=True)
class Actors(Topology):
    """number: of actor processes; None: acting.num_actors. One learner, in the process that calls `train`."""

    number: int | None = None
    num_learners = 1

    def __post_init__(self) -> None:
        if self.number is not None:
            require(1 <= self.number <= _MOST, "actors of the topology", f"in [1, {_MOST}]", self.number)

    @property
    def asks_for_actors(self) -> int | None:
        """See Topology."""
        return self.number

    def __str__(self) -> str:
        return "actors" if self.number is None else f"actors({self.number})"


@final
@dataclass(frozen=True)
class Learners(Topology):
    """number: of learners; acting.num_actors actors.

    mode: "sync", they share each batch in equal slices, and the process that calls `train` is one of them; "async",
    each draws batches of its own and has a process of its own, and the process that calls `train` applies what they
    find, while it is not too stale: `learning.max_gradient_staleness`.
    """

    number: int
    mode: Literal["sync", "async"] = "sync"
    learns_alone = False

    def __post_init__(self) -> None:
        require(1 <= self.number <= _MOST, "learners of the topology", f"in [1, {_MOST}]", self.number)
        require(self.mode in ("sync", "async"), "mode of the learners", "'sync' or 'async'", self.mode)

    @property
    def num_learners(self) -> int:
        """See Topology."""
        return self.number

    @property
    def num_slices(self) -> int:
        """See Topology."""
        return self.number if self.mode == "sync" else 1

    @property
    def learns_apart(self) -> bool:
        """See Topology."""
        return self.mode == "async"

    def learning(self, make: PartMaker[A, L]) -> L:
        """See Topology."""
        return make.learners_apart() if self.learns_apart else make.learners_together()

    def crowding(self, cores: int) -> str | None:
        """See Topology."""
        if self.number <= cores or self.number == 1:
            return None
        slower = "their gradients are stale" if self.learns_apart else "an update waits for the slowest of them"
        return (
            f"{self.number} learners on {cores} cores: {slower}, and those on one core take turns;"
            f" topology = {replace(self, number=cores)} has one for each core"
        )

    def __str__(self) -> str:
        return f"learners({self.number}, {self.mode})"


@final
@dataclass(frozen=True)
class Hosts(Topology):
    """number: of hosts, each with acting.num_actors actors, a table, and a learner in the process that calls `train`.

    torchrun starts that process on each of them. They share every update: each learner draws its slice from its own
    table, and torch.distributed makes one gradient of theirs.
    """

    number: int
    num_learners = 1
    learns_alone = False

    def __post_init__(self) -> None:
        require(1 <= self.number <= _MOST, "hosts of the topology", f"in [1, {_MOST}]", self.number)

    @property
    def num_slices(self) -> int:
        """See Topology."""
        return self.number

    @property
    def num_hosts(self) -> int:
        """See Topology."""
        return self.number

    def learning(self, make: PartMaker[A, L]) -> L:
        """See Topology."""
        return make.learners_on_hosts()

    def __str__(self) -> str:
        return f"hosts({self.number})"


@final
@dataclass(frozen=True)
class CentralInference(Topology):
    """acting.num_actors actors that step environments only, and a process that infers their actions in batches.

    max_batch: observations of a batch, which closes when it has so many, or all that the actors have; at least
    environment.num_envs_per_actor, since those come together. max_wait_us: microseconds after which a batch closes with
    what it has. One learner, in the process that calls `train`.
    """

    max_batch: int = 64
    max_wait_us: int = 500
    num_learners = 1

    def __post_init__(self) -> None:
        require(1 <= self.max_batch <= _MOST_ROWS, "max_batch", f"in [1, {_MOST_ROWS}]", self.max_batch)
        require(0 <= self.max_wait_us <= _LONGEST_US, "max_wait_us", f"in [0, {_LONGEST_US}]", self.max_wait_us)

    @property
    def closing(self) -> Closing:
        """See Topology."""
        return Closing(self.max_batch, self.max_wait_us)

    def acting(self, make: PartMaker[A, L]) -> A:
        """See Topology."""
        return make.asking_actors()

    def __str__(self) -> str:
        return f"central({self.max_batch}, {self.max_wait_us})"


@final
@dataclass(frozen=True)
class DoubleBuffered(Topology):
    """number: of actor processes; None: acting.num_actors. The environments of each are two groups.

    While one group steps in its actor, a process infers the actions of the other: that is where the two overlap. It
    takes what there is and waits for no more. environment.num_envs_per_actor is at least 2. One learner, in the process
    that calls `train`.
    """

    number: int | None = None
    num_learners = 1
    num_groups = 2

    def __post_init__(self) -> None:
        if self.number is not None:
            require(1 <= self.number <= _MOST, "actors of the topology", f"in [1, {_MOST}]", self.number)

    @property
    def closing(self) -> Closing:
        """See Topology."""
        return Closing(_MOST_ROWS, 0)

    def acting(self, make: PartMaker[A, L]) -> A:
        """See Topology."""
        return make.asking_actors()

    @property
    def asks_for_actors(self) -> int | None:
        """See Topology."""
        return self.number

    def __str__(self) -> str:
        return "double" if self.number is None else f"double({self.number})"
