"""Table.save, relive.load and relive.saved, as a user calls them."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.shm import needs_shared_memory

import relive
from relive import _core, errors
from relive.saving import loading

SPEC = relive.StepSpec(
    {
        "observation": relive.ArraySpec((3,), "float32", kind="state"),
        "action": relive.ArraySpec((), "int64"),
        "reward": relive.ArraySpec((), "float32"),
    }
)


def write(writer: Any, first: int, count: int, ends: int = 7) -> np.ndarray:
    """Steps first, first + 1, ..., each with its next state; every `ends`-th ends an episode."""
    keys = []
    for k in range(first, first + count):
        state = np.full(3, k, np.float32)
        end = k % ends == ends - 1
        keys.append(
            writer.append(observation=state, action=k, reward=float(k), next_observation=state + 1, terminated=end)
        )
    return np.array(keys, np.int64)


def made(capacity: int = 1_000, num_steps: int = 420, **options: Any) -> tuple[relive.Table, np.ndarray]:
    index = options.pop("index", relive.Index(relive.Transitions(), relive.Prioritized(0.6)))
    table = relive.Table(SPEC, capacity, index, seed=3, **options)
    with table.writer() as writer:
        keys = write(writer, 0, num_steps)
    return table, keys


def same_rows(one: relive.Table, other: relive.Table, keys: np.ndarray) -> bool:
    names = ("observation", "action", "reward", "next_observation", "terminated", "episode_step", "lane")
    left, right = one.gather(keys, columns=names), other.gather(keys, columns=names)
    return bool(np.array_equal(left.present, right.present)) and all(
        np.array_equal(np.asarray(left[name])[left.present], np.asarray(right[name])[right.present]) for name in names
    )


# ---- what comes back -----------------------------------------------------------------------------------------------


def test_a_loaded_table_has_the_steps_the_priorities_and_the_next_draws(tmp_path: Path) -> None:
    table, keys = made(capacity=300)
    table.update_priorities(keys[-50:], np.linspace(0.1, 9.0, 50))
    table.sample(16)
    facts = table.save(tmp_path / "save")
    copy = relive.load(tmp_path / "save")
    assert facts.num_steps == len(table) == len(copy) == 300
    assert copy.loaded is not None and copy.loaded.keeps_keys and same_rows(table, copy, keys)
    one, other = table.stats(), copy.stats()
    assert one.indexes == other.indexes and one.evicted == other.evicted
    for _ in range(5):
        first, second = table.sample(32), copy.sample(32)
        assert np.array_equal(first.item_keys, second.item_keys)
        assert np.array_equal(first.probabilities, second.probabilities)
        assert np.array_equal(first["reward"], second["reward"])


def test_the_table_goes_on_while_it_is_saved_and_after(tmp_path: Path) -> None:
    table, keys = made()
    stop = threading.Event()

    def go_on() -> None:
        with table.writer() as writer:
            number = 10_000
            while not stop.is_set():
                write(writer, number, 20)
                number += 20

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for _ in range(8):
            table.save(tmp_path)
            with relive.load(tmp_path) as copy:
                copy.check()
                batch = copy.sample(64)
                assert np.array_equal(batch["observation"][:, 0], batch["reward"])
                assert np.array_equal(batch["next_observation"][:, 0], batch["reward"] + 1)
    finally:
        stop.set()
        thread.join()
    table.check()


def test_a_table_that_is_closed_during_its_save_ends_the_save() -> None:
    """Another thread closes it between two calls of the save: each of them says so, and reads no memory."""
    table, _ = made()
    with table:
        saver = _core.CoreSaver(table.core)
        saver.begin(np.zeros((0, 6), np.uint64))
        assert saver.bytes_missing > 0
        table.close()
        with pytest.raises(errors.TableClosed):
            _ = saver.bytes_missing
        with pytest.raises(errors.TableClosed):
            saver.fill(np.zeros(1 << 20, np.uint8), 0)
        with pytest.raises(errors.TableClosed):
            saver.cut(1.0)
        saver.end()


def test_a_second_save_writes_the_pages_that_changed(tmp_path: Path) -> None:
    table, _ = made(capacity=4_000, num_steps=4_000)
    first = table.save(tmp_path)
    again = table.save(tmp_path)
    assert first.num_pages_written == first.num_pages and again.num_pages_written <= 1
    with table.writer() as writer:
        write(writer, 10_000, 200)
    third = table.save(tmp_path)
    assert 0 < third.num_pages_written < 0.15 * third.num_pages
    with relive.load(tmp_path) as copy:
        copy.check()
        assert len(copy) == len(table)
        copy.save(tmp_path)  # a loaded table goes on saving into its folder
        assert copy.save(tmp_path).num_pages_written == 0  # it has no open page


def test_another_table_in_the_folder_writes_all_of_its_pages(tmp_path: Path) -> None:
    table, _ = made()
    other, keys = made(num_steps=100)
    table.save(tmp_path)
    assert other.save(tmp_path).num_pages_written > 0
    with relive.load(tmp_path) as copy:
        assert len(copy) == 100 and same_rows(other, copy, keys)


@pytest.mark.parametrize("capacity", [1_000, 1_500, 8_000])
def test_a_larger_capacity_keeps_the_keys(tmp_path: Path, capacity: int) -> None:
    table, keys = made(capacity=1_000, num_steps=1_500)
    table.save(tmp_path)
    with relive.load(tmp_path, capacity=capacity) as copy:
        assert copy.loaded is not None and copy.loaded.keeps_keys and copy.capacity == capacity
        assert same_rows(table, copy, keys)
        with copy.writer() as writer:
            more = write(writer, 20_000, capacity + 500)
        copy.check()
        assert not set(more.tolist()) & set(keys.tolist())


@pytest.mark.parametrize("capacity", [999, 300, 8, 9_000])
def test_other_capacities_give_new_keys(tmp_path: Path, capacity: int) -> None:
    """A smaller one keeps the youngest steps."""
    table, _ = made(capacity=1_000, num_steps=1_500)
    table.save(tmp_path)
    with relive.load(tmp_path, capacity=capacity) as copy:
        assert copy.loaded is not None and not copy.loaded.keeps_keys
        copy.check()
        kept = min(capacity, 1_000)
        assert kept - 64 <= len(copy) <= kept
        batch = copy.sample(200)
        assert int(np.asarray(batch["action"]).min()) >= 1_500 - kept
        assert np.array_equal(batch["next_observation"][:, 0], batch["reward"] + 1)
        with copy.writer() as writer:
            write(writer, 30_000, 50)
        copy.check()


@pytest.mark.parametrize("again", [1, 8])
def test_a_loaded_table_that_grew_can_grow_again(tmp_path: Path, again: int) -> None:
    """Keys have room for about 8 times the capacity that the first table was made with."""
    table, _ = made(capacity=1_000, num_steps=1_200)
    table.save(tmp_path / "one")
    with relive.load(tmp_path / "one", capacity=8_000) as grown:
        grown.save(tmp_path / "two")
        with relive.load(tmp_path / "two", capacity=8_000 * again) as copy:
            assert copy.loaded is not None and copy.loaded.keeps_keys == (again == 1)
            copy.check()
            assert len(copy) == len(grown) == 1_000 and copy.capacity == 8_000 * again
            assert sorted(copy.gather(np.concatenate(list(copy.keys())))["action"].tolist()) == [*range(200, 1_200)]


def test_keys_of_lost_time_never_come_again(tmp_path: Path) -> None:
    """The table appends after the save, the loaded table after the load: they have no key in common."""
    table = relive.Table(SPEC, 200, relive.Index())
    writer = table.writer()
    kept = write(writer, 0, 130)
    table.save(tmp_path)
    lost = write(writer, 130, 900)
    with relive.load(tmp_path) as copy, copy.writer() as other:
        fresh = write(other, 2_000, 900)
        assert not set(fresh.tolist()) & (set(lost.tolist()) | set(kept.tolist()))
        assert not copy.gather(lost).present.any()


def test_open_lanes_are_cut(tmp_path: Path) -> None:
    table = relive.Table(SPEC, 200, relive.Index())
    writer = table.writer(3)
    for k in range(5):
        states = np.full((3, 3), k, np.float32)
        writer.append(observation=states, action=[k] * 3, reward=[1.0] * 3)
    table.save(tmp_path)
    with relive.load(tmp_path) as copy:
        copy.check()
        assert copy.stats().num_lanes == 0 and len(copy) == 3 * 4  # the last row of each lane became a next state
        batch = copy.gather(np.concatenate([page for page in copy.keys()]), columns=("truncated", "action"))
        assert np.asarray(batch["truncated"]).sum() == 3


def test_uses_stay_counted_and_items_in_flight_are_given_back(tmp_path: Path) -> None:
    index = relive.Index(limiter=relive.SamplesPerInsert(2.0, 10, tolerance=30.0), max_times_sampled=2)
    table, _ = made(num_steps=15, index=index)
    table.draw(9)
    table.save(tmp_path)
    with relive.load(tmp_path) as copy:
        one, other = table.stats().indexes["default"], copy.stats().indexes["default"]
        assert (one.sampled, one.inserted, one.num_items) == (other.sampled, other.inserted, other.num_items)
        assert other.in_flight == 0


@needs_shared_memory
def test_a_save_loads_into_any_storage(tmp_path: Path, shm_name: Any) -> None:
    table, keys = made()
    table.save(tmp_path)
    name = shm_name()
    with relive.load(tmp_path, relive.SharedMemory(name)) as copy:
        assert same_rows(table, copy, keys)
        with relive.attach(name) as second:
            assert second.sample(8).item_keys.shape == (8,)
            second.save(tmp_path / "second")
        with pytest.raises(errors.NameTaken):
            relive.load(tmp_path, relive.SharedMemory(name))
        with relive.load(tmp_path, relive.SharedMemory(name, overwrite=True)) as third:
            assert len(third) == len(table)
    with relive.load(tmp_path / "second") as copy:
        assert same_rows(table, copy, keys)


# ---- the call ------------------------------------------------------------------------------------------------------


def test_blobs_and_kept_saves(tmp_path: Path) -> None:
    table, _ = made()
    for number in range(4):
        table.save(tmp_path, {"number": bytes([number]), "empty": b""}, keep=2)
    assert sorted(path.name for path in (tmp_path / "cuts").iterdir()) == ["3.cut", "4.cut"]
    assert sorted(path.name for path in (tmp_path / "beside").iterdir()) == ["3", "4"]
    one = relive.saved(tmp_path)
    assert one.num_steps == len(table) and one.beside == ("number", "empty") and one.config == table.config
    with relive.load(tmp_path) as copy:
        assert copy.loaded is not None and dict(copy.loaded.beside) == {"number": b"\3", "empty": b""}


def test_a_load_while_another_save_replaces_the_one_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = made()
    table.save(tmp_path, {"number": b"1"})
    put = loading._put_images

    def put_and_save(*given: Any) -> None:
        put(*given)
        table.save(tmp_path, {"number": b"2"})

    monkeypatch.setattr(loading, "_put_images", put_and_save)
    with relive.load(tmp_path) as copy:
        assert copy.loaded is not None and copy.loaded.beside["number"] == b"1" and len(copy) == len(table)


def test_a_save_that_goes_on_behind(tmp_path: Path) -> None:
    table, keys = made()
    saving = table.save(tmp_path, {"a": b"b"}, wait=False)
    with table.writer() as writer:
        write(writer, 9_000, 500)  # after the moment: not in the save
    facts = saving.wait(30.0)
    assert saving.done and saving.progress == 1.0 and facts.num_steps == 420 and "done" in repr(saving)
    assert saving.wait() is saving.wait(float("inf")) is facts
    with pytest.raises(errors.InvalidConfig, match="timeout_s"):
        saving.wait(-1.0)
    with relive.load(tmp_path) as copy:
        assert len(copy) == 420 and same_rows(table, copy, keys[-100:])


def test_a_cancelled_save_leaves_the_one_before(tmp_path: Path) -> None:
    table, _ = made()
    table.save(tmp_path, {"first": b""})
    names = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    with table.writer() as writer:
        write(writer, 9_000, 500)
    from relive.saving.saving import Saving, facts_of

    saving = Saving(table.core, str(tmp_path), facts_of(table.core, table.config))
    saving.make_cut(None, 5.0)
    saving.cancel()
    saving.finish({}, 1)
    with pytest.raises(errors.SaveCancelled):
        saving.wait()
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*")) == names
    assert relive.saved(tmp_path).beside == ("first",) and table.save(tmp_path).num_steps == len(table)


def test_one_saver_a_folder(tmp_path: Path) -> None:
    from relive.saving.saving import Saving, facts_of

    table, _ = made()
    saving = Saving(table.core, str(tmp_path), facts_of(table.core, table.config))
    with pytest.raises(errors.SaveInUse) as refused:
        table.save(tmp_path)
    assert refused.value.path == str(tmp_path)
    saving.make_cut(None, 5.0)
    saving.finish({}, 1)
    table.save(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"path": 3}, errors.InvalidConfig),
        ({"path": b"save"}, errors.InvalidConfig),
        ({"path": ""}, errors.InvalidConfig),
        ({"path": "a\0b"}, errors.InvalidConfig),
        ({"path": "/proc/none"}, errors.SystemFailure),
        ({"beside": [1]}, errors.InvalidConfig),
        ({"beside": 5}, errors.InvalidConfig),
        ({"beside": {"a/b": b""}}, errors.InvalidConfig),
        ({"beside": {"..": b""}}, errors.InvalidConfig),
        ({"beside": {"a": "text"}}, errors.InvalidConfig),
        ({"keep": 0}, errors.InvalidConfig),
        ({"wait": "yes"}, errors.InvalidConfig),
        ({"where": "x"}, errors.UnknownArgument),
    ],
)
def test_wrong_arguments_write_nothing(tmp_path: Path, arguments: dict[str, Any], error: type[Exception]) -> None:
    table, _ = made()
    with pytest.raises(error):
        table.save(**{"path": tmp_path / "save", **arguments})
    assert not (tmp_path / "save").exists() or not list((tmp_path / "save" / "cuts").iterdir())
    table.save(tmp_path / "save")


def test_folders_that_are_none(tmp_path: Path) -> None:
    table, _ = made()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(errors.InvalidConfig, match=r"thesis\.txt"):
        table.save(tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.SystemFailure):
        table.save(tmp_path / "file")
    for path in ("none", "mine"):
        with pytest.raises(errors.NoSuchSave):
            relive.load(tmp_path / path)
        with pytest.raises(errors.NoSuchSave):
            relive.saved(tmp_path / path)


def test_a_closed_handle_cannot_save(tmp_path: Path) -> None:
    table, _ = made()
    table.close()
    with pytest.raises(errors.TableClosed):
        table.save(tmp_path)


def _save_in_a_child(table: relive.Table, path: str, told: Any) -> None:
    try:
        table.save(path)
        told.put("saved")
    except errors.ReliveError as error:
        told.put(type(error).__name__)


def test_a_forked_child_of_a_local_table_saves_nothing(tmp_path: Path) -> None:
    table, _ = made()
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    child = context.Process(target=_save_in_a_child, args=(table, str(tmp_path), told))
    child.start()
    assert told.get(timeout=30) == "ForkedHandle"
    child.join()
    assert not os.path.exists(tmp_path / "CURRENT")
    table.save(tmp_path)


def test_a_table_that_is_closed_while_it_saves(tmp_path: Path) -> None:
    """Closing waits for the pages of the cut; the commit needs no table."""
    table, keys = made()
    saving = table.save(tmp_path, wait=False)
    table.close()
    assert saving.wait().num_steps == 420
    with relive.load(tmp_path) as copy:
        assert copy.gather(keys).present.all()


def test_each_save_that_is_kept_can_be_loaded(tmp_path: Path) -> None:
    with relive.Table(SPEC, 1_000, relive.Index()) as table, table.writer() as writer:
        for number in range(1, 5):
            write(writer, 10 * number, 10, ends=5)
            table.save(tmp_path, {"note": b"%d" % number}, keep=3)
    found = relive.saved(tmp_path)
    assert found.number == 4 and found.kept == (4, 3, 2)
    for number in found.kept:
        one = relive.saved(tmp_path, number)
        assert (one.number, one.num_steps, one.kept) == (number, 10 * number, found.kept)
        with relive.load(tmp_path, number=number) as copy:
            assert len(copy) == 10 * number and copy.loaded is not None
            assert copy.loaded.beside["note"] == b"%d" % number
    for call in (relive.load, relive.saved):
        with pytest.raises(errors.NoSuchSave) as caught:
            call(tmp_path, number=1)
        assert (caught.value.number, caught.value.kept) == (1, (4, 3, 2))
        with pytest.raises(errors.InvalidConfig):
            call(tmp_path, number=0)


def test_a_table_of_an_older_save_saves_into_the_same_folder(tmp_path: Path) -> None:
    with relive.Table(SPEC, 1_000, relive.Index()) as table, table.writer() as writer:
        for number in range(1, 4):
            write(writer, 10 * number, 10, ends=5)
            table.save(tmp_path, keep=3)
    with relive.load(tmp_path, number=2) as copy, copy.writer() as writer:
        write(writer, 500, 5, ends=5)
        copy.save(tmp_path, keep=3)
        assert [relive.saved(tmp_path, one).num_steps for one in relive.saved(tmp_path).kept] == [25, 30, 20]
        with relive.load(tmp_path) as again:
            assert sorted(again.gather(np.concatenate(list(again.keys())))["action"].tolist()) == sorted(
                copy.gather(np.concatenate(list(copy.keys())))["action"].tolist()
            )
