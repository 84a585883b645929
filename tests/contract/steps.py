"""Rows of the table of meanings that speak of priorities read back, the next step, and steps as they were written."""

from __future__ import annotations

import math
import re
import threading
from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, plain_spec, prioritized, step, transitions, write_steps
from relive import errors

PRIORITIES = [4.0, 0.25, 0.0, 1e-3, 7.5, 1e30]


def priorities_of(table: Any, keys: Any, index: str | None = None) -> list[float]:
    return np.asarray(table.gather(keys, columns=["priority"], index=index)["priority"]).tolist()


def exactly(values: list[float]) -> list[float]:
    return np.asarray(values, np.float32).tolist()


def write_episode(writer: Any, first: int, count: int, **end: Any) -> list[int]:
    """Steps first, first + 1, ... whose last one ends the episode."""
    keys = [writer.append(**step(t)) for t in range(first, first + count - 1)]
    last = first + count - 1
    return [int(key) for key in (*keys, writer.append(**step(last, last + 1, **(end or {"truncated": True}))))]


class PrioritiesSuite(Suite):
    @pytest.mark.parametrize("exponent", [1.0, 0.6, 0.1])
    def test_priorities_read_back(self, make_table: MakeTable, exponent: float) -> None:
        table = make_table(plain_spec(), 100, prioritized(exponent))
        with table.writer() as writer:
            keys = write_steps(writer, 0, len(PRIORITIES))
            assert priorities_of(table, keys) == [1.0] * len(keys), "the initial priority"
            table.update_priorities(keys, PRIORITIES)
            assert priorities_of(table, keys) == exactly(PRIORITIES)
            batch = table.sample(32, columns=["priority", "action"])
            given = dict(enumerate(exactly(PRIORITIES)))
            assert [given[action] for action in batch["action"].tolist()] == batch["priority"].tolist()
            table.delete(keys[:1])
            there = table.gather(keys, columns=["priority"])
            assert there.present.tolist() == [False] + [True] * 5

    @pytest.mark.parametrize(
        "sampler", [relive.RankBased(0.7), relive.TopK(5), relive.MaxPriority(), relive.MinPriority()]
    )
    def test_priorities_read_back_of_ranks_and_orders(self, make_table: MakeTable, sampler: Any) -> None:
        table = make_table(plain_spec(), 100, relive.Index(sampler=sampler))
        with table.writer() as writer:
            keys = write_steps(writer, 0, len(PRIORITIES))
            table.update_priorities(keys, PRIORITIES)
            assert priorities_of(table, keys) == exactly(PRIORITIES)

    def test_priorities_of_the_remover_and_of_several_indexes(self, make_table: MakeTable) -> None:
        of_remover = relive.Index(remover=relive.MinPriority(initial=2.0), max_items=50)
        indexes = {"a": prioritized(0.5), "b": prioritized(initial=3.0), "c": of_remover, "d": transitions()}
        table = make_table(plain_spec(), 1000, indexes)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
            table.update_priorities(keys, [5.0, 6.0, 7.0], index="a")
            table.update_priorities(keys[:1], [0.5], index="c")
        assert priorities_of(table, keys, "a") == [5.0, 6.0, 7.0]
        assert priorities_of(table, keys, "b") == [3.0, 3.0, 3.0]
        assert priorities_of(table, keys, "c") == [0.5, 2.0, 2.0]
        for index in ("a", "d"):
            assert not math.isnan(table.gather(keys, index=index).num_items)
        with pytest.raises(errors.UnknownColumn, match="priority"):
            table.gather(keys, columns=["priority"], index="d")

    def test_priorities_of_sequences_and_with_keys(self, make_table: MakeTable) -> None:
        index = relive.Index(relive.Sequences(4, burn_in=2), relive.Prioritized(0.6))
        table = make_table(plain_spec(), 100, index)
        with table.writer() as writer:
            write_episode(writer, 0, 12)
        (keys,) = list(table.keys())
        table.update_priorities(keys, [1.5, 2.5, 3.5])
        batch = table.gather(keys, columns=["priority", "action"])
        assert batch["priority"].tolist() == [1.5, 2.5, 3.5] and batch["action"].shape == (3, 6)
        (page,) = list(table.keys(priorities=True))
        assert page[0].tolist() == keys.tolist() and page[1].tolist() == [1.5, 2.5, 3.5]
        pages = table.keys(priorities=True, order="priority", page_size=2)
        assert [values.tolist() for _, values in pages] == [[3.5, 2.5], [1.5]]

    def test_a_used_up_item_has_no_priority(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, prioritized(max_times_sampled=1))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 4)
            drawn = table.draw(1).item_keys
            values = dict(zip(keys.tolist(), priorities_of(table, keys), strict=True))
        assert math.isnan(values.pop(int(drawn[0]))) and set(values.values()) == {1.0}

    def test_weights_of_a_draw(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, prioritized())
        with table.writer() as writer:
            keys = write_steps(writer, 0, 4)
            table.update_priorities(keys, [1.0, 2.0, 4.0, 8.0])
            draw = table.draw(16)
            batch = table.gather(draw)
        for normalize in ("batch", None):
            weights = draw.weights(0.4, normalize=normalize)
            assert weights.dtype == np.float32
            assert weights.tolist() == batch.weights(0.4, normalize=normalize).tolist()
        expected = (4 * draw.probabilities) ** -0.4
        assert draw.weights(0.4).tolist() == pytest.approx(expected / expected.max(), rel=1e-5)
        own = relive.Draw.of(keys[:2], [0.5, 0.25])
        assert own.weights(1.0).tolist() == [0.5, 1.0]
        with pytest.raises(errors.NoProbabilities):
            own.weights(1.0, normalize=None)
        for bad in ({"beta": -1.0}, {"beta": "x"}, {"beta": 0.5, "normalize": "sum"}):
            with pytest.raises(errors.InvalidConfig):
                draw.weights(**bad)
        with pytest.raises(errors.UnknownArgument):
            draw.weights(bets=0.5)


