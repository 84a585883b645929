"""relive of a commit and relive of the present tree, each built as users get it, in an environment of its own.

An environment under build/compare holds one build of relive and borrows every other package from the Python that runs
this. It is a virtual environment, so that processes which a worker starts find the same build; its own packages come
first, and the hook of an editable install has no effect in it. Nothing is installed where this runs, nothing fetched.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "compare"
SOURCES = ("cpp", "src", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE", ".gitignore")
TOOLS = ("numpy", "nanobind", "scikit-build-core")  # what shapes a build besides its source
SETTINGS = "RELIVE_"  # variables of this name would change how relive is built


@dataclass(frozen=True)
class Build:
    """One build of relive: what to call it, the commit it is of or began from, and where it lies."""

    name: str
    commit: str
    folder: Path

    @property
    def python(self) -> Path:
        """The Python that imports this build."""
        return self.folder / "environment" / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Where relive lies: what a worker must have imported it from."""
        major, minor = sys.version_info[:2]
        return self.folder / "environment" / "lib" / f"python{major}.{minor}" / "site-packages"


def of_commit(name: str, folder: Path = FOLDER) -> Build:
    """The build of a commit; made once, later runs find it."""
    try:
        commit = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError:
        raise SystemExit(f"{name!r} is no commit that git knows here") from None

    def put(source: Path) -> None:
        with tarfile.open(fileobj=BytesIO(_git("archive", "--format=tar", commit))) as tar:
            tar.extractall(source)

    build = Build(name, commit, folder / commit)
    _make(build, commit, put)
    return build


def of_tree(folder: Path = FOLDER) -> Build:
    """The build of what lies in the tree now: changes not committed and new files too, what git ignores not."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *SOURCES).decode()
    files = {name: (ROOT / name).read_bytes() for name in sorted(listed.split("\0")) if (ROOT / name).is_file()}
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(content).digest())
    build = Build("tree", _git("describe", "--always", "--dirty").decode().strip(), folder / "tree")
    _make(build, digest.hexdigest(), lambda source: write_changed(source, files))
    return build


def write_changed(folder: Path, files: dict[str, bytes]) -> None:
    """Makes the folder hold these files and no other; one that has not changed keeps its time and is not recompiled."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if str(path.relative_to(folder)) not in files:
            path.unlink()
    for name, content in files.items():
        target = folder / name
        if not target.exists() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def make_environment(build: Build) -> None:
    """An empty environment that sees every package this Python sees, behind its own."""
    environment = build.folder / "environment"
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (build.packages / "borrowed.pth").write_text("".join(f"{entry}\n" for entry in _package_folders()))


def _package_folders() -> list[str]:
    """Where this Python looks for packages, beside its own library and whatever started it."""
    ask = "import json, sys; print(json.dumps(sys.path))"
    found = [
        json.loads(subprocess.run([sys.executable, *flags, "-c", ask], capture_output=True, check=True).stdout)
        for flags in (["-I"], ["-I", "-S"])
    ]
    return [entry for entry in found[0] if entry not in found[1]]


def _make(build: Build, source_digest: str, put_source: Callable[[Path], None]) -> None:
    """Builds and installs unless the same source was built by the same tools before."""
    tools = {name: importlib.metadata.version(name) for name in TOOLS}
    compiler = subprocess.run([os.environ.get("CXX", "c++"), "--version"], capture_output=True, text=True).stdout
    made_of = {
        "source": source_digest,
        "python": sys.version,
        "packages": _package_folders(),
        "compiler": compiler,
        **tools,
    }
    stamp = build.folder / "made-of.json"
    before = json.loads(stamp.read_text()) if stamp.exists() else {}
    if before == made_of:
        return
    print(f"building {build.name}, optimised whole (a minute or two)", flush=True)
    if {**before, "source": source_digest} == made_of:
        stamp.unlink()
    else:  # other tools, or broken off: nothing that lies there is of use
        shutil.rmtree(build.folder, ignore_errors=True)
    source = build.folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    put_source(source)
    make_environment(build)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    install += ["--no-index", "--no-build-isolation", "--target", str(build.packages), "--upgrade"]
    install += [f"--config-settings=build-dir={build.folder / 'cmake'}", str(source)]
    done = subprocess.run(install, env=_build_variables(), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{build.name} could not be built:\n{done.stdout}{done.stderr}")
    stamp.write_text(json.dumps(made_of))


def _build_variables() -> dict[str, str]:
    """The environment's tools first; no setting that would make a build other than what users get."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}"
    kept.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", str(len(os.sched_getaffinity(0))))
    return kept


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout
