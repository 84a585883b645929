"""The language of where=: what it says is what Python says of the same text, and what it does not say it refuses."""

from __future__ import annotations

import ast
import contextlib
import json
import pickle
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import relive
from relive import _core, errors
from relive.config import where as where_module
from relive.config.where import MAX_OPERATIONS, where_of

SPEC = relive.StepSpec(
    {
        "obs": relive.ArraySpec((), "float32", kind="state"),
        "a": relive.ArraySpec((), "int64"),
        "b": relive.ArraySpec((), "int16"),
        "x": relive.ArraySpec((), "float32"),
        "y": relive.ArraySpec((), "float64"),
        "t": relive.ArraySpec((), "bool"),
        "info": {"score": relive.ArraySpec((), "float64"), "parts": (relive.ArraySpec((), "int32"),)},
        "u": relive.ArraySpec((), "uint64"),
        "h": relive.ArraySpec((), "float16"),
        "z": relive.ArraySpec((), "complex64"),
        "v": relive.ArraySpec((2,), "float32"),
        "core": relive.ArraySpec((), "float32", kind="start"),
    }
)
ROWS = 48
BIG = 2**53
STEPS = relive.Transitions()


def row(k: int) -> dict[str, Any]:
    rng = np.random.default_rng(k)
    return {
        "obs": 0.0,
        "a": int(rng.choice([0, 1, -1, BIG, BIG + 1, -(2**63), 2**63 - 1, k])),
        "b": int(rng.integers(-3, 4)),
        "x": float(rng.choice([0.0, 0.5, -1.5, np.float32(0.1)])),
        "y": float(rng.choice([0.0, 0.1, -2.0, np.nan, np.inf])),
        "t": bool(k % 2),
        "info": {"score": float(k), "parts": (int(k % 5),)},
        "u": 0,
        "h": 0.0,
        "z": 0.0,
        "v": np.zeros(2, np.float32),
        "core": 0.0,
    }


@pytest.fixture(scope="module")
def table() -> Any:
    with relive.Table(SPEC, 64) as table, table.writer() as writer:
        for k in range(ROWS):
            writer.append(**row(k), next_obs=0.0)
        yield table


# ---- texts that mean something, typed as the language types them ---------------------------------------------------

WHOLES = st.sampled_from(["a", "b", "lane", "episode_step", "0", "1", "-2", str(BIG), str(BIG + 1), "t", "True"])
REALS = st.recursive(
    st.sampled_from(["x", "y", "0.1", "1.5", "b", "3", "episode_step", "info/score"]),
    lambda below: st.one_of(
        st.tuples(below, st.sampled_from("+-*"), below).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        below.map(lambda one: f"-{one}"),
    ),
    max_leaves=3,
)
SIGNS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
COMPARED = st.one_of(
    st.tuples(WHOLES, SIGNS, WHOLES, SIGNS, WHOLES).map(" ".join),
    st.tuples(WHOLES, SIGNS, WHOLES).map(" ".join),
    st.tuples(REALS, SIGNS, REALS).map(" ".join),
    st.sampled_from(["t", "first", "terminated", "truncated", "False"]),
)
TEXTS = st.recursive(
    COMPARED,
    lambda below: st.one_of(
        st.tuples(below, st.sampled_from(["and", "or"]), below).map(lambda p: f"({p[0]} {p[1]} {p[2]})"),
        below.map(lambda one: f"not ({one})"),
    ),
    max_leaves=3,
)


def says(text: str, k: int, lane: int) -> bool:
    values = row(k)
    known = {name: values[name] for name in "abxyt"}
    known["x"] = float(np.float32(known["x"]))
    known |= {"lane": lane, "episode_step": k, "first": k == 0, "terminated": False, "truncated": k == ROWS - 1}
    return bool(eval(text.replace("info/score", "score"), {}, known | {"score": float(k)}))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS)
