"""The work of a Table around its core: configuration, plans of columns, arguments, pickling."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.core.protocol import ReplayTable

SPEC = relive.StepSpec(
    {
        "observation": {
            "pos": relive.ArraySpec((2,), "float32", kind="state"),
            "arms": (relive.ArraySpec((), "int8", kind="state"), relive.ArraySpec((), "int8", kind="state")),
        },
        "reward": relive.ArraySpec((), "float32"),
        "core": relive.ArraySpec((3,), "float32", kind="start"),
    }
)


def step(t: int) -> dict[str, Any]:
    return {"observation": {"pos": [t, t], "arms": (t, -t)}, "reward": t, "core": [t, t, t]}


@pytest.fixture
def table() -> Any:
    indexes = {"main": relive.Index(sampler=relive.Prioritized()), "other": relive.Index()}
    with relive.Table(SPEC, 200, indexes, timeout_s=5.0, seed=1) as made:
        with made.writer() as writer:
            for t in range(20):
                writer.append(**step(t), terminated=t == 19)
        yield made


def test_it_has_the_interface_of_all_tables(table: relive.Table) -> None:
    assert isinstance(table, ReplayTable)
    assert repr(table) == "Table(LocalMemory, 20 of 200 steps, indexes main, other)"
    assert (table.capacity, table.timeout_s, table.path, table.stream) == (200, 5.0, None, 0)
    assert not table.closed and not table.read_only and list(table.indexes) == ["main", "other"]
    assert len(table) == 20 and table.num_items() == table.num_items("other") == 20


@pytest.mark.parametrize(
    "arguments",
    [
        {"spec": {"a": relive.ArraySpec((), "float32")}},
        {"capacity": 0},
        {"capacity": -5},
        {"capacity": 10.5},
        {"capacity": True},
        {"capacity": "many"},
        {"index": {}},
        {"index": relive.Uniform()},
        {"storage": "/dev/shm/x"},
        {"max_lanes": 0},
        {"max_lanes": "3"},
        {"timeout_s": -1.0},
        {"timeout_s": math.nan},
        {"seed": -1},
        {"seed": 2**64},
    ],
)
def test_bad_configurations_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidConfig):
        relive.Table(**{"spec": SPEC, "capacity": 100, **arguments})


def test_a_min_size_that_capacity_cannot_hold_is_refused() -> None:
    with pytest.raises(errors.CapacityTooSmall):
        relive.Table(SPEC, 100, relive.Index(limiter=relive.MinSize(101)))


def test_indexes_are_checked_against_the_spec() -> None:
    with pytest.raises(errors.UnknownColumn):
        relive.Table(SPEC, 100, relive.Index(relive.Transitions(stack={"frames": 4})))


def test_default_columns_keep_the_nesting(table: relive.Table) -> None:
    batch = table.sample(6)
    assert list(batch) == ["observation", "reward", "core", "next_observation", "discount"]
    assert list(batch.flat())[-4:] == [
        "next_observation/pos", "next_observation/arms/0", "next_observation/arms/1", "discount",
    ]  # fmt: skip
    assert type(batch["next_observation"]["arms"]) is tuple
    np.testing.assert_array_equal(batch["observation"]["arms"][1], -batch["reward"])
    np.testing.assert_array_equal(batch["core"][:, 0], batch["reward"])


def test_columns_by_name_and_by_group(table: relive.Table) -> None:
    batch = table.sample(6, columns=("next_observation", "lane", "observation/arms/0", "lane", "staleness"))
    assert list(batch.flat()) == [
        "next_observation/pos", "next_observation/arms/0", "next_observation/arms/1", "lane", "observation/arms/0",
        "staleness",
    ]  # fmt: skip
    assert list(table.sample(2, columns="reward")) == ["reward"]
    derived = table.sample(2, columns=[*relive.config.spec.DERIVED_NAMES, "terminated", "truncated", "discount"])
    assert [str(array.dtype) for array in derived.flat().values()] == [
        "int64", "bool", "int64", "int64", "int64", "int64", "bool", "bool", "float32",
    ]  # fmt: skip
    for bad in ("rewards", "next_rewards", "next_core", "observation/", "observation/nobody", "priorities", ""):
        with pytest.raises(errors.UnknownColumn):
            table.sample(2, columns=[bad])


def test_plans_are_made_once(table: relive.Table) -> None:
    for _ in range(3):
        table.sample(2, columns=["reward"])
        table.sample(2, ["reward"], index="other")
    assert len(table._selections) == 3


@pytest.mark.parametrize("bad", [0, -1, 2.0, "2", None, True, 2**70])
def test_batch_sizes(table: relive.Table, bad: Any) -> None:
    for call in (table.sample, table.draw, table.batches):
        with pytest.raises(errors.InvalidConfig):
            call(bad)
    assert table.sample(np.int64(3)).num_items == 3


def test_indexes_by_name(table: relive.Table) -> None:
    draw = table.draw(4, index="other")
    assert draw.index == "other" and table.gather(draw).num_items == 4
    for call in (
        lambda: table.sample(2, index="nobody"),
        lambda: table.draw(2, index="nobody"),
        lambda: table.gather([], index="nobody"),
        lambda: table.batches(2, index="nobody"),
        lambda: table.num_items("nobody"),
        lambda: table.update_priorities([], [], index="nobody"),
    ):
        with pytest.raises(errors.InvalidConfig, match="'main' or 'other'"):
            call()
    with pytest.raises(errors.NoPriorities):
        table.update_priorities(draw.item_keys, np.ones(4), index="other")


def test_gather(table: relive.Table) -> None:
    draw = table.draw(5)
    batch = table.gather(draw)
    assert batch.present.all() and batch.num_live_items == 20
    np.testing.assert_allclose(batch.weights(1.0), 1.0)
    keys = list(dict.fromkeys(draw.item_keys.tolist()))
    assert table.delete(keys[:1]) == 1
    again = table.gather(keys, ["reward"])
    assert again.present.tolist() == [False] + [True] * (len(keys) - 1)
    with pytest.raises(errors.NoProbabilities):
        again.weights(1.0)
    assert table.gather([]).num_items == 0


def test_gather_into_an_earlier_batch(table: relive.Table) -> None:
    first, draw = table.sample(5), table.draw(5)
    expected = table.gather(draw).flat()
    second = table.gather(draw, out=first)
    for name, array in second.flat().items():
        assert array is first[name]
        np.testing.assert_array_equal(array, expected[name])
    with pytest.raises(errors.UnknownColumn):
        table.gather(draw, ["lane"], out=first)
    with pytest.raises(errors.ShapeMismatch):
        table.gather(table.draw(4), out=first)


def test_priorities_from_anywhere(table: relive.Table) -> None:
    keys = table.sample(4).item_keys
    unique = len(set(keys.tolist()))
    for values in ([1, 2, 3, 4], np.ones(4, np.float32), (1.0,) * 4, np.ones(8)[::2], np.ones(4, bool)):
        assert table.update_priorities(keys, values) >= unique
        assert table.update_priorities(keys.tolist(), values) >= unique
    assert table.update_priorities([], []) == 0
    for bad in (np.ones(3), np.ones((4, 1)), 1.0):
        with pytest.raises(errors.ShapeMismatch):
            table.update_priorities(keys, bad)
    with pytest.raises(errors.DtypeMismatch):
        table.update_priorities(keys.astype(float), np.ones(4))
    with pytest.raises(errors.DtypeMismatch):
        table.update_priorities(keys, ["a", "b", "c", "d"])


def test_priorities_from_tensors(table: relive.Table) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    batch = table.sample(4).to_torch()
    error = torch.ones(4, requires_grad=True)
    assert table.update_priorities(batch.item_keys, error.abs() + 1e-6) >= 1


def test_stats(table: relive.Table) -> None:
    table.sample(5, index="other")
    stats = table.stats()
    assert (stats.num_steps, stats.capacity, stats.appended, stats.num_participants) == (20, 200, 20, 1)
    assert list(stats.indexes) == ["main", "other"]
    other = stats.indexes["other"]
    assert (other.num_items, other.inserted, other.sampled, other.in_flight) == (20, 20, 5, 0)
    assert other.samples_per_insert == 0.25
    assert stats.as_dict()["indexes"]["other"]["sampled"] == 5
    assert pickle.loads(pickle.dumps(stats)) == stats
    with pytest.raises(AttributeError):
        stats.num_steps = 3  # type: ignore[misc]


def test_policy_versions(table: relive.Table) -> None:
    table.set_policy_version(9)
    assert table.policy_version == 9
    with table.writer() as writer:
        key = writer.append(**step(0), terminated=True)
        writer.set_policy_version(4)
        old = writer.append(**step(0), terminated=True)
    batch = table.gather([key, old], ["policy_version", "staleness"])
    assert batch["policy_version"].tolist() == [9, 4] and batch["staleness"].tolist() == [0, 5]
    for bad in (-1, 2**32, 1.5):
        with pytest.raises(errors.InvalidConfig):
            table.set_policy_version(bad)  # type: ignore[arg-type]


def test_a_local_table_does_not_pickle(table: relive.Table) -> None:
    with pytest.raises(errors.NotShareable, match="SharedMemory"):
        pickle.dumps(table)


def test_requests_larger_than_the_window_are_refused_with_the_arithmetic() -> None:
    limiter = relive.SamplesPerInsert(2.0, 10, tolerance=10.0)
    with relive.Table(SPEC, 100, relive.Index(limiter=limiter)) as table:
        for call in (table.sample, table.draw):
            with pytest.raises(errors.RequestTooLarge) as caught:
                call(21)
            assert caught.value.arithmetic == ("samples_per_insert 2 x min_size 10 = 20, tolerance 10: window [10, 30]")


def test_everything_of_a_closed_table_says_so(table: relive.Table) -> None:
    writer, keys = table.writer(), table.sample(2).item_keys
    table.close()
    table.close()
    assert table.closed and repr(table) == "Table(LocalMemory, closed, indexes main, other)"
    for call in (
        lambda: len(table),
        lambda: table.num_items(),
        lambda: table.policy_version,
        lambda: table.sample(2),
        lambda: table.sample(2, columns=["reward"]),
        lambda: table.draw(2),
        lambda: table.gather(keys),
        lambda: table.update_priorities(keys, [1, 1]),
        lambda: table.delete(keys),
        lambda: table.clear(),
        lambda: table.stats(),
        lambda: table.check(),
        lambda: table.set_policy_version(1),
        lambda: table.writer(),
        lambda: table.writer(num_lanes=3),
    ):
        with pytest.raises(errors.TableClosed):
            call()
    with pytest.raises((errors.TableClosed, errors.WriterClosed)):
        writer.append(**step(0))
    writer.close()


def test_what_was_drawn_is_whole_or_absent_once_the_pages_behind_it_went() -> None:
    """Items used up, drawn and not gathered yet: their windows run into a page that goes when its own items are used.

    A claim holds nothing. The reward of a window that is still there is whole, and keys whose rows went are absent.
    """
    spec = relive.StepSpec({"reward": relive.ArraySpec((), "float32")})
    index = relive.Index(relive.Transitions(n_step=3), max_times_sampled=1)
    absent = 0
    for seed in range(30):
        with relive.Table(spec, 64, index, max_lanes=1, seed=seed) as table, table.writer() as writer:
            assert table.stats().page_len == 8
            writer.extend(reward=np.ones(26, np.float32))
            drawn = table.draw(3)
            for _ in range(20):
                assert (table.sample(1)["reward"] == 3.0).all()
            table.check()
            batch = table.gather(drawn)
            assert (batch["reward"][batch.present] == 3.0).all() and (batch["reward"][~batch.present] == 0.0).all()
            absent += int((~batch.present).sum())
    assert absent > 0
