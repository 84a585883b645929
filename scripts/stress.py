"""The stress programme of tests/cpp at length, and the proof that it bites.

usage: python scripts/stress.py soak      races, 2,000 kills, a death forced at every numbered point (about an hour)
       python scripts/stress.py mutants [RULE ...]   one rule of the protocol switched off at a time: must go red
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cpp-unit"
# The recipe that saw a rule's absence the last time: the hunt tries it first, and writes what it found.
SEEN_WITH = ROOT / "tests" / "cpp" / "seen_with.json"
SOAK = (
    "--seconds 60",
    "--seconds 60 --threads-only",
    "--seconds 900 --random-kills 2000 --stops 1000 --self-kills 500",
    "--seconds 300 --random-kills 600 --stops 300 --self-kills 200 --max-times 3",
    "--seconds 300 --random-kills 600 --stops 300 --self-kills 200 --samples-per-insert 8",
    "--seconds 300 --random-kills 600 --stops 300 --self-kills 200 --n-step 20 --stack 12 --two-indexes",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --n-step 20 --second-priorities",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --n-step 20 --stateless --max-times 1",
    "--seconds 120 --random-kills 200 --stops 100 --uniform",
    "--seconds 300 --random-kills 600 --stops 300 --self-kills 200 --short-lanes --max-times 3",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --short-lanes --n-step 20 --stateless",
    "--seconds 300 --random-kills 600 --stops 300 --self-kills 200 --explicit",
    "--seconds 300 --random-kills 600 --stops 300 --self-kills 200 --explicit --stateless --max-times 3",
    "--seconds 300 --random-kills 600 --stops 300 --self-kills 200 --rounds 0",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --rounds 0 --max-times 3",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --rounds 1 --n-step 20 --stack 12 --two-indexes",
    "--seconds 300 --random-kills 600 --stops 300 --self-kills 200 --sequences shift --two-indexes",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sequences pad --max-times 3",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sequences drop --stateless",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sequences tail --short-lanes",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sequences head --max-times 1",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sequences random --short-lanes",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sequences head --ragged --max-times 3",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sequences tail --ragged --stateless --two-indexes",
    "--seconds 300 --random-kills 600 --stops 300 --self-kills 200 --late --two-indexes",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --late --n-step 20 --stateless --max-times 3",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --late --explicit --short-lanes",
    "--fail-points 20",
    "--fail-points 20 --max-times 3",
    "--fail-points 20 --n-step 20 --stack 12 --two-indexes",
    "--fail-points 20 --n-step 20 --stateless",
    "--fail-points 20 --explicit --max-times 3",
    "--fail-points 20 --sequences shift",
    "--fail-points 20 --late --max-times 3",
    "--fail-points 20 --late --explicit",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sequences cross --short-lanes",
    "--fail-points 20 --sequences cross",
    "--fail-points 20 --sequences head --short-lanes",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --abandon --explicit --late --short-lanes",
    "--seconds 60 --random-kills 100 --stops 50 --self-kills 100 --abandon --sequences cross --stateless",
    "--fail-points 20 --abandon --explicit",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --groups --abandon --max-times 3",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --groups --late --stateless",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --weigh --late",
    "--fail-points 20 --groups --short-lanes",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --max-items 150 --two-indexes --max-times 3",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --late --explicit --max-items 100 --max-wait 0.003",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --groups --abandon --max-wait 0.003 --stateless",
    "--fail-points 20 --late --max-items 100 --max-wait 0.002 --point wait_",
    "--fail-points 20 --max-items 150 --max-times 3 --point order_",
    "--fail-points 20 --max-items 150 --remover min_priority --point order_",
    "--seconds 120 --random-kills 200 --self-kills 200 --max-items 150 --remover min_priority --two-indexes",
    "--seconds 120 --random-kills 200 --self-kills 200 --max-items 150 --remover uniform --sampler lifo --updaters 0",
    "--seconds 120 --random-kills 200 --self-kills 200 --sampler fifo --max-times 1 --updaters 0",
    "--seconds 120 --random-kills 200 --self-kills 200 --sampler max_priority --where --late --max-times 2",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sampler latest --late --max-times 3",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sampler fading --where --two-indexes",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --sampler shuffle --sequences cross --max-times 2",
    "--seconds 120 --random-kills 200 --self-kills 200 --max-staleness 500000000 --explicit --groups --late",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --distinct --two-indexes --max-times 3",
    "--seconds 120 --random-kills 200 --self-kills 200 --distinct --sampler rank_based --where",
    "--seconds 300 --random-kills 600 --stops 300 --self-kills 200 --saves --late --two-indexes",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --saves --sequences shift --short-lanes",
    "--seconds 120 --random-kills 200 --stops 100 --self-kills 200 --saves --explicit --groups --abandon",
    "--fail-points 20 --saves --late --point change_",
)
KILLS = "--seconds 15 --random-kills 80 --stops 30 --self-kills 150"
# Tried in turn, after the one of SEEN_WITH, until one goes red; without a mutant each of them must stay green.
RECIPES = (
    "--seconds 6",
    "--seconds 6 --explicit",
    "--seconds 6 --distinct",
    "--seconds 6 --late",
    "--seconds 6 --abandon",
    "--seconds 6 --abandon --rounds 0",
    "--seconds 6 --late --explicit",
    "--seconds 6 --saves",
    "--seconds 6 --saves --late",
    "--seconds 6 --explicit --rounds 0",
    "--seconds 30 --max-times 1 --stateless --n-step 6",
    "--seconds 6 --sequences drop",
    "--seconds 6 --sequences shift --short-lanes",
    "--seconds 6 --sequences cross",
    "--seconds 6 --sequences head --short-lanes",
    "--seconds 6 --sequences random",
    "--seconds 6 --sequences head --ragged",
    "--seconds 6 --max-items 150",
    "--seconds 6 --max-items 150 --remover min_priority",
    "--seconds 6 --late --max-wait 0.002",
    "--seconds 6 --sampler fading",
    "--seconds 6 --sampler rank_based",
    "--seconds 6 --where",
    "--seconds 6 --second-priorities --n-step 20",
    "--seconds 6 --explicit --groups --remover lifo",
    "--seconds 6 --max-items 150 --remover min_priority --two-indexes",
    KILLS,
    f"{KILLS} --short-lanes",
    f"{KILLS} --max-times 3",
    f"{KILLS} --samples-per-insert 8",
    f"{KILLS} --n-step 20 --stack 12 --two-indexes",
    f"{KILLS} --explicit",
    f"{KILLS} --sequences shift",
    f"{KILLS} --late",
    f"{KILLS} --late --explicit",
    f"{KILLS} --groups",
    f"{KILLS} --groups --late",
    f"{KILLS} --weigh",
    f"{KILLS} --rounds 0",
    f"{KILLS} --sampler rank_based",
    f"{KILLS} --explicit --groups --remover lifo",
    f"{KILLS} --max-items 150 --remover min_priority --two-indexes",
    "--fail-points 20 --seconds-a-point 2 --point wait_ --late --groups --max-wait 0.005",
    "--fail-points 20 --seconds-a-point 2 --max-items 150 --remover min_priority --point order_",
    "--fail-points 1000 --seconds-a-point 30 --max-items 150 --remover min_priority --point page_ranked",
    "--fail-points 200 --seconds-a-point 8 --point change_made --saves --late --capacity 8000 --writers 1",
    "--fail-points 20 --seconds-a-point 2 --point limiter_",
    "--fail-points 20 --seconds-a-point 2 --point raise_",
    "--fail-points 10 --seconds-a-point 1",
    "--fail-points 10 --seconds-a-point 1 --max-times 3",
    "--fail-points 40 --seconds-a-point 8 --point group_ --groups",
)
# A processor with x86's order of stores never shows a missing fence; only the reordering model does.
UNSEEN_ON_X86 = {"D3_fence"}
# Rules that this program cannot judge. The named test removes the rule itself and sees the difference.
SEEN_BY = {
    "G2_likely": "tests/cpp/test_where.cpp",
    "G7_undecided": "tests/cpp/test_pace.cpp",
    "H3_draw": "tests/cpp/test_exponent.cpp",
    "H5_claim": "tests/cpp/test_exponent.cpp",
    "J4_closed": "tests/cpp/test_save.cpp",
    "J7_boot": "tests/cpp/test_kept_file.cpp",
    "J4_floor": "tests/cpp/test_save.cpp",
    "R3_settle": "tests/cpp/test_orders.cpp",
    "Z1_version": "tests/cpp/test_fresh.cpp",
    "Z2_expired": "tests/cpp/test_fresh.cpp",
    "Z3_base": "tests/cpp/test_fresh.cpp",
    "Z4_last": "tests/cpp/test_fresh.cpp",
    "Z4_settle": "tests/cpp/test_fresh.cpp",
    "L7_own": "tests/cpp/test_late.cpp",
    "P2_unused": "tests/cpp/test_limiter_counts.cpp",
    "P4_massless": "tests/cpp/test_limiter_counts.cpp",
    "P5_base": "tests/cpp/test_limiter_counts.cpp",
    "P6_under_way": "tests/cpp/test_limiter_counts.cpp",
    "P6_stands": "tests/cpp/test_limiter_counts.cpp",
    "P7_places": "tests/cpp/test_limiter_counts.cpp",
    "O1_one_step": "tests/cpp/test_shuffle.cpp",
    "O2_same_slot": "tests/cpp/test_shuffle.cpp",
}
TIME_LIMIT_S = 3600


def rules() -> list[str]:
    """Names of the rules that the test build can switch off, as the core declares them."""
    text = (ROOT / "cpp" / "relive" / "words" / "testing.hpp").read_text()
    declared = re.search(r"#define RELIVE_RULES\(X\)((?:.*\\\n)*.*)", text)
    assert declared is not None
    return re.findall(r"X\((\w+)\)", declared.group(1))


def build() -> bool:
    commands = (
        ["cmake", "-S", "tests/cpp", "-B", str(BUILD), "-G", "Ninja"],
        ["cmake", "--build", str(BUILD), "--parallel", "2", "--target", "stress"],
    )
    return all(subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0 for command in commands)


def run(options: str) -> tuple[int, str]:
    """Exit status and last line of one run; a run that crashes or never ends counts as red."""
    command = [str(BUILD / "stress"), *options.split(), "--quiet"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        return 1, f"not done after {TIME_LIMIT_S} s"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return done.returncode, lines[-1] if lines else f"exit status {done.returncode}"


def soak() -> int:
    failed = 0
    for options in SOAK:
        start = time.monotonic()
        status, line = run(options)
        failed += status != 0
        print(f"{options} ({time.monotonic() - start:.0f} s)\n  {line}", flush=True)
    print(f"{len(SOAK) - failed} passed, {failed} failed")
    return 1 if failed else 0


def mutants(names: list[str]) -> int:
    unknown = sorted(set(names) - set(rules()))
    if unknown:
        print(f"unknown rules {unknown}; there are {rules()}")
        return 2
    for options in RECIPES:
        status, line = run(options)
        print(f"no mutant, {options}: {'green' if status == 0 else 'RED'}", flush=True)
        if status != 0:
            print(f"  {line}\n0 passed, 1 failed")
            return 1
    results = [_hunt(name) for name in names or rules()]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


def _hunt(name: str) -> bool:
    """Whether the missing rule was noticed, or cannot be on this processor."""
    start = time.monotonic()
    if name in SEEN_BY:
        print(f"{name}: of {SEEN_BY[name]}", flush=True)
        return True
    if name in UNSEEN_ON_X86 and platform.machine() in ("x86_64", "AMD64"):
        print(f"{name}: not switched off: no run on this processor can show it", flush=True)
        return True
    for options in _recipes_for(name):
        status, line = run(f"{options} --mutant {name}")
        if status == 1:
            print(f"{name}: red after {time.monotonic() - start:.1f} s with {options}\n  {line}", flush=True)
            _note(name, options)
            return True
        if status not in (0, 1):
            print(f"{name}: crashed after {time.monotonic() - start:.1f} s with {options}: {line}", flush=True)
            return status < 0
    print(f"{name}: NOT NOTICED in {time.monotonic() - start:.0f} s", flush=True)
    return False


def _seen_with() -> dict[str, str]:
    seen: dict[str, str] = json.loads(SEEN_WITH.read_text())
    return seen


def _recipes_for(name: str) -> list[str]:
    """All recipes. The one that saw the absence the last time comes first, and twice: a race may need a second try."""
    first = _seen_with().get(name)
    known = [first, first] if first in RECIPES else []
    return [*known, *(options for options in RECIPES if options != first)]


def _note(name: str, options: str) -> None:
    seen = _seen_with()
    if seen.get(name) != options:
        SEEN_WITH.write_text(json.dumps(dict(sorted({**seen, name: options}.items())), indent=1) + "\n")


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in ("soak", "mutants"):
        print(__doc__)
        return 2
    if not build():
        print("the stress programme does not compile")
        return 1
    return soak() if arguments[0] == "soak" else mutants(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
