"""Runs every check of the project and ends with one line: how many passed, failed and were skipped.

Six lanes run at a time, since most tests wait more than they compute:

- style, types, words, and most tests of Python 3.11;
- the tests of training;
- the tests of processes and services, with the stress programme, and then the contract held by served and sharded
  tables;
- the tests of fleets, loaders and tiers, which wait most of their time, and then those of kernels, which never wait;
- the other Pythons: each environment is made and tested;
- the C++ tests, and the portable build: its environment and its C++ tests; and then the naive twins.

The other Pythons and the builds run at a slightly lower priority. The first lane alone shows its output as it comes.
The others show that of each step at its end.

usage: python scripts/run_tests.py [--lint | --quick] [--all] [--others "3.10 3.12 3.13 3.14"]

A pytest step counts its tests; any other step counts as one. A Python that is not on the machine is named, with the
reason, and counts as skipped. `--all` adds the tests marked `thorough`, which repeat in another form what the others
check. On the other Pythons and on the portable build it adds every test of package and core, also the tests marked
`core_alone`: long programs of the C++ core, to which every Python is alike.

nox was tried for the other Pythons. It finds only interpreters that start by their name in PATH: on a machine with
pyenv it found none of three that scripts/find_python.sh finds, and it does not say what an interpreter lacks. It asks
the package index again for each environment in which nothing changed (seven seconds; the stamps of scripts/setup.sh
take a fifth of a second).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import crashes

ROOT = Path(__file__).resolve().parent.parent
TRAINING = ["tests/train"]
PROCESSES = [f"tests/{name}" for name in ("processes", "service", "test_stress.py", "test_warm.py")]
REMOTE = [f"tests/contract/test_{name}.py" for name in ("remote", "remote_streaming", "remote_tokens")]
REMOTE += [f"tests/contract/test_{name}.py" for name in ("fleet", "fleet_remote", "fleet_nixl")]
FLEETS = ["tests/fleet", "tests/loading", "tests/tiered"]
KERNELS = ["tests/gpu"]
NAIVE = ["tests/naive"]
CORE_TESTS = ["tests/unit", "tests/core", "tests/contract"]  # of package and core, without the learning stack
OTHER_TESTS = ["tests/unit", "tests/core", "tests/contract/test_local.py", "tests/contract/test_shared.py"]
PORTABLE_TESTS = OTHER_TESTS[:-1]  # it has no shared memory
CLOSING_LINE = re.compile(r"^=*\s*(?=.*\d+ (?:passed|failed|skipped|errors?|deselected)).* in [\d.]+s")
COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
CTEST_LINE = re.compile(r"^\d+% tests passed(?:, (\d+) tests? failed)? out of (\d+)")
NO_TESTS_COLLECTED = 5
FATAL = "Fatal Python error"  # what Python says of a signal that ends it, before it says where its threads were
BESIDE = (
    1  # niceness of the other Pythons and the builds: more, and the stress programme waits for their build of the core
)
LONGEST_S = 2_400.0  # of a step: one that hangs ends then, with a backtrace of every thread
GRACE_S = 30.0  # for the backtraces and a core dump of a step that hung


@dataclasses.dataclass
class Outcome:
    """The result of one step."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    processor_s: float = 0.0  # of the step's processes, those that it waited for
    remark: str = ""


def place_of_death(lines: list[str]) -> str:
    """Where the thread was that a signal came to, from what Python said of it; a page of other threads surrounds it."""
    at = next((k for k, line in enumerate(lines) if line.startswith("Current thread")), None)
    if at is None:
        return "in a thread that is not Python's" if lines else ""
    frames = [line.strip() for line in lines[at + 1 : at + 5] if line.startswith("  ")]
    return "; ".join(frames)


