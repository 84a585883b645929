"""Goals that were achieved in an item's own episode, and groups by what their members got, beside naive models."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import relive
from contract.groups import arrive, grouped, spec_of_groups
from contract.tools import MakeTable, Suite
from relive import errors

GOAL, ACHIEVED = "observation/desired_goal", "observation/achieved_goal"
LENGTHS = (1, 4, 7, 12)
WANTED = -1.0


def goal_spec(**more: relive.ArraySpec) -> relive.StepSpec:
    columns = {
        "observation": {
            "observation": relive.ArraySpec((3,), "float32", kind="state"),
            "achieved_goal": relive.ArraySpec((2,), "float32", kind="state"),
            "desired_goal": relive.ArraySpec((2,), "float32", kind="state"),
        },
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
    }
    return relive.StepSpec({**columns, **more})


def hindsight(sampler: Any = None, **more: Any) -> relive.Index:
    return relive.Index(
        sampler=relive.Hindsight(GOAL, ACHIEVED, sampler=sampler or relive.Uniform(), **{"max_length": 16, **more})
    )


def state(episode: int, step: int) -> dict[str, Any]:
    """The achieved goal names the state: episode * 100 + the number of the state."""
    place = episode * 100.0 + step
    return {"observation": np.full(3, place), "achieved_goal": np.full(2, place), "desired_goal": np.full(2, WANTED)}


def play(writer: Any, episode: int, num_steps: int, *, ends: bool = True) -> list[int]:
    keys = []
    for t in range(num_steps):
        is_last = ends and t == num_steps - 1
        said = {"observation": state(episode, t), "next_observation": state(episode, t + 1)}
        keys.append(writer.append(**said, action=episode * 100 + t, reward=-1.0, truncated=is_last))
    arrive(writer)
    return keys


def arrived(achieved: Any, goal: Any, batch: Any) -> Any:
    return np.where((achieved == goal)[:, 0], 0.0, -1.0)


def near(achieved: Any, goal: Any, batch: Any) -> Any:
    assert batch["relabelled"].all() and len(batch["action"]) == len(goal)
    return -np.abs(achieved - goal).max(axis=1)


def allowed(strategy: str, step: int, length: int) -> list[int]:
    """States of an episode that a step's goal may be."""
    return {
        "future": list(range(step + 1, length + 1)),
        "final": [length],
        "episode": list(range(1, length + 1)),
    }[strategy]


