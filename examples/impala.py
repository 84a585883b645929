"""IMPALA: actor processes, a queue of unrolls, and a learner that corrects for their age by V-trace.

Paper: Espeholt et al. 2018 (IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures).

    rho_t = min(1, pi(a_t|s_t) / mu(a_t|s_t)),   c_t = lambda * rho_t         mu: the policy of the actor
    delta_t V = rho_t (r_t + discount_t V(s_{t+1}) - V(s_t))
    v_t = V(s_t) + delta_t V + discount_t c_t (v_{t+1} - V(s_{t+1}))          over the steps of one episode
    policy gradient: rho_t log pi(a_t|s_t) (r_t + discount_t v_{t+1} - V(s_t))

Data flow: each actor writes its steps, with the log-probabilities of its own policy, into one table in shared memory.
A window of `unroll` steps is an item of a `Queue`, and leaves when it is drawn. Actors wait when the queue is full.
Each row carries the policy version of its actor; `staleness` of a batch is the learner's version minus that version.

Deviations from the paper: Adam; parameters go to the actors by shared memory after every update; no LSTM.
A killed actor is started again. The padding of its open windows carries no loss. If the learner dies, the actors end.
`--resume` drops the rows of the save: the load has cut their open windows, and the policy of their actors is older.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import environments
import frame
import gymnasium
import numpy as np
import torch
from actors import Actors, Parameters

import relive
from relive.adapters.gymnasium import record


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of IMPALA."""

    env: str = "CartPole-v1"
    steps: int = 300_000
    eval_every: int = 15_000
    hidden: int = 64
    num_actors: int = frame.at_least(1, 2)
    envs_per_actor: int = 4
    unroll: int = 16
    batch_size: int = 4  # unrolls
    queue_size: int = 8  # unrolls; at least batch_size + envs_per_actor
    learning_rate: float = 7e-4
    learning_rate_end: float = 0.02  # the last learning rate, as a share of the first
    gamma: float = frame.within(0, 1, 0.99)
    trace_lambda: float = 0.95
    entropy: float = 0.01
    value_weight: float = 0.5


