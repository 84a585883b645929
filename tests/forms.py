"""Which forms of a parametrized test `make test` runs: `forms(k)` keeps k of them, and `make test-all` runs all.

The k forms are spread evenly over the test's list, from a place that the test's name gives: else the first value of a
parameter would run for every test and the last for none. They are the same in every run. The other forms are marked
`thorough`. Without `-m`, pytest runs all forms.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable

import pytest


def kept(name: str, count: int, most: int) -> set[int]:
    """The numbers of `most` among `count` forms of a test, spread evenly; all where there are no more."""
    start = zlib.crc32(name.encode())
    return {(start + at * count // most) % count for at in range(most)} if most < count else {*range(count)}


def mark_the_rest(items: Iterable[pytest.Item]) -> None:
    """Marks as thorough each form that is not kept of a test with `forms`."""
    tests: dict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("forms") is not None:
            assert item.parent is not None
            tests[item.parent.nodeid, getattr(item, "originalname", item.name)].append(item)
    for (_, name), forms in tests.items():
        marker = forms[0].get_closest_marker("forms")
        assert marker is not None
        numbers = kept(name, len(forms), marker.args[0])
        for number, item in enumerate(forms):
            if number not in numbers:
                item.add_marker(pytest.mark.thorough)
