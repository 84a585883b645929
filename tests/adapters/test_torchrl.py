"""TorchRL's buffers on a table, compared with the library's own storage."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrl", reason="torchrl is not installed here: make test-adapters")

import torch  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer  # noqa: E402

from relive.adapters.errors import GoneItems, NotOffered  # noqa: E402
from relive.adapters.torchrl import ReliveSampler, ReliveStorage, ReliveWriter  # noqa: E402
from relive.errors import DtypeMismatch, InvalidConfig  # noqa: E402

torch.set_num_threads(1)


def steps(number: int, first: int = 0, end_at: int | None = None, terminated: bool = True) -> TensorDict:
    """Steps of one environment whose observation is their number; one of them may end its episode."""
    at = torch.arange(first, first + number)
    end = at == (-1 if end_at is None else end_at)
    ends = {"done": end, "terminated": end & terminated, "truncated": end & (not terminated)}
    return TensorDict(
        {
            "observation": at.float().reshape(-1, 1).expand(-1, 3).clone(),
            "action": at.reshape(-1) % 4,
            **{name: torch.zeros(number, 1, dtype=torch.bool) for name in ends},
            "next": {
                "observation": (at + 1).float().reshape(-1, 1).expand(-1, 3).clone(),
                "reward": torch.ones(number, 1),
                **{name: value.reshape(-1, 1) for name, value in ends.items()},
            },
        },
        [number],
    )


def buffer(batch_size: int = 32, beta: float = 0.4, **options: Any) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=ReliveStorage(1000, **options),
        sampler=ReliveSampler(beta=beta),
        writer=ReliveWriter(),
        batch_size=batch_size,
        priority_key="td_error",
    )


def test_entries_come_back_as_from_the_library_s_storage() -> None:
    ours, theirs = buffer(), TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=32)
    for made in (ours, theirs):
        made.extend(steps(20, end_at=11))
        made.extend(steps(20, first=100))  # a seam that no end announces
    mine, other = ours[:], theirs[:]
    assert mine.batch_size == other.batch_size == torch.Size([40])
    for key in other.keys(True, True):
        if key != "index":
            assert mine[key].dtype == other[key].dtype and torch.equal(mine[key], other[key]), key
    sample = ours.sample()
    assert set(sample.keys(True, True)) == set(theirs.sample().keys(True, True))
    assert torch.equal(sample["next", "observation"], sample["observation"] + 1)
    assert ours._storage.table.spec.num_bytes < 3 * 4 + 8 + 4 + 2  # the observation is stored once


def test_returns_of_several_steps_cross_no_end_and_no_seam() -> None:
    made = buffer(n_step=3, gamma=0.9)
    made.extend(steps(20, end_at=11))
    made.extend(steps(20, first=100, end_at=115, terminated=False))
    sample = made.sample(600)
    at, after = sample["observation"][:, 0], sample["next", "observation"][:, 0]
    number = sample["steps_to_next_obs"][:, 0]
    assert torch.equal(after - at, number.float()) and number.max() == 3 and number.min() == 1
    expected = (1 - 0.9**number) / (1 - 0.9)
    assert torch.allclose(sample["next", "reward"][:, 0], expected.float())
    ended = (at >= 9) & (at < 12)
    assert torch.equal(sample["next", "terminated"][:, 0], ended)
    assert bool(sample["next", "done"][(at > 113) & (at < 116)].all())


def test_priorities_are_set_and_weigh() -> None:
    made = buffer(alpha=1.0, beta=1.0)
    made.extend(steps(40))
    sample = made.sample()
    assert sample["priority_weight"].tolist() == [1.0] * 32
    everything = made[:]
    everything["index"] = torch.from_numpy(made._storage._all_keys())
    everything["td_error"] = torch.where(everything["observation"][:, 0] == 7, 3.0, 1.0)
    made.update_tensordict_priority(everything)
    sample = made.sample(4000)
    sevens = sample["observation"][:, 0] == 7
    assert 0.04 < sevens.float().mean() < 0.11  # 3 / 42
    assert torch.allclose(sample["priority_weight"], torch.where(sevens, 1 / 3, 1.0))
    made.sampler.beta = 0.0
    assert made.sample()["priority_weight"].min() == 1
    keys, hides = made._storage._all_keys()[:2], np.ma.array([1.0, 2.0], mask=[0, 1])
    with pytest.raises(DtypeMismatch, match="hides"):
        made.sampler.update_priority(keys, hides, storage=made._storage)
    plain = ReplayBuffer(storage=ReliveStorage(50), sampler=ReliveSampler(), writer=ReliveWriter(), batch_size=4)
    plain.extend(steps(10))
    sample, info = plain.sample(return_info=True)  # no collate_fn is needed
    assert "priority_weight" not in info and sample.batch_size == torch.Size([4])


def test_steps_of_several_environments_are_lanes() -> None:
    made = buffer(n_step=2, gamma=1.0, num_envs=2)
    for first in (0, 5):  # two rollouts that follow each other
        rollout = torch.stack([steps(5, first=first), steps(5, first=first + 1000)])
        index = made.extend(rollout if first else rollout.reshape(-1))
        assert index.shape == ((2, 5) if first else (10,))
    assert made._storage._writer.num_cuts == 0
    everything = made[:]
    assert torch.equal(everything["steps_to_next_obs"], torch.full((18, 1), 2))
    with pytest.raises(InvalidConfig, match="flatten"):
        made.extend(torch.stack([steps(4)] * 3))


@pytest.mark.parametrize("way", ["dumps", "pickle", "state_dict"])
def test_a_buffer_is_saved_with_its_table(way: str, tmp_path: Path) -> None:
    made = buffer(alpha=0.6)
    made.extend(steps(30, end_at=12))
    if way == "pickle":
        other = pickle.loads(pickle.dumps(made))
    else:
        other = buffer(alpha=0.6)
        if way == "dumps":
            made.dumps(tmp_path / "buffer")
            made._storage.table.close()
            other.loads(tmp_path / "buffer")
        else:
            other.load_state_dict(made.state_dict())
    assert len(other) == 30 and other.write_count == 30
    assert torch.equal(other[:]["observation"][:, 0], torch.arange(30.0))
    other.extend(steps(10, first=50))
    assert len(other) == 40 and other.sample()["observation"].shape == (32, 3)


def test_what_a_table_does_not_do_is_refused() -> None:
    made = buffer()
    with pytest.raises(NotOffered, match="extend"):
        made.sample()
    index = made.extend(steps(10))
    assert torch.equal(made[index[3:5]]["observation"][:, 0], torch.tensor([3.0, 4.0]))
    assert made._storage.contains(index).all()
    with pytest.raises(NotOffered, match="oldest"):
        made[index[0]] = steps(1)[0]
    made.empty()
    assert len(made) == 0
    with pytest.raises(GoneItems):
        made[index]
    with pytest.raises(InvalidConfig, match="numpy dtype"):
        buffer().extend(TensorDict({"a": torch.zeros(3, dtype=torch.bfloat16)}, [3]))
    with pytest.raises(InvalidConfig, match="ReliveStorage"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=ReliveSampler(), writer=ReliveWriter())
    with pytest.raises(InvalidConfig, match="reduction"):
        ReliveSampler(reduction="sum")
    assert made.add(steps(1)[0]) is not None and len(made) == 1
    assert np.isfinite(made.sampler.default_priority)
