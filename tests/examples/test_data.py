"""The data of offline learning: episodes of saved tables, their returns, and the units of their actions."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import relive
import relive.fleet

for _module in ("torch", "rich", "tensorboard", "matplotlib"):
    pytest.importorskip(_module, reason=f"the examples need {_module}")


def saved_table(
    folder: Path, lengths: list[int], *, n_step: int = 1, action: Any = 1, rewards: tuple[float, ...] = (1.0,)
) -> Path:
    """Saves a table with truncated episodes of these lengths and of one reward each. The last one is open."""
    kind = relive.ArraySpec(np.shape(action), "float32" if np.ndim(action) else "int64")
    columns = {"observation": relive.ArraySpec((3,), "float32", kind="state"), "action": kind}
    spec = relive.StepSpec(columns | {"reward": relive.ArraySpec((), "float32")})
    with relive.Table(spec, 10_000, relive.Index(relive.Transitions(n_step=n_step, gamma=0.99))) as table:
        writer = table.writer()
        for number, length in enumerate(lengths):
            for step in range(length):
                writer.append(
                    observation=np.full(3, step),
                    next_observation=np.full(3, step + 1),
                    action=action,
                    reward=rewards[number % len(rewards)],
                    truncated=step == length - 1 and number < len(lengths) - 1,
                )
        table.save(folder / "save")
    return folder / "save"


def cart_pole(longest: int) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", max_episode_steps=longest)


@pytest.mark.parametrize("n_step", [1, 3])
def test_saved_episodes_have_the_rewards_of_their_steps(n_step: int, tmp_path: Path) -> None:
    episodes = importlib.import_module("episodes")
    folder = saved_table(tmp_path, [6, 5, 2], n_step=n_step)
    found = list(episodes.saved(str(folder), cart_pole(6)))
    assert [episode.reward.tolist() for episode in found] == [[1.0] * 6, [1.0] * 5]
    assert [episode.return_to_go[0] for episode in found] == [6.0, 5.0]
    assert found[0].observation[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert found[0].action.tolist() == [1] * 6 and not found[0].terminated


def test_the_last_episode_of_a_lane_is_whole_if_the_time_limit_ended_it(tmp_path: Path) -> None:
    episodes = importlib.import_module("episodes")
    with relive.load(saved_table(tmp_path, [6, 5])) as table:
        assert [len(episode) for episode in episodes.whole(table, ["reward"], 5)] == [6, 5]
        assert [len(episode) for episode in episodes.whole(table, ["reward"], 6)] == [6]
        assert [len(episode) for episode in episodes.whole(table, ["reward"], None)] == [6]


def test_a_table_without_a_whole_episode_is_refused(tmp_path: Path) -> None:
    episodes = importlib.import_module("episodes")
    with pytest.raises(SystemExit, match="no whole episode"):
        list(episodes.saved(str(saved_table(tmp_path, [3])), cart_pole(6)))


@pytest.mark.parametrize("stored, unit", [(1.5, 0.75), (-0.75, -0.75)])  # Pendulum's own bounds are [-2, 2]
def test_offline_learns_actions_in_the_units_of_its_data(stored: float, unit: float, tmp_path: Path) -> None:
    offline = importlib.import_module("offline")
    saved_table(tmp_path, [6, 5, 2], n_step=3, action=np.full(1, stored, np.float32))
    learned, learner_of = [], offline.Learner
    offline_arguments = "--env Pendulum-v1 --steps 150 --eval-every 150 --eval-episodes 1 --hidden 16 --batch-size 16"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offline, "Learner", lambda *told: learned.append(learner_of(*told)) or learned[-1])
        options = ["--learning-rate", "0.01", "--no-bar", "--data", str(tmp_path), "--run-dir", str(tmp_path / "run")]
        result = offline.main([*offline_arguments.split(), *options])
    assert result.facts["data_episodes"] == 2 and result.facts["data_best"] == 6.0
    assert abs(float(learned[0].act(np.full(3, 2.0, np.float32))[0]) - unit) < 0.1


@pytest.mark.parametrize("low, high, stored, unit", [(-2, 2, 1.5, 0.75), (-2, 2, -1.0, -1.0), (-0.5, 0.5, 0.5, 1.0)])
def test_stored_actions_have_the_smallest_box_that_contains_them(
    low: float, high: float, stored: float, unit: float
) -> None:
    episodes = importlib.import_module("episodes")
    space = gymnasium.spaces.Box(low, high, (1,))
    middle, half = episodes.units(np.full((4, 1), stored, np.float32), space)
    assert ((stored - middle) / half).tolist() == [unit]


def test_stored_actions_outside_of_all_bounds_are_refused() -> None:
    episodes = importlib.import_module("episodes")
    with pytest.raises(SystemExit, match=r"reach from 3 to 3\. Expected: within \[-1, 1\] or within Box"):
        episodes.units(np.full((4, 1), 3.0, np.float32), gymnasium.spaces.Box(-2.0, 2.0, (1,)))


@pytest.mark.parametrize("rewards", [(-1.0, -3.0), (0.0, -1.0), (3.0, 0.0)])
def test_windows_of_the_best_episode_are_drawn_most(rewards: tuple[float, ...], tmp_path: Path) -> None:
    transformer = importlib.import_module("decision_transformer")
    action = np.full(1, 1.5, np.float32)
    folder = saved_table(tmp_path, [8, 8, 2], action=action, rewards=rewards)
    settings = transformer.Settings(env="Pendulum-v1", data=str(folder), ranks=1, window=4)
    with ExitStack() as stack:
        names, task = transformer.make_shards(settings, None, stack)
        table = stack.enter_context(relive.fleet.attach(names))
        batch = table.sample(256, columns=["reward", "action", "mask"])
        best = batch["reward"][batch["mask"]] == rewards[0]
        actions = batch["action"][batch["mask"]]
    assert best.mean() > 0.95
    assert (actions == 0.75).all(), "1.5 in Pendulum's bounds of [-2, 2]"
    assert task.best_return == 8 * rewards[0] and task.largest == 8 * max(map(abs, rewards))
