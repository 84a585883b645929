"""The commands of the base install: ls, rm, --version and the overview. They need nothing but the library."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from processes.shm import needs_shared_memory, shared_files

import relive

WITHOUT_EXTRAS = """
import sys
for name in ("rich", "rich.console", "torch", "pyarrow", "gymnasium"):
    sys.modules[name] = None
import relive.cli
sys.argv = ["relive", *{arguments!r}]
relive.cli.main()
"""

pytestmark = needs_shared_memory


def relive_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command as it runs where no extra is installed."""
    environment = {"COLUMNS": "160", "PATH": "", "TERM": "dumb", "PYTHONPATH": os.pathsep.join(sys.path)}
    program = WITHOUT_EXTRAS.format(arguments=arguments)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)


def make_table(name: str) -> relive.Table:
    spec = relive.StepSpec({"x": relive.ArraySpec((), "float32")})
    return relive.Table(spec, 1000, storage=relive.SharedMemory(name), max_lanes=2)


def leave_behind(name: str) -> None:
    """A table whose process was killed."""
    program = (
        "import os, relive\n"
        "spec = relive.StepSpec({'x': relive.ArraySpec((), 'float32')})\n"
        f"table = relive.Table(spec, 1000, storage=relive.SharedMemory({name!r}), max_lanes=2)\n"
        f"os.kill(os.getpid(), {signal.SIGKILL.value})"
    )
    subprocess.run([sys.executable, "-c", program], timeout=60)
    assert shared_files(name)


def row_of(name: str) -> str:
    return next(line for line in relive_command("ls").stdout.splitlines() if name in line.split())


def test_version() -> None:
    assert relive_command("--version").stdout.split() == ["relive", relive.__version__]


def test_overview() -> None:
    for done in (relive_command("--help"), relive_command()):
        for command in ("ls", "rm", "serve", "train"):
            assert f"    {command} " in done.stdout
    assert "invalid choice" in relive_command("list").stderr


def test_help_needs_no_extra() -> None:
    """It names the extra. The options of an agent are listed although its file cannot be imported."""
    for command, extra in (("serve", "service"), ("fleet start", ""), ("act", "service"), ("train dqn", "train")):
        done = relive_command(*command.split(), "--help")
        assert done.returncode == 0 and done.stdout.startswith(f"usage: relive {command} "), done.stderr
        assert extra in done.stdout
    assert "agent.gamma=" in done.stdout and "replay.capacity=" in done.stdout


def test_a_wrong_option_names_the_nearest() -> None:
    done = relive_command("train", "dqn", "--actor", "3")
    assert done.returncode == 2 and "--actor 3; did you mean '--actors'?" in done.stderr
    done = relive_command("evaluate", "run", "--episodes", "0")
    assert done.returncode == 2 and "expected int >= 1, got '0'" in done.stderr


def test_ls_and_rm(shm_name: Callable[[], str]) -> None:
    name = shm_name()
    with make_table(name) as table, table.writer() as writer:
        for value in range(7):
            writer.append(x=np.float32(value))
        row = row_of(name)
        assert "7" in row and "1,000" in row and "in use" in row
        refused = relive_command("rm", name)
        assert refused.returncode == 1 and refused.stderr.startswith("relive: ")
        assert str(os.getpid()) in refused.stderr  # the process that has it
        assert relive_command("rm", "--force", name).returncode == 0
        assert name not in relive_command("ls").stdout


def test_rm_of_a_table_left_behind(shm_name: Callable[[], str]) -> None:
    name = shm_name()
    leave_behind(name)
    assert "not in use" in row_of(name)
    done = relive_command("rm", name)
    assert done.returncode == 0 and f"removed {name}" in done.stdout
    again = relive_command("rm", name)
    assert again.returncode == 1 and name in again.stderr


def test_rm_goes_on_with_the_other_names(shm_name: Callable[[], str]) -> None:
    nobody, name = shm_name(), shm_name()
    leave_behind(name)
    done = relive_command("rm", nobody, name)
    assert done.returncode == 1 and nobody in done.stderr and f"removed {name}" in done.stdout
    assert not shared_files(name)


def test_rm_of_all_unused(shm_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables in use stay, and so does a file that is no table."""
    used, left, no_table = shm_name(), shm_name(), shm_name()
    leave_behind(left)
    junk = relive.SharedMemory(no_table).path
    with open(junk, "wb") as file:
        file.write(b"notes")
    with make_table(used) as table:
        removed = run_here(monkeypatch, ["rm", "--all-unused"], only={used, left, no_table})
        assert removed == 0
        assert not shared_files(left) and shared_files(used) and os.path.exists(junk)
        table.check()
    assert run_here(monkeypatch, ["rm", "--all-unused"], only={used, left, no_table}) == 0


def run_here(monkeypatch: pytest.MonkeyPatch, arguments: list[str], only: set[str]) -> int:
    """The command in this process, seeing only these tables: others of the machine are not this test's to remove."""
    from relive.cli import entry, tables
    from relive.table.open import list_tables

    monkeypatch.setattr(tables, "list_tables", lambda: [row for row in list_tables() if row.name in only])
    return entry.run(arguments)


@pytest.mark.parametrize("arguments", [["rm"], ["rm", "--all-unused", "x"], ["rm", "--all-unused", "--force"]])
def test_rm_without_saying_what(arguments: list[str]) -> None:
    done = relive_command(*arguments)
    assert done.returncode == 2 and "--all-unused" in done.stderr


def test_the_doctor_says_what_works_and_what_to_do() -> None:
    """Without any extra. A row is written and drawn, and each missing extra has its command."""
    done = relive_command("doctor")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    names = ("relive", "Python", "processor", "memory", "/dev/shm", "open files", "torch", "pyarrow", "nixl", "ray")
    for name in names:
        assert any(line.split()[1:] and line[8:].startswith(name) for line in lines), name
    assert any(line.startswith("ok") and "shared table" in line for line in lines)
    for at, line in enumerate(lines):
        if "not installed" in line:
            assert "pip install" in lines[at + 1]


def test_the_doctor_says_how_shared_memory_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from relive.cli import doctor

    def full(*_: object, **__: object) -> relive.Table:
        raise relive.errors.StorageFull("/dev/shm/relive-doctor", 7 << 30, 64 << 20)

    monkeypatch.setattr(doctor, "Table", full)
    tables = {one.name: one for one in doctor.findings() if one.name.endswith(" table")}
    assert {one.state for one in tables.values()} == {"action"}
    assert "docker run --shm-size" in tables["shared table"].text


def test_the_doctor_names_flags_that_a_processor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from relive.cli import doctor

    monkeypatch.setattr(doctor, "_FLAGS", {"avx2", "a-flag-of-tomorrow"})
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    found = next(one for one in doctor.findings() if one.name == "processor")
    assert found.state == "action" and "a-flag-of-tomorrow" in found.text and "x86-64-v3" in found.action
