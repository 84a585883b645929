"""Each row of the table of meanings that is built has a test named after it, in the suite that every table passes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = {"and", "the", "of", "writer", "closed", "or", "dead"}


def rows() -> list[str]:
    page = (ROOT / "docs" / "design" / "contract.md").read_text()
    table = page[page.index("| question | answer |") :].split("\n\n")[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower())) - LEFT_OUT


def names_of_tests() -> list[set[str]]:
    """The words of every test of the suite."""
    names = []
    for path in (ROOT / "tests" / "contract").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                names.append(words(node.name.removeprefix("test_").replace("_", " ")))
    return names


def test_each_row_of_the_contract_has_a_test_of_its_name() -> None:
    assert len(rows()) > 20
    names = names_of_tests()
    assert not [row for row in rows() if not any(words(row) <= name for name in names)]
