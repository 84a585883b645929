"""The form of an example: its length, its head, its imports, its page. No example runs here."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from examples.cases import CASES, HELPERS, LONGEST, SHORTEST

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem not in HELPERS)
PUBLIC = {
    "relive",
    "relive.adapters.gymnasium",
    "relive.checkpoint",
    "relive.errors",
    "relive.fleet",
    "relive.gpu",
    "relive.service",
    "relive.train",
}


def test_every_example_has_a_short_run_and_every_short_run_an_example() -> None:
    assert {path.stem for path in FILES} == set(CASES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_keeps_its_limit_of_lines(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    print(f"{path.name}: {lines} lines of {LONGEST}")
    assert SHORTEST <= lines <= LONGEST


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_imports_public_names_only(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            assert node.module is not None and node.module.partition(".")[0] not in {"tests", "benchmarks"}
            if node.module.startswith("relive"):
                assert node.module in PUBLIC, f"line {node.lineno}: {node.module} is private"
                module = importlib.import_module(node.module)
                assert set(names) <= set(module.__all__), f"line {node.lineno}: a private name of {node.module}"
        elif isinstance(node, ast.Import):
            for name in names:
                assert name in PUBLIC or not name.startswith(("relive", "tests", "benchmarks")), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_head_of_an_example_names_paper_formula_and_deviations(path: Path) -> None:
    head = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert "Deviations" in head and ("Paper" in head or "Subject" in head)
    assert "\n    " in head, "a formula, or a picture of the data flow, stands indented"


@pytest.mark.parametrize("name", CASES)
def test_an_example_has_its_page(name: str) -> None:
    page = (ROOT / "docs" / "examples" / f"{name}.md").read_text()
    for heading in ("## When to use it", "## Data flow", "## Run it", "## Curve", "## Left out"):
        assert heading in page, f"docs/examples/{name}.md lacks {heading!r}"
    assert f"python examples/{name}.py" in page
    assert f"({name}.md)" in (ROOT / "docs" / "examples" / "index.md").read_text()
