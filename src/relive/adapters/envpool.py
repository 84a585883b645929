"""EnvPool: records pools of Gymnasium's interface, in lockstep or asynchronously.

    pool = envpool.make("Pong-v5", env_type="gymnasium", num_envs=64, batch_size=16)
    envs = relive.adapters.envpool.record(pool, table)
    envs.async_reset()
    observation, reward, terminated, truncated, info = envs.recv()      # the 16 environments that are ready
    envs.send(actions, info["env_id"])

A pool resets an environment on the step after its end; that row is a reset, and is not stored. Lane i of the writer is
environment i, in whatever order the pool answers.
"""

from __future__ import annotations

from typing import Any

from relive.adapters.gymnasium import RecordedVectorEnv
from relive.adapters.gymnasium import record as record_vector
from relive.adapters.lanes import Priority, WritableTable
from relive.checks.names import names_arguments
from relive.errors import InvalidConfig

__all__ = ["record"]


@names_arguments
def record(
    pool: Any, table: WritableTable, *, priority: Priority | None = None, timeout_s: float | None = None
) -> RecordedVectorEnv:
    """Wraps a pool so that its steps are written into a table. Opens a writer with one lane for each environment.

    Args:
        pool: what envpool.make(..., env_type="gymnasium") or envpool.make_gymnasium returned.
        table: the table; StepSpec.from_spaces takes pool.observation_space and pool.action_space, which are those of
            one environment.
        priority: as for relive.adapters.gymnasium.record.
        timeout_s: deadline of each write in seconds. None: the table's default.

    Returns:
        The recorded pool, with step, reset, send, recv and async_reset.

    Raises:
        InvalidConfig: the pool has another interface, or several players an environment.
    """
    told = getattr(pool, "config", None)
    config: dict[str, Any] = told if isinstance(told, dict) else {}
    num_envs = config.get("num_envs")
    if num_envs is None or not hasattr(pool, "recv"):
        raise InvalidConfig(
            "pool to record", "what envpool.make(..., env_type='gymnasium') returns", type(pool).__name__
        )
    if "Gymnasium" not in type(pool).__name__:
        raise InvalidConfig(
            "env_type of the pool", "'gymnasium', whose steps tell how an episode ended", type(pool).__name__
        )
    if config.get("max_num_players", 1) != 1:
        raise InvalidConfig("players of an environment of the pool", "1", config["max_num_players"])
    return record_vector(
        pool, table, autoreset_mode="NextStep", num_envs=int(num_envs), priority=priority, timeout_s=timeout_s
    )
