"""Tests the adapters on the libraries themselves: `make test-adapters`, `python scripts/test_adapters.py [NAME ...]`.

Each library has an environment of its own (benchmarks/peers.py), pinned whole by benchmarks/constraints/NAME.txt. The
environment reads this checkout, and the core that is built in .venv. For each library the script runs:

- tests/adapters/test_NAME.py and the program of one changed line in tests/adapters/test_ports.py;
- for transferqueue, the tests of NeMo-RL's data plane, which need its packages and a stand-in of NeMo-RL;
- the library's own buffer tests on our classes, where its source package has them (tests/adapters/own).

Exit status 1 if a test fails. A library whose environment cannot be made is named, and counts as a failure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import peers  # noqa: E402

LIBRARIES = ("sb3", "torchrl", "tianshou", "rllib", "reverb", "transferqueue", "flashbax")
TOOLS = ("pytest", "pytest-timeout")
FURTHER = {  # test files that need only this library's packages
    "rllib": ("test_ray_pages.py",),
    "tianshou": ("test_tianshou_goals.py",),
    "transferqueue": ("test_nemo_rl.py", "test_rollouts.py"),
}
OWN = {"sb3": ("stable_baselines3", "adapters.own.sb3_buffers")}  # source package, plugin that puts our classes in


def main() -> int:
    """Runs the tests of all libraries, or of the named ones."""
    parser = argparse.ArgumentParser(description="tests the adapters on the libraries themselves")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(LIBRARIES)}; default: all")
    names = parser.parse_args().names or LIBRARIES
    unknown = sorted(set(names) - set(LIBRARIES))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; expected {', '.join(LIBRARIES)}")
    place = peers.linked_package()
    failed = [name for name in names if not tested(name, place)]
    print(f"adapters that failed: {', '.join(failed)}" if failed else "all adapters passed")
    return 1 if failed else 0


def tested(name: str, place: Path) -> bool:
    """Runs the tests of one library. Returns whether all passed."""
    problem = peers.set_up(name) or add_tools(name)
    if problem is not None:
        print(f"{name}: no environment: {problem}")
        return False
    paths = [
        str(ROOT / "tests" / "adapters" / file) for file in (f"test_{name}.py", "test_ports.py", *FURTHER.get(name, ()))
    ]
    passed = pytest_of(name, place, ROOT, [*paths, "-rs"])
    if name in OWN:
        package, plugin = OWN[name]
        folder = own_tests(name, package)
        files = [str(folder / file) for file in files_of(plugin)]
        passed = pytest_of(name, place, folder, ["-p", plugin, "-rs", *files]) and passed
    return passed


def files_of(plugin: str) -> tuple[str, ...]:
    """The names of a library's test files that a plugin lists."""
    names: dict[str, object] = {}
    text = (ROOT / "tests" / Path(*plugin.split("."))).with_suffix(".py").read_text()
    line = next(line for line in text.splitlines() if line.startswith("FILES = "))
    exec(line, names)
    return tuple(str(one) for one in names["FILES"])  # type: ignore[attr-defined]


def add_tools(name: str) -> str | None:
    """Installs pytest into the environment of a library; returns what went wrong, or None."""
    python = peers.python_of(name)
    if subprocess.run([str(python), "-c", "import pytest, pytest_timeout"], capture_output=True).returncode == 0:
        return None
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.split("==")[0] in TOOLS]
    done = subprocess.run([str(python), "-m", "pip", "install", "--quiet", *pinned], capture_output=True, text=True)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]


def own_tests(name: str, package: str) -> Path:
    """The folder of the library's own tests, from its source package on the index."""
    pins = (peers.FOLDER / "constraints" / f"{name}.txt").read_text().splitlines()
    pinned = next(line for line in pins if line.startswith(f"{package}=="))
    place = peers.FOLDER / ".venvs" / name / "source"
    folder = place / pinned.replace("==", "-") / "tests"
    if not folder.exists():
        line = [str(peers.python_of(name)), "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*line, "--dest", str(place), pinned], check=True)
        with tarfile.open(place / f"{pinned.replace('==', '-')}.tar.gz") as archive:
            archive.extractall(place, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder


def pytest_of(name: str, place: Path, folder: Path, arguments: list[str]) -> bool:
    """Runs pytest in the environment of a library. Returns whether it passed."""
    line = [str(peers.python_of(name)), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "600", *arguments]
    print(f"{name}: pytest in {folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder}", flush=True)
    variables = {"PYTHONPATH": f"{place}:{ROOT / 'tests'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, cwd=folder, env={**os.environ, **variables}).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
