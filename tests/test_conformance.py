"""relive against the verdicts that `make conformance` wrote down, and the cases themselves; without dm-reverb."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("conformance", reason="the cases lie beside the tests in the source tree only")
from conformance import page, run  # noqa: E402
from conformance.cases import TOPICS, by_name, topic_of  # noqa: E402
from conformance.relive_system import ReliveSystem  # noqa: E402
from conformance.system import System  # noqa: E402
from conformance.verdicts import DIFFERS, FAILED, MET, conflicts, run_case  # noqa: E402
from conformance.words import SAME, Call, Case, Near, Other, Setup, Shares, TableSetup, agrees  # noqa: E402

CASES = by_name()
WRITTEN: dict[str, Any] = json.loads(run.VERDICTS.read_text())


# ---- relive --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_relive_does_what_was_written_down(name: str) -> None:
    """After a change of a case or of relive, `python -m conformance.run --relive-only` writes down the new result."""
    outcome = run_case(CASES[name], "relive", ReliveSystem(seed=1))
    assert outcome.verdict != FAILED, outcome.detail
    written = WRITTEN["cases"][name]["relive"]
    assert (outcome.verdict, outcome.detail) == (written["verdict"], written.get("detail", ""))
    assert outcome.observed == written.get("observed", [])


# ---- what is written down ------------------------------------------------------------------------------------------


def test_every_case_is_written_down_with_its_topic_and_no_other_is() -> None:
    assert {name: row["topic"] for name, row in WRITTEN["cases"].items()} == topic_of()


def test_reverb_met_every_case() -> None:
    assert not [name for name, row in WRITTEN["cases"].items() if row["reverb"]["verdict"] != MET]


def test_the_two_agree_where_a_case_calls_them_the_same() -> None:
    rows = WRITTEN["cases"]
    assert not {
        name: found for name, row in rows.items() if (found := conflicts(CASES[name], row["reverb"], row["relive"]))
    }


def test_the_page_is_as_the_verdicts_make_it() -> None:
    assert run.PAGE.read_text() == page.as_markdown(WRITTEN)


# ---- the cases -----------------------------------------------------------------------------------------------------


def test_there_are_cases_enough_of_every_topic_and_no_name_twice() -> None:
    assert sum(len(cases) for cases in TOPICS.values()) == len(CASES) >= 120
    assert min(len(cases) for cases in TOPICS.values()) >= 10


def test_no_two_cases_are_the_same_programme() -> None:
    programmes = Counter(repr((case.setup, case.calls)) for case in CASES.values())
    assert not [programme for programme, times in programmes.items() if times > 1]


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_a_case_says_what_it_shows(case: Case) -> None:
    assert case.says.endswith(".") and case.source.startswith("https://")
    assert case.calls and all(callable(getattr(System, call.verb, None)) for call in case.calls)
    apart = [call for call in case.calls if call.relive is not SAME]
    assert bool(apart) == bool(case.differs), "a difference has a reason, and a reason a difference"
    assert not [call for call in apart if repr(call.relive) == repr(call.expected)]


# ---- the measure itself --------------------------------------------------------------------------------------------


def one_call(call: Call, differs: str = "") -> Case:
    return Case("a case", "It says so.", "https://", Setup((TableSetup(),)), (Call("insert", (1,)), call), differs)


def test_a_wrong_expectation_fails_and_a_right_one_does_not() -> None:
    assert run_case(one_call(Call("size", expected=2)), "relive", ReliveSystem()).verdict == FAILED
    assert run_case(one_call(Call("size", expected=1)), "relive", ReliveSystem()).verdict == MET
    differing = one_call(Call("size", expected=2, relive=1), "on purpose")
    assert run_case(differing, "relive", ReliveSystem()).verdict == DIFFERS


def test_an_error_of_a_system_fails_its_case_only() -> None:
    outcome = run_case(one_call(Call("size", ("no such table",))), "relive", ReliveSystem())
    assert outcome.verdict == FAILED and "InvalidConfig" in outcome.detail


def test_answers_that_differ_are_seen_although_each_system_was_content() -> None:
    case = one_call(Call("fields", (["probability"],), expected=Near([[0.5]])))
    outcomes = [{"verdict": MET, "observed": ["done", "done", [[value]]]} for value in (0.5, 0.25)]
    assert conflicts(case, outcomes[0], outcomes[0]) == []
    assert len(conflicts(case, outcomes[0], outcomes[1])) == 1


def test_a_failure_is_wrong_and_told() -> None:
    name = next(iter(CASES))
    good, bad = {"verdict": MET, "observed": []}, {"verdict": FAILED, "detail": "why"}
    assert run.put_together({name: good}, {name: good})[1] == []
    assert run.put_together({name: bad}, {name: good})[1] == [f"{name}: reverb: why"]
    assert run.put_together({name: good}, {name: bad})[1] == [f"{name}: relive: why"]


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A run that writes into an empty folder, with what dm-reverb did from the last run."""
    reverb = {name: row["reverb"] for name, row in WRITTEN["cases"].items()}
    monkeypatch.setattr(run, "run_reverb", lambda names: {name: reverb[name] for name in names})
    monkeypatch.setattr(run.peers, "set_up", lambda peer: None)
    monkeypatch.setattr(run, "VERDICTS", tmp_path / "verdicts.json")
    monkeypatch.setattr(run, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr("sys.argv", ["run"])
    return tmp_path


def test_a_run_writes_down_what_is_committed(elsewhere: Path) -> None:
    assert run.main() == 0
    assert json.loads((elsewhere / "verdicts.json").read_text()) == WRITTEN
    assert (elsewhere / "page.md").read_text() == page.as_markdown(WRITTEN)


def test_a_run_that_went_wrong_says_so_and_writes_nothing(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(iter(CASES))
    outcomes = {one: WRITTEN["cases"][one]["relive"] for one in CASES} | {name: {"verdict": FAILED, "detail": "why"}}
    monkeypatch.setattr(run, "run_relive", lambda names, seed: outcomes)
    assert run.main() == 1
    assert f"WRONG {name}: relive: why" in capsys.readouterr().err
    assert not list(elsewhere.iterdir())


def test_an_environment_that_cannot_be_set_up_is_told(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run.peers, "set_up", lambda peer: "no wheel for this machine")
    assert run.main() == 1
    assert "no wheel for this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expected", "observed", "same"),
    [
        (1, 1, True),
        (1, True, False),
        ([1, "waits"], [1, "waits"], True),
        (Near([[0.5, 1]]), [[0.5 + 1e-9, 1]], True),
        (Near([[0.5, 1]]), [[0.501, 1]], False),
        (Near([1.0]), [1.0, 1.0], False),
        (Other([1]), [2], True),
        (Other([1]), [1], False),
        (Shares({1: 1.0, 2: 3.0}), {"1": 1000, "2": 3000}, True),
        (Shares({1: 1.0, 2: 3.0}), {"1": 1150, "2": 2850}, False),
        (Shares({1: 0.0, 2: 1.0}), {"1": 1, "2": 3999}, False),
        (Shares({1: 1.0}), "waits", False),
    ],
)
def test_what_agrees(expected: Any, observed: Any, same: bool) -> None:
    assert agrees(expected, observed) is same


def test_the_bound_of_shares_is_the_quantile_of_chi_square() -> None:
    for freedom, quantile in ((1, 19.51), (2, 23.03), (9, 39.34)):  # at 1 - 1e-5
        assert quantile <= Shares({label: 1.0 for label in range(freedom + 1)}).bound <= 1.12 * quantile
