"""DQN: its formulas by hand, numpy acting against torch, a naive twin, updates that repeat, spaces it refuses."""

from __future__ import annotations

import dataclasses

import gymnasium
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="learners are written in torch")

from relive.agents.agent import Spaces  # noqa: E402
from relive.agents.config import OptimizerConfig  # noqa: E402
from relive.agents.dqn import DQN, DQNConfig, QNetworkConfig, action_values, outputs_gradient  # noqa: E402
from relive.agents.policies import q_values  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from train.batches import MadeBatch, box_spaces, discrete_batch, discrete_spaces  # noqa: E402
from train.twins import TwinDQN  # noqa: E402

SMALL = QNetworkConfig(hidden=(16, 16))


def made(config: DQNConfig | None = None, spaces: Spaces | None = None, seed: int = 0) -> DQN:
    config = config or DQNConfig(network=SMALL, batch_size=16)
    return config.make(spaces or discrete_spaces(), seed=seed, device="cpu")


def lookup(double: bool, weights: list[float]) -> tuple[DQN, MadeBatch]:
    """States are numbers 0, 1, 2, one-hot; Q is a table, by a network of one hidden layer that hands them through."""
    network = QNetworkConfig(hidden=(3,), dueling=False)
    config = DQNConfig(network=network, batch_size=3, double=double, optimizer=OptimizerConfig(1e-9, 1e-9))
    agent = made(config, discrete_spaces((3,), 2))
    for parameters, table in (
        (agent.online, [[1.0, 2.0], [5.0, 4.0], [0.0, 3.0]]),
        (agent.target, [[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]]),
    ):
        parameters.value["q.0.weight"].copy_(torch.eye(3))
        parameters.value["q.0.bias"].zero_()
        parameters.value["q.1.weight"].copy_(torch.tensor(table).t())
        parameters.value["q.1.bias"].zero_()
    batch = MadeBatch(
        np.asarray(weights), observation=np.eye(3, dtype=np.float32), action=np.array([1, 0, 1]),
        reward=np.float32([1.0, -1.0, 0.5]), discount=np.float32([0.9, 0.5, 0.0]),
        next_observation=np.eye(3, dtype=np.float32)[[1, 2, 0]],
    )  # fmt: skip
    return agent, batch


@pytest.mark.parametrize("double", [True, False])
def test_errors_and_the_gradient_by_hand(double: bool) -> None:
    weights = [1.0, 0.5, 0.25]
    agent, batch = lookup(double, weights)
    priorities = agent.update(batch)
    # Double: online chooses action 0 in state 1, 1 in state 2; the target network values them 30, 60. Else 40, 60.
    errors = np.array([1.0 + 0.9 * (30.0 if double else 40.0) - 2.0, -1.0 + 0.5 * 60.0 - 5.0, 0.5 + 0.0 - 3.0])
    assert priorities is not None and priorities.dtype == np.float64
    np.testing.assert_allclose(priorities, np.abs(errors), rtol=1e-5)
    expected = np.zeros((2, 3))
    for row, (action, weight) in enumerate(zip([1, 0, 1], weights, strict=True)):
        expected[action, row] = -weight * np.clip(errors[row], -1, 1) / 3
    np.testing.assert_allclose(agent.online.gradient["q.1.weight"].numpy(), expected, rtol=1e-5)
    huber = np.abs(errors) - 0.5
    assert agent.metrics()["loss"] == pytest.approx(float(np.mean(weights * huber)), rel=1e-5)


def test_the_dueling_head_by_hand() -> None:
    outputs = torch.tensor([[7.0, 3.0, 9.0]])  # value 7; advantages 3 and 9, mean 6
    np.testing.assert_allclose(action_values(outputs, dueling=True).numpy(), [[4.0, 10.0]])
    assert action_values(outputs, dueling=False) is outputs
    parameters = {"q.0.weight": np.zeros((3, 1), np.float32), "q.0.bias": np.float32([7.0, 3.0, 9.0])}
    np.testing.assert_allclose(q_values(parameters, np.zeros((1, 1)), dueling=True), [[4.0, 10.0]])