class NextStepSuite(Suite):
    @pytest.mark.parametrize("n_step", [1, 3])
    def test_the_next_step(self, make_table: MakeTable, n_step: int) -> None:
        """SARSA's next action: of the step after the window; zeros and has_next False where an episode ended."""
        table = make_table(plain_spec(extra=relive.ArraySpec((3,), "float64")), 1000, transitions(n_step, 0.5))
        with table.writer() as writer:
            keys = []
            for end in ({"terminated": True}, {"truncated": True}):
                for t in range(100, 200):
                    last = end if t == 199 else {}
                    keys.append(writer.append(**step(t, t + 1, **last), extra=np.full(3, t)))
            names = ["action", "next_action", "next_extra", "next_reward", "has_next", "next_observation"]
            batch = table.gather(keys, columns=names)
        assert batch.present.all()
        ahead = np.tile(np.arange(100) + 100 + n_step, 2)
        ended = ahead >= 200
        assert batch["has_next"].tolist() == (~ended).tolist()
        expected = np.where(ended, 0, ahead)
        assert batch["next_action"].tolist() == expected.tolist()
        assert batch["next_reward"].tolist() == expected.tolist()
        assert batch["next_extra"].tolist() == np.repeat(expected[:, None], 3, 1).tolist()
        shown = np.minimum(ahead, 200)
        shown[:100][ahead[:100] >= 200] = 200
        assert batch["next_observation"][:, 0].tolist() == shown.tolist()

    def test_the_next_step_that_is_not_written_yet(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100)
        with table.writer() as writer:
            keys = write_steps(writer, 5, 3)
            names = ["next_action", "has_next"]
            batch = table.gather(keys, columns=names)
            assert batch.present.all() and batch["has_next"].tolist() == [True, True, False]
            assert batch["next_action"].tolist() == [6, 7, 0]
            write_steps(writer, 8, 1)
            assert table.gather(keys, columns=names)["next_action"].tolist() == [6, 7, 8]
            drawn = table.sample(64, columns=["action", *names])
            there = drawn["has_next"]
            assert (drawn["next_action"][there] == drawn["action"][there] + 1).all()
            assert (drawn["next_action"][~there] == 0).all() and 8 not in drawn["action"][there]

    def test_no_next_step_without_states_or_of_late_columns(self, make_table: MakeTable) -> None:
        table = make_table(relive.StepSpec({"x": relive.ArraySpec((), "int64")}), 100)
        with pytest.raises(errors.UnknownColumn):
            table.select(None, ["next_x"])
        late = make_table(plain_spec(score=relive.ArraySpec((), "float32", late=True)), 100)
        with pytest.raises(errors.UnknownColumn):
            late.select(None, ["next_score"])


