"""The agent: losses against hand computation, numpy inference against torch, updates that repeat."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the agent is written in torch")

from relive.agents.config import DQNConfig, NetworkConfig, OptimizerConfig  # noqa: E402
from relive.agents.dqn import DQNLearner, Experience, build_network, td_errors, weighted_huber  # noqa: E402
from relive.agents.inference import epsilon_greedy, q_values  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402


class Lookup(torch.nn.Module):
    """Q values by state number."""

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.tensor(values))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.values[observations[:, 0].long()]


def experience(states: list[int], actions: list[int], following: list[int], **columns: list[float]) -> Experience:
    return Experience(
        torch.tensor([[float(state)] for state in states]),
        torch.tensor(actions),
        torch.tensor(columns["reward"]),
        torch.tensor(columns["discount"]),
        torch.tensor([[float(state)] for state in following]),
        torch.tensor(columns["weight"]),
    )


def test_double_q_errors_by_hand() -> None:
    online = Lookup([[1.0, 2.0], [5.0, 4.0], [0.0, 3.0]])
    target = Lookup([[10.0, 20.0], [30.0, 40.0], [50.0, 60.0]])
    batch = experience(
        [0, 1, 2], [1, 0, 1], [1, 2, 0], reward=[1.0, -1.0, 0.5], discount=[0.9, 0.5, 0.0], weight=[1.0, 1.0, 1.0]
    )
    errors = td_errors(online, target, batch)
    # online chooses action 0 in state 1, 1 in state 2, 1 in state 0; the target network values them 30, 60, 20
    expected = [1.0 + 0.9 * 30.0 - 2.0, -1.0 + 0.5 * 60.0 - 5.0, 0.5 + 0.0 - 3.0]
    np.testing.assert_allclose(errors.detach().numpy(), expected, rtol=1e-6)
    errors.sum().backward()
    assert target.values.grad is None
    np.testing.assert_array_equal(online.values.grad.numpy(), [[0.0, -1.0], [-1.0, 0.0], [0.0, -1.0]])


def test_weighted_huber_by_hand() -> None:
    errors, weights = torch.tensor([0.5, -3.0, 1.0]), torch.tensor([1.0, 0.5, 0.25])
    expected = (1.0 * 0.125 + 0.5 * 2.5 + 0.25 * 0.5) / 3
    assert weighted_huber(errors, weights).item() == pytest.approx(expected)


def test_the_dueling_head_by_hand() -> None:
    generator = torch.Generator().manual_seed(0)
    network = build_network(NetworkConfig("mlp", 2), (1,), 2, generator)
    with torch.no_grad():
        network.hidden1.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        network.hidden1.bias.zero_()
        network.hidden2.weight.copy_(torch.eye(2))
        network.hidden2.bias.zero_()
        network.value.weight.copy_(torch.tensor([[2.0, 0.0]]))
        network.value.bias.fill_(1.0)
        network.advantage.weight.copy_(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
        network.advantage.bias.zero_()
    # hidden = relu([3, -3]) = [3, 0]; value = 7; advantages = 3, 9, mean 6
    np.testing.assert_allclose(network(torch.tensor([[3.0]])).detach().numpy(), [[4.0, 10.0]])


@pytest.mark.parametrize(("kind", "shape"), [("mlp", (5,)), ("mlp", (2, 3)), ("conv", (4, 84, 84))])
def test_numpy_inference_agrees_with_torch(kind: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    observations = rng.integers(0, 256, (3, *shape)).astype(np.uint8 if kind == "conv" else np.float32)
    config = DQNConfig(network=NetworkConfig(kind, 32))  # type: ignore[arg-type]
    learner = DQNLearner(config, shape, 6, seed=2, device="cpu")
    with torch.no_grad():
        expected = learner.online(torch.from_numpy(observations)).numpy()
    np.testing.assert_allclose(q_values(learner.parameters(), observations), expected, rtol=1e-4, atol=1e-4)


def test_exploration_is_as_often_as_said() -> None:
    learner = DQNLearner(DQNConfig(), (4,), 2, seed=0, device="cpu")
    observations = np.zeros((1000, 4), np.float32)
    greedy = epsilon_greedy(learner.parameters(), observations, 0.0, np.random.default_rng(0))
    assert len(set(greedy)) == 1
    some = epsilon_greedy(learner.parameters(), observations, 0.5, np.random.default_rng(0))
    assert 180 < (some != greedy).sum() < 320  # a quarter: half of the random ones


def random_batch(seed: int) -> Experience:
    rng = np.random.default_rng(seed)
    states = torch.from_numpy(rng.normal(size=(2, 16, 4)).astype(np.float32))
    numbers = torch.from_numpy(rng.random((3, 16)).astype(np.float32))
    actions = torch.from_numpy(rng.integers(0, 2, 16))
    return Experience(states[0], actions, numbers[0], numbers[1], states[1], numbers[2])


def test_updates_repeat_and_resume_exactly() -> None:
    config = DQNConfig(network=NetworkConfig("mlp", 16))
    one, other = (DQNLearner(config, (4,), 2, seed=3, device="cpu") for _ in range(2))
    for seed in range(5):
        np.testing.assert_array_equal(
            one.update(random_batch(seed)).priorities, other.update(random_batch(seed)).priorities
        )
    resumed = DQNLearner(config, (4,), 2, seed=99, device="cpu")
    resumed.load_state_dict(one.state_dict())
    assert resumed.num_updates == 5
    for seed in range(5, 8):
        np.testing.assert_array_equal(
            one.update(random_batch(seed)).priorities, resumed.update(random_batch(seed)).priorities
        )
    for name, value in one.smoothed_parameters().items():
        np.testing.assert_array_equal(value, resumed.smoothed_parameters()[name])


def test_the_target_follows_at_its_rate() -> None:
    config = DQNConfig(network=NetworkConfig("mlp", 8), target_rate=0.25)
    learner = DQNLearner(config, (4,), 2, seed=4, device="cpu")
    before = learner.smoothed_parameters()
    learner.update(random_batch(0))
    online = learner.parameters()
    for name, value in learner.smoothed_parameters().items():
        np.testing.assert_allclose(value, 0.75 * before[name] + 0.25 * online[name], rtol=1e-5, atol=1e-6)


def test_configurations_check_themselves() -> None:
    for wrong in (
        lambda: DQNConfig(gamma=1.5),
        lambda: DQNConfig(n_step=0),
        lambda: NetworkConfig("rnn"),  # type: ignore[arg-type]
        lambda: OptimizerConfig(learning_rate=0.0),
        lambda: DQNConfig(target_rate=0.0),
    ):
        with pytest.raises(InvalidConfig):
            wrong()
