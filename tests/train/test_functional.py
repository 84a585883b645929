"""Updates as functions of tensors: the same as the hand-written ones, from any state, either after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="learners are written in torch")
pytest.importorskip("gymnasium", reason="spaces are Gymnasium's")

from relive.agents.config import OptimizerConfig  # noqa: E402
from relive.agents.ddpg import DDPGConfig  # noqa: E402
from relive.agents.dqn import DQNConfig, QNetworkConfig  # noqa: E402
from relive.agents.iqn import IQNConfig  # noqa: E402
from relive.agents.sac import SACConfig  # noqa: E402
from relive.agents.td3 import TD3Config  # noqa: E402
from train.batches import box_spaces, continuous_batch, discrete_batch, discrete_spaces  # noqa: E402

ROWS = 32
FALLING = OptimizerConfig(3e-3, 1e-4, decay_updates=30, adam_epsilon=1e-3, max_gradient_norm=0.1)
VARIANTS: dict[str, Any] = {
    "dqn": DQNConfig(batch_size=ROWS, network=QNetworkConfig(hidden=(24, 16))),
    "dqn, plain": DQNConfig(
        batch_size=ROWS, double=False, priority_exponent=0.0, target_period=3, target_rate=1.0, optimizer=FALLING,
        network=QNetworkConfig(hidden=(16,), dueling=False),
    ),
    "ddpg": DDPGConfig(batch_size=ROWS, hidden=(24, 16)),
    "ddpg, clipped": DDPGConfig(batch_size=ROWS, hidden=(24,), actor=FALLING, critic=FALLING, priority_exponent=0.6),
    "td3": TD3Config(batch_size=ROWS, hidden=(24, 16)),
    "td3, every update": TD3Config(batch_size=ROWS, hidden=(16,), policy_delay=1, priority_exponent=1.0),
    "sac": SACConfig(batch_size=ROWS, hidden=(24, 16)),
    "sac, fixed": SACConfig(batch_size=ROWS, hidden=(24,), alpha=0.2, priority_exponent=0.5, actor=FALLING),
}  # fmt: skip


def made(config: Any) -> tuple[Any, Any]:
    """An agent, and its batches by number."""
    discrete = config.name in ("dqn", "iqn")
    agent = config.make(discrete_spaces() if discrete else box_spaces(), seed=3, device="cpu")
    return agent, (discrete_batch if discrete else continuous_batch)


def tensors(state: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in state.items():
        inside = tensors(value) if isinstance(value, dict) else {"": value}
        found |= {f"{name}.{inner}": one for inner, one in inside.items()}
    return found


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_either_way_is_the_same_update(variant: str) -> None:
    """To float error, over the whole state; the second agent takes turns."""
    config = VARIANTS[variant]
    (mine, batch_of), (other, _) = made(config), made(config)
    functional = other.functional()
    for number in range(24):
        batch = batch_of(number, ROWS)
        expected = mine.update(batch)
        got = other.update(batch) if number % 4 == 3 else functional.update(batch, functional.call)
        assert (expected is None) == (got is None)
        if expected is not None:
            np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-5)
    assert mine.num_updates == other.num_updates == 24
    ours, theirs = tensors(mine.state_dict()), tensors(other.state_dict())
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(
                theirs[name], one, rtol=1e-3, atol=2e-5, msg=lambda text, of=name: f"{of}: {text}"
            )
    for name, value in mine.metrics().items():
        assert other.metrics()[name] == pytest.approx(value, rel=1e-3, abs=1e-5)


def test_low_precision_goes_along() -> None:
    config = SACConfig(batch_size=ROWS, hidden=(64, 64), precision="bfloat16")
    (mine, batch_of), (other, _) = made(config), made(config)
    functional = other.functional()
    for number in range(5):
        mine.update(batch_of(number, ROWS))
        functional.update(batch_of(number, ROWS), functional.call)
    one, two = mine.critics.online.values, other.critics.online.values
    assert float((one - two).norm()) < 0.05 * float(one.norm())


def test_networks_of_images_and_quantiles_have_none() -> None:
    assert made(IQNConfig(batch_size=ROWS))[0].functional() is None
    spaces = discrete_spaces((4, 84, 84), dtype="uint8")
    conv = DQNConfig(batch_size=2, network=QNetworkConfig(kind="conv", hidden=(8,)))
    assert conv.make(spaces, seed=0, device="cpu").functional() is None
