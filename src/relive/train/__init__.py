"""Training runs: actors, learners, evaluation, checkpoints, progress, tuning; no algorithm (relive.agents).

The names below are the public face. They are loaded when they are asked for: actors, which import this package too,
need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from relive.errors import MissingPackage
from relive.errors.extras import install_command

if TYPE_CHECKING:
    from relive.train.config import TrainConfig, load_config, preset
    from relive.train.errors import (
        ActorsKeepDying,
        EnvironmentHangs,
        EnvironmentRaised,
        HostGone,
        HostsDiffer,
        InferenceKeepsDying,
        LearnersKeepDying,
        NonFiniteLoss,
        ReplicasDiffer,
        TooFewUpdates,
    )
    from relive.train.evaluating.playing import Evaluation, NoDisplay, ShownEpisode, evaluate_run, play_run
    from relive.train.evaluating.policy import TrainedPolicy, load_policy
    from relive.train.run import train
    from relive.train.topology import Actors, CentralInference, DoubleBuffered, Hosts, Inline, Learners, Topology
    from relive.train.tuning.tuner import Tuning, tune
    from relive.train.watching.callbacks import Callback
    from relive.train.watching.checkpoint import CurvePoint
    from relive.train.watching.profile import Profile, load_profile
    from relive.train.watching.progress import Snapshot
    from relive.train.watching.result import RunResult

__all__ = [
    "Actors",
    "ActorsKeepDying",
    "Callback",
    "CentralInference",
    "CurvePoint",
    "DoubleBuffered",
    "EnvironmentHangs",
    "EnvironmentRaised",
    "Evaluation",
    "HostGone",
    "HostsDiffer",
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
    "TooFewUpdates",
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
    "EnvironmentHangs": "errors",
    "EnvironmentRaised": "errors",
    "HostGone": "errors",
    "HostsDiffer": "errors",
    "Hosts": "topology",
    "NonFiniteLoss": "errors",
    "Profile": "watching.profile",
    "LearnersKeepDying": "errors",
    "ReplicasDiffer": "errors",
    "TooFewUpdates": "errors",
    "Actors": "topology",
    "CentralInference": "topology",
    "DoubleBuffered": "topology",
    "InferenceKeepsDying": "errors",
    "Inline": "topology",
    "Learners": "topology",
    "Topology": "topology",
    "Callback": "watching.callbacks",
    "CurvePoint": "watching.checkpoint",
    "Evaluation": "evaluating.playing",
    "NoDisplay": "evaluating.playing",
    "RunResult": "watching.result",
    "ShownEpisode": "evaluating.playing",
    "Snapshot": "watching.progress",
    "TrainConfig": "config",
    "TrainedPolicy": "evaluating.policy",
    "Tuning": "tuning.tuner",
    "evaluate_run": "evaluating.playing",
    "load_config": "config",
    "load_policy": "evaluating.policy",
    "load_profile": "watching.profile",
    "play_run": "evaluating.playing",
    "preset": "config",
    "train": "run",
    "tune": "tuning.tuner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"relive.train.{_HOMES[name]}"), name)
    except ModuleNotFoundError as problem:
        raise MissingPackage(f"relive.train.{name}", str(problem.name), install_command("train")) from None
