"""The virtual environments of the other libraries, each pinned whole: benchmarks/constraints/NAME.txt."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PEERS = ("sb3", "tianshou", "cpprb", "reverb", "torchrl")


def python_of(peer: str) -> Path:
    return FOLDER / ".venvs" / peer / "bin" / "python"


def linked_package() -> Path:
    """A folder with a package `relive` of links to this checkout and to the core that is built in this environment."""
    place = FOLDER.parent / "build" / "linked"
    shutil.rmtree(place, ignore_errors=True)
    (place / "relive").mkdir(parents=True)
    built = Path(sysconfig.get_paths()["purelib"]) / "relive"
    for source in [*(FOLDER.parent / "src" / "relive").iterdir(), *built.glob("_core*.so")]:
        (place / "relive" / source.name).symlink_to(source)
    return place


def set_up(peer: str) -> str | None:
    """Makes the environment unless it is there as pinned; returns what went wrong, or None."""
    pins = FOLDER / "constraints" / f"{peer}.txt"
    stamp = FOLDER / ".venvs" / peer / ".stamp"
    if stamp.exists() and stamp.read_text() == pins.read_text():
        return None
    print(f"setting up the environment of {peer} (once)", flush=True)
    install = [str(python_of(peer)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", str(FOLDER / ".venvs" / peer)],
        [*install, "--requirement", str(pins)],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            return lines[-1] if lines else f"exit status {done.returncode}"
    stamp.write_text(pins.read_text())
    return None


def set_up_all(needed: Iterable[str] = PEERS) -> dict[str, str]:
    """Sets up the needed peers. Returns the reason for each peer that failed; measurements continue without it."""
    problems = {}
    for peer in sorted(needed):
        problem = set_up(peer)
        if problem is not None:
            problems[peer] = problem
            print(f"  left out: {peer}: {problem}", flush=True)
    return problems
