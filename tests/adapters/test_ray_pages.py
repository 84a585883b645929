"""The blocks of the pages that need Ray Tune or RLlib run as printed, on the libraries themselves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.rllib", reason="ray[rllib] is not installed here: make test-adapters")
pytest.importorskip("ray.tune", reason="ray[tune] is not installed here: make test-adapters")

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LEARNS = """
algorithm = config.build_algo()
for _ in range(2):
    algorithm.train()
buffer = algorithm.local_replay_buffer
print(type(buffer).__module__, len(buffer.table) > 0)
algorithm.stop()
"""


def program(page: str, word: str) -> str:
    """The blocks of a page that have this word, in their order, as one program."""
    found = [text for text in BLOCK.findall((DOCS / page).read_text()) if word in text]
    assert found, f"docs/{page} has no block with {word}"
    return "".join(found)


def said_by(text: str, folder: Path) -> str:
    (folder / "program.py").write_text(text)
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "program.py"], capture_output=True, text=True, timeout=500, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_trials_of_tune_are_training_runs(tmp_path: Path) -> None:
    text = program("ray.md", "from ray import tune").replace(
        "\ntuner = ", '\nimport ray\n\nray.init(address="local", num_cpus=2, include_dashboard=False)\ntuner = '
    )
    last = said_by(text, tmp_path).splitlines()[-1]
    assert re.fullmatch(r"\{'agent\.gamma': 0\.9\d+\} \d+\.\d+", last), last


@pytest.mark.parametrize("page", ["ray.md", "adapters.md", "coming-from.md"])
def test_rllib_learns_from_the_buffer_of_the_page(page: str, tmp_path: Path) -> None:
    last = said_by(program(page, "PrioritizedEpisodeReplayBuffer") + LEARNS, tmp_path).splitlines()[-1]
    assert last == "relive.adapters.rllib.buffer True", last
