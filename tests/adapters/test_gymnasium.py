"""The recorder stores exactly what a hand-written loop says happened, in every mode of resetting."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="the recorder wraps Gymnasium environments")

from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv  # noqa: E402

import relive  # noqa: E402
from adapters.worlds import Diary, Pool, World, make_table, stored  # noqa: E402
from relive import errors  # noqa: E402
from relive.adapters.gymnasium import EnvironmentClosed, RecordedVectorEnv, ResetNeeded, record  # noqa: E402

NUM_ENVS = 3


def worlds(mode: AutoresetMode, kind: type = SyncVectorEnv, nested: bool = False, **options: Any) -> Any:
    makers = [lambda number=number: World(number, nested) for number in range(NUM_ENVS)]
    return kind(makers, autoreset_mode=mode, **options)


def actions_of(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 3, NUM_ENVS)


def diary_of(mode: AutoresetMode, num_calls: int, n_step: int) -> Diary:
    """Steps plain environments by hand, as a vector environment of that mode would, with the same actions."""
    diary, rng = Diary(n_step=n_step), np.random.default_rng(1)
    envs = [World(number) for number in range(NUM_ENVS)]
    for env in envs:
        env.reset()
    over = [False] * NUM_ENVS
    for _ in range(num_calls):
        for env, action in zip(envs, actions_of(rng), strict=True):
            if over[env.number]:  # NEXT_STEP: this call resets, the action is ignored
                env.reset()
                over[env.number] = False
                continue
            episode = env.episode
            _, reward, terminated, truncated, _ = env.step(action)
            diary.note(env.number, episode, int(action), reward, terminated, truncated)
            if terminated or truncated:
                if mode is AutoresetMode.NEXT_STEP:
                    over[env.number] = True
                else:
                    env.reset()
    return diary


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("kind", ["sync", "sync without copies", "async", "nested"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_every_mode_stores_what_a_hand_written_loop_says(mode: AutoresetMode, kind: str, n_step: int) -> None:
    nested = kind == "nested"
    options: dict[str, Any] = {"copy": False} if kind == "sync without copies" else {}
    envs = worlds(mode, AsyncVectorEnv if kind == "async" else SyncVectorEnv, nested, **options)
    num_calls, rng = 40, np.random.default_rng(1)
    with make_table(envs.single_observation_space, n_step=n_step) as table:
        recorded = record(envs, table)
        recorded.reset(seed=0)
        for _ in range(num_calls):
            _, _, terminated, truncated, _ = recorded.step(actions_of(rng))
            over = terminated | truncated
            if mode is AutoresetMode.DISABLED and over.any():
                recorded.reset(options={"reset_mask": over})
        expected = diary_of(mode, num_calls, n_step).transitions()
        assert len(expected) > 60
        assert stored(table, "observation/place" if nested else "observation") == expected
        if nested:
            batch = table.sample(64)
            place, pair = batch["observation"]["place"], batch["observation"]["pair"]
            np.testing.assert_array_equal(pair[0], -place)
            np.testing.assert_array_equal(pair[1], place[:, 2])
        recorded.close()


def test_what_the_environment_returns_is_handed_on() -> None:
    plain, envs = worlds(AutoresetMode.SAME_STEP), worlds(AutoresetMode.SAME_STEP)
    with make_table(envs.single_observation_space) as table:
        recorded = record(envs, table)
        np.testing.assert_array_equal(recorded.reset(seed=1)[0], plain.reset(seed=1)[0])
        for _ in range(6):
            ours, theirs = recorded.step(np.ones(NUM_ENVS, int)), plain.step(np.ones(NUM_ENVS, int))
            for one, other in zip(ours[:4], theirs[:4], strict=True):
                np.testing.assert_array_equal(one, other)
            assert ours[4].keys() == theirs[4].keys()
        assert (recorded.num_envs, recorded.single_action_space) == (NUM_ENVS, plain.single_action_space)
        recorded.close()
        assert envs.closed and recorded.closed


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_infos_may_be_a_list_of_dicts(mode: AutoresetMode) -> None:
    """As Gymnasium's DictInfoToList gives them: the same rows are stored."""
    found = []
    for wrap in (lambda envs: envs, gymnasium.wrappers.vector.DictInfoToList):
        with make_table(World().observation_space) as table:
            recorded, rng = record(wrap(worlds(mode)), table), np.random.default_rng(1)
            recorded.reset(seed=0)
            for _ in range(30):
                recorded.step(actions_of(rng))
            found.append(stored(table, "observation"))
            recorded.close()
    assert found[0] == found[1] and len(found[0]) > 20


