"""A table that is served to other processes: actors on any machine write to it, and the learner's process samples it.

Subject: the service of relive. The algorithm is the double DQN of dqn_per.py, whose learner this example imports.

    learner's process:  Table  --relive.service.serve-->  grpc://host:port/replay
    actor process:      relive.connect(address)  --record(), Streaming writer-->  the same table
                        remote.parameters.pull(newer_than=version)                the newest network

An actor knows the address and nothing else: it needs no shared memory, and may run on another machine. In a network of
your own, bind `--address grpc://0.0.0.0:7070 --insecure`, and start `act` there with that address; docs/service.md has
tokens and TLS for any other network. A killed actor is started again. If the server is gone, an actor on another
machine gets `ServiceUnavailable`, and ends.

Deviations from dqn_per.py: the actors are processes with a ladder of exploration rates; `SamplesPerInsert` keeps the
replay ratio over the network: a remote writer waits as a local one does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dqn_per
import environments
import frame
import gymnasium
import numpy as np
import torch
from actors import Actors

import relive
from relive.adapters.gymnasium import record


@dataclass(frozen=True)
class Settings(dqn_per.Settings):
    """The settings of DQN, and those of the service."""

    address: str = "grpc://127.0.0.1:0"  # port 0: a free one
    insecure: bool = False  # serve every client that reaches the port, on any address
    num_actors: int = frame.at_least(0, 2)
    updates_per_step: float = 0.25  # of the replay ratio
    epsilon: float = 0.4  # of the first actor; the others explore less
    learning_rate_end: float = 1.0
    publish_every: int = 20  # updates
    eval_every: int = 4_000


def act(number: int, settings: Settings, address: str) -> None:
    """The body of an actor process: it knows the address of the table only."""
    rng = np.random.default_rng([settings.seed, number, os.getpid()])
    epsilon = settings.epsilon ** (1.0 + 3.0 * number)
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(settings.env)] * settings.num_envs)
    num_actions = int(envs.single_action_space.n)
    network = dqn_per.Learner(settings, envs.single_observation_space.shape[0], num_actions).q
    version = 0
    with relive.connect(address) as remote:
        recorded = record(envs, remote, timeout_s=600.0)
        observations, _ = recorded.reset(seed=int(rng.integers(1 << 31)))
        t = 0
        while True:
            if t % 25 == 0:
                # the first pull waits for the first publication; later ones take what is there
                found = remote.parameters.pull(newer_than=version, timeout_s=30.0 if version == 0 else 0.0)
                if found is not None:
                    version = found.version
                    network.load_state_dict({name: torch.tensor(value) for name, value in found.arrays.items()})
            with torch.no_grad():
                actions = network(torch.as_tensor(observations)).argmax(1).numpy()
            explores = rng.random(len(actions)) < epsilon
            actions = np.where(explores, rng.integers(num_actions, size=len(actions)), actions)
            observations, *_ = recorded.step(actions)
            t += 1


def make_table(settings: Settings) -> relive.Table:
    """Transitions over n steps, drawn by priority, with a replay ratio for all writers."""
    env = gymnasium.make(settings.env)
    index = relive.Index(
        relive.Transitions(n_step=settings.n_step, gamma=settings.gamma),
        relive.Prioritized(settings.priority_exponent),
        relive.SamplesPerInsert(settings.updates_per_step * settings.batch_size, min_size=settings.min_size),
    )
    spec = relive.StepSpec.from_spaces(env.observation_space, env.action_space)
    return relive.Table(spec, settings.capacity, index, seed=settings.seed)


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    service = frame.package("relive.service", "pyarrow", "'.[service]'")
    run = frame.Run("served", settings)
    saved = run.load()

    def make_env() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(settings.env)

    env = make_env()
    num_actions = environments.num_actions(env.action_space, settings.env)
    table = saved.table if saved else make_table(settings)
    learner = dqn_per.Learner(settings, env.observation_space.shape[0], num_actions)
    version = saved.learner.pop("version", 1 + int(run.result.facts.get("updates", 0))) if saved else 1
    if saved:
        learner.load(saved.learner)
    run.result.random_return = frame.random_return(make_env)

    before = run.step - table.stats().appended
    with service.serve({"replay": table}, settings.address, insecure=settings.insecure) as server:

        def publish() -> None:
            arrays = {name: tensor.numpy() for name, tensor in learner.q.state_dict().items()}
            server.parameters("replay").publish(arrays, version=version)

        def evaluate() -> None:
            if run.evaluation_is_due(step):
                run.evaluated(frame.evaluate(learner.greedy, make_env, settings.eval_episodes))

        publish()
        with (
            Actors(act, settings.num_actors, (settings, server.address + "/replay")) as actors,
            run.course(lambda: (table, learner.state() | {"version": version})),
        ):
            while run.goes_on(step := before + table.stats().appended):
                actors.watch()
                try:
                    batch = table.sample(settings.batch_size, timeout_s=1.0)
                except relive.DeadlineExceeded:
                    continue  # the actors are starting, or are slower
                loss, priorities = learner.update(batch, min(step / settings.steps, 1.0))
                table.update_priorities(batch.item_keys, priorities)
                version += 1
                if version % settings.publish_every == 0:
                    publish()
                run.log(loss=loss)
                evaluate()
            evaluate()  # the actors may pass the last step
            run.result.facts |= {"updates": version - 1, "restarts": actors.num_restarts}
    table.close()
    return run.result


if __name__ == "__main__":
    main()
