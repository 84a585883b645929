"""Points 6 to 10 of the ten that the layout must allow: indexes, keys, page length, limiter and readers, format."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from processes.shm import needs_shared_memory

from core.tools import (
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
from relive.core.request import DrawRequest


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "relive-region")


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
        (100, 256, {"n_step": 9}, 8),  # a window runs over as many pages as it needs
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
    """The next lane goes on in a closed lane's page: no row of it is wasted, no page too many is used.

    Five rows a lane used to cut each page short; the statistics counted the 1,911 pages that went early.
    """
    table = make_core(columns=SMALL_COLUMNS, capacity=4000, max_lanes=4)
    for number in range(2000):
        write_rows(table, 10 * number, 5, SMALL_COLUMNS)
    assert 0.97 * 4000 <= table.num_steps() <= 4000
    assert table.stats()["pool_pressure"] == 0
    table.check()
    table.close()


def test_point_9_the_limiter_is_arithmetic_on_counters() -> None:
    """A hold ends once: by commit, by give_back, or with its object."""
    paced = make_index(limiter="samples_per_insert", samples_per_insert=1.0, min_size=100, tolerance=100.0)
    table = make_core(indexes=[paced])
    writer = table.open_writer(1, True, refuse)
    writer.extend(rows(0, 100), None, None, 10.0)
    plan = table.select(0, ["action"])
    holds = [_core.Hold(gives_back_uses=number % 2 == 0) for number in range(4)]
    for hold in holds:
        table.draw(DrawRequest(0, 25, plan), 0.0, hold)
        assert hold.is_held
    with pytest.raises(errors.DeadlineExceeded):
        table.draw(DrawRequest(0, 1), 0.0)
    for hold in holds[:2]:
        hold.give_back()
        hold.give_back()
    for hold in holds[2:]:
        hold.commit()
        hold.commit()
        hold.give_back()  # it is over: this changes nothing
        assert not hold.is_held
    table.draw(DrawRequest(0, 50), 0.0, dropped := _core.Hold())
    del dropped  # the end of the object gives the draw back
    table.draw(DrawRequest(0, 50), 0.0)
    with pytest.raises(errors.DeadlineExceeded):
        table.draw(DrawRequest(0, 1), 0.0)
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
    plan = reader.select(0, NAMES)
    arrays, drawn, probabilities, live = reader.draw(DrawRequest(0, 64, plan), 1.0)
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


@pytest.mark.parametrize("capacity, most_bytes", [(100_000, 16_000_000), (10_000, 3_000_000)])
def test_small_tables_are_small(capacity: int, most_bytes: int) -> None:
    """CartPole's steps with the usual 256 lanes: all bytes of the region, those of every page included."""
    columns = [
        ("observation", "<f4", (4,), "state"),
        ("action", "<i8", (), "step"),
        ("reward", "<f4", (), "step"),
    ]
    table = make_core(columns=columns, capacity=capacity, max_lanes=256, max_participants=256)
    assert table.geometry["region_bytes"] <= most_bytes
    table.close()


def test_long_windows_do_not_strand_the_pages_of_open_lanes() -> None:
    """121 steps of 84 x 84 uint8, a page open in each of 256 lanes: 0.93 GB where a page had to hold a window."""
    columns = [("frame", "|u1", (84, 84), "state"), ("action", "<i8", (), "step"), ("reward", "<f4", (), "step")]
    table = make_core(columns=columns, capacity=131_072, max_lanes=256, indexes=[make_index(n_step=121)])
    geometry = table.geometry
    assert 256 * geometry["frame_bytes"] <= 0.13e9 and geometry["page_len"] < 121
    table.close()
