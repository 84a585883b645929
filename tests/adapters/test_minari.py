"""Datasets of Minari, made by Minari itself and by relive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from adapters.test_formats import LENGTHS, assert_equal, filled
from relive import errors

minari = pytest.importorskip("minari", reason="minari is not installed here")
gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed here")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def episodes_of_cartpole(count: int) -> Any:
    env = gymnasium.make("CartPole-v1")
    made = []
    for number in range(count):
        observation, _ = env.reset(seed=number)
        observations, actions, rewards, ends = [observation], [], [], []
        while not ends or not any(ends[-1]):
            actions.append(env.action_space.sample())
            observation, reward, terminated, truncated, _ = env.step(actions[-1])
            observations.append(observation)
            rewards.append(reward)
            ends.append((terminated, truncated))
        made.append(
            minari.data_collector.EpisodeBuffer(
                observations=np.array(observations), actions=np.array(actions), rewards=np.array(rewards),
                terminations=np.array(ends)[:, 0], truncations=np.array(ends)[:, 1],
                infos={"speed": {"x": np.arange(len(observations), dtype=np.float32)}},
            )
        )  # fmt: skip
    return minari.create_dataset_from_buffers("cartpole/random-v0", made, env=env)


def test_a_dataset_of_minari() -> None:
    dataset = episodes_of_cartpole(5)
    with relive.from_minari("cartpole/random-v0", infos=["speed/x"]) as table:
        assert table.spec.columns["action"].dtype == np.int64 and table.spec.columns["reward"].dtype == np.float64
        assert len(table) == dataset.total_steps and table.stats().evicted == 0
        for mine, theirs in zip(table.episodes(), dataset.iterate_episodes(), strict=True):
            assert mine["observation"].tobytes() == theirs.observations.tobytes()
            assert mine["action"].tolist() == theirs.actions.tolist()
            assert mine["reward"].tolist() == theirs.rewards.tolist()
            assert mine["speed"]["x"].tolist() == theirs.infos["speed"]["x"][1:].tolist()
            assert mine.terminated == theirs.terminations[-1] and mine.truncated == theirs.truncations[-1]
        batch = table.sample(8)
        assert batch["next_observation"].shape == (8, 4)
    with relive.from_minari(dataset, index=relive.Index(relive.Transitions(n_step=3)), capacity=200) as table:
        assert table.capacity == 200 and list(table.spec.columns) == ["observation", "action", "reward"]


@pytest.mark.parametrize("env", [None, "CartPole-v1"])
def test_round_trips_are_exact(env: str | None) -> None:
    spec = relive.ArraySpec
    more = {"flag": spec((2,), "bool"), "task": spec((), "int16", "episode"), "core": spec((3,), "float16", "start")}
    columns = {
        "observation": spec((4,), "float32", "state"),
        "action": spec((), "int64"),
        "reward": spec((), "float32"),
    }
    goal = {"goal": {"x": spec((2,), "float64", "state")}}
    with relive.Table(relive.StepSpec({**columns, **more, **goal}), 1000) as table:
        dataset = filled(table).to_minari("mine/test-v0", env=env)
        assert dataset.total_steps == sum(LENGTHS) and dataset.total_episodes == len(LENGTHS)
        with relive.from_minari("mine/test-v0") as other:
            assert other.spec == table.spec
            assert_equal(table, other)
        first = next(iter(dataset.iterate_episodes()))
        assert set(first.infos) == {"discount", "policy_version", "flag", "task", "core", "goal"}
        assert dataset.observation_space.shape == (4,)


def test_nested_spaces() -> None:
    spec = relive.ArraySpec
    observation = {"camera": spec((8, 8, 3), "uint8", "state"), "arms": (spec((2,), "float32", "state"),) * 2}
    columns = {"observation": observation, "action": {"a": spec((), "int64")}, "reward": spec((), "float64")}
    with relive.Table(relive.StepSpec(columns), 1000) as table:
        dataset = filled(table).to_minari("mine/nested-v0")
        with relive.from_minari(dataset) as other:
            assert_equal(table, other)


def test_bad_input() -> None:
    with relive.Table(relive.StepSpec({"x": relive.ArraySpec((), "int64")}), 100) as table:
        with pytest.raises(errors.InvalidConfig, match="observation, action, reward"):
            table.to_minari("mine/none-v0")
    spec = relive.StepSpec.from_spaces(gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2))
    with relive.Table(spec, 100) as table, pytest.raises(errors.InvalidConfig, match="whole episode"):
        table.to_minari("mine/none-v0")
    assert not minari.list_local_datasets()
    with pytest.raises(errors.InvalidConfig, match="MinariDataset"):
        relive.from_minari(3)
    dataset = episodes_of_cartpole(1)
    with pytest.raises(ValueError, match="speed/y"):
        relive.from_minari(dataset, infos=["speed/y"])
