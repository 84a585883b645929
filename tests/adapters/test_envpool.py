"""Pools of EnvPool: one that behaves as they do, and EnvPool itself where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from relive import errors

pytest.importorskip("gymnasium", reason="gymnasium is not installed here")

from adapters.worlds import Diary, Pool, make_table, stored  # noqa: E402 - needs gymnasium
from relive.adapters import envpool as adapter  # noqa: E402 - needs gymnasium


class GymnasiumPool(Pool):
    """The same with what EnvPool's pools tell about themselves."""

    def __init__(self, num_envs: int, num_ready: int, **config: Any) -> None:
        super().__init__(num_envs, num_ready)
        self.config = {"num_envs": num_envs, "batch_size": num_ready, **config}


def test_a_pool_that_answers_in_any_order() -> None:
    """Every transition is stored once, and none joins two episodes or two environments."""
    pool, diary = GymnasiumPool(6, 2), Diary()
    with make_table(pool.observation_space) as table:
        envs = adapter.record(pool, table)
        envs.async_reset()
        random = np.random.default_rng(3)
        acted: dict[int, tuple[tuple[int, int], int]] = {}
        for _ in range(200):
            observation, reward, terminated, truncated, info = envs.recv()
            for row, env in enumerate(info["env_id"].tolist()):
                place = int(observation[row][0]), int(observation[row][1])
                if env in acted and acted[env][0] == place:
                    ends = bool(terminated[row]), bool(truncated[row])
                    diary.note(*place, acted[env][1], float(reward[row]), *ends)
            actions = random.integers(0, 3, len(observation))
            over = terminated | truncated
            for row, env in enumerate(info["env_id"].tolist()):
                acted[env] = (
                    (-1, -1) if over[row] else (int(observation[row][0]), int(observation[row][1])),
                    int(actions[row]),
                )
            envs.send(actions, info["env_id"])
        assert len(stored(table)) > 100 and stored(table) == diary.transitions()
        envs.writer.close()
        with pytest.raises(errors.ReliveError):
            envs.recv()


def test_bad_input() -> None:
    pool = GymnasiumPool(2, 2)
    with make_table(pool.observation_space) as table:
        with pytest.raises(errors.InvalidConfig, match="envpool.make"):
            adapter.record(Pool(2, 2), table)
        with pytest.raises(errors.InvalidConfig, match="players"):
            adapter.record(GymnasiumPool(2, 2, max_num_players=2), table)

        class DMPool(GymnasiumPool): ...

        DMPool.__name__ = "DMPool"
        with pytest.raises(errors.InvalidConfig, match="env_type"):
            adapter.record(DMPool(2, 2), table)


@pytest.mark.parametrize("batch_size", [4, 2])
def test_envpool_itself(batch_size: int) -> None:
    envpool = pytest.importorskip("envpool", reason="envpool is not installed here")
    pool = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, batch_size=batch_size, seed=1)
    spec = relive.StepSpec.from_spaces(pool.observation_space, pool.action_space)
    with relive.Table(spec, 10_000, max_lanes=8) as table:
        envs = adapter.record(pool, table)
        envs.async_reset()
        for _ in range(400):
            observation, _, _, _, info = envs.recv()
            envs.send((observation[:, 2] > 0).astype(np.int32) * (np.arange(len(observation)) % 2 == 0), info["env_id"])
        envs.writer.close()
        table.check()
        found = list(table.episodes())
        assert len(found) > 10 and {one.terminated for one in found} >= {True}
        for one in found:
            speed, place = one["observation"][:-1, 1], np.diff(one["observation"][:, 0])
            assert np.allclose(place, 0.02 * speed, atol=1e-5), "each state follows the one before it"
