"""IQN: its loss by hand, a naive twin, distributions that it learns, acting on numpy against torch, CartPole."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="learners are written in torch")

from relive.agents.agent import Spaces  # noqa: E402
from relive.agents.config import OptimizerConfig  # noqa: E402
from relive.agents.iqn import IQN, IQNConfig, QuantileNetworkConfig, item_losses  # noqa: E402
from relive.agents.policies import MeanOfQuantiles, quantile_values  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from relive.train.acting.environments import describe  # noqa: E402
from relive.train.config import preset  # noqa: E402
from train.batches import MadeBatch, box_spaces, discrete_batch, discrete_spaces  # noqa: E402
from train.inline import learn, mean_return, one_thread  # noqa: E402
from train.twins import TwinIQN  # noqa: E402

SMALL = QuantileNetworkConfig(hidden=(16, 16), num_cosines=8)


def made(config: IQNConfig | None = None, spaces: Spaces | None = None, seed: int = 0) -> IQN:
    config = config or IQNConfig(network=SMALL, batch_size=16)
    return config.make(spaces or discrete_spaces(), seed=seed, device="cpu")


def test_the_loss_of_an_item_by_hand() -> None:
    errors = torch.tensor([[[0.5, -3.0], [2.0, 0.0]]])  # one item, two fractions, two targets
    fractions = torch.tensor([[0.25, 0.75]])
    # kappa 1: 0.25 * 0.125 and 0.75 * 2.5 are the first fraction's; 0.75 * 1.5 and 0 the second's.
    expected = (0.25 * 0.125 + 0.75 * 2.5) / 2 + (0.75 * 1.5 + 0.0) / 2
    np.testing.assert_allclose(item_losses(errors, fractions, 1.0).numpy(), [expected], rtol=1e-6)
    # kappa 2: huber 0.125, 4, 2, 0, each over 2
    expected = ((0.25 * 0.125 + 0.75 * 4.0) / 2 + (0.75 * 2.0) / 2) / 2
    np.testing.assert_allclose(item_losses(errors, fractions, 2.0).numpy(), [expected], rtol=1e-6)


PLAIN = IQNConfig(
    network=SMALL, batch_size=16, double=False, priority_exponent=0.0, target_period=7, target_rate=1.0,
    optimizer=OptimizerConfig(1e-3, 1e-3), num_quantiles=3, num_target_quantiles=5, num_greedy_quantiles=4,
)  # fmt: skip
VARIANTS = {
    "all": IQNConfig(network=SMALL, batch_size=16, num_quantiles=4, num_target_quantiles=6),
    "plain": PLAIN,
    "double alone": dataclasses.replace(PLAIN, double=True),
    "priorities alone": dataclasses.replace(PLAIN, priority_exponent=0.6),
    "the worst tenth, kappa": dataclasses.replace(PLAIN, cvar=0.1, kappa=0.3),
    "one layer, clipped": IQNConfig(
        network=QuantileNetworkConfig(hidden=(24,), num_cosines=5), batch_size=16,
        optimizer=OptimizerConfig(3e-3, 1e-3, decay_updates=30, max_gradient_norm=0.1),
    ),
}  # fmt: skip


@pytest.mark.forms(3)
@pytest.mark.parametrize("variant", list(VARIANTS))
def test_fifty_updates_agree_with_a_naive_twin(variant: str) -> None:
    agent = made(VARIANTS[variant], seed=5)
    agent.target.initialise(torch.Generator().manual_seed(6))  # so that it matters which network chooses
    twin = TwinIQN(agent.config, agent)
    for seed in range(50):
        batch = discrete_batch(seed)
        priorities, losses = agent.update(batch), twin.update(batch)
        assert (priorities is None) == (agent.config.priority_exponent == 0)
        if priorities is not None:
            np.testing.assert_allclose(priorities, losses, rtol=1e-4, atol=1e-5)
    state = agent.state_dict()
    for part, tensors in twin.tensors().items():
        for name, value in tensors.items():
            torch.testing.assert_close(state[part][name], value, rtol=1e-4, atol=1e-6, msg=f"{part} {name}")


def bandit(config: IQNConfig, num_updates: int) -> IQN:
    """One state, rewards without a next: action 0 pays uniformly in [0, 1], action 1 pays 0.4 for certain."""
    agent = made(config, discrete_spaces((1,)))
    rng = np.random.default_rng(0)
    rows = config.batch_size
    state, over = np.ones((rows, 1), np.float32), np.zeros(rows, np.float32)
    actions = np.arange(rows) % 2
    for _ in range(num_updates):
        reward = np.where(actions == 0, rng.random(rows), 0.4).astype(np.float32)
        agent.update(MadeBatch(observation=state, next_observation=state, action=actions, reward=reward, discount=over))
    return agent


@one_thread()
def test_it_learns_distributions_and_the_careful_choose_the_certain() -> None:
    """The quantile at t of U(0, 1) is t; its mean is 0.5 > 0.4, the mean of its worst quarter 0.125 < 0.4."""
    network = QuantileNetworkConfig(hidden=(32,), num_cosines=16)
    config = IQNConfig(
        network=network, batch_size=64, priority_exponent=0.0, kappa=0.02,
        optimizer=OptimizerConfig(1e-2, 1e-4, decay_updates=600, adam_epsilon=1e-5),
    )  # fmt: skip
    agent = bandit(config, 600)
    state = np.ones((1, 1), np.float32)
    fractions = np.float32([0.1, 0.3, 0.5, 0.7, 0.9])
    (returns,) = quantile_values(agent.evaluation_parameters(), state, fractions)
    np.testing.assert_allclose(returns[:, 0], fractions, atol=0.06)
    np.testing.assert_allclose(returns[:, 1], 0.4, atol=0.06)
    assert agent.policy().best(agent.parameters(), state).tolist() == [0]
    careful = made(dataclasses.replace(config, cvar=0.25), discrete_spaces((1,)))
    assert careful.policy().best(agent.parameters(), state).tolist() == [1]


@pytest.mark.parametrize(("kind", "shape"), [("mlp", (5,)), ("mlp", (2, 3)), ("conv", (4, 84, 84))])
def test_numpy_acting_agrees_with_torch(kind: str, shape: tuple[int, ...]) -> None:
    spaces = discrete_spaces(shape, 6, "uint8" if kind == "conv" else "float32")
    network = QuantileNetworkConfig(kind, (32,) if kind == "conv" else (32, 32), num_cosines=7)  # type: ignore[arg-type]
    config = IQNConfig(network=network, batch_size=3, num_greedy_quantiles=5, cvar=0.5)
    agent, batch = made(config, spaces), discrete_batch(1, 3, spaces)
    agent.load(batch)
    expected = agent._network(agent._observation, agent._greedy_fractions).detach().numpy()
    np.testing.assert_allclose(agent._greedy_fractions.numpy(), [[0.05, 0.15, 0.25, 0.35, 0.45]], rtol=1e-6)
    mine = quantile_values(agent.parameters(), batch["observation"], agent._greedy_fractions.numpy()[0])
    np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-5)
    values = MeanOfQuantiles(config.greedy_fractions)(agent.parameters(), batch["observation"])
    np.testing.assert_allclose(values, expected.mean(axis=1), rtol=1e-4, atol=1e-5)
    best = agent.policy().best(agent.parameters(), batch["observation"])
    assert best.dtype == np.int64 and best.tolist() == values.argmax(axis=1).tolist()


@one_thread()
def test_the_image_network_learns() -> None:
    spaces = discrete_spaces((2, 84, 84), 3, "uint8")
    network = QuantileNetworkConfig("conv", (16,), num_cosines=8)
    config = IQNConfig(network=network, batch_size=4, optimizer=OptimizerConfig(1e-3, 1e-3))
    agent, batch = made(config, spaces), discrete_batch(0, 4, spaces)
    losses = []
    for _ in range(20):
        agent.update(batch)
        losses.append(agent.metrics()["loss"])
    assert np.mean(losses[-5:]) < 0.5 * losses[0] and agent.prefetch == 2


@one_thread()
def test_it_learns_to_balance() -> None:
    """A random policy comes to 22; after 900 updates every seed that was tried came to more than 140."""
    settings = {
        "agent.batch_size": 32, "agent.num_quantiles": 4, "agent.num_target_quantiles": 4, "agent.gamma": 0.98,
        "agent.network.hidden": (32, 32), "agent.network.num_cosines": 16, "agent.epsilon_steps": 1_500,
        "agent.target_rate": 0.02,
    }  # fmt: skip
    agent = made(preset("iqn", "CartPole-v1", settings).agent, describe("CartPole-v1"))  # type: ignore[arg-type]
    learn(agent, "CartPole-v1", 900)
    assert mean_return(agent, "CartPole-v1") > 80.0


def test_updates_repeat_and_resume_exactly() -> None:
    one, other = made(seed=3), made(seed=3)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for seed in range(5):
        np.testing.assert_array_equal(one.update(discrete_batch(seed)), other.update(discrete_batch(seed)))
    assert torch.equal(torch.get_rng_state(), before), "nothing of it comes from the global generator"
    resumed = made(seed=99)
    resumed.load_state_dict(one.state_dict())
    for seed in range(5, 8):
        np.testing.assert_array_equal(one.update(discrete_batch(seed)), resumed.update(discrete_batch(seed)))
    for name, value in one.evaluation_parameters().items():
        np.testing.assert_array_equal(value, resumed.evaluation_parameters()[name])


def test_what_it_cannot_take_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="iqn"):
        made(spaces=box_spaces())
    with pytest.raises(InvalidConfig, match="84"):
        made(IQNConfig(network=QuantileNetworkConfig("conv", (16,))), discrete_spaces((4, 80, 80), dtype="uint8"))
    wrong: list[dict[str, Any]] = [
        {"num_quantiles": 0}, {"num_target_quantiles": 2000}, {"num_greedy_quantiles": 0}, {"kappa": 0.0},
        {"kappa": float("inf")}, {"cvar": 0.0}, {"cvar": 1.5}, {"cvar": float("nan")}, {"epsilon_steps": 0},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(InvalidConfig):
            dataclasses.replace(IQNConfig(), **options)
    for number in (0, 5000):
        with pytest.raises(InvalidConfig):
            QuantileNetworkConfig(num_cosines=number)
