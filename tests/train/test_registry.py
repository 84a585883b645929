"""The registry and the options of runs: names, presets, text to values; and nobody else names an agent."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="agents are written in torch")

from relive.agents.registry import AGENTS, config_class, entry_of  # noqa: E402
from relive.cli.training import shown as as_text  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from relive.train.config import preset  # noqa: E402
from relive.train.settings import changed, options, parse_assignments  # noqa: E402

SOURCE = Path(__file__).resolve().parents[2] / "src" / "relive"


@pytest.mark.parametrize("name", list(AGENTS))
def test_every_line_leads_to_its_agent(name: str) -> None:
    kind = config_class(name)
    assert kind.name == name and kind.__doc__ and entry_of(name).summary.endswith(".")
    for env_id in (entry_of(name).environment, "ALE/Pong-v5", "Anything-v0"):
        config = preset(name, env_id)
        assert config.agent == changed(config, {}).agent and config.environment.env_id == env_id
    # what --help shows can be set again as text
    shown = {option.path: as_text(option.value) for option in options(config)}
    assert changed(config, shown) == config


def test_an_unknown_agent_names_the_nearest() -> None:
    with pytest.raises(InvalidConfig, match="did you mean 'dqn'"):
        config_class("dqnn")
    with pytest.raises(InvalidConfig, match="one of dqn"):
        preset("", "CartPole-v1")


def test_nobody_but_the_registry_names_an_agent() -> None:
    names = re.compile("|".join(rf"\b{name}\b" for name in AGENTS), re.IGNORECASE)
    for path in [*(SOURCE / "train").rglob("*.py"), *(SOURCE / "cli").rglob("*.py")]:
        found = [number for number, line in enumerate(path.read_text().splitlines(), 1) if names.search(line)]
        assert not found, f"{path.name}: lines {found}"


def test_actors_and_the_command_line_import_no_torch() -> None:
    program = (
        "import sys; import relive.train.acting.actor, relive.agents.boxes, relive.cli.entry;"
        "relive.cli.entry.run(['train']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("\nFalse\n"), done.stderr


def test_options_are_read_by_their_types() -> None:
    config = preset("dqn", "CartPole-v1")
    settings = parse_assignments(
        ["agent.gamma=0.9", "agent.network.hidden=64, 32", "agent.double=no", "evaluation.stop_return=none",
         "replay.capacity=50_000", "agent.network.kind=conv", "device=cpu"]
    )  # fmt: skip
    values = {option.path: option.value for option in options(changed(config, settings))}
    assert values["agent.gamma"] == 0.9 and values["agent.network.hidden"] == (64, 32)
    assert values["agent.double"] is False and values["evaluation.stop_return"] is None
    assert values["replay.capacity"] == 50_000 and values["agent.network.kind"] == "conv"
    assert values["agent.n_step"] == 3, "what is not set stays"


@pytest.mark.parametrize(
    "settings",
    [
        {"agent.gamma": "much"}, {"agent.n_step": "1.5"}, {"agent.n_step": 1.5}, {"agent.n_step": True},
        {"agent.double": "perhaps"}, {"agent.network.hidden": "64,x"}, {"agent.network.hidden": 64},
        {"agent.network.hidden": ""}, {"agent.network.kind": "rnn"}, {"agent": "sac"}, {"agent.network": 1},
        {"nothing": 1}, {"agent.gamma.x": 1}, {"": 1}, {"evaluation.stop_return": "low"}, {"replay.capacity": "1e5"},
        {"agent.gamma": None}, {"agent.gamma": "nan"}, {"limits.max_minutes": "nan"}, {"environment.env_id": 3},
        {"replay.min_size": 10**9}, {"agent.batch_size": 2**40}, {"agent.network.hidden": (2**40,)},
        {"replay.updates_per_step": "inf"}, {"agent.optimizer.learning_rate": "inf"},
    ],
)  # fmt: skip
def test_wrong_options_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        changed(preset("dqn", "CartPole-v1"), settings)


def test_options_checked_against_each_other_change_together() -> None:
    config = preset("dqn", "CartPole-v1", {"replay.capacity": 100, "replay.min_size": 50})
    assert (config.replay.capacity, config.replay.min_size) == (100, 50)


def test_presets_come_with_the_environment_however_it_is_named() -> None:
    assert preset("dqn", "X-v0", {"environment.env_id": "CartPole-v1"}) == preset("dqn", "CartPole-v1")
