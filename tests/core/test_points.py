"""The ten points that the layout must allow, one test or more each (docs/design: what the layout must allow)."""

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
    SMALL_COLUMNS,
    assert_rows,
    gather,
    make_core,
    make_index,
    refuse,
    rows,
    write_rows,
)
from relive import _core, errors


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "relive-region")


def test_point_1_every_page_moves_while_samplers_run() -> None:
    """A page is not a frame: all of them move again and again, and nobody notices."""
    table = make_core(indexes=[make_index(n_step=3, stack={"observation": 3})])
    keys = write_rows(table, 0, 900)
    order = np.argsort(keys)
    names = ["action", "observation", "next_observation", "frame", "next_frame"]
    plan = table.plan(0, names)
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
            arrays, its_keys, _, _ = table.sample(plan, 512, 10.0, False)
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
        while drawn[0] < 50_000:
            moved += table.move_all_pages()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong and moved > 300 * 100
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
    plan = fused.plan(0, NAMES)
    direct = [fused.sample(plan, 32, 1.0, False) for _ in range(6)]
    drawn = [apart.draw(0, 32, 1.0) for _ in range(6)]
    plan = apart.plan(0, NAMES)
    for (arrays, keys, probabilities, live), (its_keys, its_probabilities, its_live) in zip(direct, drawn, strict=True):
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
        plan = table.plan(0, NAMES)
        said = []
        for size in (1, 7, 64, 255):
            arrays, keys, probabilities, _ = table.sample(plan, size, 1.0, False)
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


def test_point_6_several_indexes_over_the_same_steps() -> None:
    indexes = [
        make_index("uniform", sampler="uniform"),
        make_index("five", n_step=5, priority_exponent=0.5),
        make_index("stacked", stack={"observation": 4}, stack_pad="zeros"),
    ]
    table = make_core(indexes=indexes)
    keys = write_rows(table, 0, 300)
    assert [table.num_items(index) for index in range(3)] == [300] * 3
    assert table.update_priorities(1, keys, np.full(300, 4.0)) == 300
    assert [table.total(index) for index in range(3)] == [300.0, 600.0, 300.0]
    assert gather(table, keys[:1], ["reward"], index=1)["reward"].tolist() == [0 + 1 + 2 + 3 + 4]
    assert gather(table, keys[:1], ["observation"], index=2)["observation"].shape == (1, 4, 3)
    table.delete(keys[:10])
    assert [table.num_items(index) for index in range(3)] == [290] * 3
    assert table.total(1) == 580.0
    table.check()
    table.close()


def test_point_6_the_root_is_the_sum_of_the_leaves() -> None:
    """Never incremented: after a million updates it is what an exact recomputation says."""
    table = make_core(capacity=4096)
    keys = write_rows(table, 0, 4000)
    rng = np.random.default_rng(2)
    now = np.ones(4000)
    for _ in range(400):
        chosen = rng.integers(0, 4000, 2500)
        values = 10.0 ** rng.uniform(-6, 6, 2500)
        table.update_priorities(0, keys[chosen], values)
        now[chosen] = values
    assert table.total(0) == pytest.approx(now.astype(np.float32).astype(np.float64).sum(), rel=1e-12)
    table.check()
    table.close()


@pytest.mark.parametrize("shard", [0, 5, 4095])
def test_point_7_keys_hold_shard_bits(shard: int) -> None:
    table = make_core(shard=shard)
    other = make_core(shard=shard ^ 1)
    keys = write_rows(table, 0, 50)
    assert (keys >= 0).all() and (keys >> 51 == shard).all() and len(set(keys.tolist())) == 50
    assert gather(table, keys)["present"].all()
    with pytest.raises(errors.ForeignKey) as caught:
        gather(other, keys)
    assert caught.value.position == 0
    table.close()
    other.close()


@pytest.mark.parametrize(
    "capacity, max_lanes, more, expected",
    [
        (1_000_000, 256, {}, 64),
        (1_000_000, 100, {}, 512),
        (100, 256, {}, 8),
        (100, 256, {"n_step": 9}, 64),
        (10_000_000, 16, {}, 4096),
    ],
)
def test_point_8_page_length(capacity: int, max_lanes: int, more: dict[str, int], expected: int) -> None:
    table = make_core(
        columns=SMALL_COLUMNS, capacity=capacity, max_lanes=max_lanes, indexes=[make_index(**more)]
    )  # fmt: skip
    geometry = table.geometry
    assert geometry["page_len"] == expected
    table.close()