class BatchOrderSuite(Suite):
    def test_length_of_a_batch(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 9)
            batch = table.sample(7)
            assert len(batch) == 7 and len(table.draw(5)) == 5 and len(batch.rows(slice(2, 4))) == 2
            assert len(batch.keys()) == len(batch.values()) == len(batch.items()) == len(list(batch)) == 5
            assert {**batch}.keys() == batch.keys() and dict(batch.items())["action"] is batch["action"]
            assert len(table.gather(keys[:0])) == 0

    @pytest.mark.parametrize("ahead", [False, True])
    def test_order_of_the_items_in_a_batch(self, make_table: MakeTable, ahead: bool) -> None:
        table = make_table(plain_spec(), 400, prioritized())
        with table.writer() as writer:
            keys = write_steps(writer, 0, 200)
            table.update_priorities(keys, np.arange(200) % 20 + 1.0)

            def drawn(order: Any) -> Any:
                if not ahead:
                    return table.sample(64, ["action", "priority"], order=order)
                with table.batches(64, 2, ["action", "priority"], order=order) as batches:
                    next(batches)
                    return next(batches)

            by_age = drawn("age")
            assert by_age["action"].tolist() == sorted(by_age["action"].tolist())
            by_priority = drawn("priority")
            assert by_priority["priority"].tolist() == sorted(by_priority["priority"].tolist(), reverse=True)
            assert set(by_priority) == {"action", "priority"}
            places = list(zip((-by_priority["priority"]).tolist(), by_priority["action"].tolist(), strict=True))
            assert places == sorted(places), "among equals the oldest"
            shuffled = drawn(None)["action"].tolist()
            assert shuffled != sorted(shuffled)
            same = table.gather(by_age.item_keys, columns=["action"])
            assert same["action"].tolist() == by_age["action"].tolist(), "keys are in the same order"
            if not ahead:
                draw = table.draw(64, order="age")
                actions = table.gather(draw)["action"].tolist()
                assert actions == sorted(actions)
                best = table.gather(table.draw(64, order="priority"), columns=["priority"])["priority"].tolist()
                assert best == sorted(best, reverse=True)

    def test_order_of_sequences_in_a_batch(self, make_table: MakeTable) -> None:
        index = relive.Index(relive.Sequences(4, time_major=True), relive.MinPriority())
        table = make_table(plain_spec(), 400, index)
        with table.writer() as writer:
            write_episode(writer, 0, 80)
            (keys,) = list(table.keys())
            table.update_priorities(keys, np.arange(20) * 7 % 20 + 1.0)
            batch = table.sample(10, order="age")
            assert batch["action"].shape == (4, 10) and batch["mask"].all()
            assert batch["action"][0].tolist() == sorted(batch["action"][0].tolist())
            assert sorted(batch) == ["action", "discount", "mask", "observation", "reward"]
            best = table.sample(10, ["priority"], order="priority")["priority"].tolist()
            assert best == sorted(best), "the order in which the sampler prefers"

    def test_refused_orders(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100)
        with table.writer() as writer:
            write_steps(writer, 0, 4)
            for bad in ("oldest", 3, "priority", ["age"]):
                for call in (table.sample, table.draw, table.batches):
                    with pytest.raises(errors.InvalidConfig, match="order"):
                        call(2, order=bad)

    def test_pages_of_a_notebook(self, make_table: MakeTable) -> None:
        spec = relive.StepSpec({"<b>x": relive.ArraySpec((), "int64")})
        table = make_table(spec, 100)
        with table.writer() as writer:
            for t in range(3):
                writer.append(**{"<b>x": t})
            shown = [table._repr_html_(), table.sample(2)._repr_html_(), table.stats()._repr_html_()]
        for text in shown:
            assert text.startswith("<table>") and text.count("<table>") == text.count("</table>")
            assert not re.search("<b>", text)
        assert "3 of" in shown[0] and "Batch of 2 items" in shown[1] and "appended" in shown[2]


