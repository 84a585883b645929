"""Replay buffers of Stable-Baselines3 whose steps lie in a table; no algorithm and no loss.

    from relive.adapters.sb3 import ReplayBuffer, DictReplayBuffer, HerReplayBuffer, Prioritized

    DQN("MlpPolicy", env, replay_buffer_class=ReplayBuffer, replay_buffer_kwargs=dict(n_steps=3, gamma=0.99))

    class PrioritizedSAC(Prioritized, SAC): ...

This module imports stable_baselines3. `import relive` alone does not import this module.
"""

from __future__ import annotations

from relive.errors import MissingPackage
from relive.errors.extras import install_command

try:
    import stable_baselines3 as _sb3  # noqa: F401
except ImportError as _problem:
    _package = _problem.name or "stable_baselines3"
    raise MissingPackage("relive.adapters.sb3", _package, install_command("sb3")) from _problem

from relive.adapters.sb3.buffers import DictReplayBuffer, ReplayBuffer
from relive.adapters.sb3.hindsight import HerReplayBuffer
from relive.adapters.sb3.prioritized import Prioritized, PrioritizedDictReplayBuffer, PrioritizedReplayBuffer

__all__ = [
    "DictReplayBuffer",
    "HerReplayBuffer",
    "Prioritized",
    "PrioritizedDictReplayBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
]
