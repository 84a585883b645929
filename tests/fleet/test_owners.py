"""The memory of a shard: when it stays, what a new owner takes over, and what removes it."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.tools import prioritized
from processes.interrupts import interrupted_at
from processes.shm import needs_shared_memory, shared_files
from processes.tools import eventually

import relive
from fleet.tools import CONTEXT, Owner, config_of, fill
from relive import errors
from relive.config.table_config import TableConfig
from relive.fleet import ShardOwner, attach
from relive.fleet import owner as owner_module

pytestmark = needs_shared_memory


def stored_with(name: str, number: int = 0, **storage: Any) -> TableConfig:
    """The configuration of a shard with these options of its shared memory."""
    config = config_of(name)
    return TableConfig(config.spec, config.capacity, config.index, relive.SharedMemory(name, **storage))


def killed(owners: list[Owner], *configs: TableConfig) -> list[Any]:
    """Shards with ten steps each whose owners are killed. No process is attached. Returns the keys of each shard."""
    made = [Owner(number, config) for number, config in enumerate(configs)]
    owners += made
    keys = []
    with attach([config.storage.name for config in configs]) as table:  # type: ignore[union-attr]
        for number in range(len(configs)):
            keys.append(fill(table, number, 10 * number, 10))
    for owner in made:
        owner.kill()
    return keys


# ---- the memory of a killed owner ------------------------------------------------------------------------------------


def test_the_memory_of_a_killed_owner_stays_after_the_last_close(shm_name: Any, owners: list[Owner]) -> None:
    name = shm_name()
    owners.append(Owner(0, config_of(name)))
    with attach([name]) as table:
        keys = fill(table, 0, 0, 10)
        owners[0].kill()
        more = fill(table, 0, 10, 5)  # a writer of a mapped shard goes on without an owner
        assert not table.gather(more).present.any()
    relive.attach(name).close()
    with ShardOwner(0, config_of(name)) as again:
        assert again.is_restored and again.table.gather(np.concatenate([keys, more])).present.all()
    assert shared_files(name) == [], "the owner was closed"


def test_a_refused_attach_leaves_the_memory_of_killed_owners(shm_name: Any, owners: list[Owner]) -> None:
    names = [shm_name(), shm_name()]
    keys = killed(owners, *map(config_of, names))
    with pytest.raises(errors.NoSuchTable):
        attach([*names, shm_name()])
    with pytest.raises(errors.InvalidConfig):
        attach(names, local=7)
    for number, name in enumerate(names):
        with ShardOwner(number, config_of(name)) as again:
            assert again.is_restored and again.table.gather(keys[number]).present.all()


def test_the_memory_of_an_owner_that_took_over_and_is_killed_stays(shm_name: Any, owners: list[Owner]) -> None:
    name = shm_name()
    (keys,) = killed(owners, config_of(name))
    owners.append(Owner(0, config_of(name)))
    with attach([name]):
        owners[-1].kill()
    with ShardOwner(0, config_of(name)) as again:
        assert again.is_restored and again.table.gather(keys).present.all()


def test_the_memory_of_a_killed_owner_is_removed_by_its_name(shm_name: Any, owners: list[Owner]) -> None:
    name = shm_name()
    killed(owners, config_of(name))
    relive.remove(name)
    assert shared_files(name) == []
    killed(owners, config_of(name))
    relive.Table(config_of(name).spec, 100, storage=relive.SharedMemory(name)).close()  # a table replaces what was left
    assert shared_files(name) == []


# ---- the end of an ownership -----------------------------------------------------------------------------------------


def test_after_the_close_of_the_owner_the_last_handle_removes_the_memory(shm_name: Any) -> None:
    name = shm_name()
    owner = ShardOwner(0, config_of(name))
    with attach([name]):
        owner.close()
        assert shared_files(name) != []
    assert shared_files(name) == []


def test_memory_with_keep_stays_after_the_close_of_the_owner(shm_name: Any) -> None:
    name = shm_name()
    for is_restored in (False, True):
        with ShardOwner(0, stored_with(name, keep=True)) as owner:
            assert owner.is_restored is is_restored
    with ShardOwner(0, config_of(name)):
        pass
    assert shared_files(name) == [], "the last owner decides"


@pytest.mark.parametrize("is_attached", [False, True])
def test_an_owner_whose_table_was_closed_before_it_leaves_nothing(shm_name: Any, is_attached: bool) -> None:
    name = shm_name()
    owner = ShardOwner(0, config_of(name))
    other = attach([name]) if is_attached else None
    owner.table.close()
    owner.close()
    if other is not None:
        assert shared_files(name) != []
        other.close()
    assert shared_files(name) == []


def test_an_owner_that_the_program_drops_ends_as_by_close(shm_name: Any) -> None:
    name = shm_name()
    owner = ShardOwner(0, config_of(name))
    with attach([name]) as table:
        del owner
        gc.collect()
        assert [one.state for one in table.stats().shards] == ["dead"]
        with ShardOwner(0, config_of(name)) as again:
            assert again.is_restored
    assert shared_files(name) == []


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_served_owner_that_the_program_drops_stops_serving(shm_name: Any, is_replaced: bool) -> None:
    """is_replaced: another owner of this process takes over the address, and the shard, which a handle keeps."""
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    name = shm_name()
    owner = ShardOwner(0, config_of(name))
    place = owner.serve()
    address = place.rpartition("/")[0]
    kept = attach([name]) if is_replaced else nullcontext()
    with attach([place], path="service") as table, kept:
        keys = fill(table, 0, 0, 10)
        del owner
        gc.collect()
        if is_replaced:
            with ShardOwner(0, config_of(name)) as again:
                assert again.is_restored and again.serve(address) == place
                assert eventually(lambda: table.gather(keys).present.all())
        else:
            assert eventually(lambda: not listens(address), 60.0)
    assert eventually(lambda: shared_files(name) == [], 60.0)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_new_owner_finds_the_memory_of_a_served_owner_that_was_dropped_only_if_it_is_kept(
    shm_name: Any, keeps: bool
) -> None:
    """The server of the dropped owner is closed before the new owner looks for a region."""
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    name = shm_name()
    owner = ShardOwner(0, stored_with(name, keep=keeps))
    owner.serve()
    with attach([name]) as table:
        fill(table, 0, 0, 10)
    del table, owner
    gc.collect()
    with ShardOwner(0, config_of(name)) as again:
        assert again.is_restored is keeps and len(again.table) == (10 if keeps else 0)
    assert shared_files(name) == []


def listens(address: str) -> bool:
    host, _, port = address.removeprefix("grpc://").partition(":")
    with suppress(ConnectionRefusedError), socket.create_connection((host, int(port)), 10.0):
        return True
    return False


ENDS = """
import sys
from fleet.tools import config_of
from relive.fleet import ShardOwner