class StepsSuite(Suite):
    def test_steps_as_they_were_written(self, make_table: MakeTable) -> None:
        """Under an n-step index: rewards of single steps, discounts without gamma."""
        table = make_table(plain_spec(), 100, transitions(3, 0.5))
        with table.writer() as writer:
            keys = write_episode(writer, 10, 6, terminated=True)
            names = ["reward", "discount", "observation", "next_observation", "terminated", "num_steps", "next_action"]
            summed = table.gather(keys, names)
            assert summed["reward"].tolist() == [
                10 + 5.5 + 3,
                11 + 6 + 3.25,
                12 + 6.5 + 3.5,
                13 + 7 + 3.75,
                14 + 7.5,
                15,
            ]
            batch = table.gather_steps(keys, names)
            assert batch.present.all() and batch["reward"].tolist() == [10, 11, 12, 13, 14, 15]
            assert batch["discount"].tolist() == [1, 1, 1, 1, 1, 0] and batch["num_steps"].tolist() == [1] * 6
            assert batch["next_observation"][:, 0].tolist() == [11, 12, 13, 14, 15, 16]
            assert batch["terminated"].tolist() == [False] * 5 + [True]
            assert batch["next_action"].tolist() == [11, 12, 13, 14, 15, 0]
            assert set(table.gather_steps(keys)) == {"observation", "action", "reward", "next_observation", "discount"}
            table.delete(keys[1:2])
            assert table.gather_steps(keys).present.tolist() == [True, False, True, True, True, True]
            open_key = writer.append(**step(50))
            assert table.gather_steps([open_key]).present.tolist() == [False], "its next state is not there"
            early = writer.append(**step(51, 52))
            assert table.gather_steps([open_key, early]).present.tolist() == [True, True]
            with pytest.raises(errors.UnknownColumn):
                table.gather_steps(keys, ["priority"])
            with pytest.raises(errors.ForeignKey):
                table.gather_steps([1])

    def test_whole_episodes(self, make_table: MakeTable) -> None:
        spec = plain_spec(
            task=relive.ArraySpec((), "int64", kind="episode"), core=relive.ArraySpec((2,), "float32", kind="start")
        )
        table = make_table(spec, 2000, relive.Index(relive.Sequences(3)), max_lanes=4)
        lengths = [1, 5, 40, 2, 17]
        with table.writer(2) as writer:
            for number, length in enumerate(lengths):
                for t in range(length):
                    last = t == length - 1
                    writer.set_policy_version(t)
                    writer.append(
                        observation=np.full((2, 2), t), action=[t, t + 1000], reward=[0.5, 0.5], task=[number, number],
                        core=np.full((2, 2), t), discount=np.full(2, 0.25), terminated=last and number % 2 == 0,
                        truncated=last and number % 2 == 1, next_observation=np.full((2, 2), t + 1),
                    )  # fmt: skip
            for _ in range(2):
                zeros = np.zeros((2, 2))
                writer.append(observation=zeros, action=[7, 7], reward=[0, 0], task=[9, 9], core=zeros)
            found = list(table.episodes())
        assert len(found) == 2 * len(lengths), "an open episode is none"
        for lane in (0, 1000):
            mine = [one for one in found if one["action"][0] == lane]
            assert [one["task"].item() for one in mine] == [0, 1, 2, 3, 4], "in order"
            for one, length in zip(mine, lengths, strict=True):
                assert len(one) == len(one.item_keys) == length
                assert one["observation"].shape == (length + 1, 2) and one["observation"][:, 0].tolist() == list(
                    range(length + 1)
                )
                assert one["action"].tolist() == [lane + t for t in range(length)]
                assert one["core"].shape == (length, 2) and one["task"].shape == ()
                assert one.discount.tolist() == [0.25] * length and one.policy_version.tolist() == list(range(length))
                assert (one.terminated, one.truncated) == (one["task"] % 2 == 0, one["task"] % 2 == 1)
        cut = [one for one in table.episodes() if one["task"] == 9]
        assert [(len(one), one.truncated) for one in cut] == [(1, True)] * 2, "the last step became the last state"
        few = next(table.episodes(["action", "task"]))
        assert list(few) == ["action", "task"] and len(few.keys()) == 2
        with pytest.raises(errors.UnknownColumn):
            table.episodes(["speed"])
        with pytest.raises(errors.UnknownColumn):
            few["speed"]

    def test_whole_episodes_that_lost_a_step_are_none(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 200, max_lanes=2)
        with table.writer() as writer:
            first = write_episode(writer, 0, 10)
            write_episode(writer, 10, 10)
            table.delete(first[4:5])
            assert [one["action"][0] for one in table.episodes()] == [10]
            for number in range(2, 80):
                write_episode(writer, 10 * number, 10)
            found = [one["action"].tolist() for one in table.episodes()]
            assert 5 <= len(found) <= 20 and found[-1] == list(range(790, 800))
            assert all(actions == list(range(actions[0], actions[0] + 10)) for actions in found)
            writer.append(**step(0))
            writer.abandon()
            assert all(len(one) == 10 for one in table.episodes())
            assert len(found) - 2 <= len(list(table.episodes())) <= len(found)
        assert list(make_table(plain_spec(), 100).episodes()) == []

    def test_whole_episodes_with_late_columns(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(score=relive.ArraySpec((), "float32", late=True)), 200)
        with table.writer() as writer:
            keys = [writer.append(**step(t, t + 1, truncated=t == 3)) for t in range(4)]
            assert list(table.episodes()) == []
            assert [len(one) for one in table.episodes(["action"])] == [4]
            assert not table.gather_steps(keys).present.any()
            assert table.gather_steps(keys, ["action"]).present.all()
            table.complete(keys, score=[1.0, 2.0, 3.0, 4.0])
            assert [one["score"].tolist() for one in table.episodes()] == [[1.0, 2.0, 3.0, 4.0]]

    def test_nested_columns_of_whole_episodes(self, make_table: MakeTable) -> None:
        box = relive.ArraySpec((), "float32", kind="state")
        table = make_table(
            relive.StepSpec({"observation": {"a": box, "b": (box, box)}, "x": relive.ArraySpec((), "int64")}), 100
        )
        with table.writer() as writer:
            writer.append(observation={"a": 1, "b": (2, 3)}, x=5)
            writer.append(observation={"a": 4, "b": (5, 6)}, x=6)
            writer.end_episode(terminated=True)
        (one,) = table.episodes()
        assert one["observation"]["b"][1].tolist() == [3, 6, 0] and one["observation/a"].tolist() == [1, 4, 0]
        assert list(one) == ["observation", "x"] and "observation/b" in one and one.terminated

    def test_whole_episodes_beside_a_writer(self, make_table: MakeTable) -> None:
        """Every episode is whole and as written, while steps leave and come."""
        table = make_table(plain_spec(), 2000, max_lanes=2)
        stop = threading.Event()
        failed: list[BaseException] = []

        def write() -> None:
            try:
                with table.writer() as writer:
                    first = 0
                    while not stop.is_set():
                        write_episode(writer, first, 7)
                        first += 7
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        seen = 0
        try:
            while seen < 500 and not failed:
                for one in table.episodes():
                    actions = one["action"].tolist()
                    assert (
                        len(actions) == 7 and actions == list(range(actions[0], actions[0] + 7)) and actions[0] % 7 == 0
                    )
                    assert one["observation"][:, 1].tolist() == [float(t) for t in (*actions, actions[-1] + 1)]
                    seen += 1
        finally:
            stop.set()
            thread.join()
        assert not failed
