"""Options from files: what --config takes, what wins over what, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="agents are written in torch")

from relive.cli import entry, training  # noqa: E402
from relive.errors import InvalidConfig  # noqa: E402
from relive.train import TrainConfig, load_config, preset  # noqa: E402
from relive.train.settings import options  # noqa: E402

TEXT = """
device = "cpu"
"replay.min_size" = 500
[environment]
env_id = "Acrobot-v1"
[agent]
gamma = 0.5
network.hidden = [32, 16]
[evaluation]
stop_return = "none"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(TEXT)
    return path


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> TrainConfig:
    """The configuration that a command line leads to."""
    made: list[TrainConfig] = []
    monkeypatch.setattr(training, "run_training", lambda config, run_dir, resume, auto: made.append(config))
    assert entry.run(["train", *arguments]) == 0
    return made[0]


def test_a_file_sets_options_over_the_presets_of_its_environment(file: Path) -> None:
    config = load_config(file, agent="dqn")
    values = {option.path: option.value for option in options(config)}
    assert values["environment.env_id"] == "Acrobot-v1" and values["agent.gamma"] == 0.5
    assert values["agent.network.hidden"] == (32, 16) and values["evaluation.stop_return"] is None
    assert values["replay.min_size"] == 500 and values["device"] == "cpu"
    assert values["replay.updates_per_step"] == 0.25, "of the preset"


def test_the_command_line_wins_over_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ("dqn", "--config", str(file))
    assert asked(monkeypatch, *line) == load_config(file, agent="dqn")
    config = asked(monkeypatch, *line, "--set", "agent.gamma=0.75", "--env", "CartPole-v1", "--seed", "3")
    assert (config.environment.env_id, config.environment.seed) == ("CartPole-v1", 3)
    assert config == load_config(
        file, {"agent.gamma": 0.75, "environment.env_id": "CartPole-v1", "environment.seed": 3}, agent="dqn"
    )
    assert asked(monkeypatch, "dqn") == preset("dqn", "CartPole-v1")


def test_the_configuration_of_a_run_is_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = preset("sac", "Pendulum-v1", {"agent.alpha": 0.1, "environment.seed": 8, "agent.hidden": (8,)})
    config.save(tmp_path / "config.json")
    assert load_config(tmp_path / "config.json") == config
    assert asked(monkeypatch, "sac", "--config", str(tmp_path / "config.json")) == config
    with pytest.raises(InvalidConfig, match="agent of .*'dqn'"):
        asked(monkeypatch, "dqn", "--config", str(tmp_path / "config.json"))


def test_a_resumed_run_takes_a_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset("dqn", "CartPole-v1", {"environment.seed": 8}).save(tmp_path / "config.json")
    file.write_text("[agent]\ngamma = 0.5\nn_step = 2\n")
    line = ("dqn", "--resume", str(tmp_path), "--config", str(file), "--set", "agent.gamma=0.75")
    values = {option.path: option.value for option in options(asked(monkeypatch, *line))}
    assert (values["agent.gamma"], values["agent.n_step"], values["environment.seed"]) == (0.75, 2, 8)


@pytest.mark.parametrize(
    "text, words",
    [
        ("[agent]\ngama = 1", "did you mean 'agent.gamma'"),
        ("gamma = 1", "did you mean 'agent.gamma'"),
        ("[replays]\ncapacity = 1", "did you mean 'replay.capacity'"),
        ("[agent]\ngamma = 'much'", "option 'agent.gamma': expected float"),
        ("[agent]\nn_step = 1.5", "n_step"),
        ("[agent]\nname = 'sac'", "agent of"),
        ("[agent]\nname = 3", "agent of"),
        ("agent = 3", "agent"),
        ("[agent]\ngamma = 0.5\n[agent]\n", "TOML"),
        ("'agent.gamma' = 0.5\n[agent]\ngamma = 0.5", "given twice"),
        ("[agent]\ngamma = 1979-05-27", "agent.gamma"),
        ("[replay]\ncapacity = 10\nmin_size = 20", "capacity"),
        ("gamma", "TOML"),
    ],
)
def test_wrong_files_are_refused(text: str, words: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=words):
        load_config(file, agent="dqn")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("agent: 1")
    (tmp_path / "list.json").write_text(json.dumps([1]))
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for name, words in (
        ("run.yaml", ".toml or .json"), ("list.json", "no table"), ("none.toml", "none.toml"), ("bytes.toml", "bytes"),
        ("empty.toml", "name = "),
    ):  # fmt: skip
        with pytest.raises(InvalidConfig, match=words):
            load_config(tmp_path / name)
    assert load_config(tmp_path / "empty.toml", agent="dqn") == preset("dqn", "CartPole-v1")


@pytest.mark.parametrize("number", ["1e400", "nan", "-1e16", "1" + "0" * 400])
def test_a_number_that_no_float_has_is_refused_in_words(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for option in ("seed", "limits.max_steps", "agent.learning_rate"):
        with pytest.raises((InvalidConfig, SystemExit)):
            asked(monkeypatch, "dqn", "--set", f"{option}={number}")