@pytest.mark.parametrize("dueling", [True, False])
def test_the_outputs_gradient_is_autograds(dueling: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(5, 3 + dueling, generator=generator, requires_grad=True)
    actions = torch.randint(0, 3, (5, 1), generator=generator)
    chosen = torch.randn(5, 1, generator=generator)
    action_values(outputs, dueling=dueling).gather(1, actions).backward(chosen)
    out = torch.full((5, 3 + dueling), 9.0)
    outputs_gradient(chosen, actions, 3, dueling=dueling, out=out)
    torch.testing.assert_close(out, outputs.grad)


PLAIN = DQNConfig(
    network=QNetworkConfig(hidden=(16, 16), dueling=False), batch_size=16, double=False, priority_exponent=0.0,
    target_period=7, target_rate=1.0, optimizer=OptimizerConfig(1e-3, 1e-3),
)  # fmt: skip
VARIANTS = {
    "all": DQNConfig(network=SMALL, batch_size=16),
    "plain": PLAIN,
    "double alone": dataclasses.replace(PLAIN, double=True),
    "dueling alone": dataclasses.replace(PLAIN, network=SMALL),
    "priorities alone": dataclasses.replace(PLAIN, priority_exponent=0.6),
    "clipped": DQNConfig(
        network=QNetworkConfig(hidden=(24,), dueling=True), batch_size=16, double=False,
        optimizer=OptimizerConfig(3e-3, 1e-3, decay_updates=30, max_gradient_norm=0.1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_fifty_updates_agree_with_a_naive_twin(variant: str) -> None:
    agent = made(VARIANTS[variant], seed=5)
    agent.target.initialise(torch.Generator().manual_seed(6))  # so that it matters which network chooses
    twin = TwinDQN(agent.config, agent)
    for seed in range(50):
        batch = discrete_batch(seed)
        priorities = agent.update(batch)
        errors = twin.update(batch)
        if priorities is not None:
            np.testing.assert_allclose(priorities, errors, rtol=1e-4, atol=1e-5)
        assert (priorities is None) == (agent.config.priority_exponent == 0)
    for mine, theirs in ((agent.online, twin.online), (agent.target, twin.target)):
        for name, value in mine.value.items():
            torch.testing.assert_close(value, theirs.tensors()[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("kind", "shape"), [("mlp", (5,)), ("mlp", (2, 3)), ("conv", (4, 84, 84))])
@pytest.mark.parametrize("dueling", [True, False])
def test_numpy_acting_agrees_with_torch(kind: str, shape: tuple[int, ...], dueling: bool) -> None:
    spaces = discrete_spaces(shape, 6, "uint8" if kind == "conv" else "float32")
    network = QNetworkConfig(kind, (32,) if kind == "conv" else (32, 32), dueling)  # type: ignore[arg-type]
    agent = made(DQNConfig(network=network, batch_size=3), spaces)
    batch = discrete_batch(1, 3, spaces)
    agent.load(batch)
    outputs = agent._network.forward(agent._observation)
    expected = action_values(outputs, dueling=dueling).numpy()
    mine = q_values(agent.parameters(), batch["observation"], dueling=dueling)
    np.testing.assert_allclose(mine, expected, rtol=1e-4, atol=1e-4)
    best = agent.policy().best(agent.parameters(), batch["observation"])
    assert best.dtype == np.int64 and best.tolist() == mine.argmax(axis=1).tolist()


def test_the_image_network_learns() -> None:
    spaces = discrete_spaces((2, 84, 84), 3, "uint8")
    config = DQNConfig(network=QNetworkConfig("conv", (16,)), batch_size=4, optimizer=OptimizerConfig(1e-3, 1e-3))
    agent, batch = made(config, spaces), discrete_batch(0, 4, spaces)
    losses = []
    for _ in range(12):
        agent.update(batch)
        losses.append(agent.metrics()["loss"])
    assert losses[-1] < 0.3 * losses[0] and agent.prefetch == 2


def test_exploration_is_as_often_as_said() -> None:
    agent = made(DQNConfig(network=SMALL, epsilon_start=0.5, epsilon_end=0.0, epsilon_steps=100))
    observations, policy = np.zeros((1000, 4), np.float32), agent.policy()
    greedy = policy.explore(agent.parameters(), observations, 100, np.random.default_rng(0))
    assert len(set(greedy)) == 1 and policy.exploration(100) == {"epsilon": 0.0}
    some = policy.explore(agent.parameters(), observations, 0, np.random.default_rng(0))
    assert 180 < (some != greedy).sum() < 320  # a quarter: half of the random ones


def test_updates_repeat_and_resume_exactly() -> None:
    one, other = made(seed=3), made(seed=3)
    for seed in range(5):
        np.testing.assert_array_equal(one.update(discrete_batch(seed)), other.update(discrete_batch(seed)))
    resumed = made(seed=99)
    resumed.load_state_dict(one.state_dict())
    assert resumed.num_updates == 5
    for seed in range(5, 8):
        np.testing.assert_array_equal(one.update(discrete_batch(seed)), resumed.update(discrete_batch(seed)))
    for name, value in one.evaluation_parameters().items():
        np.testing.assert_array_equal(value, resumed.evaluation_parameters()[name])


def test_the_target_follows_at_its_rate_and_period() -> None:
    agent = made(DQNConfig(network=SMALL, batch_size=16, target_rate=0.25, target_period=2))
    before = agent.evaluation_parameters()
    agent.update(discrete_batch(0))
    for name, value in agent.evaluation_parameters().items():
        np.testing.assert_array_equal(value, before[name])
    agent.update(discrete_batch(1))
    online = agent.parameters()
    for name, value in agent.evaluation_parameters().items():
        np.testing.assert_allclose(value, 0.75 * before[name] + 0.25 * online[name], rtol=1e-5, atol=1e-6)


def test_what_it_cannot_take_is_refused() -> None:
    box = gymnasium.spaces.Box(-1, 1, (3,))
    images = QNetworkConfig("conv", (16,))
    for spaces, network in (
        (box_spaces(), SMALL),
        (Spaces("X-v0", box, gymnasium.spaces.Discrete(3, start=1)), SMALL),
        (Spaces("X-v0", gymnasium.spaces.Discrete(4), gymnasium.spaces.Discrete(2)), SMALL),
        (Spaces("X-v0", gymnasium.spaces.Box(-1, 1, (0,)), gymnasium.spaces.Discrete(2)), SMALL),
        (discrete_spaces((4, 80, 80), dtype="uint8"), images),
        (discrete_spaces(), images),
    ):
        with pytest.raises(InvalidConfig) as caught:
            made(DQNConfig(network=network), spaces)
        assert spaces.env_id in str(caught.value)
    with pytest.raises(InvalidConfig):
        DQNConfig().make(discrete_spaces(), seed=0, device="abacus")
    with pytest.raises(InvalidConfig):
        DQNConfig().make(discrete_spaces(), seed=0, device="cuda:99")
    agent = made()
    before = agent.state_dict()
    with pytest.raises(InvalidConfig):
        agent.update(discrete_batch(0, rows=15))
    with pytest.raises(InvalidConfig, match="observation"):
        agent.update(discrete_batch(0, spaces=discrete_spaces((5,))))
    with pytest.raises(InvalidConfig):
        agent.load_state_dict({"num_updates": 3})
    assert agent.num_updates == 0
    for name, value in agent.state_dict()["online"].items():
        assert torch.equal(value, before["online"][name])


def test_configurations_check_themselves() -> None:
    for wrong in (
        {"gamma": 1.5}, {"n_step": 0}, {"n_step": 5000}, {"target_rate": 0.0}, {"target_period": 0}, {"batch_size": 0},
        {"epsilon_start": 0.1, "epsilon_end": 0.5}, {"epsilon_steps": 0}, {"priority_exponent": 1.5},
        {"importance_beta": -0.1}, {"gamma": float("nan")},
    ):  # fmt: skip
        with pytest.raises(InvalidConfig):
            dataclasses.replace(DQNConfig(), **wrong)
    for make in (
        lambda: QNetworkConfig("rnn"),  # type: ignore[arg-type]
        lambda: QNetworkConfig(hidden=()),
        lambda: QNetworkConfig(hidden=(0,)),
        lambda: OptimizerConfig(learning_rate=0.0),
        lambda: OptimizerConfig(learning_rate=1e-4, final_learning_rate=1e-3),
    ):
        with pytest.raises(InvalidConfig):
            make()
