"""R2D3: recurrent Q-learning with demonstrations, which a `Mixture` brings into every batch in an exact share.

Paper: Gulcehre et al. 2020 (Making Efficient Use of Demonstrations to Solve Hard Exploration Problems).

    batch     = demonstrations with share rho, the agent's own sequences with share 1 - rho         rho = 1/4
    target_t  = R_t + discount_t * Q_target(s_{t+1}, argmax_a Q(s_{t+1}, a))                         as r2d2.py
    priority  = 0.9 * max_t |delta_t| + 0.1 * mean_t |delta_t|       goes back to the source of each sequence

Environment: MiniGrid DoorKey. The agent sees a part of the grid, must fetch a key, open a door and reach a goal. The
reward is 0 until the goal, and 1 - 0.9 t / T there. The demonstrations come from a planner that searches for the
shortest path from key to door to goal. `--demo-share 0` is R2D2 alone, with the same steps.

The network, the policy and the update are those of r2d2.py, which this example imports.

Deviations from the paper: as r2d2.py; the share is exact over batches, and not drawn at random; the recurrent states of
demonstrations are zeros, which the burn-in replaces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import frame
import gymnasium
import numpy as np
import r2d2
import torch

import relive
from relive.adapters.gymnasium import record

LEFT, RIGHT, FORWARD, PICKUP, TOGGLE = 0, 1, 2, 3, 5
ACTIONS = (LEFT, RIGHT, FORWARD, PICKUP, TOGGLE)  # those that DoorKey needs
AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))  # the cell in front, by direction


@dataclass(frozen=True)
class Settings(r2d2.Settings):
    """The settings of R2D3; those of r2d2.py with other values."""

    KEEPS = {"seed"}  # of the demonstrations
    env: str = "MiniGrid-DoorKey-5x5-v0"
    steps: int = 80_000
    eval_every: int = 4_000
    eval_episodes: int = 20
    hidden: int = 64
    length: int = 16
    burn_in: int = frame.at_least(0, 4)
    gamma: float = frame.within(0, 1, 0.97)
    max_steps: int = 100  # of an episode
    demo_share: float = 0.25
    demo_episodes: int = 50
    epsilon: float = 0.1


class FewActions(gymnasium.ObservationWrapper[np.ndarray, int, Any]):
    """The view of the agent as a vector, and the five actions that the task needs."""

    def __init__(self, settings: Settings) -> None:
        frame.package("minigrid", "minigrid")
        super().__init__(gymnasium.make(settings.env, max_steps=settings.max_steps))
        shape = self.env.observation_space["image"].shape
        self.observation_space = gymnasium.spaces.Box(0.0, 2.0, (int(np.prod(shape)) + 5,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(ACTIONS))

    def observation(self, observation: Any) -> np.ndarray:
        view = np.asarray(observation["image"], np.float32) / np.array([10.0, 5.0, 2.0], np.float32)
        around = np.eye(4, dtype=np.float32)[self.unwrapped.agent_dir]
        return np.concatenate([view.ravel(), around, [self.unwrapped.carrying is not None]]).astype(np.float32)

    def step(self, action: int) -> Any:
        return super().step(ACTIONS[action])


def plan(env: Any) -> int:
    """The next action of a shortest path: to the key, then to the door, then to the goal."""
    grid = env.unwrapped.grid
    cells = {grid.get(x, y).type: (x, y) for x in range(grid.width) for y in range(grid.height) if grid.get(x, y)}
    door = grid.get(*cells["door"]) if "door" in cells else None
    if door is None:  # a room without a door
        target, at_target = cells["goal"], FORWARD
    elif env.unwrapped.carrying is None and not door.is_open:
        target, at_target = cells["key"], PICKUP
    elif not door.is_open:
        target, at_target = cells["door"], TOGGLE
    else:
        target, at_target = cells["goal"], FORWARD
    start = (*map(int, env.unwrapped.agent_pos), int(env.unwrapped.agent_dir))
    first: dict[Any, int] = {start: -1}
    queue = deque([start])
    while queue:
        x, y, direction = place = queue.popleft()
        ahead = (x + AHEAD[direction][0], y + AHEAD[direction][1])
        if ahead == target:
            return ACTIONS.index(first[place] if first[place] >= 0 else at_target)
        reached = {LEFT: (x, y, (direction - 1) % 4), RIGHT: (x, y, (direction + 1) % 4)}
        there = grid.get(*ahead)
        if there is None or (there.type == "door" and there.is_open):
            reached[FORWARD] = (*ahead, direction)
        for action, following in reached.items():
            if following not in first:
                first[following] = first[place] if first[place] >= 0 else action
                queue.append(following)
    raise ValueError("the target cannot be reached")


def demonstrate(settings: Settings, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> relive.Table:
    """A table of demonstrations, with the columns and the windows of the agent's table."""
    table, env = r2d2.make_table(replace(settings, min_size=1), envs), FewActions(settings)
    core = np.zeros((1, 2, settings.hidden), np.float32)
    recorded = record(env, table)
    for number in range(settings.demo_episodes):
        recorded.reset(seed=100_000 * (settings.seed + 1) + number)
        ended = False
        while not ended:
            _, _, terminated, truncated, _ = recorded.step(plan(env), extras={"core": core[0]})
            ended = terminated or truncated
    recorded.close()
    return table


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("r2d3", settings)
    saved = run.load()

    def make_env() -> gymnasium.Env[Any, Any]:
        return FewActions(settings)

    envs = gymnasium.vector.SyncVectorEnv(
        [make_env] * settings.num_envs, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    num_actions = int(envs.single_action_space.n)
    network = r2d2.Network(envs.single_observation_space.shape[0], num_actions, settings)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    parts = {"network": network, "target": deepcopy(network), "optimizer": optimizer}
    table = saved.table if saved else r2d2.make_table(settings, envs)
    if saved:
        for name, part in parts.items():
            part.load_state_dict(saved.learner[name])
    demonstrations = demonstrate(settings, envs)  # equal at every start of the run
    shares = {"agent": 1.0 - settings.demo_share, "demonstrations": settings.demo_share}
    sources = {"agent": table, "demonstrations": demonstrations}
    for name in [name for name, share in shares.items() if share == 0.0]:
        del shares[name], sources[name]
    mixture = relive.Mixture(shares, sources)
    run.result.random_return = frame.random_return(make_env, 20)
    recorded, policy = record(envs, table), r2d2.Policy(network, settings.num_envs)
    rng = np.random.default_rng([settings.seed, run.step])
    observations, _ = recorded.reset(seed=settings.seed + run.step)
    columns = ["observation", "action", "reward", "discount", "core", "mask", "loss_mask"]

    step, num_updates = run.step, saved.learner.get("updates", 0) if saved else 0
    with run.course(
        lambda: (table, {name: part.state_dict() for name, part in parts.items()} | {"updates": num_updates})
    ):
        while run.goes_on(step):
            core = policy.core()
            actions, explores = policy(observations), rng.random(settings.num_envs) < settings.epsilon
            actions = np.where(explores, rng.integers(num_actions, size=settings.num_envs), actions)
            observations, _, terminated, truncated, _ = recorded.step(actions, extras={"core": core})
            policy.forget(terminated | truncated)
            step += settings.num_envs
            for _ in run.updates_due(step, table):
                batch = mixture.sample(settings.batch_size, columns=columns)
                loss, priorities = r2d2.update(parts, batch, settings, beta=0.6)
                mixture.update_priorities(batch.item_keys, priorities + 1e-6, source=batch.source)
                num_updates += 1
                run.log(loss=loss)
                if num_updates % settings.target_every == 0:
                    parts["target"].load_state_dict(network.state_dict())
            if run.evaluation_is_due(step):
                player = r2d2.Policy(network, settings.eval_episodes)
                run.evaluated(frame.evaluate(player, make_env, settings.eval_episodes))
        run.result.facts["demonstrations"] = demonstrations.num_items()
    recorded.close()
    table.close()
    demonstrations.close()
    return run.result


if __name__ == "__main__":
    main()
