"""Saves of all shards: one rename commits all parts, owners come back, a failure leaves the save before it."""

from __future__ import annotations

import os
import pickle
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.tools import contents, plain_spec, prioritized
from processes.shm import needs_shared_memory, shared_files

import relive
import relive.fleet
from fleet.saves import cuts, num_saved, owning
from fleet.tools import config_of, fill
from relive import errors
from relive.checkpoint import from_bytes, to_bytes
from relive.fleet import OtherShards, ShardNotSaved, ShardOwner, attach
from relive.fleet.saved import ShardsFolder

pytestmark = needs_shared_memory


def paced() -> relive.Index:
    """A limiter whose totals are counted over all shards."""
    return relive.Index(
        relive.Transitions(), relive.Prioritized(0.6), relive.SamplesPerInsert(2.0, 10, tolerance=900.0)
    )


# ---- what comes back -----------------------------------------------------------------------------------------------


def test_owners_come_back_with_keys_priorities_and_totals(names: tuple[str, str], tmp_path: Path) -> None:
    with ExitStack() as stack:
        for number, name in enumerate(names):
            stack.enter_context(ShardOwner(number, config_of(name, paced())))
        with attach(names) as table:
            keys = np.concatenate([fill(table, 0, 0, 100), fill(table, 1, 1_000, 50)])
            table.update_priorities(keys, np.linspace(0.5, 9.0, 150))
            table.sample(30)
            table.set_policy_version(7)
            facts = table.save(tmp_path / "save")
            before, rows = table.stats(), contents(table, keys)
            lost = fill(table, 1, 2_000, 10)
        with attach(names, stream=5) as table:
            table.delete(lost)
    assert facts.num_steps == 150 and {at: one.num_steps for at, one in facts.shards.items()} == {0: 100, 1: 50}
    with ExitStack() as stack:
        owners = owning(stack, names, tmp_path / "save", paced())
        assert [owner.table.loaded is not None and owner.table.loaded.keeps_keys for owner in owners] == [True, True]
        with attach(names, stream=5) as table:
            after = table.stats()
            assert after.indexes == before.indexes and after.policy_version == 7
            assert contents(table, keys) == rows and not table.gather(lost).present.any()
            new = fill(table, 1, 3_000, 20)
            assert not set(new.tolist()) & {*keys.tolist(), *lost.tolist()}
            assert table.stats().indexes["default"].inserted == 170


def test_the_limiter_over_totals_goes_on_where_it_was(names: tuple[str, str], tmp_path: Path) -> None:
    limiter = relive.SamplesPerInsert(1.0, 10, tolerance=32.0)
    index = relive.Index(limiter=limiter)
    with ExitStack() as stack:
        for number, name in enumerate(names):
            stack.enter_context(ShardOwner(number, config_of(name, index)))
        table = stack.enter_context(attach(names))
        fill(table, 0, 0, 20)
        fill(table, 1, 0, 20)
        with pytest.raises(errors.DeadlineExceeded):
            fill(stack.enter_context(attach(names, timeout_s=0.2)), 1, 40, 9)  # 42 of 42
        inserted = table.stats().indexes["default"].inserted
        table.save(tmp_path / "save")
    with ExitStack() as stack:
        owning(stack, names, tmp_path / "save", index)
        table = stack.enter_context(attach(names))
        assert table.stats().indexes["default"].inserted == inserted
        with pytest.raises(errors.DeadlineExceeded):
            fill(stack.enter_context(attach(names, timeout_s=0.2)), 0, 60, 1)
        table.sample(8)
        fill(table, 0, 60, 8)


def test_the_next_draws_are_those_of_the_saved_shards(names: tuple[str, str], tmp_path: Path) -> None:
    draws: list[list[np.ndarray]] = [[], []]
    for run in (0, 1):
        with ExitStack() as stack:
            owning(stack, names, tmp_path / "save" if run else None)
            with attach(names, stream=5) as table:
                if run == 0:
                    table.update_priorities(fill(table, 0, 0, 60), np.arange(1.0, 61.0))
                    fill(table, 1, 1_000, 40)
                    table.save(tmp_path / "save")
                draws[run] = [table.sample(16).item_keys for _ in range(4)]
    assert [list(one) for one in draws[0]] == [list(one) for one in draws[1]]


def test_the_region_that_an_owner_left_is_newer_than_the_save(names: tuple[str, str], tmp_path: Path) -> None:
    with ExitStack() as stack:
        owners = owning(stack, names, None)
        with attach(names) as table:
            fill(table, 0, 0, 30)
            table.save(tmp_path / "save")
            fill(table, 0, 30, 30)
            owners[0].let_go()  # as if its process had died
            with ShardOwner(0, config_of(names[0]), load=tmp_path / "save") as again:
                assert again.is_restored and len(again.table) == 60