def test_a_condition_says_what_python_says(table: Any, text: str) -> None:
    try:
        where_of(text, SPEC, STEPS)
    except errors.InvalidConfig as problem:
        assert "operations" in str(problem) or "2**53" in str(problem), problem
        return
    lane = int(table.sample(1, ["lane"])["lane"][0])
    expected = {k for k in range(ROWS - 1) if says(text, k, lane)}  # the newest is cut off only at the end
    for asked, whole in ((text, expected), (f"not ({text})", set(range(ROWS - 1)) - expected)):
        seen: set[int] = set()
        with contextlib.suppress(errors.RareItems, errors.InvalidConfig):
            seen = set(table.sample(500, ["episode_step"], where=asked)["episode_step"].tolist()) - {ROWS - 1}
            assert len(whole - seen) <= 2, "500 draws of 48 miss one in 1,000 times"
        assert seen <= whole


@pytest.mark.parametrize(
    ("text", "field", "part"),
    [
        ("x >", "got", "invalid syntax"),
        ("x > 0 and (t", "got", "at character"),
        ("x", "expected", "compare it"),
        ("x and t", "expected", "x != 0"),
        ("abs(x) > 1", "got", "abs(x)"),
        ("x in (1, 2)", "expected", "or between them"),
        ("t & t", "expected", "written and"),
        ("~t", "expected", "written not"),
        ("x ** 2 > 1", "got", "x ** 2"),
        ("x if t else y", "got", "if"),
        ("x == 'a'", "got", "'a'"),
        ("x == None", "got", "None"),
        ("a == 9223372036854775808", "expected", "int64"),
        (f"x > {BIG + 1}", "expected", "2**53"),
        ("info.score > 1", "expected", "group/column"),
        ("info > 1", "what", "'info'"),
        ("u > 1", "what", "'u'"),
        ("h > 1", "what", "'h'"),
        ("z == 1", "what", "'z'"),
        ("v > 1", "what", "'v'"),
        ("obs > 1", "what", "'obs'"),
        ("core > 1", "what", "'core'"),
        ("(" * 400 + "t" + ")" * 400, "what", "where"),
        ("not " * 5000 + "t", "what", "where"),
        ("t or " * 40 + "t", "expected", f"{MAX_OPERATIONS}"),
        ("lambda: t", "got", "lambda"),
        ("(t := True)", "got", ":="),
        ("\0", "what", "where"),
        ("\ud800", "what", "where"),
        ("", "what", "where"),
        ("t\nt", "what", "where"),
        (7, "what", "where"),
        (None, "what", "where"),
    ],
)
def test_what_is_no_condition_is_refused_with_the_way_out(text: Any, field: str, part: str) -> None:
    with pytest.raises(errors.InvalidConfig) as caught:
        where_of(text, SPEC, STEPS)
    assert part in str(getattr(caught.value, field))
    assert len(str(caught.value)) < 3000


@pytest.mark.parametrize(
    ("text", "column", "instead"),
    [
        ("lan < 1", "lan", "lane"),
        ("info/scor > 1", "info/scor", "info/score"),
        ("q > 1", "q", ""),
        ("next_x > 0", "next_x", None),
    ],
)
def test_a_column_that_is_not_there(text: str, column: str, instead: str | None) -> None:
    with pytest.raises(errors.UnknownColumn) as caught:
        where_of(text, SPEC, STEPS)
    assert caught.value.column == column
    assert instead is None or caught.value.instead == instead
    assert {"a", "info/score", "info/parts/0", "lane"} <= set(caught.value.known)
    assert not {"obs", "u", "h", "z", "v", "core"} & set(caught.value.known)


def test_columns_in_groups_are_paths() -> None:
    for text in (
        "info/score > 1",
        "info/parts/0 == 2",
        "info/score / 2 > 1",
        "x / (info/score) > 1",
        "info/score/x > 1",
    ):
        names = {one.column for one in where_of(text, SPEC, STEPS).operations if one.column}
        assert names & {"info/score", "info/parts/0"}, text


def test_what_changes_by_itself_is_told() -> None:
    assert where_of("staleness < 3 and x > 0", SPEC, STEPS).changes == ("staleness",)
    assert where_of("policy_version < 3", SPEC, STEPS).changes == ()
    assert where_of("num_steps < 3", SPEC, relive.Transitions(n_step=2)).changes == ("num_steps",)


