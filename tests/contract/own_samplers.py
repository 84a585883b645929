"""Draws without replacement, keys in pages, and draws that the caller chose."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, plain_spec, write_steps
from relive import errors


def shuffled(**more: Any) -> relive.Index:
    return relive.Index(sampler=relive.Shuffle(), **more)


def all_keys(table: Any, **how: Any) -> list[int]:
    pages = list(table.keys(**how))
    return [int(key) for page in pages for key in page]


class OwnSamplersSuite(Suite):
    def test_shuffle_brings_each_item_once_an_epoch(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 300, shuffled())
        with table.writer() as writer:
            keys = write_steps(writer, 0, 210)
        seen: list[int] = []
        for _ in range(30):  # 7 a batch: 10 epochs
            draw = table.draw(7)
            assert np.allclose(draw.probabilities, 1 / 210) and draw.num_live_items == 210
            seen += draw.item_keys.tolist()
        orders = [tuple(seen[at : at + 210]) for at in range(0, len(seen), 210)]
        for order in orders:
            assert sorted(order) == sorted(keys.tolist())
        assert len(set(orders)) == len(orders)
        batch = table.sample(50)
        assert len(set(batch.item_keys.tolist())) == 50
        assert batch.weights(beta=1.0).tolist() == [1.0] * 50
        table.check()

    def test_a_shuffled_batch_goes_on_in_the_next_epoch(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, shuffled())
        with table.writer() as writer:
            keys = write_steps(writer, 0, 5)
            assert Counter(table.draw(12).item_keys.tolist()).most_common()[-1][1] == 2
            table.delete(keys[:4])
            assert table.draw(9).item_keys.tolist() == [int(keys[4])] * 9
            table.delete(keys[4:])
            with pytest.raises(errors.DeadlineExceeded):
                table.draw(1, timeout_s=0.05)
            last = write_steps(writer, 5, 1)
            assert table.draw(1).item_keys.tolist() == last.tolist()
        with pytest.raises(errors.InvalidConfig):
            table.sample(1, where="action > 1")

    def test_shuffle_with_use_counts_and_a_limiter(self, make_table: MakeTable) -> None:
        limiter = relive.SamplesPerInsert(2.0, min_size=1, tolerance=100.0)
        table = make_table(plain_spec(), 100, shuffled(max_times_sampled=2, limiter=limiter))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 30)
        drawn = [table.draw(6).item_keys.tolist() for _ in range(10)]
        assert Counter(sum(drawn, [])) == Counter(dict.fromkeys(keys.tolist(), 2))
        with pytest.raises((errors.DeadlineExceeded, errors.WaitsForItself)):
            table.draw(1, timeout_s=0.0)
        table.check()

    def test_keys_by_age_and_by_priority(self, make_table: MakeTable) -> None:
        table = make_table(
            plain_spec(),
            400,
            {
                "plain": relive.Index(),
                "prioritized": relive.Index(sampler=relive.Prioritized(1.0)),
                "least": relive.Index(sampler=relive.MinPriority()),
            },
        )
        assert list(table.keys()) == []
        with table.writer() as writer:
            keys = write_steps(writer, 0, 200)
        priorities = np.random.default_rng(0).permutation(200).astype(np.float64)
        for index in ("prioritized", "least"):
            table.update_priorities(keys, priorities, index=index)
        assert all_keys(table) == keys.tolist()
        pages = list(table.keys(page_size=64))
        assert [len(page) for page in pages] == [64, 64, 64, 8] and pages[0].dtype == np.int64
        best = keys[np.argsort(-priorities)].tolist()  # an item of priority 0 lives, too: the last
        assert all_keys(table, index="prioritized", order="priority") == best
        assert all_keys(table, index="least", order="priority") == best[::-1]
        assert all_keys(table, index="prioritized", where="action < 50") == keys[:50].tolist()
        table.delete(keys[:10])
        assert all_keys(table, index="least") == keys[10:].tolist()

    def test_keys_of_bad_input(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100)
        for wrong in ({"order": "size"}, {"order": "priority"}, {"order": None}, {"index": "none"}, {"page_size": 0}):
            with pytest.raises(errors.InvalidConfig):
                table.keys(**wrong)
        with pytest.raises(errors.UnknownColumn):
            table.keys(where="nothing > 0")

    def test_a_draw_of_ones_own_is_gathered_and_weighted(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, relive.Index(sampler=relive.Prioritized(1.0)))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 20)
        batch = table.gather(relive.Draw.of(keys[[3, 4, 4]], [0.5, 0.25, 0.25]))
        assert np.asarray(batch["action"]).tolist() == [3, 4, 4] and batch.present.all()
        assert batch.weights(beta=1.0).tolist() == [0.5, 1.0, 1.0]
        assert np.allclose(batch.weights(beta=1.0, normalize=None), [0.1, 0.2, 0.2])
        assert table.update_priorities(batch.item_keys[:2], [0.0, 2.0]) == 2
        foreign = relive.Draw.of([2**62], [0.5])
        with pytest.raises(errors.ForeignKey):
            table.gather(foreign)
        with pytest.raises(errors.ForeignKey):
            table.claim(foreign)
        with pytest.raises(errors.InvalidConfig):
            table.claim(keys)

    def test_a_draw_of_ones_own_is_claimed_and_counted(self, make_table: MakeTable) -> None:
        limiter = relive.SamplesPerInsert(1.0, min_size=1, tolerance=11.0)
        table = make_table(plain_spec(), 100, relive.Index(max_times_sampled=2, limiter=limiter))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 8)
            gone = write_steps(writer, 8, 1)
        table.delete(gone)
        chosen = np.concatenate([keys[[1, 2, 1, 1]], gone])
        claimed = table.claim(relive.Draw.of(chosen, np.full(5, 0.2)))
        assert claimed.item_keys.tolist() == keys[[1, 2, 1]].tolist() and claimed.num_live_items == 8
        assert table.num_items() == 7
        assert table.gather(claimed).present.all()
        stats = next(iter(table.stats().indexes.values()))
        assert stats.sampled == 3
        with pytest.raises(errors.RequestTooLarge):
            table.claim(relive.Draw.of(np.repeat(keys, 6), np.full(48, 0.1)))
        rest = relive.Draw.of(keys[3:], np.full(5, 0.2))
        assert [table.claim(rest).num_items for _ in range(3)] == [5, 5, 0]
        table.check()

    def test_a_claim_of_an_empty_draw_says_how_many_items_live(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, relive.Index(limiter=relive.Queue(4), max_times_sampled=1))
        nothing = relive.Draw.of(np.empty(0, np.int64), [])
        claims = [table.claim(nothing)]
        with table.writer() as writer:
            keys = write_steps(writer, 0, 2)
        claims += [table.claim(nothing), table.claim(relive.Draw.of(keys, [0.5, 0.5])), table.claim(nothing)]
        assert [claim.num_items for claim in claims] == [0, 0, 2, 0]
        assert [claim.num_live_items for claim in claims] == [0, 2, 2, 0]
        assert table.gather(claims[0]).weights(beta=0.5).tolist() == []

    def test_a_claim_waits_for_the_limiter(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, relive.Index(limiter=relive.SamplesPerInsert(1.0, 1, tolerance=10.0)))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 8)
        own = relive.Draw.of(keys, np.full(8, 0.125))
        assert [table.claim(own).num_items for _ in range(2)] == [8, 8]  # inserted - sampled stays above -9
        with pytest.raises((errors.DeadlineExceeded, errors.WaitsForItself)):
            table.claim(own, timeout_s=0.0)
        assert next(iter(table.stats().indexes.values())).sampled == 16
        table.check()

    def test_a_claim_asks_for_nobodys_mass(self, make_table: MakeTable) -> None:
        """Whose draw it is decides what can be drawn: items of priority 0, too."""
        table = make_table(plain_spec(), 100, relive.Index(sampler=relive.Prioritized(1.0)))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 4)
        table.update_priorities(keys, np.zeros(4, np.float32))
        assert table.claim(relive.Draw.of(keys, np.full(4, 0.25)), timeout_s=0.0).num_items == 4
        table.check()

    def test_a_remover_that_chooses_pages_hears_of_claims(self, make_table: MakeTable) -> None:
        index = relive.Index(remover=relive.Uniform(), max_items=40, max_times_sampled=1)
        table = make_table(plain_spec(), 60, index)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 40)
            table.claim(relive.Draw.of(keys[3:20], np.full(17, 0.05)))
            table.check()
            write_steps(writer, 40, 80)
        table.check()

    def test_a_draw_of_probabilities_that_are_none(self) -> None:
        for wrong in ([0.0], [1.1], [-0.5], [float("nan")], [float("inf")]):
            with pytest.raises(errors.InvalidConfig):
                relive.Draw.of([1], wrong)
        for keys, probabilities in (([1, 2], [0.5]), ([[1]], [[0.5]]), ([1], 0.5)):
            with pytest.raises(errors.ShapeMismatch):
                relive.Draw.of(keys, probabilities)
        with pytest.raises(errors.DtypeMismatch):
            relive.Draw.of([1.5], [0.5])
        assert relive.Draw.of([], []).num_items == 0
