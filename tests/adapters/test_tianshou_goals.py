"""Tianshou's hindsight buffers on a table, compared with the library's own on the same steps and random numbers."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou", reason="tianshou is not installed here: make test-adapters")

from tianshou import data as library  # noqa: E402
from tianshou.algorithm.algorithm_base import Algorithm  # noqa: E402
from tianshou.data import Batch  # noqa: E402

from relive.adapters.tianshou import HERReplayBuffer, HERVectorReplayBuffer  # noqa: E402
from relive.errors import InvalidConfig, ShapeMismatch, UnknownArgument  # noqa: E402

OPTIONS: dict[str, Any] = {"horizon": 12, "future_k": 4.0}
NUM_ENVS = 3


def reward(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    """Half of the distance, in numbers that float32 has."""
    return -np.abs(achieved - desired).sum(axis=-1) / 2


class Goals:
    """Steps of several environments: episodes of 3 to 10 steps. achieved_goal tells the episode and the step."""

    def __init__(self, num_envs: int = NUM_ENVS) -> None:
        self._rng = np.random.default_rng(0)
        self._episode = np.arange(num_envs)
        self._step = np.zeros(num_envs, np.int64)
        self._length = self._rng.integers(3, 11, num_envs)

    def _state(self, ids: np.ndarray, step: np.ndarray) -> Batch:
        episode = self._episode[ids]
        achieved = np.stack([episode, step], axis=1).astype(np.float32)
        desired = np.stack([episode, np.full(len(ids), 500)], axis=1).astype(np.float32)
        return Batch(observation=achieved * 2, achieved_goal=achieved, desired_goal=desired)

    def next(self, ids: np.ndarray) -> Batch:
        obs, following = self._state(ids, self._step[ids]), self._state(ids, self._step[ids] + 1)
        self._step[ids] += 1
        end = self._step[ids] == self._length[ids]
        cut = end & (self._rng.random(len(ids)) < 0.5)
        made = Batch(
            obs=obs,
            obs_next=following,
            act=self._rng.integers(0, 3, len(ids)),
            rew=reward(following.achieved_goal, following.desired_goal),
            terminated=end & ~cut,
            truncated=cut,
            info=Batch(step=self._step[ids]),
        )
        over = ids[end]
        self._episode[over] += 100
        self._step[over] = 0
        self._length[over] = self._rng.integers(3, 11, len(over))
        return made

    def fill(self, buffers: list[Any], number: int) -> None:
        """Adds steps; some environments pause."""
        for _ in range(number):
            ids = np.flatnonzero(self._rng.random(len(self._step)) < 0.8)
            if len(ids):
                batch = self.next(ids)
                told = [buffer.add(batch, buffer_ids=ids) for buffer in buffers]
                for one, two in zip(told[0], told[-1], strict=True):
                    np.testing.assert_array_equal(one, two)


def pair(number: int, size: int = 120, **options: Any) -> tuple[Any, Any]:
    made = {**OPTIONS, **options}
    theirs = library.HERVectorReplayBuffer(size, NUM_ENVS, compute_reward_fn=reward, **made)
    ours = HERVectorReplayBuffer(size, NUM_ENVS, compute_reward_fn=reward, **made)
    Goals().fill([theirs, ours], number)
    return ours, theirs


def same(one: Any, two: Any) -> None:
    for name in ("act", "rew", "terminated", "truncated", "done"):
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    for name in ("obs", "obs_next"):
        for part in ("observation", "achieved_goal", "desired_goal"):
            np.testing.assert_array_equal(one[name][part], two[name][part], err_msg=f"{name}.{part}")


def rewrite(theirs: Any, indices: np.ndarray, seed: int) -> None:
    """The library's goals for these steps: each environment rewrites its own, one after another."""
    np.random.seed(seed)
    for offset, buffer in zip(theirs._offset, theirs.buffers, strict=True):
        buffer._restore_cache()
        mine = indices[(indices >= offset) & (indices < offset + buffer.maxsize)] - offset
        buffer.rewrite_transitions(mine.copy())


@pytest.mark.parametrize("number", [20, 200])
def test_goals_and_rewards_are_the_library_s_for_the_same_random_numbers(number: int) -> None:
    ours, theirs = pair(number)
    rng = np.random.default_rng(number)
    everything = theirs.sample_indices(0)
    changed = 0
    for seed in range(20):
        indices = rng.choice(everything, 40)
        rewrite(theirs, indices, seed)
        ours._goal_draws = np.random.RandomState(seed)
        ours.rewrite_transitions(indices)
        same(ours[indices], theirs[indices])
        same(ours[everything], theirs[everything])  # also the steps that an algorithm reads after the drawn ones
        np.testing.assert_array_equal(ours.rew, theirs.rew)
        changed += len(ours._replaced)
    assert changed > 0
    ours._restore_cache()
    theirs._restore_cache()
    same(ours[everything], theirs[everything])


