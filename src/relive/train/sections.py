"""Defines the sections of the options of a run: environment, table, actors, learning, evaluations, limits and so on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from relive.agents.config import require

_MOST_ENVS = 4096  # the seeds of an actor's environments lie next to each other
_MOST_ACTORS = 1024  # as of a topology
_MOST_SHARDS = 1024
_MOST_EPISODES = 4096  # of an evaluation, whose environments step together
_MOST_RATIO = 1e6
_MOST_CPUS = 4096  # of an actor
_LONGEST_MINUTES = 1e6
_LONGEST_S = 1e9


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environment of a run.

    Attributes:
        env_id: Gymnasium id.
        num_envs_per_actor: Copies of the environment that each actor steps together.
        seed: Seed of everything random in the run.
    """

    env_id: str = "CartPole-v1"
    num_envs_per_actor: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        require(bool(self.env_id), "env_id", "a Gymnasium id", self.env_id)
        fits = 1 <= self.num_envs_per_actor <= _MOST_ENVS
        require(fits, "num_envs_per_actor", f"in [1, {_MOST_ENVS}]", self.num_envs_per_actor)
        require(0 <= self.seed < 2**31, "seed", "0 <= seed < 2**31", self.seed)


@dataclass(frozen=True)
class ReplayConfig:
    """The table of a run.

    Attributes:
        capacity: Size in environment steps.
        min_size: Items in the table before learning starts.
        updates_per_step: Updates for each environment step.
    """

    capacity: int = 100_000
    min_size: int = 1_000
    updates_per_step: float = 1.0

    def __post_init__(self) -> None:
        require(self.capacity >= self.min_size, "capacity", f">= min_size = {self.min_size}", self.capacity)
        require(self.min_size >= 1, "min_size", ">= 1", self.min_size)
        fits = 0 < self.updates_per_step <= _MOST_RATIO
        require(fits, "updates_per_step", f"in (0, {_MOST_RATIO:g}]", self.updates_per_step)


@dataclass(frozen=True)
class ActingConfig:
    """The actors of a run.

    Attributes:
        num_actors: Number of actors; 0: all actors are on other machines.
        publish_period: Updates after which the actors get newer parameters.
        inline: With several learners of one update: no actor processes. The first learner steps the actors between its
            updates, as the topology `inline` does. Useful if the environments cost less than the cores that actor
            processes would take from the learners.
    """

    num_actors: int = 2
    publish_period: int = 25
    inline: bool = False

    def __post_init__(self) -> None:
        require(0 <= self.num_actors <= _MOST_ACTORS, "num_actors", f"in [0, {_MOST_ACTORS}]", self.num_actors)
        require(self.publish_period >= 1, "publish_period", ">= 1", self.publish_period)


@dataclass(frozen=True)
class LearningConfig:
    """Options of learners with batches of their own. Topologies other than "learners(n, async)" refuse them.

    Attributes:
        max_gradient_staleness: Updates that may have been applied since the parameters that a gradient was computed
            with; a gradient that is staler is dropped. None: twice the number of learners. With n learners of the same
            speed the staleness is about n - 1.
    """

    max_gradient_staleness: int | None = None

    def __post_init__(self) -> None:
        staleness = self.max_gradient_staleness
        require(staleness is None or staleness >= 0, "learning.max_gradient_staleness", ">= 0, or none", staleness)


@dataclass(frozen=True)
class EvaluationConfig:
    """Greedy evaluations of a run, and the return that ends it.

    A policy ends the run if its mean return over num_episodes reaches stop_return, and then its mean over
    num_confirm_episodes on other seeds does too.

    Attributes:
        period_updates: Updates between evaluations; the first one comes after a tenth of that.
        num_episodes: Episodes of an evaluation.
        num_confirm_episodes: Episodes that confirm an evaluation that reached stop_return.
        num_final_episodes: Episodes of the final result.
        stop_return: Return that ends the run; None: no return does.
        max_episode_steps: Steps after which an episode counts as ended.
        max_minutes: Longest time of an evaluation, which also takes at most a quarter of limits.max_minutes. Episodes
            that have not ended by then are cut, and an evaluation with cut episodes never ends the run.
    """

    period_updates: int = 500
    num_episodes: int = 20
    num_confirm_episodes: int = 100
    num_final_episodes: int = 20
    stop_return: float | None = None
    max_episode_steps: int = 27_000
    max_minutes: float = 5.0

    def __post_init__(self) -> None:
        _require_minutes("evaluation.max_minutes", self.max_minutes)
        fits = self.stop_return is None or math.isfinite(self.stop_return)
        require(fits, "evaluation.stop_return", "finite, or none", self.stop_return)
        require(self.max_episode_steps >= 1, "max_episode_steps", ">= 1", self.max_episode_steps)
        require(self.period_updates >= 1, "period_updates", ">= 1", self.period_updates)
        numbers = (self.num_episodes, self.num_confirm_episodes, self.num_final_episodes)
        fits = min(numbers) >= 1 and max(numbers) <= _MOST_EPISODES
        require(fits, "number of evaluation episodes", f"in [1, {_MOST_EPISODES}] each", numbers)


@dataclass(frozen=True)
class LimitConfig:
    """Limits that end a run which has not reached its return.

    Attributes:
        max_steps: Environment steps.
        max_minutes: Wall-clock minutes, over all sessions of a resumed run.
        checkpoint_period_s: Seconds between checkpoints. The section `checkpoint` says what they contain.
    """

    max_steps: int = 200_000
    max_minutes: float = 10.0
    checkpoint_period_s: float = 30.0

    def __post_init__(self) -> None:
        require(self.max_steps >= 1, "max_steps", ">= 1", self.max_steps)
        _require_minutes("limits.max_minutes", self.max_minutes)
        fits = 0 < self.checkpoint_period_s <= _LONGEST_S
        require(fits, "checkpoint_period_s", f"in (0, {_LONGEST_S:g}]", self.checkpoint_period_s)


