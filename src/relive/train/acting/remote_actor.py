"""Acts for a run on another machine: `relive act grpc://host:port/name`.

The run tells the actor all it needs: the agent and its options, the environment, and how long it may act without news.
The actor refuses a run that it does not fit. Then it acts as an actor on the run's own machine does; its rows go out in
a stream, and a thread pulls newer parameters.

Rules, for a *visit*: one handle on the table of the run, and everything that depends on it:

  V1  If a link breaks and comes back within serving.max_staleness_s, acting goes on; the lanes are cut (links.py).
  V2  After max_staleness_s without news, acting stops and the visit ends: its connection may be open and dead.
      The visit also ends if the shard that the actor writes to has had no owner for max_staleness_s (shard_rows.py).
  V3  After a visit the actor begins another one, with new environments and new seeds, until patience_s have passed
      without news.
  V4  The actor ends when the run says that it has ended.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from relive import SamplesPerInsert
from relive.adapters.gymnasium import record
from relive.agents.agent import Policy
from relive.agents.config import require
from relive.core.closing import Closing
from relive.errors import FormatMismatch, InvalidConfig, ReliveError, ServiceUnavailable, TooManyLanes, Unacknowledged
from relive.service import Access, Published, RemoteTable
from relive.service.client.remote_table import connect_with
from relive.service.parameters.sets import MAX_VERSION
from relive.service.wire.access import OPEN
from relive.train.acting.actor import ActorTask, acting_with
from relive.train.acting.environments import describe, make_environments
from relive.train.acting.links import Feed, StreamedTable
from relive.train.acting.node_parameters import NodeParameters
from relive.train.acting.serving import FORMAT, RETURNS_TOLD, SPACES, ActorReport, told_spaces
from relive.train.acting.shard_rows import ShardFacts, ShardRows
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
    """Options of an actor of another machine.

    Attributes:
        env_id: An environment with the spaces of the run's; None: the run's environment.
        num_envs: Environments that are stepped together; None: as many as the run's own actors step.
        seed: Seed of environments and exploration; None: a new one.
        patience_s: Seconds without the run after which the actor ends.
        access: The actor's certificates and token; by default the token of RELIVE_TOKEN or RELIVE_TOKEN_FILE.
        name: Name of the actor in its reports, for a run that follows this actor.
        shared: Name by which the actors of this machine get parameters once together (node_parameters.py); None: each
            gets them for itself.
        node: Ray's name of this node, whose shard the actor maps; "": it streams to a shard, if the run has shards.
    """

    env_id: str | None = None
    num_envs: int | None = None
    seed: int | None = None
    patience_s: float = 300.0
    access: Access = OPEN
    name: str = ""
    shared: str | None = None
    node: str = ""

    def __post_init__(self) -> None:
        require(self.num_envs is None or self.num_envs >= 1, "envs", ">= 1", self.num_envs)
        require(self.seed is None or 0 <= self.seed < 2**31, "seed", "0 <= seed < 2**31", self.seed)
        require(self.patience_s >= 0, "patience", ">= 0 seconds", self.patience_s)


@final
@dataclass
class Acted:
    """The work of an actor.

    Attributes:
        seed: Its seed.
        num_steps: Environment steps.
        num_episodes: Finished episodes.
        num_lost: Steps that the run did not confirm.
        num_cuts: Links that broke and came back.
        num_visits: Visits.
        finished: Whether the run has ended; else the actor was stopped.
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
    """Acts for a run until the run ends, or until SIGINT or SIGTERM, which are handled in the main thread.

    Args:
        address: grpc://host:port/name, as the run prints it.
        options: Options of the actor.
        say: Gets lines for people.

    Returns:
        The work of the actor.

    Raises:
        InvalidConfig: The environment, its spaces, the parameters or the number of environments do not fit the run.
        NoSuchTable: The server has no table of this name.
        FormatMismatch: The run has another version.
        EnvironmentRaised: The environment raised an error.
        ServiceUnavailable: The run was away for options.patience_s.

    Blocks:
        As long as the run lasts.

    Cost:
        It imports torch once, to make the policy; acting itself uses none.
    """
    options = options or ActOptions()
    acted = Acted(secrets.randbelow(2**31) if options.seed is None else options.seed)
    with stop_signals() as stopping:
        _RemoteActor(address, options, acted, stopping, say).run()
    return acted


