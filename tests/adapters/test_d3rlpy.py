"""d3rlpy trains on a table as on its own buffer."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors

d3rlpy = pytest.importorskip("d3rlpy", reason="d3rlpy is not installed here")

from relive.adapters.d3rlpy import ReplayBuffer  # noqa: E402 - needs d3rlpy

pytestmark = pytest.mark.filterwarnings("ignore")


def spec(discrete: bool) -> relive.StepSpec:
    action = relive.ArraySpec((), "int64") if discrete else relive.ArraySpec((2,), "float32")
    observation = relive.ArraySpec((3,), "float32", "state")
    return relive.StepSpec({"observation": observation, "action": action, "reward": relive.ArraySpec((), "float32")})


def episodes(discrete: bool, count: int = 12) -> list[Any]:
    """Episodes of d3rlpy: every third one is truncated."""
    random = np.random.default_rng(7)
    made = []
    for number in range(count):
        length = int(random.integers(2, 9))
        actions = random.integers(0, 4, (length, 1)) if discrete else random.standard_normal((length, 2))
        rewards = random.standard_normal((length, 1)).astype(np.float32)
        observations = random.standard_normal((length, 3)).astype(np.float32)
        actions = actions.astype(np.int64 if discrete else np.float32)
        made.append(d3rlpy.dataset.Episode(observations, actions, rewards, number % 3 != 0))
    return made


@pytest.fixture(params=[True, False], ids=["discrete", "continuous"])
def discrete(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def transitions_of(buffer: Any, count: int) -> set[tuple[Any, ...]]:
    found = set()
    for one in buffer.sample_transition_batch(count).transitions:
        parts = (one.observation, one.action, one.reward, one.next_observation, one.next_action)
        rest = (one.terminal, one.interval, np.asarray(one.rewards_to_go).tobytes())
        found.add((*(np.asarray(part).tobytes() for part in parts[: 3 if one.terminal else 5]), *rest))
    return found


def test_transitions_are_those_of_d3rlpys_own_buffer(discrete: bool) -> None:
    theirs = d3rlpy.dataset.create_infinite_replay_buffer(episodes(discrete))
    with relive.Table(spec(discrete), 1000) as table, ReplayBuffer(table) as mine:
        for one in episodes(discrete):
            mine.append_episode(one)
        assert isinstance(mine, d3rlpy.dataset.ReplayBufferBase)
        assert mine.size() == theirs.size() and mine.buffer.transition_count == theirs.transition_count
        assert mine.dataset_info.action_size == theirs.dataset_info.action_size
        assert mine.dataset_info.action_space == theirs.dataset_info.action_space
        for one, other in zip(mine.episodes, theirs.episodes, strict=True):
            count = other.transition_count
            assert one.transition_count == count and one.terminated == other.terminated
            assert (one.observations[: count + 1] == other.observations[: count + 1]).all()
            assert (one.actions[:count] == other.actions[:count]).all()
            assert (one.rewards[:count] == other.rewards[:count]).all()
        batch = mine.sample_transition_batch(600)
        assert len(batch) == 600 and batch.actions.shape == (600, 1 if discrete else 2)
        own = {tuple(row) for row in batch.observations.tolist()}
        their = {tuple(row) for row in theirs.sample_transition_batch(3000).observations.tolist()}
        assert own == their, "every transition of d3rlpy's and no other"
        ended = batch.terminals[:, 0] == 1.0
        by_state = {tuple(one.observation.tolist()): one for one in theirs.sample_transition_batch(3000).transitions}
        for number in range(0, 600, 7):
            other = by_state[tuple(batch.observations[number].tolist())]
            assert batch.rewards[number] == other.reward and batch.terminals[number] == other.terminal
            if not ended[number]:
                assert (batch.next_observations[number] == other.next_observation).all()
                assert batch.next_actions[number].tolist() in (
                    other.next_action.tolist(),
                    [0.0] * batch.actions.shape[1],
                )
            assert (batch.transitions[number].rewards_to_go[0] == other.rewards_to_go[0]).all()
        careful = ReplayBuffer(table, next_actions_only=True).sample_transition_batch(600)
        for state, action, end in zip(careful.observations, careful.next_actions, careful.terminals, strict=True):
            assert end or (action == by_state[tuple(state.tolist())].next_action).all()
        for count in (mine.sample_trajectory_batch(4, 5), theirs.sample_trajectory_batch(4, 5)):
            assert count.observations.shape == (4, 5, 3) and count.masks.shape == (4, 5)


def test_steps_one_after_another(discrete: bool) -> None:
    """As algorithms do online: append, and clip_episode at the end."""
    with relive.Table(spec(discrete), 1000) as table, ReplayBuffer(table, action_size=4) as mine:
        given = episodes(discrete)
        for one in given:
            for t in range(one.size()):
                action = int(one.actions[t, 0]) if discrete else one.actions[t]
                mine.append(one.observations[t], action, one.rewards[t])
            mine.clip_episode(one.terminated)
        mine.clip_episode(True)
        assert [one.transition_count for one in mine.episodes] == [
            one.transition_count for one in given if one.transition_count
        ]
        mine.append(given[0].observations[0], given[0].actions[0], 1.0)
        assert mine.sample_transition().observation.shape == (3,)


def test_algorithms_train_on_a_table(discrete: bool, tmp_path: Any) -> None:
    index = relive.Index(relive.Transitions(n_step=1, gamma=0.99), relive.Prioritized(0.6))
    with relive.Table(spec(discrete), 1000, index) as table, ReplayBuffer(table) as mine:
        for one in episodes(discrete):
            mine.append_episode(one)
        config = d3rlpy.algos.DiscreteCQLConfig if discrete else d3rlpy.algos.TD3PlusBCConfig
        algorithm = config(batch_size=16).create(device="cpu:0")
        told = algorithm.fit(
            mine, n_steps=4, n_steps_per_epoch=2, show_progress=False,
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        )  # fmt: skip
        assert len(told) == 2 and all(np.isfinite(value) for _, values in told for value in values.values())
        file = io.BytesIO()
        mine.dump(file)
        file.seek(0)
        with relive.Table(spec(discrete), 1000) as other:
            again = ReplayBuffer.load(file, other)
            assert [one.transition_count for one in again.episodes] == [one.transition_count for one in mine.episodes]
            again.close()


def test_bad_input() -> None:
    with relive.Table(relive.StepSpec({"x": relive.ArraySpec((), "int64")}), 100) as table:
        with pytest.raises(errors.InvalidConfig, match="observation, action and reward"):
            ReplayBuffer(table)
    with relive.Table(spec(True), 100) as table, ReplayBuffer(table, action_size=2, seed=1) as mine:
        with pytest.raises(errors.DeadlineExceeded):
            mine.table.sample(1, timeout_s=0.0)
        hides = np.ma.array(np.zeros(3, np.float32), mask=[0, 1, 0])
        mine.append(np.zeros(3, np.float32), np.array([1]), np.array([0.5]))
        for wrong in (
            (hides, np.array([1]), np.array([0.5])),
            (np.zeros(3), np.ma.array([1], mask=True), np.array([0.5])),
            (np.zeros(3), np.array([1]), np.ma.array([0.5], mask=True)),
        ):
            with pytest.raises(errors.DtypeMismatch, match="hides"):
                mine.append(*wrong)
        assert len(mine.table) == 0, "the step before is held, and is not stored twice"
        with pytest.raises(errors.InvalidConfig, match="whole"):
            mine.transition_of(5)
