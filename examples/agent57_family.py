"""A family of policies in one table: each has its own weight of novelty, its own discount and its own exploration.

Papers: Badia et al. 2020 (Never Give Up; Agent57).

    policy j of K:  beta_j from 0 to beta, gamma_j from gamma_max to gamma_min, epsilon_j from a ladder
    novelty_t    = 1 if this episode is in the state of step t for the first time, else 0
    target       = reward + beta_j * novelty + gamma_j * (1 - terminated) * max_a Q_target(s', j, a)
    actors choose j by an upper confidence bound on the last `window` episodes' returns of the environment, plus the
    number of states that were new to the run

Data flow: all policies write into one table. The policy is a column of kind "episode"; the novelty is a step column, so
the learner weighs it at the draw. Each drawn step trains the policy that acted (`--share-data` trains all K policies on
every step: Q-learning is off-policy). The table stores gamma = 1, because each policy has its own.

Environment: MiniGrid DoorKey. The curve is the number of states (cell, key, door) that an episode of the most curious
policy visits. `--num-policies 1` is one policy with `--beta` 0: it explores by epsilon alone.

Deviations from the papers: counts of states take the place of embeddings and of random network distillation; the
observation contains the cells that the episode has visited, in the place of a recurrent state; one-step targets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import frame
import gymnasium
import numpy as np
import torch
from torch.nn import functional as F

import relive

ACTIONS = (0, 1, 2, 3, 5)  # left, right, forward, pick up, toggle


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of the family."""

    env: str = "MiniGrid-DoorKey-6x6-v0"
    max_steps: int = 80  # of an episode
    steps: int = 40_000
    eval_every: int = 4_000
    eval_episodes: int = 10
    hidden: int = 128
    num_policies: int = 4
    beta: float = 1.0  # of the most curious policy
    gamma_max: float = 0.97  # of the policy without curiosity
    gamma_min: float = 0.9
    epsilon: float = 0.2
    window: int = 60  # episodes that the choice of a policy looks back
    share_data: bool = True
    num_envs: int = 4
    capacity: int = 100_000
    min_size: int = 500
    batch_size: int = 64
    steps_per_update: int = 4
    learning_rate: float = 1e-3
    target_rate: float = 0.02


class Grid(gymnasium.Wrapper[np.ndarray, int, Any, Any]):
    """DoorKey as a vector: the cells, the agent, the cells that this episode has visited. Counts states."""

    def __init__(self, settings: Settings, counts_as_reward: bool = False) -> None:
        frame.package("minigrid", "minigrid")
        super().__init__(gymnasium.make(settings.env, max_steps=settings.max_steps))
        self.counts_as_reward = counts_as_reward
        num_cells = self.unwrapped.width * self.unwrapped.height
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (3 * num_cells + 6,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))

    def _seen(self) -> np.ndarray:
        env = self.unwrapped
        kinds = env.grid.encode()[:, :, 0].astype(np.float32) / 10.0
        agent, visited = np.zeros_like(kinds), np.zeros_like(kinds)
        agent[tuple(env.agent_pos)] = 1.0
        for x, y, key, door in self.counts:
            if (key, door) == self.state[2:]:
                visited[x, y] = 1.0
        extra = np.eye(4, dtype=np.float32)[env.agent_dir]
        return np.concatenate([kinds.ravel(), agent.ravel(), visited.ravel(), extra, self.state[2:]], dtype=np.float32)

    @property
    def state(self) -> tuple[int, int, bool, bool]:
        """Cell, key in hand, door open."""
        env = self.unwrapped
        is_open = any(cell is not None and cell.type == "door" and cell.is_open for cell in env.grid.grid)
        return (int(env.agent_pos[0]), int(env.agent_pos[1]), env.carrying is not None, is_open)

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        _, info = super().reset(**options)
        self.counts: dict[tuple[int, int, bool, bool], int] = {self.state: 1}
        return self._seen(), info

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = super().step(ACTIONS[action])
        count = self.counts[self.state] = self.counts.get(self.state, 0) + 1
        reward = float(count == 1) if self.counts_as_reward else float(reward)
        return self._seen(), reward, terminated, truncated, info | {"novelty": float(count == 1)}


class Family(torch.nn.Module):
    """Q(s, j, a): one network, to which the policy is an input."""

    def __init__(self, num_inputs: int, settings: Settings) -> None:
        super().__init__()
        self.num_policies = settings.num_policies
        place = torch.linspace(0.0, 1.0, self.num_policies)  # 0 for a single policy
        self.beta = place * settings.beta
        self.gamma = settings.gamma_max + place * (settings.gamma_min - settings.gamma_max)
        self.body = frame.mlp(num_inputs + self.num_policies, settings.hidden, settings.hidden, len(ACTIONS))

    def forward(self, observations: torch.Tensor, policies: torch.Tensor) -> torch.Tensor:
        """The values [B, A]."""
        return self.body(torch.cat([observations, F.one_hot(policies, self.num_policies).float()], -1))

    @torch.no_grad()
    def best(self, observations: np.ndarray, policies: np.ndarray) -> np.ndarray:
        """The best action of each observation, for the policy of each."""
        return self(torch.as_tensor(observations), torch.as_tensor(policies)).argmax(1).numpy()