@final
class _RunDescription:
    """The facts that a run publishes with its parameters, checked against this actor. Raises InvalidConfig."""

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
        spaces = describe(self.env_id)
        agent = self.config.agent.make(spaces, seed=0, device="cpu")
        self.policy: Policy = agent.policy()
        if agent.spec() != table.spec:
            raise InvalidConfig(
                f"environment {self.env_id!r}", f"the spaces of the run's, {own.env_id!r}", agent.spec().to_json()
            )
        wanted, has = about.get(SPACES), told_spaces(spaces)
        if wanted is not None and wanted != has:
            raise InvalidConfig(
                f"environment {self.env_id!r}",
                f"the spaces of the run's, {own.env_id!r}, {_words(wanted)}",
                _words(has),
            )
        expected = {name: value.shape for name, value in agent.parameters().items()}
        found = {name: value.shape for name, value in published.arrays.items()}
        if found != expected:
            raise InvalidConfig("parameters of the run", f"names and shapes {expected}", str(found))
        self._check_window(table)

    def _check_window(self, table: RemoteTable) -> None:
        """Refuses more environments than the limiter can ever admit together: each of their steps is one block."""
        limiter = table.limiter()
        most = int(limiter.window / limiter.samples_per_insert) if isinstance(limiter, SamplesPerInsert) else None
        if most is not None and self.num_envs > most:
            way = "several actors may act, or the run may have a larger environment.num_envs_per_actor"
            expected = f"<= {most}, as many steps as fit the window of the run's limiter together ({way})"
            raise InvalidConfig("envs", expected, self.num_envs)


def _words(told: Any) -> str:
    return " and ".join(f"{name} {space}" for name, space in dict(told).items())


@final
class _LinkLost(Exception):
    """The link to the run is of no use any more; a new visit may find it again."""


@final
class _Visit(Closing):
    """One handle on the table of the run, and everything that depends on it. Its thread acts; the feed has a thread."""

    def __init__(
        self, table: RemoteTable, first: Published, run: _RunDescription, acted: Acted, options: ActOptions
    ) -> None:
        """Takes the table over. Raises TooManyLanes, and the errors of making the environments."""
        self._limit_s = run.config.serving.max_staleness_s
        self._table, self._acted = table, acted
        self._name = f"{options.name}/{secrets.token_hex(8)}"
        self._session = str(first.about["session"])
        self._scoreboard = Scoreboard(1)
        facts = ShardFacts.from_about(first.about)
        with ExitStack() as undo:
            undo.callback(self._scoreboard.close)
            self._shards: ShardRows | None = None
            if facts is not None:
                num_actors = run.config.num_actors
                self._shards = undo.enter_context(ShardRows(facts, options.node, options.access, _CALL_S, num_actors))
            self._lanes = self._shards or StreamedTable(table)
            envs = make_environments(run.env_id, run.num_envs)
            undo.callback(envs.close)
            self._recorded = record(envs, self._lanes, timeout_s=0.0)
            undo.pop_all()
        poll_s = min(_POLL_S, self._limit_s / 3)
        node = None if options.shared is None else NodeParameters(options.shared, first, 2 * poll_s)
        self._feed = Feed(table.parameters, first, poll_s, self._report, self._heard, node)
        environment = replace(
            run.config.environment, env_id=run.env_id, num_envs_per_actor=run.num_envs, seed=_own_seed(acted.seed)
        )
        task = ActorTask(0, acted.num_visits, "", environment, run.policy, self._feed, self._scoreboard)
        self._acting = acting_with(task, self._recorded, watch_with(None))
        acted.num_visits += 1

    def act(self, stopping: Callable[[], bool], say: Callable[[str], None]) -> bool:
        """Acts until the run has ended (True) or the actor is stopped (False).

        Raises _LinkLost, EnvironmentRaised, and the errors by which the run refuses rows.
        """
        began_s = said_s = time.monotonic()
        try:
            self._acting.reset()
            while not stopping():
                if self._is_over():
                    return True
                self._acting.step(_WAIT_SLICE_S)
                now_s = time.monotonic()
                if now_s - said_s >= _SAY_PERIOD_S:
                    say(self._line(now_s - began_s))
                    said_s = now_s
        except Unacknowledged as problem:
            # Another table, or the run has not yet noticed that the lanes of the broken stream are free.
            if isinstance(problem.__cause__, (FormatMismatch, TooManyLanes)):
                raise _LinkLost(str(problem.__cause__)) from None
            raise
        except _LinkLost:
            raise
        except Exception as problem:
            failure = self._scoreboard.failure_of(0)
            if failure is None:
                raise
            raise EnvironmentRaised(0, *failure) from problem
        return False

    def _is_over(self) -> bool:
        """Whether the run has ended. Raises _LinkLost without news (rule V2), or if it is another run."""
        feed = self._feed
        if isinstance(feed.problem, FormatMismatch):
            raise _LinkLost(str(feed.problem))
        if feed.problem is not None:
            raise feed.problem
        if feed.silent_s() > self._limit_s:
            raise _LinkLost(f"nothing heard for {feed.silent_s():.1f} s: acting stops after {self._limit_s:g} s")
        if self._shards is not None and self._shards.silent_s() > self._limit_s:
            raise _LinkLost(f"shard {self._shards.number} has had no owner for {self._limit_s:g} s")
        return feed.finished

    @property
    def heard_s(self) -> float:
        """Time of the last news from the run, on time.monotonic()."""
        return self._feed.heard_s

    def _report(self, version: int) -> dict[str, Any]:
        """Returns the report for a pull. The thread of the feed calls it; counters may be a step late."""
        num_steps, num_episodes, wait_s = self._scoreboard.totals_of(0)
        returns, lengths = self._scoreboard.last_episodes(0, RETURNS_TOLD)
        is_number = np.isfinite(returns)
        returns, lengths = returns[is_number], lengths[is_number]
        report = ActorReport(
            self._name,
            num_steps,
            num_episodes,
            wait_s,
            version,
            tuple(returns.tolist()),
            tuple(lengths.tolist()),
            self._session,
        )
        return report.to_note()

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
            f"  waiting {min(1.0, wait_s / elapsed_s):.0%} of the time{cuts}"
        )

    def close(self) -> None:
        """Ends the visit: sends open rows for a little while, sends the last report, closes links and environments."""
        lanes = self._lanes.opened
        try:
            with self._counting_lost():  # rows that were sent before are refused while their lanes end
                self._recorded.close()
        finally:
            self._send_last_report()
            with self._counting_lost():  # a second Ctrl-C has cut the first close short
                self._table.close()
            if self._shards is not None:
                self._shards.close()
            self._feed.close()
            num_steps, num_episodes, _ = self._scoreboard.totals_of(0)
            self._acted.num_steps += num_steps
            self._acted.num_episodes += num_episodes
            if lanes is not None:
                self._acted.num_lost += lanes.num_lost
                self._acted.num_cuts += lanes.num_cuts
            self._scoreboard.close()

    @contextlib.contextmanager
    def _counting_lost(self) -> Iterator[None]:
        try:
            yield
        except Unacknowledged as problem:
            self._acted.num_lost += problem.num_steps

    def _send_last_report(self) -> None:
        if self._feed.silent_s() > self._limit_s or self._feed.problem is not None:
            return  # the run would not get it
        with contextlib.suppress(ReliveError):
            self._table.parameters.pull(MAX_VERSION, 0.0, note=self._report(self._feed.version))


