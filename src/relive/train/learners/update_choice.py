"""Chooses between the hand-written update of an agent and its compiled package, by measuring both.

The two are the same update over the same memory (`Agent.functional`), so that either may learn from any batch. A run
begins with the hand-written update, which needs no start. Then:

  wait     A package in the cache is used at once. Otherwise another process compiles one
           (relive.train.learners.compiled_updates), but only after the run has learnt for WORTH_S: shorter runs never
           pay for it. The run does not wait for the compiler, and the compiler ends with the run.
  check    Both updates learn from one batch, from the same state. If the results differ by more than float error, the
           package is not used, and a line says so. The hand-written result stays.
  trial    With "auto", blocks of hand-written and compiled updates alternate, on batches of the run. The compiled
           update must be faster by LEAST_GAIN in the median: of the CPU time of the learner's thread, or of the
           wall-clock time if the learner has several threads.
  settled  A line says the choice, and config.json keeps it for the next sessions.

With several learners, on a device, and for agents whose `functional` is None, there is only the hand-written update.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray

from relive.agents.agent import Agent, Items
from relive.agents.functional import Functional
from relive.train.learners.compiled_updates import Compiling, PackageRequest, compiler, load_packages
from relive.train.parts import Part

WORTH_S = 120.0
LEAST_GAIN = 0.03
_LOOK_S = 1.0
_BLOCKS, _BLOCK = 6, 10
_RELATIVE, _ABSOLUTE = 1e-2, 1e-4  # float error in the state after one update
Priorities = NDArray[np.float64] | None


class Maker(Protocol):
    """A process that compiles. See `Compiling`."""

    @property
    def ended(self) -> bool: ...
    @property
    def problem(self) -> str | None: ...
    def stop(self) -> None: ...


@final
@dataclass(frozen=True)
class ChoiceOptions:
    """Options of the choice.

    Attributes:
        chooses: Choose by a trial. Else the package is compiled at once and used as soon as it is there.
        say: Gets lines for people.
        settled: Gets the choice, "compiled" or "handwritten", once.
        worth_s: Seconds of learning before a package is compiled for a trial.
        make: Starts a process that compiles.
        load: Loads the packages.
    """

    chooses: bool
    say: Callable[[str], None]
    settled: Callable[[str], None]
    worth_s: float = WORTH_S
    make: Callable[[PackageRequest], Maker] = Compiling
    load: Callable[[PackageRequest], Mapping[str, Any]] = load_packages


@final
class UpdateChoice(Part):
    """The `update` of an agent, hand-written or compiled. It is a Part of the run.

    Attributes:
        way: The choice, "compiled" or "handwritten"; None while it is open.
    """

    def __init__(self, agent: Agent, functional: Functional, request: PackageRequest, options: ChoiceOptions) -> None:
        self._agent, self._functional, self._request, self._options = agent, functional, request, options
        # With several threads the CPU time of one says nothing. A busy machine slows both updates alike.
        self._clock = time.thread_time if request.num_threads == 1 else time.perf_counter
        self._began_s = self._looked_s = time.monotonic()
        self._maker: Maker | None = None
        self._steps: Mapping[str, Any] = {}
        self._times: dict[str, list[float]] = {"handwritten": [], "compiled": []}
        self._num_timed = 0
        self.way: str | None = None
        if self._look():
            self._looked_s = -math.inf  # the first update looks again, and uses the packages

    def update(self, batch: Items) -> Priorities:
        """See Agent."""
        if self.way == "compiled":
            return self._compiled(batch)
        if self.way is None:
            if self._steps:
                return self._tried(batch)
            if time.monotonic() - self._looked_s >= _LOOK_S and self._look():
                return self._checked(batch)
        return self._agent.update(batch)

    def stop(self) -> None:
        """Ends a compiler that still runs."""
        if self._maker is not None:
            self._maker.stop()
            self._maker = None

    # ---- without a package -----------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Returns whether the packages are there; has them compiled when it is time."""
        self._looked_s = time.monotonic()
        try:
            is_there = self._request.is_there
        except OSError as error:  # the cache folder cannot be searched
            self.stop()
            self._settle("handwritten", f"are not compiled: {error}")
            return False
        if is_there:
            self.stop()
            return True
        if self._maker is None:
            if not self._options.chooses or self._looked_s - self._began_s >= self._options.worth_s:
                self._ask()
        elif self._maker.ended:
            problem = self._maker.problem
            self.stop()  # without a problem another process compiles: try again, until it is done or gone
            if problem is not None:
                self._settle("handwritten", f"could not be compiled: {problem}")
        return False

    def _ask(self) -> None:
        if compiler() is None:
            self._settle("handwritten", "are not compiled: there is no g++ here, and no compiler that $CXX names")
            return
        try:
            self._maker = self._options.make(self._request)
        except OSError as problem:
            self._settle("handwritten", f"are not compiled: {problem}")

    # ---- with a package --------------------------------------------------------------------------------------------

    def _call(self, name: str, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(self._steps[name](list(arguments)))

    def _compiled(self, batch: Items) -> Priorities:
        priorities: Priorities = self._functional.update(batch, self._call)
        return priorities

    def _checked(self, batch: Items) -> Priorities:
        """Learns from one batch with both updates, from the same state. The hand-written result stays."""
        agent = self._agent
        before = agent.state_dict()
        try:
            self._steps = self._options.load(self._request)
            self._compiled(batch)
            compiled = agent.state_dict()
        except (OSError, RuntimeError, AttributeError) as problem:
            self._steps = {}
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            self._settle("handwritten", f"could not be run compiled: {lines[0]}")
        agent.load_state_dict(before)
        priorities = agent.update(batch)
        if self._steps:
            name = _differing(compiled, agent.state_dict())
            if name is not None:
                self._steps = {}
                self._settle("handwritten", f"are not compiled: the compiled update computes another {name}")
            elif not self._options.chooses:
                self._settle("compiled", "are compiled from now on")
        return priorities

    def _tried(self, batch: Items) -> Priorities:
        """Learns from one batch of the trial; the last one settles the choice."""
        way = ("handwritten", "compiled")[self._num_timed // _BLOCK % 2]
        began_s = self._clock()
        priorities = self._compiled(batch) if way == "compiled" else self._agent.update(batch)
        self._times[way].append(self._clock() - began_s)
        self._num_timed += 1
        if self._num_timed == 2 * _BLOCKS * _BLOCK:
            mine, compiled = (1e6 * float(np.median(self._times[way])) for way in ("handwritten", "compiled"))
            chosen = "compiled" if compiled < (1.0 - LEAST_GAIN) * mine else "handwritten"
            told = "compiled from now on" if chosen == "compiled" else "hand-written as before"
            self._settle(chosen, f"take {mine:,.0f} us hand-written and {compiled:,.0f} us compiled: they are {told}")
        return priorities

    def _settle(self, way: str, told: str) -> None:
        self.way = way
        self._options.say(f"updates {told}")
        self._options.settled(way)


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> str | None:
    """Returns the name of the first value that differs between two states by more than float error; None: no value."""
    for name, value in one.items():
        theirs = other[name]
        if isinstance(value, Mapping):
            found = _differing(value, theirs, f"{path}{name}.")
            if found is not None:
                return found
        elif isinstance(value, torch.Tensor):
            mine, its = value.to(torch.float64), theirs.to(torch.float64)
            if not torch.allclose(mine, its, rtol=_RELATIVE, atol=_ABSOLUTE):
                return path + name
        elif value != theirs:
            return path + name
    return None
