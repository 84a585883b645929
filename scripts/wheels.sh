#!/usr/bin/env bash
# Builds one wheel for each of the given Python versions that is on this machine, into dist/.
# usage: scripts/wheels.sh "3.10 3.11 3.12"
# The tools to build with are those of .venv. An environment of another Python has only the packages that a build
# imports: that of the tests (.venv-VERSION), if it is there, or build/wheel-VERSION.
set -euo pipefail
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT="$PWD/constraints.txt"
for version in $1; do
  if ! python="$(scripts/find_python.sh "$version")"; then
    echo "wheel for Python $version: skipped (see above)"
    continue
  fi
  folder=".venv-$version"
  if [ "$version" = 3.11 ]; then
    folder=.venv
  elif [ ! -f "$folder/.stamp-dependencies" ]; then
    folder="build/wheel-$version"
    [ -x "$folder/bin/python" ] || "$python" -m venv --without-pip "$folder"
    .venv/bin/python -m pip --python "$folder/bin/python" install --quiet scikit-build-core nanobind numpy
  fi
  PATH="$PWD/$folder/bin:$PWD/.venv/bin:$PATH" .venv/bin/python -m pip --python "$folder/bin/python" wheel --quiet \
    --no-deps --no-build-isolation --wheel-dir dist .
done
ls -l dist/*.whl
