"""The command `make gpu`, with parts that are small fakes: what it repeats, how it fails, how it stops.

A folder has copies of the scripts, fakes of the four parts, and fakes of torch and triton, so that nothing is computed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("tests", "soak", "bench", "train")
TORCH = """
__version__ = "2.0"
class version: cuda = "12"
class cuda:
    @staticmethod
    def is_available(): return {card!r} is not None
    @staticmethod
    def get_device_name(): return {card!r}
    @staticmethod
    def get_device_capability(): return (9, 0)
"""
PART = """
import pathlib, sys
pathlib.Path({counter!r}).open("a").write(" ".join(sys.argv[1:]) + "\\n")
print("note: a remark of the part")
"""


class Checkout:
    """A folder with the command and fakes of its parts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out = folder, folder / "out"
        for name in ("scripts", "tests/gpu", "benchmarks/gpu", "benchmarks"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name in ("gpu.py", "gpu_parts.py"):
            shutil.copy(ROOT / "scripts" / name, folder / "scripts" / name)
        for name in ("tests/gpu", "benchmarks", "benchmarks/gpu", "relive", "triton"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "__init__.py").write_text("")
        self.card("Some Card")
        self.part("tests", "def test_one(): pass\n" + self.counting("tests"))
        for name in PARTS[1:]:
            self.part(name, self.counting(name))

    def card(self, name: str | None) -> None:
        """The card that torch sees."""
        (self.folder / "torch.py").write_text(TORCH.format(card=name))

    def counting(self, name: str) -> str:
        return PART.format(counter=str(self.folder / f"{name}.count"))

    def part(self, name: str, text: str) -> None:
        """Replaces a part."""
        files = {"tests": "tests/gpu/test_fake.py", "soak": "tests/gpu/soak.py", "bench": "benchmarks/gpu/__main__.py"}
        (self.folder / files.get(name, "benchmarks/gpu/training.py")).write_text(text)

    def counts(self) -> list[int]:
        """How often each part has run."""
        files = [self.folder / f"{name}.count" for name in PARTS]
        return [len(file.read_text().splitlines()) if file.exists() else 0 for file in files]

    def start(self, *words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "scripts/gpu.py", "--out", str(self.out), *words]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=environment, start_new_session=True, **pipes)

    def run(self, *words: str) -> tuple[int, str]:
        """The exit status and the output."""
        with self.start(*words) as process:
            output, _ = process.communicate(timeout=120)
        return process.returncode, output

    def results(self) -> dict[str, str]:
        """The result of each part in summary.json."""
        parts = json.loads((self.out / "summary.json").read_text())["parts"]
        return {name: part["result"] for name, part in parts.items()}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_every_part_runs_once_and_is_kept(checkout: Checkout) -> None:
    status, output = checkout.run()
    assert status == 0 and checkout.counts() == [1, 1, 1, 1], output
    assert checkout.results() == dict.fromkeys(PARTS, "passed")
    machine = json.loads((checkout.out / "summary.json").read_text())["machine"]
    assert machine["card"] == "Some Card" and machine["torch"] == "2.0" and machine["python"]
    assert all((checkout.out / f"{name}.log").exists() for name in PARTS)
    assert "a remark of the part" in output and output.count("not repeated") == 0
    status, output = checkout.run()
    assert status == 0 and checkout.counts() == [1, 1, 1, 1] and output.count("not repeated") == 4
    status, output = checkout.run("--again", "--only", "bench,train")
    assert status == 0 and checkout.counts() == [1, 1, 2, 2]


def test_a_part_of_another_card_another_size_or_other_sources_runs_again(checkout: Checkout) -> None:
    checkout.run()
    checkout.run("--seconds", "7")
    assert checkout.counts() == [1, 2, 1, 1]
    assert "--seconds 7 " in (checkout.folder / "soak.count").read_text().splitlines()[1]
    checkout.card("Another Card")
    checkout.run("--seconds", "7")
    assert checkout.counts() == [2, 3, 2, 2]
    (checkout.folder / "benchmarks" / "gpu" / "new.py").write_text("")
    checkout.run("--seconds", "7")
    assert checkout.counts() == [2, 3, 3, 3], "of the measurements and the training"


