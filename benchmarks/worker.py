"""One process of a measurement, run by benchmarks.run: `python -m benchmarks.worker PART JOB_JSON OUTPUT_FILE`."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import sys
from pathlib import Path

PACKAGES = ("relive", "numpy", "torch", "stable-baselines3", "tianshou", "cpprb", "gymnasium", "numba",
            "pyarrow", "dm-reverb", "tensorflow", "ray", "torchrl", "tensordict")  # fmt: skip


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that this process runs with."""
    installed = {}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), **installed}


def main(part: str, job: str, output: str) -> None:
    readings = importlib.import_module(f"benchmarks.parts.{part}").work(json.loads(job))
    Path(output).write_text(json.dumps({"readings": readings, "versions": versions()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
