"""Saves of shards of other hosts: each owner writes its own part, below its own folder."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.tools import contents
from processes.shm import needs_shared_memory

pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

import relive
import relive.fleet
from fleet.owning import Owners
from fleet.tools import config_of, fill
from relive import errors
from relive.fleet import ShardedTable, ShardOwner, attach
from relive.service import connect, serve

pytestmark = needs_shared_memory
PATIENCE_S = 30.0


def served(addresses: Any, **more: Any) -> ShardedTable:
    return attach(addresses, path="service", timeout_s=PATIENCE_S, **more)


def under(folder: Path, name: str) -> list[str]:
    """The names of the saves of a shard below the folder of its owner."""
    return sorted(one.name for one in (folder / name).iterdir()) if (folder / name).exists() else []


def remove_memory(name: str) -> None:
    """Loses the memory of a shard, as a restart of its machine does."""
    subprocess.run([sys.executable, "-m", "relive.cli", "rm", "--force", name], check=True, capture_output=True)


def test_owners_write_below_their_own_folders(start: Any, shm_name: Any, tmp_path: Path) -> None:
    """One shard that this process maps, two of other hosts. All come back, by a description that was sent to them."""
    names = [shm_name() for _ in range(3)]
    owners = start()
    with ExitStack() as stack:
        here = stack.enter_context(ShardOwner(0, config_of(names[0])))
        far = [
            owners.own(number, config_of(names[number]), saves=str(tmp_path / f"host-{number}")) for number in (1, 2)
        ]
        table = stack.enter_context(attach([names[0], *far], path="service", timeout_s=PATIENCE_S))
        keys = np.concatenate([fill(table, number, 1_000 * number, 30) for number in range(3)])
        table.update_priorities(keys, np.linspace(0.5, 9.0, 90))
        facts = table.save(tmp_path / "my-run")
        before, rows = table.stats().indexes, contents(table, keys)
        second = table.save(tmp_path / "my-run")
        assert (facts.number, second.number, facts.num_steps) == (1, 2, 90)
        assert here.table.loaded is None
    owners.close()
    described = relive.fleet.saved(tmp_path / "my-run")
    assert [one.is_here for one in described.shards] == [True, False, False]
    (folder,) = under(tmp_path / "host-1", names[1])
    assert folder.startswith("my-run-") and under(tmp_path / "host-2", names[2]) == [folder]
    assert described.shards[1].path == str(tmp_path / "host-1" / names[1] / folder)
    assert [one.name for one in (tmp_path / "host-1" / names[1] / folder / "cuts").iterdir()] == ["2.cut"]
    again = start()
    with ShardOwner(0, config_of(names[0]), load=tmp_path / "my-run"):
        sent = pickle.loads(pickle.dumps(described))
        far = [again.own(number, config_of(names[number]), load=sent) for number in (1, 2)]
        with attach([names[0], *far], path="service", timeout_s=PATIENCE_S) as table:
            assert contents(table, keys) == rows and table.stats().indexes == before
            assert {at: int(count) for at, count in enumerate(np.bincount(keys >> 51))} == {0: 30, 1: 30, 2: 30}
            with pytest.raises(relive.fleet.OtherShards):
                served(far)


def test_an_owner_without_a_folder_refuses(start: Any, shm_name: Any, tmp_path: Path) -> None:
    names, owners = [shm_name(), shm_name()], start()
    with_folder = owners.own(0, config_of(names[0]), saves=str(tmp_path / "owner"))
    without = owners.own(1, config_of(names[1]))
    with served([with_folder, without]) as table:
        with pytest.raises(errors.SavesNotAllowed, match=r"ShardOwner\.serve\(saves=FOLDER\)") as refused:
            table.save(tmp_path / "save")
        assert refused.value.table == names[1]
        with pytest.raises(errors.NoSuchSave):
            relive.fleet.saved(tmp_path / "save")


def test_two_savers_of_other_hosts_do_not_meet(start: Any, shm_name: Any, tmp_path: Path) -> None:
    """Their folders have the same name, and each keeps its save below the owner's folder."""
    name, owners = shm_name(), start()
    with served([owners.own(0, config_of(name), saves=str(tmp_path / "owner"))]) as table:
        fill(table, 0, 0, 30)
        table.save(tmp_path / "host-a" / "run")
        fill(table, 0, 30, 30)
        table.save(tmp_path / "host-b" / "run")
    owners.close()
    for host, num_steps in (("host-a", 30), ("host-b", 60)):
        with ShardOwner(0, config_of(name), load=tmp_path / host / "run") as owner:
            assert len(owner.table) == num_steps


