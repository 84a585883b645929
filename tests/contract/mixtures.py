"""Rows of the table of meanings that speak of mixtures."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, plain_spec, prioritized, transitions, write_steps
from relive import errors


def used(table: Any, index: str) -> int:
    return int(table.stats().indexes[index].sampled)


class MixturesSuite(Suite):
    def test_shares_are_exact(self, make_table: MakeTable) -> None:
        """Parts of every batch, whatever its size; positions in `source`; rows and probabilities are its source's."""
        spec, index = plain_spec(), {"first": prioritized(1.0), "second": transitions()}
        table, other = make_table(spec, 100, index), make_table(spec, 100, index)
        for number, one in enumerate((table, other)):
            with one.writer() as writer:
                keys = write_steps(writer, 100 * number, 10)
            one.update_priorities(keys, np.arange(1.0, 11.0))
        shares = {"agent": 0.7, "uniform": 0.1, "demonstrations": 0.2}
        sources = {"agent": (table, "first"), "uniform": (table, "second"), "demonstrations": (other, "first")}
        with relive.Mixture(shares, sources) as mixture:
            totals, drawn = np.zeros(3), 0
            for size in (1, 3, 7, 16, 33, 2, 2, 100, 5):
                batch = mixture.sample(size)
                assert batch.source is not None and batch.source_names == ("agent", "uniform", "demonstrations")
                totals += np.bincount(batch.source, minlength=3)
                drawn += size
                assert (np.abs(totals - drawn * np.array([0.7, 0.1, 0.2])) < 1.0).all()
                assert (batch["action"] >= 100).tolist() == (batch.source == 2).tolist()
                value = batch["action"] % 100 + 1.0
                expected = np.where(batch.source == 1, 0.1 * 0.1, np.array([0.7, 0, 0.2])[batch.source] * value / 55)
                np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-6)
                assert batch.num_live_items == 30
            assert used(table, "first") + used(table, "second") + used(other, "first") == drawn
            some = batch.rows(slice(1, 3))
            assert some.source is not None and some.source.tolist() == batch.source[1:3].tolist()
            assert mixture.sample(50, ["action"])["action"].shape == (50,)
            draw = mixture.draw(20)
            gathered = mixture.gather(draw, ["action"])
            assert gathered.source is not None and np.asarray(gathered.present).all()
            assert (gathered["action"] >= 100).tolist() == (gathered.source == 2).tolist()
            np.testing.assert_array_equal(gathered.probabilities, draw.probabilities)

    def test_what_is_drawn_for_the_last_time_is_still_gathered(self, make_table: MakeTable) -> None:
        """Its page has nothing else, and would go."""
        spec, index = plain_spec(), relive.Index(sampler=relive.Uniform(), max_times_sampled=1)
        table, other = make_table(spec, 100, index), make_table(spec, 100, index)
        for one in (table, other):
            with one.writer() as writer:
                write_steps(writer, 0, 40)
        with relive.Mixture({"a": 0.5, "b": 0.5}, {"a": table, "b": other}) as mixture:
            for _ in range(4):
                rows = mixture.gather(mixture.draw(20, timeout_s=5.0))
                assert rows.present is None or rows.present.all()
                assert len(set(rows["action"][rows.source == 0].tolist())) == 10

    def test_conditions_of_all_sources_and_of_some(self, make_table: MakeTable) -> None:
        spec, index = plain_spec(), relive.Index(max_times_sampled=3)
        table, other = make_table(spec, 100, index), make_table(spec, 100, relive.Index(sampler=relive.Lifo()))
        for one in (table, other):
            with one.writer() as writer:
                write_steps(writer, 0, 40)
        with relive.Mixture({"a": 0.5, "b": 0.5}, {"a": table, "b": other}) as mixture:
            assert set(mixture.sample(20, where="action >= 30")["action"].tolist()) <= set(range(30, 40))
            batch = mixture.sample(20, where={"b": "action < 5"})
            assert set(batch["action"][batch.source == 1].tolist()) == set(range(5))
            assert max(batch["action"][batch.source == 0].tolist()) > 5
            drawn = mixture.gather(mixture.draw(4, where="action == 7"))
            assert drawn["action"].tolist() == [7] * 4
            with mixture.batches(6, where={"a": "action == 8", "b": "action == 9"}) as batches:
                batch = next(batches)
            assert sorted(batch["action"].tolist()) == [8] * 3 + [9] * 3
            before = [used(one, "default") for one in (table, other)]
            for where in ("action > 40", {"a": "action == 8"}):  # its three uses are over
                for call in (mixture.sample, mixture.draw):
                    with pytest.raises(errors.RareItems):
                        call(4, where=where, timeout_s=0.0)
            assert [used(one, "default") for one in (table, other)] == before
            with pytest.raises(errors.InvalidConfig):
                mixture.sample(4, where={"c": "action > 1"})
            with pytest.raises(errors.UnknownColumn):
                mixture.sample(4, where={"b": "actions > 1"})
        for one in (table, other):
            one.check()

    def test_updates_go_where_items_came_from(self, make_table: MakeTable) -> None:
        spec = plain_spec()
        table, other = make_table(spec, 100, prioritized(1.0)), make_table(spec, 100, transitions())
        for one in (table, other):
            with one.writer() as writer:
                keys = write_steps(writer, 0, 4)
        with relive.Mixture({"a": 0.5, "b": 0.5}, {"a": table, "b": other}) as mixture:
            assert mixture.update_priorities(keys, np.array([0.0, 0.0, 2.0, 9.0]), source=np.array([0, 0, 0, 1])) == 3
            assert set(table.sample(64)["action"].tolist()) == {2, 3}
            before = other.stats(), table.stats()
            bad: list[tuple[Any, Any, type[Exception]]] = [
                ([1.0, 1.0, 1.0, -1.0], [0, 0, 0, 1], errors.InvalidPriority),
                ([1.0] * 4, [0, 0, 0, 2], errors.InvalidConfig),
                ([1.0] * 4, [0.0, 0.5, 0.0, 0.0], errors.InvalidConfig),
                ([1.0] * 4, [0, 0, 0], errors.ShapeMismatch),
                ([1.0] * 3, [0, 0, 0, 0], errors.ShapeMismatch),
                ([1.0] * 4, None, errors.InvalidConfig),
            ]
            for priorities, source, error in bad:
                with pytest.raises(error):
                    mixture.update_priorities(keys, priorities, source=source)
            assert (other.stats(), table.stats()) == before

    def test_all_or_none(self, make_table: MakeTable) -> None:
        """If one source has too few items, the limiters and use counts of the other sources stay as they were."""
        spec, queue = plain_spec(), relive.Index(limiter=relive.Queue(8), max_times_sampled=1)
        twice = relive.Index(max_times_sampled=2)
        table, other = make_table(spec, 100, twice), make_table(spec, 100, queue)
        with table.writer() as writer:
            write_steps(writer, 0, 4)
        with relive.Mixture({"a": 0.5, "b": 0.5}, {"a": table, "b": other}) as mixture:
            for timeout_s in (0.0, 0.3):
                with pytest.raises(errors.DeadlineExceeded, match="'b'"):
                    mixture.sample(4, timeout_s=timeout_s)
                with pytest.raises(errors.DeadlineExceeded, match="'b'"):
                    mixture.draw(4, timeout_s=timeout_s)
            assert used(table, "default") == 0 and table.num_items() == 4
            with other.writer() as writer:
                write_steps(writer, 0, 6)
            for _ in range(3):
                assert np.bincount(mixture.sample(4, timeout_s=10.0).source).tolist() == [2, 2]  # type: ignore[arg-type]
            with pytest.raises(errors.DeadlineExceeded, match="'b'"):
                mixture.sample(4, timeout_s=0.0)
            assert used(table, "default") == 6 and used(other, "default") == 6
            with other.writer() as writer:
                write_steps(writer, 6, 2)
            mixture.sample(4, timeout_s=10.0)
            assert table.num_items() == 0, "each was used twice"
            table.check()
            other.check()

    def test_batches(self, make_table: MakeTable) -> None:
        """Batches that were drawn ahead and not handed out are given back, with their uses and shares."""
        spec = plain_spec()
        table, other = make_table(spec, 100, relive.Index(max_times_sampled=5)), make_table(spec, 100, transitions())
        for one in (table, other):
            with one.writer() as writer:
                write_steps(writer, 0, 6)
        with relive.Mixture({"a": 0.75, "b": 0.25}, {"a": table, "b": other}) as mixture:
            totals = np.zeros(2, np.int64)
            with mixture.batches(3, prefetch=3, timeout_s=20.0) as batches:
                for _, batch in zip(range(3), batches, strict=False):
                    totals += np.bincount(batch.source, minlength=2)  # type: ignore[arg-type]
            assert used(table, "default") == totals[0] and used(other, "default") == totals[1]
            totals += np.bincount(mixture.sample(3).source, minlength=2)  # type: ignore[arg-type]
            assert totals.tolist() == [9, 3]
            for _ in range(7):  # 30 uses in all, of which 9 are gone: 21 are left
                mixture.sample(4, timeout_s=10.0)
            assert table.num_items() == 0

    def test_batches_that_are_given_back_leave_no_trace(self, make_table: MakeTable) -> None:
        """The same seed and calls give the same bytes, whatever was prefetched and thrown away in between."""
        spec, index = plain_spec(), {"first": prioritized(1.0), "second": transitions()}
        drawn = []
        for prefetch in (0, 3):
            table = make_table(spec, 100, index)
            with table.writer() as writer:
                write_steps(writer, 0, 10)
            with relive.Mixture({"first": 0.5, "second": 0.5}, table, seed=3) as mixture:
                batches = [mixture.sample(32)]
                if prefetch:
                    with mixture.batches(32, prefetch=prefetch) as ahead:
                        batches.append(next(ahead))
                        time.sleep(0.05)  # others are drawn meanwhile
                else:
                    batches.append(mixture.sample(32))
                batches.append(mixture.sample(32))
            drawn.append([(batch["action"].tolist(), batch.source.tolist()) for batch in batches])
        assert drawn[0] == drawn[1]

    def test_bad_mixtures(self, make_table: MakeTable) -> None:
        spec = plain_spec()
        table = make_table(spec, 100, {"a": transitions(), "b": transitions(n_step=3), "c": prioritized()})
        narrow = make_table(relive.StepSpec({"action": relive.ArraySpec((), "int32")}), 100)
        half = {"a": 0.5, "c": 0.5}
        shares: list[Any] = [
            {}, {"a": 1.5}, {"a": 0.5, "c": 0.4}, {"a": 0.0, "c": 1.0}, {"a": -1.0, "c": 2.0},
            {"a": float("nan"), "c": 1.0},
            {"a": True}, {"a": "1"}, {"": 1.0}, {"x": 1.0}, {1: 1.0}, 3, None, {"a": 0.5, "c": 0.5 + 2e-9},
        ]  # fmt: skip
        for one in shares:
            with pytest.raises(errors.InvalidConfig):
                relive.Mixture(one, table)
        sources: list[Any] = [
            None, 3, {}, {"a": table}, {"a": table, "d": table}, {"a": table, "c": 3}, {"a": table, "c": (table, "x")},
            {"a": table, "c": (table, 3)}, {"a": table, "c": (table,)}, {"a": table, "c": narrow},
        ]  # fmt: skip
        for one in sources:
            with pytest.raises(errors.InvalidConfig):
                relive.Mixture(half, one)
        with relive.Mixture(half, table) as mixture:
            for num_items in (0, -1, 1.5, "1", True, None):
                with pytest.raises(errors.InvalidConfig):
                    mixture.sample(num_items)  # type: ignore[arg-type]
            with pytest.raises(errors.UnknownColumn):
                mixture.sample(1, ["nothing"])
            with pytest.raises(errors.DeadlineExceeded):
                mixture.sample(4, timeout_s=0.0)
        with pytest.raises(errors.TableClosed):
            mixture.sample(1)
        mixture.close()
        assert used(table, "a") == used(table, "c") == 0
