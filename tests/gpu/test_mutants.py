"""The mutants of scripts/gpu_mutants.py: the list fits the kernels as they are, and the quickest go red here."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu.test_compile import KERNELS
from gpu.test_kinds import CASES, SAMPLED
from gpu.test_samplers import DRAWN

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("draw: a point on a border", "recheck of the page")


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    """The module. It imports other files of scripts by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        yield importlib.import_module("gpu_mutants")


def test_every_mutant_changes_one_place_of_a_kernel(script: Any) -> None:
    names = [mutant.name for mutant in script.MUTANTS]
    assert len(names) == len(set(names))
    for mutant in script.MUTANTS:
        text = (script.PACKAGE / "kernels" / mutant.file).read_text()
        changed = script.mutated(text, mutant)
        compile(changed, mutant.file, "exec")


def test_every_kernel_has_a_mutant_that_takes_what_is_next_to_the_right_one(script: Any) -> None:
    assert {kernel for mutant in script.ROWS for kernel in mutant.kernels} == KERNELS
    assert {kernel for mutant in script.MUTANTS for kernel in mutant.kernels} == KERNELS


def test_every_kind_and_every_sampler_has_a_mutant_that_its_test_must_see(script: Any) -> None:
    """The names of variants are those of the tests, and "[*]" stands for all of them."""
    rows = importlib.import_module("gpu_mutant_rows")
    variants = {
        rows.GATHERS: {str(case.id) for case in CASES},
        rows.SAMPLES: set(SAMPLED),
        rows.DRAWS: set(DRAWN),
    }
    named = {name for mutant in script.MUTANTS for name in mutant.tests}
    for test, its_own in variants.items():
        assert f"{test}[*]" in named
        mine = {name.removeprefix(test)[1:-1] for name in named if name.startswith(test)}
        assert mine <= its_own | {"*"}


def test_the_named_tests_are_there(script: Any) -> None:
    for name in {name.partition("[")[0] for mutant in script.MUTANTS for name in mutant.tests}:
        file, _, test = name.partition("::")
        assert f"\ndef {test}(" in (ROOT / "tests" / "gpu" / file).read_text(), name


def test_a_test_that_stays_green_is_seen(script: Any) -> None:
    """Every variant of a name with "[*]" must go red, and one of another name. An error in a fixture is not red."""
    counts = {
        "all[*]": {"failed": 2},
        "some[*]": {"failed": 1, "passed": 1},
        "one": {"failed": 1, "passed": 1},
        "none": {"passed": 2},
        "broken": {"error": 1},
        "unknown": {},
    }
    assert script.Run(counts, "", 0.0).green == ["some[*]", "none", "broken", "unknown"]
    assert script.Run({"one": {"skipped": 2}}, "", 0.0).is_skipped


def test_the_quickest_mutants_go_red() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "gpu_mutants.py"), "--no-base", *QUICK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == f"{len(QUICK)} passed, 0 failed, 0 skipped"
