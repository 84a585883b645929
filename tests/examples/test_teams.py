"""A team's critics: an agent that is absent adds nothing to values, entropies or losses."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the examples need torch")
for _module in ("gymnasium", "rich", "tensorboard", "matplotlib"):
    pytest.importorskip(_module, reason=f"the examples need {_module}")

BATCH, AGENTS, INPUTS, ACTIONS = 4, 2, 6, 3


class Rows:
    """A batch of these columns."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns

    def to_torch(self) -> dict[str, Any]:
        return self.columns


def rows(present: list[bool], next_present: list[bool]) -> dict[str, Any]:
    """Random rows in which the absent agents have observations of zeros, as the environment writes them."""
    torch.manual_seed(1)
    now, then = (torch.tensor(agents).expand(BATCH, AGENTS) for agents in (present, next_present))
    return {
        "observation": torch.randn(BATCH, AGENTS, INPUTS) * now[..., None],
        "next_observation": torch.randn(BATCH, AGENTS, INPUTS) * then[..., None],
        "action": torch.rand(BATCH, AGENTS, ACTIONS),
        "reward": torch.randn(BATCH),
        "discount": torch.full((BATCH,), 0.9),
        "present": now,
        "next_present": then,
    }


def losses(columns: dict[str, Any], **settings: Any) -> dict[str, float]:
    """The losses of one update of a new agent. Equal seeds give equal networks and equal samples."""
    masac = importlib.import_module("masac")
    torch.manual_seed(0)
    agent = masac.Agent(masac.Settings(hidden=8, **settings), (AGENTS, INPUTS), ACTIONS)
    return dict(agent.update(Rows(**columns)))


@pytest.mark.parametrize("independent", [False, True])
def test_the_action_of_an_absent_agent_does_not_change_the_losses(independent: bool) -> None:
    columns = rows([True, False], [True, False])
    other = columns["action"].clone()
    other[:, 1] = -other[:, 1]
    assert losses(columns, independent=independent) == losses(columns | {"action": other}, independent=independent)
    other[:, 0] = -other[:, 0]
    assert losses(columns, independent=independent) != losses(columns | {"action": other}, independent=independent)


def test_the_sampled_action_of_an_absent_agent_does_not_change_the_teams_value() -> None:
    masac = importlib.import_module("masac")
    agent = masac.Agent(masac.Settings(hidden=8), (AGENTS, INPUTS), ACTIONS)
    columns = rows([True, False], [True, False])
    other = columns["action"].clone()
    other[:, 1] = -other[:, 1]
    one, two = (
        agent.values(agent.critics, columns["observation"], action, columns["present"].float())
        for action in (columns["action"], other)
    )
    assert torch.equal(one, two)


@pytest.mark.parametrize("independent", [False, True])
def test_the_target_has_the_entropy_of_the_agents_of_the_next_row(independent: bool) -> None:
    def critic_loss(next_present: list[bool], alpha: float) -> float:
        return losses(rows([True, True], next_present), alpha=alpha, independent=independent)["critic_loss"]

    assert critic_loss([False, False], alpha=0.02) == critic_loss([False, False], alpha=20.0)
    assert critic_loss([True, False], alpha=0.02) != critic_loss([True, False], alpha=20.0)
