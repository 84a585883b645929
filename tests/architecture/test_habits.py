"""Habits of the house that a program can check: sizes of files, no prints, no bare excepts, no paths of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "relive"
HABIT, LIMIT = 400, 600  # lines of a file
CODE = {".py", ".pyi", ".cpp", ".hpp", ".sh"}
TEXT = CODE | {".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".cfg", ""}
MACHINE_PATHS = re.compile("|".join(re.escape("/" + name + "/") for name in ("work", "root", "home", "Users")))


def tracked() -> list[Path]:
    """The files that git tracks or would track. Without git: all files outside of build folders."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode == 0 and done.stdout:
        return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]
    folders = ("src", "cpp", "tests", "docs", "scripts", "benchmarks")
    return [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]


def code_files() -> list[Path]:
    return sorted(path for path in tracked() if path.suffix in CODE)


def num_lines(path: Path) -> int:
    return len(path.read_text(errors="replace").splitlines())


def test_no_file_is_longer_than_the_limit() -> None:
    assert not {str(path.relative_to(ROOT)): num_lines(path) for path in code_files() if num_lines(path) > LIMIT}


def test_longer_than_the_habit_is_the_exception() -> None:
    long = [str(path.relative_to(ROOT)) for path in code_files() if num_lines(path) > HABIT]
    assert len(long) <= max(3, len(code_files()) // 20), long


def library_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_threads_that_may_outlive_the_interpreter_do_not_call_unique() -> None:
    """See core/distinct.py. Adapters run in the threads of their libraries."""
    wrong = re.compile(r"np\.unique")
    found = [path for path in library_files() if "adapters" not in path.parts and wrong.search(path.read_text())]
    assert [path.name for path in found] == ["distinct.py"]


def test_no_value_is_computed_under_a_lock_that_a_fork_copies() -> None:
    """Before Python 3.12 functools.cached_property has one lock for all objects. See core/forks.py."""
    found = [str(path.relative_to(SOURCE)) for path in library_files() if _uses_cached_property(path)]
    assert not found


def _uses_cached_property(path: Path) -> bool:
    nodes = ast.walk(ast.parse(path.read_text(), str(path)))
    return any(getattr(node, part, None) == "cached_property" for node in nodes for part in ("id", "attr", "name"))


def test_a_lock_of_a_module_or_a_class_is_new_in_a_forked_child() -> None:
    """See core/forks.py."""
    found = [path for path in library_files() if _has_shared_lock(ast.parse(path.read_text(), str(path)).body)]
    assert not [str(path.relative_to(SOURCE)) for path in found if "register_at_fork" not in path.read_text()]


def _has_shared_lock(body: list[ast.stmt]) -> bool:
    inner = [node for one in body if isinstance(one, ast.ClassDef) for node in one.body]
    values = [node.value for node in body + inner if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value]
    return any(ast.unparse(value) in ("threading.Lock()", "threading.RLock()") for value in values)


@pytest.mark.parametrize("path", library_files(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_habits_of_the_library(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "print", f"{path.name}:{line} prints"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{path.name}:{line} catches everything"
        if isinstance(node, ast.FunctionDef):
            assert node.name != "__del__", f"{path.name}:{line} tidies up in __del__"
            if node.name == "__init__" and not _is_error(path):
                arguments = [a.arg for a in node.args.args + node.args.kwonlyargs if a.arg != "self"]
                assert len(arguments) < 9, f"{path.name}:{line}: {len(arguments)} parameters"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
            if node.value.attr == "random" and isinstance(node.value.value, ast.Name):
                is_numpy = node.value.value.id in {"np", "numpy"}
                owned = node.attr in {"default_rng", "Generator", "SeedSequence", "Philox", "PCG64"}
                assert not is_numpy or owned, f"{path.name}:{line} uses the global random generator"


def _is_error(path: Path) -> bool:
    return path.parent.name == "errors" or path.name == "errors.py"


def test_no_path_of_one_machine() -> None:
    found = []
    for path in tracked():
        if path.suffix not in TEXT or path == Path(__file__).resolve() or path.stat().st_size > 1 << 20:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if MACHINE_PATHS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}")
    assert not found


def test_every_module_says_what_it_is() -> None:
    empty = [path for path in library_files() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert not empty


def test_every_header_says_what_it_is() -> None:
    headers = [path for path in code_files() if path.suffix == ".hpp"]
    assert headers and not [path for path in headers if not path.read_text().startswith("//")]


def test_the_core_knows_nothing_of_python() -> None:
    for path in (ROOT / "cpp" / "relive").rglob("*.[ch]pp"):
        assert not re.search(r"#include\s*[<\"](Python\.h|nanobind)", path.read_text()), path


def test_one_file_knows_the_operating_system() -> None:
    """Linux headers in the two files named after it only: another system is two other files."""
    system = re.compile(r"#include <(sys/|linux/|unistd\.h|fcntl\.h|pthread\.h)")
    users = {path.name for path in (ROOT / "cpp" / "relive").rglob("*.[ch]pp") if system.search(path.read_text())}
    assert users <= {"sync_linux.cpp", "page_file_linux.cpp"}