def test_a_single_environment() -> None:
    diary = Diary(n_step=2)
    with make_table(World().observation_space, n_step=2) as table:
        env = record(World(), table)
        env.reset(seed=0)
        for call in range(20):
            episode = env.unwrapped.episode
            _, reward, terminated, truncated, _ = env.step(call % 3)
            diary.note(0, episode, call % 3, reward, terminated, truncated)
            if terminated or truncated:
                with pytest.raises(ResetNeeded):
                    env.step(0)
                env.reset()
        assert stored(table) == diary.transitions()
        env.close()


def test_a_single_environment_that_resets_itself() -> None:
    diary = Diary()
    with make_table(World().observation_space) as table:
        env = record(gymnasium.wrappers.Autoreset(World()), table)
        env.reset(seed=0)
        over = False
        for call in range(20):
            episode = env.unwrapped.episode
            _, reward, terminated, truncated, _ = env.step(call % 3)
            if not over:
                diary.note(0, episode, call % 3, reward, terminated, truncated)
            over = terminated or truncated
        assert stored(table) == diary.transitions()
        env.close()


def test_a_reset_in_mid_episode_ends_it_as_truncated() -> None:
    envs = worlds(AutoresetMode.DISABLED)
    with make_table(envs.single_observation_space, n_step=2) as table:
        recorded = record(envs, table)
        recorded.reset(seed=0)
        recorded.step(np.zeros(NUM_ENVS, int))
        recorded.reset(options={"reset_mask": np.asarray([False, True, False])})
        rows = {transition[:3] + transition[6:] for transition in stored(table)}
        assert rows == {(1, 0, 0, 1, False, True)}
        recorded.reset(seed=1)
        assert {transition[0] for transition in stored(table)} == {0, 1, 2}
        recorded.close()


def test_closing_ends_open_episodes() -> None:
    with make_table(World().observation_space, n_step=3) as table:
        recorded = record(worlds(AutoresetMode.NEXT_STEP), table)
        recorded.reset(seed=0)
        recorded.step(np.zeros(NUM_ENVS, int))
        assert table.num_items() == 0
        recorded.close()
        assert {transition[:3] + transition[6:] for transition in stored(table)} == {
            (env, 0, 0, 1, False, True) for env in range(NUM_ENVS)
        }


@pytest.mark.parametrize("halves", [False, True])
def test_subsets_as_envpool_gives_them(halves: bool) -> None:
    num_envs, num_ready = 5, 2
    diary, pool = Diary(n_step=2), Pool(num_envs, num_ready)
    rng = np.random.default_rng(3)
    with make_table(pool.observation_space, n_step=2) as table:
        recorded: RecordedVectorEnv = record(
            pool,
            table,
            num_envs=num_envs,
            autoreset_mode=AutoresetMode.NEXT_STEP,
        )
        _, info = recorded.reset()
        waiting: dict[int, int] = {}
        seen = {int(env): False for env in info["env_id"]}  # whether the row before was an end; absent: none yet
        for _ in range(60):
            env_id = recorded.env_ids
            actions = rng.integers(0, 3, num_ready)
            waiting.update({int(env): int(action) for env, action in zip(env_id, actions, strict=True)})
            if halves:
                recorded.send(actions, env_id)
                observation, reward, terminated, truncated, info = recorded.recv()
            else:
                observation, reward, terminated, truncated, info = recorded.step(actions, env_id)
            for row, env in enumerate(int(env) for env in info["env_id"]):
                if seen.get(env) is False:
                    diary.note(
                        env,
                        int(observation[row][1]),
                        waiting[env],
                        float(reward[row]),
                        bool(terminated[row]),
                        bool(truncated[row]),
                    )
                seen[env] = bool(terminated[row] or truncated[row])
        assert len(diary.transitions()) > 40
        assert stored(table) == diary.transitions()
        recorded.close()
        with pytest.raises(EnvironmentClosed):
            recorded.recv()


