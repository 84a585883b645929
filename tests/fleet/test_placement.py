"""Where points fall: against one table, over many shards, for many ranks; nothing but arithmetic runs here."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.core.limiter_words import LimiterWords
from relive.fleet.draws import placement
from relive.fleet.draws.placement import MAX_SHARDS, ROOT_BYTES, Point, Root, Roots, offsets, place, shared_point

MASSES = [3.0, 0.5, 0.0, 7.25, 1.0]


def placed(*arguments: Any) -> np.ndarray:
    return np.array(place(*arguments))


def shares_of(roots: Roots) -> np.ndarray:
    return np.array(roots.shares)


def roots_of(masses: list[float], dead: tuple[int, ...] = ()) -> Roots:
    made = [Root(number, mass, 10 if mass else 0, is_dead=number in dead) for number, mass in enumerate(masses)]
    return Roots.of(reversed(made))


def random_masses(num_shards: int) -> list[float]:
    random = np.random.default_rng(num_shards)
    masses = np.where(random.random(num_shards) < 0.1, 0.0, random.lognormal(0.0, 2.0, num_shards))
    masses[num_shards // 2] = 1.0
    return [float(mass) for mass in masses]


# ---- what travels ----------------------------------------------------------------------------------------------------


def test_a_root_travels_in_at_most_64_bytes() -> None:
    root = Root(4095, 1e300, 2**40, 3.5, 2**50, 2**51, 2**32 - 1, True, 12)
    assert len(root.pack()) == ROOT_BYTES <= 64
    assert Root.unpack(root.pack()) == root
    with pytest.raises(errors.FormatMismatch):
        Root.unpack(root.pack()[1:])


# ---- counts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_shards", [1, 2, 3, 10, 100, 1000])
@pytest.mark.parametrize("num_items", [1, 7, 256])
def test_counts_are_whole_and_within_one_of_the_shares(num_shards: int, num_items: int) -> None:
    roots = roots_of(random_masses(num_shards))
    for call in range(50):
        counts = placed(roots, num_items, shared_point(7, 0, call, 0))
        assert counts.sum() == num_items and (counts >= 0).all()
        assert (abs(counts - num_items * shares_of(roots)) < 1.0 + 1e-9).all()
        assert not counts[shares_of(roots) == 0.0].any()


def test_on_average_a_shard_has_exactly_its_share() -> None:
    """The integral over the place of the comb, not a sample of it: exact up to the step of the grid."""
    roots, num_items, steps = roots_of(MASSES), 6, 4_000
    mean = sum(placed(roots, num_items, Point((step + 0.5) / steps, 0)) for step in range(steps)) / steps
    assert np.allclose(mean, num_items * shares_of(roots), atol=1.0 / steps)


def test_on_average_every_rank_has_exactly_its_share_of_every_shard() -> None:
    roots, num_items, world, steps = roots_of(MASSES), 3, 4, 400
    for rank in range(world):
        points = [Point((step + 0.5) / steps, shift) for step in range(steps) for shift in range(world)]
        mean = sum(placed(roots, num_items, point, rank, world) for point in points) / len(points)
        assert np.allclose(mean, num_items * shares_of(roots), atol=2.0 / steps)


def test_items_come_as_often_as_from_one_table() -> None:
    """Chi-square: 3 shards of prioritized items, drawn by share and then by mass, against mass / total of one table."""
    random = np.random.default_rng(3)
    shards = [random.lognormal(0.0, 1.0, size) for size in (5, 17, 2)]
    roots = roots_of([float(masses.sum()) for masses in shards])
    seen = [np.zeros(len(masses)) for masses in shards]
    num_draws, num_items = 4_000, 16
    for call in range(num_draws):
        for masses, tally, count in zip(
            shards, seen, placed(roots, num_items, shared_point(1, 2, call, 0)), strict=True
        ):
            np.add.at(tally, random.choice(len(masses), count, p=masses / masses.sum()), 1)
    expected = np.concatenate(shards) / np.concatenate(shards).sum() * num_draws * num_items
    chi_square = ((np.concatenate(seen) - expected) ** 2 / expected).sum()
    assert chi_square < 60.0  # 23 degrees of freedom: above 58.6 once in 1e4


def test_probabilities_are_those_of_one_table() -> None:
    """share x (mass / the shard's) = mass / total."""
    random = np.random.default_rng(5)
    shards = [random.random(size) for size in (4, 9, 30)]
    roots = roots_of([float(masses.sum()) for masses in shards])
    placed = [share * masses / masses.sum() for share, masses in zip(shares_of(roots), shards, strict=True)]
    together = np.concatenate(shards)
    assert np.allclose(np.concatenate(placed), together / together.sum(), rtol=1e-12)
    assert math.isclose(np.concatenate(placed).sum(), 1.0, rel_tol=1e-12)


def test_dead_and_empty_shards_have_no_points_and_the_others_share_theirs() -> None:
    roots = roots_of(MASSES).without({3})
    assert shares_of(roots)[3] == 0.0 and shares_of(roots)[2] == 0.0 and math.isclose(shares_of(roots).sum(), 1.0)
    assert np.allclose(shares_of(roots), np.array([3.0, 0.5, 0.0, 0.0, 1.0]) / 4.5)
    assert roots.num_items == 30
    assert placed(roots, 100, Point(0.3, 0))[3] == 0
    assert roots_of(MASSES, dead=(3,)).bounds == roots.bounds


@pytest.mark.parametrize("point", [0.0, 0.5, 1.0 - 2.0**-53])
@pytest.mark.parametrize("masses", [[0.0, 5.0, 0.0], [1e-300, 1e300, 0.0], [1e308, 1e308], [5e-324, 5e-324]])
def test_the_edges_of_the_comb_stay_on_shards_with_mass(point: float, masses: list[float]) -> None:
    roots = roots_of(masses)
    for num_items in (1, 2, 1000):
        counts = placed(roots, num_items, Point(point, 0))
        assert counts.sum() == num_items and not counts[np.array(masses) == 0.0].any()


# ---- threads and forks -----------------------------------------------------------------------------------------------


def test_a_thread_that_computes_bounds_keeps_no_other_thread_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """So no child that is forked meanwhile inherits a lock that is taken."""
    has_begun, may_end, is_first = threading.Event(), threading.Event(), [True]
    accumulate = placement.itertools.accumulate

    def held(masses: Any) -> Any:
        if is_first.pop() if is_first else False:
            has_begun.set()
            may_end.wait(60.0)
        return accumulate(masses)

    monkeypatch.setattr(placement.itertools, "accumulate", held)
    first = threading.Thread(target=lambda: roots_of(MASSES).bounds)
    second = threading.Thread(target=lambda: (roots_of(MASSES).bounds, ended.set()))
    ended = threading.Event()
    try:
        first.start()
        assert has_begun.wait(60.0)
        second.start()
        assert ended.wait(20.0)
    finally:
        may_end.set()
        first.join()
        second.join()


def test_what_roots_have_computed_is_kept() -> None:
    roots = roots_of(MASSES)
    assert roots.bounds is roots.bounds and roots.shares is roots.shares
    assert roots == roots_of(MASSES) and "bounds" not in repr(roots)


# ---- ranks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 5, 64])
@pytest.mark.parametrize("num_shards", [1, 4, 1000])
def test_slices_of_ranks_are_disjoint_whole_and_balanced(world: int, num_shards: int) -> None:
    roots = roots_of(random_masses(num_shards))
    for call in range(4):
        point = shared_point(9, 0, call, 0, world)
        first, count = offsets(roots, 32, point, world)
        assert (count.sum(axis=1) == 32).all()
        assert (count.sum(axis=0) == placed(roots, 32 * world, Point(point.at, 0))).all()
        assert (first[1:] == first[:-1] + count[:-1]).all() and not first[0].any()  # end to end: disjoint
        assert (count.max(axis=0) - count.min(axis=0) <= 1).all()
        for rank in (0, world - 1):
            assert (placed(roots, 32, point, rank, world) == count[rank]).all()


def test_the_shared_point_is_of_its_counters_alone() -> None:
    points = [shared_point(*counters, 8) for counters in ((1, 2, 3, 0), (1, 2, 3, 1), (1, 2, 4, 0), (2, 1, 3, 0))]
    assert len({point.at for point in points}) == 4
    assert shared_point(1, 2, 3, 0, 8) == points[0]
    at = np.array([shared_point(0, 0, call, 0, 8).at for call in range(4_000)])
    assert abs(np.histogram(at, 16, (0.0, 1.0))[0] - 250).max() < 80
    shifts = np.bincount([shared_point(0, 0, call, 0, 8).shift for call in range(4_000)], minlength=8)
    assert abs(shifts - 500).max() < 110


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_what_no_fleet_can_be() -> None:
    for roots in (
        [],
        [Root(3, 1.0, 1), Root(3, 1.0, 1)],
        [Root(MAX_SHARDS, 1.0, 1)],
        [Root(number, 1.0, 1) for number in range(MAX_SHARDS + 1)],
        [Root(0, math.nan, 1)],
        [Root(0, -1.0, 1)],
        [Root(0, math.inf, 1)],
    ):
        with pytest.raises(errors.InvalidConfig):
            Roots.of(roots)
    with pytest.raises(errors.InvalidConfig):
        placed(roots_of([0.0, 0.0]), 1, Point(0.5, 0))
    with pytest.raises(errors.InvalidConfig):
        place(roots_of([1.0]), 1, Point(0.5, 0), rank=2, world=2)
    assert len(Roots.of(Root(number, 1.0, 1) for number in range(MAX_SHARDS)).shards) == MAX_SHARDS


def test_versions_of_dead_shards_go_on_where_items_were_made() -> None:
    def root(shard: int, version: int, base: int, inserted: int, is_dead: bool) -> Root:
        words = LimiterWords(0, base)
        return Root(shard, 0.0, 0, inserted=inserted, policy_version=version, is_dead=is_dead, words=words)

    late = root(0, 1000, 990, 5, False)
    assert Roots((late, root(1, 0, 0, 0, True))).progress == 10  # its numbers were never heard
    assert Roots((late, root(1, 995, 900, 5, True))).progress == 100
    assert Roots((late, root(1, 2000, 1500, 5, True))).progress == 500  # the learner went back meanwhile
    assert Roots((root(1, 995, 900, 5, True),)).progress == 95