def waited_for(process: subprocess.Popen[str]) -> tuple[int, float]:
    """Waits for a process. Returns its exit status and the processor seconds of the process and its children."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_utime + usage.ru_stime


def with_children(pid: int) -> list[int]:
    """The process and all processes below it, as far as Linux lists them."""
    found = [pid]
    for parent in found:
        with contextlib.suppress(OSError):
            for listed in Path(f"/proc/{parent}/task").glob("*/children"):
                found += [int(child) for child in listed.read_text().split()]
    return found


def end_all(process: subprocess.Popen[str]) -> None:
    """Ends a step that hangs: the process shows its threads and dies, and then the processes that it leaves behind."""
    pids = with_children(process.pid)
    process.send_signal(signal.SIGABRT)
    time.sleep(GRACE_S)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run_command(
    name: str,
    command: list[str],
    environment: dict[str, str] | None = None,
    niceness: int = 0,
    folder: Path = ROOT,
) -> Outcome:
    """Runs a command in a folder; pytest's closing line, if there is one, gives the counts.

    The output is shown as it comes; a command that runs on another thread shows its output at its end. After a death
    by a signal the output ends with a native backtrace of every thread.
    """
    is_beside = threading.current_thread() is not threading.main_thread()
    shown: list[str] = []

    def show(line: str) -> None:
        if is_beside:
            shown.append(line)
        else:
            print(line, end="", flush=True)

    show(f"\n--- {name}: {' '.join(command)}\n")
    if niceness:
        command = ["nice", "-n", str(niceness), *command]
    start = time.monotonic()
    counts: dict[str, int] = {}
    last_words: list[str] = []
    watch = crashes.Watch(folder)
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        crashes.allow(process.pid)
        limit = threading.Timer(LONGEST_S, end_all, [process])
        limit.daemon = True
        limit.start()
        assert process.stdout is not None
        for line in process.stdout:
            show(line)
            if last_words or FATAL in line:
                last_words.append(line)
            if "pytest" in command and CLOSING_LINE.match(line):
                counts = {word.rstrip("s"): int(number) for number, word in COUNT.findall(line)}
            elif found := CTEST_LINE.match(line):
                failed, total = (int(number or 0) for number in found.groups())
                counts = {"passed": total - failed, "failed": failed}
        status, processor_s = waited_for(process)
        limit.cancel()
    backtraces, native_place = watch.report(status)
    show(backtraces)
    print("".join(shown), end="", flush=True)
    outcome = Outcome(name, seconds=time.monotonic() - start, processor_s=processor_s)
    outcome.passed, outcome.skipped = counts.get("passed", 0), counts.get("skipped", 0)
    outcome.failed = counts.get("failed", 0) + counts.get("error", 0)
    if status == 0 and not counts:
        outcome.passed = 1
    if status == 0 and backtraces:
        outcome.remark = f"a signal killed a process of some step, {', '.join(watch.tests)}: backtraces in the output"
    if status not in (0, NO_TESTS_COLLECTED) and outcome.failed == 0:
        outcome.failed = 1
        outcome.remark = f"exit status {status} {place_of_death(last_words)}".rstrip()
        outcome.remark += f"; native frame: {native_place}" if native_place else ""
    return outcome


def cpp_files() -> list[str]:
    return sorted(
        str(path.relative_to(ROOT)) for folder in ("cpp", "tests") for path in (ROOT / folder).rglob("*.[ch]pp")
    )


def lint_steps() -> list[Outcome]:
    return [
        run_command("style of Python", [sys.executable, "-m", "ruff", "check", "."]),
        run_command("style of C++", ["clang-format", "--dry-run", "--Werror", *cpp_files()]),
        run_command("types", [sys.executable, "-m", "mypy"]),
        run_command("words", [sys.executable, "scripts/lint_words.py"]),
    ]


def is_for_a_release() -> bool:
    """Whether `--all` was given: tests see it too (tests/warm.py)."""
    return os.environ.get("RELIVE_TEST_ALL") == "1"


def pytest_step(name: str, python: str, arguments: list[str]) -> Outcome:
    marks = "not soak" if is_for_a_release() else "not soak and not thorough"
    return run_command(name, [python, "-m", "pytest", "-q", "-m", marks, *arguments])


@dataclasses.dataclass(frozen=True)
class Environment:
    """An environment without the learning stack, in which tests of package and core are repeated."""

    name: str
    kind: str  # of scripts/setup.sh
    version: str
    folder: str
    tests: list[str]
    variables: dict[str, str] = dataclasses.field(default_factory=dict)


def portable() -> Environment:
    tests = CORE_TESTS if is_for_a_release() else PORTABLE_TESTS
    variables = {"RELIVE_TEST_PORTABLE": "1"}
    return Environment("portable build (LocalMemory only)", "portable", "3.11", ".venv-portable", tests, variables)


def other_python(version: str) -> Environment:
    tests = CORE_TESTS if is_for_a_release() else OTHER_TESTS
    return Environment(f"package and core, Python {version}", "core", version, f".venv-{version}", tests)


def set_up(environment: Environment) -> Outcome:
    """Makes an environment, after other steps where they want the processor. Prints only a failure."""
    name, start = f"{environment.name}, set-up", time.monotonic()
    if environment.kind == "core":
        found = subprocess.run(
            ["scripts/find_python.sh", environment.version], cwd=ROOT, capture_output=True, text=True
        )
        if found.returncode != 0:
            return Outcome(name, skipped=1, remark="skipped: " + found.stderr.strip().splitlines()[0])
    command = ["nice", "-n", str(BESIDE), "scripts/setup.sh", environment.kind, environment.version, environment.folder]
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    seconds = time.monotonic() - start
    if done.returncode == 0:
        return Outcome(name, passed=1, seconds=seconds)
    print(f"\n--- {name} failed:\n{done.stdout}{done.stderr}", flush=True)
    return Outcome(name, failed=1, seconds=seconds, remark="set-up failed")


def made_and_tested(environment: Environment) -> Outcome:
    prepared = set_up(environment)
    if prepared.failed or prepared.skipped:
        print(f"\n--- {environment.name}: {prepared.remark}", flush=True)
        return dataclasses.replace(prepared, name=environment.name)
    marks = "not soak" if is_for_a_release() else "not soak and not thorough and not core_alone"
    command = [f"{environment.folder}/bin/python", "-m", "pytest", "-q", "-m", marks, "-p", "no:cacheprovider"]
    return run_command(environment.name, [*command, *environment.tests], environment.variables, BESIDE)


def cpp_step(name: str, mode: str, niceness: int = 0) -> Outcome:
    return run_command(name, [sys.executable, "scripts/cpp_tests.py", mode], niceness=niceness)


def python_tests(name: str, paths: list[str]) -> Outcome:
    return pytest_step(f"{name}, Python 3.11", sys.executable, ["-p", "no:cacheprovider", *paths])


def all_steps(others: list[str], quick: bool) -> list[Outcome]:
    with contextlib.ExitStack() as stack:
        lanes = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(5)]
        training, processes, fleets, pythons, builds = lanes
        beside = [training.submit(python_tests, "tests of training", TRAINING)]
        beside += [processes.submit(python_tests, "tests of processes", PROCESSES)]
        beside += [processes.submit(python_tests, "the contract elsewhere", REMOTE)]
        beside += [fleets.submit(python_tests, "tests of fleets", FLEETS)]
        beside += [fleets.submit(python_tests, "tests of kernels", KERNELS)]
        if not quick:
            # One by one: two Pythons may share a wheel.
            beside += [pythons.submit(made_and_tested, other_python(version)) for version in others]
            beside += [builds.submit(cpp_step, "C++ tests", "unit", BESIDE)]
            beside += [builds.submit(made_and_tested, portable())]
            beside += [builds.submit(cpp_step, "C++ tests, portable build", "portable", BESIDE)]
        beside += [builds.submit(python_tests, "tests beside naive twins", NAIVE)]
        elsewhere = [f"--ignore={path}" for path in (*TRAINING, *PROCESSES, *REMOTE, *FLEETS, *KERNELS, *NAIVE)]
        outcomes = [*lint_steps(), python_tests("tests", ["tests", *elsewhere])]
        outcomes += [step.result() for step in beside]
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs every check of the project.")
    parser.add_argument("--lint", action="store_true", help="style and types only")
    parser.add_argument("--quick", action="store_true", help="leave out other Pythons and the portable build")
    parser.add_argument("--all", action="store_true", help="add the tests that run before a release only")
    parser.add_argument("--others", default="", help="further Python versions, separated by blanks")
    arguments = parser.parse_args()
    if arguments.all:
        os.environ["RELIVE_TEST_ALL"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each process of a test would compile the package again
    outcomes = lint_steps() if arguments.lint else all_steps(arguments.others.split(), arguments.quick)

    print("\n" + "-" * 100)
    for outcome in outcomes:
        counts = f"{outcome.passed} passed, {outcome.failed} failed, {outcome.skipped} skipped"
        times = f"{outcome.seconds:6.1f} s {outcome.processor_s:6.1f} s of processor"
        print(f"{outcome.name:42s} {counts:40s} {times}  {outcome.remark}")
    passed, failed, skipped = (sum(getattr(one, word) for one in outcomes) for word in ("passed", "failed", "skipped"))
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
