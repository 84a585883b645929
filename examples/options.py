"""The settings of an example: their command line, their limits, and those that a continued run keeps."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of every example. A run ends at the first of its two limits."""

    KEEPS: ClassVar[set[str]] = set()  # of FREE, those that a continued run of this example keeps

    steps: int = 100_000  # steps of the environment
    seconds: float = math.inf  # seconds of all parts of the run together
    seed: int = 0
    run_dir: str = ""  # default: runs/examples/NAME-SEED
    resume: bool = False  # continue the run of run_dir with its table and its learner
    save_s: float = 120.0  # seconds between two saves; a run also saves at its end
    eval_every: int = 2_000  # steps between two evaluations
    eval_episodes: int = 5
    bar: bool = True


S = TypeVar("S", bound=Settings)
MAY_BE_0 = {"steps", "seed"}
# The settings that a continued run may change: limits, evaluations, saves, places and processes.
FREE = {field.name for field in dataclasses.fields(Settings)}
FREE |= {"num_actors", "learners", "address", "insecure", "data", "directory", "ram", "prefetch", "judge_s"}


def one_of(default: str, *others: str) -> Any:
    """The default of a setting that has one of these values; `parse` refuses other values."""
    return dataclasses.field(default=default, metadata={"choices": (default, *others)})


def at_least(least: float, default: float) -> Any:
    """The default of a number that is at least this large. Without it a count is at least 1, and a float at least 0."""
    return dataclasses.field(default=default, metadata={"least": least})


def within(least: float, most: float, default: float) -> Any:
    """The default of a number in [least, most]."""
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


def parse(settings: type[S], arguments: Sequence[str] | None, about: str | None) -> S:
    """Reads a dataclass of settings from a command line: `eval_every: int` becomes `--eval-every`.

    The program ends with its usage and a sentence if a number is out of its range, nan, or infinite where the default
    is not.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for field in dataclasses.fields(settings):
        option, default = option_of(field.name), field.default
        if isinstance(default, bool):
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=default)
        else:
            choices = field.metadata.get("choices")
            parser.add_argument(
                option, type=type(default), default=default, choices=choices, help=f"default: {default}"
            )
    given = parser.parse_args(arguments)
    for field in dataclasses.fields(settings):
        value = getattr(given, field.name)
        least = field.metadata.get("least", 1 if type(value) is int and field.name not in MAY_BE_0 else 0)
        if type(value) in (int, float) and not value >= least:  # nan too
            parser.error(f"argument {option_of(field.name)}: expected at least {least}, got {value}")
        if type(value) is float and math.isinf(value) and value != field.default:
            parser.error(f"argument {option_of(field.name)}: expected a finite number, got {value}")
        most = field.metadata.get("most", math.inf)
        if type(value) in (int, float) and value > most:
            parser.error(f"argument {option_of(field.name)}: expected at most {most}, got {value}")
    return settings(**vars(given))


def option_of(name: str) -> str:
    """The option of a setting."""
    return "--" + name.replace("_", "-")


def words(name: str, value: object) -> list[str]:
    """The words of a command line that give a setting this value."""
    option, text = option_of(name), str(value)
    if isinstance(value, bool):
        return [option if value else option.replace("--", "--no-", 1)]
    return [f"{option}={text}"] if text.startswith("-") else [option, text]  # argparse reads a word with - as an option


def options_of(settings: Settings) -> list[str]:
    """The command line of these settings: the options that differ from their defaults. `parse` reads it."""
    options: list[str] = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        options += words(field.name, value) if value != field.default else []
    return options


def kept(settings: Settings) -> dict[str, Any]:
    """The settings that a continued run keeps. The saved table, networks and optimizers have been made with them."""
    free = FREE - settings.KEEPS
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in free}


def check_kept(folder: Path, saved: Mapping[str, Any], settings: Settings) -> None:
    """Ends the program with a sentence if a setting is not that of the run that is continued.

    Args:
        folder: the folder of the run.
        saved: the `kept` settings of its save.
        settings: the settings of the command line.
    """
    mine = kept(settings)
    other = [name for name, value in saved.items() if name in mine and mine[name] != value]
    if other:
        has, got = (" ".join(word for name in other for word in words(name, one[name])) for one in (saved, mine))
        way_out = f"Give {has}, or begin a new run in another folder."
        raise SystemExit(f"{folder} has a run with {has}, got {got}. A continued run keeps its settings. {way_out}")
