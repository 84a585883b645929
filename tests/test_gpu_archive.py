"""The archive of `make gpu-wheel`: which packages run.sh takes from it, and a whole run where the Python has few."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OF_TORCH = ("typing_extensions.py", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec")
OWN = ("torch", "torchgen", "functorch", "triton", "numpy", "numpy.libs", "nvidia", *OF_TORCH)
OWN_DISTRIBUTIONS = ("torch-", "triton-", "numpy-", "typing_extensions-")
LIMIT_S = 480.0


def bare_python(folder: Path) -> Path:
    """A Python that imports torch, triton, numpy and the packages that torch needs of this one, and no other."""
    if sys.prefix == sys.base_prefix:
        pytest.skip("this Python is not in a virtual environment: its packages cannot be told from others")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    here = Path(sysconfig.get_path("purelib"))
    there = folder / here.relative_to(sys.prefix)
    for path in here.iterdir():
        if path.name in OWN or (path.name.startswith(OWN_DISTRIBUTIONS) and path.suffix == ".dist-info"):
            (there / path.name).symlink_to(path)
    return folder / "bin" / "python"


def unpack(folder: Path) -> Path:
    """Makes the archive for this Python, and unpacks it. Skips if packages cannot be fetched."""
    archive, version = folder / "archive.tar.gz", f"{sys.version_info[0]}.{sys.version_info[1]}"
    command = [sys.executable, "scripts/gpu_archive.py", "--python", version, "--out", str(archive)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0 and "pip', 'download'" in done.stderr:
        pytest.skip(f"pip cannot fetch the packages of the archive: {done.stderr.strip().splitlines()[0]}")
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(archive) as file:
        file.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder / "relive-gpu"


def without_network() -> list[str]:
    """The command that starts another one in an empty network namespace."""
    command = ["unshare", "-rn"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine makes no network namespace: unshare -rn fails")
    return command


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_the_archive_runs_with_torch_triton_and_numpy_alone(tmp_path: Path) -> None:
    alone = without_network()
    python, folder = bare_python(tmp_path / "python"), unpack(tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RELIVE", "VIRTUAL"))}
    environment = {**kept, "PYTHON": str(python), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [*alone, str(folder / "run.sh"), "--device", "cpu", "--out", str(tmp_path / "out")]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    results = {name: part["result"] for name, part in summary["parts"].items()}
    assert done.returncode == 0 and set(results.values()) == {"passed"} and len(results) == 4, done.stdout
    assert "pytest 9" in done.stdout.splitlines()[0] and "gymnasium" in done.stdout.splitlines()[0]
    assert summary["machine"]["package"] == [str(folder / "site" / "relive")], (
        "relive of the archive, not of a checkout"
    )
    assert sum(part["seconds"] for part in summary["parts"].values()) < LIMIT_S, done.stdout


def make_wheel(folder: Path, name: str, tags: str, module: str) -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.5-{tags}.whl", "w") as file:
        file.writestr(f"{module}.py", f"value = {name!r}\n")
        file.writestr(f"{name}-1.5.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")


def site_of(folder: Path) -> tuple[int, str, set[str]]:
    """Exit status and output of the script that unpacks wheels, and the modules that it unpacked."""
    command = [sys.executable, "scripts/gpu_site.py", str(folder / "wheels"), str(folder / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr, {path.stem for path in (folder / "site").glob("*.py")}


def test_only_missing_packages_are_unpacked_and_relive_always(tmp_path: Path) -> None:
    """relive and pytest are here already."""
    wheels = tmp_path / "wheels"
    make_wheel(wheels, "relive", "cp310-abi3-linux_x86_64", "relive")
    make_wheel(wheels, "nowhere_to_be_found", "py3-none-any", "nowhere_to_be_found")
    make_wheel(wheels, "pytest", "py3-none-any", "pytest")
    make_wheel(wheels, "of_another", "cp39-cp39-linux_x86_64", "of_another")
    status, output, modules = site_of(tmp_path)
    assert status == 0 and modules == {"relive", "nowhere_to_be_found"}, output
    assert "from the archive: nowhere_to_be_found 1.5, relive 1.5" in output
    assert "from this Python: pytest" in output and "not usable here: of_another (it is for Python 3.9" in output


def test_a_package_that_is_too_old_is_taken_from_the_archive(tmp_path: Path) -> None:
    wheels, old = tmp_path / "wheels", tmp_path / "old"
    make_wheel(wheels, "relive", "py3-none-any", "relive")
    make_wheel(wheels, "rich", "py3-none-any", "rich")
    (old / "rich-9.1.dist-info").mkdir(parents=True)
    (old / "rich.py").write_text("")
    (old / "rich-9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: rich\nVersion: 9.1\n")
    command = [sys.executable, "scripts/gpu_site.py", str(wheels), str(tmp_path / "site")]
    environment = {**os.environ, "PYTHONPATH": str(old)}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    assert (tmp_path / "site" / "rich.py").exists()


def test_a_wheel_of_relive_for_a_later_python_is_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", "relive", "cp399-abi3-linux_x86_64", "relive")
    status, output, _ = site_of(tmp_path)
    assert status == 2 and "cannot use relive-1.5" in output and "it is for Python 3.99 and later, this is 3." in output
