"""Every sampled item and every gathered key equals the naive twin, over random programmes."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes.shm import needs_shared_memory

import relive
from naive.compare import run_programme
from naive.program import SPECS, Op, Programme
from naive.twin import NaiveItems, NaiveWindow

KINDS = ("append",) * 8 + ("extend",) * 4 + ("end", "end", "abandon", "reopen", "version") + ("complete",) * 5
STATES = {name: [c for c, (_, _, kind) in columns.items() if kind == "state"] for name, columns in SPECS.items()}

BITS = st.integers(0, 2**24 - 1)
# few ends: a bit is set where three random words agree, about one in eight
FEW_BITS = st.builds(lambda a, b, c: a & b & c, BITS, BITS, BITS)


@st.composite
def ops(draw: st.DrawFn, num_writers: int) -> Op:
    return Op(
        kind=draw(st.sampled_from(KINDS)),
        writer=draw(st.integers(0, num_writers - 1)),
        lanes=draw(st.one_of(st.just(~0), st.integers(0, 255))),
        terminations=draw(FEW_BITS),
        truncations=draw(FEW_BITS),
        gives_next=draw(st.booleans()),
        by_ids=draw(st.booleans()),
        full_size=draw(st.booleans()),
        num_rows=draw(st.integers(0, 5)),
        tail_rows=draw(st.booleans()),
        discount=draw(st.sampled_from((0, 0, 0, 1, 2, 3))),
        scalar_end=draw(st.integers(0, 4)) == 0,
    )


@st.composite
def windows(draw: st.DrawFn) -> NaiveWindow:
    pad = draw(st.sampled_from(("right", "left")))
    if draw(st.integers(0, 3)) == 0:
        at_end = draw(st.sampled_from(("head", "tail")))
        length, bootstrap = draw(st.integers(1, 12)), draw(st.integers(0, 1))
        is_ragged = draw(st.booleans())
        pad = "right" if is_ragged else pad
        return NaiveWindow(length, 0, bootstrap, 0, at_end, pad, True, is_ragged)
    return NaiveWindow(
        length=draw(st.integers(1, 9)),
        burn_in=draw(st.integers(0, 5)),
        bootstrap=draw(st.integers(0, 3)),
        period=draw(st.integers(1, 10)),
        at_end=draw(st.sampled_from(("pad", "shift", "drop", "cross"))),
        pad=pad,
    )


@st.composite
def item_configs(draw: st.DrawFn, columns: str) -> NaiveItems:
    stack = tuple((c, depth) for c in STATES[columns] if (depth := draw(st.integers(1, 4))) > 1)
    return NaiveItems(
        n_step=draw(st.integers(1, 5)),
        gamma=draw(st.sampled_from((1.0, 0.5, 0.25))),
        stack=stack,
        stack_pad=draw(st.sampled_from(("repeat", "zeros"))),
        window=draw(st.one_of(st.none(), windows())),
        least_step=draw(st.sampled_from((0, 0, 0, 1, 2, 4))),
        max_staleness=draw(st.sampled_from((None, None, 0, 2, 6))),
    )


def smallest_capacity(indexes: tuple[NaiveItems, ...], num_lanes: int) -> int:
    """One more a lane than the window: the programmes do not always give next."""
    return num_lanes * (max(items.before for items in indexes) + max(items.spanned for items in indexes) + 1)


@st.composite
def programmes(draw: st.DrawFn, spacious: bool) -> Programme:
    columns = draw(st.sampled_from(sorted(SPECS)))
    indexes = tuple(draw(st.lists(item_configs(columns), min_size=1, max_size=3)))
    writers = tuple(draw(st.lists(st.sampled_from((None, 1, 2, 3, 5)), min_size=1, max_size=2)))
    smallest = smallest_capacity(indexes, sum(size or 1 for size in writers))
    capacity = 4096 if spacious else smallest + draw(st.sampled_from((0, 0, 1, 3, 10, 40)))
    count = draw(st.integers(1, 30 if spacious else 60))
    return Programme(columns, indexes, writers, capacity, tuple(draw(ops(len(writers))) for _ in range(count)))


@given(programmes(spacious=True))
def test_the_live_items_are_exactly_the_twins(programme: Programme) -> None:
    run_programme(programme)


@pytest.mark.thorough
@given(programmes(spacious=False))
def test_a_full_table_gives_only_what_the_twin_knows(programme: Programme) -> None:
    run_programme(programme, check_every=9)


def random_window(rng: random.Random) -> NaiveWindow:
    pad = rng.choice(("right", "left"))
    if rng.random() < 0.25:
        is_ragged, at_end = rng.random() < 0.5, rng.choice(("head", "tail"))
        pad = "right" if is_ragged else pad
        return NaiveWindow(rng.randint(1, 30), 0, rng.randint(0, 1), 0, at_end, pad, True, is_ragged)
    period, at_end = rng.randint(1, 20), rng.choice(("pad", "shift", "drop", "cross"))
    return NaiveWindow(rng.randint(1, 20), rng.randint(0, 12), rng.randint(0, 3), period, at_end, pad)


def random_programme(seed: int, length: int, capacity: int | None, windows: bool = True) -> Programme:
    """The same by an ordinary random generator: much longer programmes than hypothesis likes to build.

    windows: whether some of the items have a time axis.
    """
    rng = random.Random(seed)

    def few_bits() -> int:
        return rng.getrandbits(24) & rng.getrandbits(24) & rng.getrandbits(24)

    columns = rng.choice(sorted(SPECS))
    indexes = tuple(
        NaiveItems(
            rng.randint(1, 5),
            rng.choice((1.0, 0.5)),
            tuple((c, depth) for c in STATES[columns] if (depth := rng.randint(1, 4)) > 1),
            rng.choice(("repeat", "zeros")),
            random_window(rng) if windows and rng.random() < 0.6 else None,
            rng.choice((0, 0, 1, 3)),
            rng.choice((None, None, 0, 3, 9)),
        )
        for _ in range(rng.randint(1, 2))
    )
    writers = tuple(rng.choice((None, 1, 2, 4)) for _ in range(rng.randint(1, 2)))
    smallest = smallest_capacity(indexes, sum(size or 1 for size in writers))
    steps = tuple(
        Op(
            rng.choice(KINDS), rng.randrange(len(writers)), rng.choice((~0, rng.getrandbits(8))),
            few_bits(), few_bits(), rng.random() < 0.6, rng.random() < 0.5, rng.random() < 0.5,
            rng.randint(0, 5), rng.random() < 0.5, rng.choice((0, 0, 0, 1, 2, 3)), rng.random() < 0.2,
        )
        for _ in range(length)
    )  # fmt: skip
    return Programme(columns, indexes, writers, max(smallest, capacity or rng.choice((smallest, 30, 100, 300))), steps)


@pytest.mark.forms(6)
@pytest.mark.parametrize("seed", range(12))
def test_long_random_programmes(seed: int, profile_scale: int) -> None:
    for extra in range(profile_scale):
        run_programme(random_programme(1000 * extra + seed, 250, None), check_every=50)


@pytest.mark.parametrize("seed", range(4))
def test_long_random_programmes_in_a_table_that_never_fills(seed: int) -> None:
    run_programme(random_programme(100 + seed, 150, 1 << 14), check_every=75)


@needs_shared_memory
@pytest.mark.parametrize("seed", range(3))
def test_the_same_in_shared_memory(seed: int, shm_name) -> None:
    run_programme(random_programme(200 + seed, 120, None), storage=relive.SharedMemory(shm_name()), check_every=40)


@pytest.mark.parametrize("columns", sorted(SPECS))
@pytest.mark.parametrize("by_extend", [False, True])
def test_the_smallest_table_there_is(columns: str, by_extend: bool) -> None:
    """Capacity 1: one lane, n_step 1, no stack, next given. The last step is always there, and nothing else."""
    rng = random.Random(columns)
    op = Op("append", gives_next=True)
    steps = tuple(
        dataclasses.replace(
            op,
            terminations=rng.random() < 0.2,
            truncations=rng.random() < 0.2,
            kind="extend" if by_extend and rng.random() < 0.5 else "append",
            num_rows=rng.randint(0, 5),
        )
        for _ in range(40)
    )
    driver = run_programme(Programme(columns, (NaiveItems(),), (None,), 1, steps), check_every=1)
    assert len(driver.twin.keys) >= 40


def counting_spec() -> relive.StepSpec:
    observation = relive.ArraySpec((), "int64", kind="state")
    return relive.StepSpec({"observation": observation, "reward": relive.ArraySpec((), "float32")})


@pytest.mark.parametrize("n_step", [1, 2, 3, 5])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_newest_item_is_there_at_the_smallest_capacity(n_step: int, depth: int) -> None:
    """One lane with room for one window: after each append the item that it completed can be gathered and drawn."""
    stack = {"observation": depth} if depth > 1 else {}
    spec = counting_spec()
    index = relive.Index(relive.Transitions(n_step=n_step, gamma=1.0, stack=stack))
    with relive.Table(spec, n_step + depth - 1, index) as table, table.writer() as writer:
        keys = []
        for t in range(100):
            keys.append(writer.append(observation=t, reward=1.0, next_observation=t + 1))
            assert len(table) <= n_step + depth - 1
            if t >= n_step - 1:
                batch = table.gather(np.asarray(keys[t - n_step + 1 : t - n_step + 2]))
                assert batch.present.all(), f"after append {t}"
                assert np.ravel(batch["observation"])[-1] == t - n_step + 1
                assert np.ravel(batch["next_observation"])[-1] == t + 1
                assert batch["reward"][0] == n_step
                assert table.sample(4, timeout_s=0.0)["reward"].tolist() == [n_step] * 4


@pytest.mark.parametrize("n_step", [1, 3])
def test_ordinary_gammas_agree_to_rounding(n_step: int) -> None:
    """gamma 0.99 is not exact in float32: the sums agree to the last few bits, whatever order they are added in."""
    rng = np.random.default_rng(3)
    rewards = rng.normal(size=200).astype(np.float32)
    spec = counting_spec()
    with relive.Table(spec, 1000, relive.Index(relive.Transitions(n_step=n_step, gamma=0.99))) as table:
        with table.writer() as writer:
            keys = writer.extend(observation=np.arange(201), reward=rewards, truncated=True)
        batch = table.gather(keys)
        padded = np.concatenate([rewards.astype(np.float64), np.zeros(n_step)])
        expected = sum(0.99**k * padded[k : k + 200] for k in range(n_step))
        np.testing.assert_allclose(batch["reward"], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(batch["discount"], 0.99 ** np.minimum(n_step, 200 - np.arange(200)), rtol=1e-6)
