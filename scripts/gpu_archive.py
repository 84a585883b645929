"""Packs dist/relive-gpu.tar.gz: everything that a machine with a GPU and without a network needs for scripts/gpu.py.

The archive has one folder, relive-gpu:

  run.sh       the command to type there
  wheels/      relive, and pure packages that the machine may lack: pytest, Gymnasium and the packages that these need
  tests/, benchmarks/, scripts/, pyproject.toml, constraints.txt

The machine has Python, PyTorch, Triton and NumPy of its own.

usage: python scripts/gpu_archive.py [--python 3.12] [--out dist/relive-gpu.tar.gz]
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "relive-gpu"
CARRIED = (
    *("pytest", "pytest-timeout", "pytest-xdist", "execnet", "pluggy", "iniconfig", "packaging", "pygments"),
    *("hypothesis", "sortedcontainers", "attrs"),
    *("gymnasium", "farama-notifications", "cloudpickle", "typing-extensions"),
    *("rich", "markdown-it-py", "mdurl"),
)
SOURCES = ("tests", "benchmarks", "scripts", "pyproject.toml", "constraints.txt")
KEPT = (".py", ".sh", ".toml", ".txt", ".json")
LEFT_OUT = ("benchmarks/results/", "tests/cpp/")
EMPTY = "benchmarks/results"  # a test looks into it


def wheel_of(version: str) -> Path:
    """Builds relive's wheel for a Python. The wheel of 3.12 serves later versions, too."""
    subprocess.run(["scripts/wheels.sh", version], cwd=ROOT, check=True)
    tag = "cp312-abi3" if version not in ("3.10", "3.11") else f"cp{version.replace('.', '')}-"
    wheels = sorted((ROOT / "dist").glob(f"relive-*-{tag}*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise SystemExit(f"no wheel of relive for Python {version} in dist/")
    return wheels[-1]


def carried(version: str) -> list[Path]:
    """Fetches the other packages, in the versions of constraints.txt. Asks no index if all of them are there."""
    folder = ROOT / "build" / "gpu-archive" / version
    stamp = folder / "constraints.txt"
    wanted = (ROOT / "constraints.txt").read_text() + " ".join(CARRIED)
    if not stamp.exists() or stamp.read_text() != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "--implementation", "cp", "--python-version", version]
        command += ["--constraint", "constraints.txt", "--dest", str(folder), *CARRIED]
        subprocess.run(command, cwd=ROOT, check=True)
        stamp.write_text(wanted)
    return sorted(folder.glob("*.whl"))


def sources() -> list[Path]:
    """The files of the checkout that the parts run, relative to it; also those that are not committed yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *SOURCES]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = sorted(set(filter(None, listed.split("\0"))))
    kept = [Path(name) for name in names if name.endswith(KEPT) and not name.startswith(LEFT_OUT)]
    return [path for path in kept if (ROOT / path).is_file()]


def pack(out: Path, wheels: list[Path]) -> None:
    """Writes the archive."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:gz") as archive:
        archive.add(ROOT / "scripts" / "gpu_run.sh", f"{FOLDER}/run.sh")
        for path in sources():
            archive.add(ROOT / path, f"{FOLDER}/{path.as_posix()}")
        empty = tarfile.TarInfo(f"{FOLDER}/{EMPTY}")
        empty.type, empty.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(empty, io.BytesIO())
        for wheel in wheels:
            archive.add(wheel, f"{FOLDER}/wheels/{wheel.name}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12", help="version of the machine's Python; 3.12 serves later ones")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "relive-gpu.tar.gz")
    arguments = parser.parse_args()
    wheels = [wheel_of(arguments.python), *carried(arguments.python)]
    pack(arguments.out, wheels)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB, {len(wheels)} wheels, {wheels[0].name}")
    print("on the machine with the GPU:  tar xzf relive-gpu.tar.gz && relive-gpu/run.sh")
    return 0


if __name__ == "__main__":
    sys.exit(main())
