#!/usr/bin/env bash
# Runs everything that needs a GPU from an unpacked archive of `make gpu-wheel`. Needs no network and installs nothing:
# only a Python with torch and triton, `python3` or $PYTHON. Arguments are those of scripts/gpu.py.
# usage: ./run.sh [--only tests,bench] [--device auto|cuda|cpu] [--out runs/gpu] [--again] [--seconds 120]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
command -v "$python" > /dev/null || { echo "no $python here: PYTHON=/path/to/python $0" >&2 && exit 2; }
"$python" "$here/scripts/gpu_site.py" "$here/wheels" "$here/site"
export PYTHONPATH="$here/site${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$here/scripts/gpu.py" "$@"