class Choice:
    """Chooses a policy for an episode: the best recent result, or one that was tried rarely."""

    def __init__(self, num: int, window: int) -> None:
        self.num, self.recent = num, deque[tuple[int, float]](maxlen=window)

    def __call__(self) -> int:
        tried = np.array([sum(policy == j for policy, _ in self.recent) for j in range(self.num)])
        if (tried == 0).any():
            return int(tried.argmin())
        result = np.array([np.mean([value for policy, value in self.recent if policy == j]) for j in range(self.num)])
        spread = max(1e-6, np.ptp(result))
        return int((result / spread + np.sqrt(2.0 * np.log(tried.sum()) / tried)).argmax())


def loss_of(family: Family, target: Family, rows: dict[str, torch.Tensor], settings: Settings) -> torch.Tensor:
    """The loss of the policies that acted, or of all policies."""
    policies = rows["policy"]
    if settings.share_data:  # each step once for each policy
        rows = {name: column.repeat_interleave(settings.num_policies, 0) for name, column in rows.items()}
        policies = torch.arange(settings.num_policies).repeat(len(policies))
    with torch.no_grad():
        value = target(rows["next_observation"], policies).amax(1)
        reward = rows["reward"] + family.beta[policies] * rows["novelty"]
        wanted = reward + family.gamma[policies] * rows["discount"] * value
    value = family(rows["observation"], policies).gather(1, rows["action"][:, None])[:, 0]
    return F.smooth_l1_loss(value, wanted)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("agent57_family", settings)
    saved = run.load()
    envs = [Grid(settings) for _ in range(settings.num_envs)]
    if saved:
        table = saved.table
    else:
        extras = {
            "novelty": relive.ArraySpec((), "float32"),
            "policy": relive.ArraySpec((), "int64", kind="episode"),
        }
        spec = relive.StepSpec.from_spaces(envs[0].observation_space, envs[0].action_space, extras=extras)
        index = relive.Index(relive.Transitions(gamma=1.0), limiter=relive.MinSize(settings.min_size))
        table = relive.Table(spec, settings.capacity, index, seed=settings.seed)
    family = Family(envs[0].observation_space.shape[0], settings)
    target = deepcopy(family)
    optimizer = torch.optim.Adam(family.parameters(), settings.learning_rate)
    parts: dict[str, Any] = {"family": family, "target": target, "optimizer": optimizer}
    if saved:
        for name, part in parts.items():
            part.load_state_dict(saved.learner[name])
    run.result.random_return = frame.random_return(lambda: Grid(settings, counts_as_reward=True))
    writer, choice = table.writer(settings.num_envs), Choice(settings.num_policies, settings.window)
    rng = np.random.default_rng([settings.seed, run.step])
    observations = np.stack([env.reset(seed=int(rng.integers(1 << 31)))[0] for env in envs])
    policies = np.array([choice() for _ in range(settings.num_envs)])
    results = np.zeros(settings.num_envs)
    states = set[tuple[int, int, bool, bool]](map(tuple, saved.learner.get("states", ())) if saved else ())
    most_curious = np.full(settings.eval_episodes, settings.num_policies - 1)

    step = run.step
    with run.course(
        lambda: (table, {name: part.state_dict() for name, part in parts.items()} | {"states": list(states)})
    ):
        while run.goes_on(step):
            epsilon = settings.epsilon ** (1.0 + policies / settings.num_policies)
            explores = rng.random(settings.num_envs) < epsilon
            best = family.best(observations, policies)
            actions = np.where(explores, rng.integers(len(ACTIONS), size=len(explores)), best)
            stepped = [env.step(int(action)) for env, action in zip(envs, actions, strict=True)]
            following, rewards, terminated, truncated, infos = zip(*stepped, strict=True)
            writer.append(
                observation=observations,
                action=actions,
                reward=np.float32(rewards),
                novelty=np.float32([info["novelty"] for info in infos]),
                policy=policies,
                terminated=terminated,
                truncated=truncated,
                next_observation=np.stack(following),
            )
            step += settings.num_envs
            observations = np.stack(following)
            for number, env in enumerate(envs):
                results[number] += rewards[number] + (env.state not in states)
                states.add(env.state)
                if terminated[number] or truncated[number]:
                    choice.recent.append((int(policies[number]), float(results[number])))
                    policies[number], results[number] = choice(), 0.0
                    observations[number], _ = env.reset()
            for _ in run.updates_due(step, table):
                loss = loss_of(family, target, table.sample(settings.batch_size).to_torch(), settings)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                with torch.no_grad():
                    slow, fast = list(target.parameters()), list(family.parameters())
                    torch._foreach_lerp_(slow, fast, weight=settings.target_rate)
                run.log(loss=loss.item(), states=len(states))
            if run.evaluation_is_due(step):
                run.evaluated(
                    frame.evaluate(
                        lambda seen: family.best(seen, most_curious),
                        lambda: Grid(settings, counts_as_reward=True),
                        settings.eval_episodes,
                    )
                )
        run.result.facts["states"] = len(states)
    writer.close()
    table.close()
    return run.result


if __name__ == "__main__":
    main()
