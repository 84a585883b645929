"""QMIX: several agents with one reward; a mixing network that is monotonic in each agent's value.

Papers: Rashid et al. 2018 (QMIX), Sunehag et al. 2018 (VDN).

    Q_tot(s, a) = f(Q_1(o_1, a_1), ..., Q_n(o_n, a_n); s)     with dQ_tot / dQ_i >= 0: hypernetworks give |weights|
    target      = reward + discount * Q_tot'(s', argmax_a1 Q_1(o_1', .), ..., argmax_an Q_n(o_n', .))
    VDN         : Q_tot = Q_1 + ... + Q_n                     (`--mixer vdn`)

Environment: the two-step game of the paper. In the first state the action of agent 1 chooses game A or game B. In A
every joint action pays 7. In B the payoffs are ((0, 1), (1, 8)): the best return is 8, and a learner that cannot
represent the joint value chooses the safe 7.

Data flow: the table stores whole episodes (`Episodes`): observations [n, D], actions [n], one reward, the state. Agents
that come and go are a mask column: `present` is False for an agent that is not there, and the mixing network gets the
value 0 for it. `--absent` makes the second agent miss some episodes; its actions do not count there.

Deviations from the papers: feed-forward agents, because the game is observed fully; the exploration rate is constant
and large; the target networks follow every 50 updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import frame
import gymnasium
import numpy as np
import torch

import relive

NUM_AGENTS, NUM_STATES, NUM_ACTIONS, SAFE, BEST = 2, 3, 2, 7.0, 8.0
PAYOFF = np.array([[0.0, 1.0], [1.0, BEST]])


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of QMIX."""

    mixer: str = frame.one_of("qmix", "vdn")
    steps: int = 10_000
    eval_every: int = 1_000
    eval_episodes: int = 1  # the game is deterministic
    absent: float = 0.0  # share of the episodes without the second agent
    hidden: int = 32
    capacity: int = 10_000
    min_size: int = 32  # episodes before the first update
    batch_size: int = 32  # episodes
    steps_per_update: int = 10
    learning_rate: float = 5e-3
    gamma: float = frame.within(0, 1, 0.99)
    epsilon: float = 1.0  # the paper explores this game at random
    target_every: int = 50  # updates


