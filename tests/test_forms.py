"""`forms(k)`: which forms of a test run in `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest
from forms import kept

pytest_plugins = ["pytester"]

TESTS = """
import pytest

@pytest.mark.forms(2)
@pytest.mark.parametrize("number", range(5))
def test_numbers(number): ...

@pytest.mark.forms(9)
@pytest.mark.parametrize("letter", "ab")
class TestLetters:
    def test_one(self, letter): ...
    def test_other(self, letter): ...

def test_plain(): ...
"""
CONFTEST = """
import sys
sys.path.insert(0, {folder!r})

def pytest_configure(config):
    for marker in ("forms(k)", "thorough"):
        config.addinivalue_line("markers", marker)

import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    from forms import mark_the_rest
    mark_the_rest(items)
"""


def test_kept_forms_are_spread_from_a_place_of_the_name() -> None:
    assert kept("a", 4, 4) == kept("b", 4, 9) == {0, 1, 2, 3} and kept("c", 0, 2) == set()
    for count in range(1, 60):
        for most in range(1, count):
            numbers = sorted(kept("name", count, most))
            assert len(numbers) == most and numbers == sorted(kept("name", count, most))
            gaps = [after - before for before, after in zip(numbers, [*numbers[1:], count + numbers[0]], strict=True)]
            assert max(gaps) - min(gaps) <= 1
    assert {min(kept(f"test_{one}", 3, 1)) for one in range(20)} == {0, 1, 2}


def test_make_test_runs_the_kept_forms_alone(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.format(folder=str(Path(__file__).parent)))
    pytester.makepyfile(TESTS)
    chosen = pytester.runpytest("-v", "-m", "not thorough")
    chosen.assert_outcomes(passed=7, deselected=3)
    assert sum("::test_numbers[" in line for line in chosen.outlines) == 2
    pytester.runpytest().assert_outcomes(passed=10)
