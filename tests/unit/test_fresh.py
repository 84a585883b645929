"""Fresh and max_staleness: what is drawn by how new it is, and what goes by how old its versions are."""

from __future__ import annotations

import json
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from relive.errors import DeadlineExceeded, InvalidConfig

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
STATES = relive.StepSpec({"state": relive.ArraySpec((), "float32", kind="state"), **SPEC.columns})
GROUPED = relive.StepSpec({**SPEC.columns, "prompt": relive.ArraySpec((), "int64", kind="episode")})
LIMIT = 60.0  # of a chi-square with at most 19 degrees of freedom: p below 1e-5


def chi_square(counts: np.ndarray, shares: np.ndarray) -> float:
    expected = shares / shares.sum() * counts.sum()
    assert not counts[expected == 0].any()
    kept = expected > 0
    return float(((counts[kept] - expected[kept]) ** 2 / expected[kept]).sum())


def counted(table: relive.Table, size: int, draws: int = 100, batch: int = 200) -> np.ndarray:
    counts = np.zeros(size)
    for _ in range(draws):
        np.add.at(counts, table.sample(batch)["number"], 1)
    return counts


def fresh(sampler: Any, spec: relive.StepSpec = SPEC, capacity: int = 1_000, **more: Any) -> relive.Table:
    return relive.Table(spec, capacity, relive.Index(sampler=sampler, **more), seed=3)


def test_newest_first_is_lifo() -> None:
    with fresh(relive.Fresh()) as table, fresh(relive.Lifo()) as other, table.writer() as w, other.writer() as v:
        for n in range(30):
            w.append(number=n)
            v.append(number=n)
        assert table.sample(5)["number"].tolist() == other.sample(5)["number"].tolist() == [29, 28, 27, 26, 25]


def test_the_last_n_are_drawn_alike_and_nothing_else() -> None:
    with fresh(relive.Fresh(last=20)) as table, table.writer() as writer:
        keys = writer.extend(number=np.arange(30))
        shares = np.r_[np.zeros(10), np.ones(20)]
        assert chi_square(counted(table, 30), shares) < LIMIT
        batch = table.sample(64)
        np.testing.assert_allclose(batch.probabilities, 1 / 20)
        table.delete(keys[[12, 13, 29]])  # nothing comes in their place
        shares[[12, 13, 29]] = 0
        assert chi_square(counted(table, 30), shares) < LIMIT
        assert table.stats().indexes["default"].num_items == 27
        writer.append(number=30)
        assert table.sample(500)["number"].min() == 11
        assert table.gather(keys[:10]).present.all()  # they are items all the same
        table.check()


@pytest.mark.parametrize("remover", [relive.MinPriority(), relive.MaxPriority(), relive.Prioritized(1.0)], ids=repr)
def test_what_is_revalued_for_its_remover_is_none_that_came(remover: Any) -> None:
    with fresh(relive.Fresh(last=3), remover=remover, max_items=50) as table, table.writer() as writer:
        keys = writer.extend(number=np.arange(10))
        for _ in range(5):
            assert table.update_priorities(keys, np.linspace(1.0, 2.0, 10)) == 10
        assert counted(table, 10, draws=2).nonzero()[0].tolist() == [7, 8, 9]
        table.update_priorities(keys, np.ones(10))
        keys = writer.append(number=10)
        assert counted(table, 11, draws=2).nonzero()[0].tolist() == [8, 9, 10]
        table.check()


def test_a_draw_waits_where_none_of_the_last_is_there() -> None:
    with fresh(relive.Fresh(last=2)) as table, table.writer() as writer:
        keys = writer.extend(number=np.arange(8))
        table.delete(keys[6:])
        with pytest.raises(DeadlineExceeded):
            table.sample(1, timeout_s=0)
        writer.append(number=8)
        assert set(table.sample(50)["number"].tolist()) == {8}


@pytest.mark.parametrize("seed", range(6))
def test_the_last_n_beside_a_twin(seed: int) -> None:
    """With max_items, deletions, use counts and updates of the remover's priorities."""
    rng = random.Random(seed)
    last, uses, most = rng.randint(1, 12), rng.choice([None, 3]), rng.choice([None, 15])
    remover = relive.Fifo() if most is None else rng.choice([relive.MinPriority(), relive.Lifo(), relive.Uniform()])
    index: dict[str, Any] = {"max_times_sampled": uses, "max_items": most, "remover": remover}
    with fresh(relive.Fresh(last=last), capacity=40, **index) as table, table.writer() as writer:
        keys: list[int] = []
        for n in range(300):
            keys.append(int(writer.append(number=n)))
            if rng.random() < 0.1:
                table.delete(np.array([rng.choice(keys[-last - 5 :])]))
            if isinstance(remover, relive.MinPriority) and rng.random() < 0.3:
                chosen = np.array(rng.sample(keys, min(5, len(keys))))
                table.update_priorities(chosen, np.array([rng.random() for _ in chosen], np.float32))
            if rng.random() < 0.4:
                try:
                    got = table.sample(3, timeout_s=0)["number"]
                except DeadlineExceeded:
                    continue
                assert (got > n - last).all()
            table.check()


