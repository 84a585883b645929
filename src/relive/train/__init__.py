"""Training: actor processes, the learner, parameter publication, evaluation, checkpoints, progress.

The names below are the public face. They are loaded when they are asked for: actors, which import this package too,
need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from relive._extras import install_command
from relive.errors import MissingPackage

if TYPE_CHECKING:
    from relive.train.callbacks import Callback
    from relive.train.checkpoint import CurvePoint
    from relive.train.config import TrainConfig, load_config, preset
    from relive.train.errors import (
        ActorsKeepDying,
        EnvironmentRaised,
        HostGone,
        InferenceKeepsDying,
        LearnersKeepDying,
        NonFiniteLoss,
        ReplicasDiffer,
    )
    from relive.train.playing import Evaluation, NoDisplay, ShownEpisode, evaluate_run, play_run
    from relive.train.policy import TrainedPolicy, load_policy
    from relive.train.profile import Profile, load_profile
    from relive.train.progress import Snapshot
    from relive.train.result import RunResult
    from relive.train.run import train
    from relive.train.topology import Actors, CentralInference, DoubleBuffered, Hosts, Inline, Learners, Topology
    from relive.train.tuning import Tuning, tune

__all__ = [
    "Actors",
    "ActorsKeepDying",
    "Callback",
    "CentralInference",
    "CurvePoint",
    "DoubleBuffered",
    "EnvironmentRaised",
    "Evaluation",
    "HostGone",
    "Hosts",
    "InferenceKeepsDying",
    "Inline",
    "Learners",
    "LearnersKeepDying",
    "NoDisplay",
    "NonFiniteLoss",
    "Profile",
    "ReplicasDiffer",
    "RunResult",
    "ShownEpisode",
    "Snapshot",
    "Topology",
    "TrainConfig",
    "TrainedPolicy",
    "Tuning",
    "evaluate_run",
    "load_config",
    "load_policy",
    "load_profile",
    "play_run",
    "preset",
    "train",
    "tune",
]

_HOMES = {
    "ActorsKeepDying": "errors",
    "EnvironmentRaised": "errors",
    "HostGone": "errors",
    "Hosts": "topology",
    "NonFiniteLoss": "errors",
    "Profile": "profile",
    "LearnersKeepDying": "errors",
    "ReplicasDiffer": "errors",
    "Actors": "topology",
    "CentralInference": "topology",
    "DoubleBuffered": "topology",
    "InferenceKeepsDying": "errors",
    "Inline": "topology",
    "Learners": "topology",
    "Topology": "topology",
    "Callback": "callbacks",
    "CurvePoint": "checkpoint",
    "Evaluation": "playing",
    "NoDisplay": "playing",
    "RunResult": "result",
    "ShownEpisode": "playing",
    "Snapshot": "progress",
    "TrainConfig": "config",
    "TrainedPolicy": "policy",
    "Tuning": "tuning",
    "evaluate_run": "playing",
    "load_config": "config",
    "load_policy": "policy",
    "load_profile": "profile",
    "play_run": "playing",
    "preset": "config",
    "train": "run",
    "tune": "tuning",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"relive.train.{_HOMES[name]}"), name)
    except ModuleNotFoundError as problem:
        raise MissingPackage(f"relive.train.{name}", str(problem.name), install_command("train")) from None