def test_goals_and_rewards_fit_where_an_episode_is_longer_than_the_horizon() -> None:
    fits = []
    for buffer in pair(200, horizon=4):
        batches = [buffer.sample(64)[0] for _ in range(20)]
        fits.append(all((one.rew == reward(one.obs_next.achieved_goal, one.obs.desired_goal)).all() for one in batches))
    assert fits == [True, False]  # in the library the paths of an episode overwrite each other in two orders


@pytest.mark.parametrize("horizon", [12, 4])
def test_a_drawn_batch_has_goals_that_were_reached_later_in_the_same_episode(horizon: int) -> None:
    ours, _ = pair(200, horizon=horizon)
    shares = []
    for _ in range(100):
        batch, indices = ours.sample(64)
        goal, reached = batch.obs.desired_goal, batch.obs_next.achieved_goal
        np.testing.assert_array_equal(goal, batch.obs_next.desired_goal)
        np.testing.assert_array_equal(batch.rew, reward(reached, goal))
        is_new = goal[:, 1] < 500
        np.testing.assert_array_equal(goal[:, 0], reached[:, 0])  # the same episode
        later = goal[is_new, 1] - reached[is_new, 1]
        assert (later >= 0).all() and later.max() < horizon  # reached by this step or a later one
        assert set(goal[is_new, 1]) <= set(range(1, 11))
        same(batch, ours[indices])
        shares.append(is_new.mean())
    assert 0.55 < np.mean(shares) <= 0.75  # 1 - 1 / k of the episodes, rounded down in each environment


def test_the_share_of_new_goals_is_the_library_s() -> None:
    ours, theirs = pair(200)
    np.random.seed(0)
    found = []
    for buffer in (ours, theirs):
        shares = []
        for _ in range(400):
            batch = buffer.sample(64)[0]
            shares.append((batch.obs.desired_goal[:, 1] < 500).mean())
        found.append((np.mean(shares), np.std(shares) / np.sqrt(400)))
    (mine, error), (other, other_error) = found
    assert abs(mine - other) < 5 * np.hypot(error, other_error), found


def test_a_step_without_a_later_one_has_the_goal_that_it_reached_itself() -> None:
    ours, theirs = pair(200, future_k=1e9)
    for buffer in (*ours.buffers, *theirs.buffers):
        buffer.future_p = 1.0
    ends = np.flatnonzero(theirs.done)
    for seed in range(3):
        rewrite(theirs, ends, seed)
        ours._goal_draws = np.random.RandomState(seed)
        ours.rewrite_transitions(ends)
        same(ours[ends], theirs[ends])
        batch = ours[ends]
        np.testing.assert_array_equal(batch.obs.desired_goal, batch.obs_next.achieved_goal)
        assert not batch.rew.any()


def test_a_return_of_several_steps_has_one_goal() -> None:
    ours, _ = pair(200)
    batch, indices = ours.sample(256)
    later = indices
    for _ in range(3):
        later = ours.next(later)
        np.testing.assert_array_equal(ours[later].obs.desired_goal, batch.obs.desired_goal)
        np.testing.assert_array_equal(
            ours.rew[later], reward(ours[later].obs_next.achieved_goal, batch.obs.desired_goal)
        )

    def no_value(buffer: Any, places: np.ndarray) -> Any:
        seen.append(buffer[places].obs_next.desired_goal)
        return torch.zeros(len(places), 1)

    torch = pytest.importorskip("torch")
    seen: list[Any] = []
    made = Algorithm.compute_nstep_return(batch, ours, indices, no_value, gamma=0.5, n_step=3)
    np.testing.assert_array_equal(seen[0], batch.obs.desired_goal)
    steps = [indices, ours.next(indices), ours.next(ours.next(indices))]
    expected, alive = np.zeros(len(indices)), np.ones(len(indices), bool)
    stops = ours.done.copy()
    stops[ours.unfinished_index()] = True
    for number, places in enumerate(steps):
        expected += alive * 0.5**number * ours.rew[places]
        alive &= ~stops[places]
    np.testing.assert_allclose(made.returns[:, 0].numpy(), expected, rtol=1e-6)


def test_the_stored_goals_come_back() -> None:
    ours, _ = pair(30)
    stored = ours.table.gather(ours._keys[ours._keys >= 0], ["observation/desired_goal", "reward"])
    before = ours.rew.copy()
    everything = ours.sample_indices(0)
    goals = ours[everything].obs.desired_goal
    assert (goals[:, 1] < 500).any() and (ours.rew != before).any()
    Goals().fill([ours], 1)  # add
    np.testing.assert_array_equal(ours.rew[everything], before[everything])
    assert (ours[everything].obs.desired_goal[:, 1] == 500).all()
    assert (stored["observation/desired_goal"][:, 1] == 500).all()
    np.testing.assert_array_equal(ours.table.gather(ours._keys[everything], ["reward"])["reward"], ours.rew[everything])
    ours.sample(32)
    ours.reset()
    assert len(ours) == 0 and not (ours._goal_of >= 0).any()


