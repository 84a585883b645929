"""Checks the built site: every link and anchor leads somewhere, search has the words, the reference has every name.

usage: python scripts/site/check_site.py FOLDER

Needs Python only. scripts/site/browse_site.py checks the same site in a browser.
"""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from public_names import pages

WORDS = ("save", "priorities", "burn-in", "attach", "StorageFull")


class Page(HTMLParser):
    """The anchors and the links of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        given = dict(attrs)
        self.anchors.update(value for name in ("id", "name") if (value := given.get(name)))
        for name in ("href", "src"):
            if value := given.get(name):
                self.links.append(value)


def dead_links(folder: Path) -> list[str]:
    """Links inside the site to a file or an anchor that does not exist."""
    read = {path: Page(path.read_text()) for path in folder.rglob("*.html")}
    lost = []
    for path, page in read.items():
        if path.name == "404.html":  # its links begin at the root of the host
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("data:"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            there = read.get(target)
            if not target.exists() or (anchor and there is not None and anchor not in there.anchors):
                lost.append(f"{path.relative_to(folder)}: {link}")
    return lost


def missing_words(folder: Path) -> list[str]:
    """Words that the index of the search lacks."""
    index = json.loads((folder / "search" / "search_index.json").read_text())
    text = " ".join(f"{one['title']} {one['text']}" for one in index["docs"]).lower()
    return [word for word in WORDS if word.lower() not in text]


def missing_names(folder: Path) -> list[str]:
    """Public names without an anchor on their page of the reference."""
    missing = []
    for page, (_, names) in pages().items():
        anchors = Page((folder / "reference" / page / "index.html").read_text()).anchors
        missing += [one.path for one in names if one.path not in anchors]
    return missing


def main(folder: Path) -> int:
    """Prints the faults. 0 if there are none."""
    faults = [f"dead link: {one}" for one in dead_links(folder)]
    faults += [f"the search does not know: {one}" for one in missing_words(folder)]
    faults += [f"not in the reference: {one}" for one in missing_names(folder)]
    for fault in faults:
        print(fault)
    count = len(list(folder.rglob("*.html")))
    print(f"{folder}: {count} pages, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
