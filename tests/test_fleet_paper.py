"""The figures of docs/design/fleet.md follow from the measured ones, and the formulas from what they say."""

from __future__ import annotations

import math

import pytest

paper = pytest.importorskip("benchmarks.fleet_paper", reason="measurements lie in the source tree only")


def test_the_page_says_what_the_results_say() -> None:
    """`python -m benchmarks.fleet_paper` after `make bench-fleet`."""
    for path, text in paper.pages().items():
        page = path.read_text()
        assert paper.page_with(text, page) == page, path


def test_losing_rows_come_first() -> None:
    times = {
        f"{load}, {name}{way}, {size}": 1e-3
        for load, (*_, sizes) in paper.trajectories.LOADS.items()
        for size in sizes
        for name in (paper.SERVICE, "two shards by service", *paper.PEERS)
        for way in ("", ", ahead")
    }
    times["episodes, Reverb, ahead, 256"] = 0.5e-3
    busy = {"episodes, two shards by service, 256": 1.25, "episodes, two shards by service, ahead, 256": 1.75}
    first, second, *_ = paper.comparison(times, busy).splitlines()[2:]
    assert first.endswith("| 1.25 (1.75) |") and second.endswith("|  |")
    assert "256 episodes" in first and "| 0.50 |" in first and "256 transitions" in second and "| 1.00 |" in second


def test_the_formula() -> None:
    local, remote, asked = paper.Line(10e-6, 4e9), paper.Line(100e-6, 1e9), paper.Batch(2, 4e6)
    assert paper.batch_s(asked, 1, 1e-3, local, remote, True) == pytest.approx(10e-6 + 1e-3)
    rest = 3e-3 / paper.ROOT_AGE + 10e-6 + 0.25e-3 + 3e-3
    assert paper.batch_s(asked, 4, 1e-3, local, remote, True) == pytest.approx(rest + 100e-6)
    assert paper.batch_s(asked, 4, 1e-3, local, remote, False) == pytest.approx(rest + 200e-6), "two items, two shards"


def test_a_line_goes_through_what_was_measured() -> None:
    line = paper.Line.through((1e3, 11e-6), (1e6, 1010e-6))
    assert line.fixed_s == pytest.approx(10e-6) and line.bytes_per_s == pytest.approx(1e9)
    assert paper.Line.through((1e3, 1e-6), (1e6, 1.0)).fixed_s >= 0.0


def test_no_machine_gets_more_than_its_line_carries() -> None:
    rate = paper.machine_rate(1e6, 4, 1e-6)
    assert math.isclose(rate * 3 / 4, paper.LINE_BYTES_PER_S)
    assert paper.machine_rate(1e6, 1, 1e-6) == paper.RANKS * 1e6 / 1e-6
