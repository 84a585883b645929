"""Random programmes that save their table and go on with the loaded one: every item and every key equals the twin."""

from __future__ import annotations

import dataclasses
import random

import pytest

from naive.compare import run_programme
from naive.program import Op, Programme
from naive.test_naive import random_programme


def with_reloads(programme: Programme, seed: int, every: int) -> Programme:
    """The programme with a save and a load after about every so many operations."""
    rng = random.Random(seed)
    ops: list[Op] = []
    for op in programme.ops:
        ops.append(op)
        if rng.randrange(every) == 0:
            ops.append(Op("reload"))
    return dataclasses.replace(programme, ops=(*ops, Op("reload")))


@pytest.mark.forms(4)
@pytest.mark.parametrize("seed", range(12))
def test_a_full_table_goes_on_after_a_load(seed: int, profile_scale: int) -> None:
    for extra in range(profile_scale):
        number = 5000 + 1000 * extra + seed
        run_programme(with_reloads(random_programme(number, 120, None), number, 15), check_every=25)


@pytest.mark.parametrize("seed", range(4))
def test_a_table_that_never_fills_goes_on_after_a_load(seed: int) -> None:
    run_programme(with_reloads(random_programme(900 + seed, 120, 1 << 14), seed, 20), check_every=60)
