"""Windows over many pages: followed link by link, whole or not at all, and looked at again page by page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from naive.program import SPECS, Driver, make_index, make_spec
from naive.test_naive import random_programme

import relive
from gpu.tools import (
    DEVICE,
    GPU_BLOCKS,
    DeviceReader,
    all_columns,
    assert_gathers_the_same,
    assert_same,
    before_load,
    links_from,
    numbered_rows,
    numbered_spec,
    set_rounds,
)
from relive.gpu.layout_args import IndexLayout, RegionLayout

PAGE_LEN = 8
LONG = relive.Transitions(n_step=37, gamma=0.97, stack={"observation": 20, "frame": 11})
LONG_PRIORITIZED = relive.Index(LONG, relive.Prioritized(priority_exponent=1.0))


@contextmanager
def two_lanes(capacity: int, count: int) -> Iterator[tuple[relive.Table, relive.Writer, relive.Writer, np.ndarray]]:
    """Pages of eight rows; two lanes take turns, so that pages of one lane do not lie side by side."""
    with relive.Table(numbered_spec(), capacity, LONG_PRIORITIZED, max_lanes=4) as table:
        assert table._core.geometry["page_len"] == PAGE_LEN
        with table.writer() as first, table.writer() as second:
            keys = []
            for begin in range(0, count, 12):
                keys.append(first.extend(**numbered_rows(begin, 12)))
                second.extend(**numbered_rows(10_000 + begin, 12))
            yield table, first, second, np.concatenate(keys)


@pytest.mark.forms(1)
@pytest.mark.parametrize(("blocks", "count"), [(None, 480), (GPU_BLOCKS, 180)])
def test_windows_of_seven_pages_are_what_the_core_gathers(blocks: object, count: int) -> None:
    """20 rows before, 37 steps and the state after them, pages of 8: from every offset, both pages of an end too."""
    with two_lanes(1200, count) as (table, first, second, keys):
        second.end_episode(truncated=True)
        first.extend(**numbered_rows(count, 9), terminated=True)
        with DeviceReader(table, DEVICE) as reader:
            layout = IndexLayout.from_facts(table._core.geometry, 0, LONG)
            assert (layout.pages_before, layout.pages_after) == (3, 5)
            set_rounds(reader, blocks=blocks)
            assert assert_gathers_the_same(table, reader, keys, None) > count - 80
            core, device = table.sample(40, all_columns(table)), reader.sample(40, all_columns(table))
            assert device.num_live_items == core.num_live_items
            keys = device.item_keys.cpu().numpy()
            assert_same(table.gather(keys, all_columns(table)), device)


@pytest.mark.forms(1)
@pytest.mark.parametrize("seed", [303, 304, *(pytest.param(one, marks=pytest.mark.thorough) for one in (307, 311))])
def test_random_programmes_with_long_windows_gather_the_same_bytes(seed: int) -> None:
    """Ends, tails, closed lanes and evictions on every side of page borders, in pages of eight rows."""
    programme = random_programme(seed, 90, None, windows=False)
    states = [name for name, (_, _, kind) in SPECS[programme.columns].items() if kind == "state"]
    long = replace(programme.indexes[0], n_step=29, stack=((states[0], 13),))
    indexes = (long, *programme.indexes[1:])
    lanes = sum(size or 1 for size in programme.writers)
    index = {f"index{number}": make_index(items) for number, items in enumerate(indexes)}
    table = relive.Table(make_spec(SPECS[programme.columns]), 60 * lanes, index, max_lanes=lanes + 8, seed=7)
    with table, DeviceReader(table, DEVICE) as reader:
        assert table._core.geometry["page_len"] == PAGE_LEN
        driver = Driver(SPECS[programme.columns], table, programme.writers, indexes)
        for op in programme.ops * 2:
            driver.apply(op)
        for name in index:
            assert_gathers_the_same(table, reader, np.asarray(driver.twin.keys, np.int64), name)
        for writer in driver.writers:
            writer.close()
        assert assert_gathers_the_same(table, reader, np.asarray(driver.twin.keys, np.int64), "index0") > 0


def test_a_lane_without_states_ends_where_a_row_says_so() -> None:
    """No tail, no bootstrap row: the last row of a closed lane is truncated by its head; one that goes on is not."""
    with relive.Table(
        relive.StepSpec(BARE), 600, relive.Index(relive.Transitions(n_step=21, gamma=0.5)), max_lanes=4
    ) as table:
        assert table._core.geometry["page_len"] == PAGE_LEN
        writer, other = table.writer(), table.writer()
        keys = writer.extend(**bare_rows(100))
        other.extend(**bare_rows(100), terminated=np.arange(100) % 7 == 6)
        with DeviceReader(table, DEVICE) as reader:
            assert assert_gathers_the_same(table, reader, keys, None) == 80
            writer.close()
            assert assert_gathers_the_same(table, reader, keys, None) == 100
            ends = reader.gather(keys, ["truncated", "num_steps"])
            assert ends["truncated"].tolist() == [False] * 79 + [True] * 21
            assert ends["num_steps"].tolist() == [21] * 80 + list(range(20, 0, -1))
            other.close()


@pytest.mark.forms(1)
@pytest.mark.parametrize("where", ["noted", "walked", "copied"])
def test_a_window_whose_last_page_goes_is_absent_and_never_shorter(where: str) -> None:
    """All of a window's pages are evicted under it, at once, between any two launches."""
    with two_lanes(600, 96) as (table, first, _, keys):
        done: list[str] = []

        def pause(stage: str) -> None:
            if stage == where and not done:
                done.append(stage)
                for begin in range(0, 720, 12):
                    first.extend(**numbered_rows(96 + begin, 12))

        with DeviceReader(table, DEVICE) as reader:
            set_rounds(reader, pause)
            batch = reader.gather(keys, all_columns(table))
        assert done and not batch.present.any()
        assert all(not array.any() for array in batch.flat().values())