def test_point_8_a_thousand_lanes_of_which_990_idle() -> None:
    """Idle lanes hold a page each and strand nothing: the busy ones fill the table to its capacity."""
    capacity = 20_000
    table = make_core(columns=SMALL_COLUMNS, capacity=capacity, max_lanes=1000)
    writer = table.open_writer(1000, False, refuse)
    everyone = {"observation": np.zeros((1000, 3), np.float32), "action": np.zeros(1000, np.int64)}
    everyone["reward"] = np.zeros(1000, np.float32)
    idle_keys = writer.append(everyone, None, None, 10.0)
    busy = np.arange(10, dtype=np.int32) * 100
    keys = []
    for t in range(1, 4001):
        columns = {
            "observation": np.full((10, 3), t, np.float32),
            "action": np.full(10, t, np.int64),
            "reward": np.full(10, t, np.float32),
        }
        keys.append(writer.append(columns, busy, None, 10.0))
    assert capacity * 0.9 <= table.num_steps() <= capacity
    newest = np.concatenate(keys[-1800:-1])
    said = gather(table, newest, ["action"])
    assert said["present"].all()
    assert said["action"].tolist() == np.repeat(np.arange(2201, 4000), 10).tolist()
    assert len(idle_keys) == 1000
    table.check()
    writer.close()
    table.check()
    table.close()


def test_point_8_many_short_lived_lanes_leave_nothing_behind() -> None:
    """A closed lane's page is cut short: where pages run out the oldest go early, and the statistics count them."""
    table = make_core(columns=SMALL_COLUMNS, capacity=4000, max_lanes=4)
    for number in range(2000):
        write_rows(table, 10 * number, 5, SMALL_COLUMNS)
    pages = table.geometry["num_pages"]
    assert 5 * (pages - 4) <= table.num_steps() <= 4000
    pressed = [value for name, value in table.stats().items() if "pool_pressure" in name]
    assert pressed == [2000 - pages] or pressed[0] > 0
    table.check()
    table.close()


def test_point_9_the_limiter_is_arithmetic_on_counters() -> None:
    """Held batches are in flight until they are committed or returned."""
    paced = make_index(limiter="samples_per_insert", samples_per_insert=1.0, min_size=100, tolerance=100.0)
    table = make_core(indexes=[paced])
    writer = table.open_writer(1, True, refuse)
    writer.extend(rows(0, 100), None, None, 10.0)
    plan = table.plan(0, ["action"])
    for _ in range(4):
        table.sample(plan, 25, 0.0, True)
    with pytest.raises(errors.DeadlineExceeded):
        table.draw(0, 1, 0.0)
    table.return_held(0, 50)
    table.commit_held(0, 50)
    table.draw(0, 50, 0.0)
    with pytest.raises(errors.DeadlineExceeded):
        table.draw(0, 1, 0.0)
    writer.close()
    table.close()


@needs_shared_memory
def test_point_9_a_read_only_handle_draws_and_gathers(path: str) -> None:
    table = make_core(path)
    keys = write_rows(table, 0, 400)
    before = Path(path).stat().st_mtime_ns
    reader = _core.attach_table(path, True, 0, 1.0)
    assert reader.read_only and reader.path == path and reader.metadata == b"{}"
    assert_rows(gather(reader, keys), np.arange(400))
    plan = reader.plan(0, NAMES)
    arrays, drawn, probabilities, live = reader.sample(plan, 64, 1.0, False)
    assert live == 400 and set(drawn.tolist()) <= set(keys.tolist())
    np.testing.assert_allclose(probabilities, 1 / 400)
    assert (arrays[2] == arrays[0][:, 0]).all()
    with pytest.raises(errors.ReadOnly):
        reader.update_priorities(0, keys, np.ones(400))
    with pytest.raises(errors.ReadOnly):
        reader.open_writer(1, True, refuse)
    reader.close()
    assert Path(path).stat().st_mtime_ns >= before
    table.check()
    table.close()


@needs_shared_memory
def test_point_10_what_is_no_region_is_refused(path: str) -> None:
    for content in (b"", b"x", b"hello" * 10_000, bytes(1 << 20)):
        Path(path).write_bytes(content)
        for read_only in (False, True):
            with pytest.raises(errors.NotARegion):
                _core.attach_table(path, read_only, 0, 1.0)
    os.unlink(path)
    with pytest.raises(errors.NoSuchTable):
        _core.attach_table(path, False, 0, 1.0)


@needs_shared_memory
def test_point_10_another_format_is_refused_by_name(path: str) -> None:
    table = make_core(path)
    write_rows(table, 0, 10)
    content = bytearray(Path(path).read_bytes())
    table.close()
    for position, error in ((0, errors.NotARegion), (8, errors.FormatMismatch), (12, errors.FormatMismatch)):
        broken = bytearray(content)
        broken[position] ^= 0x55
        Path(path).write_bytes(broken)
        with pytest.raises(error):
            _core.attach_table(path, True, 0, 1.0)
    Path(path).write_bytes(content[: len(content) // 2])
    with pytest.raises((errors.NotARegion, errors.FormatMismatch)):
        _core.attach_table(path, True, 0, 1.0)
