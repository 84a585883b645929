"""relive.loader: which batches come, to how many processes, and where a loader goes on that was restored."""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contract.tools import plain_spec, write_steps
from fleet.tools import config_of, fails_once, fill, in_threads
from processes.shm import needs_shared_memory
from processes.tools import eventually

import relive
from relive import errors
from relive.fleet import RanksDisagree, ShardOwner, attach

torch = pytest.importorskip("torch", reason="torch is not installed here")

pytestmark = [needs_shared_memory, pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")]
STEPS = 100


@pytest.fixture
def table(shm_name: Any) -> Iterator[relive.Table]:
    with relive.Table(plain_spec(), 1000, storage=relive.SharedMemory(shm_name()), timeout_s=20.0) as one:
        with one.writer() as writer:
            write_steps(writer, 0, STEPS)
        yield one


@pytest.fixture
def shards(shm_name: Any) -> Iterator[list[str]]:
    names = [shm_name(), shm_name()]
    with ShardOwner(0, config_of(names[0])), ShardOwner(1, config_of(names[1])), attach(names) as whole:
        fill(whole, 0, 0, 60)
        fill(whole, 1, 60, 40)
        yield names


def keys(batches: Iterator[Any], count: int) -> list[list[int]]:
    return [next(batches)["item_keys"].tolist() for _ in range(count)]


def stateful(*arguments: Any, **options: Any) -> Any:
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed here")
    return module.StatefulDataLoader(*arguments, batch_size=None, **options)


# ---- what comes ------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_dict_of_tensors(table: relive.Table) -> None:
    batch = next(iter(relive.loader(table, 8, columns=["action", "next_observation"], beta=0.5)))
    assert sorted(batch) == ["action", "item_keys", "next_observation", "num_live_items", "probabilities", "weights"]
    assert all(isinstance(tensor, torch.Tensor) for tensor in batch.values())
    assert batch["action"].shape == (8,) and batch["next_observation"].shape == (8, 2)
    assert batch["num_live_items"].item() == STEPS and batch["weights"].tolist() == [1.0] * 8
    assert (batch["next_observation"][:, 0] == batch["action"] + 1).all()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_bring_what_one_process_would(table: relive.Table, method: str) -> None:
    expected = keys(iter(relive.loader(table, 4)), 7)
    loader = torch.utils.data.DataLoader(
        relive.loader(table, 4), batch_size=None, num_workers=2, multiprocessing_context=method
    )
    batches = iter(loader)
    assert keys(batches, 7) == expected
    del batches
    assert eventually(lambda: [row.num_attached for row in relive.list_tables() if row.path == table.path] == [1])


class SlowlySent:
    """A batch whose way to the main process takes a while. Notes in a folder when that begins, and when it ends."""

    def __init__(self, folder: Path, batch: dict[str, Any]) -> None:
        self._folder, self._batch = folder, batch

    def __reduce__(self) -> tuple[Any, ...]:
        number = len(list(self._folder.glob("begun-*")))
        (self._folder / f"begun-{number}").touch()
        time.sleep(0.5)
        (self._folder / f"sent-{number}").touch()
        return dict, (list(self._batch.items()),)


def test_a_spawned_worker_ends_after_the_thread_that_sends_its_batches(table: relive.Table, tmp_path: Path) -> None:
    loader = torch.utils.data.DataLoader(
        relive.loader(table, 4),
        batch_size=None,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=functools.partial(SlowlySent, tmp_path),
    )
    batches = iter(loader)
    next(batches)
    assert eventually(lambda: len(list(tmp_path.glob("begun-*"))) > len(list(tmp_path.glob("sent-*"))))
    del batches  # while that thread sends the next batch: if the interpreter ended now, torch would abort in it
    assert len(list(tmp_path.glob("begun-*"))) == len(list(tmp_path.glob("sent-*")))


def test_ranks_draw_the_batches_of_one(table: relive.Table) -> None:
    expected = keys(iter(relive.loader(table, 4)), 6)
    apart = [keys(iter(relive.loader(table, 4, rank, 3)), 2) for rank in range(3)]
    assert [apart[number % 3][number // 3] for number in range(6)] == expected
    assert keys(iter(relive.loader(table, 4, stream=1)), 6) != expected


def test_sharded_tables_load_alike(shards: list[str]) -> None:
    with attach(shards, stream=7) as one, attach(shards) as other:
        expected = keys(iter(relive.loader(one, 16)), 4)
        assert {key >> 51 for batch in expected for key in batch} == {0, 1}
        loader = torch.utils.data.DataLoader(relive.loader(other, 16), batch_size=None, num_workers=2)
        assert keys(iter(loader), 4) == expected
        assert pickle.loads(pickle.dumps(other)).shard_numbers == (0, 1)


def test_a_table_of_this_process_is_read_by_its_handle(table: relive.Table) -> None:
    def local() -> relive.Table:
        one = relive.Table(plain_spec(), 1000)
        with one.writer() as writer:
            write_steps(writer, 0, STEPS)
        return one

    plain, used = local(), local()
    batches = iter(relive.loader(used, 4, rank=1, world=2))
    loaded = keys(batches, 2)
    assert [used.sample(4).item_keys.tolist() for _ in range(3)] == [
        plain.sample(4).item_keys.tolist() for _ in range(3)
    ]
    assert loaded[1] == keys(iter(relive.loader(plain, 4)), 4)[3]
    with pytest.raises(errors.NotShareable):
        pickle.dumps(relive.loader(used, 4))
    in_workers = torch.utils.data.DataLoader(relive.loader(used, 4), batch_size=None, num_workers=1)
    with pytest.raises(Exception, match="num_workers"):
        next(iter(in_workers))


def actions(loader: Any, count: int) -> list[list[int]]:
    batches = iter(loader)
    return [next(batches)["action"].tolist() for _ in range(count)]


@pytest.fixture(params=["local", "tiered"])
def own(request: Any, tmp_path: Path) -> Iterator[relive.Table]:
    """A table that only this process reads, with the steps of `table`."""
    tiers = relive.Tiered(tmp_path, 1 << 20, min_column_bytes=4)
    with relive.Table(plain_spec(), 1000, storage=None if request.param == "local" else tiers, timeout_s=20.0) as one:
        with one.writer() as writer:
            write_steps(writer, 0, STEPS)
        yield one


def test_a_table_of_this_process_gives_the_batches_of_a_shared_one(table: relive.Table, own: relive.Table) -> None:
    drawn = [actions(relive.loader(own, 8, stream=stream), 3) for stream in range(3)]
    assert drawn == [actions(relive.loader(table, 8, stream=stream), 3) for stream in range(3)]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


def test_loaders_leave_the_draws_of_a_table_of_this_process_as_they_are(own: relive.Table, tmp_path: Path) -> None:
    own.save(tmp_path / "before")
    apart = [actions(relive.loader(own, 8, stream=stream), 3) for stream in range(2)]
    assert (own.next_draw, own.stream) == (0, 0)
    by_turns = [iter(relive.loader(own, 8, stream=stream)) for stream in range(2)]
    mine = []
    for number in range(3):
        mine.append(own.sample(8)["action"].tolist())
        assert [next(one)["action"].tolist() for one in by_turns] == [batches[number] for batches in apart]
        assert own.next_draw == number + 1
    with relive.load(tmp_path / "before") as other:
        assert mine == [other.sample(8)["action"].tolist() for _ in range(3)]


def test_a_save_within_a_draw_of_a_loader_can_be_loaded(own: relive.Table, tmp_path: Path) -> None:
    """The number of such a draw may be any of 64 bits."""
    own.number_draws(2**64 - 1)
    own.save(tmp_path / "save")
    with relive.load(tmp_path / "save") as again:
        assert again.next_draw == 2**64 - 1 and again.sample(4).num_items == 4


def test_passes_with_workers_are_told_apart_by_their_epoch(table: relive.Table) -> None:
    dataset = relive.loader(table, 4)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)
    first, again = (keys(iter(loader), 3) for _ in range(2))
    assert first == again == keys(iter(relive.loader(table, 4)), 3)
    dataset.set_epoch(1)
    second = keys(iter(loader), 3)
    assert second != first
    alone = relive.loader(table, 4)
    alone.set_epoch(1)
    assert keys(iter(alone), 3) == second and alone.state_dict()["batch"] == 3
    with pytest.raises(errors.InvalidConfig):
        dataset.set_epoch(-1)


# ---- going on --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_a_restored_loader_goes_on(table: relive.Table, num_workers: int) -> None:
    expected = keys(iter(relive.loader(table, 4)), 9)
    first = stateful(relive.loader(table, 4), num_workers=num_workers)
    batches = iter(first)
    assert keys(batches, 4) == expected[:4]
    state = pickle.loads(pickle.dumps(first.state_dict()))
    del batches
    again = stateful(relive.loader(table, 4), num_workers=num_workers)
    again.load_state_dict(state)
    assert keys(iter(again), 5) == expected[4:]
    told = str(again.state_dict())
    assert "'restored': 'continued'" in told and "repartitioned" not in told


@pytest.mark.parametrize("way", ["to shared memory", "from shared memory"])
def test_a_state_goes_on_over_a_table_in_another_storage(table: relive.Table, tmp_path: Path, way: str) -> None:
    table.save(tmp_path / "save")
    with relive.load(tmp_path / "save") as copy:
        old, new = (copy, table) if way == "to shared memory" else (table, copy)
        first = relive.loader(old, 8, stream=1)
        batches = iter(first)
        keys(batches, 4)
        again = relive.loader(new, 8, stream=1)
        again.load_state_dict(first.state_dict())
        assert keys(iter(again), 3) == keys(batches, 3) and again.restored == "continued"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_state_of_the_first_version_promises_no_batches(table: relive.Table, num_workers: int) -> None:
    """It does not say whether its loader drew on a stream of its own, or on that of a table of its process."""
    first = stateful(relive.loader(table, 8), num_workers=num_workers)
    keys(iter(first), 3)
    dataset = relive.loader(table, 8)
    again = stateful(dataset, num_workers=num_workers)
    again.load_state_dict(of_first_version(first.state_dict()))
    next(iter(again))
    assert dataset.restored == "redrawn"


def of_first_version(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    marked = {"version": 1} if "table" in state else {}
    return {name: of_first_version(value) for name, value in state.items()} | marked


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 1), (1, 4)])
def test_other_ranks_share_what_comes_next(table: relive.Table, old: int, new: int) -> None:
    expected = keys(iter(relive.loader(table, 4)), 4 * old + 3 * new)
    loaders = [relive.loader(table, 4, rank, old) for rank in range(old)]
    for loader in loaders:
        keys(iter(loader), 4)
    apart = []
    for rank in range(new):
        again = relive.loader(table, 4, rank, new)
        again.load_state_dict(loaders[rank % old].state_dict())  # any old rank's
        assert again.restored == "repartitioned"
        apart.append(keys(iter(again), 3))
        assert again.state_dict()["first"] == 4 * old
    assert [apart[number % new][number // new] for number in range(3 * new)] == expected[4 * old :]


@pytest.mark.parametrize(("old", "new"), [(2, 4), (4, 2)])
def test_other_ranks_with_a_worker_each_share_what_comes_next(table: relive.Table, old: int, new: int) -> None:
    """torchdata counts the batches since its last snapshot, which are those of the old ranks."""
    expected = keys(iter(relive.loader(table, 4)), 3 * old + 2 * new)
    options = {"num_workers": 1, "snapshot_every_n_steps": 4}
    first = stateful(relive.loader(table, 4, 0, old), **options)
    keys(iter(first), 3)
    apart = []
    for rank in range(new):
        again = stateful(relive.loader(table, 4, rank, new), **options)
        again.load_state_dict(first.state_dict())
        assert again.dataset.restored == "repartitioned"
        apart.append(keys(iter(again), 2))
    assert [apart[number % new][number // new] for number in range(2 * new)] == expected[3 * old :]


def test_an_epoch_goes_on_with_other_ranks(shm_name: Any) -> None:
    """The table stores the progress of Shuffle: after the restart each item is still drawn once."""
    index = relive.Index(sampler=relive.Shuffle())
    with relive.Table(plain_spec(), 1000, index, storage=relive.SharedMemory(shm_name())) as table:
        with table.writer() as writer:
            write_steps(writer, 0, STEPS)
        loaders = [relive.loader(table, 5, rank, 2) for rank in range(2)]
        drawn = [key for loader in loaders for batch in keys(iter(loader), 5) for key in batch]
        for rank in range(5):
            again = relive.loader(table, 5, rank, 5)
            again.load_state_dict(loaders[0].state_dict())
            assert again.restored == "repartitioned"
            drawn += [key for batch in keys(iter(again), 2) for key in batch]
        assert len(drawn) == len(set(drawn)) == STEPS


def test_the_state_of_one_of_several_workers_does_not_say_how_far_its_rank_was(table: relive.Table) -> None:
    first = stateful(relive.loader(table, 4, 0, 2), num_workers=2)
    keys(iter(first), 3)
    of_worker = first.state_dict()["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    with pytest.raises(errors.InvalidConfig, match="world 2 and 2 workers"):
        relive.loader(table, 4, 0, 3).load_state_dict(of_worker)


def test_a_state_that_is_none_of_this_loader_changes_nothing(table: relive.Table) -> None:
    loader = relive.loader(table, 4)
    state = loader.state_dict()
    other = relive.Table(plain_spec(), 1000, relive.Index(relive.Transitions(n_step=3)))
    wrong: list[Any] = [
        {},
        7,
        state | {"version": 3},
        state | {"batch": -1},
        state | {"world": 0},
        state | {"first": 1.0},
        state | {"num_items": True},
        relive.loader(table, 5).state_dict(),
        relive.loader(table, 4, stream=1).state_dict(),
        relive.loader(other, 4).state_dict(),
        {name: value for name, value in state.items() if name != "table"},
    ]
    for one in wrong:
        with pytest.raises(errors.InvalidConfig):
            loader.load_state_dict(one)
    assert loader.restored is None and loader.state_dict() == state


def test_errors_of_a_worker_have_their_fields(table: relive.Table, shm_name: Any) -> None:
    """Also those of opening the table, and of a state that is refused."""
    with relive.Table(plain_spec(), 100, storage=relive.SharedMemory(shm_name())) as other:
        dataset, path = relive.loader(other, 4), other.path
    with pytest.raises(errors.NoSuchTable) as gone:
        next(iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)))
    assert gone.value.path == path
    loader = stateful(relive.loader(table, 4), num_workers=1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    del batches
    again = stateful(relive.loader(table, 5), num_workers=1)
    again.load_state_dict(state)
    with pytest.raises(errors.InvalidConfig, match="num_items"):
        next(iter(again))


# ---- with a group ----------------------------------------------------------------------------------------------------


def test_slices_of_one_draw_go_on_together(shards: list[str]) -> None:
    def first(rank: int, exchange: Any) -> Any:
        with attach(shards, stream=rank, exchange=exchange) as table:
            loader = relive.loader(table, 8)
            batches = iter(loader)
            keys(batches, 3)
            return loader.state_dict(), keys(batches, 2)

    told = in_threads(first, 2)

    def again(rank: int, exchange: Any) -> Any:
        with attach(shards, stream=rank, exchange=exchange) as table:
            loader = relive.loader(table, 8, rank, 2)
            loader.load_state_dict(told[rank][0])
            return loader.restored, keys(iter(loader), 2)

    assert in_threads(again, 2) == [("continued", drawn) for _, drawn in told]

    def apart(rank: int, exchange: Any) -> Any:
        with attach(shards, stream=rank, exchange=exchange) as table:
            loader = relive.loader(table, 8)
            loader.load_state_dict(told[0][0] | {"batch": rank})
            return keys(iter(loader), 1)

    assert all(isinstance(error, RanksDisagree) for error in in_threads(apart, 2))


@pytest.mark.parametrize("path", ["mapped", "service"])
def test_ranks_of_which_one_failed_go_on_together(shm_name: Any, path: str) -> None:
    """The ranks agreed on the draw, so it is used up on both. The states of both ranks come after it."""
    if path == "service":
        pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (pip install 'relive[service]')")

    def work(rank: int, exchange: Any) -> Any:
        with attach(places, exchange=exchange, timeout_s=60.0) as table:
            loader = relive.loader(table, 8, rank, 2)
            batches = iter(loader)
            next(batches)
            if rank == 1:
                with fails_once(table), pytest.raises(errors.DeadlineExceeded):
                    next(batches)
            else:
                next(batches)
            state = loader.state_dict()
            again = relive.loader(table, 8, rank, 2)
            again.load_state_dict(state)
            return state["batch"], keys(iter(again), 1) == keys(iter(loader), 1) or path == "service"

    name = shm_name()
    with ShardOwner(0, config_of(name)) as owner, attach([name]) as whole:
        fill(whole, 0, 0, 60)
        places = [name if path == "mapped" else owner.serve()]
        assert in_threads(work, 2) == [(2, True), (2, True)]


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_bad_arguments_are_refused(table: relive.Table) -> None:
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((4, 2, 2), {}),
        ((4, -1, 2), {}),
        ((0,), {}),
        ((4,), {"world": 0}),
        ((4,), {"beta": -1.0}),
        ((4,), {"timeout_s": -1.0}),
        ((4,), {"index": "other"}),
        ((4,), {"stream": -1}),
    ]
    for arguments, options in wrong:
        with pytest.raises(errors.InvalidConfig):
            relive.loader(table, *arguments, **options)
    with pytest.raises(errors.InvalidConfig):
        relive.loader(np.zeros(3), 4)  # type: ignore[arg-type]
    with pytest.raises(errors.UnknownColumn):
        relive.loader(table, 4, columns=["other"])
    taken = relive.Table(relive.StepSpec({"weights": relive.ArraySpec((), "float32")}), 100)
    with pytest.raises(errors.InvalidConfig, match="weights"):
        relive.loader(taken, 4)


def test_a_batch_that_does_not_come_is_a_deadline(shm_name: Any) -> None:
    with relive.Table(plain_spec(), 1000, storage=relive.SharedMemory(shm_name())) as empty:
        loader = relive.loader(empty, 4, timeout_s=0.05)
        with pytest.raises(errors.DeadlineExceeded):
            next(iter(loader))
        with empty.writer() as writer:
            write_steps(writer, 0, 10)
        assert len(keys(iter(loader), 2)) == 2


@pytest.mark.forms(6)
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("takes", ["the dataset", "the loader"])
@pytest.mark.parametrize(("old", "new", "every"), [(0, 2, 1), (0, 1, 1), (1, 2, 1), (1, 0, 3), (2, 3, 3), (2, 1, 1)])
def test_the_number_of_workers_changes(table: relive.Table, old: int, new: int, every: int, takes: str) -> None:
    expected = keys(iter(relive.loader(table, 8)), 14)
    first = stateful(relive.loader(table, 8), num_workers=old, snapshot_every_n_steps=every)
    batches = iter(first)
    assert keys(batches, 5) == expected[:5]
    state = first.state_dict()
    del batches
    dataset = relive.loader(table, 8)
    again = stateful(dataset, num_workers=new)
    (dataset if takes == "the dataset" else again).load_state_dict(state)
    batches = iter(again)
    assert keys(batches, 6) == expected[5:11]
    assert dataset.restored == "continued"
    state = again.state_dict()
    del batches
    back = stateful(relive.loader(table, 8), num_workers=old)
    back.load_state_dict(state)  # once more, with the first number of workers
    assert keys(iter(back), 3) == expected[11:]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_restored_says_in_the_main_process_how_the_workers_go_on(table: relive.Table, num_workers: int) -> None:
    """As many workers as before take the state themselves: the dataset of the main process is told of it."""
    first = stateful(relive.loader(table, 8), num_workers=num_workers)
    keys(iter(first), 3)
    dataset, other = relive.loader(table, 8), relive.loader(table, 4)
    again = stateful(dataset, num_workers=num_workers)
    again.load_state_dict(first.state_dict())
    next(iter(again))
    assert dataset.restored == "continued"
    if num_workers:  # the state of another loader, which the workers refuse
        refusing = stateful(other, num_workers=num_workers)
        with pytest.raises(errors.InvalidConfig, match="num_items"):
            refusing.load_state_dict(first.state_dict())
            next(iter(refusing))
        assert other.restored is None


def test_the_number_of_ranks_changes_with_several_workers(table: relive.Table) -> None:
    expected = keys(iter(relive.loader(table, 4)), 12)
    first = stateful(relive.loader(table, 4, 0, 2), num_workers=2)
    assert keys(iter(first), 3) == expected[0:6:2]
    for rank in range(3):
        again = stateful(relive.loader(table, 4, rank, 3), num_workers=2)
        again.load_state_dict(first.state_dict())
        assert keys(iter(again), 2) == [expected[6 + rank], expected[9 + rank]]
        assert again.dataset.restored == "repartitioned"


def test_a_loader_of_another_dataset_takes_states_as_ever(table: relive.Table) -> None:
    """Only loaders of relive's datasets take a state of another number of workers."""
    relive.loader(table, 8)
    first = stateful(list(range(10)), num_workers=1)
    next(iter(first))
    again = stateful(list(range(10)), num_workers=0)
    again.load_state_dict(first.state_dict())
    with pytest.raises(AssertionError):
        next(iter(again))


def test_a_refused_state_of_another_number_of_workers_changes_nothing(table: relive.Table) -> None:
    first = stateful(relive.loader(table, 8), num_workers=1)
    keys(iter(first), 2)
    again = stateful(relive.loader(table, 4), num_workers=0)
    batches = iter(again)
    drawn = keys(batches, 2)
    with pytest.raises(errors.InvalidConfig, match="num_items"):
        again.load_state_dict(first.state_dict())
    assert drawn + keys(batches, 2) == keys(iter(relive.loader(table, 4)), 4)


def test_a_state_is_for_any_number_of_workers_that_come_later(table: relive.Table) -> None:
    """In the main process nobody knows yet how many workers the DataLoader will have."""
    expected = keys(iter(relive.loader(table, 8)), 9)
    first = relive.loader(table, 8)
    assert keys(iter(first), 3) == expected[:3]
    again = relive.loader(table, 8)
    again.load_state_dict(first.state_dict())
    batches = iter(torch.utils.data.DataLoader(again, batch_size=None, num_workers=2))
    assert keys(batches, 6) == expected[3:]
