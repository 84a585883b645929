"""Imports go down only, and `import relive` pulls in numpy and nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "relive"

# Floors from the ground up. A module may import modules of lower floors, and of its own where that is said.
FLOORS: list[set[str]] = [
    {"_error_base", "_slips", "_pytrees", "_holders", "_extras"},
    {"_item_errors", "_late_errors", "_name_errors", "_storage_errors"},
    {"errors"},
    {"_checks", "_closing", "_ending", "_wrong_names", "_parts", "_loadable"},
    {"priorities"},
    {"spec", "_spaces", "_casting"},
    {"protocol", "table_core", "late"},
    {"items", "explicit", "samplers", "limiters", "storage"},
    {"where", "hindsight", "prompt_groups"},
    {"index", "capacity"},
    {"config"},
    {"batch", "stats", "new_items", "shares", "own_draws", "draws"},
    {"batches", "held"},
    {"rewards"},
    {"handle"},
    {"writer", "sources", "patterns", "mixture"},
    {"table"},
    {"service"},
    {"fleet"},
    {"adapters"},
    {"gpu"},
    {"agents"},
    {"train"},
    {"loading"},
    {"open"},
    {"cli"},
]
FLOOR = {name: number for number, names in enumerate(FLOORS) for name in names}
MAY_IMPORT_EACH_OTHER = [{"spec", "_spaces", "_casting"}]
CORE_USERS = {
    "_ending",
    "batch",
    "sources",
    "table",
    "open",
    "_casting",
    "gpu",
    "service",
    "fleet",
    "train",
}


# Loaded by who asks for them alone: they are made of other people's classes.
LOADED_ALONE = {SOURCE / "fleet" / name for name in ("torch.py", "ray.py", "command.py")} | {SOURCE / "loading.py"}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def type_only(tree: ast.Module) -> set[int]:
    """Nodes inside `if TYPE_CHECKING:`: names for readers and checkers, no import at run time."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            inside |= {id(child) for statement in node.body for child in ast.walk(statement)}
    return inside


def imports_of(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(dotted name, line, whether at the top of the module) of everything a module imports at run time."""
    tree = ast.parse(path.read_text(), str(path))
    skipped, top = type_only(tree), {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) in top
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(SOURCE.parent).with_suffix("").parts
            base = ".".join(package[: len(package) - node.level]) if node.level else ""
            name = ".".join(part for part in (base, node.module or "") if part)
            if name == "relive":
                for alias in node.names:
                    yield f"relive.{alias.name}", node.lineno, id(node) in top
            else:
                yield name, node.lineno, id(node) in top


def test_every_module_has_its_floor() -> None:
    unknown = {part_of(path) for path in modules()} - set(FLOOR)
    assert not unknown, f"give a floor to {sorted(unknown)}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_only(path: Path) -> None:
    here = part_of(path)
    for name, line, _ in imports_of(path):
        if not name.startswith("relive"):
            continue
        parts = name.split(".")
        assert len(parts) > 1, f"{path.name}:{line} imports the roof of the house"
        there = parts[1]
        if there == here:
            continue
        if there == "_core":
            assert here in CORE_USERS, f"{path.name}:{line}: {here} does not speak to the core"
            continue
        if there not in FLOOR and FLOOR[here] >= FLOOR["adapters"]:
            continue  # a name of the public face
        assert there in FLOOR, f"{path.name}:{line} imports {name}, which has no floor"
        siblings = any({here, there} <= group for group in MAY_IMPORT_EACH_OTHER)
        assert FLOOR[there] < FLOOR[here] or siblings, (
            f"{path.name}:{line}: {here} imports {there}, which is not below it"
        )


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_of_the_house_are_at_the_top(path: Path) -> None:
    """An import hidden in a function hides a cycle."""
    hidden = [(name, line) for name, line, at_top in imports_of(path) if name.startswith("relive") and not at_top]
    if part_of(path) == "cli" or path == SOURCE / "train" / "command.py":
        return  # commands load what they need: `relive ls` must not wait for torch
    assert not hidden


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_plain_floors_import_numpy_and_nothing_else(path: Path) -> None:
    if part_of(path) in {"service", "adapters", "gpu", "train", "agents", "cli"} or path in LOADED_ALONE:
        return
    for name, line, at_top in imports_of(path):
        top = name.split(".")[0]
        allowed = top in {"relive", "numpy", "__future__"} or top in sys.stdlib_module_names
        assert allowed or not at_top, f"{path.name}:{line} imports {name}"
        assert allowed or top in {"torch", "gymnasium"}, f"{path.name}:{line} imports {name}"


def test_nobody_loads_what_is_loaded_alone() -> None:
    names = {".".join(("relive", *path.relative_to(SOURCE).with_suffix("").parts)) for path in LOADED_ALONE}
    for path in modules():
        if part_of(path) != "cli" and path != SOURCE / "fleet" / "command.py":
            assert not [name for name, _, _ in imports_of(path) if name in names], path


def test_adapters_are_used_by_train_and_the_top_only() -> None:
    for path in modules():
        if part_of(path) in {"adapters", "train", "agents", "cli", "open"}:
            continue
        assert not [name for name, _, _ in imports_of(path) if name.startswith("relive.adapters")], path


def test_import_relive_pulls_in_numpy_and_nothing_else() -> None:
    program = (
        "import sys; import numpy; before = set(sys.modules); import relive;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(name for name in new if name not in sys.stdlib_module_names and name != 'numpy'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert eval(done.stdout) == ["relive"]


def test_import_relive_is_quiet_and_starts_nothing() -> None:
    program = "import threading, relive; assert threading.active_count() == 1"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
