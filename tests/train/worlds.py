"""Environments with faults, by ids that actors can make too: `train.worlds:Faulty-v0`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class World(gymnasium.Env[Any, Any]):
    """A walk of four numbers that ends after `length` steps, pays `reward`, and fails at step `fails_at`."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(
        self, length: float = 20, reward: float = 1.0, fails_at: float = float("inf"), step_s: float = 0.0
    ) -> None:
        self._length, self._reward, self._fails_at, self._step_s = length, reward, fails_at, step_s
        self._num_steps = self._all_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._num_steps += 1
        self._all_steps += 1
        if self._all_steps >= self._fails_at:
            raise ArithmeticError(f"the world ends at step {self._all_steps}")
        time.sleep(self._step_s)
        return self._observation(), self._reward, False, self._num_steps >= self._length, {}

    def _observation(self) -> Any:
        return self._drawn()

    def _drawn(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)


gymnasium.register("Blind-v0", entry_point=World)
gymnasium.register("Faulty-v0", entry_point=World, kwargs={"fails_at": 150})
gymnasium.register("Endless-v0", entry_point=World, kwargs={"length": float("inf"), "step_s": 0.01})
gymnasium.register("Waiting-v0", entry_point=World, kwargs={"length": 200, "step_s": 0.002})
gymnasium.register("Overflowing-v0", entry_point=World, kwargs={"reward": 1e38})
gymnasium.register("Short-v0", entry_point=World, kwargs={"length": 5})


class Wide(World):
    """Observations have the same shape as those of World, and other bounds."""

    observation_space = gymnasium.spaces.Box(-2.0, 2.0, (4,), np.float32)


gymnasium.register("Wide-v0", entry_point=Wide)


class Narrow(World):
    """Has actions of int32, and refuses all others."""

    action_space = gymnasium.spaces.Discrete(2, dtype=np.int32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} of {action.dtype}"
        return super().step(action)


gymnasium.register("Narrow-v0", entry_point=Narrow)


class Pushed(World):
    """Has continuous actions up to `most`, and shows numbers up to `sees`."""

    def __init__(self, most: float = 1.0, sees: float = 1.0) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Box(-most, most, (1,), np.float32)
        self.observation_space = gymnasium.spaces.Box(-sees, sees, (4,), np.float32)


gymnasium.register("Pushed-v0", entry_point=Pushed)
gymnasium.register("Shoved-v0", entry_point=Pushed, kwargs={"most": 10.0})
gymnasium.register("PushedFarther-v0", entry_point=Pushed, kwargs={"sees": 2.0})
gymnasium.register("PushedAgain-v0", entry_point=Pushed)


class Deadly(World):
    """Kills the process that plays it, before its first step."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(seed=seed, options=options)


gymnasium.register("Deadly-v0", entry_point=Deadly)


class Unready(World):
    """Cannot be reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        raise ArithmeticError("it has no license")


gymnasium.register("Unready-v0", entry_point=Unready)


class Written(World):
    """Writes what it shows into a file named after its seed, in the folder that RELIVE_TEST_STREAMS names."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._path = Path(os.environ["RELIVE_TEST_STREAMS"]) / str(seed)
        return super().reset(seed=seed, options=options)

    def _observation(self) -> Any:
        observation = super()._observation()
        with self._path.open("ab") as file:
            file.write(observation.tobytes())
        return observation


gymnasium.register("Written-v0", entry_point=Written)


class Counting(gymnasium.Env[Any, Any]):
    """Shows (number of the episode, drawn at its reset; number of the step): what follows what is seen in any two."""

    observation_space = gymnasium.spaces.Box(0.0, 2.0**24, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._step = float(self.np_random.integers(2**24)), 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        time.sleep(0.0005)
        return self._observation(), 1.0, self._step >= 40, False, {}

    def _observation(self) -> Any:
        return np.array([self._episode, self._step, 0.0, 0.0], np.float32)


gymnasium.register("Counting-v0", entry_point=Counting)


class Acted(Written):
    """What it shows follows from what was done to it; what was done is written beside it."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._shift = 0.25 if action else -0.25
        with self._path.open("ab") as file:
            file.write(np.float32(action).tobytes())
        return super().step(action)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._shift = 0.0
        return super().reset(seed=seed, options=options)

    def _drawn(self) -> Any:
        return np.clip(super()._drawn() + np.float32(self._shift), -1.0, 1.0)


gymnasium.register("Acted-v0", entry_point=Acted)


class Willed(World):
    """Fails as the environment variable RELIVE_TEST_WILL says, such as `raise acting 150` or `hang evaluation 3`.

    The words: the fault, the side, and the step of this copy. Faults: raise, hang, nan (a reward, in the first
    evaluation alone), chdir (to the folder RELIVE_TEST_STREAMS); `made` and `closed` raise when it is made or closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fault, self._side, number = (os.environ.get("RELIVE_TEST_WILL", "") + " - - 0").split()[:3]
        self._number, self._seed = int(number) if number.isdigit() else 0, -1
        if self._fault == "made":
            raise ArithmeticError("it cannot be made")
        if self._fault == "chdir":
            os.chdir(os.environ["RELIVE_TEST_STREAMS"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seed = seed
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *ends = super().step(action)
        side = "evaluation" if self._seed >= 2**30 else "acting"
        if side == self._side and self._all_steps >= self._number:
            if self._fault == "raise":
                raise ArithmeticError(f"it fails in step {self._all_steps}")
            while self._fault == "hang":
                try:
                    time.sleep(600)
                except Exception as problem:  # it does not let go for an Exception
                    del problem
        if self._fault == "nan" and 2**30 <= self._seed < 2**30 + 2:
            reward = float("nan")
        return observation, reward, *ends

    def close(self) -> None:
        if self._fault == "closed":
            raise ArithmeticError("it cannot be closed")


gymnasium.register("Willed-v0", entry_point=Willed)
