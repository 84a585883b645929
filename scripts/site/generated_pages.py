"""Writes the pages of the site that come from code and results: reference, troubleshooting, measured figures.

usage: python scripts/site/generated_pages.py FOLDER

The script needs relive itself, for the sentences of its errors. mkdocs needs the written pages only.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path

from public_names import SOURCE, Name, pages

from relive import errors

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from unit.error_examples import EXAMPLES  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
# Sections of the page of troubleshooting: the files of relive/errors, with the question that a reader has.
SECTIONS = {
    "arguments": "A value or an argument is refused",
    "names": "A name is unknown",
    "waiting": "A call waits too long",
    "items": "Items cannot be drawn or made",
    "episodes": "Episodes do not fit together",
    "late": "Late columns",
    "storage": "Memory, names and files",
    "handles": "A handle is closed, forked or full",
    "saving": "Saves",
    "service": "A table on another machine",
    "packages": "A package is missing",
}


# A search shows the pages by task before the reference, which has every word many times.
LATER = ("---", "search:", "  boost: 0.5", "---", "")


def reference() -> dict[str, str]:
    """{file: page}: one page for each room, and an overview of all names."""
    written: dict[str, str] = {}
    rows = ["# Reference", "", "Every public name, generated from its docstring.", "", "| name | page |", "|---|---|"]
    for page, (title, names) in pages().items():
        text = [*LATER, f"# {title}", ""]
        for one in names:
            text += [f"::: {one.path}", ""]
            rows.append(f"| [`{one.path}`]({page}.md#{one.path}) | [{title}]({page}.md) |")
        written[f"reference/{page}.md"] = "\n".join(text)
    written["reference/index.md"] = "\n".join(rows) + "\n"
    return written


def troubleshooting() -> str:
    """Every error class of the library with its sentence."""
    text = [
        "# Troubleshooting",
        "",
        "An error of relive has a type, fields and one sentence. The sentence states the fault, the expected value,",
        "the value received and the way out. A program decides by the type and the fields:",
        "`except relive.errors.NoSuchTable`.",
        "",
        "If relive does not start at all, run `relive doctor`: it checks this machine and names the actions to take.",
        "",
        "This page is generated from the error classes. The sentences are examples.",
        "",
    ]
    said: dict[str, list[str]] = {}
    for example in EXAMPLES:
        said.setdefault(type(example).__name__, []).append(str(example))
    for file, title in SECTIONS.items():
        text += [f"## {title}", ""]
        for name in classes_in(file):
            kind = getattr(errors, name)
            text += [f"### {name}", "", first_paragraph(kind), ""]
            text += [line for sentence in said[name] for line in (f"> {quoted(sentence)}", "")]
            text += [f"Fields: [`{name}`](reference/errors.md#relive.errors.{name}).", ""]
    text += ["## Errors of shards, runs and devices", "", "| error | condition |", "|---|---|"]
    text += [f"| `{one.path}` | {condition} |" for one, condition in other_errors()]
    return "\n".join(text) + "\n"


def classes_in(file: str) -> list[str]:
    """The error classes of a file of relive/errors, in its order."""
    tree = ast.parse((SOURCE / "errors" / f"{file}.py").read_text())
    return [node.name for node in tree.body if isinstance(node, ast.ClassDef) and node.name in errors.__all__]


def first_paragraph(kind: type) -> str:
    """The first paragraph of a docstring on one line."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def quoted(sentence: str) -> str:
    """A sentence as Markdown that shows each character."""
    return re.sub(r"([<>\[\]*_`|])", r"\\\1", sentence)


def other_errors() -> list[tuple[Name, str]]:
    """The public errors of the packages above relive.errors, read from their files: not every extra is installed."""
    found = []
    for page in ("adapters", "service", "fleet", "gpu", "train"):
        for one in pages()[page][1]:
            home = SOURCE.joinpath(*one.home.split(".")[1:]).with_suffix(".py")
            nodes = ast.parse(home.read_text()).body if home.is_file() else []
            for node in nodes:
                if isinstance(node, ast.ClassDef) and node.name == one.name and is_error(node):
                    docstring = (ast.get_docstring(node) or "").partition("\n\n")[0]
                    found.append((one, " ".join(docstring.split())))
    return found


def is_error(node: ast.ClassDef) -> bool:
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
    return bool(bases & {"ReliveError", *errors.__all__}) or any(base.endswith("Error") for base in bases)


def measured() -> str:
    """Every table of benchmarks/results that has a page."""
    text = [
        "# Measured",
        "",
        "These tables come from `benchmarks/results`. `make bench` measures them again on your machine. Each table",
        "names its processor and the versions of the libraries.",
        "",
    ]
    for path in sorted(RESULTS.glob("*.md")):
        body = re.sub(r"^# (.+)$", lambda found: f"## {found[1][0].upper()}{found[1][1:]}", path.read_text(), count=1)
        text += [re.sub(r"!?\[[^\]]*\]\((?!http)[^)]*\)", "", body).rstrip(), ""]
    return "\n".join(text)


def main(folder: Path) -> int:
    """Writes the pages whose content changed."""
    written = {**reference(), "troubleshooting.md": troubleshooting(), "measured.md": measured()}
    for name, text in written.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_text() != text:
            target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
