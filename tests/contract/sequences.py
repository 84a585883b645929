"""Rows of the table of meanings that speak of items with a time axis: sequences and episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, Unchanged, is_empty, plain_spec, present, step, write_steps
from relive import errors

LENGTHS = (10, 3, 8, 4)  # of episodes; steps are numbered on from one to the next


def sequences(length: int, **options: Any) -> relive.Index:
    return relive.Index(relive.Sequences(length, **options))


def episodes(max_length: int, **options: Any) -> relive.Index:
    return relive.Index(relive.Episodes(max_length, **options))


def write_episodes(writer: Any, lengths: Any = LENGTHS) -> np.ndarray:
    first, keys = 0, []
    for length in lengths:
        keys.append(write_steps(writer, first, length, truncated=True))
        first += length
    return np.concatenate(keys)


def begins(table: Any, keys: np.ndarray) -> list[int]:
    """Numbers of the steps at which items begin."""
    return np.flatnonzero(table.gather(keys).present).tolist()


def row_of(table: Any, key: Any, *names: str) -> list[Any]:
    batch = table.gather(np.asarray([key]), columns=names)
    assert batch.present.all()
    return [batch[name][0] for name in names]


class SequencesSuite(Suite):
    @pytest.mark.parametrize(
        ("at_end", "expected"),
        [
            ("pad", [0, 4, 8, 10, 13, 17, 21]),
            ("shift", [0, 4, 6, 10, 13, 17, 21]),
            ("drop", [0, 4, 13, 17, 21]),
        ],
    )
    def test_sequences(self, make_table: MakeTable, at_end: str, expected: list[int]) -> None:
        """Loss begins at k x period; at_end says what becomes of windows that an end cuts short."""
        table = make_table(plain_spec(), 1000, sequences(4, burn_in=2, bootstrap=1, at_end=at_end))
        with table.writer() as writer:
            keys = write_episodes(writer)
            assert begins(table, keys) == expected and table.num_items() == len(expected)
            batch = table.sample(8, timeout_s=0.0)
            assert batch["observation"].shape == (8, 7, 2) and batch["reward"].shape == (8, 7)
            assert batch["mask"].dtype == np.bool_ and batch["discount"].dtype == np.float32
            assert set(batch.item_keys.tolist()) <= set(keys[expected].tolist())
            assert "next_observation" not in batch

    def test_a_window_in_the_middle_of_an_episode(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, sequences(4, burn_in=2, bootstrap=1, gamma=0.5))
        with table.writer() as writer:
            key = write_episodes(writer)[4]
        observation, reward, mask, discount = row_of(table, key, "observation", "reward", "mask", "discount")
        assert observation[:, 0].tolist() == [2, 3, 4, 5, 6, 7, 8] == reward.tolist()
        assert mask.all() and discount.tolist() == [0.5] * 7

    def test_an_episodes_start_is_padded_with_its_first_state(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, sequences(4, burn_in=2, bootstrap=1))
        with table.writer() as writer:
            key = write_episodes(writer)[13]
        names = ("observation", "action", "mask", "first", "episode_step")
        observation, action, mask, first, number = row_of(table, key, *names)
        assert observation[:, 1].tolist() == [13, 13, 13, 14, 15, 16, 17]
        assert action.tolist() == [0, 0, 13, 14, 15, 16, 17]
        assert mask.tolist() == [False, False] + [True] * 5
        assert first.tolist() == [False, False, True] + [False] * 4 and number.tolist() == [0, 0, 0, 1, 2, 3, 4]

    @pytest.mark.parametrize("pad", ["right", "left"])
    def test_padding_behind_an_end(self, make_table: MakeTable, pad: str) -> None:
        """The row behind the last step has the state after it; all else of padding is zero, left or right."""
        table = make_table(plain_spec(), 1000, sequences(4, bootstrap=2, pad=pad))
        with table.writer() as writer:
            keys = [writer.append(**step(t, t + 1, terminated=t == 3)) for t in (1, 2, 3)]
        names = ("observation", "reward", "mask", "terminated", "discount", "next_observation")
        observation, reward, mask, terminated, discount, following = row_of(table, keys[0], *names)
        if pad == "right":
            assert observation[:, 0].tolist() == [1, 2, 3, 4, 0, 0] and reward.tolist() == [1, 2, 3, 0, 0, 0]
            assert mask.tolist() == [True] * 3 + [False] * 3 and discount.tolist() == [1, 1, 0, 0, 0, 0]
            assert following[:, 0].tolist() == [2, 3, 4, 0, 0, 0]
            assert terminated.tolist() == [False, False, True, False, False, False]
        else:
            assert observation[:, 0].tolist() == [1, 1, 1, 2, 3, 4] and reward.tolist() == [0, 0, 1, 2, 3, 0]
            assert mask.tolist() == [False] * 2 + [True] * 3 + [False]
            assert following[:, 0].tolist() == [0, 0, 2, 3, 4, 0]

    def test_values_that_come_once_an_item(self, make_table: MakeTable) -> None:
        """Start columns of the first row, lane, num_steps, the span of policy versions, staleness of the lowest."""
        spec = plain_spec(core=relive.ArraySpec((2,), "float32", kind="start"))
        table = make_table(spec, 1000, sequences(4, burn_in=2, bootstrap=1))
        with table.writer() as writer:
            keys = []
            for t in range(12):
                writer.set_policy_version(t)
                keys.append(writer.append(**step(t, t + 1), core=np.full(2, 100 + t)))
        table.set_policy_version(20)
        names = ("core", "num_steps", "policy_version", "staleness")
        core, num_steps, version, staleness = row_of(table, keys[4], *names)
        assert core.tolist() == [102, 102] and num_steps == 7 and version.tolist() == [2, 8] and staleness == 18
        core, num_steps, version, _ = row_of(table, keys[0], *names)
        assert core.tolist() == [100, 100] and num_steps == 5 and version.tolist() == [0, 4]
        assert table.gather(np.asarray(keys[:1]), columns=["lane"])["lane"].shape == (1,)

    def test_stacks_along_the_time_axis(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, sequences(3, burn_in=1, period=3, stack={"observation": 2}))
        with table.writer() as writer:
            keys = write_steps(writer, 1, 6, truncated=True)
        (observation,) = row_of(table, keys[3], "observation")
        assert observation.shape == (4, 2, 2)
        assert observation[..., 0].tolist() == [[2, 3], [3, 4], [4, 5], [5, 6]]
        (observation,) = row_of(table, keys[0], "observation")
        assert observation[..., 0].tolist() == [[1, 1], [1, 1], [1, 2], [2, 3]]

    def test_sequences_that_cross_ends(self, make_table: MakeTable) -> None:
        """They begin at every period-th step of the lane; first marks episodes; each step has its own next state."""
        table = make_table(plain_spec(), 1000, sequences(4, burn_in=2, bootstrap=1, at_end="cross", gamma=0.5))
        with table.writer() as writer:
            keys = [write_steps(writer, 0, 3, terminated=True)]
            keys += [write_steps(writer, 3, 1, truncated=True), write_steps(writer, 4, 7, terminated=True)]
            assert begins(table, np.concatenate(keys)) == [0, 4]
            keys += [write_steps(writer, 11, 4)]
            first_keys = np.concatenate(keys)
            assert begins(table, first_keys) == [0, 4, 8]
        assert begins(table, first_keys) == [0, 4, 8, 12], "what the lane's end cuts short is padded"
        names = ("action", "mask", "first", "episode_step", "terminated", "truncated", "next_observation", "discount")
        action, mask, first, number, over, cut, following, discount = row_of(table, first_keys[4], *names)
        assert action.tolist() == [2, 3, 4, 5, 6, 7, 8] and mask.all()
        assert first.tolist() == [False, True, True] + [False] * 4 and number.tolist() == [2, 0, 0, 1, 2, 3, 4]
        assert over.tolist() == [True] + [False] * 6 and cut.tolist() == [False, True] + [False] * 5
        assert following[:, 0].tolist() == [3, 4, 5, 6, 7, 8, 9] and discount.tolist() == [0] + [0.5] * 6
        action, mask = row_of(table, first_keys[0], "action", "mask")
        assert action.tolist() == [0, 0, 0, 1, 2, 3, 4] and mask.tolist() == [False] * 2 + [True] * 5
        action, mask = row_of(table, first_keys[12], "action", "mask")
        assert action.tolist() == [10, 11, 12, 13, 14, 0, 0] and mask.tolist() == [True] * 5 + [False] * 2
        with table.writer() as writer:  # the next lane counts from 0, whatever page it continues in
            assert begins(table, write_steps(writer, 20, 9, truncated=True)) == [0, 4]
        table.check()

    def test_sequences_that_cross_ends_in_a_full_table(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 64, sequences(4, burn_in=2, period=3, at_end="cross"))
        with table.writer() as writer:
            keys = np.concatenate([write_steps(writer, 5 * k, 5, truncated=True) for k in range(60)])
            found = begins(table, keys)
            assert len(found) > 8 and all(number % 3 == 0 for number in found)
            for number in found:
                (action,) = row_of(table, keys[number], "action")
                assert action.tolist() == list(range(number - 2, number + 4))
            table.check()

    def test_windows_overlap_where_the_period_is_shorter(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, sequences(4, period=2, at_end="drop"))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 9, truncated=True)
        assert begins(table, keys) == [0, 2, 4]

    def test_a_sequence_is_published_when_its_rows_are_there(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, sequences(2, bootstrap=1))
        with table.writer() as writer:
            for t in range(3):
                assert is_empty(table)
                writer.append(**step(t, t + 1))
            assert table.num_items() == 1

    def test_the_lane_is_cut_in_a_sequence(self, make_table: MakeTable) -> None:
        """The rows that exist are published as a shorter, truncated sequence."""
        table = make_table(plain_spec(), 1000, sequences(4, bootstrap=1))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 6)
        mask, truncated = row_of(table, keys[4], "mask", "truncated")
        assert mask.tolist() == [True, True, False, False, False] and truncated.tolist() == [False, True] + [False] * 3

    def test_episodes(self, make_table: MakeTable) -> None:
        """An episode is an item when it has ended; T is the longest of the batch."""
        table = make_table(plain_spec(), 1000, episodes(16, bootstrap=1))
        with table.writer() as writer:
            first = write_steps(writer, 0, 3, truncated=True)
            second = write_steps(writer, 3, 5, truncated=True)
            open_ended = write_steps(writer, 8, 4)
            assert table.num_items() == 2
            batch = table.gather(np.asarray([second[0], first[0]]))
            assert batch["observation"].shape == (2, 6, 2) and batch.lengths.tolist() == [5, 3]
            assert batch["observation"][1, :, 0].tolist() == [0, 1, 2, 3, 0, 0]
            assert batch["action"][0].tolist() == [3, 4, 5, 6, 7, 0]
            assert batch.mask[1].tolist() == [True] * 3 + [False] * 3
            alone = table.gather(np.asarray([first[0]]), columns=["reward"])
            assert alone["reward"].tolist() == [[0, 1, 2, 0]]
        assert not any(present(table, open_ended)), "an episode that its lane's end cut off is no item"

    @pytest.mark.parametrize(("too_long", "expected"), [("head", [0, 3]), ("tail", [0, 7])])
    def test_episodes_that_are_too_long(self, make_table: MakeTable, too_long: str, expected: list[int]) -> None:
        table = make_table(plain_spec(), 1000, episodes(4, too_long=too_long))
        with table.writer() as writer:
            keys = write_episodes(writer, (3, 8))
        assert begins(table, keys) == expected
        (action,) = row_of(table, keys[expected[1]], "action")
        assert action.tolist() == list(range(expected[1], expected[1] + 4))

    def test_episodes_that_are_too_long_give_a_window_at_random(self, make_table: MakeTable) -> None:
        """One each, whole, anywhere in it, decided at its end; the same for the same seed."""
        starts = []
        for _ in range(2):
            table = make_table(plain_spec(), 2000, episodes(4, too_long="random"), seed=7)
            with table.writer() as writer:
                keys = write_steps(writer, 0, 9)
                assert table.num_items() == 0
                writer.end_episode(truncated=True)
                keys = np.concatenate([keys, *(write_steps(writer, 9 * k, 9, truncated=True) for k in range(1, 30))])
                short = write_steps(writer, 300, 2, truncated=True)
                assert present(table, short) == [True, False]
                found = np.asarray(begins(table, keys))
                assert (found // 9).tolist() == list(range(30)) and (found % 9 <= 5).all()
                action, mask = table.gather(keys[found])["action"], table.gather(keys[found]).mask
                assert mask.all() and action.tolist() == [list(range(start, start + 4)) for start in found]
                table.check()
                cut_off = write_steps(writer, 400, 9)
            assert not any(present(table, cut_off))
            starts.append((found % 9).tolist())
        assert starts[0] == starts[1] and len(set(starts[0])) > 3

    def test_late_columns_of_a_window_at_random(self, make_table: MakeTable) -> None:
        """Which window it is does not depend on when the late columns come."""
        spec = plain_spec(score=relive.ArraySpec((), "float32", late=True))
        starts = []
        for comes_first in (True, False):
            table = make_table(spec, 2000, episodes(4, too_long="random"), seed=7)
            with table.writer() as writer:
                keys = write_steps(writer, 0, 20)
                if comes_first:
                    table.complete(keys, score=np.zeros(20))
                writer.end_episode(truncated=True)
                if not comes_first:
                    assert table.num_items() == 0
                    table.complete(keys[::-1], score=np.zeros(20))
                starts.append(begins(table, keys))
        assert starts[0] == starts[1] and len(starts[0]) == 1

    def test_a_step_too_many_is_refused(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, episodes(4))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 4)
            with Unchanged(table, keys, errors.EpisodeTooLong, lane=0, max_length=4):
                writer.append(**step(4, 5))
            assert table.num_items() == 0, "nobody has said that it ended"
            writer.end_episode(truncated=True)
            assert table.num_items() == 1
            with Unchanged(table, keys, errors.EpisodeTooLong, lane=0, max_length=4):
                writer.extend(observation=np.zeros((6, 2)), action=np.zeros(5, int), reward=np.zeros(5))
            write_steps(writer, 10, 4, truncated=True)
        assert table.num_items() == 2

    def test_a_full_episode_that_is_cut_off_is_no_item(self, make_table: MakeTable) -> None:
        """Only of 'head', whose item was there before."""
        for too_long, num_items in (("refuse", 0), ("tail", 0), ("head", 1)):
            table = make_table(plain_spec(), 1000, episodes(4, too_long=too_long))
            with table.writer() as writer:
                keys = write_steps(writer, 0, 4)
                assert table.num_items() == num_items, too_long
            assert table.num_items() == sum(present(table, keys)) == num_items, too_long
            table.check()

    @pytest.mark.parametrize("pad", ["right", "left"])
    def test_which_rows_carry_loss(self, make_table: MakeTable, pad: str) -> None:
        """Neither burn-in nor bootstrap, wherever padding has moved them."""
        table = make_table(plain_spec(), 1000, sequences(4, burn_in=2, bootstrap=2, pad=pad))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 11, truncated=True)
        for number, expected in ((0, [0, 1, 2, 3]), (4, [4, 5, 6, 7]), (8, [8, 9, 10])):
            action, mask, carries = row_of(table, keys[number], "action", "mask", "loss_mask")
            assert action[carries].tolist() == expected and mask[carries].all() and carries.shape == (8,)
        assert "loss_mask" not in table.gather(keys[:1])

    def test_rows_of_an_episodes_head_that_carry_loss(self, make_table: MakeTable) -> None:
        """The bootstrap row behind a head is a step, in the mask and the lengths: it carries no loss."""
        table = make_table(plain_spec(), 1000, episodes(4, bootstrap=1, too_long="head"))
        with table.writer() as writer:
            keys = write_episodes(writer, (6, 3))
        mask, carries = row_of(table, keys[0], "mask", "loss_mask")
        assert mask.tolist() == [True] * 5 and carries.tolist() == [True] * 4 + [False]
        mask, carries = row_of(table, keys[6], "mask", "loss_mask")
        assert mask.tolist() == carries.tolist() == [True] * 3 + [False]

    def test_eviction_ends_a_sequence_with_its_first_row(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 64, sequences(4, burn_in=2, bootstrap=1))
        with table.writer() as writer:
            keys = np.concatenate([write_steps(writer, 10 * k, 10, truncated=True) for k in range(30)])
            for number in begins(table, keys):
                observation, mask = row_of(table, keys[number], "observation", "mask")
                lead = min(2, number % 10)
                rows = np.arange(number - lead, number - lead + mask.sum())
                np.testing.assert_array_equal(observation[mask][:, 0], rows)
            assert not any(present(table, keys[: 300 - 80]))
            table.check()

    def test_priorities_of_sequences_are_by_the_key_of_their_first_step(self, make_table: MakeTable) -> None:
        index = relive.Index(relive.Sequences(4), relive.Prioritized(1.0, initial="given"))
        table = make_table(plain_spec(), 1000, index)
        with table.writer() as writer:
            keys = write_episodes(writer, (8,))
        assert is_empty(table)
        assert table.update_priorities(keys[[0, 4]], np.asarray([1.0, 3.0])) == 2
        assert table.update_priorities(keys[[1]], np.asarray([1.0])) == 0, "no item begins there"
        batch = table.sample(64, timeout_s=0.0)
        expected = {int(keys[0]): 0.25, int(keys[4]): 0.75}
        assert all(expected[int(k)] == p for k, p in zip(batch.item_keys, batch.probabilities, strict=True))

    def test_several_indexes_over_the_same_steps(self, make_table: MakeTable) -> None:
        index = {
            "steps": relive.Index(relive.Transitions()),
            "windows": sequences(4, burn_in=2, bootstrap=1),
            "whole": episodes(16),
        }
        table = make_table(plain_spec(), 1000, index)
        with table.writer() as writer:
            keys = write_episodes(writer)
        assert [table.num_items(name) for name in index] == [25, 7, 4]
        assert table.gather(keys, index="steps").present.all()
        assert np.flatnonzero(table.gather(keys, index="whole").present).tolist() == [0, 10, 13, 21]
        table.delete(keys[[13]])
        assert [table.num_items(name) for name in index] == [24, 6, 3]
        table.check()

    def test_use_counts_of_sequences(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, relive.Index(relive.Sequences(4), max_times_sampled=1))
        with table.writer() as writer:
            write_episodes(writer)
        seen = [int(key) for _ in range(7) for key in table.sample(1, timeout_s=0.0).item_keys]
        assert len(set(seen)) == 7 and is_empty(table)

    def test_batches_of_sequences(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, sequences(4, bootstrap=1))
        with table.writer() as writer:
            write_episodes(writer)
        with table.batches(4, prefetch=2) as batches:
            batch = next(batches)
        assert batch["observation"].shape == (4, 5, 2) and batch.lengths.shape == (4,)

    def test_what_sequences_have_no_column_for(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, sequences(4))
        with pytest.raises(errors.UnknownColumn):
            table.sample(1, columns=["masks"], timeout_s=0.0)
        plain = make_table(plain_spec(), 1000)
        with pytest.raises(errors.UnknownColumn):
            plain.sample(1, columns=["mask"], timeout_s=0.0)
