"""Rows of the table of meanings that speak of items: returns, windows, stacks, keys, publication."""

from __future__ import annotations

import numpy as np
import pytest

import relive
from contract.tools import (
    ALL,
    MakeTable,
    Suite,
    contents,
    is_empty,
    plain_spec,
    present,
    prioritized,
    state,
    step,
    transitions,
    write_steps,
)
from relive import errors


class ItemsSuite(Suite):
    def test_reward_and_discount_out(self, make_table: MakeTable) -> None:
        """All gammas are in: target = reward + discount * value(next)."""
        table = make_table(plain_spec(), 100, transitions(n_step=3, gamma=0.5))
        with table.writer() as writer:
            keys = [writer.append(**step(t + 1, t + 2, discount=d)) for t, d in enumerate((1.0, 0.5, 1.0, 1.0))]
        said = contents(table, keys[:2])
        assert said["reward"] == [1 + 0.5 * 2 + 0.5 * 0.25 * 3, 2 + 0.25 * 3 + 0.25 * 0.5 * 4]
        assert said["discount"] == [0.5 * 0.25 * 0.5, 0.25 * 0.5 * 0.5]
        assert said["next_observation"] == [[4, 4], [5, 5]]

    def test_reward_of_ends(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, transitions(n_step=2, gamma=0.5))
        with table.writer() as writer:
            dead = [writer.append(**step(1)), writer.append(**step(2, terminated=True))]
            cut = [writer.append(**step(3)), writer.append(**step(4, 9, truncated=True))]
        said = contents(table, dead + cut)
        assert said["reward"] == [2, 2, 5, 4] and said["discount"] == [0, 0, 0.25, 0.5]
        assert said["next_observation"][2:] == [[9, 9], [9, 9]]

    @pytest.mark.parametrize("n_step", [1, 2, 3, 5])
    def test_n_step_at_edges(self, make_table: MakeTable, n_step: int) -> None:
        """Shorter at an end, never dropped, never across it."""
        table = make_table(plain_spec(), 100, transitions(n_step=n_step))
        lengths = (1, 4, 2, 7)
        with table.writer() as writer:
            keys = [write_steps(writer, 10 * i, length, truncated=True) for i, length in enumerate(lengths)]
        batch = table.gather(np.concatenate(keys), columns=["reward", "next_observation", *ALL])
        assert batch.present.all()
        expected = [min(n_step, length - t) for length in lengths for t in range(length)]
        assert batch["num_steps"].tolist() == expected
        firsts = [10 * i + t for i, length in enumerate(lengths) for t in range(length)]
        sums = [sum(range(first, first + m)) for first, m in zip(firsts, expected, strict=True)]
        assert batch["reward"].tolist() == sums
        nexts = [first + m for first, m in zip(firsts, expected, strict=True)]
        assert batch["next_observation"][:, 0].tolist() == nexts
        assert batch["first"].tolist() == [t == 0 for length in lengths for t in range(length)]

    @pytest.mark.parametrize("pad", ["repeat", "zeros"])
    def test_stack(self, make_table: MakeTable, pad: str) -> None:
        """Newest last; before the episode's first frame as asked, never the episode before."""
        table = make_table(plain_spec(), 100, transitions(n_step=2, stack={"observation": 3}, stack_pad=pad))
        with table.writer() as writer:
            write_steps(writer, 90, 4, terminated=True)
            keys = write_steps(writer, 1, 3, truncated=True)
        batch = table.gather(keys)
        assert batch["observation"].shape == (3, 3, 2)
        fill = 1 if pad == "repeat" else 0
        assert batch["observation"][..., 0].tolist() == [[fill, fill, 1], [fill, 1, 2], [1, 2, 3]]
        assert batch["next_observation"][..., 1].tolist() == [[1, 2, 3], [2, 3, 4], [2, 3, 4]]

    def test_stack_of_an_end_without_next(self, make_table: MakeTable) -> None:
        """The newest frame is zeros, the older ones are the episode's."""
        table = make_table(plain_spec(), 100, transitions(stack={"observation": 3}))
        with table.writer() as writer:
            key = [writer.append(**step(t, terminated=t == 3)) for t in range(1, 4)][-1]
        batch = table.gather(np.asarray([key]))
        assert batch["next_observation"][0, :, 0].tolist() == [2, 3, 0] and batch["discount"][0] == 0

    def test_stack_of_environments_that_stack_themselves(self, make_table: MakeTable) -> None:
        """unstack takes their stacks and stores the newest frame once."""
        columns = {
            "observation": relive.ArraySpec((2,), "uint8", kind="state"),
            "reward": relive.ArraySpec((), "float32"),
        }
        spec = relive.StepSpec(columns, unstack={"observation": 3})
        table = make_table(spec, 100, transitions(stack={"observation": 3}, stack_pad="zeros"))

        def frames(t: int) -> np.ndarray:
            return np.array([[max(0, t - back)] * 2 for back in (2, 1, 0)], np.uint8)

        with table.writer() as writer:
            keys = [
                writer.append(observation=frames(t), reward=0.0, next_observation=frames(t + 1)) for t in range(1, 6)
            ]
        batch = table.gather(np.asarray(keys))
        np.testing.assert_array_equal(batch["observation"], [frames(t) for t in range(1, 6)])
        np.testing.assert_array_equal(batch["next_observation"], [frames(t) for t in range(2, 7)])

    def test_start_columns(self, make_table: MakeTable) -> None:
        """Recurrent state comes from the step where the item starts."""
        spec = plain_spec(core=relive.ArraySpec((2, 3), "float32", kind="start"))
        table = make_table(spec, 100, transitions(n_step=3))
        with table.writer() as writer:
            keys = [writer.append(**step(t, t + 1), core=np.full((2, 3), t)) for t in range(5)]
        assert table.gather(np.asarray(keys[:3]))["core"][:, 1, 2].tolist() == [0, 1, 2]

    def test_published(self, make_table: MakeTable) -> None:
        """When the window is written and, if asked for, the priority came."""
        table = make_table(plain_spec(), 100, prioritized(initial="given"))
        with table.writer() as writer:
            first, second = writer.append(**step(0, 1)), writer.append(**step(1, 2), priority=2.0)
            assert present(table, [first, second]) == [False, True]
            assert table.update_priorities([first], [3.0]) == 1
            assert present(table, [first, second]) == [True, True]
            early = writer.append(**step(2))
            assert table.update_priorities([early], [5.0]) == 1, "kept, and counted as applied"
            assert present(table, early) == [False]
            later = writer.append(**step(3), priority=1.0)
            assert present(table, [early, later]) == [True, False]
        draw = table.draw(64)
        expected = {int(first): 3 / 10, int(second): 2 / 10, int(early): 5 / 10}
        for key, probability in zip(draw.item_keys, draw.probabilities, strict=True):
            assert probability == pytest.approx(expected[int(key)])

    def test_published_without_state(self, make_table: MakeTable) -> None:
        """Blobs alone are a table: a column is all it needs."""
        table = make_table(relive.StepSpec({"blob": relive.ArraySpec((16,), "uint8")}), 100)
        with table.writer() as writer:
            keys = [writer.append(blob=np.full(16, t, np.uint8)) for t in range(5)]
            writer.append(blob=np.full(16, 9, np.uint8), terminated=True)
        assert table.gather(np.asarray(keys))["blob"][:, 3].tolist() == [0, 1, 2, 3, 4]
        assert len(table) == 6

    def test_keys(self, make_table: MakeTable) -> None:
        """int64, opaque, never reused; given before publication."""
        table = make_table(plain_spec(), 50)
        seen: set[int] = set()
        with table.writer(num_lanes=2) as writer:
            waiting = writer.append(observation=np.zeros((2, 2)), action=[0, 1], reward=np.zeros(2))
            assert waiting.dtype == np.int64 and waiting.shape == (2,) and present(table, waiting) == [False, False]
            seen.update(waiting.tolist())
            for _ in range(300):
                keys = writer.append(observation=np.zeros((2, 2)), action=[0, 1], reward=np.zeros(2))
                assert (keys >= 0).all() and not seen & set(keys.tolist())
                seen.update(keys.tolist())
        assert sum(present(table, sorted(seen))) == len(table) <= 50

    def test_keys_of_a_single_lane_are_scalars(self, table: relive.Table) -> None:
        with table.writer() as writer:
            key = writer.append(**step(0, 1))
            assert np.ndim(key) == 0 and isinstance(key, (int, np.int64))
            assert writer.extend(observation=np.ones((1, 2)), action=[1], reward=[0.0]).shape == (1,)

    def test_keys_of_forgotten_steps_never_answer_for_new_ones(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 64)
        with table.writer() as writer:
            old = write_steps(writer, 0, 64)
            write_steps(writer, 64, 500)
            batch = table.gather(old)
            assert not batch.present.any() and batch["action"].shape == (64,)
            assert table.update_priorities(old, np.ones(64)) == 0 if _has_priorities(table) else True

    def test_version(self, table: relive.Table) -> None:
        """Rows carry the version they were acted with; staleness is what the learner has come on since."""
        with table.writer() as writer:
            old = writer.append(**step(0, 1))
            table.set_policy_version(5)
            new = writer.append(**step(1, 2))
            table.set_policy_version(7)
        batch = table.gather(np.asarray([old, new]), columns=["policy_version", "staleness"])
        assert batch["policy_version"].tolist() == [0, 5] and batch["staleness"].tolist() == [7, 2]

    def test_version_of_a_writer(self, table: relive.Table) -> None:
        """An actor that acts with older parameters stamps its rows itself."""
        table.set_policy_version(9)
        with table.writer() as writer:
            writer.set_policy_version(4)
            own = writer.append(**step(0, 1))
            writer.set_policy_version(None)
            tables = writer.append(**step(1, 2))
        batch = table.gather(np.asarray([own, tables]), columns=["policy_version", "staleness"])
        assert batch["policy_version"].tolist() == [4, 9] and batch["staleness"].tolist() == [5, 0]

    def test_structure(self, make_table: MakeTable) -> None:
        """Nesting is kept; "a/b" addresses it too."""
        spec = relive.StepSpec(
            {
                "observation": {
                    "pos": relive.ArraySpec((2,), "float32", kind="state"),
                    "eye": {"left": relive.ArraySpec((300,), "uint8", kind="state")},
                },
                "action": relive.ArraySpec((), "int64"),
            }
        )
        table = make_table(spec, 100)

        def observe(t: int) -> dict[str, object]:
            return {"pos": state(t), "eye": {"left": np.full(300, t, np.uint8)}}

        with table.writer() as writer:
            keys = [writer.append(observation=observe(t), action=t, next_observation=observe(t + 1)) for t in range(3)]
        batch = table.gather(np.asarray(keys))
        assert batch["observation"]["pos"][:, 0].tolist() == [0, 1, 2]
        np.testing.assert_array_equal(batch["observation"]["eye"]["left"], batch["observation/eye/left"])
        assert batch["next_observation"]["eye"]["left"][:, 9].tolist() == [1, 2, 3]
        assert set(batch) >= {"observation", "next_observation", "action", "discount"}
        part = table.gather(np.asarray(keys), columns=["observation/pos"])
        assert part["observation/pos"].shape == (3, 2) and "action" not in part
        assert table.gather(np.asarray(keys), columns=["observation"])["observation"]["eye"]["left"].shape == (3, 300)

    def test_several_indexes(self, make_table: MakeTable) -> None:
        """One key in every index; each has its own windows, sampler and limiter."""
        index = {
            "short": transitions(n_step=1),
            "long": prioritized(n_step=4, limiter=relive.MinSize(6)),
        }
        table = make_table(plain_spec(), 100, index)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 8)
            assert present(table, keys, "short") == [True] * 8
            assert present(table, keys, "long") == [True] * 5 + [False] * 3
            assert is_empty(table, "long") and not is_empty(table, "short")
            assert table.gather(keys[:1], index="long")["reward"].tolist() == [0 + 1 + 2 + 3]
            assert table.gather(keys[:1], index="short")["reward"].tolist() == [0]
            assert table.gather(keys[:1])["reward"].tolist() == [0], "the first is meant where none is named"
            write_steps(writer, 8, 1)
        assert not is_empty(table, "long")
        assert table.update_priorities(keys[:2], [0.0, 0.0], index="long") == 2
        assert not set(keys[:2].tolist()) & set(table.draw(200, index="long").item_keys.tolist())
        assert set(keys[:2].tolist()) <= set(table.draw(500, index="short").item_keys.tolist())
        with pytest.raises((errors.ReliveError, KeyError)):
            table.draw(1, index="nobody")

    def test_a_writer_waits_for_all_limiters(self, make_table: MakeTable) -> None:
        index = {
            "free": transitions(),
            "bound": relive.Index(limiter=relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0)),
        }
        table = make_table(plain_spec(), 100, index, max_lanes=4)
        with table.writer() as writer:
            write_steps(writer, 0, 20)
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(20, 21), timeout_s=0.0)
            table.draw(50, index="free")
            with pytest.raises(errors.DeadlineExceeded):
                writer.append(**step(20, 21), timeout_s=0.0)
            table.draw(5, index="bound")
            write_steps(writer, 20, 5)


def _has_priorities(table: relive.Table) -> bool:
    try:
        table.update_priorities(np.empty(0, np.int64), np.empty(0))
    except errors.NoPriorities:
        return False
    return True
