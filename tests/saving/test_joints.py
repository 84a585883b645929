"""Saves beside every other feature: kinds of items, groups that fill during a save, draws in flight, ends and forks."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relive
from relive import _core, errors
from relive.core.request import DrawRequest
from relive.saving import copying
from relive.saving.disk_files import DiskFiles
from saving.test_save import SPEC, made, write

ROWS = relive.StepSpec(
    {
        "observation": relive.ArraySpec((2,), "float32", kind="state"),
        "goal": relive.ArraySpec((2,), "float32"),
        "memory": relive.ArraySpec((80,), "float32", kind="start"),
        "prompt": relive.ArraySpec((), "int64", kind="episode"),
        "reward": relive.ArraySpec((), "float32"),
    }
)
LATE = relive.StepSpec({**ROWS.columns, "score": relive.ArraySpec((), "float32", late=True)})
INDEXES: dict[str, Any] = {
    "n-step": relive.Index(relive.Transitions(n_step=5, gamma=0.9), relive.Prioritized(0.7)),
    "hindsight": relive.Index(sampler=relive.Hindsight("goal", "observation", max_length=20)),
    "shifted sequences": relive.Index(relive.Sequences(6, burn_in=2, period=3, at_end="shift")),
    "crossing sequences": relive.Index(relive.Sequences(5, period=2, at_end="cross")),
    "ragged episodes": relive.Index(relive.Episodes(12, too_long="tail", layout="ragged")),
    "random part": relive.Index(relive.Episodes(4, too_long="random")),
    "top": relive.Index(sampler=relive.TopK(20)),
    "fresh": relive.Index(sampler=relive.Fresh(last=50)),
    "fading": relive.Index(sampler=relive.Fresh(decay=0.5), max_staleness=3),
    "shuffle": relive.Index(sampler=relive.Shuffle()),
    "removed by chance": relive.Index(sampler=relive.Prioritized(0.6), remover=relive.Reservoir(), max_items=60),
    "uses": relive.Index(sampler=relive.Fifo(), limiter=relive.Queue(200), max_times_sampled=2),
    "condition": relive.Index(where="reward >= 3"),
    "several": {"a": relive.Index(sampler=relive.Prioritized(1.0)), "b": relive.Index(sampler=relive.Prioritized(0.5))},
}


def add_episodes(table: relive.Table, count: int, late: bool = False) -> np.ndarray:
    """Episodes of 3, 4, ..., 12 steps; one episode of four lacks its late columns."""
    keys = []
    with table.writer() as writer:
        for episode in range(count):
            for step in range(3 + episode % 10):
                if step == 0:
                    table.set_policy_version(episode // 3)
                state = np.array([episode, step], np.float32)
                keys.append(
                    writer.append(
                        observation=state,
                        goal=state[::-1],
                        memory=np.full(80, episode + step, np.float32),
                        prompt=episode % 2,
                        reward=float(step),
                        next_observation=state + np.float32([0, 1]),
                        terminated=step == 2 + episode % 10,
                    )
                )
                if late and episode % 4:
                    table.complete([keys[-1]], score=[float(step)])
    return np.array(keys, np.int64)


def with_reward(achieved: Any, goal: Any, batch: Any) -> Any:
    return (achieved == goal).all(axis=-1).astype(np.float32)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", INDEXES)
def test_the_next_draws_are_those_of_the_saved_table(tmp_path: Path, name: str, late: bool) -> None:
    with relive.Table(LATE if late else ROWS, 400, INDEXES[name], seed=5, max_lanes=4) as table:
        keys = add_episodes(table, 24, late)
        for index, one in table.config.index.items():
            if one.has_priorities:
                table.update_priorities(keys[::3], np.arange(1.0, 1.0 + len(keys[::3])), index=index)
        reward = with_reward if name == "hindsight" else None
        table.sample(6, reward=reward)
        table.save(tmp_path)
        with relive.load(tmp_path) as copy:
            copy.check()
            assert copy.stats().indexes == table.stats().indexes
            for index in table.indexes:
                for _ in range(3):
                    one, other = (each.sample(6, index=index, reward=reward) for each in (table, copy))
                    assert np.array_equal(one.item_keys, other.item_keys)
                    assert np.array_equal(one.probabilities, other.probabilities)
                    for column in one:
                        assert np.array_equal(np.asarray(one[column]), np.asarray(other[column])), column


@pytest.mark.parametrize("sampler", [relive.RankBased(0.7), relive.TopK(30)], ids=["ranks", "top"])
def test_items_of_one_class_are_drawn_in_the_same_order(tmp_path: Path, sampler: Any) -> None:
    """The order of items within a class of priorities follows from the past."""
    table, keys = made(index=relive.Index(sampler=sampler))
    rng = np.random.default_rng(1)
    for _ in range(5):
        some = rng.permutation(keys)[:200]
        table.update_priorities(some, rng.choice([1.0, 1.001, 2.0, 5.0], len(some)))
    table.save(tmp_path)
    with relive.load(tmp_path) as copy, relive.load(tmp_path, capacity=4_000) as larger:
        for _ in range(20):
            batches = [each.sample(64) for each in (table, copy, larger)]
            assert all(np.array_equal(one.item_keys, batches[0].item_keys) for one in batches)
            assert all(np.array_equal(one.probabilities, batches[0].probabilities) for one in batches)
            for each in (table, copy):
                each.update_priorities(batches[0].item_keys, np.arange(1.0, 65.0) % 7)
            larger.update_priorities(batches[0].item_keys, np.arange(1.0, 65.0) % 7)
        copy.check()


def test_an_order_of_ranks_that_lies_is_put_right(tmp_path: Path) -> None:
    """The section is no more than an order: slots that are none, or come twice, do not count."""
    table, keys = made(index=relive.Index(sampler=relive.RankBased(0.7)))
    table.update_priorities(keys, np.arange(1.0, 1.0 + len(keys)) % 3 + 1)
    real = _core.CoreSaver

    class Lying:
        def __init__(self, core: Any) -> None:
            self._core = real(core)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._core, name)

        def sections(self) -> list[Any]:
            lies = np.array([2**32 - 1, 5, 5, 7, 10**6, 3], np.uint32).view(np.uint8)
            return [
                (name, index, lies if name == "rank order" else data) for name, index, data in self._core.sections()
            ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copying._core, "CoreSaver", Lying)
        table.save(tmp_path)
    with relive.load(tmp_path) as copy:
        copy.check()
        assert copy.num_items() == table.num_items() and copy.sample(64).num_items == 64


def test_a_group_that_fills_between_the_copy_and_the_cut_has_all_members(tmp_path: Path) -> None:
    """Windows of records are copied before the cut. A group gets members while its record keeps its word."""
    items = relive.Episodes(12, group_by="prompt", group_size=3, max_groups=8)
    with relive.Table(ROWS, 400, {"steps": relive.Index(), "groups": relive.Index(items)}, max_lanes=4) as table:
        add_episodes(table, 2)  # an open group for each of the two prompts
        saver = _core.CoreSaver(table.core)
        saver.begin(np.zeros((0, 6), np.uint64))
        add_episodes(table, 4)  # both are full and items now
        saver.cut(5.0)
        windows = next(data.copy() for name, _, data in saver.sections() if name == "windows")
        saver.end()
        one = np.frombuffer(windows.tobytes(), np.dtype([("key", "<i8"), ("rows", "<u4"), ("given", "<u4")]))
        assert table.num_items("groups") == 2 and (one["rows"] > 0).sum() == 6


def test_changed_limiters_and_exponents_are_saved(tmp_path: Path) -> None:
    table, keys = made()
    table.update_priorities(keys, np.linspace(1.0, 5.0, len(keys)))
    table.set_priority_exponent(0.2)
    table.set_limiter(relive.SamplesPerInsert(3.0, 20, tolerance=500.0))
    table.save(tmp_path)
    with relive.load(tmp_path) as copy:
        assert copy.priority_exponent() == 0.2 and copy.limiter() == table.limiter()
        assert np.array_equal(copy.sample(32).probabilities, table.sample(32).probabilities)


def test_items_in_flight_are_given_back(tmp_path: Path) -> None:
    limiter = relive.SamplesPerInsert(2.0, 10, tolerance=500.0)
    table, _ = made(num_steps=50, index=relive.Index(limiter=limiter))
    table.draw(7)
    held = table.held_draws()
    held.draw(DrawRequest(0, 5), 5.0)
    table.save(tmp_path)
    with relive.load(tmp_path) as copy:
        one, other = table.stats().indexes["default"], copy.stats().indexes["default"]
        assert (one.sampled, one.in_flight) == (12, 5) and (other.sampled, other.in_flight) == (7, 0)


def test_old_keys_name_nothing_under_new_keys(tmp_path: Path) -> None:
    table, keys = made(capacity=1_000, num_steps=900)
    table.save(tmp_path)
    with relive.load(tmp_path, capacity=200) as copy:
        assert not copy.gather(keys).present.any()


def test_writers_that_are_faster_than_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "MOST_LEFT_BYTES", -1)
    with relive.Table(SPEC, 100, relive.Index()) as table, table.writer() as writer:
        write(writer, 0, 5, ends=100)
        assert table.save(tmp_path).num_steps == 5  # little is left
        with table.writer(4) as others:
            for k in range(4):
                state = np.full((4, 3), k, np.float32)
                others.append(observation=state, action=[k] * 4, reward=[0.0] * 4, next_observation=state + 1)
            with pytest.raises(errors.SaveOutrun):
                table.save(tmp_path)
            table.check()
        assert relive.saved(tmp_path).num_steps == 5


EXIT = """
import sys
import numpy as np, relive
spec = relive.StepSpec({"image": relive.ArraySpec((84, 84), "uint8")})
table = relive.Table(spec, 60_000, relive.Index(), max_lanes=64)
writer = table.writer(64)
for _ in range(50):
    writer.append(image=np.zeros((64, 84, 84), np.uint8))
