"""Records PettingZoo's parallel environments: one row for all agents, or one row for each agent.

    spec = relive.adapters.pettingzoo.spec(env, rows="joint")
    env = relive.adapters.pettingzoo.record(env, relive.Table(spec, 100_000), rows="joint")
    observations, infos = env.reset(seed=0)
    observations, rewards, terminations, truncations, infos = env.step(actions)

rows="joint": a row has the values of every possible agent.

| column | value |
|---|---|
| observation, action, rewards | {agent: value}; zeros for an agent that is not there |
| alive | {agent: bool}, a state column: next_alive is that of the next state |
| agent_terminated | {agent: bool}: the agent terminated with this step; a truncated agent is only no longer alive |
| reward | the sum of the rewards, which n-step returns add up |

The observation of an agent that has ended stays for one more row, as its last state, with alive False. The episode ends
when no agent is left: truncated, if one of the last agents was truncated.

rows="agents": a row is a step of one agent. Each agent has a lane and episodes of its own, and the column `agent` has
its number among env.possible_agents. All agents need the same spaces. Agents may come and go at any step. An
agent that does not act in a step has no row of it: its episode ends before the step as truncated, and its next action
begins another episode.

A stored transition always joins two states that followed each other, also after an error or Ctrl-C. A step that stops
half way cuts the open episodes. If the state after it is not known, the next step shows the state and is not stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from relive.adapters.errors import EnvironmentClosed, ResetNeeded
from relive.adapters.lanes import WritableTable
from relive.checks.names import names_arguments
from relive.config.casting import unmasked
from relive.config.spec import ArraySpec, StepSpec
from relive.errors import InvalidConfig, MissingPackage, TableClosed, UnknownColumn
from relive.errors.extras import install_command

try:
    import gymnasium
    from pettingzoo import ParallelEnv
    from pettingzoo.utils.wrappers import BaseParallelWrapper
except ImportError as _problem:
    raise MissingPackage("PettingZoo", str(_problem.name), install_command("pettingzoo")) from _problem

__all__ = ["record", "spec"]

RowsOf = Literal["joint", "agents"]
Flat = dict[str, NDArray[Any]]


@names_arguments
def spec(env: Any, rows: RowsOf = "joint", *, extras: Mapping[str, Any] | None = None) -> StepSpec:
    """The columns of an environment, as the module's text lists them.

    Args:
        env: a ParallelEnv.
        rows: 'joint' or 'agents'.
        extras: more step columns, whose values come from set_extras.

    Raises:
        InvalidConfig: env is no ParallelEnv, or the agents of rows='agents' differ in their spaces.
        SpecError: a space, or the name of an agent, is not allowed.
    """
    agents = _agents(env)
    spaces = [(env.observation_space(agent), env.action_space(agent)) for agent in agents]
    if _checked(rows) == "agents":
        if any(one != spaces[0] for one in spaces):
            raise InvalidConfig("spaces of the agents for rows='agents'", "the same for all; or rows='joint'", agents)
        more = {"agent": ArraySpec((), "int64"), **(extras or {})}
        return StepSpec.from_spaces(*spaces[0], extras=more)
    flag = ArraySpec((), "bool")
    return StepSpec.from_spaces(
        gymnasium.spaces.Dict({agent: one for agent, (one, _) in zip(agents, spaces, strict=True)}),
        gymnasium.spaces.Dict({agent: one for agent, (_, one) in zip(agents, spaces, strict=True)}),
        extras={
            "rewards": dict.fromkeys(agents, ArraySpec((), "float32")),
            "alive": dict.fromkeys(agents, ArraySpec((), "bool", "state")),
            "agent_terminated": dict.fromkeys(agents, flag),
            **(extras or {}),
        },
    )


@names_arguments
def record(env: Any, table: WritableTable, *, rows: RowsOf = "joint", timeout_s: float | None = None) -> Any:
    """Wraps a parallel environment so that its steps are written into a table.

    Args:
        env: a ParallelEnv. aec_to_parallel of pettingzoo.utils makes one from an AEC environment.
        table: a table with the columns of spec(env, rows).
        rows: 'joint': one row for all agents; 'agents': one row for each.
        timeout_s: deadline of each write in seconds. None: the table's default.

    Returns:
        The environment. Closing it ends the open episodes as truncated, and closes the writer.

    Raises:
        InvalidConfig: env is no ParallelEnv, or the table has other columns.

    Blocks: a step blocks while the limiter lets no step in. If a step cannot be stored, its error is raised, the stored
    episode is cut before the step, and recording goes on with the next one.
    """
    kind = _JointRows if _checked(rows) == "joint" else _AgentRows
    return _RecordedParallelEnv(env, kind(_agents(env), table, timeout_s))


class _RecordedParallelEnv(BaseParallelWrapper):
    """A parallel environment whose steps are stored. For one thread at a time."""

    def __init__(self, env: Any, rows: _JointRows | _AgentRows) -> None:
        super().__init__(env)
        self._rows = rows

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Resets the environment. Unfinished episodes are stored as truncated at their last states."""
        self._rows.cut()
        self._rows.has_begun = False
        observations, infos = self.env.reset(seed=seed, options=options)
        self._rows.begin(observations, self.env.agents)
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> Any:
        """Takes one step and stores it. Raises ResetNeeded before the first reset, and after the last agent ended."""
        self._rows.check()
        before = self._rows.leave()
        try:
            observations, rewards, terminations, truncations, infos = self.env.step(actions)
            self._rows.store(before, actions, (observations, rewards, terminations, truncations), self.env.agents)
        except BaseException:
            with suppress(Exception):  # the error of the step is the one to tell
                self._rows.has_begun = bool(self.env.agents)
            self._rows.cut()
            raise
        return observations, rewards, terminations, truncations, infos

    def set_extras(self, **columns: Any) -> None:
        """Sets values of further step columns, which the next steps store until they are set again."""
        self._rows.set_extras(columns)

    @property
    def writer(self) -> Any:
        """The writer; for example for set_policy_version."""
        return self._rows.writer

    def close(self) -> None:
        """Ends open episodes as truncated, and closes the writer and the environment. A second call does nothing."""
        if self._rows.closed:
            return
        try:
            self._rows.close()
        finally:
            self.env.close()


