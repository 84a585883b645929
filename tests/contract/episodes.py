"""Rows of the table of meanings that speak of episodes as a whole: columns that have one value an episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from contract.sequences import begins, episodes, row_of, sequences
from contract.tools import MakeTable, Suite, Unchanged, plain_spec, step, transitions, write_steps
from relive import errors

PROMPT = relive.ArraySpec((2,), "int32", kind="episode")
TASK = relive.ArraySpec((), "float64", kind="episode")


def spec_of_episodes() -> relive.StepSpec:
    return plain_spec(prompt=PROMPT, task=TASK)


def of_episode(number: int) -> dict[str, Any]:
    return {"prompt": np.array([number, -number], np.int32), "task": number / 2}


def block(first: int, count: int, number: int, **ends: Any) -> dict[str, Any]:
    """An episode's steps, numbered from `first` on."""
    numbers = np.arange(first, first + count)
    states = np.arange(first, first + count + 1)[:, None] * np.ones(2)
    whole = {name: np.stack([value] * count) for name, value in of_episode(number).items()}
    return {"observation": states, "action": numbers, "reward": numbers.astype(float), **whole, **ends}


class EpisodesSuite(Suite):
    def test_episode_columns(self, make_table: MakeTable) -> None:
        """Once an item of episodes and sequences, [B, ...]; once a row where windows cross ends; a transition's."""
        indexes = {
            "whole": episodes(10, bootstrap=1),
            "first": relive.Index(relive.Sequences(2, burn_in=1, bootstrap=1, time_major=True)),
            "cross": sequences(4, at_end="cross"),
            "steps": transitions(n_step=2),
        }
        table = make_table(spec_of_episodes(), 100, indexes)
        with table.writer() as writer:
            keys = writer.extend(**block(0, 3, 7, truncated=True))
            more = writer.extend(**block(3, 5, 8, terminated=True))
            whole = table.gather(np.array([keys[0], more[0]]), index="whole")
            assert whole["prompt"].tolist() == [[7, -7], [8, -8]] and whole["task"].tolist() == [3.5, 4.0]
            assert whole["action"].shape == (2, 6)
            drawn = table.sample(16, index="whole", timeout_s=0.0)
            assert drawn["prompt"].shape == (16, 2) and drawn["task"].shape == (16,)
            assert (drawn["task"] == np.where(drawn.lengths == 3, 3.5, 4.0)).all()
            first = table.gather(more[2:3], index="first")
            assert first["prompt"].tolist() == [[8, -8]] and first["action"].shape == (4, 1)
            cross = table.gather(keys[:1], index="cross")
            assert cross["task"].tolist() == [[3.5, 3.5, 3.5, 4.0]] and cross["prompt"].shape == (1, 4, 2)
            assert table.gather(keys, index="steps")["task"].tolist() == [3.5] * 3
        table.check()

    def test_episode_columns_of_padding_on_the_left(self, make_table: MakeTable) -> None:
        table = make_table(spec_of_episodes(), 100, sequences(4, burn_in=2, pad="left"))
        with table.writer() as writer:
            keys = writer.extend(**block(0, 2, 3, truncated=True))
            assert row_of(table, keys[0], "task", "action")[0] == 1.5

    def test_a_value_that_changes_in_an_episode(self, make_table: MakeTable) -> None:
        """Refused before anything changes: against rows of this call and of those before, in every lane."""
        table = make_table(spec_of_episodes(), 100)
        with table.writer(num_lanes=2) as writer:
            both = {name: np.stack([value, value]) for name, value in {**step(0, 1), **of_episode(1)}.items()}
            keys = writer.append(**both)
            after = {name: np.stack([value, value]) for name, value in {**step(1, 2), **of_episode(1)}.items()}
            wrong = {**after, "prompt": np.array([[1, -1], [1, -2]], np.int32)}
            with Unchanged(table, keys, errors.EpisodeMismatch, lane=1, column="prompt"):
                writer.append(**wrong)
            with Unchanged(table, keys, errors.EpisodeMismatch, lane=0, column="task"):
                writer.append(**{**after, "task": np.array([9.0, 0.5])})
            writer.append(**after, terminated=np.array([False, True]))
            third = {name: np.stack([value, value]) for name, value in {**step(2, 3), **of_episode(1)}.items()}
            third |= {"prompt": np.array([[1, -1], [5, -5]], np.int32), "task": np.array([0.5, 2.5])}
            third["observation"] = np.stack([third["observation"][0], np.zeros(2)])
            assert len(writer.append(**third)) == 2, "the other lane's episode ended: the next one says its own"
        table.check()

    def test_a_value_that_changes_within_a_block(self, make_table: MakeTable) -> None:
        table = make_table(spec_of_episodes(), 100, episodes(10))
        with table.writer() as writer:
            keys = writer.extend(**block(0, 3, 7, truncated=True))
            rows = block(3, 4, 8)
            rows["task"][3] = 1.0
            with Unchanged(table, keys, errors.EpisodeMismatch, lane=0, column="task"):
                writer.extend(**rows)
            ends = np.array([False, True, False, True])
            rows["task"][2:], rows["prompt"][2:] = 1.0, [2, -2]
            more = writer.extend(**rows, terminated=ends)
            assert begins(table, more) == [0, 2]
            assert table.gather(more[[0, 2]])["task"].tolist() == [4.0, 1.0]
            writer.extend(**block(7, 2, 9))
            writer.end_episode(truncated=True)
            writer.extend(**block(9, 2, 10))
        table.check()

    @pytest.mark.parametrize("kind", ["episodes", "Episode", None, 1])
    def test_kinds_that_are_none(self, kind: Any) -> None:
        with pytest.raises(errors.SpecError) as caught:
            relive.ArraySpec((), "int64", kind=kind)
        assert "'episode'" in str(caught.value)

    def test_an_episode_column_is_not_late(self) -> None:
        with pytest.raises(errors.SpecError):
            relive.ArraySpec((), "int64", kind="episode", late=True)


