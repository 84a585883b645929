"""Finds words that a reader stumbles over: in pages, docstrings, comments and the sentences of the library.

usage: python scripts/lint_words.py [--shrink]

The lint refuses four habits:
  "who", "whoever", "somebody" and "nobody"  code and processes are things: name the caller, the writer, the page
  a sentence that opens with "Of "           the subject comes first
  a sentence that opens with "What "         name the thing
  "anew" and "withal"                        write "again"

A string of a `Literal[...]` is a value that callers compare. The lint reads such a value as code.

scripts/words_allowed.json lists the finds that are left, as a number for each file. The list only shrinks: a file with
more finds than its number fails, and so does a file with fewer, until `--shrink` has written the smaller number.
"""

from __future__ import annotations

import ast
import functools
import io
import json
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "scripts" / "words_allowed.json"
FOLDERS = (
    "README.md",
    "CHANGELOG.md",
    "Makefile",
    "CMakeLists.txt",
    "docs",
    "src",
    "cpp",
    "benchmarks",
    "conformance",
    "scripts",
    "examples",
)
WORDS = re.compile(r"\b(who|whoever|somebody|nobody|anew|withal)\b", re.IGNORECASE)
# The first word of a sentence, of a list item or of a table cell. A question may open with "What".
OPENING = re.compile(r"(?:^|[.!?:]\)?\s+|\|\s*)[-*#>\s]*(Of|What)\s(?![^.\n]*\?)", re.MULTILINE)
Find = tuple[int, str]


def of_text(text: str, first_line: int) -> Iterator[Find]:
    """The finds in one piece of prose: (line, the words around the find)."""
    for found in (*WORDS.finditer(text), *OPENING.finditer(text)):
        at = found.start(found.lastindex or 0)
        around = " ".join(text[max(0, at - 30) : at + 50].split())
        yield first_line + text.count("\n", 0, at), around


def of_page(source: str) -> Iterator[Find]:
    """Prose of a Markdown page, without code."""
    prose: list[str] = []
    in_code = False
    for line in source.splitlines():
        is_fence = line.lstrip().startswith("```")
        in_code = in_code != is_fence
        prose.append("" if in_code or is_fence else re.sub(r"`[^`]*`", "`code`", line))
    return of_text("\n".join(prose), 1)


def of_python(source: str, is_library: bool) -> Iterator[Find]:
    """Docstrings and comments; of the library every sentence that a program can print, too."""
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings.add(id(first.value))
    values = values_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in values:
            if id(node) in docstrings or (is_library and " " in node.value):
                prose = functools.reduce(lambda text, value: text.replace(f'"{value}"', "code"), values, node.value)
                yield from of_text(prose, node.lineno)
    comments: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.append((token.start[0], token.string.lstrip("#: ")))
    yield from of_comments(comments)


def values_of(tree: ast.AST) -> set[str]:
    """The strings of every `Literal[...]`."""
    literals = [
        node.slice
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"
    ]
    constants = (node for literal in literals for node in ast.walk(literal) if isinstance(node, ast.Constant))
    return {node.value for node in constants if isinstance(node.value, str)}


def of_code(source: str, mark: str) -> Iterator[Find]:
    """Comments that begin with this mark."""
    comment = re.compile(mark + r"+\s?(.*)$")
    found = ((number, comment.search(line)) for number, line in enumerate(source.splitlines(), 1))
    yield from of_comments([(number, match.group(1)) for number, match in found if match])


def of_comments(comments: list[tuple[int, str]]) -> Iterator[Find]:
    """Comments on lines that follow each other are one piece of prose."""
    block: list[str] = []
    first = last = 0
    for number, text in [*comments, (-1, "")]:
        if block and number != last + 1:
            yield from of_text("\n".join(block), first)
            block = []
        if not block:
            first = number
        block.append(text)
        last = number


def finds_in(path: Path) -> list[Find]:
    """The finds in one file, by line."""
    source = path.read_text(errors="replace")
    if path.suffix == ".md":
        return sorted(of_page(source))
    if path.suffix in {".py", ".pyi"}:
        return sorted(of_python(source, "src" in path.relative_to(ROOT).parts))
    return sorted(of_code(source, "//" if path.suffix in {".cpp", ".hpp"} else "#"))


def files() -> list[Path]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *FOLDERS],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    paths = [ROOT / name for name in done.stdout.splitlines()]
    suffixes = {".md", ".py", ".pyi", ".cpp", ".hpp", ".txt", ".cmake", ".sh", ""}
    return sorted(path for path in paths if path.suffix in suffixes and path.is_file() and path != Path(__file__))


def main(arguments: list[str]) -> int:
    """0 where every file has exactly as many finds as the list allows."""
    allowed: dict[str, int] = json.loads(ALLOWED.read_text()) if ALLOWED.exists() else {}
    found = {str(path.relative_to(ROOT)): finds for path in files() if (finds := finds_in(path))}
    if "--shrink" in arguments:
        kept = {name: min(len(found[name]), most) for name, most in allowed.items() if name in found}
        ALLOWED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
        allowed = kept
    more = {name: finds for name, finds in found.items() if len(finds) > allowed.get(name, 0)}
    fewer = [name for name, most in allowed.items() if len(found.get(name, ())) < most]
    for name, finds in more.items():
        for line, words in finds:
            print(f"{name}:{line}: {words}")
        print(f"{name}: {len(finds)} finds, {allowed.get(name, 0)} allowed")
    for name in fewer:
        print(f"{name}: fewer finds than the list allows; run python scripts/lint_words.py --shrink")
    print(f"words: {sum(map(len, found.values()))} finds in {len(found)} files, {sum(allowed.values())} allowed")
    return 1 if more or fewer else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
