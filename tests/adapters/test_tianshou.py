"""Tianshou's vector buffers on a table, compared with the library's own on the same steps."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou", reason="tianshou is not installed here: make test-adapters")

from tianshou import data as library  # noqa: E402
from tianshou.data import Batch  # noqa: E402

from relive.adapters.errors import NotOffered  # noqa: E402
from relive.adapters.tianshou import PrioritizedVectorReplayBuffer, VectorReplayBuffer  # noqa: E402
from relive.errors import DtypeMismatch, InvalidConfig  # noqa: E402

ENTRIES = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next")


def fill(buffers: list[Any], number: int, num_envs: int = 3, seed: int = 0, nested: bool = False) -> None:
    """Adds the same steps to all buffers; some environments pause, and one pauses for long."""
    rng = np.random.default_rng(seed)
    state = rng.normal(size=(num_envs, 4)).astype(np.float32)
    for step in range(number):
        ids = np.flatnonzero(rng.random(num_envs) < 0.8)
        ids = ids[(ids > 0) | (step < 12)]
        if not len(ids):
            continue
        following = rng.normal(size=(len(ids), 4)).astype(np.float32)
        end = rng.random(len(ids)) < 0.2
        cut = end & (rng.random(len(ids)) < 0.5)
        batch = Batch(
            obs=Batch(a=state[ids], b=state[ids, :1]) if nested else state[ids],
            act=rng.integers(0, 3, len(ids)),
            rew=rng.normal(size=len(ids)),
            terminated=end & ~cut,
            truncated=cut,
            obs_next=Batch(a=following, b=following[:, :1]) if nested else following,
            info=Batch(step=np.full(len(ids), step)),
        )
        told = [buffer.add(batch, buffer_ids=ids) for buffer in buffers]
        for one, two in zip(told[0], told[-1], strict=True):
            np.testing.assert_array_equal(one, two)
        state[ids] = np.where(end[:, None], rng.normal(size=following.shape), following)


def same(one: Any, two: Any) -> None:
    for name in ENTRIES:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    np.testing.assert_array_equal(one.info.step, two.info.step)


@pytest.mark.parametrize("number", [10, 90])
def test_every_step_is_the_library_s_also_of_a_slow_environment(number: int) -> None:
    ours, theirs = VectorReplayBuffer(60, 3), library.VectorReplayBuffer(60, 3)
    fill([theirs, ours], number)
    assert len(ours) == len(theirs)
    indices = theirs.sample_indices(0)
    np.testing.assert_array_equal(ours.sample_indices(0), indices)
    same(ours[indices], theirs[indices])
    same(ours[:], theirs[:])
    np.testing.assert_array_equal(ours.next(indices), theirs.next(indices))
    batch, drawn = ours.sample(64)
    same(batch, theirs[drawn])
    assert set(drawn) == set(indices) or number == 90
    assert len(ours.table) == len(theirs)  # each environment forgets its own oldest steps


def test_hasnull_is_the_library_s(tmp_path: Path) -> None:
    ours, theirs = VectorReplayBuffer(12, 2), library.VectorReplayBuffer(12, 2)
    rng = np.random.default_rng(3)
    told = []
    for step in range(120):
        lanes = np.flatnonzero(rng.random(2) < 0.8)
        if not len(lanes):
            continue
        batch = Batch(
            obs=Batch(a=np.zeros((len(lanes), 2), np.float32), b=np.zeros(len(lanes), np.int64)),
            act=np.zeros(len(lanes)),
            rew=np.zeros(len(lanes)),
            terminated=np.zeros(len(lanes), bool),
            truncated=np.zeros(len(lanes), bool),
            obs_next=Batch(a=np.zeros((len(lanes), 2), np.float32), b=np.zeros(len(lanes), np.int64)),
            info=Batch(name=np.array(["name"] * len(lanes), dtype=object), number=np.zeros(len(lanes), np.float32)),
        )
        if rng.random() < 0.1:
            entry = rng.integers(0, 5)
            place = (batch.obs.a, batch.rew, batch.obs_next.a, batch.info.number, batch.info.name)[entry]
            place[0] = None if entry == 4 else np.nan
        if step == 80:
            ours.reset()
            theirs.reset()
        if step == 40:
            ours = pickle.loads(pickle.dumps(ours))
            ours.save_hdf5(str(tmp_path / "file.hdf5"))
            ours = VectorReplayBuffer.load_hdf5(str(tmp_path / "file.hdf5"))
        for buffer in (ours, theirs):
            buffer.add(batch, buffer_ids=lanes)
        told.append(ours.hasnull())
        assert told[-1] == theirs.hasnull(), step
    assert 10 < sum(told) < len(told) - 10
    ours.reset()
    assert ours.hasnull() is False
    with pytest.raises(NotOffered, match="dropnull"):
        ours.dropnull()


def test_hasnull_sees_an_array_that_was_set_later() -> None:
    buffer = VectorReplayBuffer(12, 2)
    fill([buffer], 20, num_envs=2)
    buffer.set_array_at_key(np.ones(len(buffer)), "extra")
    assert not buffer.hasnull()
    buffer.set_array_at_key(np.full(len(buffer), np.nan), "extra")
    assert buffer.hasnull()


def test_stacks_and_nested_observations_are_the_library_s() -> None:
    options: dict[str, Any] = {"stack_num": 3, "ignore_obs_next": True}
    ours, theirs = VectorReplayBuffer(60, 3, **options), library.VectorReplayBuffer(60, 3, **options)
    fill([theirs, ours], 30)
    indices = theirs.sample_indices(0)
    same(ours[indices], theirs[indices])
    batch, drawn = ours.sample(8)
    same(batch, theirs[drawn])
    assert batch.obs.shape == (8, 3, 4)
    ours, theirs = VectorReplayBuffer(60, 3), library.VectorReplayBuffer(60, 3)
    fill([theirs, ours], 30, nested=True)
    batch, drawn = ours.sample(16)
    np.testing.assert_array_equal(batch.obs.b, theirs[drawn].obs.b)
    np.testing.assert_array_equal(ours[drawn].obs_next.a, theirs[drawn].obs_next.a)


def test_priorities_weights_and_beta() -> None:
    made = PrioritizedVectorReplayBuffer(60, 3, alpha=1.0, beta=1.0)
    theirs = library.PrioritizedVectorReplayBuffer(60, 3, alpha=1.0, beta=1.0)
    fill([theirs, made], 20)
    indices = made.sample_indices(0)
    priorities = np.where(indices % 7 == 0, 5.0, 1.0)
    for buffer in (made, theirs):
        buffer.update_weight(indices, priorities)
    batch, drawn = made.sample(4000)
    expected = priorities.sum()
    share = (drawn % 7 == 0).mean()
    assert abs(share - 5.0 * (indices % 7 == 0).sum() / expected) < 0.05
    np.testing.assert_allclose(batch.weight, theirs[drawn].weight, rtol=1e-5)
    made.set_beta(0.0)
    assert made.sample(10)[0].weight.min() == 1.0
    with pytest.raises(InvalidConfig, match="new_weight"):
        made.update_weight(indices, np.ones(2))


@pytest.mark.parametrize("way", ["hdf5", "pickle"])
@pytest.mark.parametrize("prioritized", [False, True])
def test_files_have_the_table(way: str, prioritized: bool, tmp_path: Path) -> None:
    kind: Any = PrioritizedVectorReplayBuffer if prioritized else VectorReplayBuffer
    made = kind(60, 3, **({"alpha": 0.6, "beta": 0.4} if prioritized else {}))
    fill([made], 60)
    before = made[:]
    if way == "hdf5":
        path = str(tmp_path / "buffer.hdf5")
        made.save_hdf5(path)
        made.table.close()
        other = kind.load_hdf5(path)
    else:
        other = pickle.loads(pickle.dumps(made))
    assert len(other) == len(before)
    same(other[:], before)
    fill([other], 20, seed=3)
    batch, indices = other.sample(32)
    same(batch, other[indices])


def test_an_end_after_a_load_is_seen_by_unfinished_index() -> None:
    made = VectorReplayBuffer(60, 3)
    fill([made], 12)
    made = pickle.loads(pickle.dumps(made))
    state = np.zeros((3, 4), np.float32)
    ends = dict(terminated=np.ones(3, bool), truncated=np.zeros(3, bool))
    step = np.full(3, 12)
    made.add(Batch(obs=state, obs_next=state, act=step, rew=np.zeros(3), info=Batch(step=step), **ends))
    assert not len(made.unfinished_index())


@pytest.mark.parametrize("name", ["obs", "act", "rew", "terminated", "obs_next"])
def test_hidden_values_are_refused(name: str) -> None:
    made = VectorReplayBuffer(60, 3)
    flags = {"terminated": np.zeros(3, bool), "truncated": np.zeros(3, bool)}
    states = {"obs": np.zeros((3, 2)), "obs_next": np.zeros((3, 2))}
    step = Batch(act=np.zeros(3), rew=np.zeros(3), **flags, **states)
    step.__dict__[name] = np.ma.array(step[name], mask=np.ones_like(step[name], bool))
    with pytest.raises(DtypeMismatch, match="hides"):
        made.add(step)
    assert len(made) == 0


def test_what_a_table_does_not_do_is_refused() -> None:
    made = VectorReplayBuffer(60, 3)
    with pytest.raises(NotOffered, match="add"):
        made.sample(3)
    step = Batch(obs=np.zeros((3, 2)), act=np.zeros(3), rew=np.zeros(3), terminated=[False] * 3, truncated=[False] * 3)
    with pytest.raises(InvalidConfig, match="obs_next"):
        made.add(step)
    with pytest.raises(NotOffered, match="set_batch"):
        made.set_batch(step)
    fill([made], 10)
    made.reset()
    assert len(made) == 0 == len(made.table)
