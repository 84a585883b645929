"""Sequences and episodes whose pages change while kernels read them: whole, drawn again, or absent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import relive
from gpu.tools import (
    DEVICE,
    DeviceReader,
    assert_same,
    before_load,
    links_from,
    numbered_rows,
    numbered_spec,
    set_rounds,
    torch,
)
from relive.gpu.launch import Rounds

WINDOWS = relive.Sequences(9, burn_in=4, bootstrap=1, period=5, at_end="shift", stack={"observation": 3})
MAJOR = relive.Sequences(9, burn_in=4, bootstrap=1, period=5, pad="left", time_major=True)
CROSSING = relive.Sequences(9, burn_in=6, bootstrap=1, period=5, at_end="cross", stack={"observation": 3})
RAGGED = relive.Episodes(15, bootstrap=1, too_long="head", layout="ragged")
ITEMS = {"windows": WINDOWS, "major": MAJOR, "crossing": CROSSING, "ragged": RAGGED}
COLUMNS = ["observation", "frame", "action", "next_observation", "mask", "num_steps", "episode_step", "policy_version"]


@contextmanager
def opened(items: Any, capacity: int = 96) -> Iterator[tuple[relive.Table, relive.Writer, DeviceReader, np.ndarray]]:
    """Pages of eight rows, reused soon: three episodes fill what there is room for."""
    index = relive.Index(items, relive.Prioritized())
    with relive.Table(numbered_spec(), capacity, index, max_lanes=2, seed=3) as table, table.writer() as writer:
        keys = np.concatenate([overwrite(writer, first, count) for first, count in ((0, 23), (100, 7), (200, 30))])
        with DeviceReader(table, DEVICE) as reader:
            yield table, writer, reader, keys


def overwrite(writer: relive.Writer, first: int, count: int) -> np.ndarray:
    """One episode more, of steps that say in every cell which they are."""
    return writer.extend(**numbered_rows(first, count), truncated=True)


def overwrite_all(writer: relive.Writer, first: int) -> None:
    """Episodes of other lengths in the place of all."""
    for number in range(9):
        overwrite(writer, first + 100 * number, 31 - 3 * number)


def assert_whole(batch: Any) -> None:
    """All cells of each row are of one step, and the steps of each item follow each other."""
    mask, action = batch.mask.cpu().numpy(), batch["action"].cpu().numpy()
    state, after, frame = (batch[name].cpu().numpy()[mask] for name in ("observation", "next_observation", "frame"))
    assert (state[..., -1].reshape(len(state), -1)[:, -1] == action[mask]).all()
    assert (after[..., -1].reshape(len(after), -1)[:, -1] == action[mask] + 1).all()
    assert (frame == (action[mask] % 251)[:, None, None]).all()
    assert (action[mask] % 100 == batch["episode_step"].cpu().numpy()[mask]).all()
    for number in range(batch.num_items):
        own = slice(*batch.offsets[number : number + 2].tolist()) if "offsets" in batch else (number,)
        if "offsets" not in batch and mask.shape[0] != batch.num_items:
            own = (slice(None), number)
        mine = action[own][mask[own]]
        follows = (np.diff(mine) == 1) | (mine[1:] % 100 == 0)
        assert follows.all() and len(mine) == batch["num_steps"][number]


@pytest.mark.forms(1)
@pytest.mark.parametrize(("name", "where"), [("windows", "walked"), ("crossing", "walked"), ("ragged", "copied")])
def test_items_evicted_while_they_are_read_are_absent(name: str, where: str) -> None:
    with opened(ITEMS[name]) as (_, writer, reader, keys):
        done: list[str] = []

        def pause(stage: str) -> None:
            if stage == where and not done:
                done.append(stage)
                overwrite_all(writer, 1000)

        set_rounds(reader, pause)
        batch = reader.gather(keys, COLUMNS)
        assert done and not batch.present.any()
        assert not any(array.any() for array in batch.flat().values()), "zeros, or no rows at all"
        if name == "ragged":
            assert batch["action"].shape == (0,)


@pytest.mark.forms(1)
@pytest.mark.parametrize(("name", "where"), [("windows", "drawn"), ("crossing", "copied"), ("ragged", "copied")])
def test_a_sample_draws_torn_items_again(name: str, where: str) -> None:
    """Twice all items are evicted under it, and others come, of other lengths; those of ragged batches move."""
    with opened(ITEMS[name]) as (_, writer, reader, _):
        turns = iter((1000, 3000))

        def pause(stage: str) -> None:
            first = next(turns, None) if stage == where else None
            if first is not None:
                overwrite_all(writer, first)

        set_rounds(reader, pause)
        batch = reader.sample(24, COLUMNS)
        assert next(turns, None) is None
        assert_whole(batch)
        assert (batch["action"][batch.mask] >= 3000).all() and (batch.probabilities > 0).all()


@pytest.mark.thorough
def test_items_that_held_still_move_when_others_are_drawn_anew() -> None:
    """Some of a ragged batch go after their rows were read; the rest lies elsewhere then, and is read again."""
    with opened(RAGGED) as (table, writer, reader, _):
        turns: list[int] = []
        numbers = iter(range(1000, 2200, 100))

        def pause(stage: str) -> None:
            if stage == "copied" and len(turns) < 3:
                turns.append(1)
                overwrite(writer, next(numbers), 40 - 3 * len(turns))
                overwrite(writer, next(numbers), 9)

        set_rounds(reader, pause)
        batch = reader.sample(24, COLUMNS)
        assert len(turns) > 1, "nothing went while it was read: the test shows nothing"
        assert_whole(batch)
        core = table.gather(batch.item_keys.cpu().numpy(), COLUMNS)
        assert core.present.any(), "some were read in an earlier round, and went since"
        theirs, mine = iter(core.offsets.tolist()), batch.offsets.tolist()
        begin = next(theirs)
        for number, end in enumerate(theirs):
            if core.present[number]:
                own = slice(*mine[number : number + 2])
                for name in ("observation", "frame", "action", "next_observation", "mask", "episode_step"):
                    np.testing.assert_array_equal(batch[name][own].cpu().numpy(), core[name][begin:end])
            begin = end


@pytest.mark.thorough
def test_a_ragged_batch_is_read_where_one_item_goes_in_every_round() -> None:
    """No round has all items still. Items that were read whole are not read again: the batch ends, and soon."""
    with opened(RAGGED) as (_, writer, reader, _):
        rounds: list[int] = []
        numbers = iter(range(1000, 100_000, 100))
        for _ in range(12):
            overwrite(writer, next(numbers), 12)

        def pause(stage: str) -> None:
            if stage == "copied":
                rounds.append(1)
                if len(rounds) < 40:
                    overwrite(writer, next(numbers), 12)

        set_rounds(reader, pause)
        batch = reader.sample(24, COLUMNS)
        assert 1 < len(rounds) < 20
        assert_whole(batch)


def test_without_the_second_look_moved_rows_would_be_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above does tear rows of windows: with the re-check gone they come out."""
    with opened(WINDOWS) as (_, writer, reader, _):
        monkeypatch.setattr(Rounds, "_recheck", lambda self, span, scratch, *rest, **more: scratch.cells[:2].zero_())
        set_rounds(reader, lambda stage: overwrite_all(writer, 1000) if stage == "walked" else None)
        with pytest.raises(AssertionError):
            assert_whole(reader.sample(24, COLUMNS))


