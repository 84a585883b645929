"""Samplers and removers that go by an order: which items come, which go, and in what turn."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, is_empty, plain_spec, present, step, write_steps
from relive import errors

PRIORITIES = [3.0, 0.0, 7.0, 3.0, 1.0]


def ordered(sampler: Any, **more: Any) -> relive.Index:
    return relive.Index(sampler=sampler, **more)


ORDERS = (relive.Fifo(), relive.Lifo(), relive.MaxPriority(), relive.MinPriority(), relive.Fresh())


def drawn(table: Any, n: int, **options: Any) -> list[int]:
    """Actions of the steps that a draw brings, in its order."""
    batch = table.sample(n, timeout_s=0.0, **options)
    assert batch.probabilities.tolist() == [1.0] * n and batch.weights(beta=0.7).tolist() == [1.0] * n
    return [int(action) for action in np.asarray(batch["action"])]


class OrdersSuite(Suite):
    def test_first_in_first_out(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, ordered(relive.Fifo()))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 6)
            assert [drawn(table, 1), drawn(table, 1), drawn(table, 4)] == [[0], [0], [0, 1, 2, 3]]
            assert drawn(table, 8) == [0, 1, 2, 3, 4, 5, 0, 1]
            table.delete(keys[[0, 2]])
            assert drawn(table, 3) == [1, 3, 4]
            with pytest.raises(errors.NoPriorities):
                table.update_priorities(keys[[3]], [2.0])
        table.check()

    @pytest.mark.parametrize("sampler", ORDERS, ids=repr)
    @pytest.mark.parametrize("max_times", [None, 1])
    def test_a_condition_goes_through_the_order(
        self, make_table: MakeTable, sampler: Any, max_times: int | None
    ) -> None:
        table = make_table(plain_spec(), 400, ordered(sampler, max_times_sampled=max_times))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 300)
        priorities = (np.arange(300) * 7 % 300 + 1).astype(np.float32)
        if table.config.index["default"].has_priorities:
            table.update_priorities(keys, priorities)
        sign = -1 if isinstance(sampler, (relive.Lifo, relive.MaxPriority, relive.Fresh)) else 1
        ranks = sign * (priorities if table.config.index["default"].has_priorities else np.arange(300))
        passing = [number for number in np.argsort(ranks).tolist() if number >= 260]
        for size in (1, 5, 20):
            assert drawn(table, size, where="action >= 260") == passing[:size]
            del passing[: size if max_times else 0]
        if max_times is None:
            assert drawn(table, 50, where="action >= 260") == (passing * 2)[:50]
        else:
            with pytest.raises(errors.RareItems) as caught:
                table.sample(15, where="action >= 260", timeout_s=0.0)
            assert (caught.value.found, caught.value.asked) == (len(passing), 15)
            assert drawn(table, 14, where="action >= 260") == passing
        with pytest.raises(errors.RareItems) as caught:
            table.sample(3, where="action > 1000", timeout_s=0.0)
        assert (caught.value.found, caught.value.looked_at) == (0, 300 if max_times is None else 260)
        table.check()

    def test_a_condition_hands_each_item_out_once(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 400, ordered(relive.Fifo(), max_times_sampled=1))
        with table.writer() as writer:
            write_steps(writer, 0, 300)
        taken: list[list[int]] = [[], [], []]

        def take(mine: list[int]) -> None:
            with contextlib.suppress(errors.RareItems):
                while True:
                    with contextlib.suppress(errors.DeadlineExceeded):  # a mixture was busy with another thread's call
                        mine.extend(drawn(table, 1, where="action >= 100"))

        threads = [threading.Thread(target=take, args=(mine,)) for mine in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(sum(taken, [])) == list(range(100, 300))
        assert drawn(table, 100) == list(range(100))
        table.check()

    def test_last_in_first_out(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, ordered(relive.Lifo()))
        with table.writer() as writer:
            write_steps(writer, 0, 3)
            assert drawn(table, 5) == [2, 1, 0, 2, 1]
            write_steps(writer, 3, 1)
            assert drawn(table, 2) == [3, 2]

    def test_a_queue_hands_each_item_out_once(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 400, ordered(relive.Fifo(), max_times_sampled=1))
        with table.writer() as writer:
            write_steps(writer, 0, 300)
        assert drawn(table, 3) == [0, 1, 2]
        taken: list[list[int]] = []

        def take() -> None:
            while len(taken) < 99:
                try:
                    taken.append(drawn(table, 3))
                except errors.DeadlineExceeded:
                    return

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(action for batch in taken for action in batch) == list(range(3, 300))
        assert all(batch == [batch[0], batch[0] + 1, batch[0] + 2] for batch in taken)
        assert is_empty(table)
        table.check()

    def test_a_draw_that_finds_too_few_changes_no_turn(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, ordered(relive.Fifo(), max_items=50, max_times_sampled=1))
        with table.writer() as writer:
            write_steps(writer, 0, 5)
            with pytest.raises(errors.DeadlineExceeded):
                table.sample(6, timeout_s=0.0)
            write_steps(writer, 5, 2)
            assert drawn(table, 6) == [0, 1, 2, 3, 4, 5]
        table.check()

    def test_orders_by_priority(self, make_table: MakeTable) -> None:
        for sampler, order in ((relive.MaxPriority(), [2, 0, 3, 4, 1]), (relive.MinPriority(), [1, 4, 0, 3, 2])):
            table = make_table(plain_spec(), 100, ordered(sampler))
            with table.writer() as writer:
                keys = write_steps(writer, 0, 5)
                assert table.update_priorities(keys, PRIORITIES) == 5
                assert drawn(table, 5) == order and drawn(table, 1) == order[:1]
                table.update_priorities(keys[[0]], [3.0])  # the latest of its priority now
                i, j = order.index(0), order.index(3)
                order[i], order[j] = 3, 0
                assert drawn(table, 5) == order
                table.update_priorities(keys[order[:1]], [2.0])
                assert drawn(table, 5) != order
            table.check()

    def test_an_item_that_waits_for_its_priority_has_no_turn(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, ordered(relive.MaxPriority(initial="given")))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
            assert is_empty(table)
            table.update_priorities(keys[[1, 2]], [1.0, 5.0])
            assert drawn(table, 3) == [2, 1, 2]

    @pytest.mark.parametrize(
        ("remover", "left"),
        [
            (relive.Fifo(), [7, 8, 9]),
            (relive.Lifo(), [0, 1, 2]),
            (relive.MinPriority(), [3, 8, 9]),
            (relive.MaxPriority(), [1, 5, 7]),
        ],
    )
    def test_what_goes(self, make_table: MakeTable, remover: Any, left: list[int]) -> None:
        """Three of ten items may stay. The remover judges the new item like the others."""
        index = {"few": relive.Index(remover=remover, max_items=3), "all": relive.Index()}
        table = make_table(plain_spec(), 100, index)
        with table.writer() as writer:
            keys = []
            for t, priority in enumerate([2.0, 1.0, 5.0, 9.0, 4.0, 1.0, 3.0, 2.0, 9.0, 8.0]):
                given = {"priority": priority} if index["few"].has_priorities else {}
                keys.append(int(write_steps(writer, t, 1, **given)[0]))
                assert table.num_items(index="few") == min(t + 1, 3)
        assert np.flatnonzero(present(table, keys, "few")).tolist() == left
        assert table.num_items(index="all") == 10
        table.check()

    def test_a_remover_follows_updates(self, make_table: MakeTable) -> None:
        index = {"few": ordered(relive.Prioritized(1.0), remover=relive.MinPriority(), max_items=3)}
        table = make_table(plain_spec(), 100, index)
        with table.writer() as writer:
            keys = [int(write_steps(writer, t, 1, priority=p)[0]) for t, p in enumerate((5.0, 4.0, 3.0))]
            table.update_priorities(keys[:1], [1.0])
            keys += [int(key) for key in write_steps(writer, 3, 1, priority=2.0)]
            assert present(table, keys) == [False, True, True, True]
            keys += [int(key) for key in write_steps(writer, 4, 1, priority=1.5)]
            assert present(table, keys) == [False, True, True, True, False]
        table.check()

    @pytest.mark.parametrize("others", [False, True])
    def test_removers_at_capacity(self, make_table: MakeTable, others: bool) -> None:
        """Pages without items go early, so the best stay; where others want every step they go in the order of time."""
        index = {"best": relive.Index(remover=relive.MinPriority(), max_items=20)}
        if others:
            index["all"] = relive.Index()
        table = make_table(plain_spec(), 200, index, max_lanes=1)
        with table.writer() as writer:
            keys = [int(write_steps(writer, t, 1, priority=float(2_000 - t))[0]) for t in range(2_000)]
            there = present(table, keys, "best")
            assert 0 < sum(there) == table.num_items(index="best") <= 20
            assert there[:20] == [True] * 20
        table.check()

    @pytest.mark.parametrize(
        ("remover", "left"),
        [
            (relive.Fifo(), [7, 8, 9]),
            (relive.Lifo(), [0, 1, 2]),
            (relive.MinPriority(), [3, 8, 9]),
            (relive.MaxPriority(), [1, 5, 7]),
        ],
    )
    def test_explicit_removers(self, make_table: MakeTable, remover: Any, left: list[int]) -> None:
        """As test_what_goes, one by one and in one call."""
        items = relive.Explicit({"w": relive.Window(2)}, {}, max_items=3)
        index = {"steps": relive.Index(), "few": relive.Index(items, remover=remover)}
        table = make_table(plain_spec(), 100, index)
        priorities = [2.0, 1.0, 5.0, 9.0, 4.0, 1.0, 3.0, 2.0, 9.0, 8.0]
        with table.writer() as writer:
            keys = write_steps(writer, 0, 12)
            for at_once in (False, True):
                made: list[int] = []
                for k in [slice(None)] if at_once else [slice(t, t + 1) for t in range(10)]:
                    given = {"priority": priorities[k]} if index["few"].has_priorities else {}
                    windows = {"w": np.stack([keys[:10][k], keys[1:11][k]], axis=1)}
                    made += table.create_items(windows, index="few", **given).tolist()
                there = table.gather(made, index="few", columns=["w/action"])
                assert np.flatnonzero(there.present).tolist() == left
                assert table.num_items(index="few") == 3
                table.delete(made)
        table.check()

    def test_explicit_items_that_are_used_up_go_first(self, make_table: MakeTable) -> None:
        items = relive.Explicit({"w": relive.Window(1)}, {}, max_items=3)
        few = relive.Index(items, relive.Fifo(), remover=relive.Lifo(), max_times_sampled=1)
        table = make_table(plain_spec(), 100, {"steps": relive.Index(), "few": few})
        with table.writer() as writer:
            keys = write_steps(writer, 0, 8)
            made = [int(table.create_items({"w": keys[k : k + 1, None]}, index="few")[0]) for k in range(3)]
            assert table.sample(2, index="few").item_keys.tolist() == made[:2]
            for k in range(3, 6):
                made.append(int(table.create_items({"w": keys[k : k + 1, None]}, index="few")[0]))
            there = table.gather(made, index="few", columns=["w/action"])
            assert there.present.tolist() == [False, False, True, True, True, False]
        table.check()

    def test_an_explicit_item_that_waits_goes_when_as_many_came_as_there_may_be(self, make_table: MakeTable) -> None:
        items = relive.Explicit({"w": relive.Window(1)}, {}, max_items=3)
        few = relive.Index(items, relive.Prioritized(initial="given"), remover=relive.MinPriority())
        table = make_table(plain_spec(), 100, {"steps": relive.Index(), "few": few})
        with table.writer() as writer:
            keys = write_steps(writer, 0, 8)

            def make(k: int, **given: Any) -> int:
                return int(table.create_items({"w": keys[k : k + 1, None]}, index="few", **given)[0])

            waits = make(0)
            for k in range(1, 3):
                make(k, priority=[float(k)])
            assert table.stats().indexes["few"].pending == 1
            make(3, priority=[9.0])  # the third that came behind the one that waits
            assert table.num_items(index="few") == 3 and table.stats().indexes["few"].pending == 0
            assert table.update_priorities([waits], [5.0], index="few") == 0
        table.check()

    def test_which_groups_go(self, make_table: MakeTable) -> None:
        spec = plain_spec(prompt=relive.ArraySpec((), "int64", kind="episode"))
        groups = relive.Episodes(4, group_by="prompt", group_size=2, max_groups=2)
        index = {"steps": relive.Index(), "groups": relive.Index(groups, relive.Uniform(), remover=relive.Lifo())}
        table = make_table(spec, 200, index)
        with table.writer() as writer:
            for prompt in (0, 0, 1, 1, 2, 2, 3, 3):
                for t in range(2):
                    writer.append(**step(t, t + 1, terminated=t == 1), prompt=prompt)
            batch = table.sample(60, index="groups")  # each time the last one made room for the one that opened
            assert set(np.asarray(batch["prompt"])[:, 0].tolist()) == {0, 3}
        table.check()

    def test_explicit_items_in_their_turn(self, make_table: MakeTable) -> None:
        items = relive.Explicit({"w": relive.Window(2)}, {}, max_items=50)
        index = {"steps": relive.Index(), "items": relive.Index(items, relive.MinPriority())}
        table = make_table(plain_spec(), 100, index)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 12)
            made = table.create_items(
                {"w": np.stack([keys[:5], keys[1:6]], axis=1)}, index="items", priority=PRIORITIES
            )
            batch = table.sample(5, index="items")
            assert batch.item_keys.tolist() == made[[1, 4, 0, 3, 2]].tolist()
        table.check()

    def test_what_is_new(self, make_table: MakeTable) -> None:
        indexes = {
            "newest": relive.Index(sampler=relive.Fresh()),
            "last": relive.Index(sampler=relive.Fresh(last=3)),
            "fading": relive.Index(sampler=relive.Fresh(decay=0.5)),
        }
        table = make_table(plain_spec(), 400, indexes)
        with table.writer() as writer:
            for version in range(6):
                table.set_policy_version(version)
                writer.set_policy_version(version)  # a streamed writer's steps may come to the table later
                keys = write_steps(writer, 2 * version, 2)
            assert np.asarray(table.sample(3, index="newest")["action"]).tolist() == [11, 10, 9]
            last = table.sample(200, index="last")
            assert set(np.asarray(last["action"]).tolist()) == {9, 10, 11}
            np.testing.assert_allclose(last.probabilities, 1 / 3)
            fading = table.sample(200, index="fading", columns=["action", "staleness"])
            masses = 0.5 ** np.asarray(fading["staleness"], float)
            np.testing.assert_allclose(fading.probabilities, masses / (2 * (2 - 2**-5)), rtol=1e-9)
            table.delete(keys)
            assert set(np.asarray(table.sample(50, index="last")["action"]).tolist()) == {9}
            table.set_policy_version(5_000)  # further than masses reach without being recomputed
            again = table.sample(200, index="fading", columns=["action"])
            versions = np.asarray(again["action"]) // 2
            np.testing.assert_allclose(again.probabilities, 0.5 ** (4.0 - versions) / (2 * (2 - 2**-4)), rtol=1e-9)
            writer.set_policy_version(5_001)
            write_steps(writer, 12, 1)  # all the others have hardly any mass beside it
            assert set(np.asarray(table.sample(50, index="fading")["action"]).tolist()) == {12}
        table.check()

    def test_max_staleness(self, make_table: MakeTable) -> None:
        """Items that become too stale leave with the version step, and items that come too late at once. Steps stay."""
        table = make_table(plain_spec(), 2_000, {"bounded": relive.Index(max_staleness=1), "all": relive.Index()})
        with table.writer() as writer:
            writer.set_policy_version(0)
            old = write_steps(writer, 0, 600)
            table.set_policy_version(1)
            assert all(present(table, old, "bounded"))
            table.set_policy_version(2)
            assert not any(present(table, old, "bounded")) and all(present(table, old, "all"))
            assert table.stats().indexes["bounded"].expired == 600
            late = write_steps(writer, 600, 3)
            writer.set_policy_version(1)
            new = write_steps(writer, 603, 3)
            assert present(table, late, "bounded") == [False] * 3 and present(table, new, "bounded") == [True] * 3
            stats = table.stats().indexes["bounded"]
            assert (stats.num_items, stats.expired, stats.inserted) == (3, 603, 606)
            assert np.asarray(table.sample(40, index="bounded", columns=["staleness"])["staleness"]).max() == 1
        table.check()
