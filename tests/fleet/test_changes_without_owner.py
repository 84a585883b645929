"""Changes by key of a mapped shard while it has no owner: they reach its memory, as the rows of writers do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contract.tools import step, write_steps
from processes.shm import needs_shared_memory
from processes.test_locks import stopped_holder
from processes.tools import eventually

import relive
from fleet.tools import Owner, config_of, fill
from relive import errors
from relive.fleet import ShardOwner, attach, mapped

pytestmark = needs_shared_memory
LATE = relive.StepSpec({"a": relive.ArraySpec((), "int64"), "r": relive.ArraySpec((), "float32", late=True)})
QUEUE = relive.Index(sampler=relive.Fifo(), limiter=relive.Queue(16), max_times_sampled=1)
GIVEN = relive.Index(sampler=relive.Prioritized(1.0, initial="given"))


def rows(count: int) -> dict[str, Any]:
    return {"a": np.arange(count), "truncated": True}


def late_config(name: str) -> relive.TableConfig:
    return relive.TableConfig(LATE, 1000, QUEUE, relive.SharedMemory(name))


@pytest.mark.parametrize("count", [1, 2])
def test_late_values_reach_rows_of_a_mapped_shard_without_an_owner(
    shm_name: Any, owners: list[Owner], count: int
) -> None:
    """Rows are written there, too, while the owner is away: their values must not be lost."""
    configs = [late_config(shm_name()) for _ in range(count)]
    owners += [Owner(number, config) for number, config in enumerate(configs)]
    with attach([config.storage.name for config in configs], timeout_s=60.0) as table:  # type: ignore[union-attr]
        last = count - 1
        writers = [table.writer(shard=number) for number in range(count)]
        keys = [writer.extend(**rows(4)) for writer in writers]
        owners[last].kill()
        assert table.stats().shards[last].state == "dead"
        keys.append(writers[last].extend(**rows(3)))
        far, given = keys[-1], np.concatenate(keys)
        assert table.complete(far[:1], r=[9.0]) == 1
        with pytest.raises(errors.AlreadyCompleted) as caught:
            table.complete(given, r=np.zeros(len(given)))
        assert (caught.value.position, caught.value.key, caught.value.applied) == (len(given) - 3, far[0], 0)
        values = np.arange(1.0, len(given))
        assert table.complete(np.delete(given, len(given) - 3), r=values) == len(values)
        assert not table.gather(far).present.any(), "reads leave the shard out"

        owners.append(Owner(last, configs[last]))
        assert owners[-1].is_restored
        stats = table.stats()
        assert stats.indexes["default"].pending == 0 and table.num_items() == len(given)
        assert table.gather(given)["r"].tolist() == [*values[:-2], 9.0, *values[-2:]]
        assert sorted(table.sample(len(given)).item_keys.tolist()) == sorted(given.tolist())
        table.check()


def test_the_items_of_a_shard_without_an_owner_take_no_room_of_the_queue(shm_name: Any, owners: list[Owner]) -> None:
    """Not for its own writers, either. The bound acts in its region, too."""
    configs = [config_of(shm_name(), QUEUE) for _ in range(2)]
    owners.append(Owner(1, configs[1]))
    names = [config.storage.name for config in configs]  # type: ignore[union-attr]
    with ShardOwner(0, configs[0]), attach(names, timeout_s=5.0) as table:
        near, far = (table.writer(shard=number) for number in (0, 1))
        write_steps(far, 0, 10, truncated=True)
        owners[0].kill()
        assert table.stats().shards[1].state == "dead"
        write_steps(near, 0, 6, truncated=True)
        write_steps(far, 10, 6, truncated=True)
        with pytest.raises(errors.DeadlineExceeded):
            far.append(**step(16, 17, truncated=True), timeout_s=0.0)


def test_priorities_and_deletions_reach_a_mapped_shard_without_an_owner(shm_name: Any, owners: list[Owner]) -> None:
    configs = [config_of(shm_name(), GIVEN) for _ in range(2)]
    owners.append(Owner(1, configs[1]))
    names = [config.storage.name for config in configs]  # type: ignore[union-attr]
    with ShardOwner(0, configs[0]), attach(names) as table:
        keys = np.concatenate([fill(table, number, 10 * number, 10) for number in (0, 1)])
        owners[0].kill()
        with pytest.raises(errors.InvalidPriority):
            table.update_priorities(keys, np.append(np.ones(19), -1.0))
        assert table.update_priorities(keys, np.arange(1.0, 21.0)) == 20
        assert table.delete(keys[8:12]) == 4
        owners.append(Owner(1, configs[1]))
        found = table.gather(keys, columns=["priority"])
        assert found.present.tolist() == [True] * 8 + [False] * 4 + [True] * 8
        assert found["priority"][found.present].tolist() == [*range(1, 9), *range(13, 21)]
        assert table.num_items() == 16
        table.check()


def test_a_lock_that_is_stuck_without_an_owner_costs_one_wait_and_then_lets_values_in(
    shm_name: Any, owners: list[Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process in the lock is stopped, and then dies there."""
    configs = [late_config(shm_name()) for _ in range(2)]
    owners.append(Owner(1, configs[1]))
    names = [config.storage.name for config in configs]  # type: ignore[union-attr]
    with ShardOwner(0, configs[0]), attach(names, timeout_s=60.0) as table:
        near, far = (table.writer(shard=number).extend(**rows(4)) for number in (0, 1))
        owners[0].kill()
        with stopped_holder(names[1]) as holder:
            assert table.complete(np.concatenate([near, far]), r=np.arange(8.0)) == 4
            monkeypatch.setattr(mapped, "STALL_S", 3600.0)
            table._fleet.shards[1].stalls()
            assert table.complete(far, r=np.arange(4.0)) == 0, "the lock is tried once, without a wait"
            holder.kill()
        assert table.complete(far, r=np.arange(4.0)) == 4
        owners.append(Owner(1, configs[1]))
        monkeypatch.undo()
        table._fleet.shards[1].stalls()
        assert eventually(lambda: table.num_items() == 8)
        table.check()
