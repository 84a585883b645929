"""Describes which processes a run consists of: a `Topology` is one option of the configuration.

  Inline()               one process: each actor takes a step, then the learner updates as far as the limiter lets it
  Actors(n)              n actor processes and one learner; without n: acting.num_actors of them
  Learners(n)            actor processes, and n learners that share every update, a slice of the batch each
                         (learners/group.py)
  Learners(n, "async")   actor processes, and n learners with batches of their own; the process that calls `train`
                         applies their gradients one after another (learners/parameter_server.py)
  Hosts(n)               n hosts, each with actors, a table and a learner; the learners share every update
                         (learners/host_group.py)
  CentralInference(max_batch, max_wait_us)
                         actors that have environments only; one process infers for all of them (acting/inference.py)
  DoubleBuffered(n)      the same with two groups of environments in each actor: one group steps while the inference
                         process infers the actions of the other

An agent does not know the topology. Every random stream belongs to an environment, an actor or the agent, and has a
seed of its own. So actor k plays the same stream of environments under each topology, and a checkpoint has no trace of
the topology that wrote it.
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
    """The condition that closes a batch of observations, whichever comes first.

    Attributes:
        max_batch: Observations in the batch.
        max_wait_us: Microseconds since the first observation of the batch.
    """

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
    """One of the values below. `str(topology)` is the text that `--set topology=...` and files take."""

    def acting(self, make: PartMaker[A, L]) -> A:
        """The part of a run that acts, under this topology."""
        return make.actors()

    def learning(self, make: PartMaker[A, L]) -> L:
        """The part of a run that learns, under this topology."""
        return make.learner()

    def crowding(self, cores: int) -> str | None:
        """A line for people if there are more learners than cores; None if they fit."""
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
        """Whether each learner is a process of its own, and the process that calls `train` applies their gradients."""
        return False

    @property
    @abstractmethod
    def num_learners(self) -> int:
        """Processes of this host that compute gradients."""

    @property
    def num_slices(self) -> int:
        """Equal slices that each batch is cut into."""
        return 1

    @property
    def num_hosts(self) -> int:
        """Hosts of the run. Each host draws its slice of a batch from its own table."""
        return 1

    @property
    def num_groups(self) -> int:
        """Groups of environments in each actor; one group steps at a time."""
        return 1

    @property
    def closing(self) -> Closing | None:
        """When a batch of observations closes, if one process infers for all actors; None if each actor infers."""
        return None

    @property
    def asks_for_actors(self) -> int | None:
        """Number of actor processes that the topology asks for; None: acting.num_actors."""
        return None

    @classmethod
    def parse(cls, text: str) -> Topology:
        """Reads a topology from its text. Raises InvalidConfig for other texts and for numbers out of range."""
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
    """No process but the one that calls `train`: acting.num_actors actors step one after another, between updates."""

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
    """Actor processes, and one learner in the process that calls `train`.

    Attributes:
        number: Number of actor processes; None: acting.num_actors.
    """

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
    """Several learners, and acting.num_actors actors.

    Attributes:
        number: Number of learners.
        mode: "sync": the learners share each batch in equal slices, and the process that calls `train` is one of them.
            "async": each learner is a process that draws batches of its own, and the process that calls `train`
            applies their gradients, except those that are too stale (`learning.max_gradient_staleness`).
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
            f"{self.number} learners on {cores} cores: {slower}, and learners that share a core slow each other down;"
            f" topology = {replace(self, number=cores)} has one for each core"
        )

    def __str__(self) -> str:
        return f"learners({self.number}, {self.mode})"


@final
@dataclass(frozen=True)
class Hosts(Topology):
    """Several hosts, each with acting.num_actors actors, a table, and a learner in the process that calls `train`.

    torchrun starts that process on each host. The hosts share every update: each learner draws its slice of the batch
    from its own table, and torch.distributed averages their gradients.

    Attributes:
        number: Number of hosts.
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
    """Actors that only step environments (acting.num_actors), and a process that infers their actions in batches.

    One learner, in the process that calls `train`.

    Attributes:
        max_batch: Observations that close a batch; all observations of all actors close it too. At least
            environment.num_envs_per_actor, because the observations of an actor come together.
        max_wait_us: Microseconds since its first observation that close a batch.
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
    """Actor processes with two groups of environments each, and a process that infers their actions.

    While one group steps in its actor, the inference process infers the actions of the other group. A batch closes
    with the observations that have arrived, and waits for no more. environment.num_envs_per_actor is at least 2. One
    learner, in the process that calls `train`.

    Attributes:
        number: Number of actor processes; None: acting.num_actors.
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