def test_a_second_save_writes_what_changed(whole: relive.fleet.ShardedTable, tmp_path: Path) -> None:
    first = whole.save(tmp_path)
    fill(whole, 1, 2_000, 30)
    second = whole.save(tmp_path)
    written = {at: one.num_pages_written for at, one in second.shards.items()}
    assert written[0] <= 1 < first.shards[0].num_pages and written[1] > 0 and second.number == 2
    assert cuts(tmp_path, 0) == [2] and cuts(tmp_path, 1) == [2]  # the parts of the first save went with it
    third = whole.save(tmp_path, keep=2)
    assert third.number == 3 and cuts(tmp_path, 0) == [2, 3]
    described = relive.fleet.saved(tmp_path)
    assert (described.number, described.numbers, described.num_steps) == (3, (0, 1), 130)


def test_each_save_that_is_kept_can_be_loaded(whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any) -> None:
    for number in (1, 2, 3, 4):
        fill(whole, 0, 1_000 * number, 10)
        whole.save(tmp_path, {"n": b"%d" % number}, keep=3)
    assert relive.fleet.saved(tmp_path).kept == (4, 3, 2)
    for number in (4, 3, 2):
        one = relive.fleet.saved(tmp_path, number, verify=True)
        assert (one.number, one.num_steps, one.kept) == (number, 100 + 10 * number, (4, 3, 2))
        assert one.blob("n") == b"%d" % number
        with ExitStack() as stack:
            owners = owning(stack, (shm_name(), shm_name()), one)
            assert [len(owner.table) for owner in owners] == [60 + 10 * number, 40]
    with pytest.raises(errors.NoSuchSave, match="no save 1; it keeps 4, 3, 2") as caught:
        relive.fleet.saved(tmp_path, 1)
    assert (caught.value.number, caught.value.kept) == (1, (4, 3, 2))
    for wrong in (0, True, "2"):
        with pytest.raises(errors.InvalidConfig):
            relive.fleet.saved(tmp_path, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["shards/1/segments/1.pages", "shards/0/cuts/1.cut", "beside/1/model"])
def test_a_flipped_bit_is_found_without_a_load(whole: relive.fleet.ShardedTable, tmp_path: Path, name: str) -> None:
    whole.save(tmp_path, {"model": bytes(500)})
    assert relive.fleet.saved(tmp_path, verify=True).number == 1
    data = bytearray((tmp_path / name).read_bytes())
    data[200] ^= 4
    (tmp_path / name).write_bytes(data)
    assert relive.fleet.saved(tmp_path).number == 1
    with pytest.raises(errors.DamagedSave):
        relive.fleet.saved(tmp_path, verify=True)


def test_bytes_beside_the_shards_come_and_go_with_their_save(
    whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any
) -> None:
    learner = {"model": {"w": np.arange(6.0).reshape(2, 3)}, "num_updates": 7, "name": "dqn"}
    whole.save(tmp_path, {"learner": to_bytes(learner), "none": b""}, keep=2)
    first = relive.fleet.saved(tmp_path)
    assert first.beside == ("learner", "none") and first.blob("none") == b""
    back = from_bytes(pickle.loads(pickle.dumps(first)).blob("learner"))
    assert (back["model"]["w"] == learner["model"]["w"]).all() and back["num_updates"] == 7
    with pytest.raises(errors.InvalidConfig, match="learner"):
        first.blob("other")
    (tmp_path / "beside" / "2").mkdir()  # of a saver that died before its commit
    (tmp_path / "beside" / "2" / "learner").write_bytes(b"half")
    whole.save(tmp_path, beside={"learner": b"second"}, keep=2)
    assert relive.fleet.saved(tmp_path).blob("learner") == b"second" and first.blob("none") == b""
    whole.save(tmp_path)
    assert relive.fleet.saved(tmp_path).beside == () and list((tmp_path / "beside").iterdir()) == []
    for call in (lambda: first.blob("learner"), lambda: ShardOwner(0, config_of(shm_name()), load=first)):
        with pytest.raises(errors.NoSuchSave, match="has no save 1; it keeps 3"):
            call()
    assert num_saved(tmp_path, shm_name) == (60, 40)


def test_damaged_bytes_beside_the_shards_are_found(whole: relive.fleet.ShardedTable, tmp_path: Path) -> None:
    whole.save(tmp_path, beside={"learner": b"0123456789"})
    path, saved = tmp_path / "beside" / "1" / "learner", relive.fleet.saved(tmp_path)
    for wrong in (b"0123456780", b"012345678", b"01234567890"):
        path.write_bytes(wrong)
        with pytest.raises(errors.DamagedSave, match="beside/1/learner"):
            saved.blob("learner")
    for beside in ({"a/b": b""}, {"a": 3}, [], {3: b""}):
        with pytest.raises(errors.InvalidConfig):
            whole.save(tmp_path, beside)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidConfig, match="bytes"):
        from_bytes("text")  # type: ignore[arg-type]
    with pytest.raises(errors.DamagedSave):
        from_bytes(b"012345678901234567890")
    tmp_path.rename(tmp_path.with_name("moved"))
    with pytest.raises(errors.NoSuchSave):
        saved.blob("learner")


