"""Explicit items: what a table that holds them promises, in every world."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, is_empty, plain_spec, step, transitions, write_steps
from relive import errors

WINDOWS = {
    "past": relive.Window(4, ("observation", "reward")),
    "now": relive.Window(1, ("action",)),
    "far": relive.Window(3, stride=5),
}
SCORES = {"score": relive.ArraySpec((), "float32"), "tag": relive.ArraySpec((2,), "int16")}


def explicit(windows: Any = None, columns: Any = None, max_items: int = 50, **more: Any) -> relive.Index:
    items = relive.Explicit(windows or WINDOWS, SCORES if columns is None else columns, max_items)
    return relive.Index(items, **more)


def both(**more: Any) -> dict[str, relive.Index]:
    """Beside an index of steps."""
    return {"steps": transitions(), "items": explicit(**more)}


def own(count: int | None = None) -> dict[str, Any]:
    """Values of the items' own columns."""
    return {"score": 1.5, "tag": [1, 2]} if count is None else {"score": np.full(count, 1.5), "tag": [[1, 2]] * count}


class ExplicitSuite(Suite):
    @pytest.fixture
    def filled(self, make_table: MakeTable) -> tuple[relive.Table, Any, np.ndarray]:
        """Thirty steps of an open lane; step t holds the number t everywhere."""
        table = make_table(plain_spec(), 200, both(sampler=relive.Prioritized(1.0)), max_lanes=16)
        writer = table.writer()
        return table, writer, write_steps(writer, 0, 30)

    def test_explicit_items(self, filled: Any) -> None:
        """The rows of their windows, zeros behind them, and their own values."""
        table, _, keys = filled
        made = table.create_items(
            {"past": (keys[[9, 3]], -4), "now": keys[[9, 3]], "far": (keys[[0, 2]], [3, 0])},
            score=[0.5, 2.0],
            tag=[[1, 2], [3, 4]],
            priority=[1.0, 3.0],
        )
        assert made.dtype == np.int64 and made.shape == (2,)
        batch = table.gather(made, index="items")
        assert batch.present.all()
        assert batch["past/observation"].shape == (2, 4, 2)
        assert batch["past"]["reward"].tolist() == [[6, 7, 8, 9], [0, 1, 2, 3]]
        assert batch["now/action"].tolist() == [[9], [3]] and batch["now/mask"].tolist() == [[True], [True]]
        assert batch["far/action"].tolist() == [[0, 5, 10], [0, 0, 0]]
        assert batch["far/mask"].tolist() == [[True] * 3, [False] * 3]
        assert batch["score"].tolist() == [0.5, 2.0] and batch["tag"].tolist() == [[1, 2], [3, 4]]
        draw = table.draw(64, index="items")
        share = {int(key): p for key, p in zip(draw.item_keys, draw.probabilities, strict=True)}
        assert share == {int(made[0]): pytest.approx(0.25), int(made[1]): pytest.approx(0.75)}
        assert table.num_items("items") == 2 and table.num_items("steps") == 30

    def test_explicit_keys(self, filled: Any) -> None:
        """Above every row's, of their index alone; several items may stand on one step."""
        table, writer, keys = filled
        made = [writer.create_item({"now": keys[4]}, **own()) for _ in range(5)]
        assert len(set(made)) == 5 and min(made) > keys.max()
        assert table.gather(made, index="items").present.all()
        for index, wrong in (("steps", made), ("items", keys)):
            with pytest.raises(errors.ForeignKey):
                table.gather(wrong, index=index)

    def test_columns_of_explicit_items(self, filled: Any) -> None:
        """A window has every column of rows, by name. The name of a window alone stands for its usual columns."""
        table, writer, keys = filled
        made = table.create_items({"far": (keys[[14]], -2), "now": keys[[0]]}, **own(1))
        every = ("episode_step", "first", "terminated", "truncated", "discount", "lane", "num_steps")
        names = [f"far/{name}" for name in every]
        batch = table.gather(made, columns=[*names, "now", "tag"], index="items")
        assert list(batch.flat()) == [*names, "now/action", "now/mask", "tag"]
        assert batch["far/episode_step"].tolist() == [[9, 14, 0]] and batch["far/num_steps"].tolist() == [2]
        assert batch["far/discount"].tolist() == [[1, 1, 0]] and batch["far/first"].tolist() == [[False] * 3]
        assert batch["far/lane"][0, 0] == batch["far/lane"][0, 1] > 0
        writer.end_episode()
        last = table.gather(table.create_items({"far": (keys[[-1]], -2)}, **own(1)), columns=names, index="items")
        assert last["far/truncated"].tolist() == [[False, True, False]] and not last["far/terminated"].any()
        assert not batch["far/truncated"].any()
        for name in ("observation", "past/action", "past/next_observation", "far/loss_mask", "nothing", "score/a"):
            with pytest.raises(errors.UnknownColumn):
                table.gather(made, columns=[name], index="items")

    def test_one_window_without_a_name(self, make_table: MakeTable) -> None:
        """A table of nothing else; columns keep their names."""
        table = make_table(plain_spec(), 100, relive.Index(relive.Explicit(3, max_items=10)))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 8)
            made = table.create_items([keys[:3], keys[4:7]])
            writer.create_item((keys[7], -1))
        batch = table.gather(made)
        assert list(batch) == ["observation", "action", "reward", "mask"]
        assert batch["action"].tolist() == [[0, 1, 2], [4, 5, 6]]
        assert table.sample(9)["mask"].sum(axis=1).min() in (1, 3)

    def test_nested_columns_of_windows(self, make_table: MakeTable) -> None:
        one = relive.ArraySpec((2,), "float32")
        spec = relive.StepSpec({"seen": {"near": one, "pair": (one, one)}, "reward": relive.ArraySpec((), "float32")})
        table = make_table(spec, 100, relive.Index(relive.Explicit({"w": 2, "v": relive.Window(1, ("seen",))})))
        with table.writer() as writer:
            rows = {"seen": {"near": np.ones((4, 2)), "pair": (np.zeros((4, 2)), np.full((4, 2), 5))}}
            keys = writer.extend(**rows, reward=np.arange(4))
            made = table.create_items({"w": keys[:2], "v": keys[:2]})
        batch = table.gather(made)
        assert batch["w"]["seen"]["pair"][1].tolist() == [[[5, 5], [5, 5]]] * 2
        assert batch["v/seen/near"].shape == (2, 1, 2) and "reward" not in batch["v"]
        assert isinstance(batch["w/seen/pair"], tuple)

    def test_rows_named_one_by_one(self, filled: Any) -> None:
        table, _, keys = filled
        made = table.create_items({"past": keys[4:8][None], "far": keys[[[1, 6]]]}, **own(1))
        batch = table.gather(made, index="items")
        assert batch["past/reward"].tolist() == [[4, 5, 6, 7]] and batch["far/action"].tolist() == [[1, 6, 0]]
        for wrong in (keys[[[4, 6]]], keys[[[5, 4]]], keys[[[4, 4]]]):
            with pytest.raises(errors.RowsApart) as caught:
                table.create_items({"past": wrong}, **own(1))
            assert (caught.value.item, caught.value.window, caught.value.key) == (0, "past", wrong[0, 0])

    def test_an_item_ends_with_a_row_of_it(self, make_table: MakeTable) -> None:
        """And with max_items others after it; neither costs the steps anything."""
        table = make_table(plain_spec(), 64, both(max_items=4), max_lanes=2)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 20)
            old = writer.create_item({"now": keys[0]}, **own())
            young = [writer.create_item({"now": key}, **own()) for key in keys[10:13]]
            assert table.gather([old, *young], index="items").present.all()
            young.append(writer.create_item({"now": keys[13]}, **own()))
            assert table.gather([old, *young], index="items").present.tolist() == [False] + [True] * 4
            write_steps(writer, 20, 200)
            assert not table.gather([old, *young], index="items").present.any()
            assert is_empty(table, "items") and table.num_items("steps") > 40
            with pytest.raises(errors.RowGone) as caught:
                writer.create_item({"now": keys[5]}, **own())
            assert (caught.value.window, caught.value.key) == ("now", keys[5]) and caught.value.why
        table.check()

    def test_delete_and_update_of_explicit_items(self, filled: Any) -> None:
        """An item's key speaks of the item, a row's key of the step: its items stay."""
        table, _, keys = filled
        made = table.create_items({"now": keys[:3]}, **own(3))
        assert table.delete(made[:1]) == 1 and table.delete(made[:1]) == 0
        assert table.delete(keys[1:2]) == 1 and len(table) == 29
        assert table.gather(made, index="items").present.tolist() == [False, True, True]
        assert table.update_priorities(made, [1.0, 2.0, 0.0], index="items") == 2
        assert set(table.draw(20, index="items").item_keys.tolist()) == {int(made[1])}
        table.clear()
        assert not table.gather(made, index="items").present.any()

    def test_use_counts_of_explicit_items(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, explicit({"now": 1}, {}, max_times_sampled=2))
        with table.writer() as writer:
            made = table.create_items({"now": write_steps(writer, 0, 3)})
        drawn = np.concatenate([table.draw(2).item_keys for _ in range(3)])
        assert sorted(drawn.tolist()) == sorted([*made.tolist()] * 2)
        assert is_empty(table)

    def test_explicit_items_await_a_priority(self, make_table: MakeTable) -> None:
        sampler = relive.Prioritized(initial="given")
        table = make_table(plain_spec(), 100, explicit({"now": 1}, {}, sampler=sampler))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 3)
            waiting, ready = (int(table.create_items({"now": keys[:1]}, priority=p)[0]) for p in (None, 2.0))
        assert table.gather([waiting, ready]).present.tolist() == [False, True]
        assert table.update_priorities([waiting], [1.0]) == 1
        assert table.gather([waiting, ready]).present.tolist() == [True, True]

    def test_limiter_units_of_explicit_items(self, make_table: MakeTable) -> None:
        """Items made against items drawn; steps are not counted, and what was made before the deadline is told."""
        limiter = relive.SamplesPerInsert(1.0, min_size=5, tolerance=8.0)  # made - drawn stays in [-3, 13]
        table = make_table(plain_spec(), 100, {"items": explicit({"now": 1}, {}, limiter=limiter)}, max_lanes=2)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 60)
            with pytest.raises(errors.DeadlineExceeded) as caught:
                table.create_items({"now": keys[:20]}, timeout_s=0.0)
            first = caught.value.keys
            assert caught.value.stored == 16 and first is not None and len(first) == 16
            assert table.gather(first, columns=["now/action"])["now/action"][:, 0].tolist() == list(range(16))
            table.draw(10, timeout_s=0.0)
            with pytest.raises(errors.DeadlineExceeded) as caught:
                table.create_items({"now": keys[16:40]}, timeout_s=0.0)
            assert caught.value.stored == 7
            write_steps(writer, 60, 5)
        stats = table.stats().indexes["items"]
        assert (stats.inserted, stats.num_items, stats.sampled) == (23, 23, 10)

    def test_batches_of_explicit_items(self, filled: Any) -> None:
        table, _, keys = filled
        table.create_items({"now": keys[:4], "past": (keys[:4], 2)}, **own(4))
        with table.batches(8, prefetch=2, index="items") as batches:
            for _, batch in zip(range(4), batches, strict=False):
                assert (batch["past/reward"][:, 0] == batch["now/action"][:, 0]).all()
                assert batch["past/mask"].tolist() == [[True, True, False, False]] * 8
        assert table.stats().indexes["items"].sampled == 32

    def test_gather_explicit_items_into_given_arrays(self, filled: Any) -> None:
        table, _, keys = filled
        made = table.create_items({"now": keys[:4]}, **own(4))
        first = table.gather(made[:2], index="items")
        again = table.gather(made[2:], out=first.flat(), index="items")
        assert again["now/action"] is first["now/action"] and again["now/action"].tolist() == [[2], [3]]

    def test_windows_end_with_their_episode(self, filled: Any) -> None:
        """Where there are states; nor do they run from lane to lane."""
        table, writer, _ = filled
        end = writer.append(**step(30, 31, truncated=True))
        begin = writer.append(**step(50, 51))
        for window in ((end, 2), (begin, -2)):
            with pytest.raises(errors.RowsApart):
                writer.create_item({"past": window}, **own())
        with table.writer() as other:
            keys = write_steps(other, 0, 3)
            with pytest.raises(errors.RowsApart):
                other.create_item({"past": (keys[1], -4)}, **own())
            with pytest.raises(errors.RowGone) as caught:
                other.create_item({"past": keys[0]}, **own())
            assert "yet" in caught.value.why
            assert table.num_items("items") == 0
            writer.create_item({"past": (keys[2], -3), "now": end}, **own())  # windows may be of several lanes

    def test_patterns(self, make_table: MakeTable) -> None:
        """Items that are made as steps come; a step of an open episode may be a row before it is an item itself."""
        table = make_table(plain_spec(), 100, both(columns={"score": relive.ArraySpec((), "float32")}), max_lanes=2)
        patterns = [
            relive.Pattern({"past": 3, "now": 1}, every=2, columns={"score": "reward"}),
            relive.Pattern({"far": slice(-11, None)}, at_end=True, columns={"score": "reward"}),
        ]
        with relive.PatternWriter(table, table.writer(), patterns) as writer:
            for t in range(12):
                writer.append(**step(t))
            writer.end_episode(terminated=True)
        assert table.num_items("items") == 6
        batch = table.sample(64, index="items")
        rows = {tuple(row[mask]) for row, mask in zip(batch["past/reward"], batch["past/mask"], strict=True)}
        assert rows == {(), (0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8), (8, 9, 10)}
        ends = batch["far/mask"].any(axis=1)
        assert ends.any() and (batch["far/action"][ends] == [1, 6, 11]).all() and (batch["score"][ends] == 11).all()

    def test_no_items_at_all(self, filled: Any) -> None:
        table, _, _ = filled
        assert table.create_items({"now": []}, score=[], tag=np.empty((0, 2), int)).shape == (0,)


