"""Parallel environments of PettingZoo whose agents come and go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.adapters.errors import EnvironmentClosed, ResetNeeded

pytest.importorskip("pettingzoo", reason="pettingzoo is not installed here")
gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed here")

from pettingzoo import ParallelEnv  # noqa: E402

from relive.adapters import pettingzoo  # noqa: E402 - needs pettingzoo


class Relay(ParallelEnv):  # type: ignore[misc]
    """Agents a, b, c. The observation is (number of the agent, time). a terminates at time 3, c comes at time 2.

    ends: how b and c end at time 5: "terminated" or "truncated". quiet: ended agents have no last observation.
    """

    metadata: dict[str, Any] = {"name": "relay"}

    def __init__(self, ends: str = "terminated", quiet: bool = False) -> None:
        self.possible_agents = ["a", "b", "c"]
        self.agents: list[str] = []
        self.ends, self.quiet = ends, quiet

    def observation_space(self, agent: str) -> Any:
        return gymnasium.spaces.Box(-100, 100, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(50)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.agents = 0, ["a", "b"]
        return {agent: self.shown(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def shown(self, agent: str) -> np.ndarray:
        return np.array([self.possible_agents.index(agent) + 1, self.time], np.float32)

    def step(self, actions: Any) -> Any:
        assert set(actions) == set(self.agents), "every agent that is alive acts, and no other"
        self.time += 1
        acting = list(self.agents)
        over = {"a": self.time == 3, "b": self.time == 5, "c": self.time == 5}
        is_cut = {agent: over[agent] and agent != "a" and self.ends == "truncated" for agent in acting}
        terminations = {agent: over[agent] and not is_cut[agent] for agent in acting}
        self.agents = [agent for agent in acting if not over[agent]]
        if self.time == 2:
            self.agents.append("c")
        seen = self.agents if self.quiet else dict.fromkeys([*acting, *self.agents])
        rewards = {agent: float(actions[agent]) for agent in acting}
        return {agent: self.shown(agent) for agent in seen}, rewards, terminations, is_cut, {a: {} for a in acting}


def play(env: Any, episodes: int = 1) -> None:
    for _ in range(episodes):
        env.reset(seed=1)
        while env.agents:
            env.step({agent: 10 * (env.possible_agents.index(agent) + 1) + env.unwrapped.time for agent in env.agents})


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_the_joint_row(ends: str) -> None:
    with relive.Table(pettingzoo.spec(Relay()), 100) as table:
        env = pettingzoo.record(Relay(ends), table)
        play(env, 2)
        env.close()
        env.close()
        first, second = table.episodes()
        assert len(first) == 5 and first["action"]["a"].tolist() == second["action"]["a"].tolist()
        assert (first.terminated, first.truncated) == (ends == "terminated", ends == "truncated")
        alive = {agent: first["alive"][agent].tolist() for agent in "abc"}
        assert alive == {
            "a": [True, True, True, False, False, False],
            "b": [True] * 5 + [False],
            "c": [False, False, True, True, True, False],
        }
        states = {agent: first["observation"][agent].tolist() for agent in "abc"}
        assert states["a"] == [[1, 0], [1, 1], [1, 2], [1, 3], [0, 0], [0, 0]], "its last state, then zeros"
        assert states["b"] == [[2, t] for t in range(6)] and states["c"] == [[0, 0]] * 2 + [[3, t] for t in range(2, 6)]
        assert first["action"]["a"].tolist() == [10, 11, 12, 0, 0], "a dead agent stands in the row with zeros"
        assert first["action"]["c"].tolist() == [0, 0, 32, 33, 34]
        assert first["agent_terminated"]["a"].tolist() == [False, False, True, False, False]
        assert first["agent_terminated"]["b"].tolist() == [False] * 4 + [ends == "terminated"]
        assert first["rewards"]["c"].tolist() == [0, 0, 32, 33, 34] and first["reward"].tolist() == [30, 32, 66, 56, 58]
        batch = table.sample(32)
        over = batch["discount"] == 0.0
        assert over.any() == (ends == "terminated")
        assert batch["next_alive"]["a"].shape == (32,) and not batch["next_alive"]["b"][over].any()


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_rows_of_agents(ends: str, quiet: bool) -> None:
    with relive.Table(pettingzoo.spec(Relay(), "agents"), 100) as table:
        env = pettingzoo.record(Relay(ends, quiet), table, rows="agents")
        play(env, 2)
        env.close()
        found = list(table.episodes())
        lost = quiet and ends == "truncated"  # the state after the last step is not known
        for number, (first, last) in enumerate([(0, 3), (0, 5), (2, 5)]):
            mine = [one for one in found if one["agent"][0] == number]
            end = last - (lost and number > 0)
            assert [len(one) for one in mine] == [end - first] * 2
            for one in mine:
                times = list(range(first, end))
                assert one["action"].tolist() == [10 * (number + 1) + t for t in times]
                assert one["reward"].tolist() == one["action"].tolist() and set(one["agent"].tolist()) == {number}
                terminated = number == 0 or ends == "terminated"
                assert (one.terminated, one.truncated) == (terminated, not terminated)
                assert one["observation"][:-1].tolist() == [[number + 1, t] for t in times]
                after = [0, 0] if quiet and terminated else [number + 1, end]
                assert one["observation"][-1].tolist() == after


@pytest.mark.parametrize("seed", range(8))
def test_agents_that_do_not_act_in_a_step(seed: int) -> None:
    """The step is stored for the agents that acted. The others end there, and begin again with their next action."""

    class Waiting(Relay):
        def step(self, actions: Any) -> Any:
            return super().step({agent: actions.get(agent, 0) for agent in self.agents})

    numbers, acted = np.random.default_rng(seed), set()
    with relive.Table(pettingzoo.spec(Waiting(), "agents"), 100) as table:
        env = pettingzoo.record(Waiting(), table, rows="agents")
        env.reset()
        while env.agents:
            actions = {agent: 1 for agent in env.agents if numbers.random() < 0.6}
            acted |= {(env.possible_agents.index(agent), env.unwrapped.time) for agent in actions}
            env.step(actions)
        env.close()
        table.check()
        stored = []
        for one in table.episodes():
            number, times = int(one["agent"][0]), one["observation"][:, 1].tolist()
            assert times == list(range(int(times[0]), int(times[-1]) + 1)), "no false seam"
            stored += [(number, int(time)) for time in times[:-1]]
            assert (number, int(times[-1])) not in acted, "an episode goes on as long as its agent acts"
        assert len(acted) < 12 and sorted(stored) == sorted(acted)


@pytest.mark.parametrize("rows", ["joint", "agents"])
def test_resets_and_errors_cut_episodes(rows: Any) -> None:
    extras = {"log_prob": relive.ArraySpec((), "float32")}
    with relive.Table(pettingzoo.spec(Relay(), rows, extras=extras), 200) as table:
        inner = Relay()
        env = pettingzoo.record(inner, table, rows=rows)
        with pytest.raises(ResetNeeded):
            env.step({})
        env.set_extras(log_prob=-1.0)
        env.reset()
        env.step({"a": 1, "b": 2})
        env.step({"a": 1, "b": 2})
        env.reset()
        env.step({"a": 1, "b": 2})
        with pytest.raises(errors.ReliveError):
            env.step({"a": 0.5, "b": 2})  # the table refuses the action; the environment took the step
        env.step({"a": 3, "b": 4, "c": 5})
        env.close()
        with pytest.raises(EnvironmentClosed):
            env.step({})
        table.check()
        found = list(table.episodes())
        assert all(one.truncated or rows == "agents" for one in found)
        for one in found:
            states = one["observation"]["b"] if rows == "joint" else one["observation"]
            times = states[:, 1].tolist()
            alive = one["alive"]["b"] if rows == "joint" else np.ones(len(times), bool)
            assert alive.all() and times == list(range(int(times[0]), int(times[0]) + len(times))), "no false seam"
            assert set(one["log_prob"].tolist()) == {-1.0}


@pytest.mark.parametrize("rows", ["joint", "agents"])
@pytest.mark.parametrize("what", ["reward", "observation", "extra"])
def test_hidden_values_are_refused_and_cut_episodes(rows: Any, what: str) -> None:
    class Masked(Relay):
        def step(self, actions: Any) -> Any:
            shown, rewards, *rest = super().step(actions)
            if self.time == 2 and what == "observation":
                shown["b"] = np.ma.array(shown["b"], mask=[0, 1])
            if self.time == 2 and what == "reward":
                rewards["b"] = np.ma.masked
            return shown, rewards, *rest

    extras = {"log_prob": relive.ArraySpec((2,), "float32")}
    with relive.Table(pettingzoo.spec(Masked(), rows, extras=extras), 200) as table:
        env = pettingzoo.record(Masked(), table, rows=rows)
        env.set_extras(log_prob=[0, 0])
        env.reset()
        refused = []
        while env.agents:
            if what == "extra" and env.unwrapped.time < 3:
                env.set_extras(log_prob=np.ma.array([0, 0], mask=[0, env.unwrapped.time == 1]))
            try:
                env.step(dict.fromkeys(env.agents, 1))
            except errors.DtypeMismatch:
                refused.append(env.unwrapped.time)
        env.close()
        assert refused in ([2], [2, 3])  # the next step begins at the hidden observation
        for one in table.episodes():
            states = one["observation"]["b"] if rows == "joint" else one["observation"]
            times = states[:, 1].tolist()
            assert times == list(range(int(times[0]), int(times[0]) + len(times))), "no false seam"
            assert times[0] >= refused[-1] or times[-1] < 2, "no step that was refused"


def test_a_budget_lets_in_some_agents_of_a_step() -> None:
    """The agents whose step was stored end there, like the others: no later episode joins theirs."""
    budget = relive.StalenessBudget(0, 1)
    index = relive.Index(relive.Transitions(), limiter=budget, max_times_sampled=1)
    with relive.Table(pettingzoo.spec(Relay(), "agents"), 200, index) as table:
        env = pettingzoo.record(Relay(), table, rows="agents", timeout_s=0.0)
        halves = 0
        for version in range(1, 40):
            env.reset()
            table.set_policy_version(2 * version)
            while env.agents:
                try:
                    env.step(dict.fromkeys(env.agents, version))
                except errors.DeadlineExceeded as error:
                    halves += error.stored > 0
                    if version % 3 == 0:
                        break
                    table.set_policy_version(table.stats().indexes["default"].inserted + version % 2)
        env.close()
        table.check()
        assert halves > 5
        for one in table.episodes():
            times = one["observation"][:, 1].tolist()
            after = times[-1] == 0 and one.terminated  # a terminated agent may have no last observation
            times = times[:-1] if after else times
            assert times == list(range(int(times[0]), int(times[0]) + len(times))), "no false seam"
            assert len(set(one["action"].tolist())) == 1, "one episode of the environment"


def test_bad_input() -> None:
    class Mixed(Relay):
        def action_space(self, agent: str) -> Any:
            return gymnasium.spaces.Discrete(2 if agent == "a" else 3)

    with pytest.raises(errors.InvalidConfig, match="same for all"):
        pettingzoo.spec(Mixed(), "agents")
    assert "action/a" in pettingzoo.spec(Mixed()).columns
    with pytest.raises(errors.InvalidConfig, match="'joint' or 'agents'"):
        pettingzoo.spec(Relay(), "both")
    with pytest.raises(errors.InvalidConfig, match="aec_to_parallel"):
        pettingzoo.spec(gymnasium.make("CartPole-v1"))
    with relive.Table(relive.StepSpec({"x": relive.ArraySpec((), "int64")}), 100) as table:
        for rows in ("joint", "agents"):
            with pytest.raises(errors.InvalidConfig, match="pettingzoo.spec"):
                pettingzoo.record(Relay(), table, rows=rows)  # type: ignore[arg-type]
