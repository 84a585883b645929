"""Rows of the table of meanings that speak of episodes as a whole: columns that have one value an episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from contract.sequences import begins, episodes, row_of, sequences
from contract.tools import MakeTable, Suite, Unchanged, plain_spec, step, transitions
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
