"""Rows of the table of meanings that speak of priorities, draws and batches."""

from __future__ import annotations

import collections
import threading

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, is_empty, plain_spec, present, prioritized, step, transitions, write_steps
from relive import errors


def probabilities(table: relive.Table, index: str | None = None, num_draws: int = 4000) -> dict[int, float]:
    draw = table.draw(num_draws, index=index)
    return dict(zip(draw.item_keys.tolist(), np.asarray(draw.probabilities).tolist(), strict=True))


class ReadingSuite(Suite):
    def test_priority(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, prioritized(exponent=0.5))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
            assert table.update_priorities(keys, [4.0, 16.0, 0.0]) == 3
            said = probabilities(table)
            assert said == {int(keys[0]): pytest.approx(2 / 6), int(keys[1]): pytest.approx(4 / 6)}
            assert present(table, keys[2:]) == [True], "priority 0 is never drawn, but it is there"
            last = [keys[0], keys[0], keys[0]]
            assert table.update_priorities(last, [1.0, 2.0, 16.0]) >= 1
            assert probabilities(table)[int(keys[0])] == pytest.approx(0.5), "the last of duplicates wins"

    def test_an_early_update_of_a_pending_item_is_kept(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, prioritized())
        with table.writer() as writer:
            pending = writer.append(**step(0))
            assert table.update_priorities([pending], [3.0]) == 1
            second = writer.append(**step(1, 2), priority=1.0)
        assert probabilities(table) == {int(pending): pytest.approx(0.75), int(second): pytest.approx(0.25)}

    def test_a_pending_priority_is_of_one_index(self, make_table: MakeTable) -> None:
        of_three = {"a": prioritized(n_step=3), "b": prioritized(n_step=3, initial=0.5), "c": transitions(3)}
        table = make_table(plain_spec(), 100, of_three)
        with table.writer() as writer:
            pending, other = writer.append(**step(0)), writer.append(**step(1), priority=4.0)
            assert table.update_priorities([pending], [3.0], index="a") == 1
            assert table.update_priorities([other], [1.5], index="b") == 1
            last = writer.append(**step(2, 3, truncated=True))
        keys = [int(pending), int(other), int(last)]
        for name, masses in {"a": (3.0, 4.0, 4.0), "b": (0.5, 1.5, 0.5), "c": (1.0, 1.0, 1.0)}.items():
            expected = {key: pytest.approx(mass / sum(masses)) for key, mass in zip(keys, masses, strict=True)}
            assert probabilities(table, name) == expected

    def test_late_updates_are_counted_and_dropped(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 64, prioritized())
        with table.writer() as writer:
            old = write_steps(writer, 0, 64)
            new = write_steps(writer, 64, 640)[-32:]
            assert table.update_priorities(np.concatenate([old, new]), np.full(96, 1e6)) == 32
            table.delete(new[:1])
            assert table.update_priorities(new[:2], [1.0, 1.0]) == 1
        table.check()

    def test_a_total_of_zero_waits_as_if_empty(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, prioritized(), max_lanes=4)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 4)
            table.update_priorities(keys, np.zeros(4))
            assert is_empty(table)
            table.update_priorities(keys[1:2], [1e-6])
            assert set(table.draw(50).item_keys.tolist()) == {int(keys[1])}

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "list"])
    def test_priorities_in_any_clothes(self, make_table: MakeTable, dtype: str) -> None:
        table = make_table(plain_spec(), 100, prioritized())
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
        values = [1, 2, 5] if dtype == "list" else np.array([1, 2, 5], dtype)
        assert table.update_priorities(keys.tolist() if dtype == "list" else keys, values) == 3
        assert probabilities(table)[int(keys[2])] == pytest.approx(5 / 8)

    def test_initial_priority(self, make_table: MakeTable) -> None:
        """max: the running maximum of given priorities, from 1 on; or a number; or none without being given."""
        running = make_table(plain_spec(), 100, prioritized())
        with running.writer() as writer:
            first = writer.append(**step(0, 1))
            assert probabilities(running)[int(first)] == 1
            running.update_priorities([first], [3.0])
            second = writer.append(**step(1, 2))
            assert probabilities(running)[int(second)] == pytest.approx(0.5)
            running.update_priorities([first, second], [0.5, 0.5])
            third = writer.append(**step(2, 3))
            assert probabilities(running)[int(third)] == pytest.approx(3 / 4), "the maximum never falls"
        number = make_table(plain_spec(), 100, prioritized(initial=0.5))
        with number.writer() as writer:
            first, second = writer.append(**step(0, 1)), writer.append(**step(1, 2), priority=1.5)
        assert probabilities(number) == {int(first): pytest.approx(0.25), int(second): pytest.approx(0.75)}
        given = make_table(plain_spec(), 100, prioritized(initial="given"))
        with given.writer() as writer:
            writer.append(**step(0, 1))
        assert is_empty(given)

    def test_draws_follow_the_priorities(self, make_table: MakeTable) -> None:
        """Chi-square over 64 masses from 1 to 64: a bound that a right table misses once in 1e9 runs."""
        table = make_table(plain_spec(), 500, prioritized())
        with table.writer() as writer:
            keys = write_steps(writer, 0, 64)
        priorities = np.arange(1.0, 65.0)
        table.update_priorities(keys, priorities)
        counts = collections.Counter()
        for _ in range(40):
            counts.update(table.draw(512).item_keys.tolist())
        expected = priorities / priorities.sum() * 40 * 512
        seen = np.array([counts[int(key)] for key in keys])
        assert ((seen - expected) ** 2 / expected).sum() < 160

    def test_weights(self, make_table: MakeTable) -> None:
        """(N p)^-beta over the maximum in the batch."""
        table = make_table(plain_spec(), 100, prioritized())
        with table.writer() as writer:
            keys = write_steps(writer, 0, 4)
        table.update_priorities(keys, [1.0, 2.0, 4.0, 1.0])
        batch = table.sample(256)
        raw = (4 * np.asarray(batch.probabilities)) ** -0.4
        weights = batch.weights(beta=0.4)
        assert weights.dtype == np.float32 and weights.shape == (256,)
        np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-5)
        np.testing.assert_allclose(batch.weights(beta=0.4, normalize=None), raw, rtol=1e-5)
        assert (batch.weights(beta=0.0) == 1).all()

    def test_weights_of_a_uniform_table_are_one(self, table: relive.Table) -> None:
        with table.writer() as writer:
            write_steps(writer, 0, 37)
        batch = table.sample(64)
        np.testing.assert_allclose(batch.probabilities, 1 / 37)
        np.testing.assert_allclose(batch.weights(beta=0.7), 1, rtol=1e-6)

    def test_a_batch(self, table: relive.Table) -> None:
        """Exactly n items, with replacement, at permuted positions."""
        with table.writer() as writer:
            one = write_steps(writer, 0, 1)
            batch = table.sample(32)
            assert batch.item_keys.tolist() == one.tolist() * 32 and batch["observation"].shape == (32, 2)
            keys = np.concatenate([one, write_steps(writer, 1, 255)])
        rank = {int(key): i for i, key in enumerate(keys)}
        draws = np.array([[rank[int(key)] for key in table.draw(32).item_keys] for _ in range(300)])
        assert abs(draws.mean() - 127.5) < 5
        per_position = draws.mean(axis=0)  # standard error 74 / sqrt(300) = 4.3
        assert (abs(per_position - 127.5) < 30).all(), "some position of the batch prefers old or new items"

    def test_a_batch_of_columns(self, table: relive.Table) -> None:
        with table.writer() as writer:
            write_steps(writer, 0, 9)
        batch = table.sample(5, columns=["reward", "lane"])
        assert set(batch) == {"reward", "lane"} and batch["reward"].shape == (5,)
        with pytest.raises(errors.ReliveError):
            table.sample(5, columns=["nobody"])
        everything = table.sample(5)
        assert set(everything) >= {"observation", "action", "reward", "next_observation", "discount"}
        assert everything.item_keys.shape == (5,) and everything["observation"].flags.c_contiguous

    def test_a_draw_moves_nothing_and_gathers_later(self, table: relive.Table) -> None:
        with table.writer() as writer:
            write_steps(writer, 0, 50)
        draw = table.draw(16)
        assert draw.item_keys.dtype == np.int64 and draw.item_keys.shape == (16,)
        by_draw, by_keys = table.gather(draw), table.gather(draw.item_keys)
        assert by_draw.present.all() and by_keys.present.all()
        np.testing.assert_array_equal(by_draw["observation"], by_keys["observation"])
        np.testing.assert_array_equal(by_draw.item_keys, draw.item_keys)
        np.testing.assert_allclose(by_draw.probabilities, 1 / 50)

    @pytest.mark.parametrize("most", [5_000, pytest.param(30_000, marks=pytest.mark.thorough)])
    def test_use_counts(self, make_table: MakeTable, most: int) -> None:
        """Exactly max_times_sampled, over threads too; then the table waits as if empty."""
        table = make_table(plain_spec(), 500, relive.Index(max_times_sampled=most))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 8)
        got: list[int] = []
        size = 16
        enough = 8 * most - 8 * size  # until then there is a batch for each thread

        together = threading.Barrier(4)

        def take_together() -> None:
            together.wait()
            # With a deadline: one of 0 gives a busy server of another machine a second, and what it answers later is
            # used and lost (at most once), so that nothing could be counted exactly.
            while len(got) < enough:
                got.extend(table.sample(size, timeout_s=60.0).item_keys.tolist())

        threads = [threading.Thread(target=take_together) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert enough <= len(got) <= 8 * most
        while len(got) < 8 * most:
            got.extend(table.sample(1, timeout_s=60.0).item_keys.tolist())
        with pytest.raises(errors.DeadlineExceeded):
            table.sample(1, timeout_s=0.0)
        assert collections.Counter(got) == {int(key): most for key in keys}

    def test_what_was_drawn_for_the_last_time_can_still_be_gathered(self, make_table: MakeTable) -> None:
        """sample is gather(draw): a use count must not take the rows away between the two."""
        table = make_table(plain_spec(), 500, relive.Index(max_times_sampled=1))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 128)
        draw = table.draw(128)
        assert sorted(draw.item_keys.tolist()) == sorted(keys.tolist())
        assert table.gather(draw).present.all()

    def test_determinism(self, make_table: MakeTable) -> None:
        """Equal tables give equal batches; a seed of its own gives others."""
        tables = [make_table(plain_spec(), 200, prioritized(), seed=seed) for seed in (3, 3, 4)]
        for table in tables:
            with table.writer() as writer:
                keys = write_steps(writer, 0, 150)
            table.update_priorities(keys, np.arange(1.0, 151.0))
        same, again, other = ([t.sample(32) for _ in range(5)] for t in tables)
        for left, right in zip(same, again, strict=True):
            np.testing.assert_array_equal(left.item_keys, right.item_keys)
            np.testing.assert_array_equal(left["observation"], right["observation"])
        assert any((left.item_keys != right.item_keys).any() for left, right in zip(same, other, strict=True))

    def test_prefetch(self, make_table: MakeTable) -> None:
        """In flight when claimed, done when handed out, given back at close."""
        limiter = relive.SamplesPerInsert(1.0, min_size=100, tolerance=100.0)
        table = make_table(plain_spec(), 500, relive.Index(limiter=limiter), max_lanes=4)
        with table.writer() as writer:
            write_steps(writer, 0, 100)
            with table.batches(10, prefetch=4) as batches:
                taken = [next(batches) for _ in range(3)]
                assert all(batch.item_keys.shape == (10,) for batch in taken)
            drawn = 30
            while True:
                try:
                    table.draw(10, timeout_s=0.0)
                except errors.DeadlineExceeded:
                    break
                drawn += 10
        assert drawn == 100

    def test_what_is_drawn_does_not_depend_on_how_far_ahead(self, make_table: MakeTable) -> None:
        """Batches that were not handed out do not change the next draw."""
        drawn = []
        for prefetch in (1, 4, 2):
            table = make_table(plain_spec(), 200, prioritized(), seed=3)
            with table.writer() as writer:
                write_steps(writer, 0, 100)
            keys = []
            for _ in range(2):
                with table.batches(8, prefetch=prefetch) as batches:
                    keys += [next(batches).item_keys for _ in range(3)]
                keys.append(table.sample(8).item_keys)
            drawn.append(np.concatenate(keys).tolist())
        assert drawn[0] == drawn[1] == drawn[2]

    def test_prefetched_batches_keep_their_bytes(self, table: relive.Table) -> None:
        """A pooled buffer goes back only when the last array on it is gone."""
        with table.writer() as writer:
            write_steps(writer, 0, 300)
        kept = []
        with table.batches(32, prefetch=2) as batches:
            for number, batch in enumerate(batches):
                column = batch["observation"] if number % 2 else batch["observation"][3:9]
                kept.append((column, column.copy()))
                if number == 30:
                    break
        for column, copy in kept:
            np.testing.assert_array_equal(column, copy)

    def test_out_buffers(self, table: relive.Table) -> None:
        with table.writer() as writer:
            keys = write_steps(writer, 0, 20)
        first = table.gather(keys[:8], columns=["observation", "reward"])
        out = {"observation": np.empty((8, 2), np.float32), "reward": np.empty(8, np.float32)}
        second = table.gather(keys[8:16], columns=["observation", "reward"], out=out)
        assert out["reward"].tolist() == list(range(8, 16)) and first["reward"].tolist() == list(range(8))
        assert np.shares_memory(second["observation"], out["observation"])

    def test_trees(self, table: relive.Table) -> None:
        """Columns are the leaves of a batch; its keys go with it as long as its rows are its items."""
        pytree = pytest.importorskip("torch.utils._pytree", reason="torch is not installed here")
        with table.writer() as writer:
            write_steps(writer, 0, 20)
        batch = table.sample(8)
        mapped = pytree.tree_map(lambda array: array + 1, batch)
        assert type(mapped) is type(batch) and mapped.item_keys.tolist() == batch.item_keys.tolist()
        np.testing.assert_array_equal(mapped["reward"], batch["reward"] + 1)
        with pytest.raises(errors.UnknownAttribute):
            _ = pytree.tree_map(lambda array: array[:3], batch).item_keys

    def test_to_torch(self, table: relive.Table) -> None:
        torch = pytest.importorskip("torch", reason="torch is not installed here")
        with table.writer() as writer:
            write_steps(writer, 0, 20)
        batch = table.sample(8)
        tensors = batch.to_torch()
        assert tensors["observation"].dtype == torch.float32 and tuple(tensors["observation"].shape) == (8, 2)
        np.testing.assert_array_equal(tensors["reward"].numpy(), batch["reward"])
