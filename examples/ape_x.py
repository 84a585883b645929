"""Ape-X: actor processes with a ladder of exploration rates and own priorities, two shards, one or several learners.

Papers: Horgan et al. 2018 (Distributed Prioritized Experience Replay), Nair et al. 2015 (GORILA).

    epsilon_i = epsilon^(1 + alpha i / (N - 1))               for environment i of all N; epsilon = 0.4, alpha = 7
    initial priority = |R + discount * max_a Q(s', a) - Q(s, a)|      computed by the actor, with its own copy of Q
    loss = mean_i w_i * huber(R + discount * Q_target(s', argmax_a Q(s', a)) - Q(s, a))
           w_i = (N p_i)^-beta / max_j w_j

Data flow: actor i writes to shard i mod 2. The learner draws from both shards by one handle (`relive.fleet.attach`):
the roots of both trees give each shard its share of the batch. Priorities go back to the shard that each key names.
`SamplesPerInsert` keeps the replay ratio: actors wait if they are ahead, and the learner waits if it is ahead.

One process for comparison: `--num-actors 0` acts and learns in turn, with one shard and the same replay ratio.

GORILA: `--learners 2` starts further learner processes. Each draws its own batches and adds its gradient to the shared
parameters without waiting for the others (`torch.multiprocessing` shared tensors, Hogwild).

Deviations from the papers: one-step returns, because the actor's own priority is then known with the step; no dueling
network; Adam. The save of a run contains both shards; the learners beside the first are not saved.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import environments
import frame
import gymnasium
import numpy as np
import torch
from actors import Actors
from torch.nn import functional as F

import relive
import relive.fleet
from relive.adapters.gymnasium import record


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of Ape-X."""

    KEEPS = {"seed"}
    env: str = "LunarLander-v3"
    steps: int = 240_000
    eval_every: int = 10_000
    eval_episodes: int = 10
    hidden: int = 128
    num_actors: int = frame.at_least(0, 2)  # 0: one process acts and learns in turn
    envs_per_actor: int = 4
    learners: int = 1  # above 1: GORILA
    capacity: int = 100_000  # of each shard
    min_size: int = 1_000
    batch_size: int = 128
    samples_per_insert: float = 16.0
    learning_rate: float = 5e-4
    gamma: float = frame.within(0, 1, 0.99)
    priority_exponent: float = 0.6
    beta: float = 0.4
    target_every: int = 100  # updates
    epsilon: float = 0.4
    alpha: float = 7.0


def make_network(settings: Settings) -> torch.nn.Sequential:
    """The Q-network for the environment."""
    env = environments.make_env(settings.env)
    num_actions = environments.num_actions(env.action_space, settings.env)
    body = environments.make_body(env.observation_space, settings.hidden, settings.hidden)
    return torch.nn.Sequential(*body, torch.nn.Linear(settings.hidden, num_actions))


