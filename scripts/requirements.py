"""Prints what an environment needs besides relive, one requirement a line, as pyproject.toml declares it.

usage: python scripts/requirements.py full | demo | core | portable [--without-tools]
  --without-tools   cmake and ninja are those of another environment
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # a fresh environment of Python 3.10 holds pip, and pip holds a TOML reader
    from pip._vendor import tomli as tomllib

BUILD_TOOLS = ["cmake>=3.18", "ninja"]
CORE_TEST_TOOLS = ("pytest", "pytest-timeout", "hypothesis")


def main(kind: str, *options: str) -> None:
    declared = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    project = declared["project"]
    extras = project["optional-dependencies"]
    tools = [] if "--without-tools" in options else BUILD_TOOLS
    wanted = tools + declared["build-system"]["requires"] + project["dependencies"] + extras["gymnasium"]
    if kind == "full":
        for extra in ("train", "gpu", "service", "ray", "wandb", "examples", "dev"):
            wanted += extras[extra]
    elif kind == "demo":
        wanted += [*extras["train"], "gymnasium[classic-control]"]  # pygame draws the window of `relive play`
    else:
        wanted += [line for line in extras["dev"] if re.split(r"[<>=]", line)[0] in CORE_TEST_TOOLS]
    sys.stdout.write("\n".join(dict.fromkeys(wanted)) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