class _Rows:
    """The parts of both kinds of rows: the writer, the extras, and arrays of the columns.

    A lane counts as open from before its append until after its end. If the writer has no open episode of the lane, an
    end changes nothing.
    """

    def __init__(self, agents: Sequence[str], table: WritableTable, timeout_s: float | None, num_lanes: Any) -> None:
        self.agents = tuple(agents)
        self.spec = table.spec
        self.states = self.spec.state_columns
        self.writer = table.writer(num_lanes)
        self.timeout_s = timeout_s
        self.extras: dict[str, Any] = {}
        self.closed = False
        self.has_begun = False
        self._state: dict[str, Any] | None = None  # None: the environment has moved, and its state is not known
        self._is_moving = False  # a step has begun, and is not stored yet

    def set_extras(self, columns: Mapping[str, Any]) -> None:
        for name in columns:
            self.spec.expand(name)  # raises UnknownColumn
        self.extras.update(columns)

    def check(self) -> None:
        if self.closed:
            raise EnvironmentClosed("the recorded environment")
        if not self.has_begun:
            raise ResetNeeded(lane=0)

    def leave(self) -> dict[str, Any] | None:
        """Begins a step. Returns the state before it. None: the state is not known, and the step is not stored."""
        if self._is_moving:  # the last step stopped half way, and perhaps its cut, too
            self.cut()
        self._is_moving = True
        before, self._state = self._state, None
        return before

    def close(self) -> None:
        self.closed = True
        try:
            with suppress(TableClosed):  # it has cut the lanes
                self.cut()
        finally:
            self.writer.close()

    def cut(self) -> None:
        """Ends the open episodes as truncated at their last states."""
        raise NotImplementedError

    def flat(self, top: str, value: Any) -> Flat:
        """{flat name: array} of a nested value, in the dtypes of the columns where numpy casts them safely."""
        found: dict[str, Any] = {}
        _flatten(top, value, found)
        for name in found:
            if name not in self.spec.columns:
                raise UnknownColumn(name, tuple(self.spec.columns))
        return found


