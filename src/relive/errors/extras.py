"""The command that installs an extra of the library for the copy of it that is running."""

from __future__ import annotations

import importlib
import json
import os
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["install_command"]

_HERE = Path(__file__).resolve()


def install_command(extra: str) -> str:
    """A pip command that names the origin of this copy: its checkout, a folder, an address, or an index."""
    checkout = _HERE.parents[2]
    if (checkout / "pyproject.toml").is_file() and _HERE.parents[1] == checkout / "src":
        return f"pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    origin = _origin()
    if origin is None:
        return f"pip install '.[{extra}]' in a checkout of relive"
    return f"pip install {shlex.quote(_requirement(extra, origin))}"


def _requirement(extra: str, origin: dict[str, Any]) -> str:
    """The requirement for pip, from the record that pip wrote for this copy (PEP 610); {}: it came from an index."""
    url = str(origin.get("url", ""))
    if not url:
        return f"relive[{extra}]"
    if "dir_info" in origin:
        folder = unquote(urlsplit(url).path)
        return f"{folder}[{extra}]" if os.path.isdir(folder) else f".[{extra}]"
    version_control = origin.get("vcs_info")
    if version_control:
        url = f"{version_control['vcs']}+{url}@{version_control['commit_id']}"
    return f"relive[{extra}] @ {url}"


def _origin() -> dict[str, Any] | None:
    """direct_url.json of the installed distribution; {} if it has none; None if nothing is installed."""
    metadata = importlib.import_module("importlib.metadata")  # slow to load, and seldom needed
    try:
        text = metadata.distribution("relive").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    return json.loads(text) if text else {}