class BadExplicitSuite(Suite):
    """A refused call leaves the table as it was."""

    @pytest.fixture(scope="class")
    @classmethod
    def table_of_class(cls, make_table_of_class: MakeTable) -> relive.Table:
        return make_table_of_class(plain_spec(), 200, both(sampler=relive.Prioritized(1.0)), max_lanes=16)

    @pytest.fixture
    def filled(self, table_of_class: relive.Table) -> Iterator[tuple[relive.Table, Any, np.ndarray]]:
        """One table serves the class, as those of BadInputSuite."""
        table_of_class.clear()
        with table_of_class.writer() as writer:
            keys = write_steps(writer, 0, 30)
            table_of_class.create_items({"now": keys[:2]}, **own(2))
            yield table_of_class, writer, keys

    @pytest.mark.parametrize(
        "change, error, fields",
        [
            ({"windows": {"other": 0}}, errors.InvalidConfig, {"got": "other"}),
            ({"windows": {}}, errors.InvalidConfig, {}),
            ({"windows": 0}, errors.InvalidConfig, {"got": ""}),
            ({"windows": {"past": (0, 5)}}, errors.InvalidConfig, {"item": 0}),
            ({"windows": {"past": (9, -5)}}, errors.InvalidConfig, {"item": 0}),
            ({"windows": {"past": (9, 2**40)}}, errors.InvalidConfig, {}),
            ({"windows": {"past": (9, 0)}}, errors.InvalidConfig, {}),
            ({"windows": {"past": (9, 1.5)}}, errors.DtypeMismatch, {}),
            ({"windows": {"past": (9, [1, 2])}}, errors.ShapeMismatch, {}),
            ({"windows": {"past": [[1, 2, 3, 4, 5]]}}, errors.ShapeMismatch, {}),
            ({"windows": {"past": [[[1]]]}}, errors.ShapeMismatch, {}),
            ({"windows": {"past": "a"}}, errors.DtypeMismatch, {}),
            ({"windows": {"now": [1.0]}}, errors.DtypeMismatch, {}),
            ({"windows": {"now": [True]}}, errors.DtypeMismatch, {}),
            ({"windows": {"now": [0, 1], "past": [0]}}, errors.ShapeMismatch, {}),
            ({"index": "steps"}, errors.InvalidConfig, {"got": "steps"}),
            ({"index": 3}, errors.InvalidConfig, {}),
            ({"priority": -1.0}, errors.InvalidPriority, {"position": 0}),
            ({"priority": float("nan")}, errors.InvalidPriority, {}),
            ({"priority": 1e39}, errors.InvalidPriority, {}),
            ({"priority": [1.0, 2.0]}, errors.ShapeMismatch, {}),
            ({"priority": 1j}, errors.DtypeMismatch, {}),
            ({"score": [1.0, 2.0]}, errors.ShapeMismatch, {"column": "score"}),
            ({"tag": [[1, 2, 3]]}, errors.ShapeMismatch, {"column": "tag"}),
            ({"tag": [[1.5, 2]]}, errors.DtypeMismatch, {"column": "tag"}),
            ({"tag": [[40_000, 2]]}, errors.DtypeMismatch, {"column": "tag"}),
            ({"colour": [1]}, errors.UnknownColumn, {"column": "colour"}),
            ({"timeout_s": -1.0}, errors.InvalidConfig, {}),
        ],
    )
    def test_create_items(self, filled: Any, change: dict[str, Any], error: type[Exception], fields: Any) -> None:
        table, _, keys = filled

        def with_keys(value: Any) -> Any:
            if isinstance(value, tuple):
                return [int(keys[value[0]])], value[1]
            if isinstance(value, list) and all(type(part) is int for part in value):
                return [int(keys[part]) for part in value]
            return value

        given: dict[str, Any] = {"windows": {"now": [0]}, **own(1), **change}
        if isinstance(given["windows"], dict):
            given["windows"] = {name: with_keys(value) for name, value in given["windows"].items()}
        self._refused(table, error, fields, given)
        assert table.create_items({"now": keys[:1]}, **own(1)).shape == (1,)

    @pytest.mark.parametrize("missing", ["score", "tag"])
    def test_create_items_without_a_column(self, filled: Any, missing: str) -> None:
        table, _, keys = filled
        left = {name: value for name, value in own(1).items() if name != missing}
        self._refused(table, errors.MissingColumn, {"column": missing}, {"windows": {"now": keys[:1]}, **left})

    def test_foreign_keys_in_windows(self, filled: Any) -> None:
        table, _, keys = filled
        item = int(table.create_items({"now": keys[:1]}, **own(1))[0])
        for key in (0, -1, 2**62, item):
            given = {"windows": {"now": [keys[0], key]}, **own(2)}
            self._refused(table, errors.ForeignKey, {"key": key, "position": 1}, given)

    def test_one_bad_item_and_none_is_made(self, filled: Any) -> None:
        table, _, keys = filled
        given = {"windows": {"past": (keys[[5, 6, 29]], 2)}, **own(3)}
        self._refused(table, errors.RowGone, {"item": 2, "window": "past", "key": int(keys[29])}, given)

    def test_priorities_where_there_are_none(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100, explicit({"now": 1}, {}))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 2)
            with pytest.raises(errors.NoPriorities):
                table.create_items({"now": keys}, priority=1.0)
        assert table.num_items() == 0

    def test_a_table_without_explicit_items(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 100)
        with table.writer() as writer:
            keys = write_steps(writer, 0, 2)
            with pytest.raises(errors.InvalidConfig):
                table.create_items(keys)
            with pytest.raises(errors.InvalidConfig):
                writer.create_item(keys[0])

    def test_a_closed_writer_makes_no_items(self, filled: Any) -> None:
        table, writer, keys = filled
        writer.close()
        with pytest.raises(errors.WriterClosed):
            writer.create_item({"now": keys[0]}, **own())
        table.close()
        with pytest.raises(errors.TableClosed):
            table.create_items({"now": keys[:1]}, **own(1))

    def _refused(self, table: Any, error: type[Exception], fields: dict[str, Any], given: dict[str, Any]) -> None:
        before = table.stats().indexes["items"]
        with pytest.raises(error) as caught:
            table.create_items(**given)
        for name, expected in fields.items():
            assert getattr(caught.value, name) == expected, f"{name} is {getattr(caught.value, name)!r}"
        assert len(str(caught.value)) > 20
        assert table.stats().indexes["items"] == before
        table.check()
