"""How the items that pass a draw's condition are spread: in proportion to mass, independent of each other."""

from __future__ import annotations

import numpy as np
import pytest

import relive

SPEC = relive.StepSpec({"x": relive.ArraySpec((), "float32"), "k": relive.ArraySpec((), "int64")})
N = 4096


def filled(x: np.ndarray, masses: np.ndarray | None) -> relive.Table:
    sampler = relive.Uniform() if masses is None else relive.Prioritized(priority_exponent=1.0)
    table = relive.Table(SPEC, N, relive.Index(sampler=sampler), seed=11)
    with table.writer() as writer:
        keys = writer.extend(x=x, k=np.arange(N))
    if masses is not None:
        assert table.update_priorities(keys, masses) == N
    return table


def chi_square(counts: np.ndarray, shares: np.ndarray) -> float:
    expected = counts.sum() * shares / shares.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def places(kind: str) -> np.ndarray:
    """Which of the items pass."""
    rng = np.random.default_rng(3)
    if kind == "the last tenth":
        return np.arange(N) >= N - N // 10
    if kind == "ever denser":
        return rng.random(N) < np.linspace(0.0, 0.6, N) ** 2
    return rng.random(N) < 0.9


@pytest.mark.core_alone
@pytest.mark.parametrize("batch", [1, 7, 256])
@pytest.mark.parametrize("kind", ["the last tenth", "ever denser", "nearly all"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_what_passes_is_spread_as_its_mass_is(kind: str, batch: int, prioritized: bool) -> None:
    passing = places(kind)
    masses = np.random.default_rng(4).exponential(size=N) + 0.05
    masses[passing & (np.arange(N) % 64 < 4)] *= 25
    shares = (masses if prioritized else np.ones(N)) * passing
    with filled(passing.astype(np.float32), masses if prioritized else None) as table:
        count = 40_000 // batch if batch > 1 else 4_000
        drawn = np.concatenate([np.asarray(table.sample(batch, ["k"], where="x > 0.5")["k"]) for _ in range(count)])
        assert passing[drawn].all()
        # In 32 stretches of the table as it lies, those in which nothing passes left out.
        groups = np.arange(N) // (N // 32)
        of_group = np.bincount(groups, shares, 32)
        seen = np.bincount(groups[drawn], minlength=32)
        few = of_group > 0
        freedom = int(few.sum()) - 1
        assert chi_square(seen[few], of_group[few]) < freedom + 5 * np.sqrt(2 * freedom)
        # And item by item.
        whole = np.flatnonzero(passing)
        expected = len(drawn) * shares[whole] / shares.sum()
        often = whole[expected >= 5]
        if len(often) > 10:
            rest = shares.sum() - shares[often].sum()
            counted = np.append(np.bincount(drawn, minlength=N)[often], (~np.isin(drawn, often)).sum())
            each = np.append(shares[often], max(rest, 1e-12))
            counted, each = (counted, each) if rest > 0 else (counted[:-1], each[:-1])
            assert chi_square(counted, each) < len(each) + 5 * np.sqrt(2 * len(each))


def test_rows_of_a_batch_are_independent() -> None:
    """Stratified points would bring items of each half of the table to each batch; these come as coins fall."""
    passing = np.ones(N)
    with filled(passing.astype(np.float32), None) as table:
        batches = [np.asarray(table.sample(64, ["k"], where="x > 0")["k"]) for _ in range(400)]
    halves = [int((batch >= N // 2).sum()) for batch in batches]
    assert 8 < np.var(halves) < 26, "64 / 4"
