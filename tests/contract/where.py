"""Draws with a condition: what comes passes, in proportion to mass among what passes, and nothing else counts."""

from __future__ import annotations

import collections
import contextlib
import threading
from typing import Any

import numpy as np
import pytest

import relive
from contract.tools import MakeTable, Suite, plain_spec, prioritized, step, write_steps
from relive import errors

NUMBERS = {
    "flag": relive.ArraySpec((), "bool"),
    "small": relive.ArraySpec((), "int8"),
    "count": relive.ArraySpec((), "uint32"),
    "wide": relive.ArraySpec((3,), "float32"),
    "exact": relive.ArraySpec((), "float64"),
    "task": relive.ArraySpec((), "int64", kind="episode"),
}
BIG = 2**53


def numbers(t: int) -> dict[str, Any]:
    return {
        "flag": t % 3 == 0,
        "small": t % 7 - 3,
        "count": 2**32 - 1 - t,
        "wide": np.zeros(3, np.float32),
        "exact": t / 8,
        "task": BIG + t // 10,
    }


def actions(table: Any, where: str, num_items: int = 200, **options: Any) -> set[int]:
    return set(np.asarray(table.sample(num_items, where=where, **options)["action"]).ravel().tolist())


class WhereSuite(Suite):
    def test_where_of_a_draw(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(**NUMBERS), 200)
        with table.writer() as writer:
            keys = []
            for t in range(60):
                last = {"terminated": t % 20 == 19, "truncated": t % 20 == 9}
                keys.append(writer.append(**step(t, t + 1, **last, **numbers(t))))
            expected = {
                "reward > 56": {57, 58, 59},
                "57 <= reward < 59.5 and flag": {57},
                "not reward < 58": {58, 59},
                "small == -3 and (reward > 50 or exact * 8 == 7)": {7, 56},
                "count > 4294967292": {0, 1, 2},
                f"task == {BIG + 5}": set(range(50, 60)),
                f"{BIG + 4} < task": set(range(50, 60)),
                "terminated": {19, 39, 59},
                "truncated and action != 9": {29, 49},
                "episode_step == 0": {0, 10, 20, 30, 40, 50},
                "first and reward / 2 >= 20": {40, 50},
                "-action + 58 <= 0": {58, 59},
                "flag == True and action - 3 * 19 == 0": {57},
                "num_steps == 1 and action > 58": {59},
                "exact != exact or reward == 3": {3},
            }
            for where, whole in expected.items():
                assert actions(table, where) == whole, where
            drawn = table.draw(100, where="reward > 56")
            assert set(drawn.item_keys.tolist()) == {int(key) for key in keys[57:]}
            assert drawn.num_live_items == 60, "all items, whatever passes"
            assert np.asarray(drawn.probabilities) == pytest.approx(1 / 60), "before the condition"

    def test_where_over_what_a_row_has_by_itself(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 200, max_lanes=4)
        with table.writer(2) as writer:
            for t in range(20):
                table.set_policy_version(t)
                both = {name: np.stack([np.asarray(value)] * 2) for name, value in step(t, t + 1).items()}
                writer.append(**both)
            lanes = sorted(set(np.asarray(table.sample(100, columns=["lane"])["lane"]).tolist()))
            one = table.sample(100, columns=["lane", "action"], where=f"lane == {lanes[1]} and policy_version >= 18")
            assert set(np.asarray(one["lane"]).tolist()) == {lanes[1]}
            assert set(np.asarray(one["action"]).tolist()) == {18, 19}
            assert actions(table, "staleness <= 1") == {18, 19}

    def test_an_end_that_comes_after_its_step_is_seen(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(), 200)
        with table.writer() as writer:
            for t in range(64):  # ends at every place of a page
                writer.append(**step(t))
                if t % 3 == 2:
                    writer.end_episode(truncated=True, next_observation=np.zeros(2, np.float32))
            assert actions(table, "truncated", 400) == set(range(2, 63, 3))

    def test_what_passes_comes_in_proportion_to_its_mass(self, make_table: MakeTable) -> None:
        """All that passes lies in the last tenth, and is as uneven as it lies."""
        table = make_table(plain_spec(flag=NUMBERS["flag"]), 400, prioritized())
        with table.writer() as writer:
            keys = np.asarray([writer.append(**step(t, t + 1, flag=t % 2 == 0)) for t in range(300)])
            masses = np.random.default_rng(1).exponential(size=300) + 0.01
            masses[270:280] *= 30
            table.update_priorities(keys, masses)
            passing = np.flatnonzero((np.arange(300) >= 270) & (np.arange(300) % 2 == 0))
            counts: collections.Counter[int] = collections.Counter()
            for _ in range(60):
                batch = table.sample(100, columns=["action"], where="reward >= 270 and flag")
                counts.update(np.asarray(batch["action"]).tolist())
                assert np.asarray(batch.probabilities) == pytest.approx(
                    (masses / masses.sum())[np.asarray(batch["action"])], rel=1e-5
                )
            assert set(counts) <= set(passing.tolist())
            share = masses[passing] / masses[passing].sum()
            seen = np.asarray([counts[int(one)] for one in passing])
            chi = float(((seen - 6000 * share) ** 2 / (6000 * share)).sum())
            assert chi < 37, "14 degrees of freedom: 1 in 1,000"

    @pytest.mark.parametrize("sampler", [relive.Uniform(), relive.Lifo(), relive.TopK(0.5)], ids=repr)
    def test_batches_with_a_condition(self, make_table: MakeTable, sampler: Any) -> None:
        """Drawn ahead: what was not handed out counts nowhere, and where too few pass the next one tries again."""
        table = make_table(plain_spec(), 200, relive.Index(sampler=sampler, max_times_sampled=4))
        with table.writer() as writer:
            write_steps(writer, 0, 60)
            uses: collections.Counter[int] = collections.Counter()
            with table.batches(5, where="reward >= 50") as batches:
                for _ in range(4):
                    uses.update(np.asarray(next(batches)["action"]).tolist())
            assert set(uses) <= set(range(50, 60)) and max(uses.values()) <= 4
            assert table.stats().indexes["default"].sampled == uses.total() == 20
            with table.batches(3, where="reward >= 60") as batches:
                for _ in range(2):
                    with pytest.raises(errors.RareItems) as caught:
                        next(batches)
                    assert (caught.value.where, caught.value.asked) == ("reward >= 60", 3)
                write_steps(writer, 60, 8)
                batch = None
                while batch is None:  # what was drawn before they came may say first that there were too few
                    with contextlib.suppress(errors.RareItems):
                        batch = next(batches)
                assert set(np.asarray(batch["action"]).tolist()) <= set(range(60, 68))
            with pytest.raises(errors.UnknownColumn):
                table.batches(3, where="rewards > 1")
        table.check()

    def test_rare_items_count_nothing(self, make_table: MakeTable) -> None:
        index = relive.Index(limiter=relive.SamplesPerInsert(3.0, 1, 200), max_times_sampled=3)
        table = make_table(plain_spec(), 200, index)
        with table.writer() as writer:
            write_steps(writer, 0, 40)
            before = table.stats().indexes["default"]
            for call in (table.sample, table.draw):
                with pytest.raises(errors.RareItems) as caught:
                    call(8, where="reward > 100")
                error = caught.value
                assert (error.where, error.asked, error.found, error.share) == ("reward > 100", 8, 0, 0.0)
                assert error.looked_at >= 2**16
            assert table.stats().indexes["default"] == before, "neither limiter nor uses"
            with pytest.raises(errors.RareItems) as caught:
                table.sample(8, where="reward == 7")  # there are three uses of it
            assert caught.value.found >= 3
            assert table.stats().indexes["default"] == before
            counts: collections.Counter[int] = collections.Counter()
            for _ in range(3):
                counts.update(np.asarray(table.sample(5, where="reward < 5")["action"]).tolist())
            assert counts == dict.fromkeys(range(5), 3), "use counts are exact"
            assert table.stats().indexes["default"].sampled == before.sampled + 15
        table.check()

    def test_rare_items_take_no_number_of_a_draw(self, make_table: MakeTable) -> None:
        drawn = []
        for where in (None, "reward > 1000"):
            table = make_table(plain_spec(), 100, seed=5)
            with table.writer() as writer:
                write_steps(writer, 0, 50)
            batches = [np.asarray(table.sample(20)["action"]).tolist()]
            if where is not None:
                with pytest.raises(errors.RareItems):
                    table.sample(20, where=where)
            batches.append(np.asarray(table.sample(20)["action"]).tolist())
            drawn.append(batches)
        assert drawn[0] == drawn[1]

    def test_a_condition_shifts_no_other_draw(self, make_table: MakeTable) -> None:
        tables = [make_table(plain_spec(), 100, seed=5) for _ in range(2)]
        drawn = []
        for table in tables:
            with table.writer() as writer:
                write_steps(writer, 0, 50)
            drawn.append(
                [np.asarray(table.sample(20, where=where)["action"]).tolist() for where in (None, "reward < 9", None)]
            )
        assert drawn[0] == drawn[1], "equal tables and calls, equal batches"

    def test_windows_are_asked_by_the_row_that_their_key_names(self, make_table: MakeTable) -> None:
        sequences = relive.Index(relive.Sequences(4, burn_in=2, period=4))
        ragged = relive.Index(relive.Episodes(8, layout="ragged"))
        index = {
            "steps": relive.Index(relive.Transitions(n_step=3, gamma=1.0)),
            "sequences": sequences,
            "episodes": relive.Index(relive.Episodes(8)),
            "ragged": ragged,
        }
        table = make_table(plain_spec(), 400, index)
        with table.writer() as writer:
            for t in range(80):
                writer.append(**step(t, t + 1, terminated=t % 8 == 7))
            for name in index:
                batch = table.gather(table.draw(50, index=name, where="16 <= action < 24"))
                assert batch.present.all()
                drawn = table.draw(50, index=name, where="16 <= action < 24")
                named = table.gather(drawn.item_keys, columns=["action"], index="steps")
                assert {16} <= set(np.asarray(named["action"]).tolist()) <= set(range(16, 24)), name
                assert table.sample(20, index=name, where="action == 32").num_items == 20
            drawn = table.sample(100, ["action"], index="steps", where="num_steps == 1 and action < 20")
            assert set(np.asarray(drawn["action"]).tolist()) == {7, 15}
            lengths = table.sample(20, ["num_steps"], index="episodes", where="num_steps == 8")["num_steps"]
            assert set(np.asarray(lengths).tolist()) == {8}

    def test_explicit_items_are_asked_by_their_own_columns(self, make_table: MakeTable) -> None:
        own = {"grade": relive.ArraySpec((), "float32"), "tag": relive.ArraySpec((2,), "int64")}
        table = make_table(plain_spec(), 200, relive.Index(relive.Explicit(2, columns=own)))
        with table.writer() as writer:
            keys = write_steps(writer, 0, 40)
            grades = np.arange(39, dtype=np.float32)
            made = table.create_items(keys[:-1], grade=grades, tag=np.zeros((39, 2), np.int64))
            drawn = table.draw(60, where="grade >= 36")
            assert set(drawn.item_keys.tolist()) == set(made[36:].tolist())
            assert set(np.asarray(table.sample(60, where="not grade < 37")["grade"]).tolist()) == {37.0, 38.0}
            for where in ("reward > 0", "lane == 1", "tag == 1"):
                with pytest.raises(errors.InvalidConfig) as caught:
                    table.sample(4, where=where)
                assert "grade" in str(caught.value)

    def test_groups_are_asked_by_the_column_that_they_form_by(self, make_table: MakeTable) -> None:
        items = relive.Episodes(2, group_by="task", group_size=2, max_groups=64)
        table = make_table(plain_spec(task=NUMBERS["task"]), 400, relive.Index(items))
        with table.writer() as writer:
            for t in range(40):
                writer.append(**step(t, t + 1, terminated=True, task=BIG + t // 2))
            batch = table.sample(20, ["task"], where=f"task == {BIG + 3}")
            assert set(np.asarray(batch["task"]).ravel().tolist()) == {BIG + 3}
            with pytest.raises(errors.InvalidConfig):
                table.sample(4, where="reward > 0")

    def test_a_condition_that_is_none_is_refused(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(**NUMBERS), 100)
        with table.writer() as writer:
            writer.append(**step(0, 1, **numbers(0)))
            for where in (
                "rewrd > 0",
                "reward.x > 0",
                "reward >",
                "wide > 0",
                "observation > 0",
                "reward",
                "",
                3,
                b"x",
            ):
                with pytest.raises((errors.InvalidConfig, errors.UnknownColumn)):
                    table.sample(1, where=where)  # type: ignore[arg-type]
                with pytest.raises((errors.InvalidConfig, errors.UnknownColumn)):
                    table.draw(1, where=where)  # type: ignore[arg-type]
            with pytest.raises(errors.UnknownColumn) as caught:
                table.sample(1, where="rewrd > 0")
            assert caught.value.instead == "reward"
            assert "wide" not in caught.value.known
            assert table.sample(1, where="reward == 0").num_items == 1

    def test_items_pass_while_others_write_and_evict(self, make_table: MakeTable) -> None:
        table = make_table(plain_spec(flag=NUMBERS["flag"]), 64, max_lanes=4)
        over, begun = threading.Event(), threading.Event()

        def write() -> None:
            with table.writer() as writer:
                t = 0
                while not over.is_set():
                    writer.append(**step(t, t + 1, flag=t % 4 == 1))
                    t += 1
                    if t == 8:  # from here on some of those that are there pass
                        begun.set()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            assert begun.wait(60.0)
            for _ in range(150):
                batch = table.sample(32, where="flag and terminated == False")
                assert (np.asarray(batch["action"]) % 4 == 1).all()
        finally:
            over.set()
            thread.join()
        table.check()
