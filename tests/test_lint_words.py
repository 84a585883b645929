"""The lint of words finds the habits that it names, and nothing in a plain sentence."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def lint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    path = Path(__file__).resolve().parent.parent / "scripts" / "lint_words.py"
    spec = importlib.util.spec_from_file_location("lint_words", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lint_words", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "ALLOWED", tmp_path / "allowed.json")
    monkeypatch.setattr(
        module, "files", lambda: sorted(path for path in tmp_path.rglob("*.*") if path.suffix != ".json")
    )
    return module


STUMBLES = {
    "page.md": "A page. Of the rows none is left.\n\n- What is drawn\n\n| one | What holds |\n",
    "src/words.py": '"""Closes it for whoever asks."""\n\nTEXT = "nobody but us"  # who asks\n# Of two lines\n',
    "cpp/words.hpp": "// Nobody calls\n// this. What it does.\nint x;  // anew\n",
}
PLAIN = {
    "page.md": "What is an item? A window.\n\n```\nwho\n```\n\nThe number of rows. `who` is code.\n",
    "src/words.py": '"""Closes the table, or is "drawn anew"."""\n\nWHO = "who"\nwho = 1  # the caller\n'
    'Kind = Literal["drawn anew"]\nkind = "drawn anew"\n',
    "cpp/words.hpp": "int who;  // the rows of the page\n",
}


def write(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_each_habit_is_found(lint: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, STUMBLES)
    found = {name: len(lint.finds_in(tmp_path / name)) for name in STUMBLES}
    assert found == {"page.md": 3, "src/words.py": 4, "cpp/words.hpp": 3}
    assert lint.main([]) == 1


def test_plain_words_pass(lint: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    assert not [find for name in PLAIN for find in lint.finds_in(tmp_path / name)]
    assert lint.main([]) == 0


def test_the_list_only_shrinks(lint: ModuleType, tmp_path: Path) -> None:
    write(tmp_path, STUMBLES)
    lint.ALLOWED.write_text(json.dumps({"page.md": 5, "src/words.py": 1, "cpp/words.hpp": 3}))
    assert lint.main([]) == 1
    assert lint.main(["--shrink"]) == 1  # one file has more finds than it may
    assert json.loads(lint.ALLOWED.read_text()) == {"page.md": 3, "src/words.py": 1, "cpp/words.hpp": 3}
    (tmp_path / "src" / "words.py").write_text("")
    assert lint.main([]) == 1  # fewer than listed: the list has to follow
    assert lint.main(["--shrink"]) == 0 and lint.main([]) == 0
