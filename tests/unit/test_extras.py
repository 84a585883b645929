"""The command that installs an extra works for the copy of the library that names it."""

from __future__ import annotations

import importlib
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relive import errors
from relive.errors import extras


def installed(folder: Path, origin: dict[str, Any] | None) -> None:
    """Writes the files of an installation by pip: the metadata, and the origin unless that is a package index."""
    metadata = folder / "relive-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: relive\nVersion: 0.1.0\n")
    if origin is not None:
        (metadata / "direct_url.json").write_text(json.dumps(origin))


@pytest.mark.parametrize(
    "origin, command",
    [
        (None, "pip install 'relive[service]'"),
        ({"url": "file:///nowhere/gone", "dir_info": {}}, "pip install '.[service]'"),
        (
            {"url": "https://host/relive.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'relive[service] @ git+https://host/relive.git@abc'",
        ),
        (
            {"url": "file:///wheels/relive-0.1.0.whl", "archive_info": {}},
            "pip install 'relive[service] @ file:///wheels/relive-0.1.0.whl'",
        ),
    ],
)
def test_a_copy_that_was_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, Any] | None, command: str
) -> None:
    installed(tmp_path, origin)
    monkeypatch.setattr(extras, "_HERE", tmp_path / "relive" / "_extras.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    assert extras.install_command("service") == command


def test_a_folder_that_is_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = tmp_path / "a check out"
    checkout.mkdir()
    installed(tmp_path, {"url": checkout.as_uri(), "dir_info": {}})
    monkeypatch.setattr(extras, "_HERE", tmp_path / "relive" / "_extras.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    assert shlex.split(extras.install_command("gpu")) == ["pip", "install", f"{checkout}[gpu]"]


def test_a_copy_that_was_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_HERE", tmp_path / "relive" / "_extras.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert extras.install_command("train") == "pip install '.[train]' in a checkout of relive"


def test_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays editable: a copy beside it would be another version of the library tomorrow."""
    (tmp_path / "pyproject.toml").write_text("")
    monkeypatch.setattr(extras, "_HERE", tmp_path / "src" / "relive" / "_extras.py")
    assert shlex.split(extras.install_command("train")) == ["pip", "install", "-e", f"{tmp_path}[train]"]


@pytest.mark.parametrize(
    "hidden, part", [("pyarrow", "relive.service"), ("torch", "relive.gpu"), ("gymnasium", "relive.adapters.gymnasium")]
)
def test_a_missing_package_is_told_with_the_command(hidden: str, part: str) -> None:
    program = (
        "import sys, pickle\n"
        f"sys.modules[{hidden!r}] = None\n"
        "import relive\n"
        "try:\n"
        f"    import {part}\n"
        "except relive.errors.MissingPackage as error:\n"
        "    assert isinstance(error, ModuleNotFoundError) and error.name == error.package\n"
        "    print(error.package, '|', error.command, '|', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    package, command, sentence = done.stdout.strip().split(" | ")
    assert package.split(".")[0] == hidden and command.startswith("pip install") and sentence.endswith(command)
    assert part in sentence


def test_a_connect_without_the_extra() -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import relive\n"
        "try: relive.connect('grpc://127.0.0.1:1/x')\n"
        "except relive.errors.MissingPackage as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("relive.service needs pyarrow"), done.stderr


def test_tensors_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import relive

    monkeypatch.setitem(sys.modules, "torch", None)
    with relive.Table(relive.StepSpec({"x": relive.ArraySpec((), "float32")}), 10) as table, table.writer() as writer:
        writer.append(x=1.0)
        with pytest.raises(errors.MissingPackage, match="pip install torch"):
            table.sample(1).to_torch()
