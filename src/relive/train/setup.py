"""What a run is made of before anything moves: its agent, its device, its table."""

from __future__ import annotations

import os
import secrets

import torch

from relive import SamplesPerInsert, SharedMemory, Table
from relive.agents.agent import Agent
from relive.errors import InvalidConfig
from relive.train.config import TrainConfig
from relive.train.environments import describe


def make_agent(config: TrainConfig) -> Agent:
    """The agent of a run. Raises InvalidConfig where it cannot act in the environment, or there is none."""
    spaces = describe(config.environment.env_id)
    return config.agent.make(spaces, seed=config.environment.seed, device=_chosen_device(config.device))


def _chosen_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidConfig(what="device", expected="'cpu' or 'auto' on a machine without CUDA", got=device)
    return device


def make_table(config: TrainConfig, agent: Agent) -> Table:
    """The shared table of one session, under a name of its own."""
    replay, acting = config.replay, config.acting
    samples_per_insert = replay.updates_per_step * config.agent.batch_size
    limiter = SamplesPerInsert(
        samples_per_insert,
        replay.min_size,
        # A few batches and a few rounds of all actors, or neither side ever waits for less than that.
        tolerance=max(
            0.1 * samples_per_insert * replay.min_size,
            4.0 * config.agent.batch_size,
            4.0 * samples_per_insert * config.environment.num_envs_per_actor,
        ),
    )
    name = f"train-{os.getpid()}-{secrets.token_hex(3)}"
    # Twice the lanes in use: a dead actor's stay taken until the next look for dead processes.
    max_lanes = 2 * acting.num_actors * config.environment.num_envs_per_actor
    return Table(
        agent.spec(),
        replay.capacity,
        agent.index(limiter),
        storage=SharedMemory(name),
        max_lanes=max_lanes,
        seed=config.environment.seed,
    )
