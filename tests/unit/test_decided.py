"""Questions that the pages and the code once answered differently (docs/design/contract.md)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from relive.errors import InvalidConfig, SpecError, SystemFailure

A = {"a": relive.ArraySpec((), "int64")}


def table_of(items: Any, **more: Any) -> relive.Table:
    return relive.Table(relive.StepSpec(A), 400, relive.Index(items, **more), max_lanes=8)


def test_with_shift_a_window_ends_with_the_episode_wherever_the_others_lie() -> None:
    table = table_of(relive.Sequences(2, period=5, at_end="shift"))
    table.writer().extend(a=np.arange(8), terminated=True)
    rows = table.gather(np.concatenate(list(table.keys())))["a"]
    assert sorted(rows.tolist()) == [[0, 1], [5, 6], [6, 7]]


def test_items_of_a_block_come_alive_lane_by_lane() -> None:
    table = table_of(relive.Transitions(), sampler=relive.Fifo(), max_times_sampled=1)
    keys = table.writer(3).extend(a=np.arange(12).reshape(4, 3))
    assert table.sample(12)["a"].tolist() == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]
    assert keys.shape == (4, 3)


def test_keys_by_age_go_by_their_first_rows_and_fifo_by_publication() -> None:
    table = table_of(relive.Sequences(2, period=1), sampler=relive.Fifo(), max_times_sampled=1)
    early, other = table.writer(), table.writer()
    early.append(a=100)
    for step in range(3):
        other.append(a=step)
    early.append(a=101)
    listed = table.gather(np.concatenate(list(table.keys(order="age"))))["a"][:, 0]
    assert listed.tolist() == [100, 0, 1]
    assert table.sample(3)["a"][:, 0].tolist() == [0, 1, 100]


def test_ragged_episodes_without_states_have_no_row_behind() -> None:
    table = table_of(relive.Episodes(4, bootstrap=1, layout="ragged"))
    table.writer().extend(a=np.arange(3), terminated=True)
    batch = table.sample(1)
    assert (batch["a"].tolist(), batch["offsets"].tolist()) == ([0, 1, 2], [0, 3])


@pytest.mark.parametrize("pad", ["right", "left"])
def test_padded_episodes_without_states_are_as_long_as_the_longest(pad: str) -> None:
    table = table_of(relive.Episodes(4, bootstrap=1, pad=pad))
    table.writer().extend(a=np.arange(3), terminated=True)
    assert table.sample(1)["a"].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("name", ["red\x1b[31m", "two\nlines", "tab\t"])
def test_names_can_be_printed(name: str) -> None:
    with pytest.raises(SpecError):
        relive.StepSpec({name: relive.ArraySpec((), "int64")})
    with pytest.raises(InvalidConfig):
        relive.Table(relive.StepSpec(A), 100, {name: relive.Index()})
    with pytest.raises(InvalidConfig):
        relive.SharedMemory(name)


def test_an_explicit_item_stays_on_a_row_that_a_cut_turns_into_a_state() -> None:
    spec = relive.StepSpec({"o": relive.ArraySpec((1,), "float32", kind="state"), **A})
    index = {"steps": relive.Index(), "chosen": relive.Index(relive.Explicit(2, max_items=8))}
    with relive.Table(spec, 100, index) as table:
        writer = table.writer()
        keys = [int(writer.append(o=[float(t)], a=t)) for t in range(4)]
        made = table.create_items((np.array([keys[1], keys[3]]), -2))
        writer.close()
        assert (len(table), table.num_items("chosen")) == (3, 2)
        assert table.gather(made, index="chosen")["a"].tolist() == [[0, 1], [2, 3]]
        with pytest.raises(relive.ReliveError):
            table.create_items((np.array([keys[3]]), 1))
        assert table.check() is None


def test_the_lowest_int64_is_a_number() -> None:
    table = table_of(relive.Transitions())
    table.writer().extend(a=np.array([-(2**63), 5]))
    assert set(table.sample(8, where="a == -9223372036854775808")["a"].tolist()) == {-(2**63)}
    with pytest.raises(InvalidConfig):
        table.sample(1, where="a > -9223372036854775809")


def test_a_thread_that_cannot_start_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    table = table_of(relive.Transitions())
    table.writer().extend(a=np.arange(9))
    with monkeypatch.context() as patched:
        patched.setattr("threading.Thread.start", start)
        with pytest.raises(SystemFailure, match="thread"), table.batches(2):
            pass
    with table.batches(2) as batches:
        assert next(batches).num_items == 2
    assert table.stats().indexes["default"].in_flight == 0


def test_negative_zero_is_zero() -> None:
    spec = relive.StepSpec(
        {
            "o": relive.ArraySpec((2,), "float32", kind="state"),
            "seed": relive.ArraySpec((), "float64", kind="episode"),
            **A,
        }
    )
    with relive.Table(spec, 100) as table, table.writer() as writer:
        writer.append(o=[0.0, 1.0], seed=0.0, a=0, next_o=[-0.0, 2.0])
        writer.append(o=[0.0, 2.0], seed=-0.0, a=1)
        with pytest.raises(relive.ReliveError):
            writer.append(o=[0.0, 2.0], seed=1.0, a=2)
        assert len(table) == 2


def test_an_n_step_return_of_vectors_is_refused_with_the_shape() -> None:
    spec = relive.StepSpec({"reward": relive.ArraySpec((2,), "float32")})
    with pytest.raises(SpecError, match=r"\(2,\)"):
        relive.Table(spec, 100, relive.Index(relive.Transitions(n_step=3)))