owner = ShardOwner(0, config_of(sys.argv[1]))
"""


def test_a_program_that_ends_without_a_close_leaves_nothing(shm_name: Any) -> None:
    name = shm_name()
    subprocess.run([sys.executable, "-c", ENDS, name], check=True, timeout=60, cwd=Path(__file__).parents[1])
    assert shared_files(name) == []


def own_and_return(name: str) -> None:
    """The work of a process that ends with an open owner."""
    _kept.append(ShardOwner(0, config_of(name)))


_kept: list[ShardOwner] = []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_that_ends_without_a_close_leaves_nothing(shm_name: Any, method: str) -> None:
    name = shm_name()
    child = CONTEXT.get_context(method).Process(target=own_and_return, args=(name,), daemon=True)
    child.start()
    child.join(60.0)
    assert child.exitcode == 0 and shared_files(name) == []


@pytest.mark.parametrize("is_served", [False, True])
def test_a_table_that_the_program_drops_leaves_no_descriptor(shm_name: Any, is_served: bool) -> None:
    name = shm_name()
    if is_served:
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")
    with ShardOwner(0, config_of(name)) as owner:
        place = owner.serve() if is_served else name
        before = descriptors_of(name)
        for _ in range(3):
            table = attach([place])
            assert descriptors_of(name) > before
            del table
            gc.collect()
        assert descriptors_of(name) == before


def descriptors_of(name: str) -> int:
    """The number of this process's descriptors of that shared memory."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # such as that of the listing
            found += os.readlink(f"/proc/self/fd/{descriptor}").endswith(f"-{name}")
    return found


def in_forked_child(call: Callable[[], Any]) -> None:
    """Runs the call in a forked child, and waits for the end of the child."""
    child = os.fork()
    if child == 0:
        try:
            call()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_a_forked_child_of_the_owner_does_not_end_the_ownership(shm_name: Any) -> None:
    name = shm_name()
    kept = [ShardOwner(0, config_of(name))]
    with attach([name]) as table:
        keys = fill(table, 0, 0, 10)
        in_forked_child(kept[0].close)
        in_forked_child(lambda: (kept.clear(), gc.collect()))
        assert [one.state for one in table.stats().shards] == ["live"]
        kept[0].let_go()  # as by a kill
        kept[0].table.close()
    with ShardOwner(0, config_of(name)) as again:
        assert again.is_restored and again.table.gather(keys).present.all()
    assert shared_files(name) == []