def test_without_stored_next_observations_rewards_are_of_the_new_goals() -> None:
    ours, theirs = pair(100, ignore_obs_next=True)
    batch, indices = theirs.sample(200)
    reached = theirs[theirs.next(indices)].obs.achieved_goal
    assert (batch.rew != reward(reached, batch.obs.desired_goal)).any()  # the library's are of the old goals
    batch, indices = ours.sample(200)
    goal = batch.obs.desired_goal
    reached = ours.table.gather(ours._keys[indices], ["next_observation/achieved_goal"])
    np.testing.assert_array_equal(batch.rew, reward(reached["next_observation/achieved_goal"], goal))
    assert (goal[:, 1] < 500).any()
    np.testing.assert_array_equal(goal, batch.obs_next.desired_goal)


@pytest.mark.parametrize("way", ["hdf5", "pickle"])
def test_files_have_the_stored_goals(way: str, tmp_path: Path) -> None:
    ours, _ = pair(60)
    everything = ours.sample_indices(0)
    ours._restore_cache()
    before = ours[everything]
    ours.sample(32)
    if way == "hdf5":
        path = str(tmp_path / "buffer.hdf5")
        ours.save_hdf5(path)
        other = HERVectorReplayBuffer.load_hdf5(path)
    else:
        other = pickle.loads(pickle.dumps(ours))
    same(other[everything], before)
    batch, indices = other.sample(64)
    same(batch, other[indices])
    assert (batch.obs.desired_goal[:, 1] < 500).any()
    np.testing.assert_array_equal(batch.rew, reward(batch.obs_next.achieved_goal, batch.obs.desired_goal))
    Goals().fill([other], 20)
    other.sample(16)


def test_one_environment_takes_steps_without_a_leading_axis() -> None:
    theirs = library.HERReplayBuffer(40, reward, **OPTIONS)
    ours = HERReplayBuffer(40, reward, **OPTIONS)
    steps = Goals(1)
    for number in range(60):
        batch = steps.next(np.arange(1))
        if number % 2:
            told = [buffer.add(batch, buffer_ids=[0]) for buffer in (theirs, ours)]
        else:
            told = [buffer.add(batch[0]) for buffer in (theirs, ours)]
        for one, two in zip(*told, strict=True):
            np.testing.assert_array_equal(one, two)
    ours.future_p = theirs.future_p = 1.0
    everything = theirs.sample_indices(0)
    theirs._restore_cache()
    for seed in range(5):
        np.random.seed(seed)
        theirs._restore_cache()
        theirs.rewrite_transitions(everything.copy())
        ours._goal_draws = np.random.RandomState(seed)
        ours.rewrite_transitions(everything)
        same(ours[everything], theirs[everything])
    assert isinstance(HERVectorReplayBuffer(60, 3, reward, 10), library.HERVectorReplayBuffer)
    assert isinstance(ours, library.ReplayBufferManager) and len(ours) == len(theirs) == 40


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="compute_reward_fn"):
        HERVectorReplayBuffer(60, 3, compute_reward_fn=None, horizon=10)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="horizon"):
        HERVectorReplayBuffer(60, 3, reward, 0)
    with pytest.raises(InvalidConfig, match="future_k"):
        HERVectorReplayBuffer(60, 3, reward, 10, 0.5)
    with pytest.raises(InvalidConfig, match="stack_num"):
        HERVectorReplayBuffer(60, 3, reward, 10, stack_num=4)
    with pytest.raises(UnknownArgument, match="future"):
        HERVectorReplayBuffer(60, 3, reward, 10, future=4)
    buffer = HERVectorReplayBuffer(60, 3, reward, 10)
    state = np.zeros((3, 2), np.float32)
    step = dict(act=np.zeros(3), rew=np.zeros(3), terminated=np.zeros(3, bool), truncated=np.zeros(3, bool))
    with pytest.raises(InvalidConfig, match="achieved_goal"):
        buffer.add(Batch(obs=state, obs_next=state, **step))
    buffer = HERVectorReplayBuffer(60, 3, reward, 10)
    uneven = Batch(achieved_goal=state, desired_goal=state[:, :1])
    with pytest.raises(InvalidConfig, match="one shape"):
        buffer.add(Batch(obs=uneven, obs_next=uneven, **step))


def test_a_reward_function_that_fails_changes_nothing() -> None:
    ours, _ = pair(60)
    before = ours.rew.copy()
    ours.compute_reward_fn = lambda achieved, desired: np.zeros((len(achieved), 2))
    with pytest.raises(ShapeMismatch, match="compute_reward_fn"):
        ours.sample(32)
    np.testing.assert_array_equal(ours.rew, before)
    assert not (ours._goal_of >= 0).any()
