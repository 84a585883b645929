"""R2D2: recurrent Q-learning from stored sequences, with burn-in and priorities of sequences.

Paper: Kapturowski et al. 2019 (Recurrent Experience Replay in Distributed Reinforcement Learning).

    h         = LSTM state that the actor had at the first row of the window (a column of kind "start")
    burn-in   : both networks run over the first `burn_in` rows without a loss, to refresh h
    target_t  = R_t + discount_t * Q_target(s_{t+1}, argmax_a Q(s_{t+1}, a))
    priority  = eta * max_t |delta_t| + (1 - eta) * mean_t |delta_t|          eta = 0.9: relive.sequence_priority

Two partially observed environments:

- repeat: RepeatPrevious of POPGym (Morad et al. 2023), written again here. Each step shows one of four suits. The
  action must name the suit of `--lag` steps before. A policy without memory cannot be above -0.5 in the mean.
- cartpole: StatelessCartPole of POPGym: CartPole-v1 that shows positions and no velocities.

`--no-memory` resets the LSTM at every step: the same network without memory. `--no-stored-state` begins each window
with zeros, as the paper's ablation does.

Deviations from the paper: one-step targets; no rescaling of values; the actors are a vector of environments in the
process of the learner, with one exploration rate.
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
from relive.adapters.gymnasium import record

State = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of R2D2."""

    env: str = frame.one_of("repeat", "cartpole")
    lag: int = frame.within(0, 31, 2)  # of repeat
    steps: int = 30_000
    eval_every: int = 2_000
    hidden: int = 32
    num_envs: int = 8
    length: int = frame.at_least(2, 12)
    burn_in: int = frame.at_least(0, 4)
    capacity: int = 50_000
    min_size: int = 40  # sequences before the first update
    batch_size: int = 32
    steps_per_update: int = 16
    learning_rate: float = 3e-3
    gamma: float = frame.within(0, 1, 0.9)
    target_every: int = 100  # updates
    epsilon: float = 0.1
    priority_exponent: float = 0.9
    memory: bool = True
    stored_state: bool = True


class RepeatPrevious(gymnasium.Env[np.ndarray, int]):
    """Name the suit that was shown `lag` steps before. An episode has 32 steps and a return of -1 to 1."""

    def __init__(self, lag: int, num_steps: int = 32) -> None:
        self.lag, self.num_steps = lag, num_steps
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.suits, self.t = self.np_random.integers(4, size=self.num_steps + 1), 0
        return np.eye(4, dtype=np.float32)[self.suits[0]], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        counts = self.t >= self.lag
        reward = (1.0 if action == self.suits[self.t - self.lag] else -1.0) / (self.num_steps - self.lag)
        self.t += 1
        return np.eye(4, dtype=np.float32)[self.suits[self.t]], reward * counts, self.t == self.num_steps, False, {}


def make_env(settings: Settings) -> gymnasium.Env[Any, Any]:
    """One partially observed environment."""
    if settings.env == "repeat":
        return RepeatPrevious(settings.lag)
    env = gymnasium.make("CartPole-v1")
    positions = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda seen: seen[[0, 2]], positions)


