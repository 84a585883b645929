"""Defines the options of a training run: frozen values that check themselves and are written to and read from JSON.

A run directory keeps its options in `config.json`, so that `--resume` needs the directory alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from relive.agents.config import AgentConfig, require
from relive.agents.registry import config_class, entry_of
from relive.errors import InvalidConfig
from relive.train.run_directory import write_whole
from relive.train.sections import (
    ActingConfig,
    CheckpointConfig,
    ClusterConfig,
    EnvironmentConfig,
    EvaluationConfig,
    LearningConfig,
    LimitConfig,
    LoggingConfig,
    ReplayConfig,
    ServingConfig,
)
from relive.train.settings import changed, flat, to_tree
from relive.train.topology import Actors, Topology

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LARGEST = 1e15  # of all numbers: a float and a 64-bit integer have them exactly, and JSON has neither nan nor infinity
_MOST_THREADS = 1024


@dataclass(frozen=True)
class TrainConfig:
    """All options of a run. `preset(agent, env_id)` gives the defaults that suit an agent in an environment.

    Attributes:
        agent: The agent; its batch_size is a multiple of the number of learners that share a batch.
        environment: The environment.
        replay: The table.
        acting: The actors.
        learning: Learners with batches of their own.
        evaluation: The evaluations.
        limits: The limits of the run.
        checkpoint: The contents of its checkpoints.
        device: A device of torch, or "auto": cuda if there is one, else cpu.
        threads: Threads of each learner; 0: each learner gets its share of the cores that the actors leave.
        topology: The processes of the run, see relive.train.topology. A number of actors given here wins over
            acting.num_actors.
        profile: Measure the time that each part of the run takes, and write profile.json at the end.
        serving: The address for actors of other machines.
        cluster: The cluster on whose nodes the actors act.
        tuned: The choice of `relive tune`, in words for people; nothing depends on it.
        update: "handwritten" or "compiled" updates (relive.train.learners.update_choice); "auto" measures both and
            writes its choice into config.json.
        deterministic: No result of the run depends on measured times; updates are hand-written.
        logging: The loggers.
    """

    agent: AgentConfig
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    acting: ActingConfig = field(default_factory=ActingConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    device: str = "auto"
    threads: int = 1
    topology: Topology = Actors()
    profile: bool = False
    serving: ServingConfig = field(default_factory=ServingConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    tuned: str = ""
    update: Literal["auto", "handwritten", "compiled"] = "auto"
    deterministic: bool = False
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    def __post_init__(self) -> None:
        for path, value in flat(to_tree(self)).items():
            for number in value if isinstance(value, tuple) else (value,):
                if isinstance(number, (int, float)):
                    fits = abs(number) <= _LARGEST  # nan does not
                    require(fits, f"option {path!r}", f"in [-{_LARGEST:g}, {_LARGEST:g}]", number)
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
        require(0 <= self.threads <= _MOST_THREADS, "threads", f"in [0, {_MOST_THREADS}]", self.threads)
        shared = self.topology.acts_inline or self.topology.num_slices > 1
        require(not self.acting.inline or shared, "acting.inline", f"false where topology = {self.topology}", True)
        staleness, is_read = self.learning.max_gradient_staleness, self.topology.learns_apart
        expected = f"none where topology = {self.topology}"
        require(is_read or staleness is None, "learning.max_gradient_staleness", expected, staleness)
        kind, on_hosts = self.cluster.kind, self.topology.num_hosts > 1
        acts_apart = on_hosts or (not self.acts_inline and closing is None)
        expected = "none where topology is inline, central or double, or with acting.inline"
        require(kind is None or acts_apart, "cluster.kind", expected, kind)
        for name in ("actors_per_node", "shards", "token_file", "ca") if on_hosts else ():
            expected = f"none where topology = {self.topology}: each host has actors of its own"
            require(getattr(self.cluster, name) is None, f"cluster.{name}", expected, getattr(self.cluster, name))
        needs_certificate = self.acts_on_cluster and self.serving.client_ca is not None
        expected = "none with cluster.kind: actors of a cluster show a token (cluster.token_file), and no certificate"
        require(not needs_certificate, "serving.client_ca", expected, self.serving.client_ca)
        shards, saved = self.cluster.shards, self.checkpoint.table
        expected = f"none where topology = {self.topology}: its learners draw from one table"
        require(shards is None or not self.topology.learns_apart, "cluster.shards", expected, shards)
        expected = "'never' with cluster.shards: shards are not saved, and a resumed run fills new ones"
        require(shards is None or saved == "never", "checkpoint.table", expected, saved)
        may_have_none = self.serving.address is not None and not self.acts_inline and closing is None and kind is None
        has_some = self.num_actors >= 1 or may_have_none
        require(has_some, "acting.num_actors", ">= 1, or 0 of a run that is served (serving.address)", self.num_actors)

    @property
    def acts_inline(self) -> bool:
        """Whether the process that calls `train` steps the actors."""
        return self.topology.acts_inline or self.acting.inline

    @property
    def slice(self) -> AgentConfig:
        """Options of the agent of one learner, which gets a slice of each batch."""
        return replace(self.agent, batch_size=self.agent.batch_size // self.topology.num_slices)

    @property
    def num_drawn(self) -> int:
        """Items of each draw: those of a batch, or of the slice of it that one of several hosts draws."""
        return self.agent.batch_size // self.topology.num_hosts

    @property
    def num_actors(self) -> int:
        """Number of actors, each with its own streams of environments."""
        return self.topology.asks_for_actors or self.acting.num_actors

    @property
    def num_actors_here(self) -> int:
        """Number of those that are processes of this machine, or act in this process: none if they act on a cluster."""
        return 0 if self.acts_on_cluster else self.num_actors

    @property
    def acts_on_cluster(self) -> bool:
        """Whether the actors are actors of a cluster. With several hosts they are processes of their hosts."""
        return self.cluster.kind is not None and self.topology.num_hosts == 1

    @property
    def is_served(self) -> bool:
        """Whether actors reach the run through the service."""
        return self.serving.address is not None or self.acts_on_cluster

    @property
    def gradient_staleness(self) -> int:
        """Largest staleness of a gradient that is applied, in updates. See LearningConfig."""
        most = self.learning.max_gradient_staleness
        return 2 * self.topology.num_learners if most is None else most

    @property
    def evaluation_s(self) -> float:
        """Longest time of an evaluation in seconds, the final one included."""
        return 60.0 * min(self.evaluation.max_minutes, self.limits.max_minutes / 4)

    def save(self, path: Path) -> None:
        """Writes the options as JSON, whole or not at all: a reader finds the old file or the new one."""
        write_whole(path, (json.dumps(self.to_tree(), indent=2, allow_nan=False) + "\n").encode())

    def to_tree(self) -> dict[str, Any]:
        """Returns all options as nested dicts that JSON can hold; the name of the agent is among its options."""
        tree = to_tree(self)
        return {**tree, "agent": {"name": self.agent.name, **tree["agent"]}}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> TrainConfig:
        """Reads what `to_tree` returned. Raises InvalidConfig, KeyError or TypeError for another tree."""
        agent = dict(tree["agent"])
        config = cls(agent=config_class(agent.pop("name"))())
        return changed(config, flat({**tree, "agent": agent}))

    @classmethod
    def load(cls, path: Path) -> TrainConfig:
        """Reads the file that `save` wrote. Raises InvalidConfig for another file."""
        try:
            return cls.from_tree(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
            raise InvalidConfig(
                what=f"run configuration {path}", expected="the file a run writes", got=str(problem)
            ) from problem


def preset(agent: str, env_id: str, settings: Mapping[str, object] | None = None) -> TrainConfig:
    """Returns the default options for an agent in an environment, changed by settings.

    Args:
        agent: Name of an agent of the registry.
        env_id: Gymnasium id.
        settings: {path of an option: its value}; they win over the defaults.

    Raises:
        InvalidConfig: An agent or an option is unknown (the error names the nearest one), or a value is impossible.
    """
    settings = dict(settings or {})
    if str(settings.get("cluster.shards", "none")).lower() != "none":
        settings = {"checkpoint.table": "never", **settings}
    env_id = str(settings.pop("environment.env_id", env_id))  # the presets are those of the environment that is set
    kind = config_class(agent)
    config = TrainConfig(agent=kind(), environment=EnvironmentConfig(env_id))
    for pattern, defaults in kind.presets.items():
        if fnmatchcase(env_id, pattern):
            config = changed(config, defaults)
    return changed(config, settings)


def load_config(
    path: str | Path, settings: Mapping[str, object] | None = None, *, agent: str | None = None
) -> TrainConfig:
    """Returns the preset of an agent in an environment, changed by the options of a file, then by settings.

    Args:
        path: A .toml file whose tables and keys are the names of options (`[agent]`, `gamma = 0.98`; "none" for None),
            or a .json file of the same form, such as the config.json of a run.
        settings: {path of an option: its value}; they win over the file.
        agent: Name of the agent, for files that do not name one (`name` in `[agent]`).

    Returns:
        The options. The environment is that of the settings, else that of the file, else the agent's default.

    Raises:
        InvalidConfig: The file cannot be read, or is of another agent, or `preset` refuses an option.
    """
    options = file_settings(path, agent)
    named = str(options.pop("agent.name"))
    return preset(named, entry_of(named).environment, {**options, **(settings or {})})


def path_of(what: str, value: object) -> Path:
    """Returns the value as a path. Raises InvalidConfig for other types, an empty path, and one with a zero byte."""
    if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value):
        raise InvalidConfig(what, "a path", value)
    return Path(value)


def file_settings(path: str | Path, agent: str | None) -> dict[str, object]:
    """Returns the options of a file, {path: value}, as `load_config` reads it. "agent.name" names the agent."""
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
