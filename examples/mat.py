"""Multi-agent transformer: agents act one after another, trained by ranks of torch.distributed over shards.

Paper: Wen et al. 2022 (Multi-agent reinforcement learning is a sequence modeling problem).

    z         = encoder(o_1 .. o_N),  V_i = value(z_i)
    a_i       ~ decoder(z, a_1 .. a_i-1)
    A_t,i     = sum_k (gamma lambda)^k delta_t+k,i                delta: r + gamma V' - V of agent i
    loss      = -mean min(ratio A, clip(ratio, 1 - eps, 1 + eps) A) + c_v (V - target)^2 - c_e entropy

Every rank plays environments of its own and writes them to its own shard. All ranks draw from all shards; each episode
is drawn once, by one of them, and a draw waits for the episodes of the slower rank.

Deviations from the paper: the decoder adds the encoder's output to the earlier actions instead of using it as the query
alone; no normalisation of values; rewards are divided by ten. `--independent` masks all other agents, which makes the
same network independent PPO with shared parameters. The curve shows the returns of the sampled actions.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import frame
import numpy as np
import torch
from ranks import END, UPDATE, run_ranks, same_order
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import relive
import relive.fleet

AGENTS, INPUTS, ACTIONS, LENGTH = 3, 18, 5, 25  # of simple_spread
REWARD_SCALE = 0.1


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of the multi-agent transformer."""

    KEEPS = {"seed"}
    steps: int = 200_000  # steps of all environments of all ranks
    eval_every: int = 4_000
    ranks: int = 2
    num_envs: int = 16  # of each rank
    independent: bool = False  # True: no agent sees another one's observation or action
    epochs: int = 8  # updates with each batch
    width: int = 64
    heads: int = 2
    learning_rate: float = 1e-3
    gamma: float = frame.within(0, 1, 0.99)
    trace: float = 0.95  # lambda
    clip: float = 0.2
    entropy: float = 0.01
    value_weight: float = 0.5


class Policy(nn.Module):
    """Logits [B, N, actions] and values [B, N] of observations [B, N, S] and actions [B, N]."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        width = settings.width
        layer = width, settings.heads, 2 * width, 0.0, "gelu"
        self.observe, self.agents = nn.Linear(INPUTS, width), nn.Embedding(AGENTS, width)
        self.encoder = nn.TransformerEncoderLayer(*layer, batch_first=True)
        self.actions, self.decoder = (
            nn.Embedding(ACTIONS + 1, width),
            nn.TransformerDecoderLayer(*layer, batch_first=True),
        )
        self.value, self.head = nn.Linear(width, 1), nn.Linear(width, ACTIONS)
        alone = ~torch.eye(AGENTS, dtype=torch.bool)  # True: is masked
        later = torch.ones(AGENTS, AGENTS, dtype=torch.bool).triu(1)
        self.hidden = alone if settings.independent else torch.zeros_like(alone)
        self.hidden_actions = alone if settings.independent else later
        self.is_independent = settings.independent

    def forward(self, observations: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self.encoder(self.observe(observations) + self.agents.weight, self.hidden)
        given = torch.full_like(actions, ACTIONS)
        if not self.is_independent:
            given[:, 1:] = actions[:, :-1]
        decided = self.decoder(self.actions(given) + seen, seen, self.hidden_actions, self.hidden)
        return self.head(decided), self.value(seen)[..., 0]

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Samples the actions [B, N] of one agent after the other, with their log probabilities."""
        seen, actions = torch.as_tensor(observations), torch.zeros(len(observations), AGENTS, dtype=torch.int64)
        for agent in range(AGENTS):
            scores = self(seen, actions)[0].log_softmax(-1)
            actions[:, agent] = torch.multinomial(scores[:, agent].exp(), 1)[:, 0]
        return actions.numpy(), scores.gather(-1, actions[..., None])[..., 0].numpy()


class Learner:
    """A rank's copy of the policy, and the updates with one batch."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.policy = settings, Policy(settings)
        self.model = DistributedDataParallel(self.policy)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), settings.learning_rate)

    def advantages(self, rows: Any, values: torch.Tensor) -> torch.Tensor:
        """Generalised advantages [B, T, N] of episodes that end by their time limit. values: [B, T + 1, N]."""
        gamma = self.settings.gamma
        deltas = REWARD_SCALE * rows["reward"][:, :LENGTH] + gamma * values[:, 1:] - values[:, :-1]
        found, running = torch.zeros_like(deltas), torch.zeros_like(deltas[:, 0])
        for t in reversed(range(LENGTH)):
            running = deltas[:, t] + gamma * self.settings.trace * running
            found[:, t] = running
        return found

    def update(self, batch: relive.Batch) -> float:
        """Some epochs with a batch of whole episodes. Gradients are means over all ranks."""
        settings, rows = self.settings, batch.to_torch()
        states, actions = rows["observation"], rows["action"][:, :LENGTH].flatten(0, 1)
        with torch.no_grad():
            anything = torch.zeros(states.shape[:-1], dtype=torch.int64).flatten(0, 1)
            values = self.policy(states.flatten(0, 1), anything)[1].unflatten(0, states.shape[:2])
            advantage = self.advantages(rows, values)
            target = (advantage + values[:, :-1]).flatten(0, 1)
            gain = ((advantage - advantage.mean()) / (advantage.std() + 1e-6)).flatten(0, 1)
        states, then = states[:, :LENGTH].flatten(0, 1), rows["log_prob"][:, :LENGTH].flatten(0, 1)
        for _ in range(settings.epochs):
            scores, value = self.model(states, actions)
            scores = scores.log_softmax(-1)
            ratio = (scores.gather(-1, actions[..., None])[..., 0] - then).exp()
            clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
            loss = -torch.minimum(ratio * gain, clipped * gain).mean()
            loss = loss + settings.value_weight * (value - target).square().mean()
            loss = loss + settings.entropy * (scores * scores.exp()).sum(-1).mean()
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
            self.optimizer.step()
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """Everything that a continued run needs; equal on all ranks."""
        return {"policy": self.policy.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        """Takes a state of `state()`."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])


