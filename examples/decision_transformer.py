"""Decision transformer: ranks of torch.distributed learn from the shards of one table.

Paper: Chen et al. 2021 (Decision Transformer: reinforcement learning via sequence modeling).

    tokens    = R_t, s_t, a_t, R_t+1, s_t+1, ...      R_t = sum_{k >= t} r_k, the return-to-go
    a_t       = head(transformer(tokens up to s_t))
    loss      = mean over the mask of cross_entropy(a_t) (discrete) or (a_t - tanh(output))^2 (continuous)
    P(window) ~ ((R - low) / (best - low))^return_exponent      R: the episode's return; low: min(0, worst return)

The main process owns one shard for each rank. Every rank attaches to all shards and draws batches that no other rank
draws. The data are episodes of linear controllers on CartPole, or the table of a training run (`--data RUN/save`).
Continuous actions are in [-1, 1] for the model, whatever the units of the table and of the environment are.

Deviations from the paper: windows of good episodes are drawn more often (exponent 0 restores the paper); windows are
padded on the right, where a causal model does not see the padding. `steps` counts updates.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import episodes
import frame
import gymnasium
import numpy as np
import torch
from ranks import END, STATE, UPDATE, run_ranks, same_order
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from transformer import CausalTransformer

import relive
import relive.fleet


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of the decision transformer."""

    KEEPS = {"seed", "data"}
    env: str = "CartPole-v1"
    steps: int = 1_500  # updates
    eval_every: int = 250  # updates
    eval_episodes: int = 10
    data: str = ""  # the folder of a saved table; empty: episodes of linear controllers
    episodes: int = 400  # of linear controllers
    ranks: int = 2
    parallel: str = frame.one_of("ddp", "fsdp")
    window: int = 20
    batch_size: int = 32  # windows of each rank
    width: int = 64
    layers: int = 2
    heads: int = 2
    learning_rate: float = 1e-3
    return_exponent: float = 1.0  # 0: all windows are equally likely


@dataclass(frozen=True)
class Task:
    """The facts of the environment and of the data that a rank needs."""

    inputs: int
    actions: int
    is_discrete: bool
    longest: int
    mean: np.ndarray
    scale: np.ndarray
    best_return: float
    largest: float  # the largest absolute return
    best_tenth: float


class Transformer(nn.Module):
    """A causal transformer over returns, states and actions. The output for an action is read at its state's token."""

    def __init__(self, settings: Settings, task: Task) -> None:
        super().__init__()
        width = settings.width
        self.returns, self.states = nn.Linear(1, width), nn.Linear(task.inputs, width)
        self.actions, self.times = nn.Linear(task.actions, width), nn.Embedding(task.longest + 1, width)
        self.blocks = CausalTransformer(width, settings.layers, settings.heads, dropout=0.1)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, task.actions)

    def forward(self, returns: Any, states: Any, actions: Any, times: Any) -> torch.Tensor:
        """returns [B, T], states [B, T, S], actions [B, T, A], times [B, T]; the output is [B, T, A]."""
        kinds = self.returns(returns[..., None]), self.states(states), self.actions(actions)
        tokens = torch.stack([kind + self.times(times) for kind in kinds], 2).flatten(1, 2)
        return self.head(self.blocks(self.norm(tokens))[:, 1::3])


