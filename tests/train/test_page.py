"""The page about training: its example of an agent in one process runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="agents are written in torch")
pytest.importorskip("gymnasium", reason="the example records a Gymnasium environment")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def test_the_agent_in_one_process(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("\n## Agents\n")[2]
    (example,) = re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"50 \{'loss': [\d.e+-]+\}\n", done.stdout), done.stdout
