#!/usr/bin/env bash
# Builds the site into build/site/VERSION, with a list of versions and a start page beside it, and checks it.
# usage: scripts/docs.sh build | test
#   build   generates pages, builds, checks links, search and reference
#   test    build, then the same site in headless Chromium
# The layout is the one that `mike` publishes: each version has a folder, and versions.json names them.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 NO_MKDOCS_2_WARNING=1
python="$PWD/.venv/bin/python" venv=.venv-docs site=build/site
version="$("$python" -c 'import relive; print(".".join(relive.__version__.split(".")[:2]))')"
wanted="$(sha256sum docs/requirements.txt | cut -c 1-16)"
if [ ! -f "$venv/.stamp" ] || [ "$(cat "$venv/.stamp")" != "$wanted" ]; then
  echo "[docs] installing mkdocs into $venv"
  "$python" -m venv --clear "$venv"
  "$venv/bin/python" -m pip install --quiet --requirement docs/requirements.txt
  printf '%s' "$wanted" > "$venv/.stamp"
fi
echo "[docs] generating pages"
rm -rf build/pages
"$python" scripts/site/generated_pages.py build/pages
echo "[docs] building $site/$version"
"$venv/bin/mkdocs" build --quiet --site-dir "$site/$version"
"$python" - "$site" "$version" <<'PY'
import json, sys
from pathlib import Path

site, version = Path(sys.argv[1]), sys.argv[2]
number = lambda name: [int(part) for part in name.split(".")]
found = sorted((path.name for path in site.iterdir() if (path / "index.html").is_file()), key=number, reverse=True)
versions = [{"version": name, "title": name, "aliases": ["latest"] if name == found[0] else []} for name in found]
(site / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")
to = f"{found[0]}/"
(site / "index.html").write_text(
    f'<!doctype html><meta charset="utf-8"><title>relive</title><meta http-equiv="refresh" content="0; url={to}">'
    f'<a href="{to}">relive {found[0]}</a>\n'
)
PY
"$python" scripts/site/check_site.py "$site/$version"
if [ "${1:-build}" = test ]; then "$venv/bin/python" scripts/site/browse_site.py "$site"; fi
echo "[docs] open $site/index.html, or: $python -m http.server --directory $site 8000"
