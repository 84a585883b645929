"""Which way a run's updates go: the agent's own, written by hand, or its compiled package; chosen by measuring.

Both are the same update over the same memory (`Agent.functional`), so that one may follow the other at any batch. A run
begins with the hand-written way, which costs no start. Then:

  wait     a package that the cache has is taken at once; otherwise one is compiled in another process
           (relive.train.learners.compiled_updates), and only when the run has learnt for
           WORTH_S: shorter runs never pay for it. The run does not wait for the compiler, and the compiler ends
           with the run.
  check    one batch goes both ways, from one state. Where the results differ by more than float error the package is
           not used, and a line says so; the hand-written result stands.
  trial    with "auto", blocks of updates take turns, each on batches of the run. The compiled way has to be faster by
           LEAST_GAIN, in the median of the CPU time of the learner's thread (of the wall clock, where it has several).
  settled  the way is said in a line, and stands in config.json, so that a resumed run has it.

With several learners, on a device, and for agents whose `functional` is None there is only the hand-written way.
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
_RELATIVE, _ABSOLUTE = 1e-2, 1e-4  # of what one update leaves
Priorities = NDArray[np.float64] | None


class Maker(Protocol):
    """What `Compiling` is seen as."""

    @property
    def ended(self) -> bool: ...
    @property
    def problem(self) -> str | None: ...
    def stop(self) -> None: ...


@final
@dataclass(frozen=True)
class ChoiceOptions:
    """chooses: by a trial; otherwise a package is used as soon as it is there, and asked for at once.

    say: told in a line for people. settled: told the way, "compiled" or "handwritten", once.
    """

    chooses: bool
    say: Callable[[str], None]
    settled: Callable[[str], None]
    worth_s: float = WORTH_S
    make: Callable[[PackageRequest], Maker] = Compiling
    load: Callable[[PackageRequest], Mapping[str, Any]] = load_packages


@final
class UpdateChoice(Part):
    """An agent's `update`, one way or the other. One thread; `stop` once, also after a failure.

    way: the one that is used from here on, None while that is open.
    """

    def __init__(self, agent: Agent, functional: Functional, request: PackageRequest, options: ChoiceOptions) -> None:
        self._agent, self._functional, self._request, self._options = agent, functional, request, options
        # Of several threads CPU time says nothing, and a busy machine disturbs both ways alike.
        self._clock = time.thread_time if request.num_threads == 1 else time.perf_counter
        self._began_s = self._looked_s = time.monotonic()
        self._maker: Maker | None = None
        self._steps: Mapping[str, Any] = {}
        self._times: dict[str, list[float]] = {"handwritten": [], "compiled": []}
        self._num_timed = 0
        self.way: str | None = None
        if self._look():
            self._looked_s = -math.inf  # the first update looks again, and takes them

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
        """Ends a compiler that is still at it."""
        if self._maker is not None:
            self._maker.stop()
            self._maker = None

    # ---- until there is a package ----------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Whether the packages are there. Asks for them where it is time."""
        self._looked_s = time.monotonic()
        if self._request.is_there:
            self.stop()
            return True
        if self._maker is None:
            if not self._options.chooses or self._looked_s - self._began_s >= self._options.worth_s:
                self._ask()
        elif self._maker.ended:
            problem = self._maker.problem
            self.stop()  # without a problem another process is at it: asked again, until it is done or gone
            if problem is not None:
                self._settle("handwritten", f"could not be compiled: {problem}")
        return False

    def _ask(self) -> None:
        if compiler() is None:
            self._settle("handwritten", "are not compiled: there is no g++ here (nor what $CXX names)")
            return
        try:
            self._maker = self._options.make(self._request)
        except OSError as problem:
            self._settle("handwritten", f"are not compiled: {problem}")

    # ---- with one --------------------------------------------------------------------------------------------------

    def _call(self, name: str, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(self._steps[name](list(arguments)))

    def _compiled(self, batch: Items) -> Priorities:
        priorities: Priorities = self._functional.update(batch, self._call)
        return priorities

    def _checked(self, batch: Items) -> Priorities:
        """One batch both ways, from the same state; the hand-written result stays."""
        agent = self._agent
        before = agent.state_dict()
        try:
            self._steps = self._options.load(self._request)
            self._compiled(batch)
            compiled = agent.state_dict()
        except (RuntimeError, AttributeError) as problem:
            self._steps = {}
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            self._settle("handwritten", f"could not be run compiled: {lines[0]}")
        agent.load_state_dict(before)
        priorities = agent.update(batch)
        if self._steps:
            name = _differing(compiled, agent.state_dict())
            if name is not None:
                self._steps = {}
                self._settle("handwritten", f"compiled give another {name}, and are not used")
            elif not self._options.chooses:
                self._settle("compiled", "are compiled from here on")
        return priorities

    def _tried(self, batch: Items) -> Priorities:
        way = ("handwritten", "compiled")[self._num_timed // _BLOCK % 2]
        began_s = self._clock()
        priorities = self._compiled(batch) if way == "compiled" else self._agent.update(batch)
        self._times[way].append(self._clock() - began_s)
        self._num_timed += 1
        if self._num_timed == 2 * _BLOCKS * _BLOCK:
            mine, compiled = (1e6 * float(np.median(self._times[way])) for way in ("handwritten", "compiled"))
            chosen = "compiled" if compiled < (1.0 - LEAST_GAIN) * mine else "handwritten"
            told = "from here on" if chosen == "compiled" else "hand-written as before"
            self._settle(chosen, f"take {mine:,.0f} us written by hand, {compiled:,.0f} compiled: {chosen} {told}")
        return priorities

    def _settle(self, way: str, told: str) -> None:
        self.way = way
        self._options.say(f"updates {told}")
        self._options.settled(way)


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> str | None:
    """The first value of a state that is another one by more than float error; None where there is none."""
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