class _JointRows(_Rows):
    """One row for all agents."""

    def __init__(self, agents: Sequence[str], table: WritableTable, timeout_s: float | None) -> None:
        needed = {f"{top}/{agent}" for top in ("alive", "rewards", "agent_terminated") for agent in agents}
        if not needed <= set(table.spec.columns):
            missing = sorted(needed - set(table.spec.columns))[0]
            raise InvalidConfig("table for rows='joint'", "the columns of pettingzoo.spec(env, 'joint')", missing)
        super().__init__(agents, table, timeout_s, None)
        self._zeros = {name: np.zeros(one.shape, one.dtype) for name, one in self.spec.columns.items()}
        self._is_open = False

    def begin(self, observations: Mapping[str, Any], alive: Iterable[str]) -> None:
        """An episode begins at this state."""
        self._state = self._joint(observations, set(alive))
        self.has_begun, self._is_moving = True, False

    def _joint(self, observations: Mapping[str, Any], alive: set[str]) -> Flat:
        state = {name: self._zeros[name] for name in self.states}
        state.update(self.flat("observation", dict(observations)))
        state.update({f"alive/{agent}": np.asarray(agent in alive) for agent in self.agents})
        return state

    def store(
        self, before: Flat | None, actions: Mapping[str, Any], step: tuple[Any, Any, Any, Any], alive: Iterable[str]
    ) -> None:
        """Stores one step of all agents, which leave the state `before`. Notes the state after the step."""
        observations, rewards, terminations, truncations = step
        left = set(alive)
        self._state = after = self._joint(observations, left)
        self.has_begun = bool(left)
        if before is not None:
            acted = {name: value for name, value in self._zeros.items() if name.startswith("action/")}
            acted.update(self.flat("action", dict(actions)))
            over = not left
            is_cut = any(bool(value) for value in truncations.values()) or not any(terminations.values())
            told = {agent: unmasked(f"rewards/{agent}", rewards.get(agent, 0.0), np.float32) for agent in self.agents}
            self._is_open = True
            self.writer.append(
                **before,
                **acted,
                **{f"rewards/{agent}": value for agent, value in told.items()},
                **{f"agent_terminated/{agent}": bool(terminations.get(agent, False)) for agent in self.agents},
                **self.extras,
                **{f"next_{name}": value for name, value in after.items()},
                reward=np.float32(sum(told.values())),
                terminated=over and not is_cut,
                truncated=over and is_cut,
                timeout_s=self.timeout_s,
            )
            self._is_open = not over
        self._is_moving = False

    def cut(self) -> None:
        if self._is_open:
            self.writer.end_episode(truncated=True, timeout_s=self.timeout_s)
            self._is_open = False


