"""A serving process for these tests; all are skipped where pyarrow is not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from processes.shm import needs_shared_memory

from service.hosts import Host


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if "tests/service" in str(item.path):
            item.add_marker(needs_shared_memory)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """One for the tests of a module that leave it whole."""
    one = Host()
    yield one
    one.close()


@pytest.fixture
def start_host() -> Iterator[Callable[[], Host]]:
    """Processes of the test's own, to be killed."""
    started: list[Host] = []

    def start() -> Host:
        started.append(Host())
        return started[-1]

    yield start
    for one in started:
        if one.process.is_alive():
            one.kill()
