"""RankBased and TopK compared with a second implementation of their law: item by item, at rest and during writes."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from naive.rank_law import expected

import relive
from relive.errors import DeadlineExceeded, InvalidConfig

SPEC = relive.StepSpec({"number": relive.ArraySpec((), "int64")})
Numbers = npt.NDArray[np.float64]
KINDS = (relive.RankBased(), relive.RankBased(0.0), relive.RankBased(1.0), relive.TopK(10), relive.TopK(0.25))


def priorities_of(count: int, seed: int) -> Numbers:
    """Some spread over many classes, some alike, some zeros, one tiny and one huge."""
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(count) < 0.5, rng.exponential(1.0, count), rng.integers(0, 4, count).astype(float))
    values[0], values[1] = 1e-42, 3e38
    return np.asarray(values.astype(np.float32), np.float64)


def table_of(sampler: Any, count: int, **more: Any) -> tuple[relive.Table, npt.NDArray[np.int64]]:
    table = relive.Table(SPEC, max(100, 2 * count), relive.Index(sampler=sampler, **more), seed=3)
    with table.writer() as writer:
        keys = writer.extend(number=np.arange(count))
    return table, keys


def assert_fits(counts: Numbers, shares: Numbers) -> None:
    """A chi-square of counts that one seed decides: far beyond 5 sigma is no chance."""
    assert counts[shares == 0].sum() == 0
    wanted = shares[shares > 0] * counts.sum()
    order = np.argsort(wanted)
    # Items of too few expected draws are taken together.
    groups = np.minimum(np.cumsum(wanted[order]) // 20, 1e9)
    totals = {g: (wanted[order][groups == g].sum(), counts[shares > 0][order][groups == g].sum()) for g in set(groups)}
    chi = sum((got - want) ** 2 / want for want, got in totals.values())
    degrees = max(1, len(totals) - 1)
    assert chi < degrees + 5.0 * np.sqrt(2.0 * degrees) + 5.0


@pytest.mark.core_alone
@pytest.mark.parametrize("sampler", KINDS, ids=repr)
@pytest.mark.parametrize("count", [1, 2, 7, 300, 5000])
def test_draws_follow_the_law(sampler: Any, count: int) -> None:
    table, keys = table_of(sampler, count)
    with table:
        given = priorities_of(max(count, 2), 5)[:count]
        table.update_priorities(keys, given)
        table.check()
        shares = expected(sampler, given)
        assert shares.sum() == pytest.approx(1.0)
        counts = np.zeros(count)
        for _ in range(60):
            batch = table.sample(256)
            np.testing.assert_allclose(batch.probabilities, shares[batch["number"]], rtol=1e-6)
            np.add.at(counts, batch["number"], 1)
        assert_fits(counts, shares)
        weights = np.asarray(batch.weights(beta=0.5))
        raw = (count * batch.probabilities) ** -0.5
        np.testing.assert_allclose(weights, raw / raw.max(), rtol=1e-5)


@pytest.mark.parametrize("sampler", KINDS, ids=repr)
def test_one_item_at_a_time_is_as_fair(sampler: Any) -> None:
    table, keys = table_of(sampler, 40)
    with table:
        given = priorities_of(40, 9)
        table.update_priorities(keys, given)
        counts = np.zeros(40)
        for _ in range(4000):
            counts[table.draw(1).item_keys[0] == keys] += 1
        assert_fits(counts, expected(sampler, given))


@pytest.mark.parametrize("sampler", KINDS, ids=repr)
def test_a_batch_is_stratified(sampler: Any) -> None:
    """Each batch has of every item what its share of the batch is, to within one."""
    table, keys = table_of(sampler, 50)
    with table:
        given = np.arange(50, dtype=np.float64) ** 2
        table.update_priorities(keys, given)
        shares = expected(sampler, given)
        for _ in range(20):
            counts = np.bincount(table.sample(400)["number"], minlength=50)
            assert np.all(np.abs(counts - 400 * shares) < 2.0)


def test_ties_are_fair_and_the_class_of_the_kth_shares_its_places() -> None:
    table, keys = table_of(relive.TopK(4), 10)
    with table:
        table.update_priorities(keys, [5.0, 5.0, 3.0, 3.001, 3.002, 3.003, 1.0, 0.5, 0.0, 0.0])
        batch = table.sample(4096)
        p = dict(zip(batch["number"].tolist(), batch.probabilities.tolist(), strict=True))
        assert p == pytest.approx({0: 0.25, 1: 0.25, 2: 0.125, 3: 0.125, 4: 0.125, 5: 0.125})


@pytest.mark.parametrize("sampler", KINDS, ids=repr)
def test_updates_deletions_and_newcomers(sampler: Any) -> None:
    """A programme of changes; behind each of them the law holds of what is there."""
    rng = np.random.default_rng(11)
    table = relive.Table(SPEC, 4000, relive.Index(sampler=sampler), seed=1)
    there: dict[int, float] = {}
    with table, table.writer() as writer:
        for _ in range(60):
            action = rng.integers(4)
            some = (
                rng.permutation(np.array(list(there), np.int64))[: rng.integers(1, 100)] if there else np.zeros(0, "i8")
            )
            if action == 0 or not there:
                new = rng.exponential(1.0, 50).astype(np.float32)
                there.update(zip(writer.extend(number=np.arange(50), priority=new).tolist(), new.tolist(), strict=True))
            elif action == 1:
                assert table.delete(some) == len(some)
                for key in some.tolist():
                    del there[key]
            else:
                new = rng.exponential(1.0, len(some)).astype(np.float32)
                assert table.update_priorities(some, new) == len(some)
                there.update(zip(some.tolist(), new.tolist(), strict=True))
            table.check()
            if there:
                shares = dict(zip(there, expected(sampler, np.array(list(there.values()))).tolist(), strict=True))
                drawn = table.draw(128)
                np.testing.assert_allclose(
                    drawn.probabilities, [shares[k] for k in drawn.item_keys.tolist()], rtol=1e-6
                )


@pytest.mark.parametrize("sampler", KINDS, ids=repr)
def test_steps_that_are_evicted_leave_their_class(sampler: Any) -> None:
    with relive.Table(SPEC, 500, relive.Index(sampler=sampler)) as table, table.writer() as writer:
        rng = np.random.default_rng(2)
        for _ in range(60):
            writer.extend(number=np.arange(40), priority=rng.exponential(1.0, 40))
            table.check()
        live = table.stats().indexes["default"].num_items
        drawn = table.draw(4096)
        assert table.gather(drawn.item_keys).present.all()
        assert drawn.probabilities.max() * live >= 0.99


@pytest.mark.parametrize("sampler", KINDS, ids=repr)
def test_use_counts_take_each_item_once(sampler: Any) -> None:
    table, keys = table_of(sampler, 600, max_times_sampled=1)
    with table:
        table.update_priorities(keys, priorities_of(600, 4))
        seen: list[int] = []
        for _ in range(100):
            seen += table.sample(6)["number"].tolist()
        assert sorted(seen) == list(range(600))
        with pytest.raises(DeadlineExceeded):
            table.sample(1, timeout_s=0.0)
        table.check()


@pytest.mark.parametrize("remover", [relive.Lifo(), relive.MinPriority(), relive.MaxPriority(), relive.Prioritized()])
@pytest.mark.parametrize("sampler", [relive.RankBased(), relive.TopK(0.5)])
def test_beside_every_remover(sampler: Any, remover: Any) -> None:
    index = relive.Index(sampler=sampler, remover=remover, max_items=60)
    with relive.Table(SPEC, 1000, index) as table, table.writer() as writer:
        rng = np.random.default_rng(3)
        for _ in range(20):
            keys = writer.extend(number=np.arange(20), priority=rng.exponential(1.0, 20))
            table.update_priorities(keys, rng.exponential(1.0, 20))
            table.check()
        assert table.stats().indexes["default"].num_items == 60
        if isinstance(sampler, relive.RankBased):
            assert len(set(table.draw(8192).item_keys.tolist())) == 60


def test_a_condition_chooses_among_what_the_law_brings() -> None:
    table, keys = table_of(relive.RankBased(1.0), 500)
    with table:
        given = priorities_of(500, 8)
        table.update_priorities(keys, given)
        shares = expected(relive.RankBased(1.0), given)
        counts = np.zeros(500)
        for _ in range(40):
            batch = table.sample(256, where="number >= 250")
            np.testing.assert_allclose(batch.probabilities, shares[batch["number"]], rtol=1e-6)
            np.add.at(counts, batch["number"], 1)
        shares[:250] = 0.0
        assert_fits(counts, shares / shares.sum())


def test_initial_priorities() -> None:
    with (
        relive.Table(SPEC, 100, relive.Index(sampler=relive.TopK(1, initial="given"))) as table,
        table.writer() as writer,
    ):
        keys = writer.extend(number=np.arange(3))
        assert table.stats().indexes["default"].pending == 3
        table.update_priorities(keys[:2], [1.0, 2.0])
        assert set(table.sample(8)["number"].tolist()) == {1}
        table.check()
    with relive.Table(SPEC, 100, relive.Index(sampler=relive.TopK(1, initial=3.0))) as table, table.writer() as writer:
        writer.extend(number=[0], priority=[2.0])
        writer.append(number=1)
        assert set(table.sample(8)["number"].tolist()) == {1}


@pytest.mark.parametrize("sampler", [relive.RankBased(1.0), relive.TopK(0.3)], ids=repr)
def test_the_law_holds_while_others_write(sampler: Any) -> None:
    """Half of the items change their priority all the time, each time to one of the same class: the law stays.

    Others move between classes of one total, so that ranks stay: an item is drawn as often as its class says.
    """
    count = 2000
    table, keys = table_of(sampler, count)
    given = np.repeat([1.0, 2.0, 4.0, 8.0], count // 4)
    with table:
        table.update_priorities(keys, given)
        shares = expected(sampler, given)
        stop = threading.Event()

        def write(seed: int) -> None:
            rng = np.random.default_rng(seed)
            while not stop.is_set():
                pair = rng.integers(0, count // 4, 64)
                # Two items of neighbouring classes change places, and back again.
                low, high = keys[count // 4 + pair], keys[count // 2 + pair]
                both = np.concatenate([low, high])
                table.update_priorities(both, np.repeat([4.0, 2.0], 64))
                table.update_priorities(both, np.repeat([2.0, 4.0], 64))

        threads = [threading.Thread(target=write, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        counts = np.zeros(4)
        try:
            for _ in range(800):
                batch = table.sample(256)
                np.add.at(counts, batch["number"] // (count // 4), 1)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        table.check()
        of_class = shares.reshape(4, -1).sum(axis=1)
        still = np.array([0, 3])
        middle = of_class[1] + of_class[2]
        got = np.array([*counts[still], counts[1] + counts[2]])
        want = np.array([*of_class[still], middle]) * counts.sum()
        assert got[want == 0].sum() == 0
        # Strata make the counts far steadier than independent draws are.
        assert np.all(np.abs(got - want)[want > 0] < 5.0 * np.sqrt(want[want > 0]))


def refused() -> Iterator[tuple[Any, tuple[Any, ...]]]:
    yield relive.TopK, (0,)
    yield relive.TopK, (-3,)
    yield relive.TopK, (0.0,)
    yield relive.TopK, (1.5,)
    yield relive.TopK, (5.0,)
    yield relive.TopK, (float("nan"),)
    yield relive.TopK, (True,)
    yield relive.TopK, ("10",)
    yield relive.TopK, (None,)
    yield relive.TopK, (2**40,)
    yield relive.TopK, (3, "least")
    yield relive.TopK, (3, -1.0)
    yield relive.RankBased, (-0.1,)
    yield relive.RankBased, (10.5,)
    yield relive.RankBased, (float("nan"),)
    yield relive.RankBased, ("0.7",)
    yield relive.RankBased, (0.7, "given!")


@pytest.mark.parametrize(("kind", "arguments"), list(refused()), ids=repr)
def test_what_cannot_be_is_refused(kind: Any, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidConfig):
        kind(*arguments)


@pytest.mark.parametrize("sampler", KINDS, ids=repr)
def test_devices_refuse_it_with_the_reason(sampler: Any) -> None:
    layout_args = pytest.importorskip("relive.gpu.layout_args", reason="devices are read with torch")
    with pytest.raises(InvalidConfig, match=r"devices draw by mass alone; gather keys that Table\.draw chose"):
        layout_args.check_sampler({"ranked": relive.Index(sampler=sampler)}, 0)


def test_no_remover_goes_by_ranks() -> None:
    with pytest.raises(InvalidConfig, match="remover of an Index"):
        relive.Index(remover=relive.TopK(3), max_items=5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sampler", [*KINDS, relive.TopK(1.0), relive.TopK(1), relive.TopK(np.int64(7), "given")], ids=repr
)
def test_configurations_come_back(sampler: Any) -> None:
    index = relive.Index(sampler=sampler)
    assert relive.Index.from_dict(index.to_dict()) == index
    assert (
        type(relive.Index.from_dict(index.to_dict()).sampler.k) is type(sampler.k)
        if isinstance(sampler, relive.TopK)
        else True
    )
    assert pickle.loads(pickle.dumps(index)) == index


def test_the_same_seed_draws_the_same() -> None:
    drawn = []
    for _ in range(2):
        table, keys = table_of(relive.RankBased(), 3000)
        with table:
            table.update_priorities(keys, priorities_of(3000, 6))
            drawn.append([table.sample(64)["number"].tolist() for _ in range(5)])
    assert drawn[0] == drawn[1]


def test_exponents_at_their_ends() -> None:
    for exponent, count in itertools.product((0.0, 1e-9, 1.0, 10.0), (1, 1023, 1024, 1025, 3000)):
        table, keys = table_of(relive.RankBased(exponent), count)
        with table:
            given = np.exp2(np.linspace(-100, 100, count)).astype(np.float32)
            table.update_priorities(keys, given)
            batch = table.sample(512)
            want = expected(relive.RankBased(exponent), given)[batch["number"]]
            np.testing.assert_allclose(batch.probabilities, want, rtol=1e-5)
