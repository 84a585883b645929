"""The agents by name: the one place that lists them. A new agent is its file, and a line here."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, final

from relive.agents.config import AgentConfig
from relive.errors import InvalidConfig
from relive.errors.slips import hint


@final
@dataclass(frozen=True)
class Entry:
    """Where an agent's configuration lies, the environment it shows itself on, and one line about it."""

    module: str
    config_class: str
    environment: str
    summary: str


AGENTS: dict[str, Entry] = {
    "dqn": Entry(
        "relive.agents.dqn", "DQNConfig", "CartPole-v1", "Double, dueling, n-step, prioritized DQN: discrete actions."
    ),
    "iqn": Entry(
        "relive.agents.iqn", "IQNConfig", "CartPole-v1", "Implicit quantile network: distributions, discrete actions."
    ),
    "ddpg": Entry("relive.agents.ddpg", "DDPGConfig", "Pendulum-v1", "Deep deterministic policy gradient: a Box."),
    "td3": Entry("relive.agents.td3", "TD3Config", "Pendulum-v1", "Twin delayed DDPG: a Box of actions."),
    "sac": Entry("relive.agents.sac", "SACConfig", "Pendulum-v1", "Soft actor-critic, temperature learnt: a Box."),
}


def entry_of(name: str) -> Entry:
    """The line of an agent. Raises InvalidConfig for an unknown name."""
    if str(name) not in AGENTS:
        expected = "one of " + ", ".join(AGENTS) + hint(str(name), AGENTS)
        raise InvalidConfig(what="agent", expected=expected, got=name)
    return AGENTS[name]


def config_class(name: str) -> type[AgentConfig]:
    """The configuration of the agent `name`. Imports its file, and torch with it; InvalidConfig for an unknown name."""
    entry = entry_of(name)
    found: Any = getattr(importlib.import_module(entry.module), entry.config_class)
    return found  # type: ignore[no-any-return]
