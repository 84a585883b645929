"""An actor of a run on another machine: `relive act grpc://host:port/name`.

It learns from the run what it needs (the agent and its options, the environment, how long it may act without news),
refuses what does not fit, and then does what an actor of the run's own machine does: rows go out in a stream, newer
parameters come in behind its back. A visit is one handle on the run's table with all that hangs on it:

  V1  A link that breaks and comes back within serving.max_staleness_s is a cut (see links.py): acting goes on.
  V2  After max_staleness_s without news acting stops and the visit ends: its connection may be one that is open and
      dead. So it does where the table at the address is another one: the learner was killed and resumed.
  V3  Visits are begun anew, with environments and seeds of their own, until patience_s have passed without news.
  V4  It ends by itself where the run says that it has ended.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from relive.adapters.gymnasium import record
from relive.agents.agent import Policy
from relive.agents.config import require
from relive.core.closing import Closing
from relive.errors import FormatMismatch, InvalidConfig, ReliveError, ServiceUnavailable, TooManyLanes, Unacknowledged
from relive.service import Published, RemoteTable, connect
from relive.service.parameters.sets import MAX_VERSION
from relive.train.acting.actor import ActorTask, acting_with
from relive.train.acting.environments import describe, make_environments
from relive.train.acting.links import Feed, LanesOf
from relive.train.acting.serving import FORMAT, RETURNS_TOLD, Deeds
from relive.train.config import TrainConfig
from relive.train.errors import EnvironmentRaised
from relive.train.memory.scoreboard import Scoreboard
from relive.train.memory.stopwatch import watch_with
from relive.train.signals import stop_signals

_CALL_S = 2.0
_POLL_S = 5.0
_WAIT_SLICE_S = 0.2
_SAY_PERIOD_S = 5.0


@final
@dataclass(frozen=True)
class ActOptions:
    """env_id: another environment than the run's, of the same spaces. num_envs: stepped together; None: as the run's
    own actors. seed: of environments and exploration; None: a new one. patience_s: without the run.
    """

    env_id: str | None = None
    num_envs: int | None = None
    seed: int | None = None
    patience_s: float = 300.0

    def __post_init__(self) -> None:
        require(self.num_envs is None or self.num_envs >= 1, "envs", ">= 1", self.num_envs)
        require(self.seed is None or 0 <= self.seed < 2**31, "seed", "0 <= seed < 2**31", self.seed)
        require(self.patience_s >= 0, "patience", ">= 0 seconds", self.patience_s)


@final
@dataclass
class Acted:
    """What an actor has done. num_lost: steps that the run did not confirm; num_cuts: links that broke and came back;
    finished: the run ended, else the actor was stopped.
    """

    seed: int
    num_steps: int = 0
    num_episodes: int = 0
    num_lost: int = 0
    num_cuts: int = 0
    num_visits: int = 0
    finished: bool = False

    def __str__(self) -> str:
        ending = "the run has ended" if self.finished else "stopped"
        return (
            f"{ending}: {self.num_steps:,} steps, {self.num_episodes:,} episodes, seed {self.seed}; {self.num_lost:,}"
            f" steps not confirmed, {self.num_cuts} broken links, {self.num_visits} visits"
        )


def act(address: str, options: ActOptions | None = None, *, say: Callable[[str], None] = lambda text: None) -> Acted:
    """Acts for the run at grpc://host:port/name until it ends, or until SIGINT or SIGTERM, heard in the main thread.

    Blocks. Makes the agent once, to have its policy: that imports torch; acting does without. Raises InvalidConfig
    where environment, spaces, parameters or number of environments do not fit the run, NoSuchTable, FormatMismatch (of
    another version), EnvironmentRaised, and ServiceUnavailable after options.patience_s without the run.
    """
    options = options or ActOptions()
    acted = Acted(secrets.randbelow(2**31) if options.seed is None else options.seed)
    with stop_signals() as stopping:
        _RemoteActor(address, options, acted, stopping, say).run()
    return acted


@final
class _RunDescription:
    """What a run says of itself beside its parameters, and what an actor makes of it. Raises InvalidConfig."""

    def __init__(self, published: Published, table: RemoteTable, options: ActOptions) -> None:
        about = published.about
        if about.get("format") != FORMAT:
            raise InvalidConfig("description of the run", f"format {FORMAT}: see that both run one version", about)
        try:
            self.config = TrainConfig.from_tree(about["config"])
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise InvalidConfig("options of the run", "those of this version", str(problem)) from None
        own = self.config.environment
        self.env_id, self.num_envs = options.env_id or own.env_id, options.num_envs or own.num_envs_per_actor
        agent = self.config.agent.make(describe(self.env_id), seed=0, device="cpu")
        self.policy: Policy = agent.policy()
        if agent.spec() != table.spec:
            raise InvalidConfig(
                f"environment {self.env_id!r}", f"the spaces of the run's, {own.env_id!r}", agent.spec().to_json()
            )
        expected = {name: value.shape for name, value in agent.parameters().items()}
        found = {name: value.shape for name, value in published.arrays.items()}
        if found != expected:
            raise InvalidConfig("parameters of the run", f"names and shapes {expected}", str(found))


@final
class _Lost(Exception):
    """The link to the run is of no use any more; a new visit may find it again."""


@final
class _Visit(Closing):
    """One handle on the run's table, and all that hangs on it. Its thread acts; the feed has one of its own."""

    def __init__(self, table: RemoteTable, first: Published, run: _RunDescription, acted: Acted) -> None:
        """The table is the visit's from now on. Raises TooManyLanes and what making the environments raises."""
        self._limit_s = run.config.serving.max_staleness_s
        self._table, self._acted = table, acted
        self._name = secrets.token_hex(8)
        self._scoreboard = Scoreboard(1)
        self._lanes = LanesOf(table)
        envs = make_environments(run.env_id, run.num_envs)
        try:
            self._recorded = record(envs, self._lanes, timeout_s=0.0)
        except BaseException:
            envs.close()
            self._scoreboard.close()
            raise
        self._feed = Feed(table.parameters, first, min(_POLL_S, self._limit_s / 3), self._told, self._heard)
        environment = replace(
            run.config.environment, env_id=run.env_id, num_envs_per_actor=run.num_envs, seed=_own_seed(acted.seed)
        )
        task = ActorTask(0, acted.num_visits, "", environment, run.policy, self._feed, self._scoreboard)
        self._acting = acting_with(task, self._recorded, watch_with(None))
        acted.num_visits += 1

    def act(self, stopping: Callable[[], bool], say: Callable[[str], None]) -> bool:
        """Acts until the run has ended (True), or it is to stop. Raises _Lost, EnvironmentRaised and what the run says
        against its rows.
        """
        began_s = said_s = time.monotonic()
        try:
            self._acting.reset()
            while not stopping():
                if self._is_over():
                    return True
                self._acting.turn(_WAIT_SLICE_S)
                now_s = time.monotonic()
                if now_s - said_s >= _SAY_PERIOD_S:
                    say(self._line(now_s - began_s))
                    said_s = now_s
        except Unacknowledged as problem:
            # Another table, or lanes that the run has not missed yet: those of the stream that broke.
            if isinstance(problem.__cause__, (FormatMismatch, TooManyLanes)):
                raise _Lost(str(problem.__cause__)) from None
            raise
        except _Lost:
            raise
        except Exception as problem:
            failure = self._scoreboard.failure_of(0)
            if failure is None:
                raise
            raise EnvironmentRaised(0, *failure) from problem
        return False

    def _is_over(self) -> bool:
        """Whether the run has ended. Raises _Lost where it is not heard of (V2), or is another."""
        feed = self._feed
        if isinstance(feed.problem, FormatMismatch):
            raise _Lost(str(feed.problem))
        if feed.problem is not None:
            raise feed.problem
        if feed.silent_s() > self._limit_s:
            raise _Lost(f"nothing heard for {feed.silent_s():.1f} s: acting stops after {self._limit_s:g} s")
        return feed.finished

    @property
    def heard_s(self) -> float:
        """When the run was heard of last, on time.monotonic()."""
        return self._feed.heard_s

    def _told(self, version: int) -> dict[str, Any]:
        """The note of a pull; called by the feed's thread, of counters that may be a step behind."""
        num_steps, num_episodes, wait_s = self._scoreboard.totals_of(0)
        returns, lengths = self._scoreboard.last_episodes(0, RETURNS_TOLD)
        is_number = np.isfinite(returns)
        returns, lengths = returns[is_number], lengths[is_number]
        deeds = Deeds(
            self._name, num_steps, num_episodes, wait_s, version, tuple(returns.tolist()), tuple(lengths.tolist())
        )
        return deeds.to_note()

    def _heard(self, published: Published) -> None:
        self._scoreboard.go_on_from(int(published.about.get("num_steps", 0)))

    def _line(self, elapsed_s: float) -> str:
        num_steps, num_episodes, wait_s = self._scoreboard.totals_of(0)
        returns, _ = self._scoreboard.last_episodes(0, RETURNS_TOLD)
        mean = f"{returns.mean():.1f}" if len(returns) else "-"
        lanes = self._lanes.opened
        cuts = f"  broken links {lanes.num_cuts}, steps lost {lanes.num_lost:,}" if lanes and lanes.num_cuts else ""
        return (
            f"{elapsed_s:6.1f} s  steps {num_steps:,} ({num_steps / elapsed_s:,.0f}/s)  episodes {num_episodes:,}"
            f"  return {mean}  parameters {self._feed.version}, {self._feed.silent_s():.1f} s ago"
            f"  waits {min(1.0, wait_s / elapsed_s):.0%}{cuts}"
        )

    def close(self) -> None:
        """Sends what is open, a little while, says what was done, ends the links and closes the environments."""
        lanes = self._lanes.opened
        try:
            self._recorded.close()
        except Unacknowledged as problem:  # said of what was sent before, while the lanes were being ended
            self._acted.num_lost += problem.num_steps
        finally:
            self._tell_the_last()
            self._table.close()
            self._feed.close()
            num_steps, num_episodes, _ = self._scoreboard.totals_of(0)
            self._acted.num_steps += num_steps
            self._acted.num_episodes += num_episodes
            if lanes is not None:
                self._acted.num_lost += lanes.num_lost
                self._acted.num_cuts += lanes.num_cuts
            self._scoreboard.close()

    def _tell_the_last(self) -> None:
        if self._feed.silent_s() > self._limit_s or self._feed.problem is not None:
            return  # nobody would hear it
        with contextlib.suppress(ReliveError):
            self._table.parameters.pull(MAX_VERSION, 0.0, note=self._told(self._feed.version))