def test_the_agents_own_columns() -> None:
    extras = {
        "log_prob": relive.ArraySpec((), "float32"),
        "core": {"h": relive.ArraySpec((2,), "float32", kind="start")},
    }
    envs = worlds(AutoresetMode.SAME_STEP)
    with make_table(envs.single_observation_space, extras=extras) as table:
        recorded = record(envs, table)
        recorded.reset(seed=0)
        with pytest.raises(errors.MissingColumn):
            recorded.step(np.zeros(NUM_ENVS, int))
        with pytest.raises(errors.UnknownColumn):
            recorded.set_extras(value=np.zeros(NUM_ENVS))
        with pytest.raises(errors.ShapeMismatch):
            recorded.set_extras(log_prob=np.zeros(NUM_ENVS + 1))
        recorded.set_extras(core={"h": np.full((NUM_ENVS, 2), 7.0)})
        for call in range(8):
            recorded.step(np.full(NUM_ENVS, call % 3), extras={"log_prob": np.arange(NUM_ENVS) - float(call % 3)})
        batch = table.sample(256)
        np.testing.assert_array_equal(batch["log_prob"], batch["observation"][:, 0] - batch["action"])
        np.testing.assert_array_equal(batch["core"]["h"], np.full((256, 2), 7.0, np.float32))
        recorded.close()


def test_extras_of_a_single_environment() -> None:
    extras = {"log_prob": relive.ArraySpec((), "float32")}
    with make_table(World().observation_space, extras=extras) as table:
        env = record(World(), table)
        env.reset()
        env.step(1, extras={"log_prob": -1.5})
        env.set_extras(log_prob=-2.5)
        env.step(1)
        env.reset()
        assert sorted(set(table.sample(64)["log_prob"])) == [-2.5, -1.5]
        env.close()


def test_a_step_that_meets_its_deadline_is_finished_later() -> None:
    """The limiter holds the writer back; the step is taken, nothing is lost, and the result comes in the end."""
    limiter = relive.SamplesPerInsert(1.0, min_size=4, tolerance=4.0)
    spec = relive.StepSpec.from_spaces(World().observation_space, World.action_space)
    index = relive.Index(relive.Transitions(gamma=0.5), limiter=limiter)
    diary = Diary()
    with relive.Table(spec, 1000, index, max_lanes=4) as table:
        recorded = record(worlds(AutoresetMode.SAME_STEP), table, timeout_s=0.0)
        observation, _ = recorded.reset(seed=0)
        late = 0
        for _ in range(12):
            actions = np.ones(NUM_ENVS, int)
            before = observation
            try:
                result = recorded.step(actions)
            except errors.DeadlineExceeded:
                late += 1
                with pytest.raises(errors.DeadlineExceeded):
                    recorded.step(actions)  # the environments do not move while rows wait
                result = None
                while result is None:
                    sampled = table.sample(1, timeout_s=0.0)
                    assert sampled.num_items == 1
                    try:
                        result = recorded.finish_step(0.0)
                    except errors.DeadlineExceeded:
                        continue
            observation, reward, terminated, truncated, _ = result
            for env in range(NUM_ENVS):
                diary.note(env, int(before[env][1]), 1, float(reward[env]), bool(terminated[env]), bool(truncated[env]))
        assert late > 2
        assert table.num_items() == len(diary.transitions())
        recorded.close()


