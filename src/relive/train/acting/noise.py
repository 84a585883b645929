"""Draws the noise of exploration: the noise of an environment depends on its key and its step alone.

So an action does not depend on the process that computes it (an actor, an inference process, or its successor), on the
other rows of the batch, or on how often it is computed. The numbers of a row are those of SplitMix64 (Steele et al.
2014) from the state

  mix(key xor mix(step, call))

`call` counts the draws of one action.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from relive import _core

# Both numbers are odd, so a product with them is one to one.
_STEP, _CALL = np.uint64(_core.random_format()["golden"]), np.uint64(0xD1342543DE82EF95)

_STEPS_AHEAD = 64


def environment_keys(run_seed: int, actor: int, incarnation: int, num_envs: int) -> NDArray[np.uint64]:
    """Returns keys [num_envs] of the environments of an actor. A larger num_envs appends keys and changes none."""
    sequence = np.random.SeedSequence(run_seed, spawn_key=(actor, incarnation, 1))
    keys: NDArray[np.uint64] = sequence.generate_state(num_envs, np.uint64).astype(np.uint64)
    return keys


@final
class EnvironmentNoise:
    """Random numbers for B environments, a row each: the `Noise` of one call of a policy. Cost: about 10 us a draw."""

    def __init__(self, keys: NDArray[np.uint64], steps: NDArray[np.uint64], num_calls: int = 0) -> None:
        """Starts at the given steps.

        Args:
            keys: Keys [B] from `environment_keys`.
            steps: Steps [B] that each environment has taken before.
            num_calls: Draws that were made for these steps before; a draw of normal numbers counts as two.
        """
        self._keys, self._steps = keys, steps * _STEP
        self._call = np.full(1, num_calls, np.uint64) * _CALL

    def _words(self, size: tuple[int, int]) -> NDArray[np.uint64]:
        self._call += _CALL
        states = _core.mix_words(self._keys ^ _core.mix_words(self._steps + self._call))
        return _core.mix_words(states[:, None] + np.arange(1, size[1] + 1, dtype=np.uint64) * _STEP)

    def random(self, size: tuple[int, int], /) -> NDArray[np.float64]:
        """Draws [B, n] numbers, uniform in [0, 1)."""
        uniform: NDArray[np.float64] = (self._words(size) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return uniform

    def standard_normal(self, size: tuple[int, int], dtype: Any = np.float64, /) -> NDArray[Any]:
        """Draws [B, n] normal numbers, by Box and Muller (1958)."""
        angle, radius = self.random(size), np.sqrt(-2.0 * np.log(1.0 - self.random(size)))
        return (radius * np.cos(2.0 * np.pi * angle)).astype(dtype)


@final
class NoiseStream:
    """The same numbers for environments that step together, drawn for 64 steps at once. Cost: about 1 us a draw."""

    def __init__(self, keys: NDArray[np.uint64]) -> None:
        """Starts at step 0. keys: keys [B] from `environment_keys`."""
        self._keys = keys
        self._step = self._num_calls = 0
        self._ahead: dict[tuple[int, int, bool], NDArray[Any]] = {}  # [steps, B, n] by call, n, and whether normal

    def next_step(self) -> None:
        """Goes on to the next step of all environments."""
        self._step, self._num_calls = self._step + 1, 0
        if self._step % _STEPS_AHEAD == 0:
            self._ahead.clear()

    def random(self, size: tuple[int, int], /) -> NDArray[np.float64]:
        """See EnvironmentNoise."""
        uniform: NDArray[np.float64] = self._drawn(size[1], normal=False, num_calls=1)
        return uniform

    def standard_normal(self, size: tuple[int, int], dtype: Any = np.float64, /) -> NDArray[Any]:
        """See EnvironmentNoise."""
        return self._drawn(size[1], normal=True, num_calls=2).astype(dtype)

    def _drawn(self, number: int, *, normal: bool, num_calls: int) -> NDArray[Any]:
        which = (self._num_calls, number, normal)
        self._num_calls += num_calls
        if which not in self._ahead:
            first = self._step - self._step % _STEPS_AHEAD
            steps = np.repeat(np.arange(first, first + _STEPS_AHEAD, dtype=np.uint64), len(self._keys))
            noise = EnvironmentNoise(np.tile(self._keys, _STEPS_AHEAD), steps, which[0])
            size = (len(steps), number)
            drawn = noise.standard_normal(size) if normal else noise.random(size)
            self._ahead[which] = drawn.reshape(_STEPS_AHEAD, len(self._keys), number)
        mine: NDArray[Any] = self._ahead[which][self._step % _STEPS_AHEAD].copy()
        return mine
