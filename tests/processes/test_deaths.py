"""Processes killed and stopped at any moment: the table stays usable, and no call waits past a deadline."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

import relive
from processes.shm import needs_shared_memory, shared_files
from processes.tools import (
    checked_bytes,
    checked_index,
    checked_step,
    checked_table,
    children,
    eventually,
    number_of,
    torn_rows,
)
from processes.workers import (
    EVERYTHING,
    create_and_wait,
    hold_batches,
    sample_with_deadline,
    update_for_ever,
    write_and_wait,
    write_blocks_by_parts,
    write_for_ever,
)
from relive import errors

pytestmark = needs_shared_memory


@pytest.mark.parametrize("gives_next", [False, True])
def test_a_writer_killed_in_mid_episode(shm_name: Any, gives_next: bool) -> None:
    """Its lane is cut: the last row is a bootstrap state, the rows before it publish, shorter, as truncated."""
    name = shm_name()
    with checked_table(name) as table, children() as start:
        child = start("fork", write_and_wait, name, 30, gives_next)
        keys = np.asarray(child.answer())
        batch = table.gather(keys)
        complete = 28 if gives_next else 27
        assert batch.present.tolist() == [True] * complete + [False] * (30 - complete)
        child.kill()
        relive.attach(name).close()  # a process that attaches sweeps up after dead processes
        batch = table.gather(keys, columns=[*EVERYTHING, "terminated", "truncated"])
        items = 30 if gives_next else 29
        assert batch.present.tolist() == [True] * items + [False] * (30 - items)
        assert batch["num_steps"][:items].tolist() == [min(3, items - t) for t in range(items)]
        assert batch["truncated"][items - 2 : items].all() and not batch["terminated"][:items].any()
        assert [number_of(frame) for frame in batch["next_observation"][items - 1]][-1] == items
        np.testing.assert_array_equal(batch["next_observation"][items - 1][-1], checked_bytes(512, items))
        assert len(table) == items
        table.check()


def test_lanes_of_the_dead_take_no_capacity(shm_name: Any) -> None:
    """As many lanes as the capacity holds windows for can be opened, however many a killed process had."""
    name = shm_name()
    with checked_table(name, max_lanes=200) as table, children() as start:
        with pytest.raises(errors.CapacityTooSmall) as caught:
            table.writer(num_lanes=100)
        most = table.capacity // (caught.value.needed // 100)
        child = start("fork", write_and_wait, name, 30, False)
        child.answer()
        with pytest.raises(errors.CapacityTooSmall):
            table.writer(num_lanes=most)
        child.kill()
        with table.writer(num_lanes=most):
            assert table.stats().num_lanes == most
        table.check()


def test_rows_are_not_refused_for_lanes_of_the_dead(shm_name: Any) -> None:
    """Without its next state each lane needs a row more; those of a killed process need none."""
    name = shm_name()
    with checked_table(name, max_lanes=200) as table, children() as start:
        with pytest.raises(errors.CapacityTooSmall) as caught:
            table.writer(num_lanes=100)
        window = caught.value.needed // 100
        living = table.capacity // (window + 1)
        child = start("fork", write_and_wait, name, 1, True)
        child.answer()
        with table.writer(num_lanes=living) as writer:
            child.kill()
            columns = {column: np.stack([value] * living) for column, value in checked_step(0).items()}
            assert len(writer.append(**columns)) == living
        table.check()


def test_a_restarted_writer_gets_new_lanes(shm_name: Any) -> None:
    """Windows never join two incarnations."""
    name = shm_name()
    with checked_table(name, max_lanes=2) as table, children() as start:
        lanes = set()
        old_keys: list[int] = []
        for _ in range(5):  # more deaths than lanes: the lanes of the dead come back
            child = start("fork", write_and_wait, name, 12, False)
            keys = child.answer()
            child.kill()
            relive.attach(name).close()
            batch = table.gather(np.asarray(keys[:11]), columns=[*EVERYTHING, "lane"])
            assert batch.present.all() and torn_rows(batch) == 0
            assert len(set(batch["lane"].tolist())) == 1
            lanes.add(int(batch["lane"][0]))
            assert not set(keys) & set(old_keys)
            old_keys += keys
        stats = table.stats()  # each goes on in the page of the one before it: 55 steps and 5 last states
        assert stats.num_pages - stats.num_free_pages <= -(-60 // stats.page_len)
        with table.writer() as writer:
            mine = [int(writer.append(**checked_step(n))) for n in range(12)]
        said = table.gather(np.asarray(mine[:11]), columns=["episode_step"])
        assert said["episode_step"].tolist() == list(range(11))
        table.check()


def test_a_waiter_finds_out_that_the_others_are_dead(shm_name: Any) -> None:
    """A sampler that waits sweeps up itself: the killed writer's rows make its items."""
    name = shm_name()
    with checked_table(name) as table, children() as start:
        child = start("fork", write_and_wait, name, 3, False)
        child.answer()
        with pytest.raises(errors.DeadlineExceeded):
            table.sample(4, timeout_s=0.0)
        child.kill()
        batch = table.sample(4, columns=EVERYTHING, timeout_s=20.0)
        assert torn_rows(batch) == 0


@pytest.mark.parametrize("way", ["remove", "reopen"])
def test_nothing_stays_after_a_kill_once_the_name_is_reopened_or_removed(shm_name: Any, way: str) -> None:
    name = shm_name()
    with children() as start:
        child = start("fork", create_and_wait, name)
        child.answer()
        child.kill()
    assert shared_files(name), "a killed process cannot tidy up"
    if way == "remove":
        from relive.table.open import remove

        remove(name)
    else:
        with checked_table(name) as table:
            assert len(table) == 0
    assert not shared_files(name)


