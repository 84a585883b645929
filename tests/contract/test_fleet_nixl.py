"""The contract, held by a table over two shards of another process, whose rows are read one-sidedly by NIXL.

As test_fleet_remote.py, whose owners send rows; what the reader does not read (use counts, kind start) its owner sends.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

from fleet.owning import Owners
from fleet.tools import TRANSPORTS, needs_nixl

from contract.over_shards import classes_of, making
from contract.tools import Opening
from relive.fleet.onesided.nixl_agent import shared_agent

pytestmark = [needs_shared_memory, needs_nixl]


@pytest.fixture(scope="module")
def owners() -> Iterator[Owners]:
    """With an agent on both sides that outlasts a test: to begin one takes longer than most of them."""
    one = Owners(**TRANSPORTS)
    one.ask("shared_agent")
    agent = shared_agent()
    yield one
    agent.let_go()
    one.close()


class Fleet:
    """Owned over there; writers go to the first."""

    @pytest.fixture(scope="class")
    @classmethod
    def opening(cls, owners: Owners) -> Opening:
        return lambda stack, fresh: making(stack, fresh, owners.owning(stack), path="nixl")


CLASSES = classes_of(Fleet, "TestNixlFleet")
# The other suites read no rows in another way than these, and test_fleet_remote.py makes the same calls.
OFTEN = ("Reading", "Sequences", "Items", "Late", "Orders", "Abandon")
for _name, _class in CLASSES.items():
    if _name.removeprefix("TestNixlFleet") not in OFTEN:
        pytest.mark.thorough(_class)
globals().update(CLASSES)