@pytest.mark.parametrize("decay", [0.5, 0.9, 1.0])
def test_masses_are_decay_to_the_staleness(decay: float) -> None:
    with fresh(relive.Fresh(decay=decay)) as table, table.writer() as writer:
        for version in range(10):
            table.set_policy_version(version)
            writer.extend(number=np.arange(2 * version, 2 * version + 2))
        shares = decay ** (9.0 - np.arange(20) // 2)
        assert chi_square(counted(table, 20), shares) < LIMIT
        batch = table.sample(256)
        np.testing.assert_allclose(batch.probabilities, (shares / shares.sum())[batch["number"]], rtol=1e-9)
        for version in (12, 6_000, 6_001, 2**32 - 1, 0, 7):  # all of them lose the same, whatever the base is
            table.set_policy_version(version)
            table.check()
            if version < 6_000 or decay == 1.0:
                batch = table.sample(256)
                np.testing.assert_allclose(batch.probabilities, (shares / shares.sum())[batch["number"]], rtol=1e-9)
        batch = table.sample(256)
        np.testing.assert_allclose(batch.probabilities, (shares / shares.sum())[batch["number"]], rtol=1e-9)


def test_a_decay_of_hardly_anything() -> None:
    with fresh(relive.Fresh(decay=1e-300)) as table, table.writer() as writer:
        for version in range(20):
            table.set_policy_version(version)
            writer.append(number=version)
            assert set(table.sample(200)["number"].tolist()) == {version}
            table.check()


def test_masses_fade_while_a_writer_writes_and_versions_step() -> None:
    """Each version's share of a batch is what the items that were there while it was drawn allow."""
    last, failures, is_over = 120, [], threading.Event()
    index = relive.Index(sampler=relive.Fresh(decay=0.001), max_staleness=9)
    with relive.Table(SPEC, 3_000, index, seed=5) as table, table.writer() as writer:

        def write() -> None:
            try:
                for version in range(last):
                    table.set_policy_version(version)
                    writer.extend(number=np.arange(50))
            except BaseException as problem:
                failures.append(problem)
            is_over.set()

        writer.extend(number=np.arange(50))
        thread = threading.Thread(target=write)
        thread.start()
        draws, tally = 0, 0
        while draws == 0 or not is_over.is_set():  # the writer may be over before the first one
            batch = table.sample(256, columns=["policy_version", "number"])
            assert np.isfinite(batch.probabilities).all() and (batch.weights(beta=1.0) > 0).all()
            versions = batch["policy_version"]
            tally += int((versions >= versions.max() - 1).sum())
            draws += 256
        thread.join()
        assert not failures and tally > 0.95 * draws
        table.check()


def test_the_last_n_are_drawn_alike_while_a_writer_writes_and_steps_go() -> None:
    """By age. Exactly where nothing was written while a batch was drawn; else none is older or newer than it can be."""
    last, wanted, failures, is_over = 20, 250, [], threading.Event()
    begun = done = 300
    with fresh(relive.Fresh(last=last), capacity=300) as table, table.writer() as writer:

        def write() -> None:
            nonlocal begun, done
            rng = random.Random(1)
            try:
                while not is_over.is_set():
                    count = rng.randint(1, 5)
                    begun += count
                    writer.extend(number=np.arange(done, begun))
                    done = begun
                    is_over.wait(0.002 * rng.random())
            except BaseException as problem:
                failures.append(problem)

        writer.extend(number=np.arange(300))
        thread = threading.Thread(target=write)
        thread.start()
        counts, quiet = np.zeros(last), 0
        while (quiet < wanted or done < 700) and not failures:  # until steps went, too
            least = done
            batch = table.sample(100)
            most, numbers = begun, batch["number"]
            assert least - last <= numbers.min() and numbers.max() < most
            # Newcomers come in before the oldest go out: for a moment there are up to 5 more.
            assert (1 / (last + 5) <= batch.probabilities).all() and (batch.probabilities <= 1 / last).all()
            if least == most:
                np.testing.assert_allclose(batch.probabilities, 1 / last)
                quiet += 1
                np.add.at(counts, most - 1 - numbers, 1)
        is_over.set()
        thread.join()
        assert not failures and chi_square(counts, np.ones(last)) < LIMIT
        table.check()


# ---- max_staleness ---------------------------------------------------------------------------------------------------


def live(table: relive.Table, keys: np.ndarray, index: str | None = None) -> list[bool]:
    return np.asarray(table.gather(keys, index=index, columns=["number"]).present, bool).tolist()


def test_items_go_when_the_learner_is_further_ahead() -> None:
    indexes = {"bounded": relive.Index(max_staleness=2), "all": relive.Index()}
    with relive.Table(SPEC, 2_000, indexes) as table, table.writer() as writer:
        keys = []
        for version in range(6):
            table.set_policy_version(version)
            keys.append(writer.extend(number=np.full(200, version)))
            stats = table.stats().indexes["bounded"]
            assert stats.num_items == 200 * min(version + 1, 3)
            assert stats.expired == 200 * max(0, version - 2)
            batch = table.sample(300, index="bounded")
            assert batch["number"].min() >= version - 2
        assert live(table, np.concatenate(keys), "bounded") == [False] * 600 + [True] * 600
        assert all(live(table, np.concatenate(keys), "all"))  # the steps stay
        table.set_policy_version(2**32 - 1)
        assert table.stats().indexes["bounded"].num_items == 0
        assert table.stats().indexes["all"].num_items == 1_200
        table.check()


def test_a_newcomer_that_is_too_old() -> None:
    with relive.Table(SPEC, 100, relive.Index(max_staleness=0)) as table, table.writer() as writer:
        table.set_policy_version(7)
        writer.set_policy_version(6)
        writer.extend(number=np.arange(5))
        writer.set_policy_version(8)  # ahead of the learner
        key = writer.append(number=5)
        stats = table.stats().indexes["default"]
        assert (stats.num_items, stats.expired, stats.inserted) == (1, 5, 6)
        assert live(table, np.array([key])) == [True]
        table.set_policy_version(8)
        assert table.stats().indexes["default"].num_items == 1
        table.set_policy_version(9)
        assert table.stats().indexes["default"].num_items == 0
        table.check()


ITEMS: dict[str, tuple[relive.StepSpec, Any]] = {
    "transitions": (STATES, relive.Transitions(n_step=3)),
    "padded": (STATES, relive.Sequences(length=4, burn_in=2, period=2)),
    "shifted": (STATES, relive.Sequences(length=4, burn_in=2, period=3, at_end="shift")),
    "without": (SPEC, relive.Sequences(length=5, period=2, at_end="drop", bootstrap=0)),
    "crossing": (STATES, relive.Sequences(length=5, burn_in=1, period=2, at_end="cross")),
    "episodes": (STATES, relive.Episodes(40)),
}


@pytest.mark.parametrize("name", ITEMS)
@pytest.mark.parametrize("seed", range(3))
def test_what_goes_is_what_is_stale(name: str, seed: int) -> None:
    """Two indexes over the same steps: of the bounded one live those whose batch["staleness"] is at most the bound."""
    rng = random.Random(seed)
    spec, items = ITEMS[name]
    bound = rng.randint(0, 4)
    indexes = {"bounded": relive.Index(items, max_staleness=bound), "all": relive.Index(items)}
    with relive.Table(spec, 300, indexes, seed=seed) as table, table.writer() as writer:
        now = length = 0
        for n in range(600):
            if rng.random() < 0.1:
                now += rng.randint(0, 2)
                table.set_policy_version(now)
            if rng.random() < 0.2:
                writer.set_policy_version(rng.choice([None, max(0, now - rng.randint(0, 4)), now + 1]))
            more = {"state": float(n)} if spec is STATES else {}
            length += 1
            if rng.random() < 0.1 or length == 38:
                end = rng.choice(("terminated", "truncated"))
                last = {"next_state": float(n) + 0.5} if spec is STATES else {}
                writer.append(number=n, **more, **last, **{end: True})
                length = 0
            else:
                writer.append(number=n, **more)
            if n % 20 == 19 and table.num_items(index="all") > 0:
                batch = table.sample(64, index="all", columns=["staleness"])
                fits = batch["staleness"] <= bound
                assert live(table, batch.item_keys, "bounded") == np.asarray(fits).tolist()
                if fits.any():
                    assert table.sample(32, index="bounded", columns=["staleness"])["staleness"].max() <= bound
                table.check()
        assert table.stats().indexes["bounded"].expired > 0


def test_explicit_items_and_groups() -> None:
    explicit = relive.Index(relive.Explicit(relive.Window(3), max_items=20), max_staleness=1)
    with relive.Table(SPEC, 100, {"items": explicit, "rows": relive.Index()}) as table, table.writer() as writer:
        keys = writer.extend(number=np.arange(4))
        table.set_policy_version(1)
        keys = np.concatenate([keys, writer.extend(number=np.arange(4, 8))])
        made = table.create_items(keys[[0, 3, 4, 5]], index="items")  # the second one has rows of both versions
        assert live(table, made, "items") == [True] * 4
        table.set_policy_version(2)
        assert live(table, made, "items") == [False, False, True, True]
        late = table.create_items(keys[[2, 4]], index="items")  # the first is too old already
        assert live(table, late, "items") == [False, True]
        assert table.stats().indexes["items"].expired == 3
        table.check()
    groups = relive.Episodes(8, group_by="prompt", group_size=2, max_groups=10)
    with relive.Table(GROUPED, 100, relive.Index(groups, max_staleness=1)) as table, table.writer() as writer:
        for version, prompt in ((0, 1), (0, 2), (1, 1), (2, 2), (2, 3), (2, 3)):
            table.set_policy_version(version)
            writer.extend(number=np.arange(3), prompt=np.full(3, prompt), terminated=np.array([False, False, True]))
        stats = table.stats().indexes["default"]
        assert (stats.num_items, stats.expired, stats.inserted) == (1, 2, 3)  # 2 was too old as it became whole
        table.set_policy_version(4)
        assert table.stats().indexes["default"].expired == 3
        table.check()


def test_used_up_items_are_not_counted() -> None:
    index = relive.Index(max_staleness=0, max_times_sampled=1, limiter=relive.Queue(10))
    with relive.Table(SPEC, 100, index) as table, table.writer() as writer:
        writer.extend(number=np.arange(6))
        table.sample(4)
        table.set_policy_version(1)
        stats = table.stats().indexes["default"]
        assert (stats.num_items, stats.expired) == (0, 2)
        writer.extend(number=np.arange(10), timeout_s=1)  # the queue has its room back
        assert table.num_items() == 10
        table.check()


def test_writers_that_wait_hear_of_the_room() -> None:
    index = relive.Index(max_staleness=0, max_times_sampled=1, limiter=relive.Queue(4))
    with relive.Table(SPEC, 100, index) as table, table.writer() as writer:
        writer.extend(number=np.arange(4))
        timer = threading.Timer(0.2, lambda: table.set_policy_version(1))
        timer.start()
        writer.append(number=4, timeout_s=20)
        timer.join()
        assert table.num_items() == 1


def test_waiting_items_are_dropped_when_their_priority_comes() -> None:
    index = relive.Index(sampler=relive.Prioritized(initial="given"), max_staleness=1)
    with relive.Table(SPEC, 100, index) as table, table.writer() as writer:
        keys = writer.extend(number=np.arange(4))
        table.set_policy_version(5)
        assert table.stats().indexes["default"].pending == 4
        table.update_priorities(keys, np.ones(4, np.float32))
        stats = table.stats().indexes["default"]
        assert (stats.num_items, stats.pending, stats.expired) == (0, 0, 4)
        table.check()


@needs_shared_memory
def test_another_process_sees_the_same(shm_name: Callable[[], str]) -> None:
    index = relive.Index(sampler=relive.Fresh(last=3), max_staleness=1)
    name = shm_name()
    with relive.Table(SPEC, 100, index, storage=relive.SharedMemory(name)) as table, table.writer() as writer:
        writer.extend(number=np.arange(10))
        with relive.attach(name) as other:
            assert other.config.index["default"] == index
            assert other.sample(50)["number"].min() == 7
            other.set_policy_version(2)
            assert other.num_items() == table.num_items() == 0


@pytest.mark.parametrize("sampler", [relive.Fresh(), relive.Fresh(last=7), relive.Fresh(decay=0.5)])
def test_there_and_back(sampler: relive.Fresh) -> None:
    index = relive.Index(sampler=sampler, max_staleness=3)
    assert relive.Index.from_dict(json.loads(json.dumps(index.to_dict()))) == index
    assert pickle.loads(pickle.dumps(index)) == index


WRONG: tuple[tuple[str, Any], ...] = (
    ("last", 0),
    ("last", -1),
    ("last", 1.5),
    ("last", 2.0),
    ("last", True),
    ("last", "7"),
    ("last", 2**53),
    ("decay", 0.0),
    ("decay", -0.1),
    ("decay", 1.0000001),
    ("decay", float("nan")),
    ("decay", float("inf")),
    ("decay", "0.9"),
)


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_numbers_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(InvalidConfig) as caught:
        relive.Fresh(**{name: value})
    assert caught.value.what == name


@pytest.mark.parametrize("value", [-1, 1.5, 2.0, True, "3", 2**32, float("nan")])
def test_a_max_staleness_that_is_none(value: Any) -> None:
    with pytest.raises(InvalidConfig) as caught:
        relive.Index(max_staleness=value)
    assert caught.value.what == "max_staleness"


def test_both_at_once() -> None:
    with pytest.raises(InvalidConfig, match="one of them"):
        relive.Fresh(last=3, decay=0.9)
