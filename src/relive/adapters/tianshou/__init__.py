"""Tianshou's replay buffers, with their observations, their priorities and their goals in a table; no algorithm.

    from relive.adapters.tianshou import HERVectorReplayBuffer, PrioritizedVectorReplayBuffer, VectorReplayBuffer

    buffer = PrioritizedVectorReplayBuffer(100_000, 8, alpha=0.6, beta=0.4)
    buffer = HERVectorReplayBuffer(100_000, 8, compute_reward_fn=reward, horizon=50, future_k=8)

Tianshou's algorithms read rewards and ends by place (`buffer.rew`, `buffer.next(indices)`). Those small values stay in
the library's own arrays. The table has the observations, each stored once, and the actions and rewards, and draws the
batches. A place that is written again deletes its old step from the table: the buffer forgets by environment, as the
library does.

This module imports tianshou. `import relive` alone does not import this module.
"""

from __future__ import annotations

from relive.errors import MissingPackage
from relive.errors.extras import install_command

try:
    import tianshou as _tianshou  # noqa: F401
except ImportError as _problem:
    _package = _problem.name or "tianshou"
    raise MissingPackage("relive.adapters.tianshou", _package, install_command("tianshou")) from _problem

from relive.adapters.tianshou.buffers import PrioritizedVectorReplayBuffer, VectorReplayBuffer
from relive.adapters.tianshou.hindsight import HERReplayBuffer, HERVectorReplayBuffer

__all__ = ["HERReplayBuffer", "HERVectorReplayBuffer", "PrioritizedVectorReplayBuffer", "VectorReplayBuffer"]
