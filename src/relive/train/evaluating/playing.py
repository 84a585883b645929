"""Plays the policy of a run after training: to evaluate it over many episodes, or to show it."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import gymnasium
import numpy as np

from relive.errors import InvalidConfig, MissingPackage, ReliveError
from relive.train.acting.environments import environment_errors, final_seeds, make_shown
from relive.train.config import path_of
from relive.train.evaluating.evaluate import Evaluator
from relive.train.evaluating.policy import load_policy
from relive.train.watching.result import to_json

_EPISODES_AT_ONCE = 100
_MOST_EPISODES = 1_000_000  # each has a seed
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


@final
class NoDisplay(ReliveError):
    """There is no display to show an environment on."""

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id
        super().__init__(
            f"{env_id}: expected a display to show it on, got none ({', '.join(_DISPLAYS)} are not set);"
            " a video needs none: relive play RUN_DIR --video FILE.mp4"
        )


@final
@dataclass(frozen=True)
class Evaluation:
    """Greedy episodes of the policy of a run.

    Attributes:
        agent: Name of the agent.
        env_id: Gymnasium id.
        run_dir: Directory of the run.
        seed: Seed of the episodes.
        returns: Undiscounted returns, in the order of the episodes' seeds.
        lengths: Steps of each episode.
        num_cut: Episodes that the time limit cut.
        wall_s: Wall-clock seconds.
    """

    agent: str
    env_id: str
    run_dir: str
    seed: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    num_cut: int
    wall_s: float

    @property
    def mean_return(self) -> float:
        """Mean of the returns. A cut episode counts with the return that it had."""
        return float(np.mean(self.returns))

    @property
    def std_return(self) -> float:
        """Standard deviation of the returns."""
        return float(np.std(self.returns))

    def to_json(self) -> str:
        """Returns all attributes, mean_return and std_return as JSON. Numbers that are not finite are null."""
        return to_json({**asdict(self), "mean_return": self.mean_return, "std_return": self.std_return})

    def __str__(self) -> str:
        cut = f", {self.num_cut} of them cut by the time limit" if self.num_cut else ""
        return (
            f"{self.agent} on {self.env_id}: {self.mean_return:.1f} +- {self.std_return:.1f} over"
            f" {len(self.returns)} episodes{cut}, {min(self.returns):.1f} to {max(self.returns):.1f},"
            f" {np.mean(self.lengths):.0f} steps each, {self.wall_s:.1f} s"
        )


def evaluate_run(
    run_dir: str | Path,
    *,
    num_episodes: int = 20,
    seed: int | None = None,
    max_minutes: float | None = None,
    go_on: Callable[[], bool] = lambda: True,
) -> Evaluation:
    """Evaluates the kept policy of a run greedily, up to a hundred episodes at a time.

    Args:
        run_dir: Directory of the run.
        num_episodes: Episodes.
        seed: Seed of the episodes; None: the seed of the run, whose first episodes are those of its result.json.
        max_minutes: Time after which open episodes are cut and none is begun; None: no limit. At least one step of the
            first episodes is played.
        go_on: Called after every step; False ends the evaluation as the time limit does.

    Returns:
        The episodes.

    Raises:
        InvalidConfig: A number is out of range, or `load_policy` raises it.
        EnvironmentRaised: The environment raised an error.
    """
    _check_counts(num_episodes, seed, max_minutes)
    began_s = time.monotonic()
    deadline_s = math.inf if max_minutes is None else began_s + 60.0 * max_minutes

    def in_time() -> bool:
        return go_on() and time.monotonic() < deadline_s

    trained = load_policy(run_dir)
    config = trained.config
    env_id, run_seed = config.environment.env_id, config.environment.seed if seed is None else seed
    seeds = final_seeds(run_seed, num_episodes)
    evaluator = Evaluator(env_id, trained.policy, config.evaluation.max_episode_steps)
    returns: list[float] = []
    lengths: list[int] = []
    num_cut = 0
    try:
        for first in range(0, num_episodes, _EPISODES_AT_ONCE):
            if first and not in_time():
                break
            played = evaluator.play(trained.parameters, seeds[first : first + _EPISODES_AT_ONCE], in_time, deadline_s)
            returns += played.returns.tolist()
            lengths += played.lengths.tolist()
            num_cut += played.num_cut
    finally:
        evaluator.close()
    wall_s = time.monotonic() - began_s
    return Evaluation(
        config.agent.name, env_id, str(run_dir), run_seed, tuple(returns), tuple(lengths), num_cut, wall_s
    )


def _check_counts(num_episodes: int, seed: int | None, max_minutes: float | None) -> None:
    if not _is_integer(num_episodes) or not 1 <= num_episodes <= _MOST_EPISODES:
        raise InvalidConfig("num_episodes", f"an integer in [1, {_MOST_EPISODES}]", num_episodes)
    if seed is not None and not (_is_integer(seed) and 0 <= seed < 2**31):
        raise InvalidConfig("seed", "0 <= seed < 2**31", seed)
    if max_minutes is not None and not (isinstance(max_minutes, (int, float)) and max_minutes > 0):
        raise InvalidConfig("max_minutes", "> 0", max_minutes)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# ---- watching ------------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class ShownEpisode:
    """An episode that was shown.

    Attributes:
        number: Number of the episode, from 0.
        episode_return: Its undiscounted return.
        num_steps: Its steps.
        ended: Whether it ended; False: max_steps or go_on cut it.
    """

    number: int
    episode_return: float
    num_steps: int
    ended: bool


def play_run(
    run_dir: str | Path,
    *,
    num_episodes: int = 1,
    seed: int | None = None,
    video: str | Path | None = None,
    max_steps: int = 10_000,
    go_on: Callable[[], bool] = lambda: True,
) -> list[ShownEpisode]:
    """Shows greedy episodes of the kept policy of a run, in a window or as a video file.

    Args:
        run_dir: Directory of the run.
        num_episodes: Episodes.
        seed: Seed of the episodes; see `evaluate_run`.
        video: Path of an .mp4 file for all episodes, one after another, at the frame rate of the environment; None: a
            window. The file replaces an older one when it is complete.
        max_steps: Most steps of all episodes together.
        go_on: Called after every step; False ends the show.

    Returns:
        The episodes.

    Raises:
        NoDisplay: There is no display for a window.
        MissingPackage: A package for rendering or for the video is missing.
        InvalidConfig: The environment has no such rendering, or an argument is out of range.

    Cost:
        Gymnasium's RecordVideo keeps all frames of the video in memory until it writes the file.
    """
    _check_counts(num_episodes, seed, None)
    if not _is_integer(max_steps) or max_steps < 1:
        raise InvalidConfig("max_steps", "an integer >= 1", max_steps)
    target = None if video is None else _checked_target(path_of("video", video))
    trained = load_policy(run_dir)
    env_id = trained.config.environment.env_id
    if target is None and sys.platform.startswith("linux") and not any(os.environ.get(name) for name in _DISPLAYS):
        raise NoDisplay(env_id)
    seeds = final_seeds(trained.config.environment.seed if seed is None else seed, num_episodes)
    shown: list[ShownEpisode] = []
    with _missing_packages_named(f"showing {env_id}"), _shown_environment(env_id, target) as env:
        left = max_steps
        for number, one in enumerate(seeds):
            if left <= 0 or (shown and not go_on()):
                break
            episode = _show(env, trained.act, number, one, left, go_on)
            left -= episode.num_steps
            shown.append(episode)
    return shown


def _show(
    env: gymnasium.Env[Any, Any],
    act: Callable[[Any], Any],
    number: int,
    seed: int,
    max_steps: int,
    go_on: Callable[[], bool],
) -> ShownEpisode:
    with environment_errors("in a reset"):
        observation, _ = env.reset(seed=seed)
    total, num_steps, ended = 0.0, 0, False
    while not ended and num_steps < max_steps and (num_steps == 0 or go_on()):
        action = act(observation)
        with environment_errors(f"in step {num_steps + 1:,} of episode {number}", num_steps + 1):
            observation, reward, terminated, truncated, _ = env.step(action)
        total, num_steps, ended = total + float(reward), num_steps + 1, bool(terminated or truncated)
    return ShownEpisode(number, total, num_steps, ended)


def _checked_target(video: Path) -> Path:
    """Checks the name of the file, its folder, and the package that writes it, before anything is made."""
    if video.suffix != ".mp4":
        raise InvalidConfig("video", "a file that ends in .mp4", str(video))
    if not video.absolute().parent.is_dir():
        raise InvalidConfig("video", "a file in a directory that exists", str(video))
    if importlib.util.find_spec("moviepy") is None:
        raise MissingPackage("a video", "moviepy", "pip install moviepy")
    return video.absolute()


@contextmanager
def _shown_environment(env_id: str, video: Path | None) -> Iterator[gymnasium.Env[Any, Any]]:
    """Gives an environment that shows itself in a window, or is filmed until the block ends."""
    env = make_shown(env_id, "human" if video is None else "rgb_array")
    if video is None:
        try:
            yield env
        finally:
            env.close()
        return
    with tempfile.TemporaryDirectory(prefix=".video-", dir=video.parent) as folder:
        film: Any = gymnasium.wrappers.RecordVideo(
            env,
            str(Path(folder) / "film"),
            # One film for all episodes: it begins with the first one and goes on between them.
            episode_trigger=lambda episode: episode == 0,
            video_length=sys.maxsize,
            name_prefix="film",
            disable_logger=True,
        )
        try:
            yield film
        finally:
            film.close()
        os.replace(Path(folder) / "film" / "film-episode-0.mp4", video)


@contextmanager
def _missing_packages_named(what: str) -> Iterator[None]:
    try:
        yield
    except gymnasium.error.DependencyNotInstalled as problem:
        command = re.search(r"`([^`]+)`", str(problem))
        package = str(problem).split()[0].lower()
        raise MissingPackage(what, package, command.group(1) if command else f"pip install {package}") from problem
