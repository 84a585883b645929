"""Environments that a module registers: `--env module:Id-v0`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from relive.errors import InvalidConfig, MissingPackage
from relive.train.acting.environments import make_environments, make_shown

MODULE = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv
gymnasium.register("Mine-v0", entry_point=lambda **options: CartPoleEnv(**options), max_episode_steps=100)
"""


def test_a_module_of_the_present_folder_is_found(tmp_path: Path) -> None:
    """By the command, whose script lies elsewhere, as `python -m` finds it; and by an actor's process."""
    (tmp_path / "of_this_folder.py").write_text(MODULE)
    command = Path(sys.executable).parent / "relive"
    words = ["train", "dqn", "--env", "of_this_folder:Mine-v0", "--actors", "1", "--max-steps", "3000"]
    ended = subprocess.run([command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_module_that_is_missing_is_said_in_words() -> None:
    for make in (lambda env: make_environments(env, 1), lambda env: make_shown(env, "rgb_array")):
        with pytest.raises(InvalidConfig, match="nowhere_to_be_found"):
            make("nowhere_to_be_found:Mine-v0")


def test_atari_without_its_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    for make in (lambda env: make_environments(env, 1), lambda env: make_shown(env, "rgb_array")):
        with pytest.raises(MissingPackage, match="an Atari environment needs ale-py: pip install"):
            make("ALE/Pong-v5")
