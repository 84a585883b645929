"""The contract, held by a table over two shards of another process, reached over loopback as those of another host.

Left out, with reasons:
- what a table over shards leaves out on every path (over_shards.py).
- "told at once" (WaitsForItself): as for every remote table, a client cannot know that no other client is connected.
- the same draws in every run: items are drawn with the random numbers of the shards' owners.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from fleet.owning import Owners

from contract.over_shards import classes_of, making
from contract.tools import Opening

pytestmark = needs_shared_memory


@pytest.fixture(scope="module")
def owners() -> Iterator[Owners]:
    one = Owners()
    yield one
    one.close()


class Fleet:
    """Owned over there; writers go to the first."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls, owners: Owners) -> Opening:
        return lambda stack, fresh: making(stack, fresh, owners.owning(stack), path="service")


CLASSES = classes_of(Fleet, "TestRemoteFleet")
# The handle refuses wrong types before it asks an owner, as in test_fleet.py. tests/fleet/test_groups.py has shards of
# this path, too.
for _suite in ("BadTypes", "Groups", "PromptGroups"):
    pytest.mark.thorough(CLASSES[f"TestRemoteFleet{_suite}"])
globals().update(CLASSES)
