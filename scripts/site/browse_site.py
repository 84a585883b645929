"""Checks the built site in headless Chromium: navigation, search, width on a telephone, contrast in both themes.

usage: python scripts/site/browse_site.py FOLDER

Needs playwright, axe-core-python and a Chromium: the one in CHROMIUM or PATH, else the one that playwright installed.
Without a Chromium the script says so and ends with status 0.
"""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TELEPHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
# Blocks that are wider than the page and do not scroll inside themselves.
WIDE = """() => {
  const wide = [];
  const scrolls = (node) => {
    for (let at = node; at && at !== document.body; at = at.parentElement) {
      if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(at).overflowX)) return true;
    }
    return false;
  };
  for (const node of document.querySelectorAll('.md-content *')) {
    const box = node.getBoundingClientRect();
    if (box.width > 0 && box.right > window.innerWidth + 1 && !scrolls(node)) {
      wide.push(node.tagName + ': ' + node.textContent.trim().slice(0, 40));
    }
  }
  return wide.slice(0, 3);
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of a folder."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def chromium() -> str | None:
    """The path of a Chromium of this machine."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if name and (path := shutil.which(name))), None)


def navigation_faults(page: Any, address: str) -> list[str]:
    """From the first page to the installation by a click, then to the next page at its foot."""
    page.goto(address)
    page.click(".md-nav--primary >> text=Install")
    page.wait_for_url("**/install/")
    page.click(".md-footer__link--next")
    page.wait_for_url("**/getting-started/")
    return [] if "Getting started" in page.text_content("h1") else ["the link to the next page leads elsewhere"]


def search_faults(page: Any, address: str) -> list[str]:
    """Search finds "save", and its first results have the page about saving."""
    page.goto(address)
    page.fill(".md-search__input", "save")
    page.wait_for_selector(".md-search-result__item a")
    found = page.eval_on_selector_all(".md-search-result__item a", "links => links.map(link => link.href)")
    return [] if any("/saving/" in link for link in found[:10]) else [f"search for 'save' finds {found[:3]}"]


def width_faults(page: Any, folder: Path, address: str) -> list[str]:
    """Pages with a block that overflows a telephone."""
    page.set_viewport_size(TELEPHONE)
    faults = []
    for path in sorted(folder.rglob("index.html")):
        name = str(path.parent.relative_to(folder))
        page.goto(f"{address}{'' if name == '.' else name + '/'}")
        faults += [f"{name}: wider than 390 pixels: {one}" for one in page.evaluate(WIDE)]
    page.set_viewport_size(DESKTOP)
    return faults


def contrast_faults(page: Any, address: str) -> list[str]:
    """Text with too little contrast (WCAG AA), by axe, in both themes."""
    from axe_core_python.sync_playwright import Axe

    axe, faults = Axe(), []
    for theme in ("default", "slate"):
        for name in ("", "getting-started/", "questions/", "adapters/"):  # axe is slow on long pages
            page.goto(address + name)
            page.add_style_tag(content="* { transition: none !important }")  # else axe sees colours on their way
            page.evaluate("theme => document.body.setAttribute('data-md-color-scheme', theme)", theme)
            options = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
            result = axe.run(page, context=None, options=options)
            for one in result["violations"]:
                nodes = {node["target"][0]: node["any"][0]["message"] for node in one["nodes"]}
                faults += [f"{theme} {name or 'index'}: {target}: {why}" for target, why in list(nodes.items())[:5]]
    return faults


def main(site: Path) -> int:
    """Prints the faults. 0 if there are none."""
    from playwright.sync_api import sync_playwright

    folder = max((path for path in site.iterdir() if (path / "index.html").is_file()), key=lambda path: path.name)
    with served(site) as host, sync_playwright() as player:
        try:
            browser = player.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        except Exception as problem:  # playwright raises its own Error for a missing browser
            print(f"no Chromium, so nothing was checked in a browser: {str(problem).splitlines()[0]}")
            return 0
        page = browser.new_page(viewport=DESKTOP)
        page.set_default_timeout(120_000)
        address = f"{host}/{folder.name}/"
        count = 0
        for name, check in (
            ("navigation", lambda: navigation_faults(page, address)),
            ("search", lambda: search_faults(page, address)),
            ("contrast", lambda: contrast_faults(page, address)),
            ("width", lambda: width_faults(page, folder, address)),
        ):
            faults = check()
            count += len(faults)
            print(f"{name}: {len(faults)} faults", *faults, sep="\n  ", flush=True)
        browser.close()
    print(f"in Chromium: {count} faults")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