class _AgentRows(_Rows):
    """One row for each agent, in a lane of its own."""

    def __init__(self, agents: Sequence[str], table: WritableTable, timeout_s: float | None) -> None:
        if "agent" not in table.spec.columns:
            got = ", ".join(table.spec.columns)
            raise InvalidConfig("table for rows='agents'", "the columns of pettingzoo.spec(env, 'agents')", got)
        super().__init__(agents, table, timeout_s, len(agents))
        self._lane = {agent: number for number, agent in enumerate(self.agents)}
        self._open: set[int] = set()

    def begin(self, observations: Mapping[str, Any], alive: Iterable[str]) -> None:
        """The agents with an observation begin their episodes."""
        self._state = {agent: self.flat("observation", observations[agent]) for agent in observations}
        self.has_begun, self._is_moving = True, False

    def store(
        self,
        before: dict[str, Flat] | None,
        actions: Mapping[str, Any],
        step: tuple[Any, Any, Any, Any],
        alive: Iterable[str],
    ) -> None:
        """Stores a step of each agent that acted. A step whose next observation is missing is left out.

        before: the observation that each agent saw before the step. The present ones are noted.
        """
        observations, left = step[0], set(alive)
        after = {agent: self.flat("observation", observations[agent]) for agent in observations}
        self._state = {agent: flat for agent, flat in after.items() if agent in left}
        self.has_begun = bool(left)
        if before is not None:
            self._append(before, actions, step, after, left)
        self._is_moving = False

    def _append(
        self,
        before: dict[str, Flat],
        actions: Mapping[str, Any],
        step: tuple[Any, Any, Any, Any],
        after: dict[str, Flat],
        left: set[str],
    ) -> None:
        _, rewards, terminations, truncations = step
        acted = [agent for agent in self.agents if agent in actions and agent in before]
        # The others end before this step: they did not act, or vanished without a last observation.
        stored = [agent for agent in acted if agent in after or terminations.get(agent, False)]
        lost = {self._lane[agent] for agent in before if agent not in stored}
        rows = [
            {
                **before[agent],
                **self.flat("action", actions[agent]),
                **{f"next_{name}": value for name, value in after.get(agent, self._nothing(before[agent])).items()},
                "reward": rewards.get(agent, 0.0),
                "agent": self._lane[agent],
                "terminated": bool(terminations.get(agent, False)),
                "truncated": self._is_truncated(agent, terminations, truncations, left),
            }
            for agent in stored
        ]
        self._cut(lost)
        if not rows:
            return
        lanes = np.array([row["agent"] for row in rows])
        over = np.array([row["terminated"] or row["truncated"] for row in rows])
        columns = {name: np.stack([unmasked(name, row[name]) for row in rows]) for name in rows[0]}
        extras = {name: np.stack([unmasked(name, value)] * len(rows)) for name, value in self.extras.items()}
        self._open = self._open | set(lanes.tolist())
        self.writer.append(lanes=lanes, timeout_s=self.timeout_s, **columns, **extras)
        self._open = self._open - set(lanes[over].tolist())

    @staticmethod
    def _is_truncated(agent: str, terminations: Any, truncations: Any, left: set[str]) -> bool:
        if truncations.get(agent, False):
            return True
        return agent not in left and not terminations.get(agent, False)

    @staticmethod
    def _nothing(state: Flat) -> Flat:
        return {name: np.zeros_like(value) for name, value in state.items()}

    def cut(self) -> None:
        self._cut(set(self._open))

    def _cut(self, lanes: set[int]) -> None:
        ended = sorted(lanes & self._open)
        if ended:
            self.writer.end_episode(lanes=np.array(ended), truncated=True, timeout_s=self.timeout_s)
            self._open = self._open - lanes


# ---- parts ---------------------------------------------------------------------------------------------------------


def _checked(rows: Any) -> RowsOf:
    if rows not in ("joint", "agents"):
        raise InvalidConfig("rows", "'joint' or 'agents'", rows)
    return cast("RowsOf", rows)


def _agents(env: Any) -> list[str]:
    if not isinstance(env, ParallelEnv):
        expected = (
            "a pettingzoo.ParallelEnv; pettingzoo.utils.conversions.aec_to_parallel makes one from an AEC environment"
        )
        raise InvalidConfig("environment to record", expected, type(env).__name__)
    return [str(agent) for agent in env.possible_agents]


def _flatten(name: str, value: Any, into: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key, part in value.items():
            _flatten(f"{name}/{key}", part, into)
    elif isinstance(value, tuple):
        for number, part in enumerate(value):
            _flatten(f"{name}/{number}", part, into)
    else:
        into[name] = np.asanyarray(value)  # keeps a mask, which the table refuses
