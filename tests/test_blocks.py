"""Every block of README.md and docs is tried: Python runs page by page as printed, commands exist, tables load.

The Python blocks of a page are one program, in their order, in a process of its own. A block that cannot run here says
so to its reader in its first line, `# not run by the tests: REASON`, and is compiled all the same. The comment after a
print, `print(...)  # 26: why`, is the output of that print, as far as the colon if there is one.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from processes.shm import shared_files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.usefixtures("processes_start_warm")
ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SAID = re.compile(r"print\(.*\)  # (.+)")
NOT_RUN = re.compile(r"# not run by the tests: (\S.+)")
EXTRAS = {"gymnasium", "ray", "torch", "torchdata", "triton", "pyarrow", "ale_py", "rich"}
MISSING_EXTRA = 77
# Runs blocks with the page's own line numbers in tracebacks.
RUNNER = f"""
import sys


def run(page, *blocks):
    text = open(page).read().splitlines()
    names = {{"__name__": "__main__"}}
    for block in blocks:
        first, last = map(int, block.split("-"))
        source = "\\n" * first + "\\n".join(text[first:last])
        try:
            exec(compile(source, page, "exec"), names)
        except ModuleNotFoundError as problem:
            if problem.name in {EXTRAS!r}:
                print(problem.name)
                sys.exit({MISSING_EXTRA})
            raise


if __name__ == "__main__":  # processes that a block starts import this file
    run(*sys.argv[1:])
