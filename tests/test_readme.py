"""The example of the README is run as it stands; the files it names exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def example() -> str:
    found = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(found) == 1, "the README holds exactly one Python example"
    return str(found[0])


def test_the_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium", reason="the example records a Gymnasium environment")
    script = tmp_path / "example.py"
    script.write_text(example().replace('"example"', f'"readme-{tmp_path.name}"'))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "(256, 4) float32"


def test_the_example_is_short() -> None:
    statements = [line for line in example().splitlines() if line.strip() and not re.match(r"(import|from) ", line)]
    assert len(statements) <= 15


def test_what_the_readme_links_to_exists() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), f"README links to {target}"


def test_the_two_commands_stand_at_the_top() -> None:
    top = README.splitlines()[:8]
    assert any(line.startswith("make demo") for line in top)
    assert any(line.startswith("make test") for line in top)