def test_a_failed_part_is_named_and_the_others_run(checkout: Checkout) -> None:
    checkout.part("soak", "print('the last words')\nraise SystemExit(3)\n")
    checkout.part("tests", "def test_one(): assert False\n")
    status, output = checkout.run()
    assert status == 1 and checkout.counts() == [0, 0, 1, 1]
    assert checkout.results() == {"tests": "failed", "soak": "failed", "bench": "passed", "train": "passed"}
    assert "not passed: tests, soak" in output and "| the last words" in output and "exit status 3" in output
    checkout.part("soak", checkout.counting("soak"))
    status, output = checkout.run("--only", "soak,bench")
    assert status == 0 and checkout.counts() == [0, 1, 1, 1], "bench passed before"


def test_a_part_that_is_not_there_fails_and_says_so(checkout: Checkout) -> None:
    (checkout.folder / "tests/gpu/soak.py").unlink()
    status, output = checkout.run("--only", "soak,train")
    assert status == 1 and "tests/gpu/soak.py does not exist" in output and "not passed: soak" in output
    assert checkout.counts() == [0, 0, 0, 1]


def test_a_missing_package_fails_the_parts_that_need_it(checkout: Checkout) -> None:
    (checkout.folder / "torch.py").write_text("raise ImportError('no libtorch')")
    status, output = checkout.run("--only", "bench")
    assert status == 1 and "missing packages: torch (no libtorch)" in output and checkout.counts() == [0] * 4


def test_without_a_card_the_parts_are_small_and_a_card_is_refused(checkout: Checkout) -> None:
    checkout.card(None)
    status, output = checkout.run("--device", "cuda")
    assert status == 2 and "sees no CUDA device" in output and checkout.counts() == [0] * 4
    status, output = checkout.run()
    assert status == 0 and "no card is used" in output
    told = (checkout.folder / "soak.count").read_text()
    assert "--device cpu" in told and "--seconds 30 " in told


def test_a_part_over_its_limit_is_ended(checkout: Checkout) -> None:
    checkout.part("soak", "import time\ntime.sleep(600)\n")
    script = checkout.folder / "scripts" / "gpu_parts.py"
    script.write_text(script.read_text().replace("soak, soak_limit_s", "soak, 1.0"))
    status, output = checkout.run("--only", "soak,bench")
    assert status == 1 and "ended at its limit of 1 s" in output
    assert checkout.results() == {"soak": "timed out", "bench": "passed"}
    seconds = json.loads((checkout.out / "summary.json").read_text())["parts"]["soak"]["seconds"]
    assert 1.0 <= seconds < 10.0


@pytest.mark.forms(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_part_and_the_next_run_goes_on(checkout: Checkout, number: signal.Signals) -> None:
    """The part has a child of its own, which does not end by SIGINT, and ends too. The stopped part runs again."""
    place = checkout.folder / "child"
    sleeping = "import pathlib, subprocess, sys, time\n"
    child = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    )
    sleeping += f"place = pathlib.Path({str(place)!r})\n"
    sleeping += f"if not place.exists():\n    command = [sys.executable, '-c', {child!r}]\n"
    sleeping += "    child = subprocess.Popen(command, stdout=subprocess.PIPE)\n    child.stdout.readline()\n"
    sleeping += "    place.write_text(str(child.pid))\n    time.sleep(600)\n"
    checkout.part("bench", sleeping + checkout.counting("bench"))
    with checkout.start() as process:
        limit_s = time.monotonic() + 60
        while not (place.exists() and place.read_text()) and time.monotonic() < limit_s:
            time.sleep(0.05)
        process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "goes on" in output, output
    assert not is_running(int(place.read_text()))
    assert checkout.results() == {"tests": "passed", "soak": "passed", "bench": "stopped"}
    status, output = checkout.run()
    assert status == 0 and checkout.counts() == [1, 1, 1, 1] and output.count("not repeated") == 2


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