def test_closed_environments_give_a_structured_error() -> None:
    with make_table(World().observation_space) as table:
        recorded = record(worlds(AutoresetMode.NEXT_STEP), table)
        recorded.reset(seed=0)
        recorded.envs.close()  # behind the recorder's back
        with pytest.raises(EnvironmentClosed) as caught:
            recorded.step(np.zeros(NUM_ENVS, int))
        assert caught.value.environment == "SyncVectorEnv"
        assert isinstance(caught.value, errors.ReliveError)
        recorded.close()
        recorded.close()
        single = record(World(), table)
        single.close()
        for call in (single.reset, lambda: single.step(0)):
            with pytest.raises(EnvironmentClosed):
                call()
        assert len(table) == 0


def test_wrong_beginnings_are_refused() -> None:
    space = World().observation_space
    with make_table(space) as table:
        envs = worlds(AutoresetMode.DISABLED)
        recorded = record(envs, table)
        with pytest.raises(ResetNeeded) as caught:
            recorded.step(np.zeros(NUM_ENVS, int))
        assert caught.value.lane == 0
        recorded.close()
        with pytest.raises(errors.InvalidConfig):
            record(Pool(3, 2), table, num_envs=3)
        with pytest.raises(errors.InvalidConfig):
            record(object(), table)
    blobs = relive.Table(relive.StepSpec({"blob": relive.ArraySpec((4,), "uint8")}), 100)
    with blobs, pytest.raises(errors.InvalidConfig):
        record(World(), blobs)
    mask = {"mask": relive.ArraySpec((3,), "bool", kind="state")}
    with make_table(space, extras=mask) as table, pytest.raises(errors.InvalidConfig):
        record(World(), table)


def test_same_step_without_final_observations_is_refused() -> None:
    envs = worlds(AutoresetMode.NEXT_STEP)  # gives none
    with make_table(envs.single_observation_space) as table:
        recorded = record(envs, table, autoreset_mode="SameStep")
        recorded.reset(seed=0)
        with pytest.raises(errors.MissingNext):
            for _ in range(5):
                recorded.step(np.zeros(NUM_ENVS, int))
        recorded.close()


@pytest.mark.parametrize("maker", ["sync", "vector_entry_point"])
def test_cartpole_itself(maker: str) -> None:
    """Every stored transition of the real thing obeys its equations of motion."""
    envs = gymnasium.make_vec("CartPole-v1", 4, vectorization_mode=maker)
    spec = relive.StepSpec.from_spaces(envs.single_observation_space, envs.single_action_space)
    rng = np.random.default_rng(0)
    with relive.Table(spec, 10_000, max_lanes=8) as table:
        recorded = record(envs, table)
        recorded.reset(seed=0)
        rows = 0
        over = np.zeros(4, np.bool_)
        for _ in range(200):
            _, _, terminated, truncated, _ = recorded.step(rng.integers(0, 2, 4))
            rows += int((~over).sum())
            over = terminated | truncated
        recorded.close()
        assert len(table) == rows == table.num_items()
        batch = table.sample(4096, columns=["observation", "next_observation", "action", "terminated", "discount"])
        now, following, force = batch["observation"], batch["next_observation"], batch["action"] * 2 - 1
        np.testing.assert_allclose(following[:, 0], now[:, 0] + 0.02 * now[:, 1], atol=1e-5)
        np.testing.assert_allclose(following[:, 2], now[:, 2] + 0.02 * now[:, 3], atol=1e-5)
        assert (np.sign(following[:, 1] - now[:, 1]) == force).all()
        fallen = (np.abs(following[:, 0]) > 2.4) | (np.abs(following[:, 2]) > 12 * np.pi / 180)
        np.testing.assert_array_equal(batch["terminated"], fallen)
        np.testing.assert_array_equal(batch["discount"], 1.0 - fallen)


def test_importing_the_adapters_imports_no_other_library() -> None:
    program = "import sys, relive.adapters; assert 'gymnasium' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
