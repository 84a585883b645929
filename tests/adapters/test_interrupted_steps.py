"""Ctrl-C at any moment of a recorded call: each stored transition joins two states that followed each other, once.

The moments are the steps of the interpreter in the recorder's modules and in the environment. The program catches the
exception of the signal handler and goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from processes.interrupts import AtOpcode

gymnasium = pytest.importorskip("gymnasium", reason="the recorder wraps Gymnasium environments")

from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402

import relive  # noqa: E402
from adapters.worlds import Pool, World, make_table  # noqa: E402
from relive.adapters.gymnasium import record  # noqa: E402

Rows = list[tuple[int, int, int, int]]  # (environment, episode, t, next t)


def stopped(call: Callable[[], Any], moment: int, modules: tuple[str, ...], error: Any = KeyboardInterrupt) -> bool:
    """Makes a call, and raises an error at this step of the interpreter. Returns whether it was raised."""
    with AtOpcode(moment, modules.__contains__, error=error) as at:
        call()
    return bool(at.where)


def rows_of(table: relive.Table, *, agent: str | None = None) -> Rows:
    """All transitions. Each one joins two states that followed each other, and none is there twice."""
    parts = list(table.keys())
    if not parts:
        return []
    batch = table.gather(np.concatenate(parts), columns=["observation", "next_observation"])
    here, there = batch["observation"], batch["next_observation"]
    if isinstance(here, dict):
        places = {name: (here[name], there[name]) for name in ("place", agent) if name in here}
        ((here, there),) = places.values()
        if "pair" in batch["observation"]:
            for top, cells in (("observation", here), ("next_observation", there)):
                assert (batch[top]["pair"][0] == -cells).all(), "an observation is of two moments"
                assert (batch[top]["pair"][1] == cells[:, 2]).all(), "an observation is of two moments"
    rows = [(*map(int, cell), int(after[2])) for cell, after in zip(here, there, strict=True)]
    assert (here[:, :2] == there[:, :2]).all(), f"two episodes are joined: {sorted(rows)}"
    assert all(after == t + 1 for _, _, t, after in rows), f"two states did not follow each other: {sorted(rows)}"
    assert len({row[:3] for row in rows}) == len(rows), f"a step is stored twice: {sorted(rows)}"
    return rows


RECORDER = (
    *("relive.adapters.lanes", "relive.adapters.planned", "relive.adapters.rows", "relive.adapters.gymnasium"),
    *("adapters.worlds", __name__),
)
AGENTS = ("relive.adapters.pettingzoo", "adapters.agents")


class Long(World):
    """A world whose episodes do not end."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observe(), 1.0, False, False, {}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("then", ["close", "step", "reset"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_step_of_one_environment(nested: bool, then: str, error: Any) -> None:
    space = World(nested=nested).observation_space
    with make_table(space) as table:
        moment, was_stopped = 0, True
        while was_stopped:
            table.clear()
            env = record(Long(0, nested), table)
            env.reset()
            env.step(1)
            was_stopped = stopped(lambda env=env: env.step(1), moment, RECORDER, error)
            if then == "reset":
                env.reset()
            if then != "close":
                for _ in range(3):
                    env.step(1)
            env.close()
            found = rows_of(table)
            assert (0, 0, 0, 1) in found, "the step before is stored"
            if then == "reset":
                assert {(0, 1, t, t + 1) for t in range(3)} <= set(found)
            elif then == "step":
                last = env.unwrapped.t
                assert {(0, 0, t, t + 1) for t in (last - 2, last - 1)} <= set(found), "at worst two steps are left out"
            moment += 5 if nested else 2
        assert moment > 500
        table.check()