def test_a_handle_goes_on_with_an_owner_that_was_loaded(start: Any, shm_name: Any, tmp_path: Path) -> None:
    names, owners = [shm_name(), shm_name()], [start(), start()]
    far = [
        one.own(number, config_of(names[number]), saves=str(tmp_path / "owner")) for number, one in enumerate(owners)
    ]
    with served(far) as table:
        keys = np.concatenate([fill(table, number, 1_000 * number, 30) for number in range(2)])
        table.save(tmp_path / "run")
        lost = fill(table, 1, 2_000, 5)
        owners[1].kill()
        remove_memory(names[1])
        assert table.sample(16).num_items == 16
        address = far[1].rpartition("/")[0]
        assert start().own(1, config_of(names[1]), address, load=str(tmp_path / "run")) == far[1]
        ends = time.monotonic() + PATIENCE_S
        while [one.state for one in table.stats().shards] != ["live", "live"]:
            assert time.monotonic() < ends
            time.sleep(0.05)
        assert contents(table, keys)["action"] == [*range(30), *range(1_000, 1_030)]
        assert not table.gather(lost).present.any() and table.update_priorities(keys, np.ones(60)) == 60
        assert set(np.bincount(table.sample(64).item_keys >> 51).tolist()) == {32}
        with served(far) as later:  # a GroupReader compares the regions of handles, and so does a one-sided reader
            assert [one.uuid for one in table._fleet.shards] == [one.uuid for one in later._fleet.shards]


def _big(name: str) -> relive.TableConfig:
    spec = relive.StepSpec({"frame": relive.ArraySpec((60, 60), "uint8"), "action": relive.ArraySpec((), "int64")})
    return relive.TableConfig(spec, 20_000, relive.Index(), relive.SharedMemory(name))


@pytest.mark.forms(3)
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.05, 0.1])
def test_an_owner_that_is_killed_during_a_save(
    start: Any, shm_name: Any, tmp_path: Path, after_s: float, waits: bool
) -> None:
    """The save before it stays whole, with both shards, whenever the owner died."""
    names, owners = [shm_name(), shm_name()], [start(), start()]
    far = [one.own(number, _big(names[number]), saves=str(tmp_path / "owner")) for number, one in enumerate(owners)]
    frames = np.zeros((3_000, 60, 60), np.uint8)
    with served(far) as table:
        keys = []
        for shard in (0, 1):
            with table.writer(shard=shard) as writer:
                keys.append(writer.extend(frame=frames, action=np.arange(3_000), truncated=True))
        table.save(tmp_path / "run")
        for shard in (0, 1):
            with table.writer(shard=shard) as writer:
                writer.extend(frame=frames + 1, action=np.arange(3_000), truncated=True)
        killing = threading.Timer(after_s, lambda: os.kill(owners[1].process.pid, signal.SIGKILL))
        killing.start()
        began = time.monotonic()
        try:
            table.save(tmp_path / "run") if waits else table.save(tmp_path / "run", wait=False).wait()
        except errors.ServiceUnavailable:
            assert relive.fleet.saved(tmp_path / "run").num_steps == 6_000
        assert time.monotonic() - began < 15.0
        killing.join()
        assert table.sample(16).num_items == 16  # from the shard that lives
    owners[0].close()
    remove_memory(names[1])
    described = relive.fleet.saved(tmp_path / "run")
    assert described.num_steps in (6_000, 12_000)
    with ExitStack() as stack:
        for number, name in enumerate(names):
            owner = stack.enter_context(ShardOwner(number, _big(name), load=tmp_path / "run"))
            assert len(owner.table) == described.num_steps // 2 and owner.table.gather(keys[number]).present.all()
            owner.table.check()
        whole = stack.enter_context(attach(names, timeout_s=PATIENCE_S))
        whole.save(tmp_path / "again")


def test_a_shard_alone_can_be_saved(start: Any, shm_name: Any, tmp_path: Path) -> None:
    name, owners = shm_name(), start()
    address = owners.own(3, config_of(name), saves=str(tmp_path / "owner"))
    with connect(address) as remote:
        facts = remote.save("alone")
        assert facts.path == str(tmp_path / "owner" / name / "alone")
        with relive.load(facts.path) as copy:  # it has no number of a shard, so its keys are new
            assert copy.loaded is not None and not copy.loaded.keeps_keys
            owners.ask("close", address)
            with serve({name: copy}, address.rpartition("/")[0]), pytest.raises(errors.FormatMismatch):
                len(remote)
    with pytest.raises(errors.InvalidConfig, match="a save of one table"):
        ShardOwner(3, config_of(shm_name()), load=facts.path)
    assert isinstance(owners, Owners)
