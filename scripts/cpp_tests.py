"""Builds and runs the tests of the C++ core, without Python.

usage: python scripts/cpp_tests.py unit | portable | sanitize
  unit      as the library is built, with fail points
  portable  without the one Linux file: LocalMemory only
  sanitize  under ThreadSanitizer, then under AddressSanitizer and UndefinedBehaviorSanitizer
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILDS = {
    "unit": [("unit", [])],
    "portable": [("portable", ["-DRELIVE_PORTABLE=ON"])],
    "sanitize": [("thread", ["-DRELIVE_SANITIZE=thread"]), ("address", ["-DRELIVE_SANITIZE=address"])],
}
TIME_LIMIT_S = {"unit": 120, "portable": 120, "sanitize": 900}
SANITIZER_OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1 second_deadlock_stack=1",
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def run(command: list[str]) -> int:
    return subprocess.run(
        command, cwd=ROOT, env={**SANITIZER_OPTIONS, **os.environ}, stdin=subprocess.DEVNULL
    ).returncode


def build_and_test(name: str, options: list[str], time_limit_s: int) -> int:
    """The exit status of the first of configure, build and ctest that fails, or 0."""
    folder = f"build/cpp-{name}"
    steps = [
        ["cmake", "-S", "tests/cpp", "-B", folder, "-G", "Ninja", *options],
        ["cmake", "--build", folder, "--parallel", "2"],
        ["ctest", "--test-dir", folder, "--output-on-failure", "--timeout", str(time_limit_s)],
    ]
    return next((status for status in map(run, steps) if status != 0), 0)


def main(mode: str) -> int:
    failures = []
    for name, options in BUILDS[mode]:
        print(f"=== C++ tests, {name}", flush=True)
        if build_and_test(name, options, TIME_LIMIT_S[mode]) != 0:
            failures.append(name)
    print(f"C++ tests, {mode}: " + (f"failed: {', '.join(failures)}" if failures else "passed"))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 and sys.argv[1] in BUILDS else __doc__)
