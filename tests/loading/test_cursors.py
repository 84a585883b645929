"""The promises of a loader's state: the stream of the handle that draws, and a checkpoint while workers read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.tools import plain_spec, write_steps
from fleet.tools import config_of, fill, in_threads
from processes.shm import needs_shared_memory

import relive
import relive.checkpoint
from loading.test_loader import keys, stateful
from relive.fleet import ShardedTable, ShardOwner, attach

pytest.importorskip("torch", reason="torch is not installed here")

pytestmark = [needs_shared_memory, pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")]


@pytest.fixture
def shards(shm_name: Any) -> Iterator[list[str]]:
    """Batches of 16 have items of both shards."""
    names = [shm_name(), shm_name()]
    with ShardOwner(0, config_of(names[0])), ShardOwner(1, config_of(names[1])), attach(names) as whole:
        fill(whole, 0, 0, 60)
        fill(whole, 1, 60, 60)
        yield names


def ranks_of(names: list[str], states: list[Any] | None, streams: list[int | None]) -> list[Any]:
    """Each rank tells of its loader: `restored`, its state after a batch, and the batch after it."""

    def work(rank: int, exchange: Any) -> Any:
        with attach(names, stream=streams[rank], exchange=exchange, timeout_s=60.0) as table:
            loader = relive.loader(table, 16, rank, len(streams))
            if states is not None:
                loader.load_state_dict(states[rank % len(states)])
            batches = iter(loader)
            if states is None:
                next(batches)
            return loader.restored, loader.state_dict(), keys(batches, 1)

    return in_threads(work, len(streams))


def test_a_loader_of_a_rank_continues_if_its_handle_has_the_stream_of_its_state(shards: list[str]) -> None:
    first = ranks_of(shards, None, [0, 1])
    again = ranks_of(shards, [state for _, state, _ in first], [0, 1])
    assert [told for told, *_ in again] == ["continued"] * 2
    assert [batches for *_, batches in again] == [batches for *_, batches in first]


def test_a_loader_of_a_rank_whose_handle_has_another_stream_draws_other_batches(shards: list[str]) -> None:
    """Without stream= each handle has a stream of its own."""
    first = ranks_of(shards, None, [None, None])
    again = ranks_of(shards, [state for _, state, _ in first], [None, None])
    assert [told for told, *_ in again] == ["redrawn"] * 2
    assert all(one[2] != other[2] for one, other in zip(first, again, strict=True))


def test_a_state_that_does_not_tell_the_stream_of_a_rank_promises_no_batches(shards: list[str]) -> None:
    states = [state for _, state, _ in ranks_of(shards, None, [0, 1])]
    older = [{name: value for name, value in state.items() if name != "stream"} for state in states]
    assert [told for told, *_ in ranks_of(shards, older, [0, 1])] == ["redrawn"] * 2


def test_other_ranks_of_an_exchange_draw_other_batches(shards: list[str]) -> None:
    """The slices of three ranks are not those of two. All ranks tell the same."""
    states = [state for _, state, _ in ranks_of(shards, None, [0, 1])]
    assert [told for told, *_ in ranks_of(shards, states, [0, 1, 2])] == ["redrawn"] * 3


def test_an_older_state_continues_where_the_loader_has_a_stream_of_its_own(shards: list[str]) -> None:
    with attach(shards) as table, attach(shards) as other:
        loader = relive.loader(table, 16)
        batches = iter(loader)
        keys(batches, 2)
        state = loader.state_dict()
        assert state.pop("stream") is None
        again = relive.loader(other, 16)
        again.load_state_dict(state)
        assert again.restored == "continued" and keys(iter(again), 2) == keys(batches, 2)


def test_the_order_of_the_names_of_shards_changes_no_batch_of_a_loader(shards: list[str]) -> None:
    with attach(shards) as table, attach(shards[::-1]) as other:
        loader, again = relive.loader(table, 16), relive.loader(other, 16)
        batches = iter(loader)
        keys(batches, 2)
        again.load_state_dict(loader.state_dict())
        assert again.restored == "continued" and keys(iter(again), 2) == keys(batches, 2)


@pytest.mark.parametrize("is_same", [True, False])
def test_a_loader_over_handles_of_this_process_tells_their_streams(shards: list[str], is_same: bool) -> None:
    """Shards that cannot be opened again are drawn from with the streams that they have."""

    def opened(stream: int) -> ShardedTable:
        return ShardedTable.over([relive.attach(name, stream=stream + at) for at, name in enumerate(shards)])

    with opened(3) as table, opened(3 if is_same else 5) as other:
        loader = relive.loader(table, 16)
        batches = iter(loader)
        keys(batches, 2)
        again = relive.loader(other, 16)
        again.load_state_dict(loader.state_dict())
        assert again.restored == ("continued" if is_same else "redrawn")
        assert (keys(iter(again), 2) == keys(batches, 2)) == is_same


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_checkpoint_has_the_position_of_a_loader_whose_workers_read(
    shm_name: Any, tmp_path: Path, num_workers: int
) -> None:
    """Its StatefulDataLoader is the cursor. The dataset does not know how far its workers are."""
    with relive.Table(plain_spec(), 1000, storage=relive.SharedMemory(shm_name()), timeout_s=20.0) as table:
        with table.writer() as writer:
            write_steps(writer, 0, 100)
        loader = stateful(relive.loader(table, 8), num_workers=num_workers)
        batches = iter(loader)
        keys(batches, 5)
        relive.checkpoint.save(tmp_path / "run", table=table, cursor=loader)
        expected = keys(batches, 3)
        del batches
    found = relive.checkpoint.load(tmp_path / "run")
    with found.table:
        again = relive.loader(found.table, 8)
        loader = stateful(again)
        loader.load_state_dict(found.cursor)
        assert keys(iter(loader), 3) == expected and again.restored == "continued"