def _own_seed(seed: int) -> int:
    """Returns a seed whose streams are not those of the own actors of a run with this seed."""
    return int(np.random.SeedSequence(seed, spawn_key=(2**20,)).generate_state(1)[0] % 2**31)


@final
class _RemoteActor:
    """One actor over all of its visits: one thread, and the threads of its links."""

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
        """Makes visits until the actor ends (rule V3)."""
        while not self._stopping():
            try:
                table = connect_with(self._address, self._options.access, _CALL_S)
            except ServiceUnavailable as problem:
                self._wait_for_it(problem)
                continue
            with table:
                try:
                    if self._visit(table):
                        self._acted.finished = True
                        return
                except (ServiceUnavailable, FormatMismatch, _LinkLost) as problem:
                    self._wait_for_it(problem)
                except TooManyLanes:
                    # Its own lanes of the last visit may be among them, until the run notices that their link is dead.
                    if time.monotonic() - self._left_s >= self._options.patience_s or not self._acted.num_visits:
                        raise
                    time.sleep(0.5)

    def _wait_for_it(self, problem: Exception) -> None:
        waited_s = time.monotonic() - self._heard_s
        if waited_s >= self._options.patience_s:
            reason = problem.reason if isinstance(problem, ServiceUnavailable) else str(problem)
            raise ServiceUnavailable(self._address, waited_s, reason) from None
        if not self._said_lost:
            self._say(f"no link to the run; waiting for at most {self._options.patience_s:.0f} s: {problem}")
            self._said_lost = True
        time.sleep(0.1)

    def _visit(self, table: RemoteTable) -> bool:
        """Makes one visit. Returns whether the run has ended; False if the actor is to stop."""
        first = self._first_parameters(table)
        if first is None:
            return table.parameters.finished
        run = _RunDescription(first, table, self._options)
        with _Visit(table, first, run, self._acted, self._options) as visit:
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
        """Waits for the first parameters. None if the run ended before, or the actor is to stop."""
        while not self._stopping():
            found = table.parameters.pull(timeout_s=_CALL_S)
            self._heard_s = time.monotonic()
            if found is not None or table.parameters.finished:
                return found
        return None
