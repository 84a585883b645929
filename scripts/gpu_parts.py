"""Defines the parts of `make gpu`: the machine that they run on, their commands, their limits; runs one of them.

Standard library only: scripts/gpu.py runs before any package is found.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MOST_WORKERS = 6  # of the tests: each takes memory of the card for a context of its own
TO_END_S = 10.0  # from the first signal to a part until it is killed
NUM_REMARKS = 40
REMARK = re.compile(r"^(SKIPPED \[|XFAIL |FAILED |ERROR |skipped|note: )")
PASSED, FAILED, TIMED_OUT, STOPPED, KEPT = "passed", "failed", "timed out", "stopped", "kept"

PROBE = """
import importlib, importlib.metadata, importlib.util, json, platform, sys
found = {"python": platform.python_version()}
for name, package in (("numpy", "numpy"), ("triton", "triton"), ("relive", "relive"), ("pytest", "pytest"),
                      ("pytest_timeout", "pytest-timeout"), ("xdist", "pytest-xdist"), ("hypothesis", "hypothesis"),
                      ("gymnasium", "gymnasium"), ("rich", "rich")):
    if importlib.util.find_spec(name):
        try:
            found[name] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "of unknown version"
if "relive" in found:
    found["package"] = list(importlib.util.find_spec("relive").submodule_search_locations or [])
try:
    import torch
    found["torch"], found["cuda"] = torch.__version__, str(torch.version.cuda)
    if torch.cuda.is_available():
        found["card"] = torch.cuda.get_device_name()
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
except ImportError as problem:
    found["torch_problem"] = str(problem)
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Sizes:
    """The device of a run, and how much each part does.

    Attributes:
        device: "cuda" or "cpu".
        seconds: Seconds of the soak.
        num_workers: Processes of the tests; 1: pytest alone.
    """

    device: str
    seconds: int
    num_workers: int


@dataclass(frozen=True)
class Part:
    """One part of the run: a process with a log of its own.

    Attributes:
        name: Name of the part, and of its log.
        command: Command line.
        limit_s: Seconds after which the part is ended.
        needs: Modules that the part imports.
        module: File that the command runs. Its folder has the sources of the part.
        variables: Environment variables, besides those of this process.
        size: Text that names the amount of work: a part that passed with another size runs again.
    """

    name: str
    command: list[str]
    limit_s: float
    needs: tuple[str, ...]
    module: Path
    variables: dict[str, str] = field(default_factory=dict)
    size: str = ""


@dataclass
class Outcome:
    """The result of a part, as summary.json keeps it."""

    result: str
    seconds: float
    log: str
    last_line: str = ""
    remarks: list[str] = field(default_factory=list)


def environment(variables: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a part: the sources and their tests come before other packages."""
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path), **(variables or {})}


def probe() -> dict[str, Any]:
    """Versions of the packages that the parts need, and the card that torch sees. A missing package has no entry."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300
    )
    if done.returncode != 0:
        raise SystemExit(f"the Python {sys.executable} cannot say which packages it has:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=30)
        if answer.returncode == 0 and answer.stdout.strip():
            found["driver"] = answer.stdout.strip().splitlines()[0]
    return {**found, "cores": len(os.sched_getaffinity(0))}


def parts_of(sizes: Sizes, out: Path) -> list[Part]:
    """All parts, in the order in which they run."""
    on_card, python = sizes.device == "cuda", sys.executable
    of_kernels = {"RELIVE_TEST_DEVICE": sizes.device} | ({} if on_card else {"TRITON_INTERPRET": "1"})
    given = ["--out", str(out), "--device", sizes.device]
    kernels = ("torch", "triton", "numpy", "relive")
    tests = [python, "-m", "pytest", "-q", "-ra", "-m", "not soak", "-p", "no:cacheprovider", "--durations", "5"]
    if sizes.num_workers > 1:  # the interpreter takes a processor: a module's fixtures are then made once
        tests += ["-n", str(sizes.num_workers), "--dist", "load" if on_card else "loadfile"]
    soak = [python, "-m", "gpu.soak", "--seconds", str(sizes.seconds), *given]
    bench, train = ([python, "-m", f"benchmarks.gpu{module}", *given] for module in ("", ".training"))
    tests_at, benchmarks_at = ROOT / "tests" / "gpu", ROOT / "benchmarks" / "gpu"
    of_tests = (*kernels, "pytest", "pytest_timeout", "hypothesis")
    of_training = ("torch", "numpy", "relive", "gymnasium", "rich")
    size, limit_s = f"{sizes.seconds} s", 240.0 if on_card else 900.0
    soak_limit_s = sizes.seconds + (90.0 if on_card else 290.0)  # a round of the interpreter takes seconds
    return [
        Part("tests", [*tests, "tests/gpu"], limit_s, of_tests, tests_at / "__init__.py", of_kernels),
        Part("soak", soak, soak_limit_s, kernels, tests_at / "soak.py", of_kernels, size),
        Part("bench", bench, 300.0, kernels, benchmarks_at / "__main__.py", of_kernels),
        Part("train", train, 300.0, of_training, benchmarks_at / "training.py"),
    ]


def reason_against(part: Part, machine: dict[str, Any]) -> str:
    """Why the part cannot start here; empty if it can."""
    missing = [name for name in part.needs if name not in machine]
    if missing:
        told = f" ({machine['torch_problem']})" if "torch" in missing and "torch_problem" in machine else ""
        return f"missing packages: {', '.join(missing)}{told}"
    if not part.module.exists():
        return f"missing file: {part.module.relative_to(ROOT)} does not exist"
    return ""


def run_part(part: Part, log: Path) -> Outcome:
    """Runs a part until it ends, or its limit. Ctrl-C ends the part and is raised again after its end."""
    began_s, result = time.monotonic(), FAILED
    with log.open("w", encoding="utf-8") as file:
        file.write(f"{' '.join(part.command)}\n")
        file.flush()
        process = subprocess.Popen(
            part.command,
            cwd=ROOT,
            env=environment({"PYTHONUNBUFFERED": "1", **part.variables}),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            result = PASSED if process.wait(part.limit_s) == 0 else FAILED
        except subprocess.TimeoutExpired:
            result = TIMED_OUT
        finally:
            end(process)
    outcome = read_log(log, result, time.monotonic() - began_s)
    if result == TIMED_OUT:
        outcome.last_line = f"ended at its limit of {part.limit_s:.0f} s"
    elif result == FAILED:
        outcome.last_line = f"exit status {process.returncode}: {outcome.last_line}"
    return outcome


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a part and every process that it started: by SIGINT, then by SIGKILL. Does nothing after a clean end."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(TO_END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_log(log: Path, result: str, seconds: float) -> Outcome:
    """The last line of a log, and the lines that name skipped and failed work."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    remarks = list(dict.fromkeys(line for line in lines if REMARK.match(line)))
    if len(remarks) > NUM_REMARKS:
        remarks = [*remarks[:NUM_REMARKS], f"... and {len(remarks) - NUM_REMARKS} more lines, in the log"]
    return Outcome(result, round(seconds, 1), str(log), lines[-1][:200] if len(lines) > 1 else "", remarks)


def last_lines(log: Path, number: int = 30) -> Iterator[str]:
    """The end of a log."""
    yield from log.read_text(encoding="utf-8", errors="replace").splitlines()[-number:]
