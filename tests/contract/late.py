"""Late columns: given after their steps, once, from anywhere; no item comes before all of its steps have theirs."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, is_empty, plain_spec, present, prioritized, state, transitions
from relive import errors


def late_spec() -> relive.StepSpec:
    return relive.StepSpec(
        {
            "observation": relive.ArraySpec((2,), "float32", kind="state"),
            "action": relive.ArraySpec((), "int64"),
            "reward": relive.ArraySpec((), "float32", late=True),
            "judge": {"verdict": relive.ArraySpec((3,), "int16", late=True)},
        }
    )


def write(writer: Any, first: int, count: int, **last: Any) -> np.ndarray:
    """Steps first, first + 1, ... each with its next state: its window is complete at once where n_step is 1."""
    keys = []
    for t in range(first, first + count):
        more = last if t == first + count - 1 else {}
        keys.append(writer.append(observation=state(t), action=t, next_observation=state(t + 1), **more))
    return np.asarray(keys, np.int64)


def columns(values: Any) -> dict[str, Any]:
    """The arguments of complete for these steps."""
    values = np.asarray(values)
    return {
        "reward": values.astype(np.float32) / 4,
        "judge": {"verdict": values[..., np.newaxis].astype(np.int16) + np.arange(3, dtype=np.int16)},
    }


def check_batch(batch: Any, n_step: int = 1, length: int = 1 << 30) -> None:
    """Every item has the late columns of its own steps."""
    actions = np.asarray(batch["action"])
    rewards = [sum(range(action, min(action + n_step, length))) / 4 for action in actions.tolist()]
    assert np.asarray(batch["reward"]).tolist() == rewards
    assert np.array_equal(batch["judge/verdict"], actions[:, np.newaxis] + np.arange(3))


class LateSuite(Suite):
    def test_max_wait_s(self, make_table: MakeTable) -> None:
        """At the next change of the table, an index drops items that waited too long. The other index keeps them."""
        table = make_table(late_spec(), 1000, {"patient": transitions(), "timed": relive.Index(max_wait_s=0.02)})
        with table.writer() as writer:
            keys = write(writer, 0, 8)
            time.sleep(0.05)
            keys = np.concatenate([keys, write(writer, 8, 1)])
            assert table.stats().indexes["timed"].timed_out == 8
            assert table.complete(keys, **columns(np.arange(9))) == 9
        table.check()
        assert present(table, keys[:8], "timed") == [False] * 8
        assert present(table, keys, "patient") == [True] * 9
        with pytest.raises(errors.InvalidConfig, match="max_wait_s"):
            make_table(plain_spec(), 100, relive.Index(max_wait_s=1.0))

    def test_late_columns(self, make_table: MakeTable) -> None:
        """An item is there when its last step has its late columns, in whatever order they come."""
        table = make_table(late_spec(), 1000)
        with table.writer() as writer:
            keys = write(writer, 0, 10)
            assert is_empty(table) and len(table) == 10
            order = [7, 2, 9, 0, 1]
            assert table.complete(keys[order], **columns(order)) == 5
            assert present(table, keys) == [t in order for t in range(10)]
            check_batch(table.sample(64))
            assert set(table.sample(64)["action"].tolist()) <= set(order)
            assert table.complete([], **columns([])) == 0
            stats = table.stats()
            assert (stats.completed, stats.completions_stale, stats.incomplete_items) == (5, 0, 0)
            assert (stats.num_steps, table.num_items(), stats.indexes["default"].pending) == (10, 5, 5)
        table.check()

    def test_late_columns_of_n_steps(self, make_table: MakeTable) -> None:
        """An item waits for all the steps that it spans, up to the end of its episode, and no other."""
        table = make_table(late_spec(), 1000, transitions(3, stack={"observation": 2}))
        with table.writer() as writer:
            keys = write(writer, 0, 20, terminated=True)
            table.complete(keys[::2], **columns(range(0, 20, 2)))
            assert is_empty(table)
            table.complete(keys[[9, 11]], **columns([9, 11]))
            assert np.flatnonzero(present(table, keys)).tolist() == [8, 9, 10]
            table.complete(keys[19], **columns(19))
            assert np.flatnonzero(present(table, keys)).tolist() == [8, 9, 10, 18, 19]
            check_batch(table.sample(64), 3, 20)

    @pytest.mark.parametrize("bootstrap", [0, 1])
    def test_late_columns_of_sequences(self, make_table: MakeTable, bootstrap: int) -> None:
        """A window waits for every step that it delivers: burn-in, loss and bootstrap rows."""
        items = relive.Sequences(4, burn_in=2, period=2, bootstrap=bootstrap)
        table = make_table(late_spec(), 1000, relive.Index(items))
        with table.writer() as writer:
            keys = write(writer, 0, 12, terminated=True)
            done: set[int] = set()
            for chosen in ([0, 5, 1, 3], [2, 4], [7], [6], [11, 8, 10], [9]):
                table.complete(keys[chosen], **columns(chosen))
                done |= set(chosen)
                expected = [x for x in range(0, 12, 2) if set(range(max(0, x - 2), min(12, x + 4 + bootstrap))) <= done]
                assert np.flatnonzero(present(table, keys)).tolist() == expected
            batch = table.sample(32)
            mask = np.asarray(batch["mask"])
            assert np.array_equal(batch["reward"][mask], batch["action"][mask] / 4)
        table.check()

    def test_late_columns_in_any_shape(self, make_table: MakeTable) -> None:
        """Keys as append and extend return them, and values of that shape; what can be cast is."""
        table = make_table(late_spec(), 1000)
        with table.writer(num_lanes=3) as writer:
            actions = np.arange(12).reshape(4, 3)
            states = np.zeros((5, 3, 2), np.float32)
            keys = writer.extend(observation=states, action=actions)
            assert table.complete(keys[:2], **columns(actions[:2])) == 6
            assert table.complete(int(keys[3, 0]), reward=9 / 4, judge={"verdict": [9, 10, 11]}) == 1
            assert table.complete(keys[2], reward=actions[2] / 4, judge=columns(actions[2])["judge"]) == 3
            check_batch(table.sample(64))
            assert table.num_items() == 10

    def test_late_columns_come_once(self, make_table: MakeTable) -> None:
        """A refused call changes nothing: neither the step that already has values, nor the other steps of the call."""
        table = make_table(late_spec(), 1000)
        with table.writer() as writer:
            keys = write(writer, 0, 10)
            table.complete(keys[:4], **columns(range(4)))
            asked = [5, 2, 6]
            with LateUnchanged(table, keys, errors.AlreadyCompleted, position=1, key=keys[2], column="reward"):
                table.complete(keys[asked], **columns(asked))
            with LateUnchanged(table, keys, errors.AlreadyCompleted, position=2, key=keys[5], applied=0):
                table.complete(keys[[5, 6, 5]], **columns([5, 6, 5]))
            with LateUnchanged(table, keys, errors.ForeignKey, position=1, key=7):
                table.complete([keys[5], 7], **columns([5, 5]))
            with LateUnchanged(table, keys, errors.UnknownColumn, column="rewards"):
                table.complete(keys[5], rewards=1.0, **columns(5))
            with LateUnchanged(table, keys, errors.LateColumn, column="action", is_late=False):
                table.complete(keys[5], action=5, **columns(5))
            with LateUnchanged(table, keys, errors.MissingColumn, column="judge/verdict"):
                table.complete(keys[5], reward=1.0)
            with LateUnchanged(table, keys, errors.ShapeMismatch, column="reward", expected=(2,), got=(3,)):
                table.complete(keys[5:7], **columns([1, 2, 3]))
            with LateUnchanged(table, keys, errors.ShapeMismatch, column="judge/verdict"):
                table.complete(keys[5], reward=1.0, judge={"verdict": [1, 2]})
            with LateUnchanged(table, keys, errors.DtypeMismatch, column="judge/verdict"):
                table.complete(keys[5], reward=1.0, judge={"verdict": [1.5, 2.0, 3.0]})
            with LateUnchanged(table, keys, errors.DtypeMismatch, column="reward"):
                table.complete(keys[5:7], **columns([5, 6]) | {"reward": np.ma.array([1.0, 2.0], mask=[0, 1])})
            with LateUnchanged(table, keys, errors.DtypeMismatch, column="item_keys"):
                table.complete([0.5], **columns([5]))
            with LateUnchanged(table, keys, errors.SpecError):
                table.complete(keys[5], reward=1.0, judge=3)
            assert table.complete(keys[5], **columns(5)) == 1

    def test_a_writer_takes_no_late_columns(self, make_table: MakeTable) -> None:
        table = make_table(late_spec(), 1000)
        with table.writer() as writer:
            keys = write(writer, 0, 2)
            table.complete(keys, **columns([0, 1]))
            with LateUnchanged(table, keys, errors.LateColumn, column="reward", is_late=True) as refused:
                writer.append(observation=state(2), action=2, reward=1.0)
            assert "table.complete(keys, reward=...)" in str(refused.value)
            with LateUnchanged(table, keys, errors.LateColumn, column="judge/verdict"):
                writer.extend(observation=[state(2)], action=[2], judge={"verdict": np.zeros((1, 3))})
            keys = np.append(keys, write(writer, 2, 1))
            table.complete(keys[2], **columns(2))
            check_batch(table.sample(16))

    def test_a_table_without_late_columns(self, table: Any) -> None:
        with pytest.raises(errors.SpecError):
            table.complete([], reward=[])

    def test_late_columns_of_steps_that_are_gone(self, make_table: MakeTable) -> None:
        """Evicted, deleted or cut: stale. Windows of neighbours still get what a deleted step was given."""
        table = make_table(late_spec(), 16, {"one": transitions(1), "two": transitions(2)}, max_lanes=1)
        with table.writer() as writer:
            keys = write(writer, 0, 40)
            assert table.complete(keys[[3, 4, 39, 38]], **columns([3, 4, 39, 38])) == 2
            table.delete(keys[[37]])
            assert table.complete(keys[[37, 36]], **columns([37, 36])) == 1
            assert np.flatnonzero(present(table, keys, "one")).tolist() == [36, 38, 39]
            assert np.flatnonzero(present(table, keys, "two")).tolist() == [36, 38]
            assert table.complete(keys[37], **columns(37)) == 0
            stats = table.stats()
            assert (stats.completed, stats.completions_stale) == (3, 4)
            assert stats.incomplete_items == 2 * 24
            table.clear()
            assert table.complete(keys[30:36], **columns(range(30, 36))) == 0
        table.check()

    def test_a_lane_that_is_cut_before_its_late_columns_come(self, make_table: MakeTable) -> None:
        table = make_table(late_spec(), 1000, transitions(3))
        with table.writer() as writer:
            keys = write(writer, 0, 5)
        assert is_empty(table)
        table.complete(keys, **columns(range(5)))
        assert present(table, keys) == [True] * 5
        check_batch(table.sample(32), 3, 5)

    def test_a_priority_before_the_late_columns(self, make_table: MakeTable) -> None:
        """It waits with its item, and counts as applied; so does one that the item needs."""
        table = make_table(late_spec(), 1000, prioritized())
        with table.writer() as writer:
            keys = write(writer, 0, 4)
            assert table.update_priorities(keys[:2], [3.0, 0.0]) == 2
            table.complete(keys[:3], **columns(range(3)))
            assert present(table, keys) == [True, True, True, False]
            assert next(iter(table.stats().indexes.values())).total_mass == 3.0 + 0.0 + 3.0
        given = make_table(late_spec(), 1000, prioritized(initial="given"))
        with given.writer() as writer:
            keys = write(writer, 0, 4)
            assert given.update_priorities(keys[:1], [2.0]) == 1
            given.complete(keys[:3], **columns(range(3)))
            assert present(given, keys) == [True, False, False, False]
            assert given.update_priorities(keys[1:], [1.0, 1.0, 4.0]) == 3
            assert present(given, keys) == [True, True, True, False]
            given.complete(keys[3], **columns(3))
            assert present(given, keys) == [True] * 4

    def test_uses_of_items_with_late_columns(self, make_table: MakeTable) -> None:
        table = make_table(late_spec(), 1000, relive.Index(max_times_sampled=1))
        with table.writer() as writer:
            keys = write(writer, 0, 6)
            table.complete(keys[:4], **columns(range(4)))
            assert sorted(table.sample(4)["action"].tolist()) == [0, 1, 2, 3]
            assert is_empty(table)
            table.complete(keys[4:], **columns([4, 5]))
            assert sorted(table.sample(2)["action"].tolist()) == [4, 5]

    def test_a_sampler_waits_for_late_columns(self, make_table: MakeTable) -> None:
        table = make_table(late_spec(), 1000)
        with table.writer() as writer:
            keys = write(writer, 0, 3)
            later = threading.Timer(0.3, lambda: table.complete(keys, **columns(range(3))))
            later.start()
            check_batch(table.sample(8, timeout_s=20.0))
            later.join()

    def test_batches_of_late_columns(self, make_table: MakeTable) -> None:
        """Gathered ahead in the background, while further steps are written and completed."""
        table = make_table(late_spec(), 1000, transitions(2))
        with table.writer() as writer:
            table.complete(write(writer, 0, 40), **columns(range(40)))
            with table.batches(16, timeout_s=20.0) as batches:
                for first in range(40, 80, 4):
                    keys = write(writer, first, 4)
                    check_batch(next(batches), 2)
                    table.complete(keys[::-1], **columns(range(first + 3, first - 1, -1)))

    def test_many_late_columns_at_once(self, make_table: MakeTable) -> None:
        """More than one hold of the lock takes, shuffled."""
        table = make_table(late_spec(), 5000, transitions(5))
        with table.writer() as writer:
            values = np.arange(2000)
            states = np.repeat(np.arange(2001, dtype=np.float32), 2).reshape(2001, 2)
            keys = writer.extend(observation=states, action=values, terminated=True)
            order = np.random.default_rng(0).permutation(2000)
            assert table.complete(keys[order], **columns(order)) == 2000
            assert all(present(table, keys))
            check_batch(table.sample(256), 5, 2000)
        table.check()


class LateUnchanged:
    """Within this, whatever is refused must leave the table as it was; `value` is the error."""

    value: Any

    def __init__(self, table: Any, keys: Any, error: type[BaseException], **fields: Any) -> None:
        self.table, self.keys, self.error, self.fields = table, keys, error, fields

    def _seen(self) -> Any:
        batch = self.table.gather(self.keys)
        stats = self.table.stats()
        late = [np.asarray(batch[name]).tolist() for name in ("reward", "judge/verdict", "action")]
        return batch.present.tolist(), late, stats.num_steps, stats.completed, stats.completions_stale

    def __enter__(self) -> LateUnchanged:
        self.before = self._seen()
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> bool:
        assert kind is not None, f"{self.error.__name__} expected, nothing was raised"
        if not issubclass(kind, self.error):
            return False
        self.value = value
        for name, expected in self.fields.items():
            assert getattr(value, name) == expected, f"{name} is {getattr(value, name)!r}"
        assert self._seen() == self.before
        self.table.check()
        return True
