"""The figures of docs/design/fleet.md follow from the measured ones, and the formulas from what they say."""

from __future__ import annotations

import math

import pytest

paper = pytest.importorskip("benchmarks.fleet_paper", reason="measurements lie in the source tree only")


def test_the_page_says_what_the_results_say() -> None:
    """`python -m benchmarks.fleet_paper` after `make bench-fleet`."""
    page = paper.PAGE.read_text()
    assert paper.page_with(paper.block(*paper.measured()), page) == page


def test_the_parts_of_a_batch() -> None:
    local, remote = paper.Line(10e-6, 4e9), paper.Line(100e-6, 1e9)
    alone = paper.split(4e6, 1, 1e-3, local, remote)
    assert alone == (0.0, 10e-6 + 1e-3, 0.0, 0.0)
    four = paper.split(4e6, 4, 1e-3, local, remote)
    assert four == pytest.approx((3e-3 / paper.ROOT_AGE, 10e-6 + 0.25e-3, 300e-6, 3e-3))
    assert four.total_s == pytest.approx(sum(four))


def test_a_line_goes_through_what_was_measured() -> None:
    line = paper.Line.through((1e3, 11e-6), (1e6, 1010e-6))
    assert line.fixed_s == pytest.approx(10e-6) and line.bytes_per_s == pytest.approx(1e9)
    assert paper.Line.through((1e3, 1e-6), (1e6, 1.0)).fixed_s >= 0.0


def test_no_machine_gets_more_than_its_line_carries() -> None:
    quick = paper.Split(0.0, 1e-6, 0.0, 0.0)
    rate = paper.machine_rate(1e6, 4, quick)
    assert math.isclose(rate * 3 / 4, paper.LINE_BYTES_PER_S)
    assert paper.machine_rate(1e6, 1, quick) == paper.RANKS * 1e6 / 1e-6