class Network(torch.nn.Module):
    """LSTM and a layer of Q-values."""

    def __init__(self, num_inputs: int, num_actions: int, settings: Settings) -> None:
        super().__init__()
        self.hidden, self.memory = settings.hidden, settings.memory
        self.lstm = torch.nn.LSTM(num_inputs, settings.hidden, batch_first=True)
        self.values = frame.mlp(settings.hidden, settings.hidden, num_actions)

    def zeros(self, num: int) -> State:
        """The state at the beginning of an episode."""
        return torch.zeros(1, num, self.hidden), torch.zeros(1, num, self.hidden)

    def forward(self, observations: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Returns values [B, T, A] and the state after the last row."""
        if not self.memory:
            rows = observations.flatten(0, 1)[:, None]
            outputs, _ = self.lstm(rows, self.zeros(len(rows)))
            return self.values(outputs[:, 0].unflatten(0, observations.shape[:2])), state
        outputs, state = self.lstm(observations, state)
        return self.values(outputs), state

    @torch.no_grad()
    def warm(self, observations: torch.Tensor, mask: torch.Tensor, state: State) -> State:
        """The state after the burn-in rows. Rows of padding leave the state as it is."""
        for t in range(observations.shape[1]):
            _, after = self(observations[:, t : t + 1], state)
            is_step = mask[:, t][None, :, None]
            state = (torch.where(is_step, after[0], state[0]), torch.where(is_step, after[1], state[1]))
        return state


class Policy:
    """Acts in several environments, and carries their states."""

    def __init__(self, network: Network, num: int) -> None:
        self.network, self.state = network, network.zeros(num)

    def core(self) -> np.ndarray:
        """The states [N, 2, H] before the next action."""
        return torch.cat(self.state).transpose(0, 1).numpy()

    @torch.no_grad()
    def __call__(self, observations: np.ndarray) -> np.ndarray:
        values, self.state = self.network(torch.as_tensor(observations)[:, None], self.state)
        return values[:, 0].argmax(-1).numpy()

    def forget(self, ended: np.ndarray) -> None:
        """Begins with zeros where an episode ended."""
        going_on = torch.as_tensor(~ended)[None, :, None]
        self.state = (self.state[0] * going_on, self.state[1] * going_on)


def update(parts: dict[str, Any], batch: relive.Batch, settings: Settings, beta: float) -> tuple[float, np.ndarray]:
    """One step of the optimizer. Returns the loss and the priorities of the sequences."""
    rows, burn_in = batch.to_torch(), settings.burn_in
    observations, mask = rows["observation"], rows["mask"]
    stored = rows["core"].transpose(0, 1).contiguous()
    if not settings.stored_state:
        stored = torch.zeros_like(stored)
    values, targets = (
        network(observations[:, burn_in:], network.warm(observations[:, :burn_in], mask, (stored[:1], stored[1:])))[0]
        for network in (parts["network"], parts["target"])
    )
    action, reward, discount, learns = (
        rows[name][:, burn_in:-1] for name in ("action", "reward", "discount", "loss_mask")
    )
    with torch.no_grad():
        best = values[:, 1:].argmax(-1, keepdim=True)
        target = reward + discount * targets[:, 1:].gather(-1, best)[..., 0]
    error = (target - values[:, :-1].gather(-1, action[..., None])[..., 0]) * learns
    weights = torch.as_tensor(batch.weights(beta=beta)).float()
    loss = (weights[:, None] * error**2).sum() / learns.sum()
    parts["optimizer"].zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parts["network"].parameters(), 10.0)
    parts["optimizer"].step()
    return loss.item(), relive.sequence_priority(error.detach().abs().numpy(), learns.numpy())


def make_table(settings: Settings, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> relive.Table:
    """One table: overlapping sequences, drawn by priority."""
    spec = relive.StepSpec.from_spaces(
        envs.single_observation_space,
        envs.single_action_space,
        extras={"core": relive.ArraySpec((2, settings.hidden), "float32", kind="start")},
    )
    items = relive.Sequences(
        settings.length,
        burn_in=settings.burn_in,
        bootstrap=1,
        period=settings.length // 2,
        at_end="shift",
        gamma=settings.gamma,
    )
    index = relive.Index(items, relive.Prioritized(settings.priority_exponent), relive.MinSize(settings.min_size))
    return relive.Table(spec, settings.capacity, index, seed=settings.seed)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("r2d2", settings)
    saved = run.load()
    envs = gymnasium.vector.SyncVectorEnv(
        [lambda: make_env(settings)] * settings.num_envs, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    num_actions = int(envs.single_action_space.n)
    network = Network(envs.single_observation_space.shape[0], num_actions, settings)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    parts = {"network": network, "target": deepcopy(network), "optimizer": optimizer}
    table = saved.table if saved else make_table(settings, envs)
    if saved:
        for name, part in parts.items():
            part.load_state_dict(saved.learner[name])
    run.result.random_return = frame.random_return(lambda: make_env(settings))
    recorded, policy = record(envs, table), Policy(network, settings.num_envs)
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
                batch = table.sample(settings.batch_size, columns=columns)
                loss, priorities = update(parts, batch, settings, beta=0.6)
                table.update_priorities(batch.item_keys, priorities + 1e-6)
                num_updates += 1
                run.log(loss=loss)
                if num_updates % settings.target_every == 0:
                    parts["target"].load_state_dict(network.state_dict())
            if run.evaluation_is_due(step):
                player = Policy(network, settings.eval_episodes)
                run.evaluated(frame.evaluate(player, lambda: make_env(settings), settings.eval_episodes))
    recorded.close()
    table.close()
    return run.result


if __name__ == "__main__":
    main()