# ---- the configuration of a new owner --------------------------------------------------------------------------------

STORAGES: list[dict[str, Any]] = [{}, {"overwrite": True}, {"keep": True}]


@pytest.mark.parametrize("before", STORAGES, ids=str)
@pytest.mark.parametrize("after", STORAGES, ids=str)
def test_a_new_owner_takes_over_memory_of_other_options_and_overwrite_replaces_it(
    shm_name: Any, owners: list[Owner], before: dict[str, Any], after: dict[str, Any]
) -> None:
    name = shm_name()
    (keys,) = killed(owners, stored_with(name, **before))
    with ShardOwner(0, stored_with(name, **after)) as again:
        is_new = "overwrite" in after
        assert again.is_restored is not is_new and len(again.table) == (0 if is_new else 10)
        assert again.table.gather(keys).present.all() or is_new
    assert (shared_files(name) != []) == ("keep" in after)


def test_overwrite_replaces_a_shard_of_another_configuration_and_number(shm_name: Any, owners: list[Owner]) -> None:
    name = shm_name()
    killed(owners, config_of(name))
    storage = relive.SharedMemory(name, overwrite=True)
    with ShardOwner(3, TableConfig(config_of(name).spec, 100, storage=storage)) as owner:
        assert not owner.is_restored and owner.table.capacity == 100


def test_overwrite_does_not_replace_memory_to_which_a_process_is_attached(shm_name: Any, owners: list[Owner]) -> None:
    name = shm_name()
    owners.append(Owner(0, config_of(name)))
    with attach([name]) as table:
        keys = fill(table, 0, 0, 10)
    with pytest.raises(errors.NameTaken, match=str(owners[0].process.pid)):
        ShardOwner(0, stored_with(name, overwrite=True))
    with attach([name]) as table:
        assert table.gather(keys).present.all()


def test_overwrite_closes_the_owner_that_this_process_has(shm_name: Any) -> None:
    """As when a cell of a notebook runs again."""
    name = shm_name()
    first = ShardOwner(0, stored_with(name, overwrite=True))
    reader = attach([name])
    fill(reader, 0, 0, 10)
    with ShardOwner(0, stored_with(name, overwrite=True)) as second:
        assert first.table.closed and reader.closed and not second.is_restored and len(second.table) == 0
        first.close()
        with attach([name]) as table:
            assert [one.state for one in table.stats().shards] == ["live"]
    assert shared_files(name) == []


def test_a_refused_configuration_names_the_part_that_differs(shm_name: Any, owners: list[Owner]) -> None:
    name = shm_name()
    killed(owners, config_of(name))
    config = config_of(name)
    columns = dict(config.spec.columns)
    other = {**columns, "reward": relive.ArraySpec((), "float64")}
    second = {"default": config.index["default"], "second": relive.Index()}
    wrong = {
        "capacity in the config": config_of(name, capacity=500),
        "seed in the config": config_of(name, seed=5),
        "timeout_s in the config": config_of(name, timeout_s=5.0),
        "max_lanes in the config": config_of(name, max_lanes=5),
        "'reward' of the spec in the config": TableConfig(relive.StepSpec(other), 4096, config.index, config.storage),
        "names of the spec in the config": TableConfig(
            relive.StepSpec({**columns, "more": relive.ArraySpec((), "int64")}), 4096, config.index, config.storage
        ),
        "'default' of the index in the config": config_of(name, prioritized(0.25)),
        "names of the index in the config": config_of(name, second),
    }
    for part, one in wrong.items():
        with pytest.raises(errors.InvalidConfig, match=f"^{part} of the shard at /dev/shm/relive-{name}: ") as raised:
            ShardOwner(0, one)
        assert len(str(raised.value)) < 1_000 and "relive rm" in str(raised.value)


@pytest.mark.parametrize("is_restored", [False, True])
def test_ctrl_c_while_an_owner_is_made_leaves_the_shard_to_the_next_one(shm_name: Any, is_restored: bool) -> None:
    config = config_of(shm_name())
    for at in count():
        if is_restored:
            earlier = ShardOwner(0, config)
            earlier.let_go()
            earlier.table.close()
        made: list[ShardOwner] = []
        kept = interrupted_at(at, lambda made=made: made.append(ShardOwner(0, config)), owner_module.__file__)
        is_over = kept is None
        del kept  # its frames may own the shard
        while made:
            made.pop().close()
        ShardOwner(0, config).close()
        if is_over:
            break
    assert at > 10
