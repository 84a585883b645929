#!/usr/bin/env bash
# Builds one wheel for each of the given Python versions that is on this machine, into dist/.
# usage: scripts/wheels.sh "3.10 3.11 3.12"
set -euo pipefail
cd "$(dirname "$0")/.."
for version in $1; do
  if ! scripts/find_python.sh "$version" >/dev/null; then
    echo "wheel for Python $version: skipped (see above)"
    continue
  fi
  folder=".venv-$version"
  [ "$version" = 3.11 ] && folder=.venv || scripts/setup.sh core "$version" "$folder"
  # Other environments have neither pip nor the tools to build with: those of .venv serve them.
  PATH="$PWD/$folder/bin:$PWD/.venv/bin:$PATH" .venv/bin/python -m pip --python "$folder/bin/python" wheel --quiet \
    --no-deps --no-build-isolation --wheel-dir dist .
done
ls -l dist/*.whl