def _own_seed(seed: int) -> int:
    """Other streams than those of the actors that a run of this seed has itself."""
    return int(np.random.SeedSequence(seed, spawn_key=(2**20,)).generate_state(1)[0] % 2**31)


@final
class _RemoteActor:
    """One actor, over all its visits. One thread, and those of its links."""

    def __init__(
        self,
        address: str,
        options: ActOptions,
        acted: Acted,
        stopping: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._address, self._options, self._acted = address, options, acted
        self._stopping, self._say = stopping, say
        self._heard_s = self._left_s = time.monotonic()
        self._said_lost = False

    def run(self) -> None:
        """Visit after visit (V3)."""
        while not self._stopping():
            try:
                table = connect(self._address, timeout_s=_CALL_S)
            except ServiceUnavailable as problem:
                self._wait_for_it(problem)
                continue
            with table:
                try:
                    if self._visit(table):
                        self._acted.finished = True
                        return
                except (ServiceUnavailable, FormatMismatch, _Lost) as problem:
                    self._wait_for_it(problem)
                except TooManyLanes:
                    # Its own ones may be among them, until the run has heard that their link is dead.
                    if time.monotonic() - self._left_s >= self._options.patience_s or not self._acted.num_visits:
                        raise
                    time.sleep(0.5)

    def _wait_for_it(self, problem: Exception) -> None:
        waited_s = time.monotonic() - self._heard_s
        if waited_s >= self._options.patience_s:
            raise ServiceUnavailable(self._address, waited_s, str(problem)[:200]) from None
        if not self._said_lost:
            self._say(f"no link to the run, waiting for at most {self._options.patience_s:.0f} s: {problem}")
            self._said_lost = True
        time.sleep(0.1)

    def _visit(self, table: RemoteTable) -> bool:
        """Whether the run has ended; False where the actor is to stop."""
        first = self._first_parameters(table)
        if first is None:
            return table.parameters.finished
        run = _RunDescription(first, table, self._options)
        with _Visit(table, first, run, self._acted) as visit:
            again = "again " if self._acted.num_visits > 1 else ""
            self._say(
                f"acting {again}for {self._address}: {run.config.agent.name} on {run.env_id}, {run.num_envs}"
                f" environments, seed {self._acted.seed}, parameters {first.version}"
            )
            self._said_lost = False
            try:
                return visit.act(self._stopping, self._say)
            finally:
                self._heard_s, self._left_s = visit.heard_s, time.monotonic()

    def _first_parameters(self, table: RemoteTable) -> Published | None:
        """Waits for them, as long as the run is there; None where it ended, or the actor is to stop."""
        while not self._stopping():
            found = table.parameters.pull(timeout_s=_CALL_S)
            self._heard_s = time.monotonic()
            if found is not None or table.parameters.finished:
                return found
        return None
