"""`relive act`, `tune`, `evaluate`, `play` and `profile`: the commands before a run, beside it and after it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from relive.agents.registry import AGENTS, entry_of
from relive.cli.commands import (
    EXIT_STOPPED,
    Commands,
    UsageError,
    add_command,
    at_least,
    extra_named,
    named_path,
    say,
)
from relive.cli.doors import access_of, add_access
from relive.cli.training import add_settings

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Declares the commands."""
    _add_acting(commands)
    _add_tuning(commands)
    _add_evaluating(commands)
    _add_playing(commands)
    _add_run_dir(add_command(commands, "profile", _profile, extras=("train",)))


def _add_acting(commands: Commands) -> None:
    add = add_command(commands, "act", _act, extras=("train", "service")).add_argument
    add("address", metavar="ADDRESS", help="grpc://HOST:PORT/NAME, as the run prints it.")
    add("--env", metavar="ID", help="Another environment with the same spaces (default: the run's).")
    add("--envs", metavar="N", type=at_least(1),
        help="Number of environments of this actor (default: that of the run's own actors).")  # fmt: skip
    add("--seed", metavar="N", type=at_least(0),
        help="Seed of environments and exploration (default: a new seed).")  # fmt: skip
    add_access(add)
    add("--patience", metavar="SECONDS", type=at_least(0, float), default=300.0,
        help="Time without an answer from the run, after which the actor ends (default: %(default)g).")  # fmt: skip


def _act(
    address: str,
    env: str | None,
    envs: int | None,
    seed: int | None,
    patience: float,
    token_file: str | None,
    **tls: str | None,
) -> int:
    """Act for a run on another machine until the run ends.

    `relive train --serve` serves the run. Ctrl-C stops the actor cleanly.
    """
    with extra_named("act", "train"):
        from relive.train.acting.remote_actor import ActOptions, act
    acted = act(address, ActOptions(env, envs, seed, patience, access_of(token_file, **tls)), say=say)
    say(str(acted))
    return 0 if acted.finished else EXIT_STOPPED


def _add_tuning(commands: Commands) -> None:
    parser = add_command(commands, "tune", _tune, extras=("train",))
    add = parser.add_argument
    add("--agent", metavar="AGENT", required=True, help=f"One of {', '.join(AGENTS)}.")
    add("--env", metavar="ID", help="Gymnasium id (default: the agent's default).")
    add("--budget", metavar="SECONDS", type=float, default=60.0,
        help="Approximate time for the measurements (default: %(default)g).")  # fmt: skip
    add("--out", metavar="FILE", type=named_path,
        help="File for the settings, for train --config (default: runs/tuned-AGENT-ENV.toml).")  # fmt: skip
    add("--json", metavar="FILE", type=named_path, help="Also write all findings, as JSON.")
    add_settings(parser)


def _tune(
    agent: str,
    env: str | None,
    budget: float,
    out: Path | None,
    json: Path | None,
    config: Path | None,
    assignments: list[str],
) -> None:
    """Choose the actors, learners and environments of a run by measuring.

    The command measures the parts of the run, predicts the speed of each setting, tries the best and chooses.
    """
    with extra_named("tune", "train"):
        from rich.console import Console

        from relive.train.config import load_config, preset
        from relive.train.settings import parse_assignments
        from relive.train.tuning.tables import show_tuning
        from relive.train.tuning.tuner import tune

        settings: dict[str, object] = {} if env is None else {"environment.env_id": env}
        settings.update(parse_assignments(assignments))
        default = entry_of(agent).environment
        asked = preset(agent, default, settings) if config is None else load_config(config, settings, agent=agent)
    env_name = asked.environment.env_id.replace("/", "-")
    target = out or Path("runs") / f"tuned-{agent}-{env_name}.toml"
    if target.suffix != ".toml":
        raise UsageError(f"--out: expected a file that ends in .toml, as train --config reads it, got {str(target)!r}")
    for option, file in (("--out", target), ("--json", json)):
        if file is not None:
            _check_writable(option, file)  # now, and not after a minute of measurements
    tuning = tune(asked, budget_s=budget, say=say)
    tuning.write_settings(target)
    if json is not None:
        tuning.save(json)
    show_tuning(tuning, Console())
    say(f"relive train {agent} --config {target}")


def _check_writable(option: str, file: Path) -> None:
    above = next(folder for folder in file.absolute().parents if folder.exists())
    if file.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(f"{option}: expected a file that can be written, got {str(file)!r}")


def _add_run_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", type=named_path, help="Directory of a run, finished or not.")


def _add_seed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seed",
        metavar="N",
        type=at_least(0),
        help="Seed of the episodes (default: the run's, as in its result.json).",
    )


def _add_evaluating(commands: Commands) -> None:
    parser = add_command(commands, "evaluate", _evaluate, extras=("train",))
    _add_run_dir(parser)
    parser.add_argument("--episodes", metavar="N", type=at_least(1), default=20,
                        help="Number of episodes, played without exploration (default: %(default)s).")  # fmt: skip
    _add_seed(parser)
    parser.add_argument("--max-minutes", metavar="MINUTES", type=float,
                        help="Cut the remaining episodes after this number of minutes (default: none).")  # fmt: skip


def _evaluate(run_dir: Path, episodes: int, seed: int | None, max_minutes: float | None) -> None:
    """Play the best policy of a run and report its returns.

    Prints JSON to the standard output, and a summary line to the standard error.
    """
    with extra_named("evaluate", "train"):
        from relive.train.evaluating.playing import evaluate_run
    evaluation = evaluate_run(run_dir, num_episodes=episodes, seed=seed, max_minutes=max_minutes)
    say(evaluation.to_json())
    sys.stderr.write(f"{evaluation}\n")


def _add_playing(commands: Commands) -> None:
    parser = add_command(commands, "play", _play, extras=("train",))
    _add_run_dir(parser)
    parser.add_argument("--episodes", metavar="N", type=at_least(1), default=1,
                        help="Number of episodes to show (default: %(default)s).")  # fmt: skip
    _add_seed(parser)
    parser.add_argument("--video", metavar="FILE", type=named_path,
                        help="Write a video to FILE.mp4 instead of opening a window.")  # fmt: skip
    parser.add_argument("--max-steps", metavar="N", type=at_least(1), default=10_000,
                        help="End after this number of steps, over all episodes (default: %(default)s).")  # fmt: skip


def _play(run_dir: Path, episodes: int, seed: int | None, video: Path | None, max_steps: int) -> None:
    """Show the best policy of a run in a window, or write a video."""
    with extra_named("play", "train"):
        from relive.train.evaluating.playing import play_run
    for one in play_run(run_dir, num_episodes=episodes, seed=seed, video=video, max_steps=max_steps):
        cut = "" if one.ended else f", cut by --max-steps {max_steps}"
        say(f"episode {one.number}: return {one.episode_return:.1f}, {one.num_steps} steps{cut}")
    if video is not None:
        say(str(video))


def _profile(run_dir: Path) -> None:
    """Show which parts of a run used the time, and whether storage is the bottleneck.

    The run needs `relive train --profile`. The command also draws RUN_DIR/profile.svg.
    """
    with extra_named("profile", "train"):
        from rich.console import Console

        from relive.train.watching.profile import show_profile
    show_profile(run_dir, Console())
