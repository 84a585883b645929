"""Hooks of mkdocs: adds the generated pages, and turns links to files outside of docs/ into plain text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "build" / "pages"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?!https?:|mailto:|#)[^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Adds the pages of docs/ that mkdocs.yml does not name: those of examples to their own section, others to More."""
    listed = set(re.findall(r"[\w/-]+\.md", str(config["nav"])))
    docs = Path(config["docs_dir"])
    found = sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))
    sections: dict[str, list[str]] = {}
    for name in found:
        if name not in listed:
            sections.setdefault("Examples" if name.startswith("examples/") else "More", []).append(name)
    at = next(number for number, one in enumerate(config["nav"]) if "Coming from" in one)
    for title, names in sections.items():
        config["nav"].insert(at, {title: sorted(names, key=lambda name: (not name.endswith("index.md"), name))})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds build/pages, which generated_pages.py wrote."""
    for path in sorted(PAGES.rglob("*.md")):
        name = str(path.relative_to(PAGES))
        files.append(File.generated(config, name, content=path.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A link to a file that the site does not have becomes its words; a folder with an index becomes the index."""
    folder = Path(page.file.src_uri).parent
    known = {file.src_uri for file in files}

    def resolved(found: re.Match[str]) -> str:
        parts: list[str] = []
        for part in (folder / found[3]).parts:
            parts = parts[:-1] if part == ".." and parts and parts[-1] != ".." else [*parts, part]
        name = "/".join(parts)
        if name in known:
            return found[0]
        return f"**{found[2]}**" if not found[1] else found[2]

    return LINK.sub(resolved, markdown)
