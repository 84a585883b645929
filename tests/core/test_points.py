"""Points 1 to 5 of the ten that the layout must allow: pages and frames, slabs, layout, randomness, reclaiming."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from processes.shm import needs_shared_memory

from core.tools import (
    COLUMNS,
    NAMES,
    assert_rows,
    gather,
    make_core,
    make_index,
    write_rows,
)
from relive import errors
from relive.core.request import DrawRequest


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "relive-region")


def test_point_1_every_page_moves_while_samplers_run() -> None:
    """A page is not a frame: all pages move again and again, and no reader sees a difference."""
    table = make_core(indexes=[make_index(n_step=3, stack={"observation": 3})])
    keys = write_rows(table, 0, 900)
    order = np.argsort(keys)
    names = ["action", "observation", "next_observation", "frame", "next_frame"]
    plan = table.select(0, names)
    before = gather(table, keys)
    stop, wrong, drawn = threading.Event(), [], [0]

    def check(number: np.ndarray, arrays: list[np.ndarray]) -> None:
        """Row `number` of the lane, and nothing else, even where all columns agree with each other."""
        action, observation, following, frame, next_frame = arrays
        steps = np.minimum(3, 900 - number)
        good = (action == number).all() and (observation[:, 2, 0] == number).all()
        good &= (following[:, 2, 1] == number + steps).all()
        good &= (observation[:, 0, 2] == np.maximum(number - 2, 0)).all()
        good &= (frame[:, 3, 4] == number % 251).all() and (next_frame[:, 1, 2] == (number + steps) % 251).all()
        if not good:
            wrong.append(number)

    def sample() -> None:
        while not stop.is_set():
            arrays, its_keys, _, _ = table.draw(DrawRequest(0, 512, plan), 10.0)
            check(order[np.searchsorted(keys[order], its_keys)], arrays)
            drawn[0] += 512

    def read_all() -> None:
        while not stop.is_set():
            arrays, present = table.gather(plan, keys, None)
            assert present.all()
            check(np.arange(900), arrays)

    threads = [threading.Thread(target=work) for work in (sample, sample, read_all)]
    for thread in threads:
        thread.start()
    try:
        moved = sum(table.move_all_pages() for _ in range(300))
        while drawn[0] < 50_000 or moved < 300 * 100:  # none moves while a gather holds them all (rule D7)
            moved += table.move_all_pages()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    after = gather(table, keys)
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)
    table.check()
    table.close()


def test_point_1_a_moved_page_lies_elsewhere() -> None:
    table = make_core()
    keys = write_rows(table, 0, 500)
    places = [table.address_of(int(key)) for key in keys]
    assert table.move_all_pages() > 0
    assert sum(a != b for a, b in zip(places, map(table.address_of, keys.tolist()), strict=True)) > 400
    assert_rows(gather(table, keys), np.arange(500))
    table.close()


@needs_shared_memory
def test_point_2_slabs_and_frames_are_aligned_and_committed_as_needed(path: str) -> None:
    table = make_core(path, capacity=200_000, max_lanes=4)
    geometry = table.geometry
    assert geometry["slabs_offset"] % (2 << 20) == 0 and geometry["slab_bytes"] % (2 << 20) == 0
    assert geometry["frame_bytes"] % 4096 == 0
    at_birth = os.stat(path).st_blocks * 512
    assert at_birth < 64 << 20 and at_birth < os.stat(path).st_size / 2, "memory is taken as rows need it"
    write_rows(table, 0, 100_000)
    assert table.geometry["frames_committed"] > geometry["frames_committed"]
    assert os.stat(path).st_blocks * 512 > max(at_birth, 100_000 * 400)
    table.check()
    table.close()
    assert not os.path.exists(path)


def test_point_2_more_lanes_than_a_cache_has_ways_do_not_push_each_other_out() -> None:
    """256 lanes are written at the same row of 256 pages: 4096 bytes apart they would share a few lines of a cache."""
    columns = [("number", "<i8", (7,), "state")]  # 64 bytes a row with its head, 64 rows a page
    table = make_core(columns=columns, capacity=200_000, max_lanes=256)
    geometry = table.geometry
    assert geometry["page_len"] * geometry["record_stride"] % 4096 == 0, "what this test is about"
    assert geometry["frame_bytes"] % 4096 == 64
    table.close()


@needs_shared_memory
def test_point_2_a_full_file_system_is_an_error_before_anything_is_made(tmp_path: Path) -> None:
    """Whatever the storage lacks is asked for before it is touched: an error, never a bus error."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = str(tmp_path / "relive-full")
    import signal

    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises((errors.StorageFull, errors.SystemFailure)):
            make_core(path, capacity=1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert not os.path.exists(path)


def test_point_3_the_layout_is_a_value_from_which_addresses_follow() -> None:
    """numpy alone reads every row from the region's bytes: frame of the page + column.offset + row x stride."""
    table = make_core()
    keys = write_rows(table, 0, 700)
    table.move_all_pages()
    layout = json.loads(json.dumps(table.layout))
    geometry = table.geometry
    region = np.frombuffer(table.region_bytes(), np.uint8)
    said = gather(table, keys)
    shapes = {name: (dtype, shape) for name, dtype, shape, _ in COLUMNS}
    assert [column["name"] for column in layout] == [name for name, *_ in COLUMNS]
    assert geometry["record_stride"] % 16 == 0
    for column in layout:
        dtype, shape = shapes[column["name"]]
        assert column["num_bytes"] == np.dtype(dtype).itemsize * int(np.prod(shape, dtype=int))
        if column["num_bytes"] > 256:
            assert column["stride"] % 64 == 0 and column["offset"] % 64 == 0
        else:
            assert column["stride"] == geometry["record_stride"]
        for position, key in enumerate(keys.tolist()):
            row = key & (geometry["page_len"] - 1)
            frame = table.address_of(key) - row * geometry["record_stride"]
            start = frame + column["offset"] + row * column["stride"]
            value = region[start : start + column["num_bytes"]].view(dtype).reshape(shape)
            np.testing.assert_array_equal(value, said[column["name"]][position])
    del region
    table.close()


def test_point_4_draw_and_gather_are_apart_and_randomness_is_counted() -> None:
    """Batches drawn early and gathered later are what the same calls fused would have been."""
    fused, apart = make_core(), make_core()
    for table in (fused, apart):
        write_rows(table, 0, 800)
    plan = fused.select(0, NAMES)
    direct = [fused.draw(DrawRequest(0, 32, plan), 1.0) for _ in range(6)]
    drawn = [apart.draw(DrawRequest(0, 32), 1.0) for _ in range(6)]
    plan = apart.select(0, NAMES)
    for (arrays, keys, probabilities, live), (_, its_keys, its_probabilities, its_live) in zip(
        direct, drawn, strict=True
    ):
        np.testing.assert_array_equal(keys, its_keys)
        np.testing.assert_array_equal(probabilities, its_probabilities)
        assert live == its_live == 800
        later, present = apart.gather(plan, its_keys, None)
        assert present.all()
        for left, right in zip(arrays, later, strict=True):
            np.testing.assert_array_equal(left, right)
    fused.close()
    apart.close()


def test_point_4_same_seed_same_bytes() -> None:
    """The regions of two equal histories draw the same bytes; another seed does not."""

    def run(seed: int) -> list[bytes]:
        table = make_core(seed=seed)
        keys = write_rows(table, 0, 600)
        table.update_priorities(0, keys, np.linspace(0, 3, 600))
        plan = table.select(0, NAMES)
        said = []
        for size in (1, 7, 64, 255):
            arrays, keys, probabilities, _ = table.draw(DrawRequest(0, size, plan), 1.0)
            said += [array.tobytes() for array in arrays] + [keys.tobytes(), probabilities.tobytes()]
        table.close()
        return said

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_point_5_pinned_pages_stay_and_are_reclaimed_when_unpinned() -> None:
    table = make_core(capacity=512, max_lanes=2)
    first = write_rows(table, 0, 400)
    table.pin_page(int(first[0]))
    address = table.address_of(int(first[0]))
    page_len, stride = table.geometry["page_len"], table.geometry["record_stride"]
    held = bytes(table.region_bytes()[address : address + page_len * stride])
    table.move_all_pages()
    for round_number in range(6):
        write_rows(table, 1000 * (round_number + 1), 400)
    assert bytes(table.region_bytes()[address : address + page_len * stride]) == held, "the pinned frame was reused"
    table.check()
    table.unpin_page(int(first[0]))
    for round_number in range(6):
        write_rows(table, 50_000 + 1000 * round_number, 400)
    assert bytes(table.region_bytes()[address : address + page_len * stride]) != held, "the frame never came back"
    table.check()
    table.close()


def test_point_5_a_page_without_live_items_is_reclaimed_early() -> None:
    table = make_core(capacity=2000)
    keys = write_rows(table, 0, 1000)
    free = table.geometry["num_free_pages"]
    assert table.delete(keys) == 1000
    assert table.geometry["num_free_pages"] > free
    assert table.num_steps() == 0
    table.check()
    table.close()
