"""The site and the release, as far as they need no other package: names, generated pages, links; no browser."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import relive

ROOT = Path(__file__).resolve().parent.parent
if not (ROOT / "scripts" / "site").is_dir():
    pytest.skip("the site is built from the source tree only", allow_module_level=True)
sys.path[:0] = [str(ROOT / "scripts" / "site"), str(ROOT / "scripts" / "release")]
import check_site  # noqa: E402
import generated_pages  # noqa: E402
import package_readme  # noqa: E402
import public_names  # noqa: E402
import smoke  # noqa: E402
from unit.error_examples import EXAMPLES  # noqa: E402


def test_every_public_name_is_in_the_reference() -> None:
    shown = {one.path for _, names in public_names.pages().values() for one in names}
    text = "\n".join(generated_pages.reference().values())
    assert shown == set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))
    assert text.count("search:\n  boost: 0.5\n") == len(public_names.pages())  # below the pages by task
    errors = {f"relive.errors.{name}" for name in relive.errors.__all__}
    own = {f"relive.{name}" for name in relive.__all__} - {f"relive.{one.rpartition('.')[2]}" for one in errors}
    assert own - shown == {"relive.errors"} and errors <= shown
    for package in ("relive.fleet", "relive.checkpoint", "relive.adapters.gymnasium"):
        try:
            names = importlib.import_module(package).__all__
        except ImportError:
            continue
        assert {f"{package}.{name}" for name in names} <= shown
    folders = ("sb3.HerReplayBuffer", "tianshou.HERVectorReplayBuffer", "reverb.Client", "flashbax.make_flat_buffer")
    assert {f"relive.adapters.{name}" for name in folders} <= shown


def test_troubleshooting_has_every_error_with_its_sentence() -> None:
    page = generated_pages.troubleshooting()
    for example in EXAMPLES:
        assert f"### {type(example).__name__}\n" in page
        assert f"> {generated_pages.quoted(str(example))}\n" in page
    assert "`relive.fleet.NoLiveShard`" in page and "`relive.train.NonFiniteLoss`" in page


def test_measured_has_every_table_of_the_results() -> None:
    page = generated_pages.measured()
    for path in (ROOT / "benchmarks" / "results").glob("*.md"):
        rows = [line for line in path.read_text().splitlines() if line.startswith("| ")]
        assert rows[-1] in page


def test_every_page_of_the_navigation_exists() -> None:
    generated = {"troubleshooting.md", "measured.md", *generated_pages.reference()}
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert len(listed) > 40
    assert not [name for name in listed if name not in generated and not (ROOT / "docs" / name).is_file()]


def write_site(folder: Path, body: str) -> None:
    (folder / "search").mkdir()
    (folder / "search" / "search_index.json").write_text(json.dumps({"docs": [{"title": "Save", "text": "attach"}]}))
    (folder / "index.html").write_text(f"<h1 id=top>site</h1>{body}")


def test_dead_links_and_missing_words_are_seen(tmp_path: Path) -> None:
    links = "#top", "index.html#top", "none/", "#gone", "https://elsewhere.example/none"
    write_site(tmp_path, "".join(f'<a href="{link}">x</a>' for link in links))
    assert check_site.dead_links(tmp_path) == ["index.html: none/", "index.html: #gone"]
    assert "priorities" in check_site.missing_words(tmp_path) and "save" not in check_site.missing_words(tmp_path)


def test_names_without_an_anchor_are_seen(tmp_path: Path) -> None:
    write_site(tmp_path, "")
    for page, (_, names) in public_names.pages().items():
        (tmp_path / "reference" / page).mkdir(parents=True)
        anchors = "".join(f'<h2 id="{one.path}"></h2>' for one in names if one.path != "relive.Table")
        (tmp_path / "reference" / page / "index.html").write_text(anchors)
    assert check_site.missing_names(tmp_path) == ["relive.Table"]


def test_the_readme_of_the_package_has_no_link_into_the_repository() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "](docs/" in readme
    for home in ("", "https://host.example/owner/relive/blob/v0.1.0"):
        text = package_readme.packaged(readme, home)
        links = re.findall(r"\]\(([^)]+)\)", text)
        assert all(link.startswith(("https://", "#")) for link in links)
        assert bool(links) == bool(home)
    assert "https://host.example/owner/relive/raw/v0.1.0/docs/images/how-it-works.svg" in text


def test_the_files_of_a_release_name_one_version() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("the release runs on Python 3.11")
    import release

    assert set(release.versions().values()) == {relive.__version__}
    wheel = Path("relive-0.1.0-cp312-abi3-manylinux_2_28_x86_64.whl")
    assert [one for one in release.TESTED if release.serves(wheel, one)] == ["3.12", "3.13", "3.14"]
    wheel = Path("relive-0.1.0-cp310-cp310-manylinux_2_28_x86_64.whl")
    assert [one for one in release.TESTED if release.serves(wheel, one)] == ["3.10"]


def test_each_command_of_make_has_one_recipe() -> None:
    done = subprocess.run(["make", "--dry-run", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr
    named = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert len(named) == len(set(named)) and {"demo", "docs", "release", "wheel", "gpu-wheel"} <= set(named)


def test_the_program_of_a_release_runs_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke.main([]) == 0
    assert "numpy only" in capsys.readouterr().out
