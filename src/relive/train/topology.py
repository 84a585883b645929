"""Topologies: which processes a run consists of. One value of the configuration; an agent does not know which it is.

  Inline()          one process: the actors take a step in turn, then learning goes as far as the limiter lets it
  Actors(n)         n actor processes beside one learner; as many as acting.num_actors says where n is left out
  Learners(n)       the same, and n learners that share every update, a slice of the batch each (learner_group.py)
  Learners(n, "async")   the same, and n learners with batches of their own, whose gradients the process that calls
                    `train` applies one after another (parameter_server.py)

What a run draws at random belongs to its environments, its actors and its agent, each with a seed of its own: actor k
plays the same stream of environments under each of them, and the state of a checkpoint has no trace of which it was.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, final

from relive.agents.config import require
from relive.errors import InvalidConfig
from relive.train.settings import Written

_EXPECTED = "'inline', 'actors', 'actors(4)', 'learners(2, sync)' or 'learners(2, async)'"
_FORM = re.compile(r"\s*([a-z]+)\s*(?:\(\s*([0-9]{1,6})?\s*(?:,\s*([a-z]+)\s*)?\))?\s*")
_MOST = 1024


class Topology(Written):
    """One of the values below. str() of it is what `--set topology=...` and files take."""

    @property
    @abstractmethod
    def num_learners(self) -> int:
        """Processes that compute gradients."""

    @property
    def num_slices(self) -> int:
        """Equal slices that each batch is cut into."""
        return 1

    @classmethod
    def parse(cls, text: str) -> Topology:
        """The value that `text` is. InvalidConfig for another text, and for numbers out of range."""
        found = _FORM.fullmatch(text)
        name, number, mode = found.groups() if found else ("", None, None)
        if name == "inline" and "(" not in text:
            return Inline()
        if name == "actors" and mode is None and ("(" not in text or number):
            return Actors(int(number) if number else None)
        if name == "learners" and number:
            return Learners(int(number), mode or "sync")  # type: ignore[arg-type]
        raise InvalidConfig("topology", _EXPECTED, text)


@final
@dataclass(frozen=True)
class Inline(Topology):
    """No process but the one that calls `train`: acting.num_actors actors step in turn, between updates."""

    num_learners = 1

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

    def __str__(self) -> str:
        return f"learners({self.number}, {self.mode})"
