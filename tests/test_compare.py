"""`make bench-compare` but for the compiler: its arithmetic, its turns, its environments, every case at a tiny size."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import relive
from relive import _core

pytest.importorskip("benchmarks.compare", reason="benchmarks lie beside the tests in the source tree only")
from benchmarks import builds, compare, compare_worker  # noqa: E402

TINY = compare_worker.Scale(hopper=3000, atari=600, service=600, tiers=40)


class Echo:
    """Stands in for a process: notes which process was asked for which case, and answers with its own figure."""

    def __init__(
        self, role: str, figure_us: float, asked: list[tuple[str, str]], paces: Iterable[float] = itertools.repeat(1.0)
    ) -> None:
        self._role, self._figure_us, self._asked = role, figure_us, asked
        self._paces, self.pace_us = iter(paces), 0.0

    def measure(self, case: str) -> float:
        self._asked.append((case, self._role))
        self.pace_us = next(self._paces)
        return self._figure_us


def test_pairs_are_spread_evenly_over_the_generations() -> None:
    assert compare.shares(24, 6) == [range(begin, begin + 4) for begin in range(0, 24, 4)]
    assert [len(turns) for turns in compare.shares(25, 6)] == [4, 4, 4, 4, 4, 5]
    assert [len(turns) for turns in compare.shares(10, 6)] == [5, 5], "few pairs open few tables"
    assert compare.shares(2, 6) == [range(0, 2)]


def test_every_order_of_the_three_comes_equally_often_and_the_first_turn_does_not_count() -> None:
    asked: list[tuple[str, str]] = []
    workers: Any = {
        role: Echo(role, figure, asked) for role, figure in zip(compare.ROLES, (1.0, 2.0, 3.0), strict=True)
    }
    found = compare.take_turns(workers, ["sample", "update"], range(0, 12))
    assert found == {case: [{"base": 1.0, "new": 2.0, "null": 3.0}] * 12 for case in ("sample", "update")}
    turns = [tuple(asked[begin : begin + 3]) for begin in range(6, len(asked), 3)]
    orders = Counter(tuple(role for _, role in turn) for turn in turns)
    assert orders == {order: 4 for order in itertools.permutations(compare.ROLES)}
    assert all(len({case for case, _ in turn}) == 1 for turn in turns), "a turn is of one case"


def test_a_turn_within_which_the_machine_changed_its_pace_is_taken_again() -> None:
    asked: list[tuple[str, str]] = []
    workers: Any = {
        "base": Echo("base", 1.0, asked, [5.0, 5.0, 9.0, 9.0]),
        "new": Echo("new", 2.0, asked, [5.3, 9.9, 9.1, 9.2]),
        "null": Echo("null", 3.0, asked, [5.0, 9.9, 9.3, 9.5]),
    }
    uneven: Counter[str] = Counter()
    compare.take_turn(workers, "sample", compare.ROLES, uneven)
    assert len(asked) == 3 * 3, "6 % in the first, twice the time in the second, 3 % in the third"
    assert not uneven
    workers["base"]._paces, workers["new"]._paces = itertools.repeat(1.0), itertools.repeat(2.0)
    workers["null"]._paces = itertools.repeat(1.0)
    found = compare.take_turns(workers, ["update"], range(0, 2), uneven)
    assert len(found["update"]) == 2, "a machine that never comes to rest is measured as it is"
    assert uneven == {"update": 3}, "and it is told, the turn before those that count too"


def test_ratios_are_taken_turn_by_turn() -> None:
    """A machine that doubles its speed in mid-run changes no ratio."""
    slow = [{"base": 10.0, "new": 9.0, "null": 10.0}, {"base": 10.0, "new": 11.0, "null": 10.0}]
    quick = [{"base": 5.0, "new": 5.0, "null": 5.25}, {"base": 5.0, "new": 5.1, "null": 4.9}]
    summary = compare.summarise([slow, quick])
    assert summary["new"] == {
        "median": 1.01,
        "q1": 0.975,
        "q3": 1.04,
        "min": 0.9,
        "max": 1.1,
        "generation_medians": [1.0, 1.01],
    }
    assert (summary["null"]["median"], summary["null"]["min"], summary["null"]["max"]) == (1.0, 0.98, 1.05)
    assert (summary["base_us"], summary["new_us"], summary["pairs"]) == (7.5, 7.05, 4)
    assert compare.summarise([slow[:1]])["new"]["q3"] == 0.9, "one pair is its own spread"


def test_a_run_noisier_than_the_limit_proves_nothing() -> None:
    verdicts = {
        (new, null): compare.verdict({"new": {"median": new}, "null": {"median": null}})
        for new in (0.9, 1.029, 1.04)
        for null in (0.95, 0.98, 1.02, 1.04)
    }
    assert {pair for pair, said in verdicts.items() if said == "NO"} == {(1.04, 0.98), (1.04, 1.02)}
    assert {null for (_, null), said in verdicts.items() if said == "too noisy"} == {0.95, 1.04}
    assert sum(said == "yes" for said in verdicts.values()) == 4


def test_a_file_that_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    builds.write_changed(tmp_path, {"cpp/a.cpp": b"a", "cpp/b.cpp": b"b", "gone.cpp": b""})
    for path in tmp_path.rglob("*.cpp"):
        os.utime(path, (1, 1))
    builds.write_changed(tmp_path, {"cpp/a.cpp": b"a", "cpp/b.cpp": b"changed", "new.cpp": b"n"})
    files = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*.cpp")}
    assert sorted(files) == ["cpp/a.cpp", "cpp/b.cpp", "new.cpp"]
    assert files["cpp/a.cpp"].stat().st_mtime == 1 and files["cpp/b.cpp"].stat().st_mtime > 1


@pytest.mark.parametrize("group", compare_worker.GROUPS)
def test_every_case_measures_something(group: str) -> None:
    if group == "service" and importlib.util.find_spec("pyarrow") is None:
        pytest.skip("the service needs pyarrow")
    if group == "tiers" and not hasattr(relive, "Tiered"):
        pytest.skip("the portable build has no tiers")
    with compare_worker.GROUPS[group](TINY) as rounds:
        figures = {case: measure() for case, measure in rounds.items()}
    assert set(figures) == {name for name, case in compare.CASES.items() if case.group == group}
    assert all(figure > 0 for figure in figures.values())


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> builds.Build:
    """An environment as builds makes them, with a copy of the relive of this process in place of a build."""
    build = builds.Build("copy", "0" * 40, tmp_path_factory.mktemp("build"))
    builds.make_environment(build)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(Path(relive.__file__).parent, build.packages / "relive", ignore=ignored)
    core = Path(str(_core.__file__))
    shutil.copyfile(core, build.packages / "relive" / core.name)
    return build


def test_processes_of_both_builds_are_compared_and_told(copied: builds.Build) -> None:
    values = compare.compare(copied, copied, ["append", "update"], 2, TINY)
    assert not values["failures"]
    assert list(values["cases"]) == ["append", "update"]
    assert values["cases"]["append"]["pairs"] == 2
    assert all(
        figure > 0 for turns in values["cases"]["append"]["turns_us"] for turn in turns for figure in turn.values()
    )
    assert values["versions"]["new"]["numpy"] == values["versions"]["base"]["numpy"]
    text, markdown = compare.as_text(values), compare.as_markdown(values)
    assert "append: append one step" in text and "| append: append one step |" in markdown
    assert json.loads(json.dumps(values)) == values


def test_a_relive_from_elsewhere_is_refused(copied: builds.Build, tmp_path: Path) -> None:
    elsewhere = builds.Build("elsewhere", "0" * 40, tmp_path)
    builds.make_environment(elsewhere)
    values = compare.compare(copied, elsewhere, ["append"], 1, TINY)
    assert values["cases"] == {}
    assert len(values["failures"]) == 1 and values["failures"][0].startswith("append: new: ")
    assert "failed: append: new: " in compare.as_text(values)


def test_a_case_that_does_not_exist_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["compare", "HEAD", "--cases", "sample,dance"])
    with pytest.raises(SystemExit):
        compare.main()
    assert "dance" in capsys.readouterr().err


def test_a_commit_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no-such-commit"):
        builds.of_commit("no-such-commit", tmp_path)
