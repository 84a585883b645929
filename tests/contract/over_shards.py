"""What a table over several shards refuses of the contract, in the place of the cases that need it (docs/fleet.md)."""

from __future__ import annotations

import pytest

import relive
from contract.limits import LimitsSuite
from contract.tools import MakeTable, plain_spec, prioritized, write_steps
from contract.where_index import WhereIndexSuite
from relive.fleet import NotOverShards


class ShardedWhereIndexSuite(WhereIndexSuite):
    def test_a_draw_with_a_condition_from_an_index_with_one(self, make_table: MakeTable) -> None:
        """The share that passes is not known over all shards; the index's own condition goes on."""
        table = make_table(plain_spec(), 100, prioritized(where="action < 20"))
        with table.writer() as writer:
            write_steps(writer, 0, 40)
            with pytest.raises(NotOverShards, match="where="):
                table.sample(100, where="action > 10")
            assert max(table.sample(100)["action"].tolist()) < 20


class ShardedLimitsSuite(LimitsSuite):
    def test_changing_limiters_and_who_waits(self, make_table: MakeTable) -> None:
        """It would have to reach every handle; the limiter that the shards were made with stays."""
        table = make_table(plain_spec(), 100, relive.Index(limiter=relive.MinSize(50)), max_lanes=4)
        with pytest.raises(NotOverShards, match="set_limiter"):
            table.set_limiter(relive.MinSize(10))
        assert table.limiter() == relive.MinSize(50)