def td_error(
    q: torch.nn.Module, target: torch.nn.Module, rows: dict[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The chosen values and their double-Q targets [B]."""
    with torch.no_grad():
        best = q(rows["next_observation"]).argmax(1, keepdim=True)
        value = target(rows["next_observation"]).gather(1, best)[:, 0]
        wanted = rows["reward"] + rows["discount"] * value
    return q(rows["observation"]).gather(1, rows["action"][:, None])[:, 0], wanted


class Player:
    """Acts in environments, each with its own exploration rate, and records their steps with own priorities."""

    def __init__(
        self,
        seed: list[int],
        number: int,
        settings: Settings,
        table: relive.fleet.ShardedTable,
        shared: torch.nn.Module,
    ) -> None:
        self.shared, self.network = shared, deepcopy(shared)
        self.rng = np.random.default_rng(seed)
        num_envs = settings.envs_per_actor * max(1, settings.num_actors)
        rungs = number * settings.envs_per_actor + np.arange(settings.envs_per_actor)
        self.epsilons = settings.epsilon ** (1.0 + settings.alpha * rungs / max(1, num_envs - 1))
        self.envs = gymnasium.vector.SyncVectorEnv(
            [lambda: environments.make_env(settings.env)] * settings.envs_per_actor
        )
        self.gamma, self.num_steps = settings.gamma, 0
        self.recorded = record(self.envs, table, priority=self.own_priorities, timeout_s=600.0)
        self.observations, _ = self.recorded.reset(seed=int(self.rng.integers(1 << 31)))

    def own_priorities(self, columns: dict[str, np.ndarray]) -> np.ndarray:
        """The absolute TD errors of finished steps, by this player's copy of Q."""
        rows = {name: torch.as_tensor(column) for name, column in columns.items()}
        rows["discount"] = self.gamma * (1.0 - rows["terminated"].float())
        with torch.no_grad():
            value, wanted = td_error(self.network, self.network, rows)
        return (wanted - value).abs().numpy() + 1e-6

    def step(self) -> None:
        """One step of every environment. Waits while the actors are ahead of the learner."""
        if self.num_steps % 50 == 0:  # a copy may mix two updates: one more or less does not matter to an actor
            self.network.load_state_dict(self.shared.state_dict())
        with torch.no_grad():
            actions = self.network(torch.as_tensor(self.observations)).argmax(1).numpy()
        num_actions = self.envs.single_action_space.n
        random = self.rng.integers(num_actions, size=len(actions))
        explores = self.rng.random(len(actions)) < self.epsilons
        self.observations, *_ = self.recorded.step(np.where(explores, random, actions))
        self.num_steps += 1


def act(number: int, settings: Settings, names: list[str], shared: torch.nn.Module) -> None:
    """The body of an actor process. Its shard follows from its number."""
    with relive.fleet.attach(names, local=number % len(names)) as table:
        player = Player([settings.seed, number, os.getpid()], number, settings, table, shared)
        while True:
            player.step()


class Learner:
    """Updates parameters that all processes share."""

    def __init__(self, settings: Settings, table: relive.fleet.ShardedTable, shared: torch.nn.Module) -> None:
        self.settings, self.table, self.q = settings, table, shared
        self.target = deepcopy(shared)
        self.optimizer = torch.optim.Adam(shared.parameters(), settings.learning_rate)
        self.num_updates = 0

    def update(self, timeout_s: float) -> float:
        """Draws a batch from all shards and makes one step. Returns the loss."""
        batch = self.table.sample(self.settings.batch_size, timeout_s=timeout_s)
        value, wanted = td_error(self.q, self.target, batch.to_torch())
        weights = torch.as_tensor(batch.weights(beta=self.settings.beta)).float()
        loss = (weights * F.smooth_l1_loss(value, wanted, reduction="none")).mean()
        gradients = torch.autograd.grad(loss, list(self.q.parameters()))
        for parameter, gradient in zip(self.q.parameters(), gradients, strict=True):
            parameter.grad = gradient  # of this process; the parameters alone are shared
        torch.nn.utils.clip_grad_norm_(self.q.parameters(), 10.0)
        self.optimizer.step()
        self.table.update_priorities(batch.item_keys, (wanted - value.detach()).abs().numpy() + 1e-6)
        self.num_updates += 1
        if self.num_updates % self.settings.target_every == 0:
            self.target.load_state_dict(self.q.state_dict())
        return loss.item()

    def state(self) -> dict[str, Any]:
        """Everything that a continued run needs."""
        parts = {name: getattr(self, name).state_dict() for name in ("q", "target", "optimizer")}
        return parts | {"num_updates": self.num_updates}


def learn(number: int, settings: Settings, names: list[str], shared: torch.nn.Module) -> None:
    """The body of a further learner process."""
    with relive.fleet.attach(names) as table:
        learner = Learner(settings, table, shared)
        while True:
            learner.update(timeout_s=600.0)


def make_owners(settings: Settings, run: frame.Run) -> tuple[list[str], list[relive.fleet.ShardOwner]]:
    """Two shards in shared memory, or one without actor processes. Their owner is this process."""
    env = environments.make_env(settings.env)
    spec = relive.StepSpec.from_spaces(env.observation_space, env.action_space)
    index = relive.Index(
        relive.Transitions(gamma=settings.gamma),
        relive.Prioritized(settings.priority_exponent, initial="given"),
        relive.SamplesPerInsert(settings.samples_per_insert, min_size=settings.min_size),
    )
    names = [f"ape-x-{os.getpid()}-{number}" for number in range(2 if settings.num_actors else 1)]
    whole, seed = (spec, settings.capacity, index), settings.seed
    configs = [relive.TableConfig(*whole, relive.SharedMemory(name), seed=seed) for name in names]
    return names, [relive.fleet.ShardOwner(number, config, load=run.shards) for number, config in enumerate(configs)]


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("ape_x", settings)
    saved = run.load()
    try:
        names, owners = make_owners(settings, run)
        table = relive.fleet.attach(names)
    except relive.fleet.OtherShards as error:  # `--resume` with actors continues a run with actors
        raise SystemExit(f"{run.folder}: {error}") from None
    shared = make_network(settings).share_memory()

    @torch.no_grad()
    def greedy(observations: np.ndarray) -> np.ndarray:
        return shared(torch.as_tensor(observations)).argmax(1).numpy()

    def evaluate() -> None:
        if run.evaluation_is_due(step):
            run.evaluated(frame.evaluate(greedy, lambda: environments.make_env(settings.env), settings.eval_episodes))

    run.result.random_return = frame.random_return(lambda: environments.make_env(settings.env))
    with table:
        learner = Learner(settings, table, shared)
        if saved:
            learner.num_updates = saved.learner.pop("num_updates", run.result.facts.get("updates", 0))
            for name, state in saved.learner.items():
                getattr(learner, name).load_state_dict(state)
        before = run.step - table.stats().appended
        player = None if settings.num_actors else Player([settings.seed, run.step], 0, settings, table, shared)
        with (
            Actors(act, settings.num_actors, (settings, names, shared)) as actors,
            Actors(learn, settings.learners - 1, (settings, names, shared)) as learners,
            run.course(lambda: (table, learner.state())),
        ):
            while run.goes_on(step := before + table.stats().appended):
                actors.watch()
                learners.watch()
                try:
                    run.log(loss=learner.update(timeout_s=0.0 if player else 1.0))
                except relive.DeadlineExceeded:  # too few steps for another batch
                    if player:
                        player.step()
                    continue
                evaluate()
            evaluate()  # the actors may pass the last step
            sizes = [shard.num_steps for shard in table.stats().shards or ()]
            run.result.facts |= {"updates": learner.num_updates, "restarts": actors.num_restarts}
            run.result.facts |= {f"steps_of_shard_{number}": num for number, num in enumerate(sizes)}
    for owner in owners:
        owner.close()
    return run.result


if __name__ == "__main__":
    main()
