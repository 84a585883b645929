"""If the table refuses a step, the recorder warns once, cuts the episode, and goes on."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="the recorder wraps Gymnasium environments")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

import relive  # noqa: E402
from adapters.worlds import Pool, World, make_table, stored  # noqa: E402
from relive import errors  # noqa: E402
from relive.adapters.gymnasium import EnvironmentClosed, ResetNeeded, record  # noqa: E402

Spoil = Callable[[tuple[Any, ...]], tuple[Any, ...]]
BAD_REWARDS = [np.array([1.0]), 1e39, None, "much", [1.0, 2.0], 1j, np.ma.masked]
BAD_OBSERVATIONS = [
    np.zeros(4, np.float32),
    None,
    np.full(3, 1e39),
    {"place": np.zeros(3)},
    "here",
    np.ma.array(np.zeros(3, np.float32), mask=[0, 1, 0]),
    [[1.0], [1.0, 2.0]],
]


class Odd(gymnasium.Env[Any, Any]):
    """Episodes of `length` steps, observation [number, episode, t]; at chosen calls the result is spoilt."""

    metadata: dict[str, Any] = {}
    action_space = World.action_space
    observation_space = World().observation_space

    def __init__(self, spoilt: dict[int, Spoil] | None = None, length: int = 100, number: int = 0) -> None:
        self.spoilt, self.length, self.number = spoilt or {}, length, number
        self.episode, self.t, self.calls, self.closed = -1, 0, 0, False

    def observe(self) -> Any:
        return np.asarray([self.number, self.episode, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.t = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        self.t, self.calls = self.t + 1, self.calls + 1
        result = (self.observe(), float(self.t), self.t == self.length, False, {})
        return self.spoilt.get(self.calls, lambda same: same)(result)

    def close(self) -> None:
        self.closed = True


def with_reward(reward: Any) -> Spoil:
    return lambda result: (result[0], reward, *result[2:])


def with_observation(observation: Any) -> Spoil:
    return lambda result: (observation, *result[1:])


def times(table: relive.Table, number: int = 0) -> set[tuple[int, int, int]]:
    """(episode, t, next t) of all transitions stored of an environment; each must have followed."""
    rows = {row for row in stored(table) if row[0] == number}
    for row in rows:
        assert row[6] in (row[2], row[2] + 1), f"t={row[2]} was joined to t={row[6]}"
        assert row[6] == row[2] + 1 or row[8], "only a cut may stand on its own observation"
    return {(int(row[1]), int(row[2]), int(row[6])) for row in rows}


@pytest.mark.parametrize("spoil", [*map(with_reward, BAD_REWARDS), *map(with_observation, BAD_OBSERVATIONS)])
def test_a_refused_step_is_told_once_and_cuts_the_episode(spoil: Spoil) -> None:
    with make_table(Odd.observation_space) as table:
        env = record(Odd({4: spoil}), table)
        env.reset()
        for _ in range(3):
            env.step(1)
        with pytest.raises(errors.ReliveError) as caught:
            env.step(1)
        assert caught.value.lanes_not_stored == (0,)
        assert "not stored" in str(caught.value)
        assert pickle.loads(pickle.dumps(caught.value)).lanes_not_stored == (0,)
        assert env.finish_step()[4] == {}  # what the environment gave, as it gave it
        for _ in range(4):
            env.step(1)  # 5 shows where the environment is, 6, 7 and 8 are stored
        env.close()
        assert times(table) == {(0, 0, 1), (0, 1, 2), (0, 2, 3), (0, 5, 6), (0, 6, 7), (0, 7, 8)}
        assert {row[2] for row in stored(table) if row[8]} == {2, 7}, "both ends are truncations"
        assert env.unwrapped.closed and table.stats().num_lanes == 0
        table.check()


@pytest.mark.parametrize("spoil", [with_reward(None), with_observation(None)])
@pytest.mark.parametrize("then", ["reset", "close"])
def test_after_a_refused_step_reset_and_close_work(spoil: Spoil, then: str) -> None:
    with make_table(Odd.observation_space, n_step=3) as table:
        env = record(Odd({3: spoil}), table)
        env.reset()
        env.step(0)
        env.step(0)
        with pytest.raises(errors.DtypeMismatch):
            env.step(0)
        if then == "reset":
            env.reset()
            env.step(0)
        env.close()
        assert env.unwrapped.closed and table.stats().num_lanes == 0
        rows = {(row[1], row[2], row[6], row[8]) for row in stored(table)}
        assert rows == {(0, 0, 2, True), (0, 1, 2, True)} | ({(1, 0, 1, True)} if then == "reset" else set())


def test_a_refused_last_step_still_asks_for_a_reset() -> None:
    with make_table(Odd.observation_space) as table:
        env = record(Odd({3: with_reward(None)}, length=3), table)
        env.reset()
        env.step(0)
        env.step(0)
        with pytest.raises(errors.DtypeMismatch):
            env.step(0)
        with pytest.raises(ResetNeeded):
            env.step(0)
        env.reset()
        for _ in range(3):
            env.step(0)
        env.close()
        assert times(table) == {(0, 0, 1), (0, 1, 2), (1, 0, 1), (1, 1, 2), (1, 2, 3)}


def test_an_environment_that_raises_cuts_its_episode() -> None:
    """Whether it moved is not known."""

    def fail(result: tuple[Any, ...]) -> tuple[Any, ...]:
        raise OSError("the simulator is gone")

    with make_table(Odd.observation_space) as table:
        env = record(Odd({2: fail, 5: lambda result: result[:4]}), table)
        env.reset()
        env.step(0)
        with pytest.raises(OSError, match="simulator"):
            env.step(0)
        env.step(0)
        env.step(0)
        with pytest.raises(ValueError):
            env.step(0)  # four values: the environment's own fault
        env.step(0)
        env.step(0)
        env.close()
        assert times(table) == {(0, 0, 1), (0, 3, 4), (0, 6, 7)}


@pytest.mark.parametrize("action", [1.5, "left", None, [1, 2], 2**70, np.ma.masked])
def test_a_refused_action_moves_nothing(action: Any) -> None:
    with make_table(Odd.observation_space) as table:
        env = record(Odd(), table)
        env.reset()
        env.step(1)
        with pytest.raises(errors.ReliveError):
            env.step(action)
        assert env.unwrapped.calls == 1
        env.step(1)
        env.close()
        assert times(table) == {(0, 0, 1), (0, 1, 2)}


def test_a_refused_reset_needs_another() -> None:
    class Shy(Odd):
        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            observation, info = super().reset(**options)
            return (observation[:2] if self.episode == 1 else observation), info

    with make_table(Odd.observation_space) as table:
        env = record(Shy(), table)
        env.reset()
        env.step(0)
        with pytest.raises(errors.ShapeMismatch):
            env.reset()
        with pytest.raises(ResetNeeded):
            env.step(0)
        env.reset()
        env.step(0)
        env.close()
        assert times(table) == {(0, 0, 1), (2, 0, 1)}


class Vector(SyncVectorEnv):
    """Three Odd environments whose whole result is spoilt at chosen calls."""

    def __init__(self, mode: AutoresetMode, spoilt: dict[int, Spoil], length: int = 5) -> None:
        super().__init__([lambda n=n: Odd(length=length, number=n) for n in range(3)], autoreset_mode=mode)
        self.spoilt, self.num_calls = spoilt, 0

    def step(self, actions: Any) -> Any:
        self.num_calls += 1
        return self.spoilt.get(self.num_calls, lambda same: same)(super().step(actions))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("at", [1, 3, 5, 6])
@pytest.mark.parametrize(
    "spoil",
    [
        with_reward([1.0, 1e39, 1.0]),
        with_reward(np.zeros((3, 1))),
        with_reward(np.ma.array(np.ones(3, np.float64), mask=[0, 1, 0])),
        with_observation(np.ma.array(np.zeros((3, 3), np.float32), mask=np.eye(3, dtype=bool))),
        lambda result: (*result[:2], np.ma.array(np.zeros(3, bool), mask=[0, 1, 0]), *result[3:]),
        with_observation(np.zeros((3, 4))),
        with_observation(np.zeros((2, 3))),
        with_observation(None),
        lambda result: (*result[:2], np.zeros(2, bool), *result[3:]),
        lambda result: (*result[:2], "done", *result[3:]),
        lambda result: (*result[:4], {**result[4], "env_id": [0, 1, 7]}),
        lambda result: (*result[:4], {**result[4], "env_id": [0, 1, 1]}),
        lambda result: (*result[:4], {**result[4], "env_id": "all"}),
        lambda result: (*result[:4], None),
    ],
)
def test_vectors_go_on_after_a_refused_step(mode: AutoresetMode, at: int, spoil: Spoil) -> None:
    """Episodes of five steps; the call `at` is refused, as a middle step, as an end, and as what follows an end."""
    with make_table(Odd.observation_space) as table:
        envs = record(Vector(mode, {at: spoil}), table)
        envs.reset()
        for call in range(1, 19):
            if call != at:
                envs.step(np.ones(3, int))
                continue
            with pytest.raises((errors.ReliveError, AttributeError, TypeError)) as caught:
                envs.step(np.ones(3, int))
            if isinstance(caught.value, errors.ReliveError):
                assert caught.value.lanes_not_stored == (0, 1, 2)
        envs.close()
        for number in range(3):
            found = times(table, number)
            assert {(1, t, t + 1) for t in range(2, 5)} <= found, "the next episode is stored"
            assert (0, at - 1, at) not in found
        assert table.stats().num_lanes == 0
        table.check()


def test_only_the_lanes_that_came_are_cut() -> None:
    """A pool's rows: the others' episodes go on."""

    class OddPool(Pool):
        spoil = False

        def recv(self) -> Any:
            result = super().recv()
            return (result[0], np.full(2, 1e39), *result[2:]) if self.spoil else result

    pool = OddPool(4, 2)
    with make_table(pool.observation_space) as table:
        envs = record(pool, table, num_envs=4, autoreset_mode=AutoresetMode.NEXT_STEP)
        envs.reset()
        for call in range(40):
            pool.spoil = call % 10 == 9
            env_id = envs.env_ids
            if not pool.spoil:
                envs.step(np.ones(2, int), env_id)
                continue
            with pytest.raises(errors.DtypeMismatch) as caught:
                envs.step(np.ones(2, int), env_id)
            assert len(caught.value.lanes_not_stored) == 2
            assert set(caught.value.lanes_not_stored) == set(envs.env_ids.tolist())
        envs.close()
        for number in range(4):
            assert times(table, number)
        table.check()


@pytest.mark.parametrize("env_id", [[0, 9], [-1, 0], [0, 0], "x", [0.5, 1.5], [[0, 1]]])
def test_environments_that_are_not_there(env_id: Any) -> None:
    pool = Pool(4, 2)
    with make_table(pool.observation_space) as table:
        envs = record(pool, table, num_envs=4, autoreset_mode=AutoresetMode.NEXT_STEP)
        envs.reset()
        before = envs.env_ids.tolist()
        with pytest.raises(errors.LaneError):
            envs.step(np.ones(2, int), env_id)
        assert envs.env_ids.tolist() == before
        envs.step(np.ones(2, int), envs.env_ids)
        envs.close()


@pytest.mark.parametrize("mask", [[True], np.ones(4, bool), [0, 1, 2], "all"])
def test_reset_masks_that_fit_nothing(mask: Any) -> None:
    with make_table(Odd.observation_space) as table:
        envs = record(Vector(AutoresetMode.DISABLED, {}), table)
        envs.reset()
        envs.step(np.ones(3, int))
        with pytest.raises(errors.LaneError):
            envs.reset(options={"reset_mask": mask})
        envs.step(np.ones(3, int))
        envs.close()
        assert all(times(table, number) == {(0, 0, 1), (0, 1, 2)} for number in range(3))


class Refusing:
    """A table whose writer refuses the appends that are numbered, as one does whose file system is full."""

    def __init__(self, table: relive.Table, refused: dict[int, BaseException], ends: int = 0) -> None:
        self.table, self.refused, self.ends, self.num_appends = table, refused, ends, 0

    @property
    def spec(self) -> relive.StepSpec:
        return self.table.spec

    def writer(self, num_lanes: int | None = None) -> Any:
        outer, writer = self, self.table.writer(num_lanes)

        class Writer:
            def append(self, **columns: Any) -> Any:
                outer.num_appends += 1
                if outer.num_appends in outer.refused:
                    raise outer.refused[outer.num_appends]
                return writer.append(**columns)

            def end_episode(self, **columns: Any) -> None:
                if outer.ends:
                    outer.ends -= 1
                    raise errors.StorageFull("/dev/shm/relive-x", 2, 1)
                writer.end_episode(**columns)

            def close(self) -> None:
                writer.close()

        return Writer()


@pytest.mark.parametrize("ends", [0, 2])
def test_a_writer_that_refuses(ends: int) -> None:
    """The observation is known, so only the step itself is missing; an end that cannot be stored yet comes first."""
    with make_table(Odd.observation_space) as table:
        full = errors.StorageFull("/dev/shm/relive-x", 2, 1)
        env = record(Odd(), Refusing(table, {3: full}, ends))
        env.reset()
        told = 0
        for _ in range(8):
            try:
                env.step(0)
            except errors.StorageFull:
                told += 1
        assert told == 1 + ends and env.unwrapped.calls == 8 - ends
        env.close()
        assert times(table) == {(0, t, t + 1) for t in range(8 - ends) if t != 2}
        table.check()


def test_an_interrupted_write_is_tried_again() -> None:
    with make_table(Odd.observation_space) as table:
        env = record(Odd(), Refusing(table, {2: KeyboardInterrupt()}))
        env.reset()
        env.step(0)
        with pytest.raises(KeyboardInterrupt):
            env.step(0)
        env.finish_step()
        env.close()
        assert times(table) == {(0, 0, 1), (0, 1, 2)}


def test_a_step_that_a_server_may_have_stored_is_not_written_again() -> None:
    lost: Any = KeyboardInterrupt()
    lost.unanswered = 1
    with make_table(Odd.observation_space) as table:
        env = record(Odd(length=2), Refusing(table, {2: lost}))
        env.reset()
        env.step(0)
        with pytest.raises(KeyboardInterrupt):
            env.step(0)
        env.finish_step()
        env.reset()
        env.step(0)
        env.close()
        assert times(table) == {(0, 0, 1), (1, 0, 1)}


def test_closing_closes_everything_whatever_is_refused() -> None:
    with make_table(Odd.observation_space) as table:
        env = record(Odd(), Refusing(table, {2: errors.DeadlineExceeded(), 3: errors.StorageFull("/tmp/x", 2, 1)}))
        env.reset()
        env.step(0)
        with pytest.raises(errors.DeadlineExceeded):
            env.step(0)
        with pytest.raises(errors.StorageFull) as caught:
            env.close()
        assert caught.value.lanes_not_stored == (0,)
        env.close()
        assert env.unwrapped.closed and table.stats().num_lanes == 0
        with pytest.raises(EnvironmentClosed):
            env.step(0)


def test_a_table_that_was_closed_first() -> None:
    table = make_table(Odd.observation_space)
    env = record(Odd(), table)
    env.reset()
    env.step(0)
    table.close()
    with pytest.raises(errors.ReliveError):
        env.step(0)
    env.close()
    assert env.unwrapped.closed


def test_what_is_no_number_of_environments() -> None:
    with make_table(Odd.observation_space) as table:
        for count in (0, -1, 2.5, "three"):
            with pytest.raises(errors.InvalidConfig):
                record(Pool(3, 2), table, num_envs=count, autoreset_mode="NextStep")
        assert table.stats().num_lanes == 0


def test_nested_observations_that_lack_or_add_a_part() -> None:
    class Part(World):
        part: Any = None

        def step(self, action: Any) -> Any:
            observation, *rest = super().step(action)
            return self.part(observation), *rest

    for part, error in (
        (lambda seen: {"place": seen["place"]}, errors.MissingColumn),
        (lambda seen: {**seen, "more": 1}, errors.UnknownColumn),
        (lambda seen: {**seen, "pair": seen["pair"][:1]}, errors.MissingColumn),
        (lambda seen: {1: 2}, errors.ReliveError),
    ):
        world = Part(0, nested=True)
        with make_table(world.observation_space) as table:
            env = record(world, table)
            env.reset()
            world.part = part
            with pytest.raises(error):
                env.step(0)
            env.close()
            assert len(table) == 0


@pytest.mark.parametrize("timeout_s", ["1", -1.0, float("nan"), 1j])
def test_a_deadline_that_is_none_drops_nothing(timeout_s: Any) -> None:
    with make_table(Odd.observation_space) as table:
        with pytest.raises(errors.InvalidConfig):
            record(Odd(), table, timeout_s=timeout_s)
        assert table.stats().num_lanes == 0
        env = record(Odd(), Refusing(table, {1: errors.DeadlineExceeded()}))
        env.reset()
        with pytest.raises(errors.DeadlineExceeded):
            env.step(0)
        with pytest.raises(errors.InvalidConfig):
            env.finish_step(timeout_s)
        with pytest.raises(errors.InvalidConfig):
            env.step(0, extras=timeout_s)
        env.finish_step()
        env.close()
        assert times(table) == {(0, 0, 1)}


def test_late_columns_are_refused_by_name() -> None:
    """A recorder gives out no keys, so no caller could complete the steps that it stores."""
    world = World()
    spec = relive.StepSpec.from_spaces(
        world.observation_space, world.action_space, extras={"verdict": relive.ArraySpec((), "float32", late=True)}
    )
    assert spec.late_columns == ("verdict",)
    with relive.Table(spec, 100) as table:
        with pytest.raises(errors.InvalidConfig) as refused:
            record(world, table)
        assert refused.value.what == "column 'verdict'" and "table.writer()" in str(refused.value)
        assert table.stats().num_lanes == 0
