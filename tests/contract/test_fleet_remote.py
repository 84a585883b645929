"""The contract, held by a table over two shards of another process, reached over loopback as those of another host.

Left out, with reasons:
- what a table over shards leaves out on every path (over_shards.py).
- "told at once" (WaitsForItself): as for every remote table, nobody here knows that nobody else is connected.
- the same draws in every run: items are drawn with the random numbers of the shards' owners.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from fleet.owning import Owners

from contract.over_shards import classes_of, making
from contract.tools import MakeTable

pytestmark = needs_shared_memory


@pytest.fixture(scope="module")
def owners() -> Iterator[Owners]:
    one = Owners()
    yield one
    one.close()


class Fleet:
    """Owned over there; writers go to the first."""

    @pytest.fixture
    def make_table(self, owners: Owners, shm_name: Any) -> Iterator[MakeTable]:
        with contextlib.ExitStack() as stack:
            yield making(stack, shm_name, owners.owning(stack), path="service")


globals().update(classes_of(Fleet, "TestRemoteFleet"))