ALL_ITEMS = {
    "steps": transitions(n_step=2),
    "windows": sequences(2, burn_in=1),
    "cross": sequences(3, burn_in=2, period=1, at_end="cross"),
    "whole": episodes(20),
    "chosen": relive.Index(relive.Explicit({"rows": 4}, max_items=50)),
}


def named(keys: Any, count: int) -> dict[str, Any]:
    return {"rows": (np.atleast_1d(np.asarray(keys)), count)}


class AbandonSuite(Suite):
    INDEXES = ALL_ITEMS

    @pytest.fixture
    def table(self, make_table: MakeTable) -> relive.Table:
        return make_table(plain_spec(), 200, dict(self.INDEXES))

    def gone(self, table: Any, keys: Any, but: tuple[str, ...] = ()) -> None:
        """No item of any index of rows has one of these steps, and their keys lead nowhere."""
        for name in table.config.index:
            if name == "chosen" or name in but:
                continue
            assert not any(table.gather(np.atleast_1d(keys), index=name).present), name
            drawn = table.sample(64, columns=["action", "mask"] if name != "steps" else ["action"], index=name)
            rows = drawn["action"][drawn.mask] if name != "steps" else drawn["action"]
            assert (rows < 100).all(), name
        if "chosen" in table.config.index:
            with pytest.raises((errors.RowGone, errors.RowsApart)):
                table.create_items(named(np.atleast_1d(keys)[:1], 1), index="chosen")

    def test_abandoned_episodes(self, table: Any) -> None:
        """Its steps are steps no more; the lane goes on with a new episode; what was before stays."""
        with table.writer() as writer:
            before = write_steps(writer, 0, 5, truncated=True)
            kept = table.gather(before[:4], index="steps")["action"].tolist()
            keys = write_steps(writer, 100, 6)
            if "chosen" in table.config.index:
                made = table.create_items(named(keys[:1], 3), index="chosen")
                also = table.create_items(named(before[1:2], 3), index="chosen")
            assert len(table) == 11
            writer.abandon()
            assert len(table) == 5 - 2, "windows over ends that began with the last two had steps of it: deleted ones"
            self.gone(table, keys)
            if "chosen" in table.config.index:
                assert not table.gather(made, index="chosen").present.any()
                assert table.gather(also, index="chosen").present.all()
            table.check()
            after = write_steps(writer, 20, 4, terminated=True)
            assert table.gather(before[:4], index="steps")["action"].tolist() == kept
            assert table.gather(after, columns=["episode_step"], index="steps")["episode_step"].tolist() == [0, 1, 2, 3]
            self.gone(table, keys)
            whole = table.gather(after[:1], index="whole", columns=["action", "mask"])
            assert whole["action"][0][whole.mask[0]].tolist() == [20, 21, 22, 23]
            cross = table.gather(after[:1], index="cross", columns=["action", "mask"])
            assert cross["action"][0][cross.mask[0]].tolist() == [20, 21, 22], "burn-in never reaches back over it"
            table.check()

    def test_abandoned_lanes_are_told_apart(self, table: Any) -> None:
        """A mask, ids, or all; lanes without an open episode, and those not named, stay as they are."""

        def both(value: int, **more: Any) -> dict[str, Any]:
            one = step(value, value + 1)
            return {name: np.stack([cell, cell]) for name, cell in one.items()} | more

        with table.writer(num_lanes=2) as writer:
            first = writer.append(**both(0))
            writer.abandon(np.array([False, False]))
            writer.abandon([1])
            writer.abandon(lanes=np.array([False, True]), timeout_s=1.0)
            assert table.gather(first, index="steps").present.tolist() == [False, False], "of two steps each"
            rows = both(1, observation=np.stack([np.ones(2), np.zeros(2)]))
            second = writer.append(**rows)
            assert table.gather(first, index="steps").present.tolist() == [True, False]
            writer.abandon()
            writer.abandon()
            for keys in (first, second):
                assert not table.gather(keys, index="steps").present.any()
            assert len(table) == 0
            writer.append(**both(5))
        table.check()

    @pytest.mark.parametrize("length", [1, 7, 8, 9, 63, 64, 65, 150])
    def test_abandoned_episodes_of_every_length(self, make_table: MakeTable, length: int) -> None:
        """Over pages, with the next state given and without, at each place of a page; capacity comes back."""
        table = make_table(plain_spec(), 170, {name: self.INDEXES[name] for name in ("steps", "windows", "cross")})
        with table.writer() as writer:
            for turn in range(6):
                before = write_steps(writer, turn, 4, truncated=True)
                if turn % 2:
                    states = np.zeros((length, 2))
                    keys = writer.extend(observation=states, action=np.full(length, 100), reward=np.zeros(length))
                else:
                    keys = write_steps(writer, 100, length)
                writer.abandon()
                table.check()
                assert len(table) <= 4 * (turn + 1)
                assert table.gather(before[:3], index="steps").present.all()
                assert not table.gather(keys, index="steps").present.any()
                drawn = table.sample(32, index="cross", columns=["action", "mask"])
                assert (drawn["action"][drawn.mask] < 100).all()
        table.check()

    def test_abandoning_is_refused_as_other_calls_are(self, table: Any) -> None:
        with table.writer() as writer, pytest.raises(errors.LaneError):
            writer.abandon([0])
        with table.writer(num_lanes=2) as writer:
            keys = writer.append(**{name: np.stack([cell, cell]) for name, cell in step(0, 1).items()})
            for lanes in ([2], [-1], [0, 0], [[0]], np.array([True]), "0", 1.5):
                with Unchanged(table, keys, errors.LaneError):
                    writer.abandon(lanes)
            for timeout_s in (-1, float("nan"), "1"):
                with pytest.raises(errors.InvalidConfig):
                    writer.abandon(timeout_s=timeout_s)
            writer.abandon(timeout_s=0.0)
        with pytest.raises(errors.WriterClosed):
            writer.abandon()

    def test_abandoned_episodes_without_states(self, make_table: MakeTable) -> None:
        """Where no state marks an end, explicit windows may run over it: those that run into the episode end."""
        spec = relive.StepSpec({"action": relive.ArraySpec((), "int64")})
        indexes = {name: self.INDEXES[name] for name in ("cross", "whole", "chosen") if name in self.INDEXES}
        table = make_table(spec, 200, indexes)
        with table.writer() as writer:
            before = writer.extend(action=np.arange(5), terminated=True)
            keys = writer.extend(action=np.arange(100, 106))
            if "chosen" in indexes:
                over = table.create_items(named(before[3:4], 4), index="chosen")
                stays = table.create_items(named(before[2:3], 3), index="chosen")
            writer.abandon()
            if "chosen" in indexes:
                assert table.gather(over, index="chosen").present.tolist() == [False]
                assert table.gather(stays, index="chosen").present.tolist() == [True]
            table.check()
            after = writer.extend(action=np.arange(20, 25), terminated=True)
            self.gone(table, keys)
            cross = table.gather(np.concatenate([before[2:], after[:1]]), index="cross", columns=["action", "mask"])
            rows = [cross["action"][k][cross.mask[k]].tolist() for k in range(4) if cross.present[k]]
            assert rows[0] == [0, 1, 2, 3, 4] and rows[-1] == [20, 21, 22], rows
        table.check()

    def test_abandoned_late_rows(self, make_table: MakeTable) -> None:
        """They wait no more; completing them is stale."""
        spec = plain_spec(verdict=relive.ArraySpec((), "float32", late=True))
        table = make_table(spec, 100, transitions())
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
            assert table.complete(keys[:1], verdict=[1.0]) == 1 and table.num_items() == 1
            writer.abandon()
            assert table.num_items() == 0 and table.complete(keys[1:], verdict=[1.0, 2.0]) == 0
        table.check()

    def test_abandoned_items_count_as_deleted_ones_do(self, make_table: MakeTable) -> None:
        """`inserted` counts published items. A writer that waits for the limiter continues by the same arithmetic."""
        limiter = relive.SamplesPerInsert(1.0, min_size=2, tolerance=4.0)
        table = make_table(plain_spec(), 100, relive.Index(relive.Transitions(), limiter=limiter))
        with table.writer() as writer:
            write_steps(writer, 0, 4)
            writer.abandon()
            assert table.num_items() == 0
            keys = write_steps(writer, 10, 2)
            assert table.gather(keys).present.all()
            table.sample(2, timeout_s=0.0)
        table.check()