class Learner:
    """A rank's part of the model, the optimizer, and one update."""

    def __init__(self, settings: Settings, task: Task) -> None:
        self.task = task
        self.judge = Transformer(settings, task).eval()  # for evaluations on one rank
        model = Transformer(settings, task)
        self.model = fully_shard(model) if settings.parallel == "fsdp" else DistributedDataParallel(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), settings.learning_rate, weight_decay=1e-4)

    def output(self, model: nn.Module, returns: Any, states: Any, actions: Any, times: Any) -> torch.Tensor:
        """The model's output for values as the environment has them."""
        task = self.task
        seen = (torch.as_tensor(states) - torch.as_tensor(task.mean)) / torch.as_tensor(task.scale)
        taken = torch.as_tensor(actions)
        taken = F.one_hot(taken.long(), task.actions) if task.is_discrete else taken
        scaled = torch.as_tensor(returns).float() / task.largest
        return model(scaled, seen.float(), taken.float(), torch.as_tensor(times).long())

    def update(self, batch: dict[str, torch.Tensor]) -> float:
        """One step of the optimizer. Gradients are means over all ranks."""
        inputs = (batch[name] for name in ("return_to_go", "observation", "action", "episode_step"))
        output, wanted = self.output(self.model, *inputs)[batch["mask"]], batch["action"][batch["mask"]]
        loss = F.cross_entropy(output, wanted) if self.task.is_discrete else F.mse_loss(output.tanh(), wanted)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
        self.optimizer.step()
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """The whole state, on rank 0. All ranks call it together."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=options)
        return {"model": model, "optimizer": optimizer}

    def load(self, state: dict[str, Any]) -> None:
        """Takes a state of `state()`, of any number of ranks."""
        states = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **states, options=StateDictOptions(full_state_dict=True))

    @torch.no_grad()
    def play(self, settings: Settings, model: dict[str, Any]) -> float:
        """The mean return of episodes whose first return-to-go is the best return of the data."""
        self.judge.load_state_dict(model)
        envs = gymnasium.vector.SyncVectorEnv([partial(episodes.make_env, settings.env)] * settings.eval_episodes)
        state, _ = envs.reset(seed=10_000)
        is_open, total = np.ones(len(state), bool), np.zeros(len(state))
        wanted, states, actions = [np.full(len(state), self.task.best_return)], [state], []
        unknown = np.zeros_like(envs.action_space.sample())
        while is_open.any():
            rows = [column[-settings.window :] for column in (wanted, states, [*actions, unknown])]
            times = np.arange(len(states) - len(rows[0]), len(states))[None].repeat(len(state), 0)
            output = self.output(self.judge, *(np.stack(column, 1) for column in rows), times)[:, -1]
            actions.append((output.argmax(-1) if self.task.is_discrete else output.tanh()).numpy())
            state, reward, terminated, truncated, _ = envs.step(actions[-1])
            total += reward * is_open
            is_open &= ~(terminated | truncated)
            states.append(state)
            wanted.append(wanted[-1] - reward)
        envs.close()
        return float(total.mean())


def make_shards(settings: Settings, save: Path | None, stack: ExitStack) -> tuple[list[str], Task]:
    """Owns a shard for each rank, from their save or with the episodes in turn. Returns the shards' names."""
    env = episodes.make_env(settings.env)
    data = list(episodes.saved(settings.data, env) if settings.data else
                episodes.controlled(settings.env, settings.episodes, settings.seed))  # fmt: skip
    returns = np.array([episode.reward.sum() for episode in data])
    rows = np.concatenate([episode.observation for episode in data])
    is_discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
    num_actions = int(env.action_space.n) if is_discrete else env.action_space.shape[0]
    mean, scale = rows.mean(0).astype(np.float32), rows.std(0).astype(np.float32) + 1e-3
    best_tenth = np.sort(returns)[-max(len(returns) // 10, 1) :].mean()
    low, best, longest = min(returns.min(), 0.0), returns.max(), env.spec.max_episode_steps
    figures = map(float, (best, max(abs(best), abs(low), 1e-6), best_tenth))
    task = Task(rows.shape[1], num_actions, is_discrete, longest, mean, scale, *figures)

    extras = {"return_to_go": relive.ArraySpec((), "float32")}
    spec = relive.StepSpec.from_spaces(env.observation_space, env.action_space, extras=extras, float64_as="float32")
    sampler = relive.Prioritized(settings.return_exponent, initial="given")
    index = relive.Index(relive.Sequences(settings.window, period=1), sampler)
    names = [f"dt-{os.getpid()}-{number}" for number in range(settings.ranks)]
    for number, name in enumerate(names):
        config = relive.TableConfig(spec, len(rows), index, relive.SharedMemory(name), max_lanes=1, seed=settings.seed)
        stack.enter_context(relive.fleet.ShardOwner(number, config, epoch=0, load=save))
    if save:
        return names, task
    table = stack.enter_context(relive.fleet.attach(names))
    writers = [stack.enter_context(table.writer(shard=number)) for number in range(len(names))]
    for number, (episode, total) in enumerate(zip(data, returns, strict=True)):
        columns = {name: getattr(episode, name) for name in ("observation", "action", "reward", "return_to_go")}
        ends = {"terminated": episode.terminated, "truncated": not episode.terminated}
        priority = np.full(len(episode.reward), max((total - low) / max(best - low, 1e-6), 1e-3))
        writers[number % len(writers)].extend(**columns, **ends, priority=priority)
    return names, task


def learn(rank: int, settings: Settings, names: list[str], task: Task) -> None:
    """The work of one rank."""
    torch.manual_seed(settings.seed)
    run = frame.Run("decision_transformer", settings, locks=False)
    learner = Learner(settings, task)
    columns = ["return_to_go", "observation", "action", "episode_step", "mask"]
    with relive.fleet.attach(names, local=rank, timeout_s=30.0) as table:
        loader = relive.loader(table, settings.batch_size, rank, settings.ranks, columns=columns)
        if settings.resume and (saved := run.load()) is not None:
            learner.load(saved.learner["learner"])
            loader.load_state_dict(saved.learner["loader"])
        batches = iter(loader)
        if rank != 0:
            while (order := same_order(END)) != END:
                learner.update(next(batches)) if order == UPDATE else learner.state()
            return

        def state() -> dict[str, Any]:
            same_order(STATE)
            return {"learner": learner.state(), "loader": loader.state_dict()}

        step = run.step
        run.result.random_return = frame.random_return(partial(episodes.make_env, settings.env))
        with run.course(lambda: (table, state())):
            while run.goes_on(step):
                same_order(UPDATE)
                loss = learner.update(next(batches))
                step += 1
                run.log(loss=loss)
                if run.evaluation_is_due(step):
                    run.evaluated(learner.play(settings, state()["learner"]["model"]))
            run.result.facts = {"best_tenth": task.best_tenth, "best_return": task.best_return}
        same_order(END)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("decision_transformer", settings)
    run.load(data=settings.data)
    with ExitStack() as stack:
        names, task = make_shards(settings, run.shards, stack)
        run_ranks(settings.ranks, learn, settings, names, task, run=run)
    return frame.Result(**json.loads((run.folder / "result.json").read_text()))


if __name__ == "__main__":
    main()