class Network(torch.nn.Module):
    """Policy and value."""

    def __init__(self, space: gymnasium.Space[Any], num_actions: int, hidden: int) -> None:
        super().__init__()
        self.policy = torch.nn.Sequential(
            *environments.make_body(space, hidden, hidden), torch.nn.Linear(hidden, num_actions)
        )
        self.value = torch.nn.Sequential(*environments.make_body(space, hidden, hidden), torch.nn.Linear(hidden, 1))

    @torch.no_grad()
    def act(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draws actions. Returns them with their log-probabilities."""
        log_policy = self.policy(torch.as_tensor(observations)).log_softmax(-1)
        actions = torch.multinomial(log_policy.exp(), 1)
        return actions[:, 0].numpy(), log_policy.gather(1, actions)[:, 0].numpy()

    @torch.no_grad()
    def best(self, observations: np.ndarray) -> np.ndarray:
        """The most likely actions."""
        return self.policy(torch.as_tensor(observations)).argmax(-1).numpy()


def make_envs(settings: Settings, num: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """A vector of environments."""
    return gymnasium.vector.SyncVectorEnv([partial(environments.make_env, settings.env)] * num)


def make_network(settings: Settings, envs: gymnasium.vector.VectorEnv[Any, Any, Any]) -> Network:
    """The network for these environments."""
    num_actions = environments.num_actions(envs.single_action_space, settings.env)
    return Network(envs.single_observation_space, num_actions, settings.hidden)


def act(number: int, settings: Settings, name: str, parameters: Parameters) -> None:
    """The body of an actor process. A step waits while the queue is full."""
    seed = [settings.seed, number, os.getpid()]
    torch.manual_seed(int(np.random.default_rng(seed).integers(1 << 31)))
    envs = make_envs(settings, settings.envs_per_actor)
    network = make_network(settings, envs)
    with relive.attach(name) as table:
        recorded = record(envs, table, timeout_s=600.0)
        observations, _ = recorded.reset(seed=torch.initial_seed())
        t = 0
        while True:
            if t % settings.unroll == 0:
                recorded.writer.set_policy_version(parameters.pull(network))
            actions, log_prob = network.act(observations)
            observations, *_ = recorded.step(actions, extras={"log_prob": log_prob})
            t += 1


def make_table(settings: Settings, spec: relive.StepSpec, name: str) -> relive.Table:
    """A queue of unrolls in shared memory."""
    items = relive.Sequences(settings.unroll, at_end="cross", gamma=settings.gamma)
    # an append adds up to `envs_per_actor` unrolls to those of a batch that is not complete
    size = max(settings.queue_size, settings.batch_size + settings.envs_per_actor)
    index = relive.Index(items, relive.Fifo(), relive.Queue(size), max_times_sampled=1)
    capacity = 8 * settings.unroll * (size + settings.num_actors * settings.envs_per_actor)
    return relive.Table(spec, capacity, index, storage=relive.SharedMemory(name), seed=settings.seed, timeout_s=60.0)


def v_trace(
    network: Network, rows: dict[str, torch.Tensor], settings: Settings
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns log pi(a|s) [B, T] and the losses of policy and value: means over the steps that are in `mask`."""
    mask = rows["mask"].float()
    log_policy = network.policy(rows["observation"]).log_softmax(-1)
    log_prob = log_policy.gather(-1, rows["action"][..., None])[..., 0]
    value = network.value(rows["observation"])[..., 0]
    with torch.no_grad():
        following = network.value(rows["next_observation"])[..., 0]
        rho = (log_prob - rows["log_prob"]).exp().clamp(max=1.0)
        rho = rho * mask  # a lane that ended early leaves padding after its steps
        ends = rows["terminated"] | rows["truncated"]
        delta = rho * (rows["reward"] + rows["discount"] * following - value)
        correction, carried = torch.zeros_like(delta), torch.zeros(len(delta))
        next_target = torch.zeros_like(delta)
        for t in reversed(range(delta.shape[1])):
            carried = carried * ~ends[:, t]  # v_{t+1} - V(s_{t+1}) of the same episode
            next_target[:, t] = following[:, t] + carried
            carried = delta[:, t] + rows["discount"][:, t] * settings.trace_lambda * rho[:, t] * carried
            correction[:, t] = carried
        advantage = rho * (rows["reward"] + rows["discount"] * next_target - value)
        target = value + correction
    entropy = -(log_policy.exp() * log_policy).sum(-1)
    policy_loss = -((advantage * log_prob + settings.entropy * entropy) * mask).sum() / mask.sum()
    return log_prob, policy_loss, ((value - target) ** 2 * mask).sum() / mask.sum()


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("impala", settings)
    name = f"impala-{os.getpid()}"
    saved = run.load(relive.SharedMemory(name))
    make = partial(environments.make_env, settings.env)
    envs = make_envs(settings, 1)
    spec = relive.StepSpec.from_spaces(
        envs.single_observation_space,
        envs.single_action_space,
        extras={"log_prob": relive.ArraySpec((), "float32")},
    )
    table = saved.table if saved else make_table(settings, spec, name)
    network = make_network(settings, envs)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    parts: dict[str, Any] = {"network": network, "optimizer": optimizer}
    version = 0
    if saved:
        table.clear()  # the load has cut the open windows, and the queue would count them
        version = saved.learner.pop("version")
        for part, state in saved.learner.items():
            parts[part].load_state_dict(state)
    table.set_policy_version(version)
    run.result.random_return = frame.random_return(make)
    parameters = Parameters(network)
    parameters.publish(network, version)
    columns = ["observation", "next_observation", "action", "log_prob", "reward", "discount", "terminated", "truncated"]
    columns += ["mask", "staleness"]

    step, staleness = run.step, []
    state = {"version": lambda: version, **{name: part.state_dict for name, part in parts.items()}}
    with (
        table,
        Actors(act, settings.num_actors, (settings, name, parameters)) as actors,
        run.course(lambda: (table, {name: value() for name, value in state.items()})),
    ):
        while run.goes_on(step):
            actors.watch()
            try:
                batch = table.sample(settings.batch_size, columns=columns, timeout_s=1.0)
            except relive.DeadlineExceeded:
                continue  # the actors are starting
            _, policy_loss, value_loss = v_trace(network, batch.to_torch(), settings)
            share = max(settings.learning_rate_end, 1.0 - step / settings.steps)
            optimizer.param_groups[0]["lr"] = settings.learning_rate * share
            optimizer.zero_grad()
            (policy_loss + settings.value_weight * value_loss).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            version += 1
            table.set_policy_version(version)
            parameters.publish(network, version)
            step += settings.batch_size * settings.unroll
            staleness.append(float(batch["staleness"].mean()))
            run.log(value_loss=value_loss.item(), staleness=staleness[-1])
            if run.evaluation_is_due(step):
                run.evaluated(frame.evaluate(network.best, make, settings.eval_episodes))
        run.result.facts |= {"staleness": float(np.mean(staleness or [0])), "restarts": actors.num_restarts}
    print(f"impala: mean staleness of a batch {run.result.facts['staleness']:.2f} versions")
    return run.result


if __name__ == "__main__":
    main()