"""


class Block(NamedTuple):
    """A fenced block: its language, and the lines between its fences, counted from 0."""

    page: Path
    language: str
    first: int
    last: int

    @property
    def text(self) -> str:
        return "\n".join(self.page.read_text().splitlines()[self.first : self.last])

    @property
    def reason(self) -> str:
        """Why it is not run; '' where it is."""
        found = NOT_RUN.match(self.text)
        return found.group(1) if found else ""


def blocks_of(page: Path) -> list[Block]:
    found, opened, language = [], None, ""
    for number, line in enumerate(page.read_text().splitlines()):
        if not line.lstrip().startswith("```"):
            continue
        if opened is None:
            opened, language = number + 1, line.strip().removeprefix("```")
        else:
            found.append(Block(page, language, opened, number))
            opened = None
    assert opened is None, f"{page}: a block without an end"
    return found


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


ALL = [block for page in PAGES for block in blocks_of(page)]
PYTHON = [block for block in ALL if block.language == "python"]


def test_there_are_blocks_and_each_says_what_it_is() -> None:
    assert len(PYTHON) >= 10
    for block in ALL:
        where = f"{name_of(block.page)}:{block.first}"
        assert block.language in {"python", "sh", "toml", "text", ""}, f"{where}: what is {block.language}?"
        is_shell = re.match(r"(relive|pip|make|python) ", block.text) is not None
        assert block.language == "sh" or not is_shell, f"{where}: write ```sh, so that its commands are tried"


@pytest.mark.parametrize("block", PYTHON, ids=lambda one: f"{name_of(one.page)}:{one.first}")
def test_every_python_block_compiles(block: Block) -> None:
    compile(block.text, name_of(block.page), "exec")


@pytest.mark.parametrize("page", sorted({one.page for one in PYTHON}), ids=name_of)
def test_the_python_of_a_page_runs_as_printed(page: Path, tmp_path: Path) -> None:
    """Shared tables get names that no other checkout uses, because pages of several checkouts may run at once."""
    blocks = [one for one in blocks_of(page) if one.language == "python"]
    run = [one for one in blocks if not one.reason]
    for one in blocks:
        if one.reason:
            print(f"{name_of(page)}:{one.first} is compiled only: {one.reason}")
    if not run:
        pytest.skip("; ".join(one.reason for one in blocks))
    text, names = page.read_text(), set(re.findall(r"SharedMemory\(\"([\w-]+)\"", page.read_text()))
    for name in names:
        text = re.sub(rf'(["/]){name}"', rf'\g<1>{unique(name, tmp_path)}"', text)
    copy = tmp_path / page.name
    copy.write_text(text)
    (tmp_path / "runner.py").write_text(RUNNER)
    variables = {"TRITON_INTERPRET": "1", "RELIVE_TEST_WARM": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "runner", str(copy), *(f"{one.first}-{one.last}" for one in run)],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, env={**os.environ, **variables},
    )  # fmt: skip
    left = [path for name in names for path in shared_files(unique(name, tmp_path))]
    for path in left:
        path.unlink()
    if done.returncode == MISSING_EXTRA:
        pytest.skip(f"{done.stdout.split()[-1]} is not installed here")
    assert done.returncode == 0, done.stderr
    assert not left
    printed = iter(done.stdout.splitlines())
    for said in SAID.findall("\n".join(one.text for one in run)):
        found = any(said == line or said.startswith(f"{line}: ") for line in printed)
        assert found, f"{said!r} is not printed in its turn"


def unique(name: str, folder: Path) -> str:
    return f"{name}-{os.getpid()}-{folder.name[:40]}"


# ---- commands ------------------------------------------------------------------------------------------------------


def commands() -> list[tuple[str, str]]:
    """(where, command line): of shell blocks, and of what stands in backquotes and begins as one."""
    found = []
    for page in PAGES:
        lines = page.read_text().splitlines()
        for block in blocks_of(page):
            if block.language == "sh":
                text = block.text.replace("\\\n", " ")  # a command over several lines
                found += [(f"{name_of(page)}:{block.first}", line) for line in text.splitlines() if line.strip()]
            for number in range(block.first, block.last):
                lines[number] = ""
        prose = " ".join(lines)
        found += [(name_of(page), code) for code in re.findall(r"`((?:relive|make|pip) [^`]+)`", prose)]
    return [(where, line.split("#")[0].strip()) for where, line in found]


COMMANDS = sorted(set(commands()))


def parts_of(command: str) -> list[str]:
    return [part for part in shlex.split(command) if part not in ("...",)]


def test_there_are_commands() -> None:
    assert len(COMMANDS) > 15


@pytest.mark.parametrize("where, command", COMMANDS, ids=lambda text: text)
def test_commands_are_what_they_are_called(where: str, command: str) -> None:
    program, *arguments = parts_of(command)
    checks = {
        "make": check_make,
        "pip": check_pip,
        "relive": check_relive,
        "python": check_python,
        "ray": check_ray,
        "torchrun": check_torchrun,
    }
    assert program in checks, f"{where}: say in tests/test_blocks.py how {program} is checked"
    checks[program](arguments)


def check_make(arguments: list[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = [one for one in arguments if "=" not in one and not one.startswith("[")]
    assert asked and set(asked) <= targets, asked


def check_pip(arguments: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for asked in re.findall(r"\[([\w,]+)\]", " ".join(arguments)):
        assert set(asked.split(",")) <= set(extras), asked
    assert not [one for one in arguments if one.startswith("relive[")], "nothing is found under that name on an index"


def check_python(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        module = ROOT.joinpath(*arguments[1].split("."))
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), arguments
    else:
        assert (ROOT / arguments[0]).exists(), arguments


def check_ray(arguments: list[str]) -> None:
    """The options are known to its help."""
    pytest.importorskip("ray", reason="ray is not installed here")
    ray = str(Path(sys.executable).with_name("ray"))
    done = subprocess.run([ray, arguments[0], "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for option in re.findall(r"--[a-z-]+", " ".join(arguments)):
        assert option in done.stdout, option


def check_torchrun(arguments: list[str]) -> None:
    """Its own options are known to its help; what it starts is a command of ours."""
    pytest.importorskip("torch", reason="torch is not installed here")
    ours = arguments.index("relive")
    line = [sys.executable, "-m", "torch.distributed.run", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    for option in re.findall(r"--[a-z-]+", " ".join(arguments[:ours])):
        assert option in done.stdout, option
    check_relive(arguments[ours + 1 :])


def check_relive(arguments: list[str]) -> None:
    """ls runs; of the others the options are known to their help."""
    if arguments == ["ls"] or arguments == ["--version"]:
        assert run_relive(*arguments).returncode == 0
        return
    command = arguments[:2] if arguments[0] in ("train", "fleet", "token") else arguments[:1]
    done = run_relive(*command, "--help")
    if "needs" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    for option in re.findall(r"--[a-z-]+", " ".join(arguments)):
        assert option in done.stdout, option


@functools.cache
def run_relive(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "160", "TERM": "dumb"}
    line = [sys.executable, "-m", "relive.cli", *arguments]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, env=environment)


# ---- tables --------------------------------------------------------------------------------------------------------


TOML = [one for one in ALL if one.language == "toml"]


@pytest.mark.parametrize(
    "block", [one for one in TOML if one.page.name in ("training.md", "ray.md")], ids=lambda one: one.first
)
def test_configurations_of_a_run_load(block: Block, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="agents are written in torch")
    from relive.train import load_config

    path = tmp_path / "run.toml"
    path.write_text(block.text)
    assert load_config(path).agent.name in block.text


@pytest.mark.parametrize(
    "block",
    [one for one in TOML if one.page.name not in ("training.md", "ray.md", "fleet.md")],
    ids=lambda one: f"{name_of(one.page)}:{one.first}",
)
def test_tables_of_a_server_load(block: Block, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.flight", reason="pyarrow is not installed here (the extra `service`)")
    from relive.service.config import load_config

    path = tmp_path / "table.toml"
    path.write_text(block.text)
    assert load_config(path).tables


@pytest.mark.parametrize("block", [one for one in TOML if one.page.name == "fleet.md"], ids=lambda one: one.first)
def test_fleets_load(block: Block, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed here")
    from relive.fleet.ray import load_config

    path = tmp_path / "fleet.toml"
    path.write_text(block.text)
    assert load_config(path).num_shards > 1


# ---- the runner itself ---------------------------------------------------------------------------------------------


def test_a_block_that_fails_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\nvalue = 1\n```\n\n```python\nassert value == 1\nassert value == 2\n```\n")
    first, second = blocks_of(page)
    assert (first.text, second.reason) == ("value = 1", "")
    program = tmp_path / "runner.py"
    program.write_text(RUNNER)
    line = [sys.executable, str(program), str(page), *(f"{one.first}-{one.last}" for one in (first, second))]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and 'page.md", line 9' in done.stderr
    page.write_text("```python\n# not run by the tests: it needs the moon\nimport moon\n```\n")
    assert blocks_of(page)[0].reason == "it needs the moon"
