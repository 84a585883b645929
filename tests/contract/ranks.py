"""Draws by the ranks of priorities: which items are drawn, how often, and with which probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from naive.rank_law import expected

import relive
from contract.tools import MakeTable, Suite, is_empty, plain_spec, write_steps
from relive import errors

PRIORITIES = np.array([3.0, 0.0, 700.0, 3.0, 1.0, 0.02, 9.0, 5.0])
SAMPLERS = (relive.RankBased(), relive.RankBased(1.0), relive.TopK(3), relive.TopK(0.5), relive.TopK(1000))


def ranked(sampler: Any, **more: Any) -> relive.Index:
    return relive.Index(sampler=sampler, **more)


class RanksSuite(Suite):
    @pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
    def test_items_come_by_the_law_of_ranks(self, make_table: MakeTable, sampler: Any) -> None:
        table = make_table(plain_spec(), 100, ranked(sampler))
        with table.writer() as writer:
            keys = write_steps(writer, 0, len(PRIORITIES))
            table.update_priorities(keys, PRIORITIES)
            shares = expected(sampler, PRIORITIES)
            batch = table.sample(400)
            actions = np.asarray(batch["action"])
            np.testing.assert_allclose(np.asarray(batch.probabilities), shares[actions], rtol=1e-6)
            # A batch is stratified: each item comes as often as its share says, to within one at either end.
            assert np.all(np.abs(np.bincount(actions, minlength=len(PRIORITIES)) - 400 * shares) < 2.0)
            weights = (8 * shares[actions]) ** -0.5
            np.testing.assert_allclose(np.asarray(batch.weights(beta=0.5)), weights / weights.max(), rtol=1e-5)
            table.delete(keys[[2, 6]])
            left = np.array([0, 1, 3, 4, 5, 7])
            draw = table.draw(400)
            number = {int(key): n for n, key in enumerate(keys)}
            drawn = np.array([number[key] for key in draw.item_keys.tolist()])
            shares = np.zeros(len(PRIORITIES))
            shares[left] = expected(sampler, PRIORITIES[left])
            np.testing.assert_allclose(np.asarray(draw.probabilities), shares[drawn], rtol=1e-6)
        table.check()

    def test_each_comes_once_where_uses_are_counted(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, ranked(relive.TopK(2), max_times_sampled=1))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 6)
            table.update_priorities(keys, [1.0, 6.0, 5.0, 4.0, 3.0, 2.0])
            seen = [int(np.asarray(table.sample(1, timeout_s=5.0)["action"])[0]) for _ in range(6)]
        assert sorted(seen) == list(range(6)) and {0, 5} & set(seen[:3]) == set()
        assert is_empty(table)
        table.check()

    def test_a_condition_of_a_draw(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, ranked(relive.RankBased(1.0)))
        with table.writer() as writer:
            keys = write_steps(writer, 0, len(PRIORITIES))
            table.update_priorities(keys, PRIORITIES)
            batch = table.sample(64, where="action >= 4")
            actions = np.asarray(batch["action"])
            assert set(actions.tolist()) == {4, 5, 6, 7}
            shares = expected(relive.RankBased(1.0), PRIORITIES)
            np.testing.assert_allclose(np.asarray(batch.probabilities), shares[actions], rtol=1e-6)

    def test_an_item_that_waits_for_its_priority_has_no_rank(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, ranked(relive.TopK(1, initial="given")))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
            assert is_empty(table)
            table.update_priorities(keys[[0, 1]], [2.0, 1.0])
            assert set(np.asarray(table.sample(8)["action"]).tolist()) == {0}
            table.update_priorities(keys[[2]], [3.0])
            assert set(np.asarray(table.sample(8)["action"]).tolist()) == {2}

    def test_the_oldest_go_and_take_their_ranks_along(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 60, ranked(relive.RankBased()))
        rng = np.random.default_rng(1)
        with table.writer() as writer:
            for t in range(300):
                writer.append(
                    observation=np.full(2, t), action=t, reward=0.0, next_observation=np.full(2, t + 1),
                    priority=float(rng.exponential(1.0)),
                )  # fmt: skip
        assert np.asarray(table.sample(256)["action"]).min() >= 200
        table.check()

    def test_priorities_that_cannot_be_are_refused(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, ranked(relive.TopK(3)))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
            with pytest.raises(errors.InvalidPriority):
                table.update_priorities(keys, [1.0, float("nan"), 2.0])
        table.check()