class HindsightSuite(Suite):
    @pytest.mark.parametrize("strategy", ["future", "final", "episode"])
    def test_hindsight_goals_are_those_of_the_naive_model(self, make_table: MakeTable, strategy: Any) -> None:
        table = make_table(goal_spec(), 1000, hindsight(strategy=strategy))
        with table.writer() as writer:
            for episode, length in enumerate(LENGTHS):
                play(writer, episode, length)
        num_steps = sum(LENGTHS)
        assert table.num_items() == num_steps
        seen: dict[tuple[int, int], int] = {}
        drawn = relabelled = 0
        for _ in range(40):
            batch = table.sample(512, reward=near)
            episode, step = np.divmod(batch["action"], 100)
            goals = batch[GOAL][:, 0]
            np.testing.assert_array_equal(batch[GOAL], batch[f"next_{GOAL}"])
            is_other = batch["relabelled"]
            np.testing.assert_array_equal(goals[~is_other], WANTED)
            np.testing.assert_array_equal(batch["reward"][~is_other], -1.0)
            reached = batch["observation"]["achieved_goal"][:, 0], batch["next_observation"]["achieved_goal"][:, 0]
            np.testing.assert_array_equal(reached[0], episode * 100 + step)
            np.testing.assert_array_equal(reached[1], episode * 100 + step + 1)
            np.testing.assert_array_equal(batch["reward"][is_other], -np.abs(reached[1] - goals)[is_other])
            np.testing.assert_array_equal(batch["discount"], 1.0)
            drawn, relabelled = drawn + len(goals), relabelled + int(is_other.sum())
            for action, goal in zip(batch["action"][is_other].tolist(), goals[is_other].tolist(), strict=True):
                seen[action, int(goal)] = seen.get((action, int(goal)), 0) + 1
        expected = {
            (e * 100 + t, e * 100 + s): 0.8 * drawn / num_steps / len(allowed(strategy, t, length))
            for e, length in enumerate(LENGTHS)
            for t in range(length)
            for s in allowed(strategy, t, length)
        }
        assert set(seen) <= set(expected)
        assert abs(relabelled - 0.8 * drawn) < 5 * np.sqrt(0.16 * drawn)
        chi = sum((seen.get(cell, 0) - mean) ** 2 / mean for cell, mean in expected.items())
        freedom = len(expected)
        assert chi < freedom + 5 * np.sqrt(2 * freedom), (chi, freedom)

    def test_a_reward_function_that_returns_no_rewards(self, make_table: MakeTable) -> None:
        table = make_table(goal_spec(), 1000, hindsight())
        with table.writer() as writer:
            play(writer, 0, 5)
        for wrong in ("x", None, [[1.0], [2.0, 3.0]], object()):
            with pytest.raises((errors.DtypeMismatch, errors.ShapeMismatch), match="reward="):
                table.sample(64, reward=lambda achieved, goal, batch, wrong=wrong: wrong)
        with pytest.raises(errors.DtypeMismatch, match="reward="):
            table.sample(64, reward=lambda achieved, goal, batch: np.full(len(batch), "text"))
        assert table.stats().indexes["default"].in_flight == 0

    def test_an_item_waits_for_its_episode_and_one_that_is_cut_has_none(self, make_table: MakeTable) -> None:
        table = make_table(goal_spec(), 1000, hindsight())
        with table.writer() as writer:
            play(writer, 0, 5, ends=False)
            assert table.num_items() == 0
            with pytest.raises(errors.DeadlineExceeded):
                table.sample(1, timeout_s=0.0, reward=near)
            writer.end_episode(truncated=True)
            arrive(writer)
            assert table.num_items() == 5
            play(writer, 1, 3, ends=False)
        assert table.num_items() == 5, "what its lane's end cuts off has no last state"
        table.check()

    @pytest.mark.parametrize("cells", [1, 65, 500])
    def test_an_item_has_the_start_value_of_its_own_step(self, make_table: MakeTable, cells: int) -> None:
        """Also where the value is too large for the row, and no index of plain items stands beside."""
        spec = goal_spec(core=relive.ArraySpec((cells,), "float32", kind="start"))
        table = make_table(spec, 200, hindsight())
        with table.writer() as writer:
            for episode, length in enumerate(LENGTHS):
                for t in range(length):
                    said = {"observation": state(episode, t), "next_observation": state(episode, t + 1)}
                    number = episode * 100 + t
                    more = {"core": np.full(cells, number), "truncated": t == length - 1}
                    writer.append(**said, action=number, reward=-1.0, **more)
            arrive(writer)
        names = ["action", "core"]
        for batch in (table.sample(64, columns=names), table.gather(np.concatenate(list(table.keys())), columns=names)):
            assert (batch["core"] == batch["action"][:, None]).all()

    def test_an_item_waits_for_the_late_columns_of_its_own_step_alone(self, make_table: MakeTable) -> None:
        spec = goal_spec(verdict=relive.ArraySpec((), "float32", late=True))
        table = make_table(spec, 200, {"goals": hindsight(), "plain": relive.Index()})
        with table.writer() as writer:
            keys = play(writer, 0, 6)
        order = [4, 0, 5, 2, 3, 1]
        for done, step in enumerate(order):
            assert table.num_items("goals") == table.num_items("plain") == done
            assert table.complete([keys[step]], verdict=[float(step)]) == 1
            there = np.sort(np.concatenate(list(table.keys("goals"))))
            assert there.tolist() == sorted(keys[k] for k in order[: done + 1])

    def test_an_item_is_as_old_as_its_own_step(self, make_table: MakeTable) -> None:
        """max_staleness and Fresh(decay=) count from the step that the item is, not from a row that it reaches."""
        goals = relive.Hindsight(GOAL, ACHIEVED, max_length=16, sampler=relive.Fresh(decay=0.5))
        aged = relive.Index(sampler=relive.Hindsight(GOAL, ACHIEVED, max_length=16), max_staleness=2)
        table = make_table(goal_spec(), 200, {"aged": aged, "faded": relive.Index(sampler=goals)})
        with table.writer() as writer:
            for t in range(6):
                table.set_policy_version(5 - t if t == 0 else t)  # the first step is the newest of all
                said = {"observation": state(0, t), "next_observation": state(0, t + 1)}
                writer.append(**said, action=t, reward=-1.0, truncated=t == 5)
            arrive(writer)
        table.set_policy_version(5)
        old = table.gather(np.concatenate(list(table.keys("aged"))), columns=["action"], index="aged")
        assert sorted(old["action"].tolist()) == [0, 3, 4, 5]
        batch = table.sample(256, columns=["action"], index="faded")
        weights = 0.5 ** np.array([0, 4, 3, 2, 1, 0.0])
        assert np.allclose(batch.probabilities, (weights / weights.sum())[batch["action"]])

    def test_goals_of_a_mixture_have_their_rewards(self, make_table: MakeTable) -> None:
        """Two tables with Hindsight and plain transitions; each source's function gets the items of this source."""
        place = relive.ArraySpec((1,), "float32", kind="state")
        spec = relive.StepSpec({"goal": place, "at": place, "reward": relive.ArraySpec((), "float32")})
        goals = relive.Index(sampler=relive.Hindsight("goal", "at", max_length=10))
        one, other = (make_table(spec, 100, {"goals": goals, "plain": relive.Index()}) for _ in range(2))
        for table, first in ((one, 0.0), (other, 1000.0)):
            with table.writer() as writer:
                at = first + np.arange(7.0)[:, None]
                writer.extend(goal=np.full((7, 1), 99.0), at=at, reward=np.full(6, -1.0), truncated=True)
        shares = {"one": 0.4, "other": 0.4, "plain": 0.2}
        with relive.Mixture(
            shares, {"one": (one, "goals"), "other": (other, "goals"), "plain": (one, "plain")}
        ) as mixture:
            for columns in (None, ["goal", "at", "next_at", "reward"]):
                with pytest.raises(errors.InvalidConfig, match="reward=function"):
                    mixture.sample(8, columns)
            with pytest.raises(errors.InvalidConfig, match="reward of a Mixture"):
                mixture.sample(8, reward={"plain": arrived})
            mixture.sample(8, columns=["goal", "at"])  # without rewards none is wrong
            seen: list[Any] = []

            def told(achieved: Any, goal: Any, batch: Any) -> Any:
                seen.append(achieved)
                return arrived(achieved, goal, batch)

            with mixture.batches(64, reward=arrived) as batches:
                made = [
                    mixture.sample(64, reward=told),
                    next(batches),
                    mixture.sample(64, reward={"one": told, "other": told}),
                ]
            assert len(seen) == 4 and {(achieved >= 1000).all() for achieved in seen} == {False, True}
            for batch in made:
                new = batch["relabelled"]
                assert new.any() and not new[batch.source == 2].any()
                assert (
                    batch["reward"].tolist()
                    == np.where(new, arrived(batch["next_at"], batch["goal"], None), -1.0).tolist()
                )
            keys = mixture.draw(16)
            assert not mixture.gather(keys)["relabelled"].any()

    def test_priorities_and_shares_compose(self, make_table: MakeTable) -> None:
        table = make_table(goal_spec(), 1000, hindsight(relive.Prioritized(1.0), share=0.5))
        with table.writer() as writer:
            keys = [*play(writer, 0, 4), *play(writer, 1, 4)]
        assert table.update_priorities(np.asarray(keys), np.asarray([0.0, 1, 0, 0, 0, 3, 0, 0])) == 8
        batch = table.sample(4096, reward=near)
        assert set(batch["action"].tolist()) == {1, 101}
        assert abs((batch["action"] == 101).mean() - 0.75) < 0.05
        assert abs(batch["relabelled"].mean() - 0.5) < 0.05
        np.testing.assert_allclose(batch.probabilities, np.where(batch["action"] == 101, 0.75, 0.25))

    def test_gather_shows_what_was_stored(self, make_table: MakeTable) -> None:
        table = make_table(goal_spec(), 1000, hindsight(share=1.0))
        with table.writer() as writer:
            keys = play(writer, 0, 4)
        for batch in (table.gather(np.asarray(keys)), table.gather(table.draw(16))):
            assert not batch["relabelled"].any()
            np.testing.assert_array_equal(batch[GOAL], WANTED)
            np.testing.assert_array_equal(batch["reward"], -1.0)
        sampled = table.sample(16, reward=near)
        assert sampled["relabelled"].all()
        columns = table.sample(16, columns=["action", GOAL])
        assert (columns[GOAL] != WANTED).all() and "relabelled" not in columns

    def test_equal_tables_give_equal_goals(self, make_table: MakeTable) -> None:
        batches = []
        for _ in range(2):
            table = make_table(goal_spec(), 1000, hindsight(), seed=5)
            with table.writer() as writer:
                for episode, length in enumerate(LENGTHS):
                    play(writer, episode, length)
            batches.append([table.sample(64, reward=near) for _ in range(3)])
            table.close()
        for one, other in zip(*batches, strict=True):
            np.testing.assert_array_equal(one[GOAL], other[GOAL])
            np.testing.assert_array_equal(one["reward"], other["reward"])

    def test_batches_have_their_rewards(self, make_table: MakeTable) -> None:
        table = make_table(goal_spec(), 1000, hindsight())
        with table.writer() as writer:
            play(writer, 0, 9)
        with table.batches(64, prefetch=2, reward=near) as batches:
            for _ in range(3):
                batch = next(batches)
                is_other = batch["relabelled"]
                reached = batch[f"next_{ACHIEVED}"][:, 0]
                expected = np.where(is_other, -np.abs(reached - batch[GOAL][:, 0]), -1.0)
                np.testing.assert_array_equal(batch["reward"], expected)

    def test_a_reward_that_raises_loses_no_batch(self, make_table: MakeTable) -> None:
        """The same batch is tried again; batches before it are handed out once, and all are counted."""
        table = make_table(goal_spec(), 200, hindsight(share=1.0))
        with table.writer() as writer:
            for episode, length in enumerate(LENGTHS):
                play(writer, episode, length)
        calls: list[int] = []

        def flaky(achieved: Any, goal: Any, batch: Any) -> Any:
            calls.append(len(goal))
            if len(calls) == 4:
                raise ValueError("once")
            return near(achieved, goal, batch)

        drawn, raised = [], 0
        with table.batches(3, prefetch=4, reward=flaky) as batches:
            time.sleep(0.2)
            while len(drawn) < 7:
                try:
                    drawn.append(tuple(next(batches).item_keys.tolist()))
                except ValueError:
                    raised += 1
        with table.batches(3, prefetch=1, reward=near) as batches:
            assert next(batches).num_items == 3
        told = next(iter(table.stats().indexes.values()))
        assert (raised, told.in_flight) == (1, 0)
        assert told.sampled == 3 * 8 and len(set(drawn)) > 5

    def test_a_function_that_is_false_is_a_function(self, make_table: MakeTable) -> None:
        class Empty:
            def __len__(self) -> int:
                return 0

            def __call__(self, achieved: Any, goal: Any, batch: Any) -> Any:
                return np.full(len(goal), 5.0)

        table = make_table(goal_spec(), 200, hindsight(share=1.0))
        with table.writer() as writer:
            play(writer, 0, 6)
        with relive.Mixture({"default": 1.0}, table) as mixture:
            for batch in (table.sample(8, reward=Empty()), mixture.sample(8, reward=Empty())):
                assert (batch["reward"] == 5.0).all()

    def test_old_episodes_make_room_and_goals_stay_in_their_episode(self, make_table: MakeTable) -> None:
        table = make_table(goal_spec(), 64, hindsight(strategy="episode", share=1.0))
        with table.writer() as writer:
            for episode in range(60):
                play(writer, episode, 3 + episode % 11)
                batch = table.sample(64, reward=near)
                step = batch["action"] % 100
                goal = batch[GOAL][:, 0] - batch["action"] + step
                length = 3 + (batch["action"] // 100) % 11
                assert ((goal >= 1) & (goal <= length)).all()
        table.check()

    def test_goals_are_of_their_episode_while_others_write(self, make_table: MakeTable) -> None:
        table = make_table(goal_spec(), 200, hindsight(strategy="episode"))
        is_done = threading.Event()

        def write() -> None:
            with table.writer() as writer:
                for episode in range(400):
                    play(writer, episode, 2 + episode % 13)
            is_done.set()

        thread = threading.Thread(target=write)
        thread.start()
        while not is_done.is_set():
            batch = table.sample(32, timeout_s=10.0, reward=near)
            episode, step = np.divmod(batch["action"], 100)
            state = batch[GOAL][:, 0] - episode * 100
            length = 2 + episode % 13
            is_other = batch["relabelled"]
            assert ((state >= 1) & (state <= length))[is_other].all()
            np.testing.assert_array_equal(batch[GOAL][~is_other], WANTED)
            np.testing.assert_array_equal(batch[f"next_{ACHIEVED}"][:, 0], episode * 100 + step + 1)
        thread.join()
        table.check()

    def test_a_call_without_its_reward_is_refused(self, make_table: MakeTable) -> None:
        table = make_table(goal_spec(), 1000, {"her": hindsight(), "plain": relive.Index()})
        with table.writer() as writer:
            play(writer, 0, 4)
        for call in (table.sample, table.batches):
            with pytest.raises(errors.InvalidConfig, match="reward=function"):
                call(4)
            with pytest.raises(errors.InvalidConfig, match="no Hindsight"):
                call(4, index="plain", reward=near)
            with pytest.raises(errors.InvalidConfig, match="a function"):
                call(4, reward=3)
            with pytest.raises(errors.UnknownColumn, match="relabelled"):
                call(4, columns=["reward", GOAL], reward=near)
        with pytest.raises(errors.ShapeMismatch, match="returned"):
            table.sample(64, reward=lambda achieved, goal, batch: np.zeros(len(goal) + 1))
        with pytest.raises(errors.EpisodeTooLong), table.writer() as writer:
            play(writer, 1, 17)

    def test_what_goals_cannot_be_replaced_of_is_refused(self, make_table: MakeTable) -> None:
        her = relive.Hindsight(GOAL, ACHIEVED, max_length=16)
        for items in (relive.Transitions(n_step=3), relive.Transitions(stack={GOAL: 2}), relive.Sequences(4)):
            with pytest.raises(errors.InvalidConfig, match="Hindsight"):
                relive.Index(items, her)
        wrong: list[dict[str, Any]] = [
            {"share": 1.5},
            {"share": float("nan")},
            {"strategy": "past"},
            {"max_length": 0},
            {"sampler": her},
            {"goal": ACHIEVED},
            {"goal": 3},
        ]
        for one in wrong:
            with pytest.raises(errors.InvalidConfig):
                relive.Hindsight(**{"goal": GOAL, "achieved": ACHIEVED, **one})
        for goal, achieved in ((GOAL, "nowhere"), ("nowhere", ACHIEVED)):
            with pytest.raises(errors.UnknownColumn):
                make_table(goal_spec(), 100, relive.Index(sampler=relive.Hindsight(goal, achieved, max_length=16)))
        for goal, achieved in (("action", ACHIEVED), (GOAL, "action"), (GOAL, "observation/observation")):
            with pytest.raises(errors.SpecError):
                make_table(goal_spec(), 100, relive.Index(sampler=relive.Hindsight(goal, achieved, max_length=16)))


def rollouts(writer: Any, prompt: int, rewards: list[float]) -> None:
    """Episodes of two steps; what each got stands in its first step's reward and the rest in its second's."""
    for reward in rewards:
        for t in range(2):
            state = np.zeros(2)
            given = {
                "observation": state,
                "next_observation": state,
                "action": prompt,
                "reward": reward - 1.0 + t * 1.0,
            }
            writer.append(**given, prompt=prompt, core=state, score=reward, terminated=t == 1)
    arrive(writer)


GROUPS = {1: [1.0, 1.0, 1.0], 2: [0.0, 1.0, 0.0], 3: [0.0, 3.0, 0.0], 4: [0.1, 0.1, 0.1]}
SCORE = relive.ArraySpec((), "float32", kind="episode")


class PromptGroupsSuite(Suite):
    def table_of(self, make_table: MakeTable, sampler: Any) -> Any:
        table = make_table(spec_of_groups(score=SCORE), 1000, grouped(sampler=sampler))
        with table.writer() as writer:
            for prompt, rewards in GROUPS.items():
                rollouts(writer, prompt, rewards)
        return table

    @pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
    @pytest.mark.parametrize("by", ["variance", "mean"])
    def test_prompt_groups_have_their_members_mass(self, make_table: MakeTable, by: Any, exponent: float) -> None:
        table = self.table_of(make_table, relive.PromptGroups(by, "score", exponent))
        values = {p: np.var(r) if by == "variance" else np.mean(r) for p, r in GROUPS.items()}
        masses = {p: 0.0 if v < 1e-12 else v**exponent for p, v in values.items()}
        batch = table.sample(2048)
        prompts = batch["prompt"][:, 0]
        total = sum(masses.values())
        assert set(prompts.tolist()) == {p for p, mass in masses.items() if mass > 0}
        np.testing.assert_allclose(batch.probabilities, [masses[int(p)] / total for p in prompts], rtol=1e-5)
        for prompt, mass in masses.items():
            assert abs((prompts == prompt).mean() - mass / total) < 0.05
        table.check()

    def test_a_step_column_counts_by_its_sum(self, make_table: MakeTable) -> None:
        table = self.table_of(make_table, relive.PromptGroups("variance", "reward"))
        sums = {p: np.var([2 * r - 1 for r in rewards]) for p, rewards in GROUPS.items()}
        batch = table.sample(512)
        expected = [sums[int(p)] / (sums[2] + sums[3]) for p in batch["prompt"][:, 0]]
        np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-5)

    def test_by_recency_the_newest_come_first_and_have_no_priorities(self, make_table: MakeTable) -> None:
        table = self.table_of(make_table, relive.PromptGroups("recency"))
        batch = table.sample(3)
        assert batch["prompt"][:, 0].tolist() == [4, 3, 2]
        with pytest.raises(errors.NoPriorities):
            table.update_priorities(batch.item_keys, np.ones(3))

    def test_a_priority_that_is_given_replaces_the_one_that_was_computed(self, make_table: MakeTable) -> None:
        table = self.table_of(make_table, relive.PromptGroups("variance", "score"))
        keys = np.unique(table.sample(64).item_keys)
        assert table.update_priorities(keys, np.asarray([0.0, 1.0])) == 2
        assert len(np.unique(table.sample(64).item_keys)) == 1

    def test_rewards_that_come_late_are_seen(self, make_table: MakeTable) -> None:
        spec = spec_of_groups(score=SCORE, judged=relive.ArraySpec((), "float32", late=True))
        table = make_table(spec, 1000, grouped(sampler=relive.PromptGroups("variance", "judged")))
        keys: dict[int, list[int]] = {}
        with table.writer() as writer:
            for prompt in (1, 2):
                for _ in range(3):
                    at = {"observation": np.zeros(2), "next_observation": np.zeros(2), "core": np.zeros(2)}
                    key = writer.append(**at, action=0, reward=0.0, prompt=prompt, score=0.0, terminated=True)
                    keys.setdefault(prompt, []).append(key)
            arrive(writer)
            for prompt, judged in ((1, [1.0, 1.0, 1.0]), (2, [0.0, 1.0, 1.0])):
                table.complete(np.asarray([int(key) for key in keys[prompt]]), judged=np.asarray(judged, np.float32))
        assert table.num_items() == 2
        assert set(table.sample(64)["prompt"][:, 0].tolist()) == {2}

    def test_groups_alike_are_waited_behind(self, make_table: MakeTable) -> None:
        table = make_table(spec_of_groups(score=SCORE), 1000, grouped(sampler=relive.PromptGroups("variance", "score")))
        with table.writer() as writer:
            rollouts(writer, 1, [0.1, 0.1, 0.1])
            assert table.num_items() == 1
            with pytest.raises(errors.DeadlineExceeded):
                table.sample(1, timeout_s=0.0)
            rollouts(writer, 2, [0.1, 0.2, 0.1])
            assert table.sample(1)["prompt"][0, 0] == 2

    def test_what_is_no_group_and_no_number_is_refused(self, make_table: MakeTable) -> None:
        for items in (relive.Transitions(), relive.Episodes(4), relive.Sequences(4)):
            with pytest.raises(errors.InvalidConfig, match="groups"):
                relive.Index(items, relive.PromptGroups())
        for wrong in ({"by": "best"}, {"of": 3}, {"priority_exponent": -1.0}):
            with pytest.raises(errors.InvalidConfig):
                relive.PromptGroups(**wrong)
        for of, error in (("nowhere", errors.UnknownColumn), ("prompt", errors.SpecError), ("core", errors.SpecError)):
            with pytest.raises(error):
                make_table(spec_of_groups(score=SCORE), 100, grouped(sampler=relive.PromptGroups("mean", of)))
