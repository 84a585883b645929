"""Changes one place of the kernels at a time. The named tests of tests/gpu must go red.

usage: python scripts/gpu_mutants.py [--list] [--no-base] [NAME ...]     every mutant, or those whose names contain NAME

A mutant (gpu_mutant_rows.py, gpu_mutant_rules.py) is a change of one file of src/relive/gpu/kernels. Each mutant is
applied to a copy of src/relive/gpu in a temporary folder. A process of its own imports that copy as relive.gpu, with
the compiled core of this environment, and runs the tests that the mutant names. Each named test must fail. The same
tests must pass with the copy unchanged (--no-base leaves this out).

RELIVE_TEST_DEVICE=cuda runs the kernels on a card. Tests that only the interpreter can run are skipped there, and a
mutant whose tests are all skipped counts as skipped.

Exit status 1: a mutant stays green, its old text is not in its file exactly once, or a test fails without a mutant.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from gpu_mutant_rows import ROWS, Mutant
from gpu_mutant_rules import RULES

ROOT = Path(__file__).resolve().parent.parent
_FOUND = importlib.util.find_spec("relive")
PACKAGE = Path(_FOUND.origin or "").parent / "gpu" if _FOUND is not None else ROOT / "src" / "relive" / "gpu"
MUTANTS = (*ROWS, *RULES)
TIME_LIMIT_S = 600  # of one mutant; a mutant that never ends fails, as no test judged it
ON_CARD = os.environ.get("RELIVE_TEST_DEVICE", "cpu") != "cpu"


class CopyFirst:
    """Finds relive.gpu and its modules in a copy, before the finder of an editable install does."""

    def __init__(self, copy: Path) -> None:
        self._copy = copy

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The module's place in the copy. None: another package."""
        if name != "relive.gpu" and not name.startswith("relive.gpu."):
            return None
        place = self._copy.joinpath(*name.split(".")[2:])
        if place.is_dir():
            parts = [str(place)]
            return importlib.util.spec_from_file_location(name, place / "__init__.py", submodule_search_locations=parts)
        return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))


