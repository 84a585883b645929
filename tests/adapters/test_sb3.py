"""Stable-Baselines3's buffers on a table, compared with the library's own on the same steps."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

sb3 = pytest.importorskip("stable_baselines3", reason="stable_baselines3 is not installed here: make test-adapters")

import torch  # noqa: E402
from gymnasium import spaces  # noqa: E402
from stable_baselines3.common import buffers  # noqa: E402
from stable_baselines3.common.envs import BitFlippingEnv  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize  # noqa: E402

from relive.adapters.errors import NoEpisodeYet, NotDrawable, UnseenLoss  # noqa: E402
from relive.adapters.sb3 import (  # noqa: E402
    DictReplayBuffer,
    HerReplayBuffer,
    Prioritized,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from relive.errors import DtypeMismatch, InvalidConfig  # noqa: E402

torch.set_num_threads(1)
BOX = spaces.Box(-1e6, 1e6, (3,), np.float32)
ACTION = spaces.Box(-1.0, 1.0, (2,), np.float64)


class Steps:
    """Random steps of several environments, with ends, time limits, and resets that no `done` announces."""

    def __init__(self, num_envs: int, seed: int = 0, reset_at: tuple[int, ...] = ()) -> None:
        self._rng = np.random.default_rng(seed)
        self._num_envs = num_envs
        self._reset_at = reset_at
        self._state = self._new(num_envs)
        self._step = 0

    def _new(self, number: int) -> np.ndarray:
        return self._rng.normal(size=(number, 3)).astype(np.float32)

    def next(self) -> tuple[Any, ...]:
        """The arguments of one add()."""
        if self._step in self._reset_at:
            self._state = self._new(self._num_envs)
        self._step += 1
        following = self._new(self._num_envs)
        done = self._rng.random(self._num_envs) < 0.15
        timeout = done & (self._rng.random(self._num_envs) < 0.5)
        action = self._rng.uniform(-1, 1, (self._num_envs, 2))
        reward = self._rng.normal(size=self._num_envs).astype(np.float32)
        made = self._state, following, action, reward, done, [{"TimeLimit.truncated": bool(one)} for one in timeout]
        self._state = np.where(done[:, None], self._new(self._num_envs), following)
        return made


def filled(buffer: Any, steps: Steps, number: int) -> Any:
    for _ in range(number):
        buffer.add(*steps.next())
    return buffer


def pair(n_steps: int, num_envs: int = 2, number: int = 40) -> tuple[Any, Any]:
    theirs = buffers.NStepReplayBuffer(200, BOX, ACTION, "cpu", num_envs, n_steps=n_steps, gamma=0.9)
    ours = ReplayBuffer(200, BOX, ACTION, "cpu", num_envs, n_steps=n_steps, gamma=0.9)
    return filled(theirs, Steps(num_envs), number), filled(ours, Steps(num_envs), number)


def same(ours: Any, theirs: Any) -> None:
    for name in ("observations", "actions", "next_observations", "dones", "rewards"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine.dtype == other.dtype and mine.shape == other.shape, name
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("n_steps", [1, 3])
def test_every_transition_is_the_library_s(n_steps: int) -> None:
    theirs, ours = pair(n_steps)
    last = 40 - n_steps  # the last returns of open episodes are not complete
    for place in range(last):
        for lane in range(2):
            state = np.random.get_state()
            mine = ours.table.gather(ours._keys[[place], [lane]], ours._names())
            np.random.set_state(state)
            theirs.n_envs = 1  # the library picks an environment at random: let it pick this one
            for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
                setattr(theirs, f"_{name}", getattr(theirs, name))
                setattr(theirs, name, getattr(theirs, name)[:, [lane]])
            one = theirs._get_samples(np.array([place]))
            for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
                setattr(theirs, name, getattr(theirs, f"_{name}"))
            same(ours._samples(mine, None), one)


def test_dones_are_where_there_is_nothing_to_bootstrap_from() -> None:
    buffer = ReplayBuffer(50, BOX, ACTION, "cpu", n_steps=3, gamma=0.9)
    for step in range(12):
        end = step % 4 == 3
        info = {"TimeLimit.truncated": end and step < 6}
        state = np.full((1, 3), step, np.float32)
        buffer.add(state, state + 1, np.zeros((1, 2)), np.ones(1), np.array([end]), [info])
    samples = buffer.sample(400)
    step = samples.observations[:, 0]  # step 3 is a time limit; steps 7 and 11 terminate
    assert torch.equal(samples.dones[:, 0] == 1, ((step >= 5) & (step < 8)) | (step >= 9))
    assert samples.discounts is not None and samples.discounts[samples.dones == 0].min() >= 0.9**3 - 1e-6
    without = ReplayBuffer(50, BOX, ACTION, "cpu", handle_timeout_termination=False)
    state = np.zeros((1, 3), np.float32)
    without.add(state, state, np.zeros((1, 2)), np.ones(1), np.array([True]), [{"TimeLimit.truncated": True}])
    assert without.sample(4).dones.min() == 1


def test_a_reset_without_an_end_makes_no_false_seam() -> None:
    buffer = ReplayBuffer(100, BOX, ACTION, "cpu", 2, n_steps=3, gamma=1.0)
    for first in (0.0, 100.0):  # as two calls of learn() do
        for step in range(5):
            state = np.full((2, 3), first + step, np.float32)
            reward = np.full(2, first + 1)
            buffer.add(state, state + 1, np.zeros((2, 2)), reward, np.zeros(2), [{}, {}])
    samples = buffer.sample(500)
    assert set(samples.rewards[:, 0].tolist()) == {1.0, 2.0, 3.0, 303.0}
    jumps = (samples.next_observations - samples.observations).abs().max()
    assert jumps == 3 and samples.dones.max() == 0


def test_a_pickle_has_the_table_and_not_its_address() -> None:
    buffer = filled(ReplayBuffer(60, BOX, ACTION, "cpu", 2, n_steps=3, gamma=0.9), Steps(2), 45)
    data = pickle.dumps(buffer)
    before = [buffer.observations, buffer.next_observations, buffer.actions, buffer.rewards, buffer.dones]
    buffer.table.close()
    other = pickle.loads(data)
    assert other.full == buffer.full and other.pos == buffer.pos and other.size() == 30
    after = [other.observations, other.next_observations, other.actions, other.rewards, other.dones]
    for one, two in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, two)
    filled(other, Steps(2, seed=1), 10)
    assert other.sample(16).observations.shape == (16, 3)


def test_arrays_are_those_of_the_library() -> None:
    theirs, ours = pair(3, number=130)
    assert ours.full and ours.pos == theirs.pos
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine.shape == other.shape and mine.dtype == other.dtype
        np.testing.assert_array_equal(mine, other, err_msg=name)


@pytest.mark.parametrize("clip", [10.0, 0.3])
def test_normalised_returns_are_sums_of_normalised_rewards(clip: float) -> None:
    env = VecNormalize(DummyVecEnv([lambda: BitFlippingEnv(n_bits=3)]), clip_reward=clip, norm_obs=False)
    env.ret_rms.var = np.float64(4.0)
    buffer = ReplayBuffer(100, BOX, ACTION, "cpu", 1, n_steps=3, gamma=0.9)
    filled(buffer, Steps(1), 60)
    batch = buffer.table.sample(64, buffer._names())
    made = buffer._samples(batch, env).rewards[:, 0]
    rewards = buffer.rewards[:, 0]
    for row in range(64):
        first, number = int(batch["slot"][row]), int(batch["num_steps"][row])
        single = np.clip(rewards[first : first + number] / np.sqrt(4.0 + env.epsilon), -clip, clip)
        assert made[row] == pytest.approx(float((single * 0.9 ** np.arange(number)).sum()), rel=1e-4, abs=1e-5)


def test_frames_of_a_stack_are_stored_once() -> None:
    space = spaces.Box(0, 255, (4, 6, 6), np.uint8)
    theirs = buffers.ReplayBuffer(50, space, spaces.Discrete(3), "cpu")
    ours = ReplayBuffer(50, space, spaces.Discrete(3), "cpu", frame_stack=4)
    rng = np.random.default_rng(0)
    stack = np.zeros((1, 4, 6, 6), np.uint8)
    stack[:, -1] = rng.integers(1, 255, (6, 6))
    for step in range(40):
        following = np.concatenate([stack[:, 1:], rng.integers(1, 255, (1, 1, 6, 6), np.uint8)], axis=1)
        for buffer in (theirs, ours):
            buffer.add(stack, following, np.array([1]), np.ones(1), np.array([step % 9 == 8]), [{}])
        stack = following
        if step % 9 == 8:
            stack = np.zeros_like(stack)
            stack[:, -1] = rng.integers(1, 255, (6, 6))
    assert ours.table.spec.num_bytes < 60
    np.testing.assert_array_equal(ours.observations, theirs.observations)
    np.testing.assert_array_equal(ours.next_observations, theirs.next_observations)
    with pytest.raises(InvalidConfig, match="frame_stack"):
        ReplayBuffer(50, space, spaces.Discrete(3), "cpu", frame_stack=3)


def goal_buffer(**options: Any) -> HerReplayBuffer:
    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=3, continuous=True, max_steps=5)])
    buffer = HerReplayBuffer(200, env.observation_space, env.action_space, env, "cpu", **options)
    play(buffer, env, env.reset(), 52)
    return buffer


def play(buffer: HerReplayBuffer, env: Any, obs: Any, number: int) -> None:
    for step in range(number):
        action = np.array([env.action_space.sample()])
        following, reward, done, infos = env.step(action)
        true = {key: part.copy() for key, part in following.items()}
        if done[0]:
            true = {key: part[None] for key, part in infos[0]["terminal_observation"].items()}
        infos[0]["step"] = step
        buffer.add(obs, true, action, reward, done, infos)
        obs = following


def test_hindsight_is_given_the_environment_and_computes_rewards() -> None:
    assert issubclass(HerReplayBuffer, sb3.HerReplayBuffer)
    buffer = goal_buffer(copy_info_dict=True)
    samples = buffer.sample(300)
    achieved, goal = (samples.next_observations[name].numpy() for name in ("achieved_goal", "desired_goal"))
    expected = np.array([0.0 if (a == g).all() else -1.0 for a, g in zip(achieved, goal, strict=True)])
    np.testing.assert_array_equal(samples.rewards[:, 0].numpy(), expected)
    assert torch.equal(samples.observations["desired_goal"], samples.next_observations["desired_goal"])
    assert len(buffer._infos) == 52
    model = sb3.SAC("MultiInputPolicy", buffer.env, replay_buffer_class=HerReplayBuffer, buffer_size=100)
    assert model.replay_buffer.env is model.env and model.replay_buffer._max_length == 100
    with pytest.raises(NoEpisodeYet):
        model.replay_buffer.sample(1)


def test_an_open_episode_goes_on_after_a_load() -> None:
    buffer = goal_buffer(copy_info_dict=True)
    open_steps = int(buffer._open_steps[0])
    assert 0 < open_steps < 5
    other = pickle.loads(pickle.dumps(buffer))
    with pytest.raises(InvalidConfig, match="set_env"):
        other.sample(50)
    other.set_env(buffer.env)
    np.testing.assert_array_equal(other.observations["observation"], buffer.observations["observation"])
    before = other.table.stats().indexes["training"].num_items
    assert before == 52 - open_steps == buffer.table.stats().indexes["training"].num_items
    other.truncate_last_trajectory()
    assert other.table.stats().indexes["training"].num_items == 52
    assert other.timeouts[51, 0] == 1 and len(other._infos) == 52
    other.truncate_last_trajectory()  # nothing is open
    other.sample(20)


class Critic:
    """An algorithm that keeps what one training step computes."""

    replay_buffer: PrioritizedReplayBuffer
    _current_progress_remaining = 0.8

    def train(self, gradient_steps: int, batch_size: int) -> None:
        mse = torch.nn.functional.mse_loss
        with ThreadPoolExecutor(1) as pool:
            self.elsewhere = pool.submit(self.replay_buffer.sample, batch_size).result()
        batch = self.replay_buffer.sample(batch_size)
        self.value = torch.randn(batch_size, 1, requires_grad=True)
        self.target = batch.rewards + (1 - batch.dones) * torch.randn(batch_size, 1)
        self.loss = 0.5 * (mse(self.value, self.target) + mse(input=self.value, target=self.target))
        self.other = mse(self.value, torch.zeros(batch_size, 1))  # no target of a return


class PrioritizedCritic(Prioritized, Critic):
    """One line."""


def test_prioritized_losses_are_weighed_and_give_priorities() -> None:
    buffer = PrioritizedReplayBuffer(100, BOX, ACTION, "cpu", 2, alpha=0.7, beta=lambda left: 1.0 - left / 2)
    filled(buffer, Steps(2), 40)
    buffer.sample(32)
    buffer.note_errors(torch.arange(32.0))
    critic = PrioritizedCritic()
    critic.replay_buffer = buffer
    critic.train(1, 32)  # applies the errors of the batch before, and its own
    assert buffer.table.stats().updates_applied == 64 and buffer.progress_remaining == 0.8
    value, target = critic.value, critic.target.as_subclass(torch.Tensor)
    expected = (buffer.weights * (value - target) ** 2).mean()
    assert type(critic.loss) is torch.Tensor and torch.allclose(critic.loss, expected)
    assert torch.allclose(critic.other, (value**2).mean())
    assert buffer.weights.max() == 1 and buffer.weights.min() < 1
    keys = buffer.drawn_keys
    order = {int(key): float(error) for key, error in zip(keys, (value - target).abs()[:, 0].tolist(), strict=True)}
    best = next(iter(buffer.table.keys(order="priority")))
    ranked = [order[int(key)] for key in best if int(key) in order]
    assert ranked == sorted(ranked, reverse=True)
    critic.loss.backward()
    assert torch.allclose(value.grad, 2 * buffer.weights * (value - target) / 32)
    # In another thread, and outside a training step, a batch is as the library makes it.
    assert type(critic.elsewhere.rewards) is torch.Tensor
    assert type(buffer.sample(8).rewards) is torch.Tensor


def test_prioritized_trains_and_refuses() -> None:
    class PrioritizedDQN(Prioritized, sb3.DQN):  # type: ignore[misc, name-defined]
        """One line."""

    model = PrioritizedDQN(
        "MlpPolicy", "CartPole-v1", learning_starts=20, n_steps=2, replay_buffer_kwargs=dict(alpha=0.5), seed=1
    )
    assert model.replay_buffer.n_steps == 2 and model.replay_buffer.gamma == model.gamma
    model.learn(60)
    stats = model.replay_buffer.table.stats()
    assert stats.updates_applied == stats.indexes["training"].sampled > 0
    with pytest.raises(InvalidConfig, match="replay_buffer_class"):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer)

    class Blind(sb3.DQN):  # type: ignore[misc, name-defined]
        def train(self, gradient_steps: int, batch_size: int = 32) -> None:
            self.replay_buffer.sample(batch_size)

    class PrioritizedBlind(Prioritized, Blind):
        """As a class of another package may be."""

    model = PrioritizedBlind("MlpPolicy", "CartPole-v1", learning_starts=5)
    with pytest.raises(UnseenLoss, match="PrioritizedBlind"):
        model.learn(20)


def test_bad_input_is_refused() -> None:
    mixed = spaces.Dict({"a": BOX})
    with pytest.raises(InvalidConfig, match="DictReplayBuffer"):
        ReplayBuffer(10, mixed, ACTION)
    with pytest.raises(InvalidConfig, match="ReplayBuffer"):
        DictReplayBuffer(10, BOX, ACTION)
    with pytest.raises(InvalidConfig, match="n_steps"):
        ReplayBuffer(10, BOX, ACTION, n_steps=0)
    env = DummyVecEnv([lambda: BitFlippingEnv(n_bits=3, continuous=True)])
    with pytest.raises(InvalidConfig, match="goal_selection_strategy"):
        HerReplayBuffer(10, env.observation_space, env.action_space, env, goal_selection_strategy="past")
    buffer = ReplayBuffer(10, BOX, ACTION, "cpu", optimize_memory_usage=True)  # with timeouts: no fault here
    filled(buffer, Steps(1), 4)
    with pytest.raises(NotDrawable):
        buffer._get_samples(np.array([9]))
    buffer.reset()
    assert buffer.size() == 0 and len(buffer.table) == 0 and not buffer.observations.any()


def test_hidden_values_are_refused() -> None:
    buffer, steps = ReplayBuffer(10, BOX, ACTION, "cpu", n_envs=2), Steps(2)
    for place in range(5):
        given = list(steps.next())
        given[place] = np.ma.array(given[place], mask=np.ones_like(given[place], bool))
        with pytest.raises(DtypeMismatch, match="hides"):
            buffer.add(*given)
    assert buffer.size() == 0 == len(buffer.table)


def test_dict_observations_have_returns_of_several_steps() -> None:
    space = spaces.Dict({"a": BOX, "b": spaces.Discrete(4)})
    buffer = DictReplayBuffer(50, space, spaces.Discrete(2), "cpu", 2, n_steps=2, gamma=0.5)
    for step in range(10):
        state = {"a": np.full((2, 3), step, np.float32), "b": np.full(2, step % 4)}
        following = {"a": state["a"] + 1, "b": np.full(2, (step + 1) % 4)}
        buffer.add(state, following, np.array([0, 1]), np.ones(2), np.zeros(2), [{}, {}])
    samples = buffer.sample(64)
    assert samples.observations["b"].shape == (64, 1) and samples.rewards.unique().tolist() == [1.5]
    assert torch.equal(samples.next_observations["a"], samples.observations["a"] + 2)
