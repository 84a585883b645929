"""RLlib's prioritized buffer of episodes on a table, compared with the library's own."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray.rllib.env.single_agent_episode", reason="ray[rllib] is not installed here: make test-adapters")

import gymnasium  # noqa: E402
from ray.rllib.env.single_agent_episode import SingleAgentEpisode  # noqa: E402
from ray.rllib.utils.from_config import from_config  # noqa: E402
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer as LibraryBuffer  # noqa: E402
from ray.rllib.utils.replay_buffers import ReplayBuffer  # noqa: E402

from relive.adapters.errors import NotOffered  # noqa: E402
from relive.adapters.rllib import PrioritizedEpisodeReplayBuffer, episodes  # noqa: E402
from relive.adapters.rllib.episodes import Step  # noqa: E402
from relive.errors import DtypeMismatch, InvalidConfig  # noqa: E402

BOX = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)
ACTION = gymnasium.spaces.Discrete(3)


def episode(first: int, steps: int, terminated: bool = True, **options: Any) -> SingleAgentEpisode:
    """An episode, or a part of one, whose observations are numbers from `first` on."""
    return SingleAgentEpisode(
        observations=[np.full(2, first + step, np.float32) for step in range(steps + 1)],
        actions=[step % 3 for step in range(steps)],
        rewards=[1.0] * steps,
        observation_space=BOX,
        action_space=ACTION,
        terminated=terminated,
        len_lookback_buffer=0,
        **options,
    )


def buffer(**options: Any) -> PrioritizedEpisodeReplayBuffer:
    return PrioritizedEpisodeReplayBuffer(1000, **{"alpha": 1.0, "n_step": 3, "gamma": 0.9, **options})


def test_the_type_is_text_and_makes_the_buffer() -> None:
    named = {"type": "relive.adapters.rllib.PrioritizedEpisodeReplayBuffer", "capacity": 100, "alpha": 0.6, "beta": 0.4}
    made = from_config(ReplayBuffer, {**named, "n_step": 3, "gamma": 0.99, "metrics_num_episodes_for_smoothing": 10})
    assert isinstance(made, PrioritizedEpisodeReplayBuffer) and isinstance(made, LibraryBuffer)


def test_samples_are_those_of_the_library_and_short_ones_at_the_end() -> None:
    made = buffer()
    made.add([episode(0, 10), episode(100, 5, terminated=False, truncated=True)])
    seen = set()
    for one in made.sample(400, n_step=3, gamma=0.9, beta=0.4):
        at, after = (float(state[0]) for state in one.get_observations())
        number = one.get_extra_model_outputs("n_step")[0]
        assert after - at == number and one.t_started == at % 100 and len(one) == 1
        assert one.get_rewards()[0] == pytest.approx((1 - 0.9**number) / 0.1, rel=1e-5)
        assert one.is_terminated == (at in (7, 8, 9)) and one.is_truncated == (at in (102, 103, 104))
        seen.add(at)
    assert len(seen) == 15
    theirs = LibraryBuffer(1000, alpha=1.0)
    theirs.add([episode(0, 10)])
    one = theirs.sample(1, n_step=3, gamma=0.9)[0]
    ours = made.sample(1)[0]
    for name in ("observations", "actions", "rewards"):
        assert type(getattr(one, name)) is type(getattr(ours, name))
    assert set(one.extra_model_outputs) == set(ours.extra_model_outputs)
    assert made.get_num_episodes() == 2 and made.get_num_timesteps() == 15 and made.get_metrics() is not None


def test_an_episode_made_by_copies_is_as_rllib_s_constructor_makes_it() -> None:
    parts = {"a": gymnasium.spaces.Box(-9, 9, (2,)), "b": gymnasium.spaces.Discrete(9)}
    spaces = gymnasium.spaces.Dict(parts), ACTION
    steps = [
        Step(
            {"a": np.full(2, row, np.float32), "b": row},
            {"a": np.full(2, row + 1, np.float32), "b": row + 1},
            row % 3,
            np.float32(row),
            row == 2,
            row == 1,
            np.float32(0.5 / (row + 1)),
            row + 1,
            10 * row,
        )
        for row in range(4)
    ]
    assert episodes._CAN_COPY  # the version that is installed here
    made = episodes.episodes_of(steps, spaces)
    for one, step in zip(made, steps, strict=True):
        expected = episodes._episode(step, spaces)
        for slot in set(type(expected).__slots__) - {"id_"}:
            assert getattr(one, slot) == getattr(expected, slot), slot
        assert str(one.get_state() | {"id_": ""}) == str(expected.get_state() | {"id_": ""})
        one.validate()
    assert len({one.id_ for one in made} | {one.id_ for one in episodes.episodes_of(steps, spaces)}) == 8
    made[1].custom_data["note"] = 1
    made[1].observations.append({"a": np.zeros(2), "b": 0})
    made[1].infos.data[0]["note"] = 1
    made[0].to_numpy()
    for row in (2, 3):
        assert not made[row].custom_data and len(made[row].observations) == 2 and made[row].infos.data == [{}, {}]


def test_parts_of_an_episode_are_one_episode() -> None:
    made = buffer(max_open_episodes=2)
    first, second = episode(0, 4, terminated=False), episode(50, 4, terminated=False)
    made.add([first, second])
    made.add([episode(4, 4, id_=first.id_), episode(54, 4, id_=second.id_)])
    assert made._writer is not None and made._writer.num_cuts == 0 and len(made) == 2
    counts = [one.get_extra_model_outputs("n_step")[0] for one in made.sample(300) if one.t_started < 6]
    assert set(counts) == {3}
    made.add([episode(200 + 10 * number, 3, terminated=False) for number in range(5)])  # more than there are lanes
    assert len(made) == 7


def test_priorities_weigh() -> None:
    made = buffer(n_step=1)
    made.add(episode(0, 40))
    drawn = made.sample(200, beta=1.0)
    at = np.array([one.get_observations(0)[0] for one in drawn])
    made.update_priorities(np.where(at == 7, 5.0, 1.0))
    drawn = made.sample(3000, beta=1.0)
    at = np.array([one.get_observations(0)[0] for one in drawn])
    weights = np.array([one.get_extra_model_outputs("weights")[0] for one in drawn])
    assert (at == 7).mean() > 0.05 and weights[at == 7] == pytest.approx(weights.max() / 5)


def test_what_a_sample_asks_for_has_to_be_the_buffer_s() -> None:
    made = buffer()
    with pytest.raises(NotOffered, match="add"):
        made.sample(1)
    made.add(episode(0, 10))
    with pytest.raises(InvalidConfig, match='"n_step": 5'):
        made.sample(1, n_step=5)
    with pytest.raises(InvalidConfig, match="gamma"):
        made.sample(1, gamma=0.5)
    with pytest.raises(NotOffered, match="include_infos"):
        made.sample(1, include_infos=True)
    with pytest.raises(NotOffered, match="Sequences"):
        PrioritizedEpisodeReplayBuffer(10, batch_length_T=8)
    with pytest.raises(DtypeMismatch, match="hides"):
        made.update_priorities(np.ma.array([1.0], mask=True))


def test_the_state_has_the_table() -> None:
    made = buffer()
    made.add([episode(0, 30), episode(50, 10)])
    state = pickle.loads(pickle.dumps(made.get_state()))
    assert made.table is not None
    made.table.close()
    other = buffer()
    other.set_state(state)
    assert other.get_num_timesteps() == 40 and len(other) == 2
    assert len(other.sample(8, n_step=3)) == 8
    other.add(episode(80, 5))
    assert other.get_num_timesteps() == 45
