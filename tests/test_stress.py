"""The stress programme of tests/cpp, in short: `make soak` runs it at length, `make mutants` shows that it bites.

Every byte of every window that a sampler gets is verified. Meanwhile processes are killed at random, stopped, and made
to die after each store that the protocol orders.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "cpp-unit"
# Rules whose absence shows within a second: were they not noticed, the green runs below would mean nothing.
QUICK_MUTANTS = (
    "G4_recheck",
    "G11_once",
    "H1_check_in_lock",
    "E2_lock_byte",
    "D6_moves",
    "C1_lock",
    "X3_rows",
    "X5_recheck",
    "L1_bit",
    "L2_rows",
    "L4_once",
    "V1_items",
    "Y4_cut",
    "Y6_weight",
    "R1_order",
    "R2_most",
    "R3_update",
    "D8_lighter",
    "D8_recover",
    "R5_room",
    "R5_settle",
    "T1_since",
    "T2_overdue",
    "Q1_condition",
    "H1_index",
    "H4_update",
    "J3_note",
    "J5_heads",
    "J5_last_row",
    "J5_frozen_cell",
    "U1_follow",
    "U2_class",
    "U3_rebuild",
)

TRIES = 5
IS_FOR_A_RELEASE = os.environ.get("RELIVE_TEST_ALL") == "1"
KILLS = "--seconds 1.5 --random-kills 15 --stops 10 --self-kills 30"
if IS_FOR_A_RELEASE:
    KILLS = "--seconds 3 --random-kills 30 --stops 20 --self-kills 60"
# Each flag of the programme, with others that do not exclude it.
TOGETHER = (
    "--seconds 2 --threads-only --samples-per-insert 8",
    f"{KILLS} --two-indexes --short-lanes --max-times 3 --late",
    f"{KILLS} --explicit --abandon --late --rounds 0",
    f"{KILLS} --groups --abandon --late --stateless --weigh",
    f"{KILLS} --where --late --rounds 1 --sampler fading --two-indexes",
    f"{KILLS} --distinct --two-indexes --max-times 3 --sampler rank_based --where --rounds 0",
    f"{KILLS} --abandon --sequences cross --sampler shuffle --max-times 2",
    f"{KILLS} --sequences head --ragged --max-times 3 --sampler latest --late",
    f"{KILLS} --late --groups --max-items 100 --max-wait 0.003 --two-indexes --short-lanes",
    f"{KILLS} --max-items 150 --remover min_priority --two-indexes --sampler max_priority --where --max-times 2",
    f"{KILLS} --max-items 150 --remover prioritized --sampler top_k --max-times 3",
    f"{KILLS} --explicit --groups --remover uniform --late --max-wait 0.005 --weigh",
    f"{KILLS} --explicit --groups --late --remover min_priority --max-staleness 500000000 --max-times 3",
    f"{KILLS} --sampler fifo --max-times 1 --updaters 0 --max-items 150 --remover lifo",
    f"{KILLS} --saves --late --two-indexes --explicit --groups",
    "--fail-points 1 --seconds-a-point 10 --max-times 3",
    "--fail-points 2 --seconds-a-point 5 --point raise_",
)
# The flags one or two at a time, as a failure is easiest to read: `make test-all`, and at length in `make soak`.
ALONE = (
    "--seconds 3",
    "--seconds 3 --random-kills 30 --stops 20 --self-kills 60 --max-times 3",
    "--seconds 3 --random-kills 30 --stops 20 --self-kills 60 --two-indexes",
    "--seconds 3 --random-kills 30 --stops 20 --self-kills 60 --short-lanes",
    "--seconds 3 --random-kills 30 --stops 20 --self-kills 60 --explicit",
    "--seconds 3 --random-kills 30 --stops 20 --self-kills 60 --late",
    "--seconds 3 --random-kills 30 --stops 20 --self-kills 60 --abandon",
    "--seconds 3 --random-kills 30 --self-kills 60 --abandon --explicit --late",
    "--seconds 3 --random-kills 30 --self-kills 60 --groups",
    "--seconds 3 --random-kills 30 --self-kills 60 --where --late --rounds 1",
    "--seconds 3 --random-kills 30 --stops 20 --self-kills 60 --saves --late",
    "--seconds 3 --random-kills 30 --stops 20 --self-kills 60 --saves --sequences shift --short-lanes",
    "--seconds 3 --random-kills 30 --self-kills 60 --weigh --late",
    "--seconds 3 --random-kills 30 --self-kills 60 --distinct --two-indexes --max-times 3",
    "--seconds 3 --random-kills 30 --self-kills 60 --distinct --sampler rank_based --where --rounds 0",
    "--seconds 3 --random-kills 30 --self-kills 60 --groups --abandon --late --stateless",
    "--seconds 3 --random-kills 30 --self-kills 60 --abandon --sequences cross",
    "--seconds 3 --random-kills 30 --self-kills 60 --sequences head --ragged --max-times 3",
    "--seconds 3 --random-kills 30 --self-kills 60 --late --groups --max-items 100 --max-wait 0.003 --two-indexes",
    "--seconds 3 --random-kills 30 --self-kills 60 --max-items 150 --remover min_priority --two-indexes",
    "--seconds 3 --random-kills 30 --self-kills 60 --max-items 150 --remover prioritized --sampler max_priority",
    "--seconds 3 --random-kills 30 --self-kills 60 --explicit --groups --remover min_priority --max-times 3",
    "--seconds 3 --random-kills 30 --self-kills 60 --explicit --groups --remover uniform --late --max-wait 0.005",
    "--seconds 3 --random-kills 30 --self-kills 60 --sampler fifo --max-times 1 --updaters 0",
    "--seconds 3 --random-kills 30 --stops 20 --self-kills 60 --sampler rank_based --two-indexes",
    "--seconds 3 --random-kills 30 --self-kills 60 --sampler top_k --max-items 150 --remover lifo --max-times 3",
    "--seconds 3 --random-kills 30 --self-kills 60 --sampler max_priority --where --max-times 2",
    "--seconds 3 --random-kills 30 --self-kills 60 --sampler latest --late --max-times 3",
    "--seconds 3 --random-kills 30 --stops 20 --self-kills 60 --sampler fading --where --two-indexes",
    "--seconds 3 --random-kills 30 --self-kills 60 --sampler shuffle --max-times 2 --sequences cross",
    "--seconds 3 --random-kills 30 --self-kills 60 --max-staleness 500000000 --explicit --groups --late",
)

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cmake") is None or shutil.which("ninja") is None,
    reason="needs Linux, cmake and ninja",
)


@pytest.fixture(scope="module")
def stress() -> Path:
    """The programme, built with fail points and switchable rules."""
    subprocess.run([sys.executable, str(ROOT / "scripts/cpp_tests.py"), "build", "unit", "stress"], check=True)
    return BUILD / "stress"


def run(stress: Path, options: str, dumps_core: bool = True) -> tuple[int, str]:
    done = subprocess.run(
        [str(stress), *options.split(), "--quiet"], capture_output=True, text=True, errors="replace", timeout=240,
        preexec_fn=None if dumps_core else no_core_dump,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def no_core_dump() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@pytest.mark.forms(8)
@pytest.mark.timeout(300, func_only=True)  # the first test waits for the build of the programme
@pytest.mark.parametrize(
    "options", [*TOGETHER, *(pytest.param(options, marks=pytest.mark.thorough) for options in ALONE)]
)
def test_nothing_is_torn_lost_or_stuck(stress: Path, options: str) -> None:
    status, output = run(stress, options)
    assert status == 0, output
    assert "torn 0, violations 0, hangs 0, crashes 0, overruns 0" in output


@pytest.mark.timeout(300, func_only=True)
@pytest.mark.parametrize("rule", QUICK_MUTANTS)
def test_a_missing_rule_is_noticed(stress: Path, rule: str) -> None:
    items = {
        "X": "--explicit",
        "L": "--late",
        "V": "--abandon",
        "Y": "--groups",
        "Y6": "--weigh",
        "R": "--max-items 150 --remover min_priority",
        "Q": "--where",
        "T": "--late --max-wait 0.002",
        "U": "--sampler rank_based --self-kills 60",
        "D8": "--max-items 150 --remover min_priority --two-indexes --self-kills 60",
        # Only a death between a page's weight and the sums above it leaves work to that rule.
        "D8_recover": "--max-items 150 --remover min_priority --point page_ranked"
        " --fail-points 1000 --seconds-a-point 20",
        "R5": "--explicit --groups --remover lifo --self-kills 60",
        "G11_once": "--distinct",
        "H1_index": "--second-priorities --n-step 20",
        "J": "--saves --late",
        # A process dies that changed rows of a page whose image an earlier save has. Pages outlast several saves.
        "J3_note": "--saves --late --capacity 8000 --writers 1 --point change_made"
        " --fail-points 200 --seconds-a-point 8",
    }
    more = items.get(rule, items.get(rule[:2], items.get(rule[0], "")))
    recipe = f"--seconds 20 --random-kills 20 --stops 20 {more} --mutant {rule}"
    for seed in range(1, TRIES + 1):  # until it is noticed: how soon that is depends on chance and on the machine
        status, output = run(stress, f"{recipe} --seed {seed}", dumps_core=False)
        if status != 0:
            return
    raise AssertionError(output)