@pytest.mark.parametrize("call", ["reset", "close"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_reset_and_a_close(call: str, error: Any) -> None:
    with make_table(World().observation_space) as table:
        moment, was_stopped = 0, True
        while was_stopped:
            table.clear()
            env = record(Long(), table)
            env.reset()
            for _ in range(2):
                env.step(1)
            was_stopped = stopped(getattr(env, call), moment, RECORDER, error)
            if call == "reset":
                if was_stopped:
                    env.reset()
                env.step(1)
            env.close()
            found = rows_of(table)
            episode = env.unwrapped.episode
            assert {(0, 0, 0, 1)} | ({(0, episode, 0, 1)} if call == "reset" else set()) <= set(found)
            moment += 1
        assert moment > 50
        table.check()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("warm", [1, 2, 3])
def test_a_step_of_a_vector(mode: Any, warm: int) -> None:
    """Some of the environments end in the step, or were reset before it."""
    makers = [lambda number=number: World(number) for number in range(3)]
    with make_table(World().observation_space) as table:
        moment, was_stopped = 0, True
        while was_stopped:
            table.clear()
            envs = record(SyncVectorEnv(makers, autoreset_mode=mode), table)
            envs.reset(seed=0)
            for _ in range(warm):
                envs.step(np.ones(3, int))
            was_stopped = stopped(lambda envs=envs: envs.step(np.ones(3, int)), moment, RECORDER)
            for _ in range(4):
                envs.step(np.ones(3, int))
            envs.close()
            assert len(rows_of(table)) >= 6
            moment += 7
        assert moment > 500
        table.check()


@pytest.mark.parametrize("call", ["send", "recv"])
def test_a_half_step_of_a_pool(call: str) -> None:
    """The rows that a stopped recv had taken are gone. The program sends to the environments that are named."""
    with make_table(World().observation_space) as table:
        moment, was_stopped = 0, True
        while was_stopped:
            table.clear()
            pool = Pool(4, 2)
            envs = record(pool, table, num_envs=4, autoreset_mode="NextStep")
            envs.async_reset()

            def send(envs: Any = envs) -> None:
                envs.send(np.ones(len(envs.env_ids), int), envs.env_ids)

            for _ in range(7):
                envs.recv()
                send()
            if call == "send":
                envs.recv()
            was_stopped = stopped(send if call == "send" else envs.recv, moment, RECORDER)
            waiting = {env for env, _ in pool.queue}
            idle = np.array([env for env in range(4) if env not in waiting])
            if len(idle):
                envs.send(np.ones(len(idle), int), idle)
            for _ in range(6):
                envs.recv()
                send()
            envs.close()
            assert len(rows_of(table)) >= 6
            moment += 5
        assert moment > 200
        table.check()


@pytest.mark.parametrize("rows", ["joint", "agents"])
@pytest.mark.parametrize("then", ["close", "step", "reset"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_step_of_agents(rows: Any, then: str, error: Any) -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed here")
    from adapters.agents import Pair
    from relive.adapters import pettingzoo

    with relive.Table(pettingzoo.spec(Pair(), rows), 1000, relive.Index(relive.Transitions()), max_lanes=4) as table:
        moment, was_stopped = 0, True
        while was_stopped:
            table.clear()
            env = pettingzoo.record(Pair(), table, rows=rows)
            env.reset()
            env.step({"x": 0, "y": 1})
            was_stopped = stopped(lambda env=env: env.step({"x": 0, "y": 1}), moment, AGENTS, error)
            if then == "reset":
                env.reset()
            if then != "close":
                for _ in range(3):
                    env.step({"x": 0, "y": 1})
            env.close()
            found = rows_of(table, agent="x")
            episode, last = env.unwrapped.episode, env.unwrapped.t
            assert (0, 0, 0, 1) in found
            if then != "close":
                assert {(0, episode, t, t + 1) for t in (last - 2, last - 1)} <= set(found)
            moment += 2
        assert moment > 500
        table.check()


@pytest.mark.parametrize("rows", ["joint", "agents"])
def test_the_last_step_of_agents_and_a_reset(rows: Any) -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed here")
    from adapters.agents import Pair
    from relive.adapters import pettingzoo
    from relive.adapters.errors import ResetNeeded

    def go_on(env: Any) -> None:
        env.step({"x": 0, "y": 1})
        with pytest.raises(ResetNeeded):
            env.step({"x": 0, "y": 1})
        env.reset()

    with relive.Table(pettingzoo.spec(Pair(), rows), 1000, relive.Index(relive.Transitions()), max_lanes=4) as table:
        moment, was_stopped = 0, True
        while was_stopped:
            table.clear()
            env = pettingzoo.record(Pair(length=2), table, rows=rows)
            env.reset()
            env.step({"x": 0, "y": 1})
            was_stopped = stopped(lambda env=env: go_on(env), moment, AGENTS)
            try:
                env.step({"x": 0, "y": 1})
            except ResetNeeded:
                env.reset()
                env.step({"x": 0, "y": 1})
            env.close()
            assert (0, 0, 0, 1) in rows_of(table, agent="x")
            moment += 7
        assert moment > 500
        table.check()


class Failing(Long):
    """A world whose second step raises an error. It has moved by then."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        if self.t == 2:
            raise ValueError("the world failed")
        return result


class Stopping:
    """A writer whose first end_episode raises an error: before the end is made, or after that."""

    def __init__(self, writer: Any, error: Any, is_made: bool) -> None:
        self._writer, self._error, self._is_made = writer, error, is_made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def end_episode(self, **arguments: Any) -> None:
        error, self._error = self._error, None
        if error is None or self._is_made:
            self._writer.end_episode(**arguments)
        if error is not None:
            raise error


class StoppingTable:
    """A table whose writers are of the class Stopping."""

    def __init__(self, table: relive.Table, error: Any, is_made: bool) -> None:
        self._table, self._error, self._is_made = table, error, is_made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def writer(self, num_lanes: int | None = None) -> Stopping:
        return Stopping(self._table.writer(num_lanes), self._error, self._is_made)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("is_made", [False, True])
def test_an_end_that_was_stopped_is_made_before_the_next_step(error: Any, is_made: bool) -> None:
    with make_table(World().observation_space) as table:
        env = record(Failing(), StoppingTable(table, error, is_made))
        env.reset()
        env.step(1)
        with pytest.raises(ValueError, match="failed"):
            env.step(1)
        with pytest.raises(error):
            env.step(1)  # the environment does not move
        for _ in range(3):
            env.step(1)
        env.close()
        assert {row[2] for row in rows_of(table)} == {0, 3, 4}
        table.check()


@pytest.mark.parametrize("rows", ["joint", "agents"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize("is_made", [False, True])
def test_a_cut_of_agents_that_was_stopped_is_made_before_the_next_step(rows: Any, error: Any, is_made: bool) -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed here")
    from adapters.agents import Pair
    from relive.adapters import pettingzoo

    with relive.Table(pettingzoo.spec(Pair(), rows), 1000, relive.Index(relive.Transitions()), max_lanes=4) as table:
        env = pettingzoo.record(Pair(), StoppingTable(table, error, is_made), rows=rows)
        env.reset()
        env.step({"x": 0, "y": 1})
        with pytest.raises(error):
            env.step({"x": 0, "y": 0.5})  # the table refuses the action, and a signal stops the cut
        for _ in range(2):
            env.step({"x": 0, "y": 1})
        env.close()
        assert {row[2] for row in rows_of(table, agent="x")} == {0, 2, 3}
        table.check()
