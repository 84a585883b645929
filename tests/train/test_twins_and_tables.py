"""Agents that learn from a table, beside naive twins that learn from lists: n-step returns, weights, priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="learners are written in torch")

from relive.agents.ddpg import DDPGConfig  # noqa: E402
from relive.agents.dqn import DQNConfig, QNetworkConfig  # noqa: E402
from relive.agents.iqn import IQNConfig, QuantileNetworkConfig  # noqa: E402
from relive.agents.registry import AGENTS  # noqa: E402
from relive.agents.sac import SACConfig  # noqa: E402
from relive.agents.td3 import TD3Config  # noqa: E402
from train.batches import box_spaces, discrete_spaces  # noqa: E402
from train.naive_replay import LoggedTable  # noqa: E402
from train.twins import TwinDDPG, TwinDQN, TwinIQN, TwinSAC, TwinTD3  # noqa: E402

OPTIONS: dict[str, Any] = {"batch_size": 16, "gamma": 0.9, "priority_exponent": 0.7, "importance_beta": 0.8}
BOXES = {**OPTIONS, "hidden": (16,)}
PAIRS: dict[str, tuple[Any, Any]] = {
    "dqn": (DQNConfig(network=QNetworkConfig(hidden=(16,)), **OPTIONS), TwinDQN),
    "iqn": (IQNConfig(network=QuantileNetworkConfig(hidden=(16,), num_cosines=8), num_quantiles=4, **OPTIONS), TwinIQN),
    "ddpg": (DDPGConfig(**BOXES), TwinDDPG),
    "td3": (TD3Config(**BOXES), TwinTD3),
    "sac": (SACConfig(**BOXES), TwinSAC),
}


def test_every_agent_is_here() -> None:
    assert set(PAIRS) == set(AGENTS)


@pytest.mark.forms(4)
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", list(PAIRS))
def test_fifty_updates_from_a_table_agree_with_a_twin_that_reads_lists(name: str, n_step: int) -> None:
    config, twin_of = PAIRS[name]
    config = type(config)(**{**vars(config), "n_step": n_step})
    spaces = discrete_spaces() if AGENTS[name].environment == "CartPole-v1" else box_spaces()
    agent = config.make(spaces, seed=1, device="cpu")
    twin, log = twin_of(config, agent), LoggedTable(agent)
    with log.table as table:
        for _ in range(50):
            batch = table.sample(config.batch_size, columns=agent.columns)
            priorities, theirs = agent.update(batch), twin.update(log.naive(batch))
            np.testing.assert_allclose(priorities, theirs, rtol=1e-4, atol=1e-5)
            table.update_priorities(batch.item_keys, priorities)
        assert np.ptp(batch.probabilities) > 0.0, "priorities came back to the table"
    state = agent.state_dict()
    for part, tensors in twin.tensors().items():
        for parameter, value in tensors.items():
            torch.testing.assert_close(state[part][parameter], value, rtol=1e-4, atol=1e-6, msg=f"{part} {parameter}")
