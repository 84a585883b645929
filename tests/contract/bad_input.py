"""Bad input: a structured error each, and the table as it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, Unchanged, plain_spec, prioritized, state, step, write_steps
from relive import errors

NAN, INF = float("nan"), float("inf")


class BadInputSuite(Suite):
    @pytest.fixture(scope="class")
    @classmethod
    def table_of_class(cls, make_table_of_class: MakeTable) -> relive.Table:
        return make_table_of_class(plain_spec(), 200, prioritized(), max_lanes=16)

    @pytest.fixture
    def filled(self, table_of_class: relive.Table) -> Iterator[tuple[relive.Table, Any, np.ndarray]]:
        """A prioritized table with ten items, its open writer (one lane in mid-episode) and the keys.

        One table serves the class: a test leaves it as it was, and the next test fills it again.
        """
        table_of_class.clear()
        with table_of_class.writer() as writer:
            yield table_of_class, writer, write_steps(writer, 0, 10)

    @pytest.mark.parametrize(
        "change, error, fields",
        [
            ({"observation": np.zeros(3)}, errors.ShapeMismatch, {"column": "observation"}),
            ({"observation": np.zeros((1, 2))}, errors.ShapeMismatch, {"column": "observation"}),
            ({"observation": 1.0}, errors.ShapeMismatch, {"column": "observation"}),
            ({"action": np.zeros(1, int)}, errors.ShapeMismatch, {"column": "action"}),
            ({"next_observation": np.zeros(5)}, errors.ShapeMismatch, {"column": "next_observation"}),
            ({"terminated": np.zeros(2, bool)}, errors.ShapeMismatch, {"column": "terminated"}),
            ({"action": 1.5}, errors.DtypeMismatch, {"column": "action"}),
            ({"reward": "much"}, errors.DtypeMismatch, {"column": "reward"}),
            ({"observation": np.zeros(2, complex)}, errors.DtypeMismatch, {"column": "observation"}),
            ({"observation": [None, 1.0]}, errors.ReliveError, {}),
            ({"discount": "x"}, errors.DtypeMismatch, {"column": "discount"}),
            ({"terminated": 0.5}, errors.DtypeMismatch, {"column": "terminated"}),
            ({"observation": np.ma.array(np.zeros(2, np.float32), mask=[0, 1])}, errors.DtypeMismatch, {}),
            ({"observation": [1.0, np.ma.masked]}, errors.DtypeMismatch, {"column": "observation"}),
            ({"reward": np.ma.masked}, errors.DtypeMismatch, {"column": "reward"}),
            ({"terminated": np.ma.array(False, mask=True)}, errors.DtypeMismatch, {"column": "terminated"}),
            ({"colour": 1}, errors.UnknownColumn, {"column": "colour"}),
            ({"next_action": 1}, errors.UnknownColumn, {"column": "next_action"}),
            ({"observation": {"pos": np.zeros(2)}}, errors.ReliveError, {}),
            ({"observation": np.full(2, 77.0)}, errors.SeamMismatch, {"column": "observation"}),
            ({"priority": NAN}, errors.InvalidPriority, {}),
            ({"priority": -1.0}, errors.InvalidPriority, {}),
            ({"priority": INF}, errors.InvalidPriority, {}),
            ({"priority": 1e39}, errors.InvalidPriority, {}),
        ],
    )
    def test_append(self, filled: Any, change: dict[str, Any], error: type[Exception], fields: dict[str, Any]) -> None:
        table, writer, keys = filled
        with Unchanged(table, keys, error, **fields):
            writer.append(**step(10, 11) | change)
        writer.append(**step(10, 11))

    @pytest.mark.parametrize("missing", ["observation", "action", "reward"])
    def test_append_without_a_column(self, filled: Any, missing: str) -> None:
        table, writer, keys = filled
        with Unchanged(table, keys, errors.MissingColumn, column=missing):
            writer.append(**{name: value for name, value in step(10, 11).items() if name != missing})

    @pytest.mark.parametrize(
        "change, error",
        [
            ({"observation": np.zeros((3, 2))}, errors.ShapeMismatch),
            ({"action": np.zeros(4, int)}, errors.ShapeMismatch),
            ({"reward": np.zeros((5, 1))}, errors.ShapeMismatch),
            ({"action": np.zeros(5)}, errors.DtypeMismatch),
            ({"action": np.ma.array(np.zeros(5, np.int64), mask=[0, 0, 1, 0, 0])}, errors.DtypeMismatch),
            ({"action": [np.ma.array(1, mask=k == 2) for k in range(5)]}, errors.DtypeMismatch),
            ({"truncated": [True] + [False] * 4}, errors.MissingNext),
            ({"priority": [1.0, 1.0, NAN, 1.0, 1.0]}, errors.InvalidPriority),
            ({"terminated": np.zeros(4, bool)}, errors.ShapeMismatch),
        ],
    )
    def test_extend(self, filled: Any, change: dict[str, Any], error: type[Exception]) -> None:
        table, writer, keys = filled
        rows = {
            "observation": np.arange(10, 15, dtype=np.float32).repeat(2).reshape(5, 2),
            "action": np.zeros(5, np.int64),
            "reward": np.zeros(5),
        }
        with Unchanged(table, keys, error):
            writer.extend(**rows | change)
        assert writer.extend(**rows).shape == (5,)

    def test_extend_whose_states_contradict_its_next_states(self, filled: Any) -> None:
        table, writer, keys = filled
        states = np.arange(10, 15, dtype=np.float32).repeat(2).reshape(5, 2)
        nexts = states + 1
        nexts[2] = 99
        with Unchanged(table, keys, errors.SeamMismatch):
            writer.extend(observation=states, next_observation=nexts, action=np.zeros(5, int), reward=np.zeros(5))

    def test_extend_of_nothing(self, filled: Any) -> None:
        table, writer, keys = filled
        rows = {"observation": np.zeros((0, 2)), "action": np.zeros(0, int), "reward": np.zeros(0)}
        assert writer.extend(**rows).shape == (0,)
        assert len(table) == 10

    @pytest.mark.parametrize("value", [NAN, INF, -INF, -1e-9, 1e39])
    def test_priorities(self, filled: Any, value: float) -> None:
        """Taken as given: no abs, no epsilon; one bad value refuses the whole call."""
        table, _, keys = filled
        before = dict(zip(*draw_probabilities(table), strict=True))
        with Unchanged(table, keys, errors.InvalidPriority, position=3):
            table.update_priorities(keys, [9.0, 9.0, 9.0, value, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0])
        assert dict(zip(*draw_probabilities(table), strict=True)) == before

    def test_masked_arrays(self, filled: Any) -> None:
        """A hidden value is refused. An array whose mask hides none is an array."""
        table, writer, keys = filled
        hides = np.ma.array(np.ones(10, np.float32), mask=[1] + 9 * [0])
        with Unchanged(table, keys, errors.DtypeMismatch, column="priorities"):
            table.update_priorities(keys, hides)
        with Unchanged(table, keys, errors.DtypeMismatch, column="item_keys"):
            table.update_priorities(np.ma.array(keys, mask=[1] + 9 * [0]), np.ones(10))
        assert table.update_priorities(np.ma.array(keys), np.ma.array(np.ones(10, np.float32))) == 10
        writer.append(**{name: np.ma.array(value) for name, value in step(10, 11).items()})

    def test_priorities_of_another_length(self, filled: Any) -> None:
        table, _, keys = filled
        with Unchanged(table, keys, errors.ReliveError):
            table.update_priorities(keys, np.ones(9))
        with Unchanged(table, keys, errors.ReliveError):
            table.update_priorities(keys, np.ones((10, 1)))
        with Unchanged(table, keys, errors.ShapeMismatch, column="item_keys", expected="(num_items,)", got=(2, 5)):
            table.update_priorities(keys.reshape(2, 5), np.ones((2, 5)))

    def test_priorities_where_there_are_none(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
            with Unchanged(table, keys, errors.NoPriorities):
                table.update_priorities(keys, np.ones(3))

    def test_foreign_keys(self, filled: Any) -> None:
        """A key that this table cannot have given: of another shard, or of a slot it does not have."""
        table, _, keys = filled
        for position, key in ((2, int(keys[0]) | 1 << 62), (0, -5), (1, int(keys[0]) ^ 77 << 51)):
            foreign = keys.copy()
            foreign[position] = key
            with Unchanged(table, keys, errors.ForeignKey, position=position, key=key):
                table.gather(foreign)
            with Unchanged(table, keys, errors.ForeignKey, position=position, key=key):
                table.update_priorities(foreign, np.full(10, 5.0))
            with Unchanged(table, keys, errors.ForeignKey, position=position, key=key):
                table.delete(foreign)

    @pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((2, 2), np.int64), "keys", [None]])
    def test_keys_that_are_no_keys(self, filled: Any, bad: Any) -> None:
        table, _, keys = filled
        for call in (table.gather, table.delete):
            with pytest.raises((errors.ReliveError, TypeError, ValueError)):
                call(bad)
        assert len(table) == 10

    @pytest.mark.parametrize("count", [0, -1, 1.5])
    def test_batch_sizes(self, filled: Any, count: Any) -> None:
        table, _, _ = filled
        for call in (table.sample, table.draw):
            with pytest.raises((errors.ReliveError, TypeError, ValueError)):
                call(count, timeout_s=0.0)

    def test_end_episode(self, filled: Any) -> None:
        table, writer, keys = filled
        waiting = writer.append(**step(10))
        with Unchanged(table, keys, errors.MissingNext):
            writer.end_episode(truncated=True)
        with Unchanged(table, keys, errors.ShapeMismatch):
            writer.end_episode(truncated=True, next_observation=np.zeros(3))
        with Unchanged(table, keys, errors.UnknownColumn):
            writer.end_episode(truncated=True, next_observation=state(11), reward=1.0)
        with Unchanged(table, keys, errors.ReliveError):
            writer.end_episode(truncated=False, next_observation=state(11))
        writer.end_episode(truncated=True, next_observation=state(11))
        assert table.gather(np.asarray([waiting])).present.all()

    def test_end_episode_of_a_published_step(self, filled: Any) -> None:
        """Its next state was given and it can be sampled: it cannot become an end afterwards."""
        table, writer, keys = filled
        with Unchanged(table, keys, errors.AlreadyPublished):
            writer.end_episode(terminated=True)

    def test_out_buffers(self, filled: Any) -> None:
        table, _, keys = filled
        for buffer in (np.empty(9, np.float32), np.empty(10, np.float64), np.empty(20, np.float32)[::2]):
            with Unchanged(table, keys, errors.ReliveError):
                table.gather(keys, columns=["reward"], out={"reward": buffer})

    def test_too_many_lanes(self, filled: Any) -> None:
        table, _, keys = filled
        with Unchanged(table, keys, errors.TooManyLanes, asked=16, free=15):
            table.writer(num_lanes=16)
        with pytest.raises((errors.ReliveError, ValueError)):
            table.writer(num_lanes=0)

    def test_arrays_for_another_number_of_lanes(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100)
        rows = {"observation": np.zeros((3, 2)), "action": np.zeros(3, int), "reward": np.zeros(3)}
        with table.writer(num_lanes=3) as writer:
            keys = writer.append(**rows, next_observation=np.zeros((3, 2)))
            with Unchanged(table, keys, errors.ShapeMismatch, column="reward"):
                writer.append(**rows | {"reward": np.zeros(2)})
            with Unchanged(table, keys, errors.ShapeMismatch):
                writer.append(**step(0))
            with Unchanged(table, keys, errors.LaneError):
                writer.append(**rows, lanes=[0, 1, 3])
            with Unchanged(table, keys, errors.SeamMismatch, lane=1):
                seam = rows | {"observation": np.array([[0, 0], [4, 4], [0, 0]])}
                writer.append(**seam)

    def test_wrong_names(self, filled: Any) -> None:
        """A name of another library is answered with relive's name. The error stays the one that Python raises."""
        table, writer, keys = filled
        with Unchanged(table, keys, errors.UnknownArgument, instead="num_items="):
            table.sample(batch_size=4)
        with Unchanged(table, keys, errors.UnknownArgument, instead="batch.weights(beta=...)"):
            table.sample(4, beta=0.4)
        with Unchanged(table, keys, errors.UnknownArgument, instead="item_keys="):
            table.update_priorities(indices=keys, priorities=np.ones(10))
        with Unchanged(table, keys, errors.UnknownArgument, instead="num_lanes="):
            table.writer(num_envs=2)
        with Unchanged(table, keys, errors.UnknownAttribute, instead="table.writer().append(...)"):
            table.add(**step(10, 11))
        with Unchanged(table, keys, errors.UnknownAttribute, instead="writer.append(...)"):
            writer.add(**step(10, 11))
        with Unchanged(table, keys, errors.UnknownAttribute, instead="batch['observation']"):
            _ = table.gather(keys).obs
        with Unchanged(table, keys, errors.UnknownColumn, instead="next_observation"):
            writer.append(**step(10), next_obs=state(11))
        with Unchanged(table, keys, errors.UnnamedColumns, num_values=3):
            writer.append(state(10), 10, 10.0)
        writer.append(**step(10, 11))


def draw_probabilities(table: relive.Table) -> tuple[list[int], list[float]]:
    draw = table.draw(500)
    return draw.item_keys.tolist(), np.asarray(draw.probabilities).tolist()
