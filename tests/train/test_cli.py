"""The commands that typer reads: their help, and what is said where an extra is missing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("typer", reason="the command line needs typer")

from relive._extras import install_command  # noqa: E402


def relive_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "relive.cli", *arguments], capture_output=True, text=True, timeout=60,
        env={"COLUMNS": "160", "PATH": "", "TERM": "dumb", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


def test_help() -> None:
    text = relive_command("train", "dqn", "--help").stdout
    for option in ("--env", "--actors", "--seed", "--run-dir", "--resume", "--max-minutes", "--device"):
        assert option in text
    overview = relive_command("--help").stdout
    assert all(command in overview for command in ("train", "serve", "ls", "rm"))


def test_missing_extras_are_named() -> None:
    """With a command that installs them for this copy of the library."""
    program = (
        "import sys\n"
        "for name in {hidden!r}: sys.modules[name] = None\n"
        "import relive.cli\n"
        "sys.argv = ['relive', *{arguments!r}]\n"
        "relive.cli.main()"
    )
    for hidden, arguments, extra in (
        (["typer"], ["train", "dqn"], "train"),
        (["torch"], ["train", "dqn"], "train"),
        (["gymnasium"], ["train", "dqn"], "train"),
        (["typer"], ["serve", "table.toml"], "service"),
        (["pyarrow", "pyarrow.flight"], ["serve", "table.toml"], "service"),
    ):
        code = program.format(hidden=hidden, arguments=arguments)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert install_command(extra) in done.stderr and hidden[-1] in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
