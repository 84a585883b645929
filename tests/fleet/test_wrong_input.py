"""Values of a wrong type, given to the public calls of tables over shards: an error of relive, at once, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from fleet.tools import config_of, fill
from relive import errors
from relive.fleet import Alone, GroupReader, ShardedTable, ShardOwner, attach, saved

pytestmark = needs_shared_memory
WRONG: list[Any] = ["token", 0, [1], {1: 2}, np.zeros(2), object()]


class Announces(Alone):
    """An exchange of one rank that can broadcast; the head of its last call."""

    rank = 0

    def broadcast(self, given: Any, num_bytes: int, source: int, timeout_s: float) -> Any:
        return given

    def all_gather(self, mine: bytes, timeout_s: float) -> list[bytes]:
        self.head = mine
        return [mine] * self.world


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_shards_opened_with_what_is_no_access_and_no_path(shm_name: Any, wrong: Any) -> None:
    name = shm_name()
    with ShardOwner(0, config_of(name)):
        with pytest.raises(errors.InvalidConfig, match="access"):
            attach([name], access=wrong)
        with pytest.raises(errors.InvalidConfig, match="path"):
            attach([name], path=wrong)
        with pytest.raises(errors.InvalidConfig, match="exchange"):
            GroupReader(None, wrong)
    for tables in (wrong, [wrong], []):
        with pytest.raises(errors.InvalidConfig):
            ShardedTable.over(tables)


@pytest.mark.parametrize("wrong", [-1, None, 1.5, 2**64, "x", True])
def test_a_wrong_number_of_a_draw_changes_nothing(shm_name: Any, wrong: Any) -> None:
    name = shm_name()
    with ShardOwner(0, config_of(name)) as owner, attach([name]) as table:
        fill(table, 0, 0, 20)
        for one in (table, owner.table):
            with pytest.raises(errors.InvalidConfig, match="next draw"):
                one.number_draws(wrong)
        assert table.next_draw == 0 and table.sample(4).num_items == 4


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_shards_served_behind_what_is_no_door(shm_name: Any, wrong: Any) -> None:
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    with ShardOwner(0, config_of(shm_name())) as owner:
        with pytest.raises(errors.InvalidConfig, match="door"):
            owner.serve(door=wrong)
        with pytest.raises(errors.InvalidConfig, match="options"):
            relive.service.serve({"t": owner.table}, "grpc://127.0.0.1:0", wrong)
        with pytest.raises(errors.InvalidConfig):
            relive.service.serve(wrong, "grpc://127.0.0.1:0")
        with relive.service.serve({"t": owner.table}, "grpc://127.0.0.1:0") as server:
            with pytest.raises(errors.NoSuchTable):
                server.parameters(wrong)
            if not isinstance(wrong, int):
                with pytest.raises(errors.InvalidConfig, match="port"):
                    server.serve_metrics(wrong)


def test_the_blob_of_a_save_has_a_text_as_name(shm_name: Any, tmp_path: Any) -> None:
    with ShardOwner(0, config_of(shm_name())) as owner, attach([owner.table.config.storage.name]) as table:  # type: ignore[union-attr]
        table.save(tmp_path / "save")
    for wrong in WRONG[1:]:
        with pytest.raises(errors.InvalidConfig, match="blob"):
            saved(tmp_path / "save").blob(wrong)


def test_a_leader_tells_the_others_about_an_error_that_is_not_of_relive(
    shm_name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, exchange = shm_name(), Announces()
    with ShardOwner(0, config_of(name)), attach([name]) as table:
        reader = GroupReader(table, exchange)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidConfig, match="columns"):
            reader.sample(2, columns=3)  # type: ignore[arg-type]

        def fail(*values: Any) -> Any:
            raise MemoryError("no room for the batch")

        monkeypatch.setattr(table, "held_draws", fail)
        with pytest.raises(MemoryError):
            reader.sample(2)
        assert b"MemoryError: no room for the batch" in exchange.head