@pytest.mark.forms(2)
@pytest.mark.parametrize("hop", [0, 1, 2, 3])
def test_pages_given_away_while_links_are_followed_are_never_handed_out(hop: int) -> None:
    """The pages of a window are freed and become another lane's just before its hop-th link is read."""
    with two_lanes(600, 96) as (table, _, second, keys), DeviceReader(table, DEVICE) as reader:
        done: list[bool] = []

        def overwrite() -> None:
            done.append(True)
            for begin in range(0, 720, 12):
                second.extend(**numbered_rows(10_096 + begin, 12))

        with before_load(links_from(table, reader, int(keys[0]), hop + 1)[hop], 8, overwrite):
            batch = reader.sample(24, ["observation", "action", "num_steps"])
        assert done, "the walk of a window from the first page came by"
        action = batch["action"].cpu().numpy()[:, None]
        assert (batch["num_steps"].cpu().numpy() == 37).all() and (action >= 10_000).all()
        stacked = batch["observation"].cpu().numpy()[:, :, 0]
        assert (stacked == np.maximum(action + np.arange(-19, 1), action // 10_000 * 10_000)).all()


@pytest.mark.thorough
def test_pages_in_the_midst_of_a_window_that_move_are_read_again() -> None:
    with two_lanes(1200, 96) as (table, _, _, keys):
        moves: list[int] = []

        def pause(stage: str) -> None:
            if len(moves) < 3:
                moves.append(table._core.move_all_pages())

        with DeviceReader(table, DEVICE) as reader:
            set_rounds(reader, pause)
            batch = reader.gather(keys, all_columns(table))
            assert len(moves) == 3 and min(moves) > 10
            assert_same(table.gather(keys, all_columns(table)), batch)
            assert batch.present.tolist() == [True] * 60 + [False] * 36


BARE = {"token": relive.ArraySpec((3,), "int16"), "reward": relive.ArraySpec((), "float64")}


def bare_rows(count: int) -> dict[str, np.ndarray]:
    return {"token": np.zeros((count, 3), np.int16), "reward": np.arange(float(count))}


def head_address(table: relive.Table, reader: DeviceReader, key: int) -> int:
    """Where the head of a step's row lies now."""
    facts = table._core.geometry
    layout = RegionLayout.from_facts(facts)
    page, row = divmod(key & layout.slot_mask, layout.page_len)
    region = np.frombuffer(table._core.region_bytes(), np.uint8)
    frame = int(region[layout.frames_offset + page * 4 :][:4].view(np.uint32)[0])
    with reader._view.held() as span:
        return span.address + layout.end_of_frames(frame + 1) - layout.frame_bytes + row * layout.record_stride


def test_a_window_that_seems_lost_because_its_page_moved_is_read_again() -> None:
    """The row that ends the episode is read from a frame that holds another lane's rows by then.

    The walk runs on over the end of the lane, where no page follows. It may not conclude that the item is gone.
    """
    index = relive.Index(relive.Transitions(n_step=3))
    with relive.Table(relive.StepSpec(BARE), 600, index, max_lanes=4) as table:
        ended, other = table.writer(), table.writer()
        keys = ended.extend(**bare_rows(PAGE_LEN), terminated=True)
        other.extend(**bare_rows(PAGE_LEN))
        moves: list[int] = []

        def move() -> None:
            moves.append(table._core.move_all_pages())
            other.extend(**bare_rows(5 * PAGE_LEN))

        with DeviceReader(table, DEVICE) as reader:
            with before_load(head_address(table, reader, int(keys[7])), 4, move):
                batch = reader.gather(keys[6:7], ["reward", "num_steps", "terminated"])
        assert moves and batch.present.all()
        assert (batch["num_steps"].item(), batch["terminated"].item(), batch["reward"].item()) == (2, True, 13.0)
        ended.close()
        other.close()


def test_a_page_that_goes_while_its_link_is_followed_makes_the_window_absent_at_once() -> None:
    """Items 6 and 7, drawn for the last time, run into a page that is freed when the link to it is read.

    A mere draw holds nothing, and the items of that page are used up just then. Their own page stays. One round says
    that they are absent, not sixteen: what said so holds still.
    """
    sampler = relive.Prioritized(priority_exponent=1.0)
    index = relive.Index(relive.Transitions(n_step=3), sampler, max_times_sampled=1)
    with relive.Table(relive.StepSpec(BARE), 600, index, max_lanes=4) as table, table.writer() as writer:
        keys = writer.extend(**bare_rows(40))
        table.update_priorities(keys, np.zeros(40, np.float32))
        table.update_priorities(keys[5:8], np.ones(3, np.float32))
        assert sorted(table.draw(3).item_keys) == keys[5:8].tolist()
        table.update_priorities(keys[8:16], np.ones(8, np.float32))
        with DeviceReader(table, DEVICE) as reader:
            assert assert_gathers_the_same(table, reader, keys[5:8], None) == 3
            used: list[int] = []
            stages: list[str] = []
            set_rounds(reader, stages.append)
            link = links_from(table, reader, int(keys[7]), 1)[0]
            with before_load(link, 8, lambda: used.append(table.sample(8).num_items)):
                batch = reader.gather(keys[5:8], all_columns(table))
            assert used == [8] and stages.count("copied") == 1
            assert batch.present.tolist() == [True, False, False]
            assert batch["reward"].tolist() == [18.0, 0.0, 0.0] and batch["num_steps"].tolist() == [3, 0, 0]
            assert assert_gathers_the_same(table, reader, keys[5:8], None) == 1
