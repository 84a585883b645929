"""Builds and runs the tests of the C++ core, without Python.

usage: python scripts/cpp_tests.py unit | portable | sanitize
       python scripts/cpp_tests.py build NAME TARGET
  unit      as the library is built, with fail points. Short: fewer seeds and bits, and less time for each race;
            with RELIVE_TEST_ALL=1 (`make test-all`) at full length
  portable  without the Linux files, LocalMemory only: the tests of locks, waits and memory; with RELIVE_TEST_ALL=1
            all tests
  sanitize  under ThreadSanitizer, then under AddressSanitizer and UndefinedBehaviorSanitizer
  build     one target of the build NAME (unit, portable, thread, address) and nothing else

scripts/setup.sh links the module of other Pythons with the core of these builds (the target relive_core), so that each
core is compiled once. Two steps may want one build at the same time: a lock has the second one wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = {
    "unit": [],
    "portable": ["-DRELIVE_PORTABLE=ON"],
    "thread": ["-DRELIVE_SANITIZE=thread"],
    "address": ["-DRELIVE_SANITIZE=address"],
}
BUILDS = {"unit": ["unit"], "portable": ["portable"], "sanitize": ["thread", "address"]}
TIME_LIMIT_S = {"unit": 300, "portable": 300, "sanitize": 900}
SANITIZER_OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def is_for_a_release() -> bool:
    return os.environ.get("RELIVE_TEST_ALL") == "1"


def run(command: list[str], **variables: str) -> int:
    environment = {**SANITIZER_OPTIONS, **os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL).returncode


@contextlib.contextmanager
def alone(folder: str) -> Iterator[None]:
    """Ninja does not share a build folder: a second caller waits for the first."""
    (ROOT / folder).parent.mkdir(exist_ok=True)
    with open(ROOT / f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(name: str, target: str = "all") -> int:
    """The exit status of the first of configure and build that fails, or 0."""
    folder = f"build/cpp-{name}"
    with alone(folder):
        steps = [
            ["cmake", "-S", "tests/cpp", "-B", folder, "-G", "Ninja", *OPTIONS[name]],
            ["cmake", "--build", folder, "--parallel", "2", "--target", target],
        ]
        return next((status for status in map(run, steps) if status != 0), 0)


def build_and_test(name: str, time_limit_s: int) -> int:
    """The exit status of the first of configure, build and ctest that fails, or 0."""
    test = ["ctest", "--test-dir", f"build/cpp-{name}", "--output-on-failure", "--timeout", str(time_limit_s)]
    is_short = name in ("unit", "portable") and not is_for_a_release()
    length = {"RELIVE_TEST_SHORT": "1"} if is_short else {}
    if is_short:
        test += ["--parallel", "2"]  # some tests wait for deadlines, and need no processor meanwhile
    if is_short and name == "portable":
        return build(name, "system_tests") or run([*test, "--label-regex", "system"], **length)
    return build(name) or run(test, **length)


def main(mode: str) -> int:
    failures = []
    for name in BUILDS[mode]:
        print(f"=== C++ tests, {name}", flush=True)
        if build_and_test(name, TIME_LIMIT_S[mode]) != 0:
            failures.append(name)
    print(f"C++ tests, {mode}: " + (f"failed: {', '.join(failures)}" if failures else "passed"))
    return 1 if failures else 0


if __name__ == "__main__":
    words = sys.argv[1:]
    if len(words) == 1 and words[0] in BUILDS:
        sys.exit(main(words[0]))
    if len(words) == 3 and words[0] == "build" and words[1] in OPTIONS:
        sys.exit(build(words[1], words[2]))
    sys.exit(__doc__)
