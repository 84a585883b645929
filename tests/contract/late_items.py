"""Explicit items over steps that wait for their late columns, and what waiting items take of a limiter's room."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from processes.tools import eventually

import relive
from contract.late import columns, late_spec, write
from contract.limits import another_thread, bound
from contract.tools import MakeTable, Suite, is_empty, present, state, transitions
from relive import errors


def index_of_items(max_items: int = 50, **more: Any) -> dict[str, relive.Index]:
    windows = {"now": relive.Window(3), "far": relive.Window(2, stride=4)}
    return {"steps": transitions(), "items": relive.Index(relive.Explicit(windows, {}, max_items), **more)}


def rewards(table: Any, keys: Any) -> list[Any]:
    batch = table.gather(keys, columns=["now/reward"], index="items")
    return np.asarray(batch["now/reward"])[np.asarray(batch.present)].tolist()


class LateItemsSuite(Suite):
    def test_explicit_items_with_late_columns(self, make_table: MakeTable) -> None:
        """Made at once; drawn when the last of their rows has its late columns, whichever that is."""
        table = make_table(late_spec(), 1000, index_of_items(), max_lanes=4)
        with table.writer() as writer:
            keys = write(writer, 0, 20)
            table.complete(keys[4], **columns(4))
            made = table.create_items({"now": keys[[2, 3, 10]]})
            assert len(set(made.tolist())) == 3 and is_empty(table, "items")
            table.complete(keys[[3, 2]], **columns([3, 2]))
            assert present(table, made, "items") == [True, False, False]
            table.complete(keys[[11, 5, 10]], **columns([11, 5, 10]))
            assert present(table, made, "items") == [True, True, False]
            late = table.create_items({"now": (keys[[2, 3]], 2)})
            assert present(table, late, "items") == [True, True], "of steps that are complete already"
            assert writer.create_item({"now": (keys[12], -3)}) > 0
            assert table.num_items(index="items") == 4
            table.complete(keys[12], **columns(12))
            assert table.num_items(index="items") == 6
            assert rewards(table, made) == [[2 / 4, 3 / 4, 4 / 4], [3 / 4, 4 / 4, 5 / 4], [10 / 4, 11 / 4, 12 / 4]]
            assert set(table.sample(64, index="items").item_keys.tolist()) >= set(made.tolist())
            assert table.stats().incomplete_items == 0
        table.check()

    def test_how_many_items_wait(self, make_table: MakeTable) -> None:
        """In each index: for late columns, for a priority; until they can be drawn, or are gone."""
        given = relive.Index(sampler=relive.Prioritized(1.0, initial="given"))
        table = make_table(late_spec(), 16, {**index_of_items(), "given": given}, max_lanes=1)

        def waiting() -> list[tuple[int, int]]:
            indexes = table.stats().indexes
            return [(indexes[name].pending, indexes[name].inserted) for name in ("steps", "items", "given")]

        with table.writer() as writer:
            keys = write(writer, 0, 10)
            assert waiting() == [(10, 0), (0, 0), (10, 0)]
            (made,) = table.create_items({"now": keys[[2]]})
            assert waiting() == [(10, 0), (1, 0), (10, 0)]
            table.complete(keys[2:5], **columns([2, 3, 4]))
            assert waiting() == [(7, 3), (0, 1), (10, 0)], "in one index they wait for their priorities now"
            assert table.update_priorities(keys[4:6], [1.0, 2.0], index="given") == 2
            assert waiting() == [(7, 3), (0, 1), (9, 1)]
            table.create_items({"now": keys[[7]]})
            assert table.delete([*keys[6:8].tolist(), made]) == 3
            assert waiting() == [(5, 3), (1, 1), (7, 1)], "an item lives on without its deleted row"
            write(writer, 10, 16)
            assert waiting() == [(16, 3), (0, 1), (16, 1)], "evicted"
        table.check()

    def test_explicit_items_wait_for_their_own_rows(self, make_table: MakeTable) -> None:
        """Not for those that a stride passes over."""
        table = make_table(late_spec(), 1000, index_of_items(), max_lanes=4)
        with table.writer() as writer:
            keys = write(writer, 0, 20)
            made = table.create_items({"far": keys[[0, 6]], "now": (keys[[0, 6]], 1)})
            table.complete(keys[[0, 4, 6]], **columns([0, 4, 6]))
            assert present(table, made, "items") == [True, False]

    def test_explicit_items_that_go_before_their_late_columns_come(self, make_table: MakeTable) -> None:
        """Dropped and counted with a row of theirs, or for a newer item; deleted by their key they are not counted."""
        table = make_table(late_spec(), 16, index_of_items(max_items=4), max_lanes=1)
        with table.writer() as writer:
            keys = write(writer, 0, 16)
            made = table.create_items({"now": keys[[0, 6, 8, 9]]})
            steps = write(writer, 16, 1)
            counted = table.stats().incomplete_items - 1  # the step's own item, which went with it
            assert counted == 1
            assert table.delete(made[1:2]) == 1
            more = table.create_items({"now": keys[[10, 11, 12]]})
            assert table.stats().incomplete_items == 3, "the third made room: four live at a time"
            every = np.append(keys[1:], steps)
            assert table.complete(every, **columns(range(1, 17))) == 16
            assert present(table, np.append(made, more), "items") == [False] * 3 + [True] * 4
        table.check()

    def test_a_priority_before_the_late_columns_of_an_explicit_item(self, make_table: MakeTable) -> None:
        for initial, alive in (("max", 3), ("given", 2)):
            sampler = relive.Prioritized(1.0, initial=initial)
            table = make_table(late_spec(), 1000, index_of_items(sampler=sampler), max_lanes=4)
            with table.writer() as writer:
                keys = write(writer, 0, 10)
                one, two = table.create_items({"now": keys[[0, 1]]}, priority=[2.0, 3.0])
                three = int(table.create_items({"now": keys[[2]]})[0])
                assert table.update_priorities([two], [5.0], index="items") == 1
                table.complete(keys, **columns(range(10)))
                assert present(table, [one, two, three], "items").count(True) == alive
                total = table.stats().indexes["items"].total_mass
                assert total == (2.0 + 5.0 + 5.0 if initial == "max" else 7.0)
            table.close()

    def test_patterns_with_late_columns(self, make_table: MakeTable) -> None:
        """Made as steps come, none is dropped."""
        table = make_table(late_spec(), 1000, index_of_items(), max_lanes=4)
        with table.writer() as writer:
            patterns = relive.PatternWriter(table, writer, [relive.Pattern({"now": 3})])
            keys = []
            for t in range(8):
                keys.append(patterns.append(observation=state(t), action=t, next_observation=state(t + 1)))
            assert is_empty(table, "items") and patterns.num_dropped == 0
            table.complete(keys[1:5], **columns(range(1, 5)))
            assert table.num_items(index="items") == 2

    def test_many_explicit_items_on_a_step_with_late_columns(self, make_table: MakeTable) -> None:
        """More than one hold of the lock publishes."""
        table = make_table(late_spec(), 1000, index_of_items(max_items=2000), max_lanes=4)
        with table.writer() as writer:
            keys = write(writer, 0, 10)
            table.create_items({"now": np.repeat(keys[3], 1500)})
            table.complete(keys[[3, 5]], **columns([3, 5]))
            assert is_empty(table, "items")
            table.complete(keys[4], **columns(4))
            assert table.num_items(index="items") == 1500
        table.check()


class LateLimitsSuite(Suite):
    """Not of writers that stream: their appends return before a limiter was asked."""

    def test_limiter_units_of_items_that_wait(self, make_table: MakeTable) -> None:
        """They take room as inserted ones do, until they can be drawn or are gone: lo = 0 and hi = 20 here."""
        limiter = relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)
        table = make_table(late_spec(), 100, index_of_items(limiter=limiter), max_lanes=4)
        with table.writer() as writer:
            keys = write(writer, 0, 50)  # an index of explicit items does not hold steps back
            made = table.create_items({"now": (keys[:20], 1)})
            with another_thread(), pytest.raises(errors.DeadlineExceeded):
                table.create_items({"now": (keys[20:21], 1)}, timeout_s=0.0)
            table.complete(keys[:12], **columns(range(12)))
            with another_thread(), pytest.raises(errors.DeadlineExceeded):
                table.create_items({"now": (keys[20:21], 1)}, timeout_s=0.0)
            table.delete(made[19:])
            table.create_items({"now": (keys[20:21], 1)}, timeout_s=0.0)
            table.sample(2, index="items")
            table.create_items({"now": (keys[20:22], 1)}, timeout_s=0.0)

    def test_limiter_units_of_steps_that_wait(self, make_table: MakeTable) -> None:
        table = make_table(late_spec(), 100, bound(), max_lanes=4)
        with table.writer() as writer:
            keys = write(writer, 0, 20)
            with another_thread(), pytest.raises(errors.DeadlineExceeded):
                writer.append(observation=state(20), action=0, next_observation=state(21), timeout_s=0.0)
            assert table.complete(keys[:12], **columns(range(12))) == 12
            table.sample(5)
            write(writer, 20, 5)
            with another_thread(), pytest.raises(errors.DeadlineExceeded):
                writer.append(observation=state(25), action=0, next_observation=state(26), timeout_s=0.0)
        table.check()

    @pytest.mark.parametrize(
        "paced",
        [
            {"limiter": relive.SamplesPerInsert(1.0, min_size=4, tolerance=4.0)},
            {"limiter": relive.Queue(4), "max_times_sampled": 1},
            {"limiter": relive.StalenessBudget(0, 4), "max_times_sampled": 1},
        ],
        ids=["samples_per_insert", "queue", "budget"],
    )
    def test_overdue_steps_give_their_room_back(self, make_table: MakeTable, paced: dict[str, Any]) -> None:
        """A write that waits for room drops the steps that have waited longer than max_wait_s, also at its deadline."""
        table = make_table(late_spec(), 100, relive.Index(max_wait_s=0.1, **paced), max_lanes=4)

        def number(step: int) -> dict[str, Any]:
            return {"observation": state(step), "action": step, "next_observation": state(step + 1)}

        with table.writer() as writer, another_thread():
            for t in range(30):
                writer.append(**number(t), timeout_s=20.0)

            def is_let_in(step: int) -> bool:
                try:
                    writer.append(**number(step), timeout_s=0.0)
                except errors.DeadlineExceeded:
                    return False
                return True

            for t in range(30, 40):
                assert eventually(lambda t=t: is_let_in(t))
            told = table.stats().indexes["default"]
            assert told.pending + told.timed_out == 40 and told.pending <= 8
        table.check()
