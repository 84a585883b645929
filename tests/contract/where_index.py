"""Indexes with a condition: what becomes an item there, and what stays a step for others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, is_empty, plain_spec, present, prioritized, step, write_steps
from relive import errors


def items_of(table: Any, index: str, num_items: int = 300) -> set[int]:
    return set(np.asarray(table.sample(num_items, ["action"], index=index)["action"]).ravel().tolist())


class WhereIndexSuite(Suite):
    def test_where_of_an_index(self, make_table: MakeTable) -> None:
        index = {
            "all": relive.Index(),
            "some": relive.Index(where="reward >= 3 and lane < 2000 and not action == 5"),
            "none": relive.Index(where="reward < 0"),
        }
        table = make_table(plain_spec(), 40, index)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 10)
            assert items_of(table, "all") == set(range(10))
            assert items_of(table, "some") == {3, 4, 6, 7, 8, 9}
            assert is_empty(table, "none")
            assert present(table, keys, "some") == [t in (3, 4, 6, 7, 8, 9) for t in range(10)]
            assert present(table, keys, "all") == [True] * 10
            stats = table.stats().indexes
            assert [stats[name].filtered for name in index] == [0, 4, 10]
            assert [stats[name].inserted for name in index] == [10, 6, 0]
            assert [table.num_items(name) for name in index] == [10, 6, 0]
            assert len(table) == 10, "its step stays"
            table.check()
            write_steps(writer, 10, 200)  # evicts all of them
            assert table.num_items("some") == table.num_items("all")
            table.check()
            table.delete([writer.append(**step(210, 211))])
            table.clear()
            assert len(table) == 0
            write_steps(writer, 211, 8)
            assert items_of(table, "some") == set(range(211, 219))
        table.check()

    def test_what_a_condition_keeps_out_does_not_pace(self, make_table: MakeTable) -> None:
        limiter = relive.SamplesPerInsert(1.0, 1, 32)
        table = make_table(plain_spec(), 400, relive.Index(limiter=limiter, where="action == 0"))
        with table.writer() as writer:
            for _ in range(25):  # far beyond the window, were all of them items
                writer.extend(
                    observation=np.zeros((9, 2), np.float32), action=np.arange(8), reward=np.zeros(8), timeout_s=5.0
                )
            assert table.stats().indexes["default"].inserted >= 24
        table.check()

    def test_windows_of_an_index_are_asked_by_their_first_row(self, make_table: MakeTable) -> None:
        index = {
            "sequences": relive.Index(relive.Sequences(4, burn_in=2, period=4), where="action >= 8"),
            "crossing": relive.Index(relive.Sequences(4, period=4, at_end="cross"), where="action >= 8"),
            "episodes": relive.Index(relive.Episodes(8), where="first and task == 1"),
            "steps": relive.Index(relive.Transitions(n_step=3, gamma=0.5), where="truncated or terminated"),
        }
        table = make_table(plain_spec(task=relive.ArraySpec((), "int64", kind="episode")), 400, index)
        with table.writer() as writer:
            for t in range(64):
                writer.append(**step(t, t + 1, terminated=t % 8 == 7, task=t // 8 % 2))
        table.check()
        assert table.num_items("sequences") == 14
        assert table.num_items("crossing") == 14
        assert table.num_items("episodes") == 4
        assert items_of(table, "steps") == set(range(7, 64, 8))
        batch = table.sample(64, ["task", "action"], index="episodes")
        assert set(np.asarray(batch["task"]).ravel().tolist()) == {1}

    def test_late_columns_are_asked_when_they_are_there(self, make_table: MakeTable) -> None:
        spec = plain_spec(score=relive.ArraySpec((), "float32", late=True))
        index = {
            "good": relive.Index(where="score > 0.5"),
            "timed": relive.Index(where="score > 0.5", max_wait_s=1000.0),
            "given": relive.Index(sampler=relive.Prioritized(initial="given"), where="score > 0.5 and action < 6"),
        }
        table = make_table(spec, 100, index)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 10)
            assert is_empty(table, "good")
            assert table.stats().indexes["good"].pending == 10
            table.complete(keys, score=np.arange(10) % 2)
            for name in ("good", "timed"):
                assert items_of(table, name) == {1, 3, 5, 7, 9}
                stats = table.stats().indexes[name]
                assert (stats.pending, stats.filtered, stats.inserted, stats.timed_out) == (0, 5, 5, 0)
            assert table.stats().indexes["given"].pending == 3, "what does not pass waits for no priority"
            assert table.update_priorities(keys, np.ones(10), index="given") == 3
            assert items_of(table, "given") == {1, 3, 5}
            table.check()
            table.delete(keys)
            table.check()
            assert table.num_items("good") == 0

    def test_priorities_uses_and_most_of_an_index_with_a_condition(self, make_table: MakeTable) -> None:
        sampler = relive.Prioritized(priority_exponent=1.0)
        index = {
            "few": relive.Index(sampler=sampler, where="action != 2", max_items=4),
            "used": relive.Index(where="action >= 2", max_times_sampled=1),
        }
        table = make_table(plain_spec(), 100, index)
        with table.writer() as writer:
            pending = writer.append(**step(2))
            assert table.update_priorities([pending], [5.0], index="few") == 1, "it may still come to be one"
            writer.append(**step(3, 4), priority=1.0)
            assert table.update_priorities([pending], [5.0], index="few") == 0, "it was kept out"
            keys = write_steps(writer, 4, 4)
            assert items_of(table, "few") == {4, 5, 6, 7}, "the oldest went"
            drawn = table.sample(6, ["action"], index="used")["action"]
            assert sorted(np.asarray(drawn).tolist()) == [2, 3, 4, 5, 6, 7]
            assert is_empty(table, "used")
            assert table.update_priorities(keys, np.ones(4), index="few") == 4
        table.check()

    def test_a_draw_with_a_condition_from_an_index_with_one(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, prioritized(where="action < 20"))
        with table.writer() as writer:
            write_steps(writer, 0, 40)
            drawn = table.sample(100, where="action > 10")["action"]
            assert set(np.asarray(drawn).tolist()) == set(range(11, 20))
            with pytest.raises(errors.RareItems):
                table.sample(1, where="action >= 20")

    def test_an_index_refuses_what_is_not_settled(self, make_table: MakeTable) -> None:
        spec = plain_spec()
        refused: list[tuple[Any, str, str]] = [
            (relive.Transitions(), "staleness < 3", "staleness"),
            (relive.Transitions(n_step=3), "num_steps == 3", "num_steps"),
            (relive.Episodes(4), "num_steps == 3", "num_steps"),
            (relive.Explicit(2), "reward > 0", "Index"),
            (relive.Transitions(), "observation > 0", "observation"),
            (relive.Transitions(), "reward", "reward"),
        ]
        for items, where, named in refused:
            with pytest.raises(errors.InvalidConfig) as caught:
                make_table(spec, 100, relive.Index(items, where=where))
            assert named in caught.value.what
        with pytest.raises(errors.UnknownColumn):
            make_table(spec, 100, relive.Index(where="rewards > 0"))
        grouped = plain_spec(task=relive.ArraySpec((), "int64", kind="episode"))
        with pytest.raises(errors.InvalidConfig):
            groups = relive.Episodes(4, group_by="task", group_size=2, max_groups=4)
            make_table(grouped, 100, relive.Index(groups, where="task > 0"))
