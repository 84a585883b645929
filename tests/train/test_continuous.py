"""DDPG, TD3 and SAC: naive twins, actions within their Box, acting on numpy against torch, states, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="learners are written in torch")

from relive.agents.agent import Spaces  # noqa: E402
from relive.agents.batches import has_other_generators  # noqa: E402
from relive.agents.boxes import ActionBox  # noqa: E402
from relive.agents.config import OptimizerConfig  # noqa: E402
from relive.agents.ddpg import DDPGConfig  # noqa: E402
from relive.agents.sac import SACConfig  # noqa: E402
from relive.agents.td3 import TD3Config  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from train.batches import MadeBatch, box_spaces, continuous_batch, discrete_spaces  # noqa: E402
from train.twins import TwinDDPG, TwinSAC, TwinTD3  # noqa: E402

ROWS = 32
SLOW = OptimizerConfig(3e-4, 3e-4)
VARIANTS: dict[str, tuple[Any, Any]] = {
    "ddpg": (DDPGConfig(batch_size=ROWS, hidden=(24, 16)), TwinDDPG),
    "ddpg, priorities": (DDPGConfig(batch_size=ROWS, hidden=(24,), priority_exponent=0.6), TwinDDPG),
    "td3": (TD3Config(batch_size=ROWS, hidden=(24, 16)), TwinTD3),
    "td3, every update": (TD3Config(batch_size=ROWS, hidden=(16,), policy_delay=1, priority_exponent=1.0), TwinTD3),
    "sac": (SACConfig(batch_size=ROWS, hidden=(24, 16)), TwinSAC),
    "sac, fixed": (SACConfig(batch_size=ROWS, hidden=(24,), alpha=0.2, priority_exponent=0.5), TwinSAC),
    "sac, warm": (
        SACConfig(batch_size=ROWS, hidden=(16,), initial_alpha=5.0, target_entropy=0.5, alpha_learning_rate=1e-2),
        TwinSAC,
    ),
}
FALLING = OptimizerConfig(3e-3, 1e-4, decay_updates=30, adam_epsilon=1e-3, max_gradient_norm=0.1)
for _kind, _twin in ((DDPGConfig, TwinDDPG), (TD3Config, TwinTD3), (SACConfig, TwinSAC)):
    VARIANTS[f"{_kind.name}, clipped, falling rates"] = (
        _kind(batch_size=ROWS, hidden=(24,), actor=FALLING, critic=FALLING), _twin,
    )  # fmt: skip
KINDS = [DDPGConfig, TD3Config, SACConfig]


def made(config: Any, spaces: Spaces | None = None, seed: int = 0) -> Any:
    return config.make(spaces or box_spaces(), seed=seed, device="cpu")


@pytest.mark.forms(5)
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_fifty_updates_agree_with_a_naive_twin(variant: str) -> None:
    config, twin_of = VARIANTS[variant]
    spaces = box_spaces(low=[-2.0, 0.0], high=[2.0, 5.0])
    agent = made(config, spaces, seed=3)
    twin = twin_of(config, agent)
    for seed in range(50):
        batch = continuous_batch(seed, ROWS, spaces)
        priorities, errors = agent.update(batch), twin.update(batch)
        assert (priorities is None) == (config.priority_exponent == 0)
        if priorities is not None:
            np.testing.assert_allclose(priorities, errors, rtol=1e-4, atol=1e-5)
    state = agent.state_dict()
    for part, tensors in twin.tensors().items():
        for name, value in tensors.items():
            torch.testing.assert_close(state[part][name], value, rtol=1e-4, atol=1e-6, msg=f"{part} {name}")
    if isinstance(twin, TwinSAC) and config.alpha is None:
        assert agent.metrics()["alpha"] == pytest.approx(twin.log_alpha.detach().exp().item(), rel=1e-4)
        assert agent.metrics()["alpha"] != config.initial_alpha


@pytest.mark.parametrize("mean", [0.0, 40.0])
def test_where_log_std_is_clipped_it_has_no_gradient(mean: float) -> None:
    """tanh saturated and a log std far outside: nothing overflows, and what is clipped stays."""
    agent = made(SACConfig(batch_size=ROWS, hidden=(16,)))
    agent.actor.value["actor.1.bias"].copy_(torch.tensor([mean, mean, 30.0, -70.0]))
    batch = continuous_batch(0, ROWS)
    before = agent.parameters()
    for _ in range(3):
        agent.update(batch)
    after = agent.parameters()
    assert all(np.isfinite(value).all() for value in after.values())
    np.testing.assert_array_equal(before["actor.1.bias"][2:], after["actor.1.bias"][2:])
    np.testing.assert_array_equal(before["actor.1.weight"][2:], after["actor.1.weight"][2:])


@pytest.mark.parametrize("kind", KINDS)
def test_the_target_uses_the_discount_alone(kind: Any) -> None:
    """Discount 0 (terminated): the state after it says nothing. A cut episode has a discount, and it does."""
    config = kind(batch_size=ROWS, hidden=(16,), critic=SLOW, actor=SLOW)
    columns = dict(continuous_batch(0, ROWS).columns)
    changed: list[bool] = []
    for discount in (0.0, 0.99):
        values = []
        for following in (columns["next_observation"], columns["next_observation"] + 3.0):
            agent = made(config)
            agent.update(
                MadeBatch(**{**columns, "discount": np.full(ROWS, discount, np.float32), "next_observation": following})
            )
            values.append(agent.state_dict()["critics"]["q0.0.weight"])
        changed.append(not torch.equal(*values))
    assert changed == [False, True]


@pytest.mark.forms(1)
@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_where_the_best_action_is(kind: Any) -> None:
    """A bandit: reward -(a - 1.2)^2, whatever the state. The best action moves there."""
    spaces = box_spaces(1, num_actions=1)
    slow, fast = OptimizerConfig(5e-4, 5e-4), OptimizerConfig(3e-3, 3e-3)
    options = {"alpha": 0.01} if kind is SACConfig else {}
    agent = made(kind(batch_size=64, hidden=(32, 32), actor=slow, critic=fast, **options), spaces)
    rng = np.random.default_rng(0)
    zeros = np.zeros((64, 1), np.float32)
    for _ in range(800):
        action = rng.uniform(-2, 2, (64, 1)).astype(np.float32)
        agent.update(
            MadeBatch(observation=zeros, next_observation=zeros, action=action, reward=-((action[:, 0] - 1.2) ** 2),
                      discount=np.zeros(64, np.float32))
        )  # fmt: skip
    best = agent.policy().best(agent.evaluation_parameters(), zeros[:1])
    assert best[0, 0] == pytest.approx(1.2, abs=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_acting_on_numpy_agrees_with_torch_and_keeps_to_the_box(kind: Any) -> None:
    spaces = box_spaces(low=[-1.0, 3.0], high=[7.0, 3.5])
    options = {} if kind is SACConfig else {"noise": 3.0}
    agent = made(kind(batch_size=ROWS, hidden=(16, 16), random_steps=10, **options), spaces)
    batch, policy, parameters = continuous_batch(0, ROWS, spaces), agent.policy(), agent.parameters()
    agent.batch.load(batch)
    network = agent._network if kind is SACConfig else agent.mu.network
    unit = np.tanh(network.forward(agent.batch.state)[:, :2].numpy())
    best = policy.best(parameters, batch["observation"])
    np.testing.assert_allclose(best, np.float32([3.0, 3.25]) + np.float32([4.0, 0.25]) * unit, rtol=1e-4, atol=1e-4)
    rng = np.random.default_rng(0)
    for num_steps in (0, 10):
        actions = np.concatenate([policy.explore(parameters, batch["observation"], num_steps, rng) for _ in range(50)])
        assert actions.dtype == np.float32 and all(spaces.action.contains(action) for action in actions)
        assert actions[:, 0].max() > 5.0 and actions[:, 0].min() < 1.0 and np.ptp(actions[:, 1]) > 0.3


def test_rounding_never_leaves_the_box() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        low = rng.normal(size=3).astype(np.float32) * 10.0 ** rng.integers(-3, 4)
        high = low + rng.random(3).astype(np.float32) + 1e-3
        if not (low < high).all():
            continue
        spaces = box_spaces(low=low, high=high, num_actions=3)
        box = ActionBox.of(spaces, "test")
        for unit in (1.0, -1.0, 9.0):
            assert spaces.action.contains(box.actions(np.full((1, 3), unit, np.float32))[0]), (low, high)


def test_actions_of_other_shapes_and_dtypes() -> None:
    space = gymnasium.spaces.Box(-1.0, 1.0, (2, 3), np.float64)
    spaces = Spaces("X-v0", gymnasium.spaces.Box(0, 255, (4,), np.uint8), space)
    agent = made(SACConfig(batch_size=ROWS, hidden=(8,)), spaces)
    rng = np.random.default_rng(0)
    states = rng.integers(0, 255, (ROWS, 4)).astype(np.uint8)
    actions = agent.policy().explore(agent.parameters(), states, 10**9, rng)
    assert actions.shape == (ROWS, 2, 3) and actions.dtype == np.float64
    ones = np.ones(ROWS, np.float32)
    agent.update(MadeBatch(observation=states, next_observation=states, action=actions, reward=ones, discount=ones))
    assert agent.spec().columns["action"].shape == (2, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_updates_repeat_and_resume_exactly(kind: Any) -> None:
    config = kind(batch_size=ROWS, hidden=(16,), priority_exponent=0.6)
    one, other = made(config, seed=3), made(config, seed=3)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for seed in range(5):
        np.testing.assert_array_equal(one.update(continuous_batch(seed)), other.update(continuous_batch(seed)))
        torch.manual_seed(seed)  # nothing of it comes from the global generator
    resumed = made(config, seed=99)
    resumed.load_state_dict(one.state_dict())
    assert resumed.num_updates == 5 and other.num_updates == 5
    for seed in range(5, 9):
        np.testing.assert_array_equal(one.update(continuous_batch(seed)), resumed.update(continuous_batch(seed)))
    torch.manual_seed(1)
    one.update(continuous_batch(9))
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in one.parameters().items():
        assert value.dtype == np.float32 and name.startswith("actor.")


@pytest.mark.parametrize("kind", [TD3Config, SACConfig])
def test_a_state_of_another_kind_of_device_leaves_the_generator_as_its_seed_made_it(kind: Any) -> None:
    """A generator of CUDA has a state of 16 bytes, one of the CPU 5,056."""
    config = kind(batch_size=ROWS, hidden=(16,))
    one, resumed, fresh = made(config, seed=3), made(config, seed=99), made(config, seed=99)
    for seed in range(3):
        one.update(continuous_batch(seed))
    state = {**one.state_dict(), "generator": torch.zeros(16, dtype=torch.uint8)}
    assert has_other_generators(resumed, state) and not has_other_generators(resumed, one.state_dict())
    resumed.load_state_dict(state)
    assert resumed.num_updates == 3 and torch.equal(resumed.critics.online.values, one.critics.online.values)
    assert torch.equal(resumed.state_dict()["generator"], fresh.state_dict()["generator"])
    for wrong in ("no tensor", torch.zeros(16), torch.zeros(5056, dtype=torch.uint8)):
        with pytest.raises(InvalidConfig):
            resumed.load_state_dict({**state, "generator": wrong})


@pytest.mark.parametrize("kind", KINDS)
def test_spaces_that_it_cannot_take_are_refused(kind: Any) -> None:
    observation = gymnasium.spaces.Box(-1, 1, (3,))
    for spaces in (
        discrete_spaces(),
        Spaces("X-v0", observation, gymnasium.spaces.MultiDiscrete([2, 3])),
        Spaces("X-v0", observation, gymnasium.spaces.Box(-np.inf, np.inf, (2,))),
        Spaces("X-v0", observation, gymnasium.spaces.Box(0, 5, (2,), np.int64)),
        Spaces("X-v0", observation, gymnasium.spaces.Box(np.float32([0, 1]), np.float32([1, 1]))),
        Spaces("X-v0", observation, gymnasium.spaces.Box(-1, 1, (0,))),
        Spaces("X-v0", gymnasium.spaces.Discrete(3), gymnasium.spaces.Box(-1, 1, (2,))),
    ):
        with pytest.raises(InvalidConfig) as caught:
            made(kind(batch_size=ROWS), spaces)
        assert kind.name in str(caught.value) and spaces.env_id in str(caught.value)
    agent = made(kind(batch_size=ROWS, hidden=(8,)))
    with pytest.raises(InvalidConfig):
        agent.update(continuous_batch(0, ROWS - 1))
    assert agent.metrics() == {} and agent.num_updates == 0


def test_configurations_check_themselves() -> None:
    for config, wrong in (
        (DDPGConfig(), {"noise": -1.0}), (DDPGConfig(), {"hidden": ()}), (DDPGConfig(), {"random_steps": -1}),
        (TD3Config(), {"policy_delay": 0}), (TD3Config(), {"target_noise": -0.1}),
        (TD3Config(), {"target_noise_clip": float("nan")}), (SACConfig(), {"alpha": -1.0}),
        (SACConfig(), {"initial_alpha": 0.0}), (SACConfig(), {"alpha_learning_rate": 0.0}),
        (SACConfig(), {"target_rate": 2.0}),
    ):  # fmt: skip
        with pytest.raises(InvalidConfig):
            dataclasses.replace(config, **wrong)  # type: ignore[type-var]


@pytest.mark.parametrize("kind", KINDS)
def test_low_precision_is_near_and_repeats(kind: Any) -> None:
    """Ten updates in bfloat16 stay near those in float32, and are the same bits each time."""
    states = []
    for precision in ("float32", "bfloat16", "bfloat16"):
        agent = made(kind(batch_size=ROWS, hidden=(64, 64), precision=precision))
        for seed in range(10):
            agent.update(continuous_batch(seed, ROWS))
        states.append(agent.critics.online.values.clone())
    exact, low, again = states
    assert torch.equal(low, again) and not torch.equal(low, exact)
    assert float((low - exact).norm()) < 0.05 * float(exact.norm())


def test_a_precision_that_there_is_not_is_refused() -> None:
    for kind in KINDS:
        with pytest.raises(InvalidConfig, match="bfloat16"):
            kind(precision="float16")
