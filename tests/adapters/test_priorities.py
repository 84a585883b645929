"""Priorities that a recorder gives steps as it stores them, and the keys of what it stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="the recorder wraps Gymnasium environments")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

import relive  # noqa: E402
from adapters.worlds import Pool, World, stored  # noqa: E402
from relive import errors  # noqa: E402
from relive.adapters.gymnasium import record  # noqa: E402


def make_table(initial: Any = "max") -> relive.Table:
    space = World()
    spec = relive.StepSpec.from_spaces(space.observation_space, space.action_space)
    index = relive.Index(relive.Transitions(), relive.Prioritized(1.0, initial=initial))
    return relive.Table(spec, 1000, index, max_lanes=8, seed=3, timeout_s=5.0)


def of_step(columns: dict[str, Any]) -> Any:
    """A number that names environment, episode, time and what came after: wrong rows give wrong masses."""
    here, there = columns["observation"], columns["next_observation"]
    assert here.shape == there.shape and (here[:, :2] == there[:, :2]).all(), "never of two episodes"
    assert (there[:, 2] == here[:, 2] + 1).all()
    assert columns["reward"].shape == columns["terminated"].shape == columns["truncated"].shape == (len(here),)
    return 1.0 + here[:, 0] * 100 + here[:, 1] * 10 + here[:, 2] + 0.5 * columns["terminated"]


def masses(table: relive.Table) -> dict[tuple[float, ...], float]:
    batch = table.sample(60_000, columns=["observation", "terminated"])
    found = {}
    for cell, terminated, probability in zip(
        batch["observation"], batch["terminated"], batch.probabilities, strict=True
    ):
        found[(*map(float, cell), float(terminated))] = float(probability)
    return found


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_every_step_of_a_vector_has_its_own(mode: AutoresetMode) -> None:
    table = make_table()
    envs = record(SyncVectorEnv([lambda n=n: World(n) for n in range(3)], autoreset_mode=mode), table, priority=of_step)
    envs.reset()
    for _ in range(20):
        envs.step(np.zeros(3, np.int64))
    found = masses(table)
    assert len(found) == table.num_items()
    unit = {round(p / (1 + e * 100 + k * 10 + t + 0.5 * end), 9) for (e, k, t, end), p in found.items()}
    assert len(unit) == 1, "probabilities are proportional to what the function gave"
    envs.close()


def test_subsets_of_a_pool() -> None:
    table = make_table()
    envs = record(Pool(4, 2), table, autoreset_mode="NextStep", num_envs=4, priority=of_step)
    envs.reset()
    for _ in range(30):
        envs.step(np.zeros(2, np.int64), envs.env_ids)
    found = masses(table)
    assert len({round(p / (1 + e * 100 + k * 10 + t + 0.5 * end), 9) for (e, k, t, end), p in found.items()}) == 1
    envs.close()


def test_keys_lead_to_what_was_stored() -> None:
    table = make_table()
    envs = record(SyncVectorEnv([lambda n=n: World(n) for n in range(3)], autoreset_mode="NextStep"), table)
    assert envs.item_keys.tolist() == [-1, -1, -1]
    shown, _ = envs.reset()
    over = np.zeros(3, bool)
    for _ in range(20):
        before = shown
        shown, _, terminated, truncated, _ = envs.step(np.zeros(3, np.int64))
        keys = envs.item_keys
        assert (keys < 0).tolist() == over.tolist(), "the row after an end is a reset"
        there = table.gather(keys[~over], ["observation"])
        assert (there["observation"] == before[~over])[there.present].all()
        assert there.present[(terminated | truncated)[~over]].all(), "an end makes its step an item"
        over = terminated | truncated
    keys[:] = 0
    assert (envs.item_keys != 0).all(), "a copy"
    table.update_priorities(envs.item_keys[envs.item_keys >= 0], np.ones((envs.item_keys >= 0).sum()))
    envs.close()


def test_one_environment() -> None:
    table = make_table(initial="given")
    env = record(World(), table, priority=of_step)
    env.reset()
    assert env.item_keys.tolist() == [-1]
    for _ in range(2):
        env.step(0)
    assert env.item_keys.shape == (1,) and env.item_keys[0] >= 0
    assert table.num_items() == 2, "initial=given waits for a priority, and each step brings one"
    env.close()


class Trouble(Exception):
    pass


def raises(columns: dict[str, Any]) -> Any:
    raise Trouble


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda columns: 1.0, errors.ShapeMismatch),
        (lambda columns: np.ones(7), errors.ShapeMismatch),
        (lambda columns: ["much"], errors.DtypeMismatch),
        (lambda columns: None, errors.ShapeMismatch),
        (lambda columns: -np.ones(1), errors.InvalidPriority),
        (lambda columns: np.full(1, np.nan), errors.InvalidPriority),
        (lambda columns: np.full(1, 1e39), errors.InvalidPriority),
        (raises, Trouble),
    ],
)
def test_a_priority_that_is_none_refuses_its_step(wrong: Any, error: type[Exception]) -> None:
    """The step is not stored, its episode is cut, and what follows is stored as ever."""
    table = make_table()
    calls = [0]

    def at_third(columns: dict[str, Any]) -> Any:
        calls[0] += 1
        return wrong(columns) if calls[0] == 3 else np.ones(len(columns["reward"]))

    env = record(World(2), table, priority=at_third)  # its first episode has 4 steps
    env.reset()
    env.step(0)
    env.step(0)
    with pytest.raises(error):
        env.step(0)
    assert env.item_keys.tolist() == [-1]
    env.step(0)
    env.reset()
    env.step(1)
    env.close()
    cells = sorted((k, t) for _, k, t, *_ in stored(table))
    assert cells[:2] == [(0, 0), (0, 1)] and (0, 2) not in cells and (1, 0) in cells


def test_what_is_no_function() -> None:
    with pytest.raises(errors.InvalidConfig, match="priority"):
        record(World(), make_table(), priority=1.0)
