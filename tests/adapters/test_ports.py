"""The programs of docs/adapters.md: each runs, and so does the library's own program, which differs in one line."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adapters.md"
LIBRARIES = {
    "sb3": "stable_baselines3",
    "torchrl": "torchrl",
    "tianshou": "tianshou",
    "rllib": "ray.rllib",
    "flashbax": "flashbax",
    "transferqueue": "transfer_queue",
    "nemo_rl": "nemo_rl.data_plane.factory",  # not a module of the stand-in
}
BEFORE = re.compile(r"^( *)# before: (.+)\n(.*)$", re.MULTILINE)
CHANGED_LINES = {"torchrl": 2, "Prioritized": 0}  # others: 1


class Program(NamedTuple):
    """A program of the page, and the same with the library's own classes."""

    name: str
    module: str
    ours: str
    theirs: str


def programs() -> list[Program]:
    found = []
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        name = next(iter(re.findall(r"relive\.adapters\.(\w+)", block)))
        module = LIBRARIES.get(name, "reverb")
        what = "Prioritized" if "(Prioritized," in block else name
        found.append(Program(what, module, BEFORE.sub(r"\3", block), BEFORE.sub(r"\1\2", block)))
    return found


@pytest.mark.parametrize("program", programs(), ids=lambda one: one.name)
def test_a_port_changes_one_line(program: Program) -> None:
    lines = difflib.unified_diff(program.theirs.splitlines(), program.ours.splitlines(), n=0, lineterm="")
    changed = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    assert len(changed) == CHANGED_LINES.get(program.name, 1), changed


@pytest.mark.parametrize("side", ["ours", "theirs"])
@pytest.mark.parametrize("program", programs(), ids=lambda one: one.name)
def test_both_programs_run(program: Program, side: str) -> None:
    if not (program.module == "reverb" and side == "ours"):  # the adapter of Reverb needs no Reverb
        pytest.importorskip(program.module, reason=f"{program.module} is not installed here: make test-adapters")
    if side == "theirs" and program.ours == program.theirs:
        pytest.skip("the library has no such program")
    if side == "theirs" and program.module == "ray.rllib":
        text = program.theirs.replace(', "n_step": 3, "gamma": 0.99', "")  # the library's class has no such options
    else:
        text = getattr(program, side)
    exec(compile(text, str(PAGE), "exec"), {"__name__": "program"})
