"""Rows of the table of meanings that speak of groups of episodes, beside a naive twin: lists of episodes by value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, plain_spec
from relive import errors

PROMPT = relive.ArraySpec((), "int64", kind="episode")
CORE = relive.ArraySpec((2,), "float32", kind="start")
SIZE = 3


def grouped(max_length: int = 6, max_groups: int = 5, size: int = SIZE, **more: Any) -> relive.Index:
    items = relive.Episodes(max_length, group_by="prompt", group_size=size, max_groups=max_groups, gamma=0.5)
    return relive.Index(items, **more)


def spec_of_groups(**more: relive.ArraySpec) -> relive.StepSpec:
    return plain_spec(prompt=PROMPT, core=CORE, **more)


def episode(first: int, count: int, prompt: int, **ends: Any) -> dict[str, Any]:
    """Steps numbered from `first` on, of one prompt."""
    numbers = np.arange(first, first + count)
    states = np.arange(first, first + count + 1)[:, None] * np.ones(2)
    core = np.repeat(numbers[:, None], 2, 1).astype(np.float32)
    said = {"prompt": np.full(count, prompt), "core": core, "reward": numbers.astype(float)}
    return {"observation": states, "action": numbers, **said, **ends}


def arrive(writer: Any) -> None:
    """Waits until the steps of a streaming writer are stored. Other writers have stored them when a call returns."""
    getattr(writer, "flush", lambda: None)()


class Twin:
    """The groups there are, oldest first, each a value and lists of actions; where one more opens the oldest goes."""

    def __init__(self, max_groups: int, size: int) -> None:
        self.max_groups, self.size, self.dropped = max_groups, size, 0
        self.groups: list[tuple[int, list[list[int]]]] = []

    def end(self, prompt: int, actions: list[int]) -> None:
        for value, members in self.groups:
            if value == prompt and len(members) < self.size:
                members.append(actions)
                return
        self.groups.append((prompt, [actions]))
        if len(self.groups) > self.max_groups:
            _, members = self.groups.pop(0)
            self.dropped += len(members) < self.size

    def items(self) -> list[list[list[int]]]:
        return sorted(members for _, members in self.groups if len(members) == self.size)


def items_of(table: Any, twin: Twin) -> list[list[list[int]]]:
    """Every item of the table, as the twin has them; each cell of a batch is looked at."""
    if not twin.items():
        return []
    batch = table.sample(200, timeout_s=5.0)
    keys, first = np.unique(batch.item_keys, return_index=True)
    assert len(keys) == len(twin.items())
    longest = int(batch.lengths.max())
    assert batch["action"].shape == batch.mask.shape == (200, twin.size, longest)
    assert batch["observation"].shape == (200, twin.size, longest, 2)
    assert (batch["observation"][..., 0] == np.where(batch.mask, batch["action"], 0)).all()
    assert (batch["core"][..., 0] == batch["action"][..., 0]).all() and batch["core"].shape == (200, twin.size, 2)
    found = []
    for row in first:
        lengths = batch.lengths[row]
        assert (batch.mask[row] == (np.arange(longest) < lengths[:, None])).all()
        found.append([batch["action"][row, g, :count].tolist() for g, count in enumerate(lengths)])
        assert len(set(batch["prompt"][row].tolist())) == 1
    return sorted(found)


class GroupsSuite(Suite):
    def test_groups_of_episodes_are_those_of_the_twin(self, make_table: MakeTable) -> None:
        """By value, in the order in which episodes end, from two writers; ended by a step or later, or cut off."""
        table = make_table(spec_of_groups(), 4_000, grouped())
        twin, random, at = Twin(5, SIZE), np.random.default_rng(3), 0
        writers = [table.writer(), table.writer()]
        for number in range(60):
            writer, prompt, count = writers[number % 2], int(random.integers(0, 4)) * 7 - 7, int(random.integers(1, 6))
            way = random.integers(0, 3)
            ends = {"terminated": True} if way == 0 else {"truncated": True} if way == 1 else {}
            writer.extend(**episode(at, count, prompt, **ends))
            if way == 2 and number % 5 == 4:
                writer.close()
                writers[number % 2] = table.writer()
            else:
                if way == 2:
                    writer.end_episode(terminated=False)
                arrive(writer)
                twin.end(prompt, list(range(at, at + count)))
            at += 100
            if number % 4 == 3:
                assert items_of(table, twin) == twin.items()
        assert table.stats().dropped_groups == twin.dropped
        for writer in writers:
            writer.close()
        table.check()

    def test_what_a_batch_of_groups_has(self, make_table: MakeTable) -> None:
        """[B, G, T] for steps, [B, G] for what an episode has once; gamma * discount; trimmed; by key and in parts."""
        table = make_table(spec_of_groups(), 100, grouped())
        with table.writer() as writer:
            for k, count in enumerate((2, 4, 1)):
                writer.extend(**episode(10 * k, count, 5, terminated=k == 1, truncated=k != 1))
        draw = table.draw(2)
        names = ["mask", "num_steps", "lane", "policy_version", "staleness", "episode_step", "first", "terminated"]
        batch = table.gather(draw, columns=[*names, "discount", "prompt"])
        assert batch.lengths.tolist() == [[2, 4, 1]] * 2 and batch["num_steps"].tolist() == [[2, 4, 1]] * 2
        assert batch["lane"].shape == batch["staleness"].shape == (2, 3) and batch["policy_version"].shape == (2, 3, 2)
        assert batch["episode_step"][0].tolist() == [[0, 1, 0, 0], [0, 1, 2, 3], [0, 0, 0, 0]]
        assert batch["first"][0].sum() == 3 and batch["terminated"][0].tolist()[1] == [False, False, False, True]
        assert batch["discount"][0].tolist() == [[0.5, 0.5, 0, 0], [0.5, 0.5, 0.5, 0], [0.5, 0, 0, 0]]
        assert batch["prompt"].tolist() == [[5, 5, 5]] * 2
        part = batch.rows(slice(0, 1))
        assert part["mask"].shape == (1, 3, 4) and part.lengths.tolist() == [[2, 4, 1]]
        assert table.gather(draw.item_keys).present.tolist() == [True, True]
        assert table.delete(np.unique(draw.item_keys)) == 1
        assert table.gather(draw.item_keys).present.tolist() == [False, False]
        with pytest.raises(errors.UnknownColumn):
            table.sample(1, columns=["next_observation"])

    @pytest.mark.parametrize("has_state", [False, True])
    @pytest.mark.parametrize("count", [7, 8])
    def test_each_episode_of_a_slow_lane_joins(self, make_table: MakeTable, count: int, has_state: bool) -> None:
        """Its pages are gone when it goes on: what it is, and where it lies in its page, is as of the one before."""
        columns: dict[str, relive.ArraySpec] = {"number": relive.ArraySpec((), "int64"), "prompt": PROMPT}
        if has_state:
            columns["state"] = relive.ArraySpec((), "float32", kind="state")
        table = make_table(relive.StepSpec(columns), 48, grouped(8, 100, size=1), max_lanes=4)
        slow, fast = table.writer(), table.writer()

        def write(writer: Any, steps: int) -> None:
            states = {"state": np.zeros(steps + 1, np.float32)} if has_state else {}
            writer.extend(number=np.arange(steps), prompt=np.zeros(steps, int), truncated=True, **states)
            arrive(writer)

        for number in range(12):
            write(slow, count)
            assert table.stats().indexes["default"].inserted == 13 * number + 1
            for _ in range(12):
                write(fast, 6)
        table.check()

    def test_which_steps_of_a_long_episode_a_member_has(self, make_table: MakeTable) -> None:
        """Four of ten, once the episode has ended: the first, the last, or from a random one on, each as likely."""
        indexes = {
            part: relive.Index(
                relive.Episodes(4, group_by="prompt", group_size=2, max_groups=400, too_long=part)  # type: ignore[arg-type]
            )
            for part in ("head", "tail", "random")
        }
        table = make_table(spec_of_groups(), 9_000, indexes)
        with table.writer() as writer:
            for number in range(800):
                is_last = number % 2 == 1
                writer.extend(**episode(10 * number, 10, number // 2, terminated=is_last, truncated=not is_last))
            writer.extend(**episode(8_000, 3, -1, terminated=True))
            writer.extend(**episode(8_010, 9, -1))  # cut off
        assert [table.num_items(part) for part in indexes] == [399, 399, 399]  # the one that waits took a place
        starts = {}
        for part in indexes:
            batch = table.sample(2_000, index=part)
            first = batch["action"][..., 0] % 10
            assert (batch["action"] == batch["action"][..., :1] + np.arange(4)).all() and batch.mask.all()
            assert (batch["action"] // 20 == batch["prompt"][..., None]).all()
            starts[part] = dict(zip(batch["action"][..., 0].ravel() // 10, first.ravel(), strict=True))
        assert set(starts["head"].values()) == {0} and set(starts["tail"].values()) == {6}
        chosen = np.bincount(list(starts["random"].values()), minlength=7)
        assert len(chosen) == 7 and ((chosen - chosen.mean()) ** 2 / chosen.mean()).sum() < 30  # 6 degrees: p < 1e-4
        table.check()

    def test_a_group_goes_with_its_first_step(self, make_table: MakeTable) -> None:
        table = make_table(spec_of_groups(), 64, grouped(max_groups=50), max_lanes=4)
        with table.writer() as writer:
            for k in range(60):
                writer.extend(**episode(10 * k, 3, k % 2, truncated=True))
                if k % 7 == 0:
                    table.check()
            batch = table.sample(50)
            assert (batch["action"][:, 0, 0] >= 10 * (60 - 64 // 3 - 8)).all()
        assert table.stats().dropped_groups >= 0 and table.stats().indexes["default"].inserted == 20

    def test_an_episode_that_was_given_up_is_no_member(self, make_table: MakeTable) -> None:
        table = make_table(spec_of_groups(), 100, grouped())
        with table.writer() as writer:
            for k in range(4):
                writer.extend(**episode(10 * k, 2, 5, **({} if k == 1 else {"truncated": True})))
                if k == 1:
                    writer.abandon()
            assert table.sample(1)["action"][0].tolist() == [[0, 1], [20, 21], [30, 31]]
        table.check()

    def test_groups_wait_for_late_columns(self, make_table: MakeTable) -> None:
        table = make_table(spec_of_groups(score=relive.ArraySpec((), "float32", late=True)), 100, grouped())
        with table.writer() as writer:
            keys = [writer.extend(**episode(10 * k, 2, 5, truncated=True)) for k in range(3)]
        table.complete(np.concatenate(keys[1:]), score=np.arange(4.0))
        with pytest.raises(errors.DeadlineExceeded):
            table.sample(1, timeout_s=0.0)
        table.complete(keys[0], score=np.array([8.0, 9.0]))
        assert table.sample(1)["score"][0].tolist() == [[8, 9], [0, 1], [2, 3]]
        table.check()

    def test_limits_and_use_counts_count_groups(self, make_table: MakeTable) -> None:
        limiter = relive.SamplesPerInsert(1.0, min_size=1, tolerance=1.0)
        table = make_table(spec_of_groups(), 200, grouped(limiter=limiter, max_times_sampled=1))
        with table.writer() as writer:
            for k in range(6):
                writer.extend(**episode(10 * k, 2, 5, truncated=True), timeout_s=5.0)
            with pytest.raises((errors.DeadlineExceeded, errors.ReliveError)):
                writer.extend(**episode(60, 2, 5, truncated=True), timeout_s=0.0)
            actions = table.sample(2)["action"][:, 0, 0]
            assert sorted(actions.tolist()) == [0, 30]
            writer.extend(**episode(60, 2, 5, truncated=True), timeout_s=5.0)
        with pytest.raises(errors.DeadlineExceeded):
            table.sample(1, timeout_s=0.0)

    def test_a_step_too_many(self, make_table: MakeTable) -> None:
        table = make_table(spec_of_groups(), 100, grouped(max_length=3))
        with table.writer() as writer, pytest.raises(errors.EpisodeTooLong):
            writer.extend(**episode(0, 4, 5, truncated=True))
        assert len(table) == 0

    @pytest.mark.parametrize(
        ("options", "what"),
        [
            ({"group_size": 2}, "group_size"),
            ({"max_groups": 2}, "max_groups"),
            ({"group_by": "prompt"}, "group_size"),
            ({"group_by": "prompt", "group_size": 2}, "max_groups"),
            ({"group_by": 3, "group_size": 2, "max_groups": 2}, "group_by"),
            ({"group_by": "prompt", "group_size": 0, "max_groups": 2}, "group_size"),
            ({"group_by": "prompt", "group_size": 65, "max_groups": 2}, "group_size"),
            ({"group_by": "prompt", "group_size": True, "max_groups": 2}, "group_size"),
            ({"group_by": "prompt", "group_size": 2, "max_groups": 4097}, "max_groups"),
            ({"group_by": "prompt", "group_size": 2, "max_groups": 2, "bootstrap": 1}, "bootstrap"),
            ({"group_by": "prompt", "group_size": 2, "max_groups": 2, "too_long": "middle"}, "too_long"),
            ({"group_by": "prompt", "group_size": 2, "max_groups": 2, "layout": "ragged"}, "layout"),
            ({"group_by": "prompt", "group_size": 2, "max_groups": 2, "time_major": True}, "time_major"),
            ({"group_by": "prompt", "group_size": 2, "max_groups": 2, "stack": {"observation": 2}}, "stack"),
        ],
    )
    def test_what_groups_cannot_be(self, options: dict[str, Any], what: str) -> None:
        with pytest.raises(errors.InvalidConfig, match=what):
            relive.Episodes(6, **options)

    @pytest.mark.parametrize(
        ("column", "error"),
        [
            (relive.ArraySpec((), "int64"), errors.SpecError),
            (relive.ArraySpec((), "int32", kind="episode"), errors.SpecError),
            (relive.ArraySpec((1,), "int64", kind="episode"), errors.SpecError),
            (None, errors.UnknownColumn),
        ],
    )
    def test_a_column_that_groups_cannot_form_by(self, column: relive.ArraySpec | None, error: type[Exception]) -> None:
        spec = plain_spec(**({} if column is None else {"prompt": column}))
        with pytest.raises(error):
            relive.Table(spec, 100, grouped())

    def test_what_an_index_of_groups_cannot_have(self, make_table: MakeTable) -> None:
        with pytest.raises(errors.InvalidConfig, match="max_groups"):
            grouped(limiter=relive.MinSize(6))
        with pytest.raises(errors.InvalidConfig, match="initial"):
            grouped(sampler=relive.Prioritized(initial="given"))
        with pytest.raises(errors.CapacityTooSmall):
            relive.Table(spec_of_groups(), 8, grouped(limiter=relive.MinSize(3)))
        with pytest.raises(errors.CapacityTooSmall):
            relive.Table(spec_of_groups(), 100, grouped(max_length=101))
        table = make_table(spec_of_groups(), 100, grouped())
        with table.writer() as writer, pytest.raises(errors.InvalidConfig):
            keys = writer.extend(**episode(0, 2, 5, truncated=True))
            table.create_items(keys)