saving = table.save(sys.argv[1], wait=False)
print(saving.progress < 1.0)
"""


def test_a_process_that_ends_finishes_its_save(tmp_path: Path) -> None:
    """Open pages of several blocks are left when the program ends."""
    done = subprocess.run([sys.executable, "-c", EXIT, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert relive.saved(tmp_path).num_steps == 50 * 64
    with relive.load(tmp_path) as copy:
        copy.check()


def _save_and_end(path: str) -> None:
    table = relive.Table(relive.StepSpec({"image": relive.ArraySpec((84, 84), "uint8")}), 10_000, max_lanes=64)
    writer = table.writer(64)
    for _ in range(100):
        writer.append(image=np.zeros((64, 84, 84), np.uint8))
    table.save(path, wait=False)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_child_of_multiprocessing_that_ends_finishes_its_save(tmp_path: Path, method: str) -> None:
    child = multiprocessing.get_context(method).Process(target=_save_and_end, args=(str(tmp_path),))
    child.start()
    child.join(60.0)
    child.kill()  # if it never ends
    assert child.exitcode == 0 and relive.saved(tmp_path).num_steps == 100 * 64


def test_ctrl_c_in_the_start_of_the_thread_ends_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, _ = made()

    def interrupted(thread: threading.Thread) -> None:
        if thread.name == "relive-save":
            raise KeyboardInterrupt
        start(thread)

    start = threading.Thread.start
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(threading.Thread, "start", interrupted)
        table.save(tmp_path, wait=False)
    assert not (tmp_path / "CURRENT").exists() and not list((tmp_path / "cuts").iterdir())
    assert table.save(tmp_path).num_steps == 420  # the folder is not locked
    with table.writer() as writer:
        write(writer, 10_000, 3_000)  # pages go: none is pinned
    table.check()
    assert table.stats().num_free_pages > 0


def test_a_folder_that_its_owner_lost_is_unlocked(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path), makes=True)
    files.lock()
    descriptors = len(os.listdir("/proc/self/fd"))
    del files
    assert len(os.listdir("/proc/self/fd")) == descriptors - 2
    again = DiskFiles(str(tmp_path), makes=True)
    again.lock()
    again.close()


def test_a_fork_while_a_save_goes_on(tmp_path: Path) -> None:
    table, _ = made()
    saving = table.save(tmp_path, wait=False)
    child = os.fork()
    if child == 0:
        try:
            saving.wait(0.0)
        except errors.InvalidConfig:
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert saving.wait(30.0).num_steps == 420
    assert table.save(tmp_path).num_pages_written <= 1


def test_a_save_under_way_does_not_pickle(tmp_path: Path) -> None:
    table, _ = made()
    saving = table.save(tmp_path, wait=False)
    with pytest.raises(errors.NotShareable, match="save under way") as caught:
        pickle.dumps(saving)
    assert pickle.loads(pickle.dumps(saving.wait(30.0))).num_steps == 420, "the way out that the error names"
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.what == "save" and str(again) == str(caught.value)
