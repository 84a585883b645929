"""The environments of the examples, and the first layers of a network for vectors and for images.

Paper: Young and Tian 2019 (MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement Learning).
`--env MinAtar/Breakout-v1` has observations bool [10, 10, 4] and the minimal set of three actions: none, left, right.
An action is replaced by the last action with probability 0.1. Games other than Breakout and Freeway become harder.
"""

from __future__ import annotations

import logging
from typing import Any

import frame
import gymnasium
import numpy as np
import torch

MAX_EPISODE_STEPS = 2_500  # MinAtar has no limit, and a policy can keep a ball in play without a brick in its path


def make_env(env: str) -> gymnasium.Env[Any, Any]:
    """Makes an environment. An id that begins with `MinAtar/` registers the games of MinAtar in this process first.

    Without the environment's package the program ends with the command. It ends with a sentence if there is no such
    environment, or if its observations are neither vectors nor images.
    """
    if not env.startswith("MinAtar/"):
        try:
            made = gymnasium.make(env)
        except gymnasium.error.DependencyNotInstalled as error:
            raise SystemExit(f"{env} lacks a package: {error}. Run: pip install '.[examples]'") from None
        except gymnasium.error.Error as error:
            raise SystemExit(f"{env} cannot be made: {error}") from None
        space = made.observation_space
        if not (isinstance(space, gymnasium.spaces.Box) and len(space.shape) in (1, 3)):
            raise SystemExit(f"{env} has observations {space}. This example needs vectors, or images of three axes.")
        return made
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # MinAtar warns that it cannot draw without seaborn
    try:
        games = frame.package("minatar.gym", "MinAtar")
    finally:
        logging.disable(before)
    if env not in gymnasium.registry:
        games.register_envs()
    return gymnasium.make(env, max_episode_steps=MAX_EPISODE_STEPS)


def num_actions(space: gymnasium.Space[Any], env: str) -> int:
    """The number of actions of an environment. Other than discrete actions end the program with a sentence."""
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise SystemExit(f"{env} has actions {space}. This example needs discrete actions.")
    return int(space.n)


def make_bounded(env: str) -> gymnasium.Env[Any, Any]:
    """Makes an environment with actions in [-1, 1]. Other than bounded Box actions end the program with a sentence."""
    made = make_env(env)
    if not (isinstance(made.action_space, gymnasium.spaces.Box) and made.action_space.is_bounded()):
        raise SystemExit(f"{env} has actions {made.action_space}. This example needs a bounded Box of actions.")
    return gymnasium.wrappers.RescaleAction(made, np.float32(-1.0), np.float32(1.0))


class Convolution(torch.nn.Module):
    """The network of the paper up to its last hidden layer: 16 filters of 3x3 and a linear layer, each with ReLU."""

    def __init__(self, height: int, width: int, channels: int, hidden: int) -> None:
        super().__init__()
        self.filters = torch.nn.Conv2d(channels, 16, 3)
        self.linear = torch.nn.Linear(16 * (height - 2) * (width - 2), hidden)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features [..., hidden] of images [..., height, width, channels] of any dtype."""
        planes = images.flatten(0, -4).movedim(-1, 1).float()
        features = self.linear(self.filters(planes).relu().flatten(1)).relu()
        return features.unflatten(0, images.shape[:-3])


def make_body(space: gymnasium.Space[Any], *hidden: int) -> torch.nn.Sequential:
    """A network from observations to features [..., hidden[-1]].

    Vectors pass layers of `hidden` units, with ReLU. Images [height, width, channels] pass `Convolution`, and only the
    last number of `hidden` counts.
    """
    assert space.shape is not None
    if len(space.shape) == 3:
        return torch.nn.Sequential(Convolution(*space.shape, hidden[-1]))
    return frame.mlp(*space.shape, *hidden, last=torch.nn.ReLU())
