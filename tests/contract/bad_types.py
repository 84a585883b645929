"""Values of a wrong type, and values that no table can hold: a structured error each, and the table as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, Unchanged, plain_spec, prioritized, state, step, write_steps
from relive import errors

LONE_SURROGATE = "\ud800"
HUGE = 10**400
DIGITS = pytest.param(10**5000, id="5000 digits")  # which Python refuses to print
NO_NUMBERS: list[Any] = [None, "1", b"1", HUGE, DIGITS, 1j, [1], {}, object(), np.zeros(2), np.array(["x"])]


class BadTypesSuite(Suite):
    @pytest.fixture(scope="class")
    @classmethod
    def table_of_class(cls, make_table_of_class: MakeTable) -> relive.Table:
        return make_table_of_class(plain_spec(), 200, prioritized(), max_lanes=16)

    @pytest.fixture
    def filled(self, table_of_class: relive.Table) -> Iterator[tuple[relive.Table, Any, np.ndarray]]:
        """A prioritized table with ten items, its open writer (between two episodes) and the keys.

        One table serves the class: a test leaves it as it was, and the next test fills it again.
        """
        table_of_class.clear()
        with table_of_class.writer() as writer:
            yield table_of_class, writer, write_steps(writer, 0, 10, truncated=True)

    @pytest.mark.parametrize(
        "change",
        [
            {"action": 2**64},
            {"action": HUGE},
            {"action": np.array(None)},
            {"action": b"1"},
            {"reward": HUGE},
            {"reward": np.array([1.0])},
            {"reward": np.timedelta64(1, "s")},
            {"reward": LONE_SURROGATE},
            {"observation": object()},
            {"observation": np.zeros(2, "datetime64[s]")},
            {"observation": np.zeros(2, object)},
            {"observation": np.zeros(2, [("x", "f4")])},
            {"terminated": "False"},
            {"lanes": [0]},
            {"priority": 1j},
            {"priority": "high"},
            {LONE_SURROGATE: 1},
            {"timeout_s": HUGE * -1},
            {"timeout_s": "1"},
            {"timeout_s": np.zeros(1)},
        ],
    )
    def test_append_of_wrong_types(self, filled: Any, change: dict[str, Any]) -> None:
        table, writer, keys = filled
        with Unchanged(table, keys, errors.ReliveError):
            writer.append(**{**step(10, 11), **change})
        writer.append(**step(10, 11))

    @pytest.mark.parametrize("lanes", ["all", HUGE, [0.5], [HUGE], [[0], [1, 2]], np.zeros((2, 2), int)])
    def test_lanes_of_wrong_types(self, make_table: MakeTable, lanes: Any) -> None:
        table = make_table(plain_spec(), 100)
        rows = {"observation": np.zeros((2, 2)), "action": np.zeros(2, int), "reward": np.zeros(2)}
        with table.writer(num_lanes=2) as writer:
            keys = writer.append(**rows, next_observation=np.zeros((2, 2)))
            with Unchanged(table, keys, errors.LaneError):
                writer.append(**rows, lanes=lanes)

    @pytest.mark.parametrize("value", [np.zeros(2, bool), np.ones(1), "False", 1, [True], LONE_SURROGATE])
    def test_ends_that_are_no_flags(self, filled: Any, value: Any) -> None:
        table, writer, keys = filled
        writer.append(**step(10))
        for flags in ({"terminated": value}, {"truncated": value}):
            with Unchanged(table, keys, errors.InvalidConfig):
                writer.end_episode(**flags, next_observation=state(11))
        writer.end_episode(truncated=np.bool_(True), next_observation=state(11))

    @pytest.mark.parametrize("columns", [3, [3], [None], [["reward"]], b"reward", np.array(1), LONE_SURROGATE])
    def test_columns_that_are_no_names(self, filled: Any, columns: Any) -> None:
        table, _, keys = filled
        for call in (table.sample, table.gather, table.batches):
            with Unchanged(table, keys, errors.ReliveError):
                call(keys if call == table.gather else 2, columns=columns)

    @pytest.mark.parametrize("index", [3, ["default"], {}, np.zeros(2), b"default", LONE_SURROGATE])
    def test_indexes_that_are_no_names(self, filled: Any, index: Any) -> None:
        table, _, keys = filled
        calls: list[Callable[[], Any]] = [
            lambda: table.sample(2, index=index),
            lambda: table.draw(2, index=index),
            lambda: table.gather(keys, index=index),
            lambda: table.batches(2, index=index),
            lambda: table.num_items(index),
            lambda: table.update_priorities(keys, np.ones(10), index=index),
        ]
        for call in calls:
            with Unchanged(table, keys, errors.InvalidConfig):
                call()

    @pytest.mark.parametrize("value", NO_NUMBERS)
    def test_numbers_that_are_none(self, filled: Any, value: Any) -> None:
        table, _, keys = filled
        calls: list[Callable[[], Any]] = [
            lambda: table.sample(value),
            lambda: table.draw(value),
            lambda: table.batches(value),
            lambda: table.batches(2, prefetch=value),
            lambda: table.set_policy_version(value),
        ]
        if value is not None:
            calls += [lambda: table.writer(value)]
        for call in calls:
            with Unchanged(table, keys, errors.InvalidConfig):
                call()

    @pytest.mark.parametrize("timeout_s", ["1", b"1", 1j, [1], np.zeros(1), np.zeros(2), -HUGE, float("nan")])
    def test_deadlines_that_are_none(self, filled: Any, timeout_s: Any) -> None:
        table, writer, keys = filled
        calls: list[Callable[[], Any]] = [
            lambda: table.sample(2, timeout_s=timeout_s),
            lambda: table.draw(2, timeout_s=timeout_s),
            lambda: table.batches(2, timeout_s=timeout_s),
            lambda: writer.append(**step(10, 11), timeout_s=timeout_s),
            lambda: writer.end_episode(terminated=True, timeout_s=timeout_s),
        ]
        for call in calls:
            with Unchanged(table, keys, errors.InvalidConfig):
                call()

    def test_a_deadline_of_ages_waits_for_ever(self, filled: Any) -> None:
        table, writer, _ = filled
        for timeout_s in (1e9, 1e19, 1e308, np.uint64(2**64 - 1), float("inf")):
            writer.append(**step(10), timeout_s=timeout_s)
            writer.end_episode(terminated=True, timeout_s=timeout_s)
            assert table.sample(2, timeout_s=timeout_s).num_items == 2
            with table.batches(2, timeout_s=timeout_s) as batches:
                assert next(batches).num_items == 2

    @pytest.mark.parametrize(
        "priorities",
        [
            np.ones(10, complex),
            np.ones(10, object),
            np.full(10, "1"),
            [HUGE] * 10,
            [None] * 10,
            np.ones(10, "m8[s]"),
            1.0,
        ],
    )
    def test_priorities_of_wrong_types(self, filled: Any, priorities: Any) -> None:
        table, _, keys = filled
        with Unchanged(table, keys, errors.ReliveError):
            table.update_priorities(keys, priorities)

    @pytest.mark.parametrize("dtype", [">f4", "f2", "longdouble", "u8", "i1", "?"])
    def test_priorities_of_other_real_types(self, filled: Any, dtype: str) -> None:
        table, _, keys = filled
        assert table.update_priorities(keys, np.ones(20, dtype)[::2]) == 10
        assert table.stats().indexes["default"].total_mass == pytest.approx(10.0)

    @pytest.mark.parametrize("keys", [HUGE, [HUGE], "keys", [None], {}, np.zeros(2, object), [1.5], [[1], [2, 3]]])
    def test_keys_of_wrong_types(self, filled: Any, keys: Any) -> None:
        table, _, own = filled
        for call in (table.gather, table.delete, lambda given: table.update_priorities(given, np.ones(1))):
            with Unchanged(table, own, errors.ReliveError):
                call(keys)

    @pytest.mark.parametrize("out", [3, "reward", ["reward"], {}, {3: 4}, {LONE_SURROGATE: 1}, {"reward": None}])
    def test_buffers_of_wrong_types(self, filled: Any, out: Any) -> None:
        table, _, keys = filled
        with Unchanged(table, keys, errors.ReliveError):
            table.gather(keys, columns=["reward"], out=out)

    def test_a_batch_asked_for_what_it_cannot_have(self, filled: Any) -> None:
        table, _, _ = filled
        batch = table.sample(4)
        for name in (3, None, "nobody", LONE_SURROGATE, 10**5000):
            with pytest.raises(errors.UnknownColumn):
                batch[name]
            assert name not in batch
        for beta in (-1.0, float("nan"), "1", None, 10**400, np.ones(2)):
            with pytest.raises(errors.InvalidConfig):
                batch.weights(beta)
        for normalize in ("sum", 1, np.ones(2)):
            with pytest.raises(errors.InvalidConfig):
                batch.weights(0.5, normalize)

    def test_tensors_wherever_arrays_go(self, filled: Any) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed here")
        table, writer, _ = filled
        rows = {
            "observation": torch.arange(6.0).reshape(3, 2),
            "action": torch.arange(3),
            "reward": torch.arange(3.0, requires_grad=True),
        }
        keys = writer.extend(**rows, terminated=True, priority=torch.tensor([1.0, 2.0, 3.0]))
        assert table.gather(torch.tensor(keys))["reward"].tolist() == [0.0, 1.0, 2.0]
        more = {**rows, "observation": torch.zeros(4, 2)}  # one state more than steps
        keys = writer.extend(**more, truncated=torch.tensor([False, False, True]), discount=torch.zeros(3))
        assert keys.shape == (3,) and table.gather(keys).present.all()
        writer.append(**{name: value[0] for name, value in rows.items()}, terminated=torch.tensor(True))
        with table.writer(num_lanes=2) as lanes:
            wide = {name: torch.stack([value, value], 1) for name, value in rows.items()}
            assert lanes.extend(**wide).shape == (3, 2)
            assert lanes.extend(**wide, lanes=torch.tensor([True, False])).shape == (3, 1)
        assert table.update_priorities(torch.tensor(keys), torch.ones(3)) == 3
        assert table.delete(torch.tensor(keys)) == 3

    @pytest.mark.parametrize("make", [lambda t: t.zeros(2, device="meta"), lambda t: t.zeros(2).to_sparse()])
    def test_tensors_without_plain_data(self, filled: Any, make: Any) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed here")
        table, writer, keys = filled
        bad = make(torch)
        rows = {"observation": bad, "action": torch.zeros(2, dtype=torch.int64), "reward": torch.zeros(2)}
        for call in (
            lambda: writer.append(**{**step(10, 11), "observation": bad}),
            lambda: writer.extend(**rows),
            lambda: table.update_priorities(keys[:2], bad),
            lambda: table.gather(bad),
            lambda: table.sample(bad),
        ):
            with Unchanged(table, keys, errors.ReliveError):
                call()

    def test_a_handle_is_true(self, make_table: MakeTable) -> None:
        """`if table:` asks whether there is one, not whether it holds steps."""
        table = make_table(plain_spec(), 10)
        assert len(table) == 0 and bool(table)

    @pytest.mark.parametrize("initial", ["max", "given", 0.5])
    def test_the_largest_priority_is_told_whatever_the_initial_one_is(
        self, make_table: MakeTable, initial: Any
    ) -> None:
        table = make_table(plain_spec(), 100, prioritized(initial=initial))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
            table.update_priorities(keys, [0.5, 7.0, 2.0])
            assert table.stats().indexes["default"].max_priority == 7.0
            table.update_priorities(keys, [0.5, 0.5, 0.5])
            writer.append(**step(3, 4), priority=9.0)
            assert table.stats().indexes["default"].max_priority == 9.0
