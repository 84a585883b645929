"""Rows of the table of meanings that speak of writing."""

from __future__ import annotations

import numpy as np
import pytest

import relive
from contract.tools import (
    MakeTable,
    Suite,
    contents,
    is_empty,
    plain_spec,
    present,
    state,
    step,
    transitions,
    write_steps,
)
from relive import errors


class WritingSuite(Suite):
    def test_row_alignment(self, table: relive.Table) -> None:
        """Step cells follow the state of their row; T steps have T + 1 states, and the last is no step."""
        with table.writer() as writer:
            keys = [writer.append(**step(t)) for t in range(2)]
            keys.append(writer.append(**step(2, 3, truncated=True)))
        assert len(table) == 3
        said = contents(table, keys)
        assert said["observation"] == [[0, 0], [1, 1], [2, 2]]
        assert said["next_observation"] == [[1, 1], [2, 2], [3, 3]]
        assert said["action"] == [0, 1, 2] and said["reward"] == [0, 1, 2]
        assert said["truncated"] == [False, False, True]

    def test_row_alignment_of_extend(self, table: relive.Table) -> None:
        """T + 1 states say everything that T states and T next states say."""
        states, actions = np.arange(5, dtype=np.float32).repeat(2).reshape(5, 2), np.arange(4)
        with table.writer(num_lanes=2) as writer:
            both = writer.extend(
                observation=np.stack([states, states], axis=1), action=np.stack([actions] * 2, 1),
                reward=np.zeros((4, 2)), truncated=True,
            )  # fmt: skip
        with table.writer() as writer:
            one = writer.extend(
                observation=states[:-1], next_observation=states[1:], action=actions, reward=np.zeros(4), truncated=True
            )
        assert both.shape == (4, 2) and one.shape == (4,)
        assert contents(table, both[:, 0]) == contents(table, both[:, 1]) == contents(table, one)
        assert contents(table, one)["truncated"] == [False, False, False, True]
        assert len(table) == 12

    def test_arguments_that_differ_from_call_to_call(self, table: relive.Table) -> None:
        """Every call is checked on its own: order, further columns and faults of an earlier call do not matter."""
        with table.writer() as writer:
            keys = [writer.append(**step(t, t + 1)) for t in range(3)]
            keys.append(writer.append(**dict(reversed(step(3, 4).items()))))
            keys.append(writer.append(**step(4, 5, discount=0.25)))
            keys.append(writer.append(**step(5, 6, priority=None, timeout_s=1.0)))
            for missing in ("action", "observation", "reward"):
                with pytest.raises(errors.MissingColumn):
                    writer.append(**{name: value for name, value in step(6, 7).items() if name != missing})
            with pytest.raises(errors.UnknownColumn):
                writer.append(**step(6, 7, colour=1))
            with pytest.raises(errors.UnknownColumn):
                writer.append(**{"colour" if name == "action" else name: value for name, value in step(6, 7).items()})
            keys.append(writer.append(**{str(name): value for name, value in step(6, 7, truncated=True).items()}))
            keys.append(writer.append(**{"".join(list(name)): value for name, value in step(7, 8).items()}))
        said = contents(table, keys)
        assert said["action"] == list(range(8)) and said["reward"] == list(range(8))
        assert said["next_observation"] == [[t + 1, t + 1] for t in range(8)]
        assert said["discount"][4] == 0.25 and said["truncated"][6:] == [True, True]

    def test_what_capacity_counts(self, make_table: MakeTable) -> None:
        """Steps; tail rows do not count."""
        table = make_table(plain_spec(), 200)
        with table.writer() as writer:
            for episode in range(10):
                write_steps(writer, 100 * episode, 20, truncated=True)
            assert len(table) == 200
            write_steps(writer, 5000, 77)
            assert 100 < len(table) <= 200

    def test_smallest_capacity_is_checked_when_a_writer_opens(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 10, transitions(n_step=3, stack={"observation": 2}), max_lanes=64)
        with pytest.raises(errors.CapacityTooSmall) as caught:
            table.writer(num_lanes=3)
        assert (caught.value.capacity, caught.value.lanes) == (10, 3) and caught.value.needed >= 12
        with table.writer(num_lanes=2), pytest.raises(errors.CapacityTooSmall):
            table.writer()
        with table.writer() as writer:  # lanes that are closed do not count
            write_steps(writer, 0, 5)
        assert make_table(plain_spec(), 1).writer() is not None

    def test_smallest_capacity_needs_one_more_where_next_is_not_given(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 3, transitions(n_step=2))
        with table.writer() as writer:
            keys = [writer.append(**step(t)) for t in range(20)]
            assert present(table, keys[-3:]) == [True, False, False]

    def test_capacity_in_bytes(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), "1MiB")
        with table.writer() as writer:
            write_steps(writer, 0, 100)
        assert len(table) == 100

    def test_casting(self, make_table: MakeTable) -> None:
        """Python scalars and same_kind casts pass; what loses is refused."""
        spec = relive.StepSpec(
            {
                "f": relive.ArraySpec((), "float32"),
                "i": relive.ArraySpec((), "int32"),
                "u": relive.ArraySpec((2,), "uint8"),
                "b": relive.ArraySpec((), "bool"),
            }
        )
        table = make_table(spec, 100)
        with table.writer() as writer:
            right = {"f": 1.5, "i": 7, "u": np.array([1, 2], np.uint8), "b": True}
            accepted = [
                {"f": np.float64(1.5)}, {"f": np.array(1.5, np.float16)}, {"f": 1}, {"f": np.int64(1)},
                {"i": np.int8(-7)}, {"i": np.array(7, np.int16)}, {"u": [1, 2]}, {"b": np.bool_(False)}, {"b": False},
            ]  # fmt: skip
            for change in accepted:
                writer.append(**right | change, terminated=True)
            assert len(table) == len(accepted)
            refused = [
                {"i": 1.5}, {"i": np.float32(1.0)}, {"u": np.array([0.0, 1.0])}, {"f": 1j}, {"f": np.complex64(1)},
                {"i": 2**40}, {"i": np.int64(2**40)}, {"u": np.array([1, 300])}, {"u": [1, -1]}, {"b": 1.0},
                {"f": "1.5"},
            ]  # fmt: skip
            for change in refused:
                with pytest.raises(errors.DtypeMismatch) as caught:
                    writer.append(**right | change)
                assert caught.value.column == next(iter(change)), change
            assert len(table) == len(accepted)

    def test_next_state(self, table: relive.Table) -> None:
        with table.writer() as writer:
            given = writer.append(**step(0, 1))
            assert present(table, given) == [True]
            with pytest.raises(errors.SeamMismatch) as caught:
                writer.append(**step(5))
            assert caught.value.column == "observation"
            assert len(table) == 1
            waiting = writer.append(**step(1))
            assert present(table, waiting) == [False]
            second = writer.append(**step(2))
            assert present(table, [waiting, second]) == [True, False]
            with pytest.raises(errors.MissingNext):
                writer.append(**step(3, truncated=True))
            last = writer.append(**step(3, terminated=True))
            said = contents(table, [waiting, second, last])
            assert said["next_observation"] == [[2, 2], [3, 3], [0, 0]]
            assert said["discount"] == [1, 1, 0] and said["terminated"] == [False, False, True]

    def test_next_state_after_an_end_starts_anew(self, table: relive.Table) -> None:
        with table.writer() as writer:
            keys = [writer.append(**step(0, 1, truncated=True)), writer.append(**step(50, 51))]
        assert contents(table, keys)["next_observation"] == [[1, 1], [51, 51]]

    def test_end_episode(self, table: relive.Table) -> None:
        with table.writer(num_lanes=3) as writer:
            rows = {"observation": np.zeros((3, 2)), "action": np.arange(3), "reward": np.ones(3)}
            keys = writer.append(**rows)
            assert present(table, keys) == [False] * 3
            writer.end_episode(
                lanes=np.array([True, False, False]), truncated=True, next_observation=np.full((1, 2), 9)
            )
            writer.end_episode(lanes=[2], terminated=True)
            said = contents(table, keys)
            assert said["present"] == [True, False, True]
            assert said["next_observation"] == [[9, 9], [0, 0]] and said["discount"] == [1, 0]
            assert said["truncated"] == [True, False] and said["terminated"] == [False, True]
            with pytest.raises(errors.MissingNext):
                writer.end_episode(lanes=[1], truncated=True)
            later = writer.append(**rows | {"next_observation": np.ones((3, 2))})
        batch = table.gather(np.concatenate([later, keys[1:2]]), columns=["episode_step"])
        assert batch["episode_step"].tolist() == [0, 1, 0, 0]

    def test_end_episode_after_a_given_next(self, table: relive.Table) -> None:
        """Truncated where the state was already given: said again it must agree, and need not be said."""
        with table.writer() as writer:
            first = writer.append(**step(0, 1))
            with pytest.raises(errors.SeamMismatch):
                writer.end_episode(truncated=True, next_observation=state(7))
            with pytest.raises(errors.AlreadyPublished):
                writer.end_episode(terminated=True)
            writer.end_episode(truncated=True, next_observation=state(1))
            second = writer.append(**step(5, 6))
            writer.end_episode()
            third = writer.append(**step(8, 9))
        said = contents(table, [first, second, third])
        assert said["next_observation"] == [[1, 1], [6, 6], [9, 9]] and said["discount"] == [1, 1, 1]
        assert said["truncated"][:2] == [True, True]
        batch = table.gather(np.asarray([first, second, third]), columns=["first"])
        assert batch["first"].tolist() == [True] * 3

    def test_lanes(self, table: relive.Table) -> None:
        """A mask or ids; arrays by their leading size; lanes not named do not move."""
        with table.writer(num_lanes=4) as writer:
            size = {"reward": np.zeros(2), "action": np.arange(2), "observation": np.zeros((2, 2))}
            masked = writer.append(**size, lanes=np.array([False, True, False, True]), terminated=True)
            ids = writer.append(**size, lanes=[3, 1], terminated=True)
            full = {"reward": np.arange(4.0), "action": np.arange(4), "observation": np.arange(8.0).reshape(4, 2)}
            chosen = writer.append(**full, lanes=[2, 0], terminated=True)
            assert masked.shape == ids.shape == chosen.shape == (2,)
            batch = table.gather(
                np.concatenate([masked, ids, chosen]), columns=["action", "reward", "lane", "episode_step"]
            )
            lane = batch["lane"]
            assert lane[0] == lane[3] != lane[1] == lane[2] and len(set(lane.tolist())) == 4
            assert batch["action"].tolist() == [0, 1, 0, 1, 2, 0]
            assert batch["episode_step"].tolist() == [0] * 6
            assert len(table) == 6

    def test_lanes_that_are_none(self, table: relive.Table) -> None:
        with table.writer(num_lanes=2) as writer:
            size = {"reward": np.zeros(2), "action": np.arange(2), "observation": np.zeros((2, 2))}
            one = {"reward": np.zeros(1), "action": np.arange(1), "observation": np.zeros((1, 2))}
            for lanes in ([0, 2], [-1, 0], [1, 1], np.array([True]), np.array([True, True, False])):
                with pytest.raises(errors.ReliveError):
                    writer.append(**size, lanes=lanes)
            with pytest.raises(errors.LaneError):
                writer.append(**one, lanes=[2])
            nobody = writer.append(**size, lanes=np.zeros(2, bool))
            assert nobody.shape == (0,)
            assert len(table) == 0

    def test_terminated_for_every_lane(self, table: relive.Table) -> None:
        """Scalar ends speak of every lane in append and of the last row in extend."""
        with table.writer(num_lanes=2) as writer:
            keys = writer.append(
                observation=np.zeros((2, 2)), action=np.zeros(2, int), reward=np.zeros(2), terminated=True
            )
            assert contents(table, keys)["terminated"] == [True, True]
            rows = {"observation": np.zeros((3, 2, 2)), "action": np.zeros((3, 2), int), "reward": np.zeros((3, 2))}
            keys = writer.extend(**rows, terminated=True)
            assert contents(table, keys.ravel())["terminated"] == [False] * 4 + [True] * 2

    def test_an_end_that_is_none_was_not_given(self, table: relive.Table) -> None:
        """None stands for the default, in append and extend, before and after rows that name the end."""
        with table.writer() as writer:
            keys = [writer.append(**step(t), **ends) for t, ends in enumerate(({}, {"terminated": None}) * 2)]
            keys.append(writer.append(**step(4), truncated=None, discount=None))
            keys.append(writer.append(**step(5), terminated=False, discount=0.5))
            keys.append(writer.append(**step(6), terminated=None, discount=None))
            more = {name: np.asarray([value] * 2) for name, value in step(7).items()}
            keys += list(writer.extend(**more, terminated=None, truncated=None, discount=None))
            keys.append(writer.append(**step(8, 9), truncated=True))
        said = contents(table, keys)
        assert said["discount"] == [1.0] * 5 + [0.5] + [1.0] * 4
        assert said["terminated"] == [False] * 10 and said["truncated"] == [False] * 9 + [True]

    def test_discount_in(self, table: relive.Table) -> None:
        with table.writer() as writer:
            keys = [
                writer.append(**step(0, 1)),
                writer.append(**step(1, 2, discount=0.25)),
                writer.append(**step(2, 3, discount=0.0)),  # a life was lost, the episode goes on
                writer.append(**step(3, 4, terminated=True)),
            ]
        said = contents(table, keys)
        assert said["discount"] == [1, 0.25, 0, 0]
        assert said["terminated"] == [False, False, False, True]
        assert table.gather(np.asarray(keys), columns=["episode_step"])["episode_step"].tolist() == [0, 1, 2, 3]

    def test_lane_cut(self, make_table: MakeTable) -> None:
        """The last row becomes a bootstrap state; earlier rows publish, shorter, as truncated."""
        table = make_table(plain_spec(), 1000, transitions(n_step=3))
        writer = table.writer()
        keys = [writer.append(**step(t)) for t in range(5)]
        assert present(table, keys) == [True, True, False, False, False]
        writer.close()
        said = contents(table, keys)
        assert said["present"] == [True] * 4 + [False] and len(table) == 4
        assert said["next_observation"] == [[3, 3], [4, 4], [4, 4], [4, 4]]
        assert said["reward"] == [3, 6, 5, 3] and said["discount"] == [1] * 4
        assert said["truncated"][2:] == [True, True] and said["terminated"] == [False] * 4
        with table.writer() as writer:
            write_steps(writer, 9, 1)
        assert contents(table, keys) == said

    def test_lane_cut_keeps_a_step_whose_next_is_given(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 1000, transitions(n_step=3))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 2)
            assert is_empty(table)
        said = contents(table, keys)
        assert said["present"] == [True, True] and said["next_observation"] == [[2, 2], [2, 2]]

    def test_a_closed_writer(self, table: relive.Table) -> None:
        writer = table.writer()
        writer.close()
        writer.close()
        for call in (
            lambda: writer.append(**step(0)),
            lambda: writer.extend(observation=[state(0)], action=[0], reward=[0.0]),
            lambda: writer.end_episode(terminated=True),
            lambda: writer.abandon(),
        ):
            with pytest.raises(errors.WriterClosed):
                call()