class Outcomes:
    """A plugin of pytest that notes the outcome of each test, and the message of its failure."""

    def __init__(self) -> None:
        self.of: dict[str, tuple[str, str]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest after each phase of a test."""
        known = self.of.get(report.nodeid, ("", ""))[0]
        if report.when != "call" and report.outcome == "passed" or known in ("failed", "error"):
            return
        outcome = "error" if report.outcome == "failed" and report.when != "call" else report.outcome
        crash = getattr(report.longrepr, "reprcrash", None)
        self.of[report.nodeid] = outcome, "" if crash is None else " ".join(crash.message.split())


@dataclasses.dataclass
class Run:
    """The outcomes of the named tests: how many each has of "passed", "failed", "skipped" and "error"."""

    counts: dict[str, dict[str, int]]
    message: str  # of the first failure
    seconds: float
    remark: str = ""  # why the run has no outcomes

    @property
    def is_skipped(self) -> bool:
        """Whether every named test was skipped."""
        return bool(self.counts) and all(set(count) == {"skipped"} for count in self.counts.values())

    @property
    def green(self) -> list[str]:
        """The named tests that did not go red. Every variant of a "[*]" test must fail, and one of another test."""
        return [name for name, count in self.counts.items() if not _is_red(name, count)]


def _is_red(name: str, count: dict[str, int]) -> bool:
    if set(count) == {"skipped"}:
        return True  # on a card; the mutant is skipped if all of its tests are
    return count.get("failed", 0) > 0 and not (name.endswith("[*]") and count.get("passed", 0) > 0)


def mutated(text: str, mutant: Mutant) -> str:
    """The text of a file with the mutant in it. Raises ValueError if the old text is not there exactly once."""
    if text.count(mutant.old) != 1 or mutant.old == mutant.new:
        raise ValueError(f"{mutant.name}: the old text is {text.count(mutant.old)} times in {mutant.file}")
    return text.replace(mutant.old, mutant.new)


def selectors(tests: tuple[str, ...]) -> list[str]:
    """Arguments for pytest: the named tests, with all variants where a name stands for them."""
    return sorted({f"tests/gpu/{name.removesuffix('[*]')}" for name in tests})


def run(mutant: Mutant | None, tests: tuple[str, ...]) -> Run:
    """Runs tests with a copy of the package, which has the mutant in it, in a process of its own."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy, outcomes = Path(folder) / "gpu", Path(folder) / "outcomes.json"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant is not None:
            file = copy / "kernels" / mutant.file
            file.write_text(mutated(file.read_text(), mutant))
        # Forked: torch and triton, imported here once, are not imported again for each mutant.
        process = multiprocessing.get_context("fork").Process(target=_in_copy, args=(copy, selectors(tests), outcomes))
        process.start()
        process.join(TIME_LIMIT_S * (1 if mutant else 10))
        ended = process.exitcode is not None
        process.kill()
        process.join()
        seconds = time.monotonic() - start
        if not outcomes.exists():
            remark = f"ended by signal {-(process.exitcode or 0)}" if ended else f"not done after {seconds:.0f} s"
            return Run({}, "", seconds, remark)
        found: dict[str, tuple[str, str]] = json.loads(outcomes.read_text())
    messages = [message for outcome, message in found.values() if outcome == "failed"]
    return Run({name: _counts_of(name, found) for name in tests}, messages[0] if messages else "", seconds)


def _counts_of(name: str, found: dict[str, tuple[str, str]]) -> dict[str, int]:
    test = f"tests/gpu/{name.removesuffix('[*]')}"
    mine = [outcome for test_id, (outcome, _) in found.items() if test_id == test or test_id.startswith(f"{test}[")]
    return {outcome: mine.count(outcome) for outcome in set(mine)}


def _in_copy(copy: Path, tests: list[str], outcomes: Path) -> None:
    """The work of the process: pytest, with relive.gpu from the copy."""
    import pytest

    os.chdir(ROOT)
    sys.meta_path.insert(0, CopyFirst(copy))  # type: ignore[arg-type]  # a finder needs no other method
    plugin = Outcomes()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--tb=short", *tests], plugins=[plugin])
    kernels = sys.modules.get("relive.gpu.kernels.words")
    if kernels is None or not str(kernels.__file__).startswith(str(copy)):
        print(printed.getvalue()[-2000:], file=sys.stderr)
        raise ImportError("the tests did not import relive.gpu from the copy")
    outcomes.write_text(json.dumps(plugin.of))


def judge(mutant: Mutant) -> tuple[str, Run]:
    """(verdict, the run) of one mutant. A crash is as good as red: no test passes."""
    result = run(mutant, mutant.tests)
    if result.remark:
        return "crash" if "signal" in result.remark else "HUNG", result
    if result.is_skipped and ON_CARD:
        return "skipped", result
    return "GREEN" if result.green else "red", result


def report(mutant: Mutant, verdict: str, result: Run) -> None:
    """Prints one row of the table, and the tests that stayed green."""
    reds = sum(count.get("failed", 0) for count in result.counts.values())
    all_tests = sum(sum(count.values()) for count in result.counts.values())
    line = result.remark or result.message
    where = f"{mutant.name} ({', '.join(mutant.kernels)})"
    print(f"{verdict:8}{where:85} {reds:3} of {all_tests:<3} {result.seconds:5.1f} s  {line[:90]}", flush=True)
    for name in result.green if verdict == "GREEN" else ():
        print(f"        stays green: {name} {result.counts[name]}", flush=True)


def base_is_green(chosen: list[Mutant]) -> bool:
    """Whether the tests of these mutants pass without a mutant."""
    result = run(None, tuple(sorted({name for mutant in chosen for name in mutant.tests})))
    failing = {name: count for name, count in result.counts.items() if not set(count) <= {"passed", "skipped"}}
    unknown = [name for name, count in result.counts.items() if not count]
    is_green = bool(result.counts) and not failing and not unknown
    print(f"no mutant: {'green' if is_green else 'RED'} ({result.seconds:.0f} s) {result.remark or result.message}")
    for name in (*failing, *unknown):
        print(f"        {'fails' if name in failing else 'no such test'}: {name}")
    return is_green


def main(arguments: list[str]) -> int:
    """Judges mutants, and returns the exit status."""
    names = [name for name in arguments if not name.startswith("--")]
    chosen = [mutant for mutant in MUTANTS if not names or any(name in mutant.name for name in names)]
    if not chosen or not {name for name in arguments if name.startswith("--")} <= {"--list", "--no-base"}:
        print(__doc__)
        return 2
    if "--list" in arguments:
        print("\n".join(f"{mutant.name} ({', '.join(mutant.kernels)})" for mutant in chosen))
        return 0
    if not ON_CARD:
        os.environ["TRITON_INTERPRET"] = "1"
    for module in ("torch", "triton", "pytest", "relive"):
        importlib.import_module(module)
    if "--no-base" not in arguments and not base_is_green(chosen):
        return 1
    verdicts = []
    for mutant in chosen:
        verdict, result = judge(mutant)
        report(mutant, verdict, result)
        verdicts.append(verdict)
    passed, skipped = sum(verdict in ("red", "crash") for verdict in verdicts), verdicts.count("skipped")
    failed = len(verdicts) - passed - skipped
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