def test_what_a_killed_creator_left_can_be_attached(shm_name: Any) -> None:
    name = shm_name()
    with children() as start:
        child = start("fork", create_and_wait, name)
        child.answer()
        child.kill()
    with relive.attach(name) as table:
        assert len(table) == 19
        assert torn_rows(table.sample(32, columns=EVERYTHING)) == 0
        table.check()
    assert not shared_files(name)


def test_a_table_in_use_is_not_removed(shm_name: Any) -> None:
    from relive.table.open import remove

    name = shm_name()
    with children() as start:
        child = start("fork", create_and_wait, name)
        child.answer()
        with pytest.raises(errors.InUse):
            remove(name)
        assert shared_files(name)
        child.tell("close")
        assert child.answer() == "closed"
        child.join()
    assert not shared_files(name)
    with pytest.raises(errors.NoSuchTable):
        remove(name)


def test_random_kills_and_stops(shm_name: Any, profile_scale: int) -> None:
    """Writers and updaters killed or stopped at random; samplers with short deadlines never overrun them by much."""
    name = shm_name()
    rng = random.Random(9)
    seconds = 5.0 * profile_scale
    with checked_table(name) as table, children() as start:
        samplers = [start("fork", sample_with_deadline, name, seconds) for _ in range(2)]
        jobs = [lambda i=i: start("fork", write_for_ever, name, 1_000_000 * (i + 1)) for i in range(2)]
        jobs.append(lambda: start("fork", update_for_ever, name))
        working = [job() for job in jobs]
        deadline = time.monotonic() + seconds - 1.0
        kills = 0
        while time.monotonic() < deadline:
            time.sleep(rng.random() * 0.15)
            victim = rng.randrange(len(jobs))
            if rng.random() < 0.3:
                os.kill(working[victim].process.pid, signal.SIGSTOP)
                time.sleep(0.05)
                os.kill(working[victim].process.pid, signal.SIGCONT)
            else:
                working[victim].kill()
                kills += 1
                working[victim] = jobs[victim]()
        said = [child.answer(seconds + 60) for child in samplers]
        for child in working:
            child.kill()
        assert kills > 5
        for served, longest in said:
            assert served > 0
            assert longest < 4.0, f"a call with 0.2 s to go took {longest:.1f} s"
        relive.attach(name).close()
        table.check()
        assert len(table) <= 300
        with table.writer() as writer:
            for number in range(100):
                writer.append(**checked_step(number))
        for _ in range(20):
            assert torn_rows(table.sample(32, columns=EVERYTHING, timeout_s=10.0)) == 0
        table.check()


def test_a_killed_prefetcher_gives_back_what_it_did_not_hand_out(shm_name: Any) -> None:
    """In flight is not sampled: after the sweep only what was handed out counts."""
    name = shm_name()
    limiter = relive.SamplesPerInsert(1.0, min_size=100, tolerance=100.0)
    index = relive.Index(limiter=limiter)
    with checked_table(name, index=index) as table, children() as start, table.writer() as writer:
        for number in range(100):
            writer.append(**checked_step(number), next_observation=checked_step(number + 1)["observation"])
        child = start("fork", hold_batches, name, 3)
        child.answer()
        child.kill()
        relive.attach(name).close()
        drawn = 0
        while drawn <= 100:
            try:
                table.draw(10, timeout_s=0.0)
            except errors.DeadlineExceeded:
                break
            drawn += 10
        # what was handed out counts at most once and at least what the child had taken and acknowledged
        assert 60 <= drawn <= 70


def test_a_writer_killed_in_the_middle_of_a_block_keeps_nothing_reserved(shm_name: Any) -> None:
    """Window 20, draws of 15: blocks of 16 go in by parts, which wait in between. The next writer goes on."""
    name = shm_name()
    index = checked_index(limiter=relive.SamplesPerInsert(1.0, min_size=10, tolerance=10.0))
    with checked_table(name, index=index, max_lanes=2) as table, children() as start:
        for _ in range(5):
            child = start("fork", write_blocks_by_parts, name)
            child.answer()
            for _ in range(4):
                assert torn_rows(table.sample(15, columns=EVERYTHING, timeout_s=30.0)) == 0
            child.kill()
        table.check()
        with table.writer() as writer:
            done = threading.Event()

            def draw() -> None:
                while not done.is_set():
                    with contextlib.suppress(errors.DeadlineExceeded):
                        table.draw(15, timeout_s=0.2)

            drawing = threading.Thread(target=draw)
            drawing.start()
            for number in range(60):
                writer.append(**checked_step(number), timeout_s=30.0)
            done.set()
            drawing.join()
        table.check()


def test_a_closed_prefetcher_gives_back_exactly(shm_name: Any) -> None:
    name = shm_name()
    index = relive.Index(limiter=relive.SamplesPerInsert(1.0, min_size=100, tolerance=100.0))
    with checked_table(name, index=index) as table, children() as start, table.writer() as writer:
        for number in range(100):
            writer.append(**checked_step(number), next_observation=checked_step(number + 1)["observation"])
        child = start("spawn", hold_batches, name, 3)
        child.answer()
        child.tell("stop")
        assert child.answer() == "closed"
        table.draw(70, timeout_s=0.0)
        with pytest.raises(errors.DeadlineExceeded):
            table.draw(1, timeout_s=0.0)


def test_a_lane_of_the_dead_is_found_when_lanes_run_out(shm_name: Any) -> None:
    name = shm_name()
    with checked_table(name, max_lanes=1) as table, children() as start:
        child = start("fork", write_and_wait, name, 8, False)
        child.answer()
        with pytest.raises(errors.TooManyLanes):
            table.writer()
        child.kill()

        def opens() -> bool:
            try:
                table.writer().close()
            except errors.TooManyLanes:
                return False
            return True

        assert eventually(opens)
