"""ale-py's vector environment through the recorder: frames stored once, its zero-padded stacks given back exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py", reason="Atari needs ale-py")
pytest.importorskip("gymnasium", reason="the recorder wraps Gymnasium environments")

from ale_py.vector_env import AtariVectorEnv  # noqa: E402
from gymnasium.vector import AutoresetMode  # noqa: E402

import relive  # noqa: E402
from relive.adapters.gymnasium import record  # noqa: E402


def make(mode: AutoresetMode, num_envs: int = 3, **options: Any) -> AtariVectorEnv:
    # Episodes of some 12 steps: ends by the frame limit are truncations.
    return AtariVectorEnv(
        "pong",
        num_envs,
        num_threads=1,
        autoreset_mode=mode,
        max_num_frames_per_episode=48,
        noop_max=4,
        img_height=12,
        img_width=12,
        **options,
    )


def make_table(envs: AtariVectorEnv) -> relive.Table:
    stack = {"observation": 4}
    spec = relive.StepSpec.from_spaces(envs.single_observation_space, envs.single_action_space, unstack=stack)
    assert spec.columns["observation"].shape == (12, 12)
    index = relive.Index(relive.Transitions(stack=stack, stack_pad="zeros"))
    return relive.Table(spec, 5000, index, max_lanes=8)


COLUMNS = ["observation", "next_observation", "action", "truncated"]
Seen = dict[bytes, set[bool]]  # frames and action -> whether it was truncated: early frames repeat between episodes


def note(seen: Seen, here: np.ndarray, action: int, there: np.ndarray, truncated: bool) -> bytes:
    key = here.tobytes() + there.tobytes() + bytes([action])
    seen.setdefault(key, set()).add(truncated)
    return key


def assert_same(table: relive.Table, seen: Seen, num_rows: int) -> None:
    assert len(table) == num_rows
    batch = table.sample(4000, columns=COLUMNS)
    keys = set()
    for here, there, action, truncated in zip(
        batch["observation"], batch["next_observation"], batch["action"], batch["truncated"], strict=True
    ):
        key = here.tobytes() + there.tobytes() + bytes([int(action)])
        assert bool(truncated) in seen[key]
        keys.add(key)
    assert keys == set(seen)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_stacks_come_back_as_the_environment_made_them(mode: AutoresetMode) -> None:
    envs, num_rows = make(mode), 0
    seen: Seen = {}
    newest: dict[int, bytes] = {}
    rng = np.random.default_rng(0)
    with make_table(envs) as table:
        recorded = record(envs, table)
        assert recorded.autoreset_mode is mode
        stacks = recorded.reset(seed=3)[0].copy()
        over = np.zeros(3, np.bool_)
        ends = 0
        for _ in range(50):
            actions = rng.integers(0, 6, 3)
            following, _, terminated, truncated, info = recorded.step(actions)
            for env in np.flatnonzero(~over):
                final = mode is AutoresetMode.SAME_STEP and (terminated[env] or truncated[env])
                there = info["final_obs"][env] if final else following[env]
                newest[env] = note(seen, stacks[env], int(actions[env]), there, bool(truncated[env]))
                num_rows += 1
            ended = terminated | truncated
            ends += int(ended.sum())
            over = ended if mode is AutoresetMode.NEXT_STEP else over
            stacks = following.copy()
        assert ends > 6
        recorded.reset(seed=4)  # completes the newest steps
        for env in np.flatnonzero(~ended):  # and ends them as truncated
            seen[newest[env]].add(True)
        assert_same(table, seen, num_rows)
        recorded.close()


def test_asynchronous_batches() -> None:
    envs, num_rows = make(AutoresetMode.NEXT_STEP, 5, batch_size=2), 0
    seen: Seen = {}
    rng = np.random.default_rng(0)
    with make_table(envs) as table:
        recorded = record(envs, table)
        stacks, info = recorded.reset(seed=3)
        last = {int(env): stack.copy() for env, stack in zip(info["env_id"], stacks, strict=True)}
        over: set[int] = set()
        under_way: dict[int, int] = {}
        for _ in range(120):
            actions = rng.integers(0, 6, 2)
            under_way.update(zip(recorded.env_ids.tolist(), actions.tolist(), strict=True))
            recorded.send(actions)
            stacks, _, terminated, truncated, info = recorded.recv()
            for row, env in enumerate(info["env_id"].tolist()):
                if env in last and env not in over:
                    note(seen, last[env], under_way[env], stacks[row], bool(truncated[row]))
                    num_rows += 1
                over.discard(env)
                if terminated[row] or truncated[row]:
                    over.add(env)
                last[env] = stacks[row].copy()
        assert num_rows > 150
        recorded.close()
        batch = table.sample(4000)
        assert len(table) == num_rows
        for here, there, action in zip(batch["observation"], batch["next_observation"], batch["action"], strict=True):
            assert here.tobytes() + there.tobytes() + bytes([int(action)]) in seen


def test_modes_of_two_environments_do_not_mix() -> None:
    """ale-py notes the mode in a dictionary that all its vectors share: the attribute is what counts."""
    one, other = make(AutoresetMode.SAME_STEP, 1), make(AutoresetMode.NEXT_STEP, 1)
    with make_table(one) as table:
        recorded = record(one, table)
        assert recorded.autoreset_mode is AutoresetMode.SAME_STEP
        recorded.close()
    other.close()
