"""Lists every public name of relive without importing it: the names in the `__all__` of its public modules."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[2] / "src" / "relive"

# Each page of the reference: its title, and the modules whose names it shows. The names of `relive` itself are on the
# page of the room that defines them.
ROOMS = {
    "tables": ("Tables", ("table", "core", "errors.base")),
    "configuration": ("Configuration of a table", ("config",)),
    "batches": ("Draws, batches and writers", ("reading", "writing")),
    "over": ("Mixtures, patterns and loaders", ("over",)),
}
MODULES = {
    "errors": ("Errors", ("relive.errors",)),
    "adapters": ("Adapters", ("relive.adapters.*",)),
    "checkpoint": ("Checkpoints of a learner", ("relive.checkpoint",)),
    "service": ("Service", ("relive.service",)),
    "fleet": ("Shards", ("relive.fleet", "relive.fleet.torch", "relive.fleet.ray")),
    "gpu": ("GPU", ("relive.gpu",)),
    "train": ("Training", ("relive.train",)),
}


HELPERS = {"__init__", "errors", "lanes", "rows", "trees"}  # files of adapters that other files of the folder build on


class Name(NamedTuple):
    """A public name: the module that offers it, the name, and the module that defines it."""

    module: str
    name: str
    home: str

    @property
    def path(self) -> str:
        """The name as a program writes it."""
        return f"{self.module}.{self.name}"


def file_of(module: str) -> Path:
    """The file of a module: relive.fleet, relive.fleet.torch."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def names_of(module: str) -> list[Name]:
    """The names in the `__all__` of a module, in its order; none if it has no `__all__`."""
    tree = ast.parse(file_of(module).read_text())
    homes: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            homes.update({alias.asname or alias.name: node.module for alias in node.names})
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names = ast.literal_eval(node.value)
            return [Name(module, name, homes.get(name, module)) for name in names]
    return []


def modules_of(pattern: str) -> list[str]:
    """The modules that a pattern names: `relive.adapters.*` is each file and each folder of the folder."""
    if not pattern.endswith(".*"):
        return [pattern]
    folder = SOURCE.joinpath(*pattern.split(".")[1:-1])
    stems = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    return [f"{pattern[:-2]}.{stem}" for stem in sorted(stems - HELPERS)]


def pages() -> dict[str, tuple[str, list[Name]]]:
    """{page: (title, its names)}: every public name is on exactly one page."""
    found: dict[str, tuple[str, list[Name]]] = {}
    left = [name for name in names_of("relive") if name.name != "errors"]
    for page, (title, rooms) in ROOMS.items():
        here = [one for one in left if any(one.home.startswith(f"relive.{room}") for room in rooms)]
        left = [one for one in left if one not in here]
        found[page] = title, here
    errors = {one.name for one in names_of("relive.errors")}
    left = [one for one in left if one.name not in errors]  # on the page of errors, under that module's name
    assert not left, f"no page shows {[one.path for one in left]}"
    for page, (title, patterns) in MODULES.items():
        modules = [module for pattern in patterns for module in modules_of(pattern)]
        found[page] = title, [one for module in modules for one in names_of(module)]
    return found