@pytest.mark.forms(1)
@pytest.mark.parametrize("name", ["crossing", "major", "ragged"])
def test_pages_that_move_are_read_again_and_at_last_by_the_core(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relive.gpu.gather.ROUNDS", 2)
    with opened(ITEMS[name]) as (table, _, reader, keys):
        set_rounds(reader, lambda stage: table._core.move_all_pages() and None)
        batch, core = reader.gather(keys, COLUMNS), table.gather(keys, COLUMNS)
        assert batch.present.tolist() == core.present.tolist() and batch.present.sum() > 2
        assert_same(core, batch)
        moves = iter(range(2))
        set_rounds(reader, lambda stage: table._core.move_all_pages() if next(moves, None) is not None else None)
        assert_same(core, reader.gather(keys, COLUMNS))


def test_start_cells_that_the_device_cannot_see_yet_are_asked_for_again() -> None:
    spec = relive.StepSpec({"core": relive.ArraySpec((100,), "float32", kind="start")})
    index = relive.Index(relive.Sequences(4, burn_in=2, at_end="shift"))
    with relive.Table(spec, 512, index, max_lanes=2) as table, table.writer() as writer:
        values = np.arange(90 * 100, dtype=np.float32).reshape(90, 100)
        keys = writer.extend(core=values, truncated=True)
        assert table._core.layout[0]["area"] == "cell"
        with DeviceReader(table, DEVICE) as reader:
            batch = reader.gather(keys, ["core", "num_steps"])
            assert_same(table.gather(keys, ["core", "num_steps"]), batch)
            device_keys = torch.from_numpy(keys[batch.present.cpu().numpy()]).to(DEVICE)
            room = reader._plan(None, ["core"])[1].room(len(device_keys), None, reader.device)
            rounds = reader._rounds_of(0)
            scratch = rounds.scratch(len(device_keys))
            with reader._view.held() as span:
                assert span.mapped_cells > 0
                rounds.gather(span._replace(mapped_cells=0), scratch, device_keys, room)
                assert scratch.left() == (len(device_keys), 0)
                rounds.gather(span, scratch, device_keys, room)
                assert scratch.left() == (0, 0)
            assert torch.equal(room.arrays[0], batch["core"][batch.present])


def test_a_page_that_goes_while_its_link_is_followed_loses_a_window_that_crosses() -> None:
    """Its own page stays. The window is absent, and not shorter by the steps on the page that went."""
    sampler = relive.Prioritized(priority_exponent=1.0)
    index = relive.Index(relive.Sequences(4, period=1, at_end="cross"), sampler, max_times_sampled=1)
    spec = relive.StepSpec({"token": relive.ArraySpec((3,), "int16"), "reward": relive.ArraySpec((), "float64")})
    with relive.Table(spec, 600, index, max_lanes=4) as table, table.writer() as writer:
        assert table._core.geometry["page_len"] == 8
        keys = writer.extend(token=np.zeros((40, 3), np.int16), reward=np.arange(40.0))
        table.update_priorities(keys, np.zeros(40, np.float32))
        table.update_priorities(keys[4:8], np.ones(4, np.float32))
        assert sorted(table.draw(4).item_keys) == keys[4:8].tolist()
        table.update_priorities(keys[8:16], np.ones(8, np.float32))
        with DeviceReader(table, DEVICE) as reader:
            used: list[int] = []
            link = links_from(table, reader, int(keys[7]), 1)[0]
            with before_load(link, 8, lambda: used.append(table.sample(8).num_items)):
                batch = reader.gather(keys[4:8], ["reward", "num_steps"])
            assert used == [8] and batch.present.tolist() == [True, False, False, False]
            assert batch["num_steps"].tolist() == [4, 0, 0, 0]
