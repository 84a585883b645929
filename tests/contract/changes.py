"""Rows of the table of meanings that speak of forgetting, of statistics and of the table as a thing."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, contents, is_empty, plain_spec, present, step, transitions, write_steps
from relive import errors


def first_of(table: relive.Table) -> Any:
    with table.batches(2, timeout_s=5.0) as batches:
        return next(batches)


def stateless_spec() -> relive.StepSpec:
    return relive.StepSpec({"action": relive.ArraySpec((), "int64"), "reward": relive.ArraySpec((), "float32")})


def write_episode(writer: Any, number: int, has_state: bool) -> tuple[np.ndarray, list[dict[str, Any] | None]]:
    """Ten steps that terminate, are truncated, or are cut short by the writer's close; and the items they must be.

    A cut makes the last state a mere bootstrap state where no other is given: that row is no step.
    """
    end = ("terminated", "truncated", None)[number % 3]
    values = np.arange(100 * number, 100 * number + 11, dtype=np.float32)
    states = values.repeat(2).reshape(11, 2)
    cells = {"action": values[:10].astype(np.int64), "reward": values[:10]}
    if has_state:
        cells["observation"] = states if end == "truncated" else states[:10]
    keys = writer.extend(**cells, **({} if end is None else {end: True}))
    length = 9 if has_state and end is None else 10
    items: list[dict[str, Any] | None] = [None] * 10
    for t in range(length):
        after = min(t + 3, length)
        items[t] = {
            "writer": number, "action": 100 * number + t, "reward": float(values[t:after].sum()),
            "num_steps": after - t, "episode_step": t, "terminated": after == length and end == "terminated",
            "truncated": after == length and end != "terminated",
        }  # fmt: skip
        if has_state:
            last = np.zeros(2) if after == length and end == "terminated" else states[after]
            items[t] |= {
                "observation": states[[max(t - 1, 0), t]].tolist(),
                "next_observation": [states[after - 1].tolist(), last.tolist()],
            }
    return keys, items


class ChangesSuite(Suite):
    def test_eviction_order(self, make_table: MakeTable) -> None:
        """One lane: first in, first out, and nothing goes before it must."""
        table = make_table(plain_spec(), 100, max_lanes=1)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 1000)
            mask = present(table, keys)
        assert mask == sorted(mask), "an older step is there and a newer one is not"
        assert sum(mask) == len(table) == 100

    def test_eviction_order_over_lanes(self, make_table: MakeTable) -> None:
        """Several lanes: within a page a lane of exact order."""
        capacity, num_lanes = 2000, 4
        table = make_table(plain_spec(), capacity, max_lanes=num_lanes)
        keys = []
        with table.writer(num_lanes=num_lanes) as writer:
            for t in range(1500):
                rows = np.full((num_lanes, 2), t, np.float32)
                keys.append(writer.append(observation=rows, action=[t] * 4, reward=[t] * 4, next_observation=rows + 1))
            mask = np.array(present(table, np.concatenate(keys)))
        assert mask.sum() == len(table) <= capacity
        page = capacity // 8 // num_lanes  # the longest page this table may have
        assert mask[-(capacity - page * num_lanes) :].all()
        assert not mask[: -(capacity + page * num_lanes)].any()

    @pytest.mark.parametrize("has_state", [True, False])
    def test_a_writer_for_each_episode(self, make_table: MakeTable, has_state: bool) -> None:
        """Its lane goes on in the page of the one before it: capacity is kept, and nothing joins two of them."""
        capacity, num_writers, n_step = 2000, 330, 3
        stack = {"observation": 2} if has_state else {}
        table = make_table(
            plain_spec() if has_state else stateless_spec(), capacity, transitions(n_step, stack=stack), max_lanes=2
        )
        written = []
        for number in range(num_writers):
            with table.writer() as writer:
                written.append(write_episode(writer, number, has_state))
        assert 0.97 * capacity <= len(table) <= capacity
        keys = np.concatenate([keys for keys, _ in written])
        expected = [item for _, items in written for item in items]
        names = ["action", "reward", "num_steps", "episode_step", "terminated", "truncated", "lane"]
        batch = table.gather(keys, columns=names + ["observation", "next_observation"] * has_state)
        is_there = np.asarray(batch.present)
        steps = [position for position, item in enumerate(expected) if item is not None]
        assert is_there[steps[-int(0.97 * capacity) :]].all()
        assert is_there.sum() >= len(table) - 1, "the oldest step's stack reaches a row that is gone"
        lanes: dict[int, int] = {}
        for position in np.flatnonzero(is_there):
            item = dict(expected[position] or {"action": "a row that is no step"})
            assert lanes.setdefault(item.pop("writer"), int(batch["lane"][position])) == batch["lane"][position]
            assert {name: np.asarray(batch[name])[position].tolist() for name in item} == item
        assert len(set(lanes.values())) == len(lanes) > 0.97 * capacity // 10
        table.check()

    def test_removal(self, make_table: MakeTable) -> None:
        """Logical at once."""
        table = make_table(plain_spec(), 200)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 60)
            assert table.delete(keys[10:20]) == 10
            assert table.delete(keys[5:20]) == 5, "gone is gone"
            expected = [i < 5 or i >= 20 for i in range(60)]
            assert present(table, keys) == expected
            drawn = set(table.draw(2000).item_keys.tolist())
            assert drawn == set(keys[np.array(expected)].tolist())
            table.check()
            later = write_steps(writer, 60, 1000)
            assert sum(present(table, later)) == len(table)
        table.check()

    def test_removal_leaves_neighbours_windows_whole(self, make_table: MakeTable) -> None:
        """The rows of a deleted item still serve the windows that reach into them."""
        table = make_table(plain_spec(), 300, transitions(n_step=3, stack={"observation": 3}))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 100)
            table.delete(keys[30:60])
            batch = table.gather(np.concatenate([keys[28:30], keys[60:62]]))
        assert batch.present.all()
        assert batch["reward"].tolist() == [28 + 29 + 30, 29 + 30 + 31, 60 + 61 + 62, 61 + 62 + 63]
        assert batch["observation"][2:, :, 0].tolist() == [[58, 59, 60], [59, 60, 61]]

    def test_clear(self, table: relive.Table) -> None:
        with table.writer() as writer:
            old = write_steps(writer, 0, 30)
            table.clear()
            assert len(table) == 0 and not any(present(table, old)) and is_empty(table)
            new = write_steps(writer, 30, 5)
            assert not set(new.tolist()) & set(old.tolist())
            assert contents(table, new)["action"] == [30, 31, 32, 33, 34]
        table.check()

    def test_growth(self, make_table: MakeTable) -> None:
        """Memory is taken as rows need it, far beyond what a table begins with."""
        table = make_table(plain_spec(frame=relive.ArraySpec((84, 84), "uint8")), 9000, max_lanes=2)
        began = table.stats().num_bytes
        frames = np.zeros((500, 84, 84), np.uint8)
        with table.writer() as writer:
            for chunk in range(16):
                numbers = np.arange(500) + 500 * chunk
                frames[:] = (numbers % 251)[:, None, None]
                states = np.repeat(np.append(numbers, numbers[-1] + 1)[:, None], 2, axis=1)
                keys = writer.extend(observation=states, action=numbers, reward=np.zeros(500), frame=frames)
                batch = table.gather(keys[::50])
                np.testing.assert_array_equal(batch["frame"][:, 83, 1], batch["action"] % 251)
        assert len(table) == 8000 and table.stats().num_bytes >= max(began, 8000 * 84 * 84)
        table.check()

    def test_delete_of_foreign_keys(self, table: relive.Table) -> None:
        with pytest.raises(errors.ForeignKey):
            table.delete([-1])

    def test_stats_speak_of_what_happened(self, table: relive.Table) -> None:
        before = table.stats()
        with table.writer() as writer:
            write_steps(writer, 0, 10)
        table.sample(4)
        assert table.stats() != before and table.stats()

    def test_check_passes_at_every_moment(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 60, transitions(n_step=2, stack={"observation": 2}))
        with table.writer() as writer:
            for t in range(300):
                writer.append(**step(t, t + 1, truncated=t % 17 == 16))
                if t % 10 == 0:
                    table.check()

    def test_configuration_is_a_value(self, make_table: MakeTable) -> None:
        """It prints, compares, pickles."""
        index = relive.Index(relive.Transitions(n_step=3, gamma=0.9, stack={"observation": 2}), relive.Prioritized())
        assert pickle.loads(pickle.dumps(index)) == index and "n_step=3" in repr(index)
        assert index != relive.Index() and relive.Index() == relive.Index()
        spec = plain_spec()
        assert pickle.loads(pickle.dumps(spec)) == spec
        with pytest.raises(AttributeError):
            index.sampler = relive.Uniform()

    def test_a_closed_table(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 5)
        table.close()
        table.close()
        calls = (
            lambda: table.sample(2),
            lambda: table.draw(2),
            lambda: table.gather(keys),
            lambda: table.update_priorities(keys, np.ones(5)),
            lambda: table.delete(keys),
            lambda: table.clear(),
            lambda: table.writer(),
            lambda: table.check(),
            lambda: len(table),
            lambda: first_of(table),
        )
        for number, call in enumerate(calls):
            with pytest.raises(errors.TableClosed):
                call()
                pytest.fail(f"call {number} went through")
