"""What a training run is: frozen values that check themselves and go to and from JSON.

A run directory keeps its configuration as `config.json`, so that `--resume` needs nothing but the directory.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from relive.agents.config import AgentConfig, require
from relive.agents.registry import config_class, entry_of
from relive.errors import InvalidConfig
from relive.train.settings import changed, flat, to_tree
from relive.train.topology import Actors, Topology

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class EnvironmentConfig:
    """The environment: its Gymnasium id, and how many copies each actor steps together."""

    env_id: str = "CartPole-v1"
    num_envs_per_actor: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        require(bool(self.env_id), "env_id", "a Gymnasium id", self.env_id)
        require(self.num_envs_per_actor >= 1, "num_envs_per_actor", ">= 1", self.num_envs_per_actor)
        require(0 <= self.seed < 2**31, "seed", "0 <= seed < 2**31", self.seed)


@dataclass(frozen=True)
class ReplayConfig:
    """The table: its size in steps, when learning starts, and how many updates there are for each environment step."""

    capacity: int = 100_000
    min_size: int = 1_000
    updates_per_step: float = 1.0

    def __post_init__(self) -> None:
        require(self.capacity >= self.min_size, "capacity", f">= min_size = {self.min_size}", self.capacity)
        require(self.min_size >= 1, "min_size", ">= 1", self.min_size)
        require(0 < self.updates_per_step < math.inf, "updates_per_step", "> 0, finite", self.updates_per_step)


@dataclass(frozen=True)
class ActingConfig:
    """The actors: how many (0: all are of other machines), and after how many updates they get newer parameters.

    inline: several learners have no actor processes beside them; the first learner steps the actors in turn, as the
    topology `inline` does. For environments that take less than the cores that the actors would share.
    """

    num_actors: int = 2
    publish_period: int = 25
    inline: bool = False

    def __post_init__(self) -> None:
        require(self.num_actors >= 0, "num_actors", ">= 0", self.num_actors)
        require(self.publish_period >= 1, "publish_period", ">= 1", self.publish_period)


@dataclass(frozen=True)
class LearningConfig:
    """Learners with batches of their own, topology "learners(n, async)"; the others do not read it.

    max_gradient_staleness: how many updates may have been applied since the one whose parameters a gradient was
    computed with; a gradient staler than that is dropped. None: twice the number of learners. Learners of the same
    speed see about their number less one.
    """

    max_gradient_staleness: int | None = None

    def __post_init__(self) -> None:
        staleness = self.max_gradient_staleness
        require(staleness is None or staleness >= 0, "learning.max_gradient_staleness", ">= 0, or none", staleness)


@dataclass(frozen=True)
class EvaluationConfig:
    """Greedy evaluations: when, how long, and the return at which the run may stop.

    One comes every period_updates, the first after a tenth of that. Each takes max_minutes at most, and a quarter of
    the run's own; episodes under way then are cut, and such an evaluation never stops the run.

    A kept policy stops the run when its mean over `num_episodes` and then over `num_confirm_episodes` on other seeds
    both reach `stop_return` (None: never).
    """

    period_updates: int = 500
    num_episodes: int = 20
    num_confirm_episodes: int = 100
    num_final_episodes: int = 20
    stop_return: float | None = None
    max_episode_steps: int = 27_000
    max_minutes: float = 5.0

    def __post_init__(self) -> None:
        require(self.max_minutes > 0, "evaluation.max_minutes", "> 0", self.max_minutes)
        require(self.max_episode_steps >= 1, "max_episode_steps", ">= 1", self.max_episode_steps)
        require(self.period_updates >= 1, "period_updates", ">= 1", self.period_updates)
        require(
            min(self.num_episodes, self.num_confirm_episodes, self.num_final_episodes) >= 1,
            "number of evaluation episodes",
            ">= 1 each",
            (self.num_episodes, self.num_confirm_episodes, self.num_final_episodes),
        )


@dataclass(frozen=True)
class LimitConfig:
    """When a run ends without having reached its return. The wall clock counts every session of a resumed run."""

    max_steps: int = 200_000
    max_minutes: float = 10.0
    checkpoint_period_s: float = 30.0

    def __post_init__(self) -> None:
        require(self.max_steps >= 1, "max_steps", ">= 1", self.max_steps)
        require(self.max_minutes > 0, "max_minutes", "> 0", self.max_minutes)
        require(self.checkpoint_period_s > 0, "checkpoint_period_s", "> 0", self.checkpoint_period_s)


def where_to_serve(address: str) -> tuple[str, str]:
    """grpc://host:port, port 0 for a free one, and the table's name, of the option `serving.address`.

    Raises InvalidConfig.
    """
    try:
        parts = urlsplit(address)
        fits = parts.scheme == "grpc" and bool(parts.hostname) and parts.port is not None
    except ValueError:
        fits = False
    name = parts.path.strip("/") if fits else ""
    fits = fits and "/" not in name and not (parts.query or parts.fragment or parts.username)
    require(fits, "serving.address", "grpc://host:port or grpc://host:port/name, or none", address)
    return f"grpc://{parts.netloc}", name or "run"


@dataclass(frozen=True)
class ServingConfig:
    """Actors of other machines: where the run's table and parameters are served to them.

    address: grpc://host:port, or grpc://host:port/name, name "run" where none is given; None: nowhere. max_lanes: of
    environments that they step, all together. max_staleness_s: an actor that has not heard for so long which parameters
    are the newest acts no more, until it does. It cannot count versions of which it hears nothing.
    """

    address: str | None = None
    max_lanes: int = 256
    max_staleness_s: float = 30.0

    def __post_init__(self) -> None:
        if self.address is not None:
            where_to_serve(self.address)
        require(1 <= self.max_lanes <= 2**16, "serving.max_lanes", "in [1, 65536]", self.max_lanes)
        fits = 1.0 <= self.max_staleness_s < math.inf
        require(fits, "serving.max_staleness_s", ">= 1, finite", self.max_staleness_s)


@dataclass(frozen=True)
class LoggingConfig:
    """Where figures go besides TensorBoard. wandb: to Weights & Biases (extra `wandb`), into this project."""

    wandb: bool = False
    project: str = "relive"

    def __post_init__(self) -> None:
        require(bool(self.project), "logging.project", "a name", self.project)


@dataclass(frozen=True)
class TrainConfig:
    """A whole run. `preset(agent, env_id)` gives the defaults that suit an agent in an environment.

    topology: which processes it consists of, see relive.train.topology; a number of actors in it wins over
    acting.num_actors. Where learners share batches batch_size must be a multiple of their number. device: one that
    torch knows, or "auto": cuda where there is one. threads: of each learner; 0 shares out the cores that the actors
    leave. profile: what the time went into is counted, and written to profile.json at the end. tuned: what `relive
    tune` chose, in words for people; nothing depends on it. update: how the agent's is computed, written by hand or
    compiled (relive.train.learners.update_choice); "auto" chooses by measuring, and config.json records the choice.
    deterministic: no result of a run depends on measured times: updates are written by hand.
    """

    agent: AgentConfig
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    acting: ActingConfig = field(default_factory=ActingConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)
    device: str = "auto"
    threads: int = 1
    topology: Topology = Actors()
    profile: bool = False
    serving: ServingConfig = field(default_factory=ServingConfig)
    tuned: str = ""
    update: Literal["auto", "handwritten", "compiled"] = "auto"
    deterministic: bool = False
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    def __post_init__(self) -> None:
        number, size = self.topology.num_slices, self.agent.batch_size
        require(size % number == 0, "agent.batch_size", f"a multiple of the {number} learners of the topology", size)
        several = self.topology.num_hosts > 1 and self.serving.address is not None
        require(not several, "serving.address", f"none where topology = {self.topology}", self.serving.address)
        each, closing = self.environment.num_envs_per_actor, self.topology.closing
        require(
            each >= self.topology.num_groups,
            "environment.num_envs_per_actor",
            f">= {self.topology.num_groups}, the groups of topology {self.topology}",
            each,
        )
        require(
            closing is None or closing.max_batch >= each,
            "max_batch of the topology",
            f">= environment.num_envs_per_actor = {each}, which come together",
            None if closing is None else closing.max_batch,
        )
        require(self.threads >= 0, "threads", ">= 0", self.threads)
        shared = self.topology.acts_inline or self.topology.num_slices > 1
        require(not self.acting.inline or shared, "acting.inline", f"false where topology = {self.topology}", True)
        may_have_none = self.serving.address is not None and not self.acts_inline and closing is None
        has_some = self.num_actors >= 1 or may_have_none
        require(has_some, "acting.num_actors", ">= 1, or 0 of a run that is served (serving.address)", self.num_actors)

    @property
    def acts_inline(self) -> bool:
        """Whether the actors step in the process that calls `train`."""
        return self.topology.acts_inline or self.acting.inline

    @property
    def slice(self) -> AgentConfig:
        """The agent's options for the slice of each batch that one learner gets."""
        return replace(self.agent, batch_size=self.agent.batch_size // self.topology.num_slices)

    @property
    def num_drawn(self) -> int:
        """Items of each draw: a batch, or the slice of one that a host of several draws."""
        return self.agent.batch_size // self.topology.num_hosts

    @property
    def num_actors(self) -> int:
        """Actors of the run, each with its own streams of environments."""
        return self.topology.asks_for_actors or self.acting.num_actors

    @property
    def gradient_staleness(self) -> int:
        """The most updates that a gradient may be behind, see LearningConfig."""
        most = self.learning.max_gradient_staleness
        return 2 * self.topology.num_learners if most is None else most

    @property
    def evaluation_s(self) -> float:
        """The most seconds that one evaluation takes, the final one included."""
        return 60.0 * min(self.evaluation.max_minutes, self.limits.max_minutes / 4)

    def save(self, path: Path) -> None:
        """Writes the configuration as JSON, whole or not at all: the agent's name beside its options."""
        beside = path.with_name(path.name + ".new")
        beside.write_text(json.dumps(self.to_tree(), indent=2) + "\n", encoding="utf-8")
        os.replace(beside, path)

    def to_tree(self) -> dict[str, Any]:
        """All options as JSON says them, in nested dicts; the agent's name beside its options."""
        tree = to_tree(self)
        return {**tree, "agent": {"name": self.agent.name, **tree["agent"]}}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> TrainConfig:
        """The configuration of what `to_tree` gave. Raises InvalidConfig, and KeyError and TypeError for another."""
        agent = dict(tree["agent"])
        config = cls(agent=config_class(agent.pop("name"))())
        return changed(config, flat({**tree, "agent": agent}))

    @classmethod
    def load(cls, path: Path) -> TrainConfig:
        """Reads what `save` wrote; raises InvalidConfig where it is something else."""
        try:
            return cls.from_tree(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise InvalidConfig(
                what=f"run configuration {path}", expected="the file a run writes", got=str(problem)
            ) from problem


def preset(agent: str, env_id: str, settings: Mapping[str, object] | None = None) -> TrainConfig:
    """The defaults for an agent of the registry in an environment, and then the settings, {path: value}.

    Raises InvalidConfig for an unknown agent or option, naming the nearest, and for values that cannot be.
    """
    settings = dict(settings or {})
    env_id = str(settings.pop("environment.env_id", env_id))  # set so or so, its presets come with it
    kind = config_class(agent)
    config = TrainConfig(agent=kind(), environment=EnvironmentConfig(env_id))
    for pattern, defaults in kind.presets.items():
        if fnmatchcase(env_id, pattern):
            config = changed(config, defaults)
    return changed(config, settings)


def load_config(
    path: str | Path, settings: Mapping[str, object] | None = None, *, agent: str | None = None
) -> TrainConfig:
    """The preset of the file's agent in its environment, then the file's options, then the settings, {path: value}.

    path: a .toml file whose tables and keys are the names of options (`[agent]`, `gamma = 0.98`; "none" for none), or
    a .json file of the same form, such as a run's config.json. agent: its name where the file need not say one
    (`name` in `[agent]`). The environment is that of the settings, else the file's, else what the agent shows itself
    on. Raises InvalidConfig for a file that cannot be read, one of another agent, and as `preset` does for options.
    """
    options = file_settings(path, agent)
    named = str(options.pop("agent.name"))
    return preset(named, entry_of(named).environment, {**options, **(settings or {})})


def path_of(what: str, value: object) -> Path:
    """A path that somebody gave. InvalidConfig for anything else, and for an empty one, which would mean here."""
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise InvalidConfig(what, "a path", value)
    return Path(value)


def file_settings(path: str | Path, agent: str | None) -> dict[str, object]:
    """{path: value} of a file's options, as `load_config` reads it; "agent.name" is the agent."""
    path = path_of("run configuration", path)
    settings = {"agent.name": agent, **_read(path)}
    named = settings["agent.name"]
    if named is None:
        raise InvalidConfig(f"run configuration {path}", "name = ... in [agent]", "no agent")
    if agent is not None and named != agent:
        raise InvalidConfig(f"agent of {path}", f"{agent!r}, or a run of the agent that the file names", named)
    return settings


def _read(path: Path) -> dict[str, object]:
    if path.suffix not in (".toml", ".json"):
        raise InvalidConfig(f"run configuration {path}", "a file that ends in .toml or .json", path.suffix)
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
        if not isinstance(tree, dict):
            raise ValueError("no table at its top")
    except (OSError, ValueError, RecursionError) as problem:
        raise InvalidConfig(f"run configuration {path}", "a TOML or JSON file", str(problem)) from problem
    return flat(tree)