def test_a_text_is_parsed_again_if_another_thread_disturbed_python(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = list[str]()

    def disturbed(text: str, mode: str) -> Any:
        if text not in failed:
            failed.append(text)
            raise SystemError("AST constructor recursion depth mismatch (before=30, after=27)")
        return ast.parse(text, mode=mode)

    stand_in = types.SimpleNamespace(**vars(ast) | {"parse": disturbed})  # pytest itself calls ast.parse
    monkeypatch.setattr(where_module, "ast", stand_in)
    spec = relive.StepSpec({"reward": relive.ArraySpec((), "float32")})
    assert where_of("reward > 1", spec, relive.Transitions()).text == "reward > 1" and failed


def test_a_program_that_is_none_is_refused_by_the_core(table: Any) -> None:
    """A program that does not come from relive.config.where cannot make the core read missing columns."""
    one, column = ("whole", "", 0.0, 1), ("column", "a", 0.0, 0)
    programs: list[list[tuple[Any, ...]]] = [
        [],
        [one] * 2,
        [one, ("and", "", 0.0, 0)],
        [("jump", "", 0.0, 0)],
        [("column", "v", 0.0, 0)],
        [("column", "obs", 0.0, 0)],
        [("column", "nobody", 0.0, 0)],
        [*([column] * 17), *([("and", "", 0.0, 0)] * 15)],
        [one, *([("not", "", 0.0, 0)] * 32)],
    ]
    for program in programs:
        with pytest.raises(errors.InvalidConfig):
            table.core.where(0, "text", program)
    with pytest.raises(errors.InvalidConfig):
        table.core.where(9, "text", [one])


# ---- of an index ---------------------------------------------------------------------------------------------------


def test_an_index_keeps_its_condition_wherever_it_is_written(tmp_path: Any) -> None:
    index = relive.Index(relive.Transitions(n_step=2), where="x > 0.25 and info/score < 9")
    assert relive.Index.from_dict(index.to_dict()) == index == pickle.loads(pickle.dumps(index))
    assert relive.Index.from_dict({"where": "t"}).where == "t"
    assert index != relive.Index(relive.Transitions(n_step=2))
    config = relive.TableConfig(SPEC, 100, {"some": index, "all": relive.Index()})
    again = relive.TableConfig.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.index["some"].where == "x > 0.25 and info/score < 9"
    with relive.Table.from_config(again) as table, table.writer() as writer:
        for k in range(20):
            writer.append(**row(k), next_obs=0.0)
        expected = sum(row(k)["x"] > 0.25 and k < 9 for k in range(19))
        assert table.num_items("some") == expected, "the newest waits for the step behind it"
        assert table.stats().indexes["some"].filtered == 19 - expected
        table.check()


@pytest.mark.parametrize("where", ["x >", 3, b"t", "", "x" * 2000, ["t"], True, "staleness > 0", "num_steps == 1", "q"])
def test_an_index_with_a_condition_that_is_none_is_refused(where: Any) -> None:
    with pytest.raises((errors.InvalidConfig, errors.UnknownColumn)):
        relive.Table(SPEC, 100, relive.Index(relive.Transitions(n_step=2), where=where))


def test_a_program_that_is_none_makes_no_table() -> None:
    config = relive.TableConfig(SPEC, 100, relive.Index(where="t")).core_config()
    wrong: list[list[Any]] = [
        [("staleness", "", 0.0, 0)],
        [("num_steps", "", 0.0, 0)],
        [("column", "v", 0.0, 0)],
        [("t", "", 0.0, 0)],
        [("column", "t", 0.0, 0)] * 2,
    ]
    for program in wrong:
        config["indexes"][0]["where"] = program
        with pytest.raises(errors.InvalidConfig):
            _core.create_table(config, None)
    config["indexes"][0]["where"] = "t"
    with pytest.raises((errors.InvalidConfig, TypeError, RuntimeError)):
        _core.create_table(config, None)
