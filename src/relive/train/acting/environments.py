"""Makes the environments of a run, for acting, evaluating and showing; describes their spaces; gives out their seeds.

- Atari ids (`ALE/...`) use the vector environment of ale-py with the usual preprocessing: 84 x 84 grey frames, stacks
  of four padded with zeros, frame skip 4, sticky actions as the id says.
- All other ids use `gymnasium.make_vec`.
- Both reset an environment on the step after the end of its episode.
- Acting, evaluation and the final result draw their seeds from three ranges that do not overlap.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from relive.agents.agent import Spaces
from relive.errors import InvalidConfig, MissingPackage, ReliveError
from relive.errors.extras import install_command
from relive.train.errors import EnvironmentRaised

FRAME_STACK = 4
_EVALUATION_SEEDS = 2**30
_FINAL_SEEDS = 2**30 + 2**29
_RANGE = 2**29


def is_atari(env_id: str) -> bool:
    """Whether the id is one of ale-py."""
    return env_id.startswith("ALE/")


def describe(env_id: str) -> Spaces:
    """Returns the spaces of an environment.

    Args:
        env_id: Gymnasium id.

    Raises:
        InvalidConfig: There is no environment of this name.
        EnvironmentRaised: The environment raised an error.

    Cost:
        One environment, which is made and closed again.
    """
    envs = make_environments(env_id, 1)
    stack = {"observation": FRAME_STACK} if is_atari(env_id) else {}
    spaces = Spaces(env_id, envs.single_observation_space, envs.single_action_space, stack)
    with environment_errors("when it was closed"):
        envs.close()
    return spaces


def words_of(spaces: Spaces) -> str:
    """Returns what learner and table of a run depend on in the spaces of its environment, without the bounds."""
    return f"observations {_words(spaces.observation)} and actions {_words(spaces.action)}"


def _words(space: gymnasium.Space[Any]) -> str:
    if isinstance(space, gymnasium.spaces.Discrete):
        return f"Discrete({int(space.n)})"
    return f"{type(space).__name__}{space.shape} of {space.dtype}"


def check_spaces(spaces: Spaces, before: str) -> None:
    """Raises InvalidConfig if the environment of a checkpoint has other spaces by now.

    Args:
        spaces: The spaces of the environment.
        before: Those of the checkpoint, as `words_of` told them; "": the checkpoint does not tell them.
    """
    now = words_of(spaces)
    if before not in ("", now):
        expected = f"{before}, those of its checkpoint (or a new run in another directory)"
        raise InvalidConfig(f"spaces of environment {spaces.env_id}", expected, now)


def make_environments(env_id: str, num_envs: int, *, evaluation: bool = False) -> VectorEnv[Any, Any, Any]:
    """Makes copies of an environment, which this thread steps.

    Args:
        env_id: Gymnasium id.
        num_envs: Copies.
        evaluation: Atari rewards are not clipped.

    Raises:
        InvalidConfig: There is no environment of this name.
        EnvironmentRaised: The environment raised an error.
    """
    with environment_errors("when it was made"):
        if is_atari(env_id):
            return _make_atari(env_id, num_envs, clip_rewards=not evaluation)
        try:
            return gymnasium.make_vec(env_id, num_envs, vectorization_mode="sync")
        except (gymnasium.error.Error, ModuleNotFoundError) as problem:  # "module:Id-v0" imports the module
            expected = "an id that Gymnasium can make here"
            raise InvalidConfig(what="env_id", expected=expected, got=str(problem)) from problem


@contextmanager
def environment_errors(doing: str, step: int = -1) -> Iterator[None]:
    """Raises errors of an environment that no actor owns as EnvironmentRaised.

    Args:
        doing: The call, as it follows "the environment raised".
        step: Step of the call; see EnvironmentRaised.
    """
    try:
        yield
    except (ReliveError, ImportError, gymnasium.error.DependencyNotInstalled):  # the last two: a package is missing
        raise
    except Exception as problem:
        raise EnvironmentRaised(None, step, traceback.format_exc(), doing) from problem


def _register_atari() -> None:
    """Registers the Atari environments. Only they need ale-py."""
    try:
        import ale_py
    except ModuleNotFoundError:
        raise MissingPackage("an Atari environment", "ale-py", install_command("train")) from None
    gymnasium.register_envs(ale_py)


def _make_atari(env_id: str, num_envs: int, *, clip_rewards: bool) -> VectorEnv[Any, Any, Any]:
    _register_atari()
    from ale_py.vector_env import AtariVectorEnv

    try:
        options: dict[str, Any] = dict(gymnasium.spec(env_id).kwargs)
    except gymnasium.error.Error as problem:
        raise InvalidConfig(what="env_id", expected="an id of ale-py", got=str(problem)) from problem
    return AtariVectorEnv(
        options["game"],
        num_envs,
        num_threads=1,
        stack_num=FRAME_STACK,
        repeat_action_probability=options.get("repeat_action_probability", 0.0),
        full_action_space=options.get("full_action_space", False),
        max_num_frames_per_episode=options.get("max_num_frames_per_episode", 108_000),
        reward_clipping=clip_rewards,
    )


def make_shown(env_id: str, render_mode: str) -> gymnasium.Env[Any, Any]:
    """Makes one environment that renders. Its rewards are not clipped.

    Args:
        env_id: Gymnasium id.
        render_mode: "human": in a window; "rgb_array": as frames.

    Raises:
        InvalidConfig: The environment has no such mode.
        EnvironmentRaised: The environment raised an error.
        gymnasium.error.DependencyNotInstalled: A package is missing.
    """
    options: dict[str, Any] = {}
    if is_atari(env_id):
        _register_atari()
        options["frameskip"] = 1  # the preprocessing below skips frames
    with environment_errors("when it was made"):
        try:
            modes = _render_modes(env_id, options)
            if render_mode not in modes:
                raise InvalidConfig(f"render mode of {env_id}", f"{render_mode!r} among those it has", str(modes))
            env = gymnasium.make(env_id, render_mode=render_mode, **options)
        except gymnasium.error.DependencyNotInstalled:
            raise
        except (gymnasium.error.Error, ModuleNotFoundError) as problem:
            raise InvalidConfig("env_id", "an id that Gymnasium can make here", str(problem)) from problem
    if is_atari(env_id):
        env = gymnasium.wrappers.AtariPreprocessing(env)
        env = gymnasium.wrappers.FrameStackObservation(env, FRAME_STACK, padding_type="zero")
    return env


def _render_modes(env_id: str, options: dict[str, Any]) -> list[str]:
    env = gymnasium.make(env_id, **options)
    try:
        return [str(mode) for mode in env.metadata.get("render_modes") or ()]
    finally:
        env.close()


def acting_seed(run_seed: int, actor: int, incarnation: int) -> int:
    """Returns the seed of the first environment of an actor; the next environments take the next seeds."""
    state = np.random.SeedSequence(run_seed, spawn_key=(actor, incarnation)).generate_state(1)
    return int(state[0] % (_EVALUATION_SEEDS - 4096))


def evaluation_seeds(run_seed: int, first: int, num_episodes: int) -> list[int]:
    """Returns the seeds of the evaluation episodes first, first + 1, ... of a run."""
    return _seeds(_EVALUATION_SEEDS, run_seed, first, num_episodes)


def final_seeds(run_seed: int, num_episodes: int) -> list[int]:
    """Returns the seeds of the episodes of the final result, which are used nowhere else."""
    return _seeds(_FINAL_SEEDS, run_seed, 0, num_episodes)


def _seeds(base: int, run_seed: int, first: int, num_episodes: int) -> list[int]:
    offset = math.prod((run_seed, 1_000_003)) + first
    return [base + (offset + episode) % _RANGE for episode in range(num_episodes)]