def test_a_folder_can_be_moved(whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any) -> None:
    whole.save(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    assert num_saved(tmp_path / "b", shm_name) == (60, 40)


def test_another_capacity(whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any) -> None:
    whole.save(tmp_path)
    for capacity, keeps in ((8192, True), (30, False)):
        with ExitStack() as stack:
            here = (shm_name(), shm_name())
            owners = owning(stack, here, tmp_path, capacity=capacity)
            assert [owner.table.loaded is not None and owner.table.loaded.keeps_keys for owner in owners] == 2 * [keeps]
            table = stack.enter_context(attach(here))
            assert len(table) == (100 if keeps else 60) and table.sample(8).num_items == 8


# ---- refusals ------------------------------------------------------------------------------------------------------


def test_another_number_of_shards_is_refused(whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any) -> None:
    whole.save(tmp_path)
    with pytest.raises(OtherShards, match=r"2 shards \(0, 1\), here are 3 shards \(0, 1, 2\)") as more:
        ShardOwner(2, config_of(shm_name()), load=tmp_path)
    assert (more.value.saved, more.value.got) == ((0, 1), (0, 1, 2))
    here = [shm_name() for _ in range(3)]
    with ExitStack() as stack:
        owning(stack, here[:2], tmp_path)
        stack.enter_context(ShardOwner(2, config_of(here[2])))
        with pytest.raises(OtherShards, match=r"2 shards \(0, 1\), here is 1 shard \(0\)") as fewer:
            attach(here[:1])
        assert (fewer.value.saved, fewer.value.got) == ((0, 1), (0,))
        with pytest.raises(OtherShards):
            attach(here)
        attach(here[:2]).close()


def test_another_table_is_refused(whole: relive.fleet.ShardedTable, tmp_path: Path, shm_name: Any) -> None:
    whole.save(tmp_path)
    name = shm_name()
    for config, what in (
        (config_of(name, prioritized(0.5)), "index"),
        (config_of(name, seed=4), "seed"),
        (relive.TableConfig(plain_spec(x=relive.ArraySpec((), "int8")), 4096, prioritized(),
                            relive.SharedMemory(name)), "spec"),
    ):  # fmt: skip
        with pytest.raises(errors.InvalidConfig, match=f"{what} of the shard saved in"):
            ShardOwner(0, config, load=tmp_path)
    with pytest.raises(errors.NoSuchTable):
        relive.attach(name)
    with pytest.raises(errors.NoSuchSave):
        ShardOwner(0, config_of(name), load=tmp_path / "nothing")
    with pytest.raises(errors.InvalidConfig, match="a save of one table"):
        ShardOwner(0, config_of(name), load=tmp_path / "shards" / "0")
    for call in (relive.load, relive.saved):
        with pytest.raises(errors.InvalidConfig, match="a save of shards"):
            call(tmp_path)


def test_a_save_that_is_refused_leaves_the_shard_that_overwrite_would_replace(
    whole: relive.fleet.ShardedTable, tmp_path: Path, names: tuple[str, str]
) -> None:
    whole.save(tmp_path)
    storage = relive.SharedMemory(names[0], overwrite=True)
    spec, other = plain_spec(), plain_spec(x=relive.ArraySpec((), "int8"))
    for number, config, load, error in (
        (0, relive.TableConfig(spec, 4096, prioritized(), storage), tmp_path / "nothing", errors.NoSuchSave),
        (2, relive.TableConfig(spec, 4096, prioritized(), storage), tmp_path, OtherShards),
        (0, relive.TableConfig(other, 4096, prioritized(), storage), tmp_path, errors.InvalidConfig),
        (0, relive.TableConfig(spec, 4096, prioritized(0.5), storage), tmp_path, errors.InvalidConfig),
    ):
        with pytest.raises(error):
            ShardOwner(number, config, load=load)
        assert [one.state for one in whole.stats().shards] == ["live", "live"] and len(whole) == 100


def test_a_damaged_save_leaves_the_memory_that_overwrite_would_replace(
    whole: relive.fleet.ShardedTable, tmp_path: Path, names: tuple[str, str]
) -> None:
    """The owner of this process is closed by then. The next one takes the memory over, as after a kill."""
    whole.save(tmp_path)
    for pages in (tmp_path / "shards" / "0").rglob("*.pages"):
        pages.write_bytes(bytes(255 - byte for byte in pages.read_bytes()))
    config = config_of(names[0])
    replacing = relive.TableConfig(
        config.spec, config.capacity, config.index, relive.SharedMemory(names[0], overwrite=True)
    )
    with pytest.raises(errors.DamagedSave):
        ShardOwner(0, replacing, load=tmp_path)
    with ShardOwner(0, config) as again:
        assert again.is_restored and len(again.table) == 60
    assert shared_files(names[0]) == []


def test_a_shard_that_does_not_fit_at_all_removes_nothing(
    whole: relive.fleet.ShardedTable, names: tuple[str, str]
) -> None:
    """Such as by a mistyped capacity."""
    config = config_of(names[0])
    storage = relive.SharedMemory(names[0], overwrite=True)
    with pytest.raises(errors.StorageFull):
        ShardOwner(0, relive.TableConfig(config.spec, 4_000_000_000, config.index, storage))
    with ShardOwner(0, config) as owner:
        assert owner.is_restored and len(owner.table) == 60


def test_a_shard_that_is_larger_than_the_file_system_removes_nothing(
    whole: relive.fleet.ShardedTable, names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core then tells the size of the file system, of which the old shard takes a part."""
    config = config_of(names[0])
    storage = relive.SharedMemory(names[0], overwrite=True)
    facts = os.statvfs("/dev/shm")
    total = facts.f_blocks * facts.f_frsize

    def refused(*_: Any) -> relive.Table:
        raise errors.StorageFull(storage.path, total + 1, total)

    monkeypatch.setattr(relive.fleet.owner, "make_shard", refused)
    with pytest.raises(errors.StorageFull):
        ShardOwner(0, relive.TableConfig(config.spec, config.capacity, config.index, storage))
    monkeypatch.undo()
    with ShardOwner(0, config) as owner:
        assert owner.is_restored and len(owner.table) == 60


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("owned", [False, True])
def test_a_shard_that_fits_only_without_the_one_that_it_replaces_is_made(
    whole: relive.fleet.ShardedTable,
    tmp_path: Path,
    names: tuple[str, str],
    owned: bool,
    loads: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """owned: this process owns the old shard. Else its owner was killed."""
    whole.save(tmp_path)
    if not owned:
        owner = next(one for one in relive.fleet.owner._owners if one.number == 0)
        owner.let_go()
    makes = {name: getattr(relive.fleet.owner, name) for name in ("make_shard", "load_shard")}

    def full_with_both(make: Any) -> Any:
        def made(*arguments: Any) -> relive.Table:
            if shared_files(names[0]):
                raise errors.StorageFull(f"/dev/shm/relive-{names[0]}", 2, 1)
            table: relive.Table = make(*arguments)
            return table

        return made

    for name, make in makes.items():
        monkeypatch.setattr(relive.fleet.owner, name, full_with_both(make))
    config = config_of(names[0])
    storage = relive.SharedMemory(names[0], overwrite=True)
    replacing = relive.TableConfig(config.spec, config.capacity, config.index, storage)
    with ShardOwner(0, replacing, load=tmp_path if loads else None) as made:
        assert not made.is_restored and len(made.table) == (60 if loads else 0)
    assert shared_files(names[0]) == []


def test_a_shard_that_is_dead_is_not_saved(whole: relive.fleet.ShardedTable, tmp_path: Path) -> None:
    whole.save(tmp_path)
    owner = next(one for one in relive.fleet.owner._owners if one.number == 1)
    owner.let_go()
    with pytest.raises(ShardNotSaved, match="shard 1 is dead") as refused:
        whole.save(tmp_path)
    assert (refused.value.shard, refused.value.state) == (1, "dead")
    assert relive.fleet.saved(tmp_path).number == 1


def test_arguments_and_folders(whole: relive.fleet.ShardedTable, tmp_path: Path, names: tuple[str, str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    for path, more in ((tmp_path / "other", {}), (tmp_path / "a", {"keep": 0}), (tmp_path / "a", {"timeout_s": -1.0})):
        with pytest.raises(errors.InvalidConfig):
            whole.save(path, **more)
    assert [one.name for one in (tmp_path / "other").iterdir()] == ["file"] and not (tmp_path / "a").exists()
    with attach(names, read_only=True) as reader, pytest.raises(errors.ReadOnly):
        reader.save(tmp_path / "a")
    closed = attach(names)
    closed.close()
    with pytest.raises(errors.TableClosed):
        closed.save(tmp_path / "a")
    with pytest.raises(errors.InvalidConfig):  # the folder of one table
        with relive.Table(plain_spec(), 100) as table:
            table.save(tmp_path / "one")
        whole.save(tmp_path / "one")


def test_two_savers(whole: relive.fleet.ShardedTable, tmp_path: Path, names: tuple[str, str]) -> None:
    with ShardsFolder(str(tmp_path)), pytest.raises(errors.SaveInUse):
        whole.save(tmp_path)
    assert whole.save(tmp_path).number == 1
