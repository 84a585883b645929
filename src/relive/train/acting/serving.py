"""Serves a run to actors of other machines: its table, its parameters and its options, at one address.

  learner   publishes each version of the parameters here as well, with the facts that an actor needs: FORMAT, the
            options of the run, the spaces of its environment, the session, and its environment steps so far
  actor     pulls the parameters, streams rows into the table, and reports with each pull what it has done. A report has
            sums since its visit began: a repeated pull counts nothing twice, an unanswered one loses nothing. A
            report for an earlier session of the run is refused, because its steps were counted there.

The steps and episodes of all these actors are counted in one row of the scoreboard.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive import Table
from relive.agents.agent import Spaces
from relive.errors import FormatMismatch, InvalidConfig
from relive.service import Door, ServerOptions, ServerTLS, serve_behind
from relive.service.wire.tokens import read_tokens
from relive.train.config import TrainConfig
from relive.train.memory.scoreboard import Scoreboard
from relive.train.parts import Part
from relive.train.sections import ServingConfig, where_to_serve

FORMAT = 2  # of the facts that are published with the parameters; an actor refuses another format
SPACES = "spaces"  # the fact about the environment of the run
RETURNS_TOLD = 64  # returns of the last episodes in a report
_STREAMS = 3  # of an actor: calls, parameters, rows
_MOST_REMEMBERED = 4096  # actors whose sums are kept; with more of them, the longest silent ones are forgotten


@final
@dataclass(frozen=True)
class ActorReport:
    """The report of an actor, sent with a pull. Its numbers are sums since the visit began.

    Attributes:
        actor: Name of the actor, its own choice.
        num_steps: Environment steps.
        num_episodes: Finished episodes.
        wait_s: Seconds that the limiter delayed it.
        version: Version of the parameters that it acts with.
        returns: Returns of its last episodes.
        lengths: Lengths of the same episodes.
        session: Session of the run in which the visit began.
    """

    actor: str
    num_steps: int
    num_episodes: int
    wait_s: float
    version: int
    returns: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()
    session: str = ""

    def to_note(self) -> dict[str, Any]:
        """Returns the report as JSON can hold it."""
        return {**vars(self), "returns": list(self.returns), "lengths": list(self.lengths)}

    @classmethod
    def from_note(cls, note: Mapping[str, Any]) -> ActorReport:
        """Reads what `to_note` returned. Raises InvalidConfig for another note."""
        try:
            report = cls(
                str(note["actor"])[:64],
                int(note["num_steps"]),
                int(note["num_episodes"]),
                float(note["wait_s"]),
                int(note["version"]),
                tuple(float(value) for value in note["returns"]),
                tuple(int(value) for value in note["lengths"]),
                str(note["session"])[:64],
            )
        except (KeyError, TypeError, ValueError, OverflowError) as problem:
            raise InvalidConfig("note of an actor", "its sums", repr(problem)) from None
        sums = report.num_steps, report.num_episodes, report.wait_s, report.version
        fits = all(0 <= value < 2**53 for value in sums) and len(report.returns) == len(report.lengths)
        if not fits or not all(math.isfinite(value) for value in report.returns):
            raise InvalidConfig("note of an actor", "sums that can be", str(sums))
        return report


def door_of(config: ServingConfig) -> Door:
    """Returns the door of a served run. Raises InvalidConfig if a file is none."""
    tls = None
    if config.tls_cert is not None or config.tls_key is not None:
        tls = ServerTLS(config.tls_cert or "", config.tls_key or "", config.client_ca)
    return Door(tls, config.tokens, config.insecure)


def check_files(door: Door) -> None:
    """Reads the files of a door, as the server will. Raises InvalidConfig if one of them cannot be used."""
    if door.tls is not None:
        door.tls.arguments()
    if door.tokens is not None:
        read_tokens(str(door.tokens))


def limits_of(config: TrainConfig) -> ServerOptions:
    """Returns the limits of the server of a run: all its actors have room, whichever host or token these share.

    Each has its streams twice. After a broken network the server counts the dead ones for up to 20 s.
    """
    least = ServerOptions()
    num_actors = max(config.num_actors if config.acts_on_cluster else 0, config.serving.max_lanes)
    most = max(2 * _STREAMS * num_actors + least.reserved_streams, least.max_streams)
    return replace(
        least, max_streams=most, max_streams_per_client=most, max_connections=max(most, least.max_connections)
    )


def told_spaces(spaces: Spaces) -> dict[str, str]:
    """Returns the spaces as JSON can hold them: in words and, because words leave bounds out, as a checksum."""
    return {"observations": _told(spaces.observation), "actions": _told(spaces.action)}


def _told(space: Any) -> str:
    checksum = hashlib.sha256(f"{type(space).__name__} {space.dtype} {space.shape}".encode())
    for name in ("low", "high", "n", "start"):
        if hasattr(space, name):
            checksum.update((np.asarray(getattr(space, name), "<f8") + 0.0).tobytes())  # -0.0 is 0.0
    return f"{' '.join(str(space).split())[:200]} (checksum {checksum.hexdigest()[:12]})"


@final
class ServedRun(Part):
    """The server of a run. It owns the listening socket; the run owns the table. See Part.

    Attributes:
        address: The address of the run, grpc://host:port/name.
        session: A name of this session, made at random. A session that resumes the run has another one.
    """

    def __init__(
        self,
        config: TrainConfig,
        table: Table,
        scoreboard: Scoreboard,
        address: str | None = None,
        facts: Callable[[], Mapping[str, Any]] = dict,
        spaces: Spaces | None = None,
    ) -> None:
        """Starts the server.

        Args:
            config: Options of the run.
            table: The table of the run.
            scoreboard: Counters of the run. The server alone writes the last row.
            address: The address; None: that of the options.
            facts: Returns further facts for the actors, which may change.
            spaces: The spaces that an actor's environment must have; None: actors compare the columns alone.

        Raises:
            InvalidConfig: The address has another form.
            ServiceUnavailable: The address cannot be served.
        """
        address = address or config.serving.address
        assert address is not None
        server_address, name = where_to_serve(address)
        self._scoreboard, self._row = scoreboard, scoreboard.num_actors - 1
        self._tree, self._facts = config.to_tree(), facts
        self._spaces = {} if spaces is None else {SPACES: told_spaces(spaces)}
        self._told: Mapping[str, Any] = {}
        self.session = secrets.token_hex(8)
        self._changed = threading.Lock()
        self._closed = False
        self._connected: set[int] = set()  # streams that have sent a report
        self._sums: OrderedDict[str, ActorReport] = OrderedDict()
        self._followed: dict[str, int] = {}
        self._server = serve_behind({name: table}, server_address, door_of(config.serving), limits_of(config))
        self.address = f"{self._server.address}/{name}"
        self._store = self._server.parameters(name)
        self._store.listen(self._hear)

    @property
    def num_connected(self) -> int:
        """Actors with an open link."""
        return len(self._connected)

    def follow(self, name: str) -> None:
        """Counts the steps of the actor that was told this name (ActOptions.name), over all of its visits."""
        self._followed[name] = 0

    def steps_of(self, name: str) -> int:
        """Returns the steps that the run has heard of from an actor that it follows."""
        return self._followed[name]

    def publish(self, parameters: Mapping[str, NDArray[np.float32]], version: int) -> None:
        """Publishes the next version for actors of other machines. Cost: a copy and a checksum."""
        self._told = self._facts()
        about = {
            "format": FORMAT,
            "config": self._tree,
            "session": self.session,
            "num_steps": self._scoreboard.num_steps,
            **self._spaces,
            **self._told,
        }
        self._store.publish(parameters, version, about)

    @property
    def is_outdated(self) -> bool:
        """Whether the further facts have changed since they were published."""
        return self._told != self._facts()

    def finish(self) -> None:
        """Tells the actors that the run has ended, so that they end as well."""
        self._store.finish()

    def stop(self) -> None:
        """Ends the server; no report is counted after it."""
        with self._changed:
            self._closed = True
        self._server.close()

    def _hear(self, stream: int, note: dict[str, Any] | None) -> None:
        """Takes the report of a stream; None: the stream has ended. The threads of the streams call it."""
        report = None if note is None else ActorReport.from_note(note)
        if report is not None and report.session != self.session:
            raise FormatMismatch("session of the run", report.session, self.session, replaced=True)
        with self._changed:
            if self._closed:
                return
            if report is None:
                self._connected.discard(stream)
                return
            self._connected.add(stream)
            self._count(report)

    def _count(self, now: ActorReport) -> None:
        before = self._sums.pop(now.actor, None) or ActorReport(now.actor, 0, 0, 0.0, 0)
        if now.num_steps < before.num_steps or now.num_episodes < before.num_episodes:
            now = before  # a later report has overtaken this one
        self._sums[now.actor] = now
        if len(self._sums) > _MOST_REMEMBERED:
            self._sums.popitem(last=False)
        board, row, name = self._scoreboard, self._row, now.actor.partition("/")[0]
        board.add_steps(row, now.num_steps - before.num_steps, now.version)
        if name in self._followed:
            self._followed[name] += now.num_steps - before.num_steps
        if now.wait_s > before.wait_s:
            board.add_wait(row, now.wait_s - before.wait_s)
        first = max(0, len(now.returns) - (now.num_episodes - before.num_episodes))
        for episode_return, length in zip(now.returns[first:], now.lengths[first:], strict=True):
            board.add_episode(row, episode_return, length)
