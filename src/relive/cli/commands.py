"""Declares commands, reads the types of options, names missing extras, and prints lines.

Protocol. A command is a function. `add_command` takes its help from the docstring, and the caller adds the options.
`relive.cli.entry.run` calls the function with one keyword argument for each option. The function imports the packages
of its extra when it runs, inside `extra_named`: `relive ls` does not wait for torch.

The parser is argparse, which comes with Python, because `ls` and `rm` belong to the base install, which has numpy only.
With typer or click, these two commands would need a second parser, with a second copy of their help.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from relive.errors import MissingPackage
from relive.errors.extras import install_command

__all__ = [
    "EXIT_STOPPED",
    "Commands",
    "UsageError",
    "add_command",
    "add_commands",
    "at_least",
    "extra_named",
    "named_path",
    "new_parser",
    "new_parser_of",
    "say",
]

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
EXIT_STOPPED = 130  # a shell gives this status to a process that Ctrl-C ended


class UsageError(Exception):
    """The options of a command contradict each other: the command ends with its usage, the message and status 2."""


def new_parser(name: str, text: str) -> argparse.ArgumentParser:
    """The parser of a whole command line, with `text` as its help."""
    return argparse.ArgumentParser(prog=name, description=text, allow_abbrev=False)


def add_commands(
    parser: argparse.ArgumentParser, kind: type[argparse.ArgumentParser] = argparse.ArgumentParser
) -> Commands:
    """Makes this parser the parser of commands, which are of this kind. Without a command it prints its help."""

    def show_help() -> int:
        parser.print_help()
        return 2

    parser.set_defaults(command=(parser, show_help))
    return parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=kind)


def add_command(
    commands: Commands, name: str, function: Callable[..., int | None], *, text: str = "", extras: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Declares a command.

    Args:
        commands: the commands to add to.
        name: the word that the user types.
        function: called with the options as keyword arguments. Its result is the exit status; None: 0.
        text: the help, a summary and then paragraphs; by default the docstring of the function.
        extras: the extras that the command needs; none: the base install is enough.

    Returns:
        The parser of the command, for its options.
    """
    parser = new_parser_of(commands, name, text or inspect.cleandoc(function.__doc__ or ""), extras)
    parser.set_defaults(command=(parser, function))
    return parser


def new_parser_of(commands: Commands, name: str, text: str, extras: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of a word among these commands. The overview shows the first paragraph of the text."""
    summary, _, details = text.partition("\n\n")
    needed = f"Needs the extra{'s' if len(extras) > 1 else ''} {' and '.join(extras)}." if extras else ""
    return commands.add_parser(
        name, help=f"{summary} {needed}", description=f"{summary} {details} {needed}", allow_abbrev=False
    )


def at_least(least: float, kind: type[int] | type[float] = int) -> Callable[[str], int | float]:
    """The type of an option: a number of this kind, `least` or more."""

    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not value >= least:  # NaN too
            raise argparse.ArgumentTypeError(f"expected {kind.__name__} >= {least}, got {text!r}")
        return value

    return read


def named_path(text: str) -> Path:
    """The type of an option: a path. An empty one may be a variable of the shell that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty text")
    return Path(text)


def port(text: str) -> int:
    """The type of an option: a TCP port; 0 takes a free one."""
    if not (text.isascii() and text.isdigit() and int(text) <= 65_535):
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


@contextmanager
def extra_named(command: str, extra: str) -> Iterator[None]:
    """Turns an ImportError of the block into MissingPackage, which names the command and how to install its extra.

    An import that Ctrl-C cut short raises KeyboardInterrupt, also if a package made an ImportError of that. An
    ImportError that names no package stays: the extra is there, and something in it is broken.
    """
    try:
        yield
    except ImportError as problem:
        if _comes_from_an_interrupt(problem):
            raise KeyboardInterrupt from None
        if problem.name is None:
            raise
        raise MissingPackage(f"relive {command}", problem.name, install_command(extra)) from None


def _comes_from_an_interrupt(problem: BaseException | None) -> bool:
    while problem is not None and not isinstance(problem, KeyboardInterrupt):
        problem = problem.__cause__ or problem.__context__
    return problem is not None


def say(line: str) -> None:
    """Prints a line to the standard output at once, so that a pipe has it while the command goes on."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
