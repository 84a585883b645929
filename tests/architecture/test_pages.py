"""The pages: prose that fits a screen, rules by the names that the code has for them, a picture that is as drawn."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WIDEST = 120
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK_ALONE = re.compile(r"\s*([-*] )?!?\[[^\]]*\]\([^)]*\)[.,]?|\[!\[.*|\s*<?https?://\S+>?")


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page without code, tables, links on a line of their own, badges, and blocks that a program writes."""
    in_code = in_block = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif line.startswith("<!--"):
            in_block = not line.startswith("<!-- /") and "-->" in line and "written by" in line
        elif not (in_code or in_block or line.startswith("|") or LINK_ALONE.fullmatch(line)):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_keeps_to_lines_that_can_be_read(page: Path) -> None:
    assert not [f"{page.name}:{number}" for number, line in prose(page) if len(line) > WIDEST]


def test_a_page_that_breaks_the_rule_is_seen(tmp_path: Path) -> None:
    long = "word " * 30
    page = tmp_path / "page.md"
    page.write_text(f"| {long} |\n```\n{long}\n```\n[a link]({'x' * 130})\n{long}\n")
    assert [number for number, line in prose(page) if len(line) > WIDEST] == [6]


def test_every_rule_of_a_test_build_stands_in_the_protocol_and_no_other() -> None:
    """A mutant names the sentence that it takes away; the page says which sentence that is."""
    header = (ROOT / "cpp" / "relive" / "words" / "testing.hpp").read_text()
    rules = set(
        re.findall(r"X\((\w+)\)", header[header.index("#define RELIVE_RULES") : header.index("// clang-format on")])
    )
    page, items = ((ROOT / "docs" / "design" / name).read_text() for name in ("protocol.md", "protocol-items.md"))
    section = page[page.index("## M. ") : page.index("## K. ")]
    named = {
        name
        for row in section.splitlines()
        if row.startswith("| ")
        for name in re.findall(r"\w+_\w+", row.split("|")[1])
    }
    assert named == rules
    numbers = {name.split("_")[0] for name in rules}
    said = re.compile(r"\*\*(\w+)\*\*|^([A-Z][0-9]+)\. ", re.MULTILINE)
    missing = numbers - {mark or number for mark, number in said.findall(page + items)}
    assert not missing


DRAWN = {
    "house": "draw_house.picture()",
    "items": "draw_items.picture(draw_items.ITEMS)",
    "explicit": "draw_items.picture(draw_items.EXPLICIT)",
    "late-columns": "draw_items.picture(draw_items.LATE)",
    "samplers": "draw_choices.pictures()['samplers.svg']",
    "removers": "draw_choices.pictures()['removers.svg']",
    "hindsight": "draw_goals.pictures()['hindsight.svg']",
    "topologies": "draw_topologies.picture()",
    "prompt_groups": "draw_goals.pictures()['prompt_groups.svg']",
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_as_its_script_draws_it(name: str) -> None:
    """Run `python scripts/draw_house.py` after a floor or a room has changed, `draw_items` or `draw_choices` else."""
    drawn = DRAWN[name]
    program = f"import {drawn.partition('.')[0]}; print({drawn}, end='')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT / "scripts"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (ROOT / "docs" / "images" / f"{name}.svg").read_text()


@pytest.mark.parametrize("picture", sorted((ROOT / "docs" / "images").glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_is_shown_brings_its_own_paper_and_speaks(picture: Path) -> None:
    """White paper below everything, so that a dark page does not swallow the ink; words for blind readers."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")]
    assert any(f"images/{picture.name})" in page.read_text() for page in pages)
    head, below = picture.read_text().split("<rect", 1)
    assert 'aria-label="' in head
    width, height = head.split('viewBox="0 0 ')[1].split('"')[0].split()
    assert f'width="{width}" height="{height}"' in below.split("/>")[0] and 'fill="#ffffff"' in below.split("/>")[0]


LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


# Pages that scripts/site/generated_pages.py writes for the site. Links to them are checked in the built site.
GENERATED = re.compile(r"(?:troubleshooting|measured)\.md|reference/[\w-]+\.md")


def anchors_of(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub forms them: lower case, no punctuation, hyphens for blanks."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in texts}


GENERATED = re.compile(
    r"(reference/[\w-]+|troubleshooting|measured)\.md"
)  # `make docs` writes them and checks the links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lost = []
    for target, anchor in LINK.findall(prose):
        if "://" in target or target.startswith("mailto:") or GENERATED.fullmatch(target):
            continue
        there = (page.parent / target).resolve() if target else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors_of(there)):
            lost.append(f"{target}#{anchor}")
    assert not lost
