"""Draws by ranks against a dict: every draw's probabilities are those of a sorted list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relive
from naive.rank_law import expected
from naive.test_naive_priorities import NaivePriorities, calls, long_programme, run


class NaiveRanks(NaivePriorities):
    """The same items; what they are drawn with follows from their places in order."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler.initial)
        self.sampler = sampler

    def probabilities(self) -> dict[int, float]:
        shares = expected(self.sampler, np.array(list(self.live.values()))).tolist() if self.live else []
        return {key: share for key, share in zip(self.live, shares, strict=True) if share > 0}


@given(
    kind=st.sampled_from((relive.RankBased, relive.TopK)),
    parameter=st.sampled_from((1.0, 0.5, 0.1)),
    initial=st.sampled_from(("max", "given", 2.0, 0.0)),
    programme=st.lists(calls(), min_size=1, max_size=40),
)
def test_probabilities_are_the_twins(
    kind: Any, parameter: float, initial: Any, programme: list[tuple[str, Any]]
) -> None:
    sampler = kind(parameter, initial)
    run(NaiveRanks(sampler), sampler, programme, check_every=10)


@pytest.mark.parametrize("sampler", [relive.RankBased(1.0), relive.TopK(30), relive.TopK(0.2, "given")], ids=repr)
def test_long_programmes(sampler: Any) -> None:
    run(NaiveRanks(sampler), sampler, long_programme(), check_every=300)