class Envs:
    """Environments of one rank side by side. Their episodes have equal lengths."""

    def __init__(self, count: int, seed: int) -> None:
        spread = frame.package("mpe2.simple_spread_v3", "mpe2")
        self.envs = [spread.parallel_env(N=AGENTS, max_cycles=LENGTH) for _ in range(count)]
        self.seeds = np.random.default_rng(seed)

    def play(self, act: Any, writer: relive.Writer | None = None) -> float:
        """Plays an episode in each environment, and writes the steps. Returns the mean return over agents."""
        observations = np.stack(
            [list(env.reset(seed=int(self.seeds.integers(1 << 31)))[0].values()) for env in self.envs]
        )
        total = 0.0
        for t in range(LENGTH):
            actions, log_probs = act(observations)
            steps = [
                env.step(dict(zip(env.agents, row.tolist(), strict=True)))
                for env, row in zip(self.envs, actions, strict=True)
            ]
            following = np.stack([list(step[0].values()) for step in steps], dtype=np.float32)
            rewards = np.array([list(step[1].values()) for step in steps], np.float32)
            if writer is not None:
                writer.append(observation=observations, action=actions, log_prob=log_probs, reward=rewards,
                              next_observation=following, truncated=t == LENGTH - 1)  # fmt: skip
            observations, total = following, total + float(rewards.mean())
        return total


def own_shards(settings: Settings, save: Path | None, stack: ExitStack) -> list[str]:
    """Owns a shard for each rank. Returns the names of the shards."""
    row = {"action": "int64", "log_prob": "float32", "reward": "float32"}
    spec = {name: relive.ArraySpec((AGENTS,), dtype) for name, dtype in row.items()}
    spec["observation"] = relive.ArraySpec((AGENTS, INPUTS), "float32", kind="state")
    episodes = relive.Episodes(LENGTH, bootstrap=1)
    index = relive.Index(episodes, relive.Fifo(), max_times_sampled=1)
    names = [f"mat-{os.getpid()}-{number}" for number in range(settings.ranks)]
    step, capacity, lanes = relive.StepSpec(spec), 40 * LENGTH * settings.num_envs, 2 * settings.num_envs
    for number, name in enumerate(names):
        storage = relive.SharedMemory(name)
        config = relive.TableConfig(step, capacity, index, storage, max_lanes=lanes, seed=settings.seed)
        stack.enter_context(relive.fleet.ShardOwner(number, config, load=save))
    return names


def learn(rank: int, settings: Settings, names: list[str]) -> None:
    """The work of one rank."""
    torch.manual_seed(settings.seed)
    run, learner = frame.Run("mat", settings, locks=False), Learner(settings)
    if settings.resume and (saved := run.load()) is not None:
        learner.load(saved.learner)
    torch.manual_seed(1_000 * settings.seed + 10 * run.step + rank)
    envs = Envs(settings.num_envs, 1_000 * settings.seed + 10 * run.step + rank)
    recent: deque[float] = deque(maxlen=5)

    with relive.fleet.attach(names, local=rank, timeout_s=60.0) as table, table.writer(settings.num_envs) as writer:

        def iterate() -> float:
            envs.play(learner.policy.act, writer)
            batch = table.sample(settings.num_envs)
            recent.append(float(batch["reward"].sum(1).mean()))
            return learner.update(batch)

        if rank != 0:
            while same_order(END) == UPDATE:
                iterate()
            return

        step, everything = run.step, np.random.default_rng(settings.seed)
        run.result.random_return = envs.play(lambda seen: (everything.integers(ACTIONS, size=seen.shape[:2]), None))
        with run.course(lambda: (table, learner.state())):
            while run.goes_on(step):
                same_order(UPDATE)
                loss = iterate()
                step += settings.ranks * settings.num_envs * LENGTH
                run.log(loss=loss)
                if run.evaluation_is_due(step):
                    run.evaluated(float(np.mean(recent)))
        same_order(END)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    frame.package("mpe2.simple_spread_v3", "mpe2")
    run = frame.Run("mat", settings)
    run.load()
    with ExitStack() as stack:
        names = own_shards(settings, run.shards, stack)
        run_ranks(settings.ranks, learn, settings, names, run=run)
    return frame.Result(**json.loads((run.folder / "result.json").read_text()))


if __name__ == "__main__":
    main()
