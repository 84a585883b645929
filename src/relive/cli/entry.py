"""`relive COMMAND`: parses the command line, calls the command, and ends the process with its status."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, TextIO, cast, final

from relive import __version__
from relive.cli import doctor, doors, fleets, inspect, runs, tables, training, transfers
from relive.cli.commands import EXIT_STOPPED, UsageError, add_commands, new_parser
from relive.errors import ReliveError
from relive.errors.slips import hint

__all__ = ["main", "run"]


def main() -> None:
    """Runs the command of `sys.argv` and ends the process with the status of `run`; 1 after an error of relive.

    Modules of the present folder are found, as `python -m` finds them: `--env module:Id-v0` names one.
    """
    _open_outputs()
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    status: int | str
    try:
        status = run(sys.argv[1:])
    except (ReliveError, OSError) as problem:  # an OSError names its file, or the standard output
        status = f"relive: {problem}"
    except KeyboardInterrupt:
        status = EXIT_STOPPED
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the command is over: its status stands
        signal.signal(number, signal.SIG_IGN)  # libraries end with the interpreter, and would show a traceback
    _drop_output_that_fails()
    sys.exit(status)


@final
class _StandardOutput:
    """The standard output. An OSError of a write names it: the error of the system has no name."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_file":  # a copy asks for both before it has a file
            raise AttributeError(name)
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """See TextIO."""
        try:
            return self._file.write(text)
        except OSError as problem:
            problem.filename = problem.filename or "standard output"
            raise

    def flush(self) -> None:
        """See TextIO."""
        try:
            self._file.flush()
        except OSError as problem:
            problem.filename = problem.filename or "standard output"
            raise


def _open_outputs() -> None:
    """Names the standard output in its errors. An output that the shell has closed (`>&-`) drops what it gets."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # else the next file, such as one of the run, would get its number
            null = open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8")  # noqa: SIM115
            os.set_inheritable(null.fileno(), True)
            setattr(sys, name, null)
    sys.stdout = cast(TextIO, _StandardOutput(sys.stdout))


def _drop_output_that_fails() -> None:
    """The interpreter writes the rest of the output as it ends, and would print a traceback if that fails again."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)


def run(arguments: Sequence[str]) -> int:
    """Runs one command.

    Args:
        arguments: the words after `relive`.

    Returns:
        The exit status of the command.

    Raises:
        SystemExit: status 2 for a command line that cannot be parsed, 0 after `--help` or `--version`.
        ReliveError: as the command.
        OSError: as the command.
    """
    parser = new_parser("relive", "Experience replay that many processes share.")
    parser.add_argument("--version", action="version", version=f"relive {__version__}")
    commands = add_commands(parser)
    for group in (tables, inspect, doors, transfers, doctor, fleets, training, runs):
        group.add(commands)
    given, unknown = parser.parse_known_args(arguments)
    options = vars(given)
    chosen, function = options.pop("command")
    if unknown:
        nearest = hint(unknown[0].partition("=")[0], re.findall(r"--[\w-]+", chosen.format_usage()))
        chosen.error(f"unrecognized arguments: {' '.join(unknown)}{nearest}")
    try:
        status: int | None = function(**options)
    except UsageError as problem:
        chosen.error(str(problem))
    return status or 0