@dataclass(frozen=True)
class CheckpointConfig:
    """The contents of the checkpoints of a run.

    Attributes:
        table: Whether the table is saved with the learner, in the folder `save` of the run directory. "always": with
            each checkpoint; a resumed run learns at once, also after SIGKILL. "end": at the end of a session, such as a
            stop by Ctrl-C; the checkpoints before it have the learner alone. "never": a resumed run fills a new table.
            The folder needs as much disk as the table, up to twice as much.
    """

    table: Literal["always", "end", "never"] = "always"


def _require_minutes(what: str, minutes: float) -> None:
    require(0 < minutes <= _LONGEST_MINUTES, what, f"in (0, {_LONGEST_MINUTES:g}]", minutes)


def where_to_serve(address: str) -> tuple[str, str]:
    """Splits the option `serving.address`.

    Returns:
        The address of the server, grpc://host:port (port 0: a free port), and the name of the table.

    Raises:
        InvalidConfig: The address has another form.
    """
    try:
        parts = urlsplit(address)
        fits = parts.scheme in ("grpc", "grpc+tls") and bool(parts.hostname) and parts.port is not None
    except ValueError:
        fits = False
    name = parts.path.strip("/") if fits else ""
    fits = fits and "/" not in name and not (parts.query or parts.fragment or parts.username)
    require(fits, "serving.address", "grpc://host:port or grpc://host:port/name, or none", address)
    return f"{parts.scheme}://{parts.netloc}", name or "run"


@dataclass(frozen=True)
class ServingConfig:
    """The address at which a run serves its table and its parameters to actors of other machines.

    Attributes:
        address: grpc://host:port or grpc://host:port/name (name: "run" if none is given); None: the run is not served.
        tls_cert: PEM file of the certificate, for an address grpc+tls://; None: no TLS.
        tls_key: PEM file of its key.
        client_ca: PEM file of the authorities of the actors' certificates; None: actors need none.
        tokens: File of the tokens (`relive token new`), with the roles read, append and update; None: no tokens.
        insecure: Whether actors without a token or a certificate may connect beyond loopback.
        max_lanes: Environments of all these actors together.
        max_staleness_s: Seconds without news of the newest parameters after which such an actor stops acting, until
            the news comes. The limit is a time: an actor cannot count versions that it does not hear of.
    """

    address: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    client_ca: str | None = None
    tokens: str | None = None
    insecure: bool = False
    max_lanes: int = 256
    max_staleness_s: float = 30.0

    def __post_init__(self) -> None:
        if self.address is not None:
            where_to_serve(self.address)
        require(1 <= self.max_lanes <= 2**16, "serving.max_lanes", "in [1, 65536]", self.max_lanes)
        fits = 1.0 <= self.max_staleness_s <= _LONGEST_S
        require(fits, "serving.max_staleness_s", f"in [1, {_LONGEST_S:g}]", self.max_staleness_s)


@dataclass(frozen=True)
class ClusterConfig:
    """The cluster on whose nodes the actors of a run act. The learner stays in the process that calls `train`.

    With topology hosts(n), the cluster has the other hosts, each with a learner and actors of its own.

    Attributes:
        kind: "ray": the actors are actors of Ray, which places them on the nodes of its cluster and restarts them;
            None: they are processes of this machine.
        address: HOST:PORT of the cluster; None: RAY_ADDRESS, else the cluster of this machine.
        actors_per_node: Most actors on a node; None: Ray spreads them over the nodes that have room.
        cpus_per_actor: CPUs that Ray reserves for each actor.
        shards: Number of shards of the table, each on a node of its own. An actor writes to the shard of its node.
            None: one table, on the learner's node.
        token_file: File of the actors' token, a path that every node has; None: the actors show no token.
        ca: File of the authorities that signed the certificate of the run, a path that every node has; None: those of
            the system.
    """

    kind: Literal["ray"] | None = None
    address: str | None = None
    actors_per_node: int | None = None
    cpus_per_actor: float = 1.0
    shards: int | None = None
    token_file: str | None = None
    ca: str | None = None

    def __post_init__(self) -> None:
        require(self.kind in (None, "ray"), "cluster.kind", "'ray', or none", self.kind)
        given = {"address": self.address, "actors_per_node": self.actors_per_node, "shards": self.shards}
        given |= {"token_file": self.token_file, "ca": self.ca}
        for name, value in given.items():
            require(self.kind is not None or value is None, f"cluster.{name}", "none without cluster.kind", value)
        each = self.actors_per_node
        fits = each is None or 1 <= each <= _MOST_ACTORS
        require(fits, "cluster.actors_per_node", f"in [1, {_MOST_ACTORS}], or none", each)
        fits = self.shards is None or 1 <= self.shards <= _MOST_SHARDS
        require(fits, "cluster.shards", f"in [1, {_MOST_SHARDS}], or none", self.shards)
        fits = 0.0 <= self.cpus_per_actor <= _MOST_CPUS
        require(fits, "cluster.cpus_per_actor", f"in [0, {_MOST_CPUS}]", self.cpus_per_actor)


@dataclass(frozen=True)
class LoggingConfig:
    """Loggers besides TensorBoard.

    Attributes:
        wandb: Log to Weights & Biases (extra `wandb`).
        project: Its project.
    """

    wandb: bool = False
    project: str = "relive"

    def __post_init__(self) -> None:
        require(bool(self.project), "logging.project", "a name", self.project)
