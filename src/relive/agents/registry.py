"""The agents by name. This module is the only place that lists them: a new agent needs a file, and a line here."""

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
    """One agent of the registry.

    Args:
        module: module of its configuration.
        config_class: class of its configuration.
        environment: id of the environment that shows the agent.
        summary: one line about the agent.
    """

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
    """Returns the entry of an agent.

    Raises:
        InvalidConfig: the name is unknown.
    """
    if str(name) not in AGENTS:
        expected = "one of " + ", ".join(AGENTS) + hint(str(name), AGENTS)
        raise InvalidConfig(what="agent", expected=expected, got=name)
    return AGENTS[name]


def config_class(name: str) -> type[AgentConfig]:
    """Returns the configuration class of an agent. Imports the agent's file, and torch with it.

    Raises:
        InvalidConfig: the name is unknown.
    """
    entry = entry_of(name)
    found: Any = getattr(importlib.import_module(entry.module), entry.config_class)
    return found  # type: ignore[no-any-return]
