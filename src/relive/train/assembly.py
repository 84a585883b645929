"""Makes the parts of a session. The topology chooses among them; no other code asks which topology it is."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from relive.agents.agent import Items
from relive.agents.functional import Functional
from relive.train.acting.actor_pool import ActorPool
from relive.train.acting.inference_pool import InferencePool
from relive.train.acting.inline import InlineActors
from relive.train.learners.batch_ahead import SLICE_S
from relive.train.learners.compiled_updates import PackageRequest
from relive.train.learners.group import GroupOptions, LearnerGroup
from relive.train.learners.host_group import HostGroup
from relive.train.learners.parameter_server import ParameterServer, ServerOptions
from relive.train.learners.update_choice import ChoiceOptions, UpdateChoice
from relive.train.learners.updates import DrawnUpdates, HostUpdates, ServedUpdates, Updates
from relive.train.memory.stopwatch import AGENT_PARTS
from relive.train.parts import Part
from relive.train.setup import Session, Setup

if TYPE_CHECKING:
    from relive.train.acting.serving import ServedRun

_REMOTE_SLICE_S = 1.0  # for rows of shards on other nodes, which come over a network


@final
class Assembly:
    """The parts of one session, chosen by its topology: the `PartMaker` of relive.train.topology.

    Attributes:
        acting: The part that acts.
        learning: The part that learns.
        served: The server for actors of other machines; None: the run has no address.
        agent, table, board: Those of the session, timed if the run is profiled.
    """

    def __init__(
        self, session: Session, stack: ExitStack, say: Callable[[str], None], settled: Callable[[str], None]
    ) -> None:
        """Makes all parts and starts none.

        Args:
            session: The memory that the parts share.
            stack: Stops the parts at its end, the last one first.
            say: Gets lines for people.
            settled: Gets "compiled" or "handwritten", once, if the run chooses between them.

        Raises:
            ServiceUnavailable: The run cannot be served at its address.
            MissingPackage: An option needs a package that is not installed.
        """
        self._session, self._say = session, say
        profiling, topology = session.profiling, session.config.topology
        self.table = profiling.table(session.table)
        self.board = profiling.watch(session.board, {"publish": "parameters"})
        self.agent = profiling.watch(session.agent, AGENT_PARTS)
        self._act: Callable[[], None] | None = None
        self.served = self._served()
        if self.served is not None:
            stack.callback(self.served.stop)
        self.acting: Part = topology.acting(self)  # Ray's actors need the address of the server
        stack.callback(self.acting.stop)
        self._choice = update_choice(session, say, settled)
        self.learning: Updates = topology.learning(self)
        stack.callback(self.learning.stop)
        crowded = topology.crowding(len(os.sched_getaffinity(0)))
        if crowded is not None:
            say(crowded)

    # ---- acting ----------------------------------------------------------------------------------------------------

    def actors(self) -> Part:
        """See PartMaker."""
        config = self._session.config
        if config.acts_on_cluster:
            return self._ray_actors()
        return self.inline_actors() if config.acting.inline else self._actor_pool(None)

    def asking_actors(self) -> Part:
        """See PartMaker."""
        one = self._session
        profile = one.profiling.board
        policy = one.agent.policy()
        return self._actor_pool(
            InferencePool(one.config, policy, one.spaces, one.board, one.scoreboard, self._say, profile)
        )

    def _actor_pool(self, inference: InferencePool | None) -> ActorPool:
        one = self._session
        policy, profile = one.agent.policy(), one.profiling.board
        return ActorPool(one.config, policy, one.table_name, one.board, one.scoreboard, profile, inference)

    def _ray_actors(self) -> Part:
        assert self.served is not None  # a run whose actors act on a cluster has an address
        # Loaded here: it needs the extra `ray`, which other runs do not need.
        cluster = importlib.import_module("relive.train.acting.ray_actors")
        actors: Part = cluster.RayActors(self._session.config, self.served, self._session.shards)
        return actors

    def inline_actors(self) -> Part:
        """See PartMaker."""
        one = self._session
        watch = one.profiling.watch
        policy = one.agent.policy()
        actors = InlineActors(one.config, policy, one.whole_table, one.board, one.scoreboard, watch, one.ends_s)
        self._act = actors.step
        return actors

    # ---- learning --------------------------------------------------------------------------------------------------

    def learner(self) -> Updates:
        """See PartMaker."""
        choice = self._choice
        return self._drawn() if choice is None else self._drawn(choice.update, choice)

    def learners_together(self) -> Updates:
        """See PartMaker."""
        one = self._session
        count = one.config.topology.num_slices
        if count == 1:
            return self._drawn()
        # With fewer cores than learners a wait that spins takes the core that another learner needs.
        spin_s = GroupOptions.spin_s if count <= len(os.sched_getaffinity(0)) else 0.0
        options = GroupOptions(
            count,
            one.device,
            one.num_threads,
            spin_s=spin_s,
            say=self._say,
            profile=one.profiling.board,
            timed=one.profiling.timed,
        )
        group = LearnerGroup(one.agent, one.config.agent, one.spaces, options)
        return self._drawn(group.update, group)

    def learners_apart(self) -> Updates:
        """See PartMaker."""
        one = self._session
        config, profiling = one.config, one.profiling
        options = ServerOptions(
            config.topology.num_learners,
            config.gradient_staleness,
            one.device,
            one.num_threads,
            config.environment.seed,
            say=self._say,
            profile=profiling.board,
            timed=profiling.timed,
        )
        server = ParameterServer(self.agent, config.agent, one.spaces, one.table_name, options)
        return ServedUpdates(server, profiling.timed)

    def learners_on_hosts(self) -> Updates:
        """See PartMaker."""
        one = self._session
        if one.met is None:
            return self._drawn()
        hosts = HostGroup(one.agent, one.met)
        return HostUpdates(self.agent, self.table, one.config.num_drawn, one.profiling.timed, hosts, self._act)

    def _drawn(
        self, update: Callable[[Items], NDArray[np.float64] | None] | None = None, helper: Part | None = None
    ) -> DrawnUpdates:
        one = self._session
        timed, number = one.profiling.timed, one.config.num_drawn
        slice_s = SLICE_S if one.shards is None else _REMOTE_SLICE_S
        return DrawnUpdates(
            self.agent, self.table, number, timed, update=update, helper=helper, act=self._act, slice_s=slice_s
        )

    # ---- serving ---------------------------------------------------------------------------------------------------

    def _served(self) -> ServedRun | None:
        """Starts the server for actors of other machines, if the run has an address."""
        one = self._session
        if one.address is None:
            return None
        # Loaded here: it needs pyarrow, which runs without an address do not need.
        serving = importlib.import_module("relive.train.acting.serving")
        shards = one.shards
        table, facts = (one.whole_table, dict) if shards is None else (shards.served_table, shards.facts)
        served: ServedRun = serving.ServedRun(one.config, table, one.scoreboard, one.address, facts, one.spaces)
        self._say(f"serving actors of other machines; start one with: relive act {served.address}")
        return served


def update_choice(setup: Setup, say: Callable[[str], None], settled: Callable[[str], None]) -> UpdateChoice | None:
    """Makes the choice between hand-written and compiled updates; None if only hand-written ones are possible.

    If compiled updates were asked for and are not possible, a line says why.
    """
    config = setup.config
    if config.update == "handwritten":
        return None
    functional: Functional | None = setup.agent.functional()
    reasons = {
        "the run is deterministic": config.deterministic,
        "there are several learners, or they are processes apart": not config.topology.learns_alone,
        f"they are computed on {setup.device}": setup.device != "cpu",
        f"{config.agent.name} has no other updates with this network": functional is None,
    }
    for reason, holds in reasons.items():
        if holds and config.update == "compiled":
            say(f"updates are hand-written: {reason}")
        if holds:
            return None
    assert functional is not None
    request = PackageRequest(config.agent, setup.spaces, setup.num_threads, tuple(functional.steps))
    return UpdateChoice(setup.agent, functional, request, ChoiceOptions(config.update == "auto", say, settled))
