"""RLlib's PrioritizedEpisodeReplayBuffer, with its steps in a table; no algorithm.

    config.training(replay_buffer_config={
        "type": "relive.adapters.rllib.PrioritizedEpisodeReplayBuffer",
        "capacity": 100_000, "alpha": 0.6, "beta": 0.4, "n_step": 3, "gamma": 0.99,
    })

`type` is text: RLlib looks for the name of its class in it. RLlib passes n_step, gamma and beta to each sample; n_step
and gamma have to be those of the buffer, because the table computes the returns.

This module imports ray.rllib. `import relive` alone does not import this module.
"""

from __future__ import annotations

from relive.errors import MissingPackage
from relive.errors.extras import install_command

try:
    import ray.rllib.utils.replay_buffers.prioritized_episode_buffer as _rllib  # noqa: F401
except ImportError as _problem:
    _package = _problem.name or "ray[rllib]"
    raise MissingPackage("relive.adapters.rllib", _package, install_command("rllib")) from _problem

from relive.adapters.rllib.buffer import PrioritizedEpisodeReplayBuffer

__all__ = ["PrioritizedEpisodeReplayBuffer"]
