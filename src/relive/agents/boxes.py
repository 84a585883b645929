"""Continuous actions, with numpy only: a Box scaled to [-1, 1] in each number, and policies that act in the Box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive.agents.agent import Noise, Parameters, Spaces
from relive.agents.policies import mlp_outputs
from relive.errors import InvalidConfig

# A Gaussian policy clips the logarithm of its standard deviation to these bounds, as the authors of SAC do.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


@final
@dataclass(frozen=True, eq=False)
class ActionBox:
    """A bounded Box of floats.

    action = middle + half * unit,  unit [A] within [-1, 1]

    Args:
        low: lowest actions [*shape].
        high: highest actions [*shape].
        middle: float32 [A].
        half: float32 [A], half of the distance from low to high.
    """

    low: NDArray[Any]
    high: NDArray[Any]
    middle: NDArray[np.float32]
    half: NDArray[np.float32]

    @classmethod
    def of(cls, spaces: Spaces, agent: str) -> ActionBox:
        """Returns the action space of these spaces.

        Args:
            spaces: the spaces.
            agent: name of the agent, for the error.

        Raises:
            InvalidConfig: the action space is not a Box of floats with finite bounds low < high.
        """
        space = spaces.action
        expected = f"a Box of floats with finite bounds, low < high, for {agent}"
        low, high = (getattr(space, bound, None) for bound in ("low", "high"))
        if low is None or high is None or space.dtype.kind != "f":
            raise InvalidConfig(f"action space of {spaces.env_id}", expected, str(space))
        floor, ceiling = np.asarray(low, np.float64).ravel(), np.asarray(high, np.float64).ravel()
        with np.errstate(all="ignore"):  # infinite bounds are refused below
            middle, half = ((floor + ceiling) / 2).astype(np.float32), ((ceiling - floor) / 2).astype(np.float32)
        if not (len(half) and np.isfinite(middle).all() and np.isfinite(half).all() and (half > 1e-30).all()):
            raise InvalidConfig(f"action space of {spaces.env_id}", expected, str(space))
        return cls(space.low, space.high, middle, half)

    @property
    def size(self) -> int:
        """A: how many numbers one action has."""
        return len(self.middle)

    def actions(self, unit: NDArray[np.float32]) -> NDArray[Any]:
        """Scales to actions of the environment.

        Args:
            unit: float32 [B, A], clipped to [-1, 1].

        Returns:
            Actions [B, *shape] within the bounds.
        """
        scaled = (self.middle + self.half * np.clip(unit, -1.0, 1.0)).reshape(len(unit), *self.low.shape)
        # Rounding may put the sum past a bound, and an environment may refuse such an action.
        bounded: NDArray[Any] = np.clip(scaled.astype(self.low.dtype, copy=False), self.low, self.high)
        return bounded

    def uniform(self, num_actions: int, noise: Noise) -> NDArray[Any]:
        """Draws actions [num_actions, *shape]. Each number is uniform between its bounds."""
        return self.actions((2.0 * noise.random((num_actions, self.size)) - 1.0).astype(np.float32))


@final
@dataclass(frozen=True)
class NoisyPolicy:
    """tanh of the network `actor`, plus Gaussian noise while exploring. See Policy.

    Args:
        box: the actions.
        noise: standard deviation of the noise, as a share of half the Box.
        random_steps: environment steps of all actors at the start whose actions are uniform.
    """

    box: ActionBox
    noise: float
    random_steps: int

    def explore(self, parameters: Parameters, observations: NDArray[Any], num_steps: int, noise: Noise) -> NDArray[Any]:
        """See Policy."""
        if num_steps < self.random_steps:
            return self.box.uniform(len(observations), noise)
        unit = np.tanh(mlp_outputs(parameters, "actor", observations))
        unit += self.noise * noise.standard_normal((len(unit), self.box.size), np.float32)
        return self.box.actions(unit)

    def best(self, parameters: Parameters, observations: NDArray[Any]) -> NDArray[Any]:
        """See Policy."""
        return self.box.actions(np.tanh(mlp_outputs(parameters, "actor", observations)))

    def exploration(self, num_steps: int) -> dict[str, float]:
        """See Policy."""
        return {"noise": 1.0 if num_steps < self.random_steps else self.noise}


@final
@dataclass(frozen=True)
class SquashedGaussianPolicy:
    """tanh(u) with u ~ N(mean, std). The best action is tanh(mean). See Policy.

    The network `actor` gives [B, 2A]: the mean in the first A columns, log std in the others.

    Args:
        box: the actions.
        random_steps: environment steps of all actors at the start whose actions are uniform.
    """

    box: ActionBox
    random_steps: int

    def explore(self, parameters: Parameters, observations: NDArray[Any], num_steps: int, noise: Noise) -> NDArray[Any]:
        """See Policy."""
        if num_steps < self.random_steps:
            return self.box.uniform(len(observations), noise)
        outputs = mlp_outputs(parameters, "actor", observations)
        mean, log_std = outputs[:, : self.box.size], outputs[:, self.box.size :]
        std = np.exp(np.clip(log_std, LOG_STD_MIN, LOG_STD_MAX))
        return self.box.actions(np.tanh(mean + std * noise.standard_normal((len(mean), self.box.size), np.float32)))

    def best(self, parameters: Parameters, observations: NDArray[Any]) -> NDArray[Any]:
        """See Policy."""
        outputs = mlp_outputs(parameters, "actor", observations)
        return self.box.actions(np.tanh(outputs[:, : self.box.size]))

    def exploration(self, num_steps: int) -> dict[str, float]:
        """See Policy."""
        return {"random": 1.0} if num_steps < self.random_steps else {}
