"""Imports go down only, and `import relive` pulls in numpy and nothing else."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "relive"

# Rooms from the ground up. A room is a folder or a file; the rooms of one line do not import each other. A room may
# import the rooms of the lines above its own line.
FLOORS: list[set[str]] = [
    {"errors"},
    {"checks"},
    {"config"},
    {"core"},
    {"saving"},
    {"reading", "writing"},
    {"table"},
    {"over", "checkpoint"},
    {"service"},
    {"fleet", "gpu", "adapters"},
    {"agents"},
    {"train"},
    {"cli"},
]
# The same inside the folders that have rooms of their own.
INNER_FLOORS: dict[str, list[set[str]]] = {
    "service": [{"wire"}, {"parameters"}, {"client"}, {"server", "config"}],
    "fleet": [
        {"errors"},
        {"draws", "keys"},
        {"saved"},
        {"shards", "owner"},
        {"agreement", "calls", "writing", "remote", "mapped", "saving"},
        {"onesided"},
        {"drawing"},
        {"core", "group_reader", "opened"},
        {"holds"},
        {"sharded_table", "torch", "ray_config"},
        {"on_ray"},
        {"ray"},
    ],
    "train": [
        {"errors", "settings", "parts", "run_directory"},
        {"signals", "topology", "sections"},
        {"child"},
        {"config"},
        {"memory"},
        {"watching"},
        {"acting", "learners", "checkpoint"},
        {"evaluating"},
        {"setup", "learner"},
        {"assembly", "resuming"},
        {"run"},
        {"tuning"},
    ],
}
MOST_FILES = 20  # of a folder
CORE_USERS = {"config", "core", "saving", "reading", "table", "gpu", "service", "fleet", "train"}


# Loaded only when a program asks for them: they are made of classes of other libraries.
LOADED_ALONE = {SOURCE / "fleet" / name for name in ("torch.py", "ray.py")} | {SOURCE / "over" / "loading.py"}
LOADED_ALONE |= {SOURCE / "fleet" / "on_ray" / name for name in ("cluster.py", "kept.py", "shard.py", "tasks.py")}
LOADED_ALONE |= {SOURCE / "train" / "acting" / name for name in ("ray_actors.py", "ray_shards.py")}
LOADED_ALONE |= {SOURCE / "train" / "learners" / "ray_hosts.py"}


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def heights(floors: list[set[str]]) -> dict[str, int]:
    return {name: height for height, names in enumerate(floors) for name in names}


def type_only(tree: ast.Module) -> set[int]:
    """Nodes inside `if TYPE_CHECKING:`: names for readers and checkers, no import at run time."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            inside |= {id(child) for statement in node.body for child in ast.walk(statement)}
    return inside


@functools.cache
def imports_of(path: Path) -> tuple[tuple[str, int, bool], ...]:
    return tuple(_imports_of(path))


def _imports_of(path: Path) -> Iterator[tuple[str, int, bool]]:
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


def refused(path: Path, floors: list[set[str]], depth: int) -> list[str]:
    """The imports of a module that do not go down, among the rooms at this depth below src/relive."""
    floor, package = heights(floors), ("relive", *path.relative_to(SOURCE).parts[:depth])
    here = path.relative_to(SOURCE).parts[depth].removesuffix(".py")
    if here == "__init__":
        return []  # the face of the folder hands on names of all its rooms
    found = []
    for name, line, _ in imports_of(path):
        parts = tuple(name.split("."))
        if parts[: depth + 1] != package:
            continue
        if len(parts) == depth + 1:
            found.append(f"{path.name}:{line}: {here} imports its own folder's face")
            continue
        there = parts[depth + 1]
        if there in (here, "_core") or (depth == 0 and there not in floor and here in UPSTAIRS):
            continue  # a name of the public face
        if there not in floor or floor[there] >= floor[here]:
            found.append(f"{path.name}:{line}: {here} imports {name}, which is not below {here}")
    return found


UPSTAIRS = {"service", "fleet", "gpu", "adapters", "agents", "train", "cli"}  # they may use `relive.Table` and the like


def test_every_module_has_its_floor() -> None:
    assert {part_of(path) for path in modules()} == set(heights(FLOORS))
    for folder, floors in INNER_FLOORS.items():
        rooms = {path.relative_to(SOURCE).parts[1].removesuffix(".py") for path in (SOURCE / folder).rglob("*.py")}
        assert rooms - {"__init__"} == set(heights(floors)), folder


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down_only(path: Path) -> None:
    here = part_of(path)
    found = refused(path, FLOORS, 0)
    if here in INNER_FLOORS:
        found += refused(path, INNER_FLOORS[here], 1)
    assert not found, "\n".join(found)


def test_an_import_that_goes_up_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, up in {"core/a.py": "relive.table.handle", "service/wire/b.py": "relive.service.client.exchange"}.items():
        path = tmp_path / "relive" / name
        path.parent.mkdir(parents=True)
        path.write_text(f"from {up} import something\n")
    monkeypatch.setitem(globals(), "SOURCE", tmp_path / "relive")
    assert len(refused(tmp_path / "relive" / "core" / "a.py", FLOORS, 0)) == 1
    assert len(refused(tmp_path / "relive" / "service" / "wire" / "b.py", INNER_FLOORS["service"], 1)) == 1


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {".".join(("relive", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in modules()}
    edges: dict[str, set[str]] = {}
    for name, path in names.items():
        tree = ast.parse(path.read_text())
        hidden = type_only(tree)
        found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and id(node) not in hidden]
        several = {f"{node.module}.{alias.name}" for node in found for alias in node.names}
        edges[name] = (several | {str(node.module) for node in found}) & set(names)
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join((*above[above.index(name) :], name))
        if name not in done:
            for there in edges[name]:
                visit(there, (*above, name))
            done.add(name)

    for name in names:
        visit(name, ())


def test_the_core_is_spoken_to_by_few() -> None:
    for path in modules():
        speaks = [name for name, _, _ in imports_of(path) if name.split(".")[:2] == ["relive", "_core"]]
        assert not speaks or part_of(path) in CORE_USERS, f"{path.name}: {part_of(path)} does not speak to the core"


def folders() -> list[Path]:
    return sorted({path.parent for path in modules()} | {SOURCE})


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: folder.name)
def test_a_folder_says_what_it_contains_and_what_not(folder: Path) -> None:
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    first = text.split("\n\n")[0]
    assert first.endswith(".") and first.count(". ") == 0, "one sentence"
    assert folder == SOURCE or re.search(r"; no(t|ne|thing)? ", first), "say which code the folder does not contain"
    assert len(list(folder.glob("*.py"))) <= MOST_FILES


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_of_the_house_are_at_the_top(path: Path) -> None:
    """An import hidden in a function hides a cycle."""
    hidden = [(name, line) for name, line, at_top in imports_of(path) if name.startswith("relive") and not at_top]
    if part_of(path) == "cli":
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
        if part_of(path) != "cli" and path not in LOADED_ALONE:  # one of them may build on another
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


def test_import_relive_leaves_to_their_first_use_what_few_programs_use() -> None:
    """Each of these modules costs a hundredth of the import, or more."""
    late = ["html", "difflib", "fractions", "relive.over", "relive.table.stats"]
    program = f"import sys, numpy, relive; print([name for name in {late} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    program = "import sys, relive; assert 'Mixture' in dir(relive); relive.Mixture; assert 'relive.over' in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_import_relive_is_quiet_and_starts_nothing() -> None:
    program = "import threading, relive; assert threading.active_count() == 1"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
