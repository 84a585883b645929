"""A table that is larger than memory: its newest pages are in memory, the others on a local disk.

Subject: `Tiered` storage and planned reads. The algorithm is DQN (Mnih et al. 2015) on images.

    target = reward + discount * max_a Q_target(s', a)        loss = mean huber(target - Q(s, a))

    writer --> pages in memory (ram) --> the oldest pages go to one file on the disk, without a name
    table.batches(prefetch=16): draws 16 batches ahead, reads their rows in the order of the disk, hands out whole ones

Environment: Catch of bsuite (Osband et al. 2020), written again here and drawn as 84 x 84 pixels, so that a step takes
7 kB and the table outgrows `--ram` after a few thousand steps. `facts` tells how many pages went to the disk, how many
bytes were read, and how often the learner had to wait for the disk.

Deviations from DQN: the network sees the image averaged to 12 x 12 cells.
"""

from __future__ import annotations

import tempfile
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
from relive.adapters.gymnasium import record

ROWS, COLUMNS, PIXELS = 12, 7, 84


@dataclass(frozen=True)
class Settings(frame.Settings):
    """The settings of DQN over a tiered table."""

    directory: str = ""  # on a local disk; "": a temporary folder
    ram: str = "16MiB"  # for pages and rows that are read ahead
    prefetch: int = 16
    steps: int = 30_000
    eval_every: int = 3_000
    eval_episodes: int = 20
    hidden: int = 64
    num_envs: int = 4
    capacity: int = 20_000  # 141 MB
    min_size: int = 500
    batch_size: int = 32
    steps_per_update: int = 4
    learning_rate: float = 1e-3
    gamma: float = frame.within(0, 1, 0.95)
    target_rate: float = 0.02
    epsilon: float = 0.1


class Catch(gymnasium.Env[np.ndarray, int]):
    """A ball falls down one column. The return is 1 if the paddle is below it at the end, else -1."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (PIXELS, PIXELS), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)

    def _seen(self) -> np.ndarray:
        board = np.zeros((ROWS, COLUMNS), np.uint8)
        board[self.row, self.ball] = board[-1, self.paddle] = 255
        return np.repeat(np.repeat(board, PIXELS // ROWS, 0), PIXELS // COLUMNS, 1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.ball, self.paddle = 0, int(self.np_random.integers(COLUMNS)), COLUMNS // 2
        return self._seen(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.paddle = int(np.clip(self.paddle + action - 1, 0, COLUMNS - 1))
        self.row += 1
        ended = self.row == ROWS - 1
        reward = (1.0 if self.ball == self.paddle else -1.0) if ended else 0.0
        return self._seen(), reward, ended, False, {}


class Network(torch.nn.Module):
    """Values of an image that is averaged to 12 x 12 cells."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.body = frame.mlp((PIXELS // 7) ** 2, hidden, hidden, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The values [B, 3] of images [B, 84, 84]."""
        return self.body(F.avg_pool2d(images[:, None].float() / 255.0, 7).flatten(1))


def update(parts: dict[str, Any], batch: relive.Batch, settings: Settings) -> float:
    """One step of the optimizer. Returns the loss."""
    rows = batch.to_torch()
    with torch.no_grad():
        wanted = rows["reward"] + rows["discount"] * parts["target"](rows["next_observation"]).amax(1)
    value = parts["network"](rows["observation"]).gather(1, rows["action"][:, None])[:, 0]
    loss = F.smooth_l1_loss(value, wanted)
    parts["optimizer"].zero_grad()
    loss.backward()
    parts["optimizer"].step()
    with torch.no_grad():
        slow, fast = list(parts["target"].parameters()), list(parts["network"].parameters())
        torch._foreach_lerp_(slow, fast, weight=settings.target_rate)
    return loss.item()


def main(arguments: Sequence[str] | None = None) -> frame.Result:
    """Runs the example and returns its result."""
    settings = frame.parse(Settings, arguments, __doc__)
    run = frame.Run("tiers", settings)
    temporary = tempfile.TemporaryDirectory()
    storage = relive.Tiered(settings.directory or temporary.name, settings.ram)
    saved = run.load(storage)
    network = Network(settings.hidden)
    optimizer = torch.optim.Adam(network.parameters(), settings.learning_rate)
    parts = {"network": network, "target": deepcopy(network), "optimizer": optimizer}
    if saved:
        for name, part in parts.items():
            part.load_state_dict(saved.learner[name])

    @torch.no_grad()
    def greedy(observations: np.ndarray) -> np.ndarray:
        return network(torch.as_tensor(observations)).argmax(1).numpy()

    envs = gymnasium.vector.SyncVectorEnv([Catch] * settings.num_envs)
    spec = relive.StepSpec.from_spaces(envs.single_observation_space, envs.single_action_space)
    index = relive.Index(relive.Transitions(gamma=settings.gamma), limiter=relive.MinSize(settings.min_size))
    run.result.random_return = frame.random_return(Catch, 100)
    rng = np.random.default_rng([settings.seed, run.step])
    options = {"storage": storage, "max_lanes": max(8, settings.num_envs), "seed": settings.seed}
    with saved.table if saved else relive.Table(spec, settings.capacity, index, **options) as table:
        recorded, step = record(envs, table), run.step
        observations, _ = recorded.reset(seed=settings.seed + run.step)
        with (
            run.course(lambda: (table, {name: part.state_dict() for name, part in parts.items()})),
            table.batches(settings.batch_size, prefetch=settings.prefetch) as batches,
        ):
            while run.goes_on(step):
                explores = rng.random(settings.num_envs) < settings.epsilon
                actions = np.where(explores, rng.integers(3, size=settings.num_envs), greedy(observations))
                observations, *_ = recorded.step(actions)
                step += settings.num_envs
                for _ in run.updates_due(step, table):
                    run.log(loss=update(parts, next(batches), settings))
                if run.evaluation_is_due(step):
                    run.evaluated(frame.evaluate(greedy, Catch, settings.eval_episodes))
            tiers = table.stats().tiers
            assert tiers is not None
            run.result.facts |= {
                "bytes_written": tiers.bytes_written,
                "bytes_read": tiers.bytes_read,
                "late_batches": tiers.late_batches,
            }
        recorded.close()
    temporary.cleanup()
    print(f"tiers: {tiers.bytes_written / 1e6:.0f} MB written to the disk, {tiers.bytes_read / 1e6:.0f} MB read")
    return run.result


if __name__ == "__main__":
    main()