class TwoStep(gymnasium.Env[np.ndarray, np.ndarray]):
    """The two-step game for a team. An observation [n, state + agent] and an action [n] for all agents together."""

    def __init__(self, absent: float = 0.0) -> None:
        self.absent = absent
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (NUM_AGENTS, NUM_STATES + NUM_AGENTS), np.float32)
        self.action_space = gymnasium.spaces.MultiDiscrete([NUM_ACTIONS] * NUM_AGENTS)

    def _seen(self) -> np.ndarray:
        state = np.eye(NUM_STATES, dtype=np.float32)[[self.at] * NUM_AGENTS]
        return np.concatenate([state, np.eye(NUM_AGENTS, dtype=np.float32)], axis=1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = 0
        self.present = np.array([True, self.np_random.random() >= self.absent])
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        first, second = np.where(self.present, action, 0)
        if self.at == 0:
            self.at = 1 + int(first)
            return self._seen(), 0.0, False, False, {}
        return self._seen(), SAFE if self.at == 1 else float(PAYOFF[first, second]), True, False, {}


class Team(torch.nn.Module):
    """One network for all agents, and the mixing network."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.is_qmix, hidden = settings.mixer == "qmix", settings.hidden
        num_inputs = NUM_STATES + NUM_AGENTS
        self.agent = frame.mlp(num_inputs, hidden, NUM_ACTIONS)
        self.weight_1 = frame.mlp(NUM_STATES, NUM_AGENTS * hidden)
        self.bias_1 = frame.mlp(NUM_STATES, hidden)
        self.weight_2 = frame.mlp(NUM_STATES, hidden)
        self.bias_2 = frame.mlp(NUM_STATES, hidden, 1)

    def values(self, observations: torch.Tensor) -> torch.Tensor:
        """The values of each agent [..., n, A]."""
        return self.agent(observations)

    def total(self, chosen: torch.Tensor, observations: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """Q_tot [...] of the agents' chosen values [..., n]."""
        chosen = chosen * present
        if not self.is_qmix:
            return chosen.sum(-1)
        state = observations[..., 0, :NUM_STATES]
        weight = self.weight_1(state).abs().unflatten(-1, (NUM_AGENTS, -1))
        hidden = torch.nn.functional.elu((chosen[..., None] * weight).sum(-2) + self.bias_1(state))
        return (hidden * self.weight_2(state).abs()).sum(-1) + self.bias_2(state)[..., 0]

    @torch.no_grad()
    def best(self, observations: np.ndarray) -> np.ndarray:
        """The greedy action of each agent [..., n]."""
        return self.values(torch.as_tensor(observations)).argmax(-1).numpy()


def update(team: Team, target: Team, optimizer: torch.optim.Optimizer, batch: relive.Batch) -> float:
    """One step of the optimizer over whole episodes [B, T]. Returns the loss."""
    rows = batch.to_torch()
    observations, following, present = rows["observation"], rows["next_observation"], rows["present"].float()
    chosen = team.values(observations).gather(-1, rows["action"][..., None])[..., 0]
    with torch.no_grad():
        best = team.values(following).argmax(-1, keepdim=True)
        next_value = target.values(following).gather(-1, best)[..., 0]
        wanted = rows["reward"] + rows["discount"] * target.total(next_value, following, present[:, None])
    error = (wanted - team.total(chosen, observations, present[:, None])) * rows["mask"]
    loss = (error**2).sum() / rows["mask"].sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(team.parameters(), 10.0)
    optimizer.step()
    return loss.item()


def make_table(settings: Settings) -> relive.Table:
    """Whole episodes of the team. The agents that are present are one value an episode."""
    env = TwoStep()
    spec = relive.StepSpec(
        {
            "observation": relive.ArraySpec(env.observation_space.shape, "float32", kind="state"),
            "action": relive.ArraySpec((NUM_AGENTS,), "int64"),
            "reward": relive.ArraySpec((), "float32"),
            "present": relive.ArraySpec((NUM_AGENTS,), "bool", kind="episode"),
        }
    )
    index = relive.Index(relive.Episodes(max_length=4, gamma=settings.gamma), limiter=relive.MinSize(settings.min_size))
    return relive.Table(spec, settings.capacity, index, seed=settings.seed)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("qmix", settings)
    saved = run.load()
    table, env = saved.table if saved else make_table(settings), TwoStep(settings.absent)
    team = Team(settings)
    target, optimizer = deepcopy(team), torch.optim.Adam(team.parameters(), settings.learning_rate)
    parts: dict[str, Any] = {"team": team, "target": target, "optimizer": optimizer}
    if saved:
        for name, part in parts.items():
            part.load_state_dict(saved.learner[name])
    run.result.random_return = frame.random_return(TwoStep, 50)
    rng = np.random.default_rng([settings.seed, run.step])
    observation, _ = env.reset(seed=int(rng.integers(1 << 31)))
    columns = ["observation", "next_observation", "action", "reward", "discount", "present", "mask"]

    step, num_updates = run.step, saved.learner.get("updates", 0) if saved else 0
    with (
        run.course(
            lambda: (table, {name: part.state_dict() for name, part in parts.items()} | {"updates": num_updates})
        ),
        table.writer() as writer,
    ):
        while run.goes_on(step):
            explores = rng.random(NUM_AGENTS) < settings.epsilon
            action = np.where(explores, rng.integers(NUM_ACTIONS, size=NUM_AGENTS), team.best(observation))
            following, reward, terminated, _, _ = env.step(action)
            writer.append(
                observation=observation,
                action=action,
                reward=reward,
                present=env.present,
                terminated=terminated,
                next_observation=following,
            )
            observation = env.reset()[0] if terminated else following
            step += 1
            if table.num_items() >= settings.min_size and step % settings.steps_per_update == 0:
                run.log(loss=update(team, target, optimizer, table.sample(settings.batch_size, columns=columns)))
                num_updates += 1
                if num_updates % settings.target_every == 0:
                    target.load_state_dict(team.state_dict())
            if run.evaluation_is_due(step):
                run.evaluated(frame.evaluate(team.best, TwoStep, settings.eval_episodes))
    table.close()
    return run.result


if __name__ == "__main__":
    main()
