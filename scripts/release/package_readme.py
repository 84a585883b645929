"""Makes the README of the package from the README of the repository: no link of it depends on the repository's files.

usage: python scripts/release/package_readme.py SOURCE TARGET [HOME]

With HOME, the address of the files of the released version (https://HOST/OWNER/relive/blob/v0.1.0), relative links and
pictures lead there. Without HOME a link becomes its words, and a picture goes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?!https?://|mailto:|#)[^)\s]+)\)")


def packaged(text: str, home: str = "") -> str:
    """The text with links that work outside of the repository."""

    def absolute(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        if not home:
            return "" if mark else words
        base = home.replace("/blob/", "/raw/", 1) if mark else home
        return f"{mark}[{words}]({base.rstrip('/')}/{target})"

    return re.sub(r"\n{3,}", "\n\n", LINK.sub(absolute, text))


def main(source: str, target: str, home: str = "") -> int:
    """Writes the target."""
    Path(target).write_text(packaged(Path(source).read_text(), home))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
