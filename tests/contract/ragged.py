"""Rows of the table of meanings that speak of episodes whose rows lie end to end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, plain_spec, prioritized, step, write_steps
from relive import errors

LENGTHS = (3, 7, 1, 5)


def ragged(max_length: int = 8, **options: Any) -> relive.Index:
    return relive.Index(relive.Episodes(max_length, layout="ragged", **options))


def write_episodes(writer: Any, lengths: Any = LENGTHS, first: int = 0) -> np.ndarray:
    """The keys of their first steps; steps are numbered on from one episode to the next."""
    keys = []
    for length in lengths:
        keys.append(write_steps(writer, first, length, truncated=True)[0])
        first += length
    return np.asarray(keys)


def numbers(batch: Any, name: str = "action") -> list[list[int]]:
    """The numbers in the rows of each item."""
    values = batch[name] if name == "action" else batch[name][..., 0]
    return [values[a:b].tolist() for a, b in zip(batch.offsets[:-1], batch.offsets[1:], strict=True)]


class RaggedSuite(Suite):
    @pytest.mark.parametrize("bootstrap", [0, 1])
    def test_ragged_episodes(self, make_table: MakeTable, bootstrap: int) -> None:
        """A batch is exactly its rows; where bootstrap is 1 the last row of each has the state after its end."""
        table = make_table(plain_spec(), 1000, ragged(bootstrap=bootstrap, gamma=0.5))
        with table.writer() as writer:
            keys = write_episodes(writer)
        batch = table.gather(keys[[1, 3, 2]])
        assert batch.offsets.dtype == np.int64
        assert batch.offsets.tolist() == np.cumsum([0, *(length + bootstrap for length in (7, 5, 1))]).tolist()
        zero = [0] * bootstrap
        assert numbers(batch) == [[*range(3, 10), *zero], [*range(11, 16), *zero], [10, *zero]]
        ends = [10, 16, 11]
        states = [[*range(3, 10)], [*range(11, 16)], [10]]
        assert numbers(batch, "observation") == [one + [end] * bootstrap for one, end in zip(states, ends, strict=True)]
        assert batch.mask.sum() == 13 and batch.lengths.tolist() == [7, 5, 1]
        assert batch["discount"][batch.mask].tolist() == [0.5] * 13
        rows = 13 + 3 * bootstrap
        assert {array.shape[0] for name, array in batch.flat().items() if name != "offsets"} == {rows}
        per_row = 2 * 4 + 8 + 4 + 4 + 1
        assert sum(array.nbytes for array in batch.flat().values()) == rows * per_row + 4 * 8

    def test_drawn_batches_of_ragged_episodes(self, make_table: MakeTable) -> None:
        """Whichever way they are drawn; weights and probabilities are of items."""
        items = relive.Episodes(8, layout="ragged")
        table = make_table(plain_spec(), 1000, relive.Index(items, relive.Prioritized(1.0)), seed=3)
        with table.writer() as writer:
            keys = write_episodes(writer)
        expected = dict(zip(keys.tolist(), ([*range(3)], [*range(3, 10)], [10], [*range(11, 16)]), strict=True))
        table.update_priorities(keys, np.asarray([1.0, 2.0, 3.0, 4.0]))

        def check(batch: Any) -> None:
            assert numbers(batch) == [expected[int(key)] for key in batch.item_keys]
            assert len(batch["action"]) == batch.offsets[-1] == batch.lengths.sum()
            assert batch.weights(beta=0.4).shape == batch.probabilities.shape == (16,)

        check(table.sample(16))
        check(table.gather(table.draw(16)))
        with table.batches(16, prefetch=2) as batches:
            for _ in range(4):
                check(next(batches))
        named = table.sample(16, columns=["action"])
        assert tuple(named) == ("action", "offsets") and named.lengths.sum() == named.offsets[-1]
        check(named)

    def test_columns_of_ragged_episodes(self, make_table: MakeTable) -> None:
        """Columns with one value an item are [B, ...]. All other columns have the axis of rows."""
        spec = plain_spec(core=relive.ArraySpec((2,), "float32", kind="start"))
        table = make_table(spec, 1000, ragged(bootstrap=1, stack={"observation": 2}))
        with table.writer() as writer:
            keys = []
            for t in range(9):
                writer.set_policy_version(t)
                ends = {"terminated": True} if t in (3, 8) else {}
                keys.append(writer.append(**step(t, t + 1, **ends), core=np.full(2, t)))
        table.set_policy_version(10)
        names = ("core", "num_steps", "lane", "policy_version", "staleness", "first", "episode_step", "terminated")
        names = (*names, "observation", "next_observation", "loss_mask", "discount")
        batch = table.gather(np.asarray([keys[4], keys[0]]), columns=names)
        assert batch.offsets.tolist() == [0, 6, 11]
        assert batch["core"].tolist() == [[4, 4], [0, 0]] and batch["num_steps"].tolist() == [5, 4]
        assert batch["policy_version"].tolist() == [[4, 8], [0, 3]] and batch["staleness"].tolist() == [6, 10]
        assert batch["lane"].shape == (2,)
        assert np.flatnonzero(batch["first"]).tolist() == [0, 6]
        assert np.flatnonzero(batch["terminated"]).tolist() == [4, 9]
        assert batch["episode_step"].tolist() == [0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 0]
        assert batch["loss_mask"].tolist() == [True] * 5 + [False] + [True] * 4 + [False]
        assert batch["observation"].shape == (11, 2, 2) and batch["next_observation"].shape == (11, 2, 2)
        assert batch["observation"][..., 0].tolist()[5:8] == [[8, 9], [0, 0], [0, 1]]
        assert batch["discount"].tolist() == [1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0]
        with pytest.raises(errors.UnknownColumn):
            _ = batch.mask
        with pytest.raises(errors.UnknownColumn):
            _ = batch.lengths  # which rows are steps is the mask's to say

    def test_keys_of_ragged_episodes_that_are_gone_have_no_rows(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, ragged())
        with table.writer() as writer:
            keys = write_episodes(writer)
            table.delete(keys[[1]])
            batch = table.gather(keys)
            assert batch.present.tolist() == [True, False, True, True]
            assert batch.offsets.tolist() == [0, 3, 3, 4, 9] and batch.lengths.tolist() == [3, 0, 1, 5]
            assert numbers(batch) == [[0, 1, 2], [], [10], [11, 12, 13, 14, 15]]
            nobody = table.gather(keys[[1, 1]])
            assert nobody.offsets.tolist() == [0, 0, 0] and nobody["observation"].shape == (0, 2)
            assert nobody.lengths.tolist() == [0, 0]
        empty = table.gather(np.empty(0, np.int64))
        assert empty.offsets.tolist() == [0] and empty["observation"].shape == (0, 2)

    def test_rows_of_a_batch_of_ragged_episodes(self, make_table: MakeTable) -> None:
        """Parts of a batch: of a slice views, of numbers copies; offsets begin at 0 again."""
        table = make_table(plain_spec(), 1000, ragged())
        with table.writer() as writer:
            batch = table.gather(write_episodes(writer))
        all_rows = numbers(batch)
        for which in (slice(1, 3), slice(2, 2), slice(None), slice(3, None, -1), [2, 0, 2], [True, False, True, False]):
            chosen = np.arange(4)[which].tolist()
            for part in (batch.rows(which if isinstance(which, slice) else np.asarray(which)),):
                assert numbers(part) == [all_rows[item] for item in chosen]
                assert part.item_keys.tolist() == batch.item_keys[chosen].tolist()
                assert part.offsets[0] == 0 and part.offsets[-1] == len(part["action"])
        assert np.shares_memory(batch.rows(slice(1, 3))["action"], batch["action"])

    def test_ragged_heads_and_tails(self, make_table: MakeTable) -> None:
        """Behind a head the bootstrap row is a step, in the mask."""
        for too_long, bootstrap, rows, mask in (
            ("head", 0, [0, 1, 2, 3], 4),
            ("head", 1, [0, 1, 2, 3, 4], 5),
            ("tail", 0, [3, 4, 5, 6], 4),
            ("tail", 1, [3, 4, 5, 6, 0], 4),
        ):
            table = make_table(plain_spec(), 1000, ragged(4, too_long=too_long, bootstrap=bootstrap))
            with table.writer() as writer:
                write_episodes(writer, (7,))
            batch = table.sample(2)
            assert numbers(batch) == [rows, rows] and batch.lengths.tolist() == [mask, mask], too_long

    def test_a_full_table_of_ragged_episodes(self, make_table: MakeTable) -> None:
        """Episodes go while others come; what is given out is whole."""
        table = make_table(plain_spec(), 64, ragged(12, bootstrap=1), seed=5)
        with table.writer() as writer:
            first, keys = 0, []
            for turn in range(60):
                length = 1 + turn * 7 % 12
                keys.append(write_episodes(writer, (length,), first)[0])
                first += length
                batch = table.sample(7)
                for rows, length in zip(numbers(batch), batch.lengths.tolist(), strict=True):
                    assert rows[:-1] == list(range(rows[0], rows[0] + length)) and rows[-1] == 0
            batch = table.gather(np.asarray(keys))
            assert not batch.present[:30].any() and batch.present[-1]
            assert (np.diff(batch.offsets)[~batch.present] == 0).all()
            table.check()

    def test_use_counts_of_ragged_episodes(self, make_table: MakeTable) -> None:
        index = relive.Index(relive.Episodes(8, layout="ragged"), max_times_sampled=1)
        table = make_table(plain_spec(), 1000, index)
        with table.writer() as writer:
            write_episodes(writer)
            batch = table.sample(3)
            assert len(set(batch.item_keys.tolist())) == 3
            assert len(table.sample(1)["action"]) + len(batch["action"]) == sum(LENGTHS)
            with pytest.raises(errors.DeadlineExceeded):
                table.sample(1, timeout_s=0.0)

    def test_what_ragged_episodes_refuse(self, make_table: MakeTable) -> None:
        for wrong, field in (
            ({"layout": "flat"}, "layout"),
            ({"layout": None}, "layout"),
            ({"layout": "ragged", "time_major": True}, "time_major"),
            ({"layout": "ragged", "pad": "left"}, "pad"),
        ):
            with pytest.raises(errors.InvalidConfig, match=field):
                relive.Episodes(8, **wrong)
        with pytest.raises(errors.SpecError, match="offsets"):
            make_table(plain_spec(offsets=relive.ArraySpec((), "int64")), 100, ragged())
        table = make_table(plain_spec(), 1000, ragged())
        with table.writer() as writer:
            keys = write_episodes(writer)
        batch = table.gather(keys)
        with pytest.raises(errors.InvalidConfig, match="out"):
            table.gather(keys, out=batch)
        padded = make_table(plain_spec(offsets=relive.ArraySpec((), "int64")), 100, prioritized())
        with padded.writer() as writer:
            writer.append(**step(1, 2), offsets=4)
        assert padded.sample(1)["offsets"].tolist() == [4], "a name that is free elsewhere"

    def test_padded_episodes_are_trimmed_to_the_longest(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, relive.Index(relive.Episodes(8)))
        with table.writer() as writer:
            keys = write_episodes(writer)
        for which, longest in (([0, 2], 3), ([2], 1), ([1, 3], 7)):
            batch = table.gather(keys[which])
            assert batch["observation"].shape == (len(which), longest, 2)
            with pytest.raises(errors.UnknownColumn):
                _ = batch.offsets
