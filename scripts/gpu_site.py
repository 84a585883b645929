"""Unpacks wheels into a folder for PYTHONPATH: relive, and each carried package that this Python lacks.

A wheel is a zip file, so pip is not needed. A package that this Python can import already, in a version that serves,
stays the machine's own.

usage: python scripts/gpu_site.py WHEELS SITE
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import sys
import zipfile
from pathlib import Path

OURS = "relive"
AT_LEAST = {  # of the machine's own packages
    "gymnasium": (1, 1),
    "hypothesis": (6, 100),
    "numpy": (1, 26),
    "pluggy": (1, 5),
    "pytest": (8, 0),
    "pytest_timeout": (2, 3),
    "pytest_xdist": (3, 0),
    "rich": (13, 0),
}


def reason_against(wheel: Path) -> str:
    """Why this Python cannot use the wheel, by the tags in its name; empty if it can."""
    python, abi = wheel.stem.split("-")[-3:-1]
    mine = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    if python.startswith("py") or python == mine:
        return ""
    oldest = int(re.sub(r"\D", "", python)[1:])
    if abi == "abi3" and sys.version_info[1] >= oldest:
        return ""
    return f"it is for Python 3.{oldest}{' and later' if abi == 'abi3' else ''}, this is {mine[2]}.{mine[3:]}"


def modules_of(wheel: Path) -> set[str]:
    """The modules and packages at the top of a wheel."""
    with zipfile.ZipFile(wheel) as file:
        tops = {name.split("/")[0] for name in file.namelist() if name.endswith((".py", ".so"))}
    return {top.split(".")[0] for top in tops if not top.endswith((".dist-info", ".data"))}


def is_here(wheel: Path) -> bool:
    """Whether this Python can import every module of the wheel, in a version that serves."""
    name = wheel.name.split("-")[0].lower()
    if any(importlib.util.find_spec(module) is None for module in modules_of(wheel)):
        return False
    try:
        version = importlib.metadata.version(name.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return name not in AT_LEAST
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return numbers >= AT_LEAST.get(name, (0,))


def main(wheels: Path, site: Path) -> int:
    shutil.rmtree(site, ignore_errors=True)  # that of an earlier archive
    site.mkdir(parents=True)
    taken, own, useless = [], [], []
    for wheel in sorted(wheels.glob("*.whl")):
        name, version = wheel.name.split("-")[:2]
        if name != OURS and is_here(wheel):
            own.append(name)
            continue
        reason = reason_against(wheel)
        if reason and name == OURS:
            print(f"cannot use {wheel.name}: {reason}", file=sys.stderr)
            return 2
        if reason:
            useless.append(f"{name} ({reason})")
            continue
        with zipfile.ZipFile(wheel) as file:
            file.extractall(site)
        taken.append(f"{name} {version}")
    print(f"from the archive: {', '.join(taken)}")
    print(f"from this Python: {', '.join(own) or 'no package that the archive has'}")
    if useless:
        print(f"not usable here: {', '.join(useless)}")
    if not any(one.startswith(f"{OURS} ") for one in taken):
        print(f"no wheel of {OURS} in {wheels}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
